"""`comity webhooks`."""

import click
from rich.text import Text

from comity.cli.api_client import Answer, ApiClient
from comity.cli.exit_status import DONE, FAILED
from comity.cli.options import (
    DefaultListGroup,
    check_option,
    confirm,
    gateway_options,
    limit_option,
    yes_option,
)
from comity.cli.output import build_table, describe_age, line_text, show_document, show_output
from comity.cli.target import connect_gateway
from comity.toolkit.text import count_noun

WEBHOOKS_PATH = "webhooks"


@click.group("webhooks", cls=DefaultListGroup)
def webhooks_command() -> None:
    """Manage webhook subscriptions.

    Clients subscribe with events/subscribe. They need a grant of events/subscribe on webhooks/HOST.

    \b
    Examples:
      comity webhooks
      comity webhooks show 06gu44bi
      comity webhooks retry 06gu44bi
    """


@webhooks_command.command("list")
@check_option("a webhook has undelivered events")
@limit_option()
@gateway_options
def list_webhooks(limit: int | None, *, check: bool) -> int:
    """List webhooks with their state.

    \b
    Examples:
      comity webhooks list
      comity webhooks list --check
    """
    found = _all(connect_gateway())[:limit]

    def print_table() -> None:
        if found:
            show_output(build_table(_COLUMNS, [_row(each) for each in found]))
        else:
            show_output(line_text("There are no webhooks."))

    show_document({"webhooks": found}, print_table, [each["id"] for each in found])
    return FAILED if check and any(_is_wrong(each) for each in found) else DONE


_COLUMNS = (
    "ID",
    "PRINCIPAL",
    "URL",
    "EVENT",
    "STATE",
    "QUEUED",
    "FAILED",
    "LAST ERROR",
    "DELIVERED",
)


@webhooks_command.command("show")
@click.argument("id")
@gateway_options
def show_webhook(id: str) -> None:
    """Show a webhook with its queued and failed events.

    \b
    Examples:
      comity webhooks show 06gu44bi
    """
    one = connect_gateway().get(WEBHOOKS_PATH, id)

    def print_table() -> None:
        show_output(build_table(_COLUMNS, [_row(one)]))
        if one["posts"]:
            columns = ("EVENT", "STATE", "ATTEMPTS", "NEXT ATTEMPT", "LAST ERROR")
            show_output("", build_table(columns, [_post_row(each) for each in one["posts"]]))

    show_document(one, print_table, [one["id"]])


@webhooks_command.command("retry")
@click.argument("id")
@gateway_options
def retry(id: str) -> None:
    """Enable a webhook and send its failed events again.

    \b
    Examples:
      comity webhooks retry 06gu44bi
    """
    done = connect_gateway().post(WEBHOOKS_PATH, id, "retry")
    failed = count_noun(done["retried"], "failed event")
    told = line_text(f"{id} is active. Comity sends {failed} again.", "green")
    show_document(done, lambda: show_output(told), [id])


@webhooks_command.command("delete")
@click.argument("id")
@yes_option
@gateway_options
def delete(id: str, *, yes: bool) -> None:
    """Delete a webhook with its queued events.

    \b
    Examples:
      comity webhooks delete 06gu44bi
    """
    confirm(f"Delete webhook {id} with its queued events?", yes=yes)
    done = connect_gateway().post(WEBHOOKS_PATH, id, "delete")
    lost = count_noun(done["waiting"] + done["failed"], "undelivered event")
    told = line_text(f"Deleted {id} with {lost}.", "green")
    show_document(done, lambda: show_output(told), [id])


def _all(gateway: ApiClient) -> list[Answer]:
    found: list[Answer] = []
    query: dict[str, str] = {}
    while True:
        page = gateway.get(WEBHOOKS_PATH, **query)
        found += page[WEBHOOKS_PATH]
        if "next" not in page:
            return found
        query["cursor"] = page["next"]


def _is_wrong(one: Answer) -> bool:
    return bool(one["state"] != "active" or one["failed"] or one["dropped"] or one["failures"])


def _row(one: Answer) -> tuple[str | Text, ...]:
    return (
        *(one["id"], one["principal"], one["place"] or "(not permitted)", one["event"]),
        line_text(one["state"], "green" if one["state"] == "active" else "red"),
        *(str(one["waiting"]), str(one["failed"]), one["last_error"] or ""),
        describe_age(one["delivered_at"]),
    )


def _post_row(post: Answer) -> tuple[str | Text, ...]:
    due = (post["due_at"] or "")[:19]
    return (post["event"], post["state"], str(post["attempts"]), due, post["last_error"] or "")
