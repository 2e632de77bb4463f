"""`comity turns`: say something to a model through the gateway, and see the last turns."""

import click
from rich.text import Text

from comity.cli.asking import Answer, Gateway
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.options import Listing, json_option, url_option
from comity.cli.show import plain, show, show_json, since, table

ROOM = "turns"
WAIT = "20"
_COLUMNS = ("ID", "CONVERSATION", "CAUSE", "MODEL", "TOKENS", "SERVERS", "TOOLS", "STATE", "WHEN")


@click.group("turns", cls=Listing)
def command() -> None:
    """Say something to a model, and show the last turns.

    Of each turn: why it was taken, by which model, and what came of it.
    """


@command.command("list")
@click.option("--conversation", metavar="NAME", default="", help="Only of this conversation.")
@url_option
@json_option
def list_turns(conversation: str, url: str, *, as_json: bool) -> int:
    """List the last turns; the same as `comity turns`."""
    query = {"conversation": conversation} if conversation else {}
    found = Gateway(url).get(ROOM, **query)["turns"]
    if as_json:
        show_json({"turns": found})
    elif found:
        show(table(_COLUMNS, [_row(each) for each in found]))
    else:
        show(plain('No turn was taken yet; begin one with `comity turns say "hello"`.'))
    return FINE


@command.command("show")
@click.argument("id")
@url_option
@json_option
def show_turn(id: str, url: str, *, as_json: bool) -> int:
    """Show the turn ID: what was asked and said, and who had to do with it."""
    one = Gateway(url).get(ROOM, id)
    if as_json:
        show_json(one)
    else:
        show(table(_COLUMNS, [_row(one)]))
        show(plain(one["asked"] or "(went on)", "bold"))
        show(plain(one["said"] or one["error"] or "(nothing was said yet)"))
    return SOMETHING_WRONG if one["error"] else FINE


@command.command("say")
@click.argument("text")
@click.option(
    "--conversation", metavar="NAME", default="main", show_default=True, help="Where it is said."
)
@url_option
@json_option
def say(text: str, conversation: str, url: str, *, as_json: bool) -> int:
    """Say TEXT to a model, and show its words as they come.

    Who may is a grant of turn/take on conversations/NAME.
    """
    gateway = Gateway(url)
    id = gateway.post(ROOM, body={"text": text, "conversation": conversation})["id"]
    known, one = 0, gateway.get(ROOM, id, wait="0")
    while True:
        known += len(one["words"])
        if not as_json:
            click.echo(one["words"], nl=False)
        if one["is_over"]:
            break
        one = gateway.get(ROOM, id, after=str(known), wait=WAIT)
    if as_json:
        show_json(one)
    else:
        click.echo("")
    if one["error"]:
        click.echo(f"comity: {one['error']}", err=True)
    return SOMETHING_WRONG if one["error"] else FINE


def _row(one: Answer) -> tuple[str | Text, ...]:
    usage, cause = one["usage"], one["cause"]
    servers = [*(f"+{each}" for each in one["injected"]), *(f"~{each}" for each in one["rewrote"])]
    style = {"done": "green", "waiting": "", "decided": ""}.get(one["state"], "red")
    return (
        *(one["id"], f"{one['conversation']}#{one['turn']}"),
        " ".join(filter(None, (cause["origin"], cause["server"]))),
        *(one["model"] or "", f"{usage['inputTokens']}+{usage['outputTokens']}"),
        *(" ".join(servers), str(one["tools_used"])),
        plain(one["state"], style),
        since(one["at"]),
    )
