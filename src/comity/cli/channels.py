"""`comity channels`: where words come from and go to; opened, closed, and something said there."""

import click
import msgspec
from rich.text import Text

from comity.cli.asking import Answer, Gateway
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.options import Listing, json_option, url_option
from comity.cli.show import plain, show, show_json, table
from comity.wire.errors import Misconfigured

ROOM = "channels"
_COLUMNS = ("SERVER", "ID", "LABEL", "TYPE", "DIRECTION", "STATE")


@click.group("channels", cls=Listing)
def command() -> None:
    """Show the channels of live servers, and say something in one.

    Which of them a server may use is decided in its `live` table; where what comes from them goes,
    in `[[channels]]`.
    """


@command.command("list")
@url_option
@json_option
def list_channels(url: str, *, as_json: bool) -> int:
    """List every channel; the same as `comity channels`.

    The exit status is 1 if one of them is away or forbidden.
    """
    found: list[Answer] = Gateway(url).get(ROOM)[ROOM]
    if as_json:
        show_json({ROOM: found})
    elif found:
        show(table(_COLUMNS, [_row(each) for each in found]))
    else:
        show(plain("No server has channels here; a server that has registers them."))
    return SOMETHING_WRONG if any(_is_wrong(each) for each in found) else FINE


@command.command("open")
@click.argument("server")
@click.argument("channel", default="")
@click.option("--type", "kind", default="", help="Of what type a new channel is, as mail.")
@click.option("--address", default="{}", help="Where it is, as JSON.")
@url_option
@json_option
def open_channel(
    server: str, channel: str, kind: str, address: str, url: str, *, as_json: bool
) -> int:
    """Open CHANNEL of SERVER again; or a new one, by --type and --address."""
    if bool(channel) == bool(kind):
        raise Misconfigured("name a channel that is known, or give the --type of a new one")
    told: dict[str, object] = {"server": server}
    told |= {"channel": channel} if channel else {"type": kind, "address": _object(address)}
    done = Gateway(url).post(ROOM, "open", body=told)
    if as_json:
        show_json(done)
    else:
        show(plain(f"{done['id']} of {server} is open.", "green"))
    return FINE


@command.command("close")
@click.argument("server")
@click.argument("channel")
@url_option
@json_option
def close_channel(server: str, channel: str, url: str, *, as_json: bool) -> int:
    """Close CHANNEL of SERVER: nothing goes there or comes from there any more."""
    done = Gateway(url).post(ROOM, "close", body={"server": server, "channel": channel})
    if as_json:
        show_json(done)
    else:
        its = "" if done["closed"] else "; its server has not closed it"
        show(plain(f"{channel} of {server} is closed{its}.", "green"))
    return FINE if done["closed"] else SOMETHING_WRONG


@command.command("say")
@click.argument("server")
@click.argument("channel")
@click.argument("text")
@url_option
@json_option
def say(server: str, channel: str, text: str, url: str, *, as_json: bool) -> int:
    """Say TEXT in CHANNEL of SERVER; what is secret in it is hidden first."""
    told = {"server": server, "channel": channel, "text": text}
    done = Gateway(url).post(ROOM, "say", body=told)
    if as_json:
        show_json(done)
    else:
        named = f", as {done['message']}" if done["message"] else ""
        show(plain(f"It was delivered{named}.", "green"))
    return FINE


def _object(written: str) -> object:
    try:
        return msgspec.json.decode(written, type=dict[str, object])
    except msgspec.DecodeError as problem:
        raise Misconfigured(f"--address is no JSON object: {problem}") from None


def _is_wrong(one: Answer) -> bool:
    return one["state"] in ("away", "forbidden")


def _row(one: Answer) -> tuple[str | Text, ...]:
    state = plain(one["state"], "green" if one["state"] == "open" else "red")
    return (one["server"], one["id"], one["label"], one["type"], one["direction"], state)
