"""`comity pushes`: what servers and webhooks pushed, where it went, and what came of it."""

import click
from rich.text import Text

from comity.cli.asking import Answer, Gateway
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.options import Listing, json_option, url_option
from comity.cli.show import plain, show, show_json, since, table

ROOM = "pushes"
_STYLES = {"done": "green", "waiting": "yellow", "failed": "red"}
_COLUMNS = ("NUMBER", "SERVER", "EVENT", "CAME", "TO", "STATE", "TRIES", "TURN", "LAST ERROR")


@click.group("pushes", cls=Listing)
def command() -> None:
    """Show what was pushed, where it went, and what came of it.

    Where pushes go is said in [[pushes]] and [[hooks]] of the configuration.
    """


@command.command("list")
@click.option("--server", default="", help="Only those of this server, or of hook:NAME.")
@url_option
@json_option
def list_pushes(server: str, url: str, *, as_json: bool) -> int:
    """List the last pushes, the newest first; the same as `comity pushes`.

    The exit status is 1 if something has failed.
    """
    found = Gateway(url).get(ROOM, **({"server": server} if server else {}))
    if as_json:
        show_json(found)
    elif found[ROOM]:
        show(table(_COLUMNS, [_row(each) for each in found[ROOM]]))
        counted = (f"{found[state]} {state}" for state in ("done", "waiting", "failed"))
        show(plain(", ".join(counted)))
    else:
        show(plain("Nothing was pushed; [[pushes]] says where it would go."))
    return SOMETHING_WRONG if found["failed"] else FINE


@command.command("retry")
@click.argument("number", type=click.IntRange(1))
@url_option
@json_option
def retry(number: int, url: str, *, as_json: bool) -> int:
    """Have the push NUMBER done that has failed; it has no second effect if it had one."""
    done = Gateway(url).post(ROOM, str(number), "retry")
    if as_json:
        show_json(done)
    else:
        show(plain(f"Push {number} waits to be done again.", "green"))
    return FINE


def _row(one: Answer) -> tuple[str | Text, ...]:
    return (
        *(str(one["number"]), one["server"], one["event"], since(one["received_at"]), one["to"]),
        plain(one["state"], _STYLES.get(one["state"], "")),
        *(str(one["attempts"]), one["inference"] or "", one["last_error"] or ""),
    )
