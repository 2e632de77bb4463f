"""`comity notifiers`."""

import click

from comity.cli.api_client import Answer
from comity.cli.exit_status import DONE, FAILED
from comity.cli.options import DefaultListGroup, check_option, gateway_options
from comity.cli.output import build_table, line_text, show_document, show_output
from comity.cli.target import connect_gateway

NOTIFIERS_PATH = "notifiers"
_COLUMNS = ("NAME", "KIND", "MIN RISK", "TO", "SENT", "FAILED", "LAST ERROR")


@click.group("notifiers", cls=DefaultListGroup)
def notifiers_command() -> None:
    """List and test notifiers.

    A notifier tells people about approval requests: in Slack, Teams, by email, by Web Push or by a
    webhook. The configuration file names them under [[approvals.notifiers]].

    \b
    Examples:
      comity notifiers
      comity notifiers test on-call
    """


@notifiers_command.command("list")
@check_option("the latest message of a notifier failed")
@gateway_options
def list_notifiers(*, check: bool) -> int:
    """List notifiers with the messages that this node sent.

    \b
    Examples:
      comity notifiers list
      comity notifiers list --check
    """
    found: list[Answer] = connect_gateway().get(NOTIFIERS_PATH)["notifiers"]

    def print_table() -> None:
        if found:
            show_output(build_table(_COLUMNS, [_row(each) for each in found]))
        else:
            show_output(line_text("There are no notifiers."))

    show_document({"notifiers": found}, print_table, [each["name"] for each in found])
    return FAILED if check and any(each["last_error"] for each in found) else DONE


@notifiers_command.command("test")
@click.argument("name")
@click.option("--principal", metavar="ID", help="The person who gets it. Default: you.")
@gateway_options
def test_notifier(name: str, principal: str | None) -> None:
    """Send a test message now.

    \b
    Examples:
      comity notifiers test on-call
      comity notifiers test mail --principal person:ana@example.org
    """
    body = {} if principal is None else {"principal": principal}
    done = connect_gateway().post(NOTIFIERS_PATH, name, "test", body=body)
    told = line_text(f"Notifier {name} sent a test message.", "green")
    show_document(done, lambda: show_output(told), [name])


def _row(each: Answer) -> tuple[str, ...]:
    return (
        each["name"],
        each["kind"],
        each["min_risk"],
        ", ".join(each["to"]) or "approvers",
        f"{each['sent']}",
        f"{each['failed']}",
        each["last_error"] or "",
    )
