"""`comity webhooks`: where events are posted, what waits and what failed; tried again, or ended."""

import click
from rich.text import Text

from comity.cli.asking import Answer, Gateway
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.options import Listing, json_option, url_option
from comity.cli.show import plain, show, show_json, since, table
from comity.rules.phrases import count_noun

ROOM = "webhooks"


@click.group("webhooks", cls=Listing)
def command() -> None:
    """Show where events are posted, what waits and what failed.

    Clients subscribe with events/subscribe; who may is a grant of events/subscribe on
    webhooks/HOST.
    """


@command.command("list")
@url_option
@json_option
def list_webhooks(url: str, *, as_json: bool) -> int:
    """List every webhook; the same as `comity webhooks`.

    The exit status is 1 if something was not delivered to one of them.
    """
    found = _all(Gateway(url))
    if as_json:
        show_json({"webhooks": found})
    elif found:
        show(table(_COLUMNS, [_row(each) for each in found]))
    else:
        show(plain("No events are posted anywhere; clients subscribe with events/subscribe."))
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


@command.command("show")
@click.argument("id")
@url_option
@json_option
def show_webhook(id: str, url: str, *, as_json: bool) -> int:
    """Show the webhook ID, and each event that waits for it or has failed."""
    one = Gateway(url).get(ROOM, id)
    if as_json:
        show_json(one)
        return SOMETHING_WRONG if _is_wrong(one) else FINE
    show(table(_COLUMNS, [_row(one)]))
    if one["posts"]:
        columns = ("EVENT", "STATE", "TRIES", "NEXT TRY", "LAST ERROR")
        show(table(columns, [_post_row(each) for each in one["posts"]]))
    return SOMETHING_WRONG if _is_wrong(one) else FINE


@command.command("retry")
@click.argument("id")
@url_option
@json_option
def retry(id: str, url: str, *, as_json: bool) -> int:
    """Post to the webhook ID again, and all that failed; also where it was disabled."""
    done = Gateway(url).post(ROOM, id, "retry")
    if as_json:
        show_json(done)
    else:
        failed = count_noun(done["retried"], "failed event")
        show(plain(f"{id} is active, and Comity posts {failed} again.", "green"))
    return FINE


@command.command("remove")
@click.argument("id")
@url_option
@json_option
def remove(id: str, url: str, *, as_json: bool) -> int:
    """End the webhook ID; what waits for it is not posted."""
    done = Gateway(url).post(ROOM, id, "remove")
    if as_json:
        show_json(done)
    else:
        lost = count_noun(done["waiting"] + done["failed"], "undelivered event")
        show(plain(f"{id} is gone, with {lost}.", "green"))
    return FINE


def _all(gateway: Gateway) -> list[Answer]:
    found: list[Answer] = []
    query: dict[str, str] = {}
    while True:
        page = gateway.get(ROOM, **query)
        found += page[ROOM]
        if "next" not in page:
            return found
        query["cursor"] = page["next"]


def _is_wrong(one: Answer) -> bool:
    return bool(one["state"] != "active" or one["failed"] or one["dropped"] or one["failures"])


def _row(one: Answer) -> tuple[str | Text, ...]:
    return (
        *(one["id"], one["party"], one["place"] or "(not allowed)", one["event"]),
        plain(one["state"], "green" if one["state"] == "active" else "red"),
        *(str(one["waiting"]), str(one["failed"]), one["last_error"] or ""),
        since(one["delivered_at"]),
    )


def _post_row(post: Answer) -> tuple[str | Text, ...]:
    due = (post["due_at"] or "")[:19]
    return (post["event"], post["state"], str(post["attempts"]), due, post["last_error"] or "")
