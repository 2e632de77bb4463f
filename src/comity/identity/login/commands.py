"""`comity sessions` and `comity console`."""

import webbrowser
from http import HTTPStatus
from typing import Final

import click

from comity.cli.api_client import API_TIMEOUT, Answer, ApiClient
from comity.cli.exit_status import FAILED
from comity.cli.options import DefaultListGroup, gateway_options, limit_option
from comity.cli.output import (
    build_table,
    describe_age,
    line_text,
    show_document,
    show_hint,
    show_output,
)
from comity.cli.target import connect_gateway
from comity.console.endpoint import CONSOLE_PATH, HOW_TO_GET_IT, NO_CONSOLE
from comity.errors import Misconfigured
from comity.http.client.sync_client import SYNC_ERRORS, request_sync

MAX_PAGE_BYTES: Final = 1024 * 1024


@click.group("sessions", cls=DefaultListGroup)
def sessions_command() -> None:
    """Manage the browsers that are signed in.

    \b
    Examples:
      comity sessions
      comity sessions revoke 3f1c9a0b7d2e4c58
    """


@sessions_command.command("list")
@limit_option()
@gateway_options
def list_sessions(limit: int | None) -> None:
    """List the browsers that are signed in.

    \b
    Examples:
      comity sessions list
      comity sessions list -o json
    """
    found = _all_sessions()[:limit]

    def print_table() -> None:
        if found:
            _print_sessions(found)
        else:
            show_output(line_text("No browser is signed in."))

    show_document({"sessions": found}, print_table, [each["id"] for each in found])


def _all_sessions() -> list[Answer]:
    gateway, found, query = connect_gateway(), list[Answer](), dict[str, str]()
    while True:
        page = gateway.get("sessions", **query)
        found += page["sessions"]
        if "next" not in page:
            return found
        query["cursor"] = page["next"]


def _print_sessions(found: list[Answer]) -> None:
    rows = [
        (
            each["id"],
            each["principal"],
            each["method"],
            describe_age(each["created_at"]),
            describe_age(each["last_seen"]),
            each["expires_at"][:16].replace("T", " "),
            each["issuer"],
        )
        for each in found
    ]
    columns = ("SESSION", "PRINCIPAL", "METHOD", "AGE", "LAST SEEN", "ENDS", "PROVIDER")
    show_output(build_table(columns, rows, extra=("PROVIDER", "AGE")))


@sessions_command.command("revoke")
@click.argument("session")
@gateway_options
def revoke_session(session: str) -> None:
    """End a session on all nodes.

    SESSION is an id of `comity sessions list`.

    \b
    Examples:
      comity sessions revoke 3f1c9a0b7d2e4c58
    """
    ended = connect_gateway().post("sessions", session, "revoke")
    done = line_text(f"Ended session {ended['id']} of {ended['principal']}.", "green")
    show_document(ended, lambda: show_output(done), [ended["id"]])


@click.command("console")
@click.option("--no-open", is_flag=True, help="Print the link without opening a browser.")
@gateway_options
def console_command(*, no_open: bool) -> None:
    """Open the console in a browser.

    The command asks the running gateway for a link, which signs you in as the operator of this
    machine. The link works once, for ten minutes, on this machine. A gateway with
    mode = "required" has its own sign-in page at /login.

    \b
    Examples:
      comity console
      comity console --no-open
    """
    gateway = connect_gateway()
    if not _has_console(gateway):
        raise Misconfigured(f"{gateway.url}: {NO_CONSOLE} {HOW_TO_GET_IT}", FAILED)
    made = gateway.post("login-links", body={})
    url = f"{gateway.url}{made['path']}"
    answer = {"url": url, "expires_at": made["expires_at"]}

    def print_link() -> None:
        show_output(line_text(url))
        show_hint("The link works once, within ten minutes, on this machine.")

    show_document(answer, print_link, [url])
    if not no_open:
        webbrowser.open(url)


def _has_console(gateway: ApiClient) -> bool:
    """Return whether this gateway serves the console. Its build may lack it."""
    try:
        status, _ = request_sync(
            gateway.connect(API_TIMEOUT), "GET", CONSOLE_PATH, {}, None, MAX_PAGE_BYTES
        )
    except SYNC_ERRORS as problem:
        raise gateway.unreachable(problem) from None
    return status != HTTPStatus.NOT_FOUND
