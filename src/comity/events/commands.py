"""`comity webhooks`."""

import click
from rich.text import Text

from comity.cli.api_client import Answer, ApiClient
from comity.cli.exit_status import FINE, SOMETHING_WRONG
from comity.cli.options import DefaultListGroup, json_option, url_option
from comity.cli.output import build_table, describe_age, line_text, show_json, show_output
from comity.toolkit.text import count_noun

WEBHOOKS_PATH = "webhooks"


@click.group("webhooks", cls=DefaultListGroup)
def webhooks_command() -> None:
    """Show where events are posted, what waits and what failed.

    Clients subscribe with events/subscribe; who may is a grant of events/subscribe on
    webhooks/HOST.
    """


@webhooks_command.command("list")
@url_option
@json_option
def list_webhooks(url: str, *, as_json: bool) -> int:
    """List every webhook; the same as `comity webhooks`.

    The exit status is 1 if something was not delivered to one of them.
    """
    found = _all(ApiClient(url))
    if as_json:
        show_json({"webhooks": found})
    elif found:
        show_output(build_table(_COLUMNS, [_row(each) for each in found]))
    else:
        show_output(
            line_text("No events are posted anywhere; clients subscribe with events/subscribe.")
        )
    return SOMETHING_WRONG if any(_is_wrong(each) for each in found) else FINE


_COLUMNS = (
    "ID",
    "PARTY",
    "PLACE",
    "EVENT",
    "STATE",
    "WAITING",
    "FAILED",
    "LAST ERROR",
    "DELIVERED",
)


@webhooks_command.command("show")
@click.argument("id")
@url_option
@json_option
def show_webhook(id: str, url: str, *, as_json: bool) -> int:
    """Show the webhook ID, and each event that waits for it or has failed."""
    one = ApiClient(url).get(WEBHOOKS_PATH, id)
    if as_json:
        show_json(one)
        return SOMETHING_WRONG if _is_wrong(one) else FINE
    show_output(build_table(_COLUMNS, [_row(one)]))
    if one["posts"]:
        columns = ("EVENT", "STATE", "TRIES", "NEXT TRY", "LAST ERROR")
        show_output(build_table(columns, [_post_row(each) for each in one["posts"]]))
    return SOMETHING_WRONG if _is_wrong(one) else FINE


@webhooks_command.command("retry")
@click.argument("id")
@url_option
@json_option
def retry(id: str, url: str, *, as_json: bool) -> int:
    """Post to the webhook ID again, and all that failed; also where it was disabled."""
    done = ApiClient(url).post(WEBHOOKS_PATH, id, "retry")
    if as_json:
        show_json(done)
    else:
        failed = count_noun(done["retried"], "failed event")
        show_output(line_text(f"{id} is active, and Comity posts {failed} again.", "green"))
    return FINE


@webhooks_command.command("remove")
@click.argument("id")
@url_option
@json_option
def remove(id: str, url: str, *, as_json: bool) -> int:
    """End the webhook ID; what waits for it is not posted."""
    done = ApiClient(url).post(WEBHOOKS_PATH, id, "remove")
    if as_json:
        show_json(done)
    else:
        lost = count_noun(done["waiting"] + done["failed"], "undelivered event")
        show_output(line_text(f"{id} is gone, with {lost}.", "green"))
    return FINE


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
        *(one["id"], one["party"], one["place"] or "(not allowed)", one["event"]),
        line_text(one["state"], "green" if one["state"] == "active" else "red"),
        *(str(one["waiting"]), str(one["failed"]), one["last_error"] or ""),
        describe_age(one["delivered_at"]),
    )


def _post_row(post: Answer) -> tuple[str | Text, ...]:
    due = (post["due_at"] or "")[:19]
    return (post["event"], post["state"], str(post["attempts"]), due, post["last_error"] or "")
