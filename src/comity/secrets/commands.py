"""`comity secrets`."""

import click
from rich.text import Text

from comity.cli.api_client import Answer
from comity.cli.exit_status import DONE, FAILED
from comity.cli.options import DefaultListGroup, gateway_options
from comity.cli.output import build_table, line_text, show_document, show_hint, show_output
from comity.cli.target import connect_gateway
from comity.toolkit.text import count_noun

SECRETS_PATH = "secrets"


@click.group("secrets", cls=DefaultListGroup)
def secrets_command() -> None:
    """Manage the keys of stored credentials.

    `keys` in [secrets] of the configuration names them. The first one seals.

    \b
    Examples:
      comity secrets
      comity secrets check
      comity secrets rotate
    """


@secrets_command.command("list")
@gateway_options
def list_keys() -> None:
    """List the keys, and how many values each one sealed.

    \b
    Examples:
      comity secrets list
      comity secrets list -o json
    """
    found = connect_gateway().get(SECRETS_PATH)

    def print_table() -> None:
        columns = ("KEY", "ID", "SEALS", "VALUES")
        show_output(build_table(columns, [_row(each) for each in found["keys"]]))

    show_document(found, print_table, [each["name"] for each in found["keys"]])


@secrets_command.command("check")
@gateway_options
def check_keys() -> int:
    """Check the keys and the stored values.

    The exit status is 1 if one of them fails.

    \b
    Examples:
      comity secrets check
    """
    found = connect_gateway().get(SECRETS_PATH, "check")

    def print_table() -> None:
        rows = [
            (each["name"], line_text("ok", "green") if each["ok"] else _problem(each["problem"]))
            for each in found["keys"]
        ]
        show_output(build_table(("KEY", "STATE"), rows))
        unreadable: Answer = found["unreadable"] or {}
        for store, number in unreadable.items():
            if number:
                lost = count_noun(number, "value")
                show_output(line_text(f"{store}: no key can read {lost}.", "red"))

    show_document(found, print_table, [each["name"] for each in found["keys"] if each["ok"]])
    return DONE if found["ok"] else FAILED


@secrets_command.command("rotate")
@click.option("--every", is_flag=True, help="Also values that have the newest key.")
@gateway_options
def rotate_keys(*, every: bool) -> int:
    """Seal every stored value with the newest key.

    The gateway serves calls meanwhile. If the command is interrupted, run it again.

    \b
    Examples:
      comity secrets rotate
      comity secrets rotate --every
    """
    gateway = connect_gateway()
    done = {"resealed": 0, "unreadable": 0}
    step: Answer = {"next": ""}
    while "next" in step:
        step = gateway.post(SECRETS_PATH, "rotate", body={"every": every, "cursor": step["next"]})
        done = {name: number + step[name] for name, number in done.items()}

    def print_result() -> None:
        told = f"Sealed {count_noun(done['resealed'], 'value')} with {step['key']}."
        show_output(line_text(told, "green"))
        if done["unreadable"]:
            lost = count_noun(done["unreadable"], "value")
            show_output(line_text(f"No key can read {lost}.", "red"))
            show_hint("Add the key that sealed them to `keys` in [secrets].")

    show_document({"key": step["key"], **done}, print_result, [step["key"]])
    return FAILED if done["unreadable"] else DONE


def _row(key: Answer) -> tuple[str | Text, ...]:
    values = ", ".join(f"{number} {store}" for store, number in sorted(key["values"].items()))
    return (key["name"], key["id"] or "", "yes" if key["is_newest"] else "", values or "none")


def _problem(text: str) -> Text:
    return line_text(text, "red")
