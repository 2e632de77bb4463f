"""`comity state`: what servers have left with the gateway, as trees; rolled back, or dropped."""

from collections.abc import Iterator, Sequence
from typing import Final

import click
from rich.console import RenderableType
from rich.text import Text

from comity.cli.asking import Answer, Gateway
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.options import Listing, json_option, url_option
from comity.cli.show import plain, show, show_json, since, table
from comity.rules.phrases import count_noun

ROOM: Final = "state"
AS_A_WHOLE: Final = "*"
"""How the state of a server is named whose tools say no feature set."""

MOST_SHOWN: Final = 12
CURRENT: Final = "\N{BLACK CIRCLE}"
OTHER: Final = "\N{WHITE CIRCLE}"

type Line = tuple[str, Answer]


@click.group("state", cls=Listing)
def command() -> None:
    """Show the state that servers left, and its branches; roll it back.

    SERVER is the server's id and SET one of its feature sets, or * for the server as a whole.
    """


@command.command("list")
@url_option
@json_option
def list_state(url: str, *, as_json: bool) -> int:
    """Show every feature set with state, and its latest checkpoints; the same as `comity state`."""
    gateway = Gateway(url)
    found = gateway.get(ROOM)[ROOM]
    if as_json:
        show_json({ROOM: found})
    elif not found:
        show(plain("No server has left any state."))
    else:
        for number, each in enumerate(found):
            tree = gateway.get(ROOM, each["server"], each["feature_set"] or AS_A_WHOLE)
            show(*([""] if number else []), *_drawn(tree, MOST_SHOWN))
    return FINE


@command.command("show")
@click.argument("server")
@click.argument("feature", metavar="SET")
@click.argument("checkpoint", required=False)
@url_option
@json_option
def show_state(
    server: str, feature: str, checkpoint: str | None, url: str, *, as_json: bool
) -> int:
    """Show all checkpoints of SET; or one of them, and what stands in it."""
    gateway = Gateway(url)
    if checkpoint is not None:
        one = gateway.get(ROOM, server, feature, checkpoint)
        if as_json:
            show_json(one)
        elif "data" in one:
            show_json(one["data"])
        else:
            show(plain(f"Only server {server} has this state. {_why(one)}"))
        return FINE
    tree = gateway.get(ROOM, server, feature)
    if as_json:
        show_json(tree)
    else:
        show(*_drawn(tree))
    return FINE


@command.command("rollback")
@click.argument("server")
@click.argument("feature", metavar="SET")
@click.argument("checkpoint")
@url_option
@json_option
def roll_back(server: str, feature: str, checkpoint: str, url: str, *, as_json: bool) -> int:
    """Have SERVER go back to CHECKPOINT of SET; what follows from there is another branch.

    The exit status is 1 if the server does not; then everything is as it was.
    """
    done = Gateway(url).post(ROOM, server, feature, "rollback", body={"checkpoint": checkpoint})
    if as_json:
        show_json(done)
    elif done["success"]:
        show(plain(f"{server} is at {checkpoint} of {feature}.", "green"))
    else:
        because = done["reason"] or "it says no reason"
        show(plain(f"{server} is not rolled back: {because}", "red"))
    return FINE if done["success"] else SOMETHING_WRONG


@command.command("forget")
@click.argument("server")
@click.argument("feature", metavar="SET")
@url_option
@json_option
def forget(server: str, feature: str, url: str, *, as_json: bool) -> int:
    """Drop all that is kept of SET; the server's next call of it begins with nothing."""
    done = Gateway(url).post(ROOM, server, feature, "forget")
    if as_json:
        show_json(done)
    else:
        dropped = count_noun(done["dropped"], "checkpoint")
        show(plain(f"Removed {dropped} of {feature} at {server}.", "green"))
    return FINE


def _drawn(tree: Answer, most: int | None = None) -> list[RenderableType]:
    """A tree under its name; of a long one the end, which counts."""
    checkpoints = tree["checkpoints"]
    head = Text.assemble(
        plain(tree["server"], "bold"), "  ", plain(tree["feature_set"] or "as a whole", "bold")
    )
    lines = list(branches(checkpoints))
    left_out = 0 if most is None else max(0, len(lines) - most)
    shown: list[RenderableType] = [head]
    if left_out:
        shown.append(plain(f"  ({left_out} before these; `comity state show` has them all)", "dim"))
    rows = [_row(prefix, each) for prefix, each in lines[left_out:]]
    return [*shown, table(("CHECKPOINT", "HOLDS", "BYTES", "SINCE", "NOTE"), rows)]


def branches(checkpoints: Sequence[Answer]) -> Iterator[Line]:
    """Each checkpoint below the one that it follows, behind the lines of its branch.

    What follows one by one stays in its column; only where there are two ways, each gets its own.
    """
    after: dict[str | None, list[Answer]] = {}
    for each in checkpoints:
        after.setdefault(each["follows"], []).append(each)
    waiting = [("", "", each) for each in reversed(after.get(None, []))]
    while waiting:
        first, rest, node = waiting.pop()
        yield first, node
        following = after.get(node["checkpoint"], [])
        if len(following) == 1:
            waiting.append((rest, rest, following[0]))
            continue
        for each in reversed(following):
            is_last = each is following[-1]
            fork, onward = ("└─", "  ") if is_last else ("├─", "│ ")
            waiting.append((rest + fork, rest + onward, each))


def _row(prefix: str, node: Answer) -> tuple[str | Text, ...]:
    is_current = node["is_current"]
    style = "bold green" if is_current else "" if node["is_on_line"] else "dim"
    mark = f"{prefix}{CURRENT if is_current else OTHER} "
    name = Text.assemble((mark, style), plain(node["checkpoint"], style))
    holds = plain(node["holds"], style)
    return name, holds, str(node["bytes"]), since(node["at"]), _note(node)


def _note(node: Answer) -> Text:
    said = [
        *(["current"] if node["is_current"] else []),
        *(["its server no longer has it"] if node["is_lost"] else []),
        *([_why(node)] if node["not_kept_because"] else []),
    ]
    return plain("; ".join(said), "red" if node["not_kept_because"] or node["is_lost"] else "green")


def _why(node: Answer) -> str:
    because = node["not_kept_because"]
    return f"its state is not kept: {because}" if because else ""
