"""What members of a topic say and propose, in words that no terminal is steered by.

Rule 1: what members wrote is shown with all that would hide or steer spelt out; what is too long is
        cut, and it is said so.
Rule 2: who approves a proposal has been shown all that would be sent in its place.
"""

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, cast

from rich.table import Table
from rich.text import Text

from comity.rules import ask_words
from comity.rules.ask_words import ago, one_line
from comity.rules.kinds import CONTEXT_OF
from comity.rules.looks import revealed
from comity.rules.proposals import Proposal as Followed
from comity.rules.safe_text import safe
from comity.sdk.events import Response
from comity.wire import mcp

LONGEST: Final = 4_000
MOST_LINES: Final = 40
BRIEF: Final = 200
_MOST_NAMED: Final = 5
_COLOURS: Final = ("cyan", "magenta", "blue", "green", "bright_cyan", "bright_magenta")
_CONTEXTS: Final = {mcp.CALL_TOOL: "Tool", mcp.GET_PROMPT: "Prompt", mcp.READ_RESOURCE: "Resource"}


def words(text: str) -> str:
    """Somebody's words with their line breaks, and nothing that hides or steers."""
    shown = safe(revealed(text[:LONGEST].replace("\r\n", "\n"))).expandtabs(4)
    lines = shown.split("\n")
    left = len(text) - LONGEST
    if len(lines) > MOST_LINES:
        left = max(left, 0) + sum(map(len, lines[MOST_LINES:]))
        lines = lines[:MOST_LINES]
    if left > 0:
        lines.append(f"… and {left} more characters")
    return "\n".join(lines)


def briefly(value: object) -> str:
    """The beginning of a value, on one line."""
    said = json.dumps(value, ensure_ascii=False, default=str)
    shown = one_line(said[:BRIEF])
    return f"{shown}…" if len(said) > BRIEF else shown


def name(party: str, me: str = "") -> Text:
    """Who it is; each party keeps its colour."""
    if party == me:
        return Text().append("you", "bold")
    colour = _COLOURS[zlib.crc32(party.encode(errors="replace")) % len(_COLOURS)]
    return Text().append(one_line(party), colour)


def names(parties: Sequence[str], me: str = "") -> Text:
    shown = [name(each, me) for each in parties[:_MOST_NAMED]]
    if len(parties) > _MOST_NAMED:
        shown.append(Text(f"{len(parties) - _MOST_NAMED} more"))
    return Text(", ").join(shown)


def deed(method: str, params: object) -> str:
    """What would be done, on one line."""
    if method == mcp.CALL_TOOL and isinstance(params, Mapping):
        said = cast("Mapping[str, object]", params)
        return f"{one_line(str(said.get('name')))} {briefly(said.get('arguments', {}))}"
    return f"{one_line(method)} {briefly(params)}"


def said(sender: str, me: str, text: str, to: Sequence[str] = ()) -> Text:
    found = name(sender, me)
    if to:
        found.append(" to ", "dim").append_text(names(to, me))
    return found.append(": ", "dim").append(words(text), "")


def proposed(sender: str, me: str, to: Sequence[str], number: int, what: str) -> Text:
    found = Text().append(f"[{number}] ", "bold yellow").append_text(name(sender, me))
    found.append(" propose" if sender == me else " proposes", "yellow")
    if to:
        found.append(" to ", "yellow").append_text(names(to, me))
    return found.append(": ", "yellow").append(what, "")


def asked(sender: str, me: str, to: Sequence[str], what: str) -> Text:
    found = name(sender, me).append(" ask" if sender == me else " asks", "dim")
    found.append(" ").append_text(names(to, me) if to else Text("everybody"))
    return found.append(": ", "dim").append(what, "")


def outcome_of(event: Response) -> tuple[str, bool]:
    """What an answer says, and whether it tells of an error."""
    if event.error is not None:
        return f"{event.error.get('message')} ({event.error.get('code')})", True
    result = event.result or {}
    content = result.get("content")
    texts = [
        str(cast("Mapping[str, object]", each).get("text"))
        for each in (cast("list[object]", content) if isinstance(content, list) else [])
        if isinstance(each, Mapping) and cast("Mapping[str, object]", each).get("type") == "text"
    ]
    is_wrong = result.get("isError") is True
    return "\n".join(texts) or json.dumps(result, ensure_ascii=False, default=str), is_wrong


def stamped(said: Text, at: datetime) -> Table:
    """A line with its time before it, where nothing else ever stands: who wraps a line, or breaks
    it, cannot make the rest look like somebody else's."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"{at:%H:%M:%S}", style="dim"), said)
    return grid


def listed(capabilities: Iterable[str]) -> str:
    return one_line(", ".join(capabilities)) or "nothing"


def in_full(proposal: Followed, number: int, now: datetime, doubts: Sequence[str]) -> Table:
    """Everything that would be sent, by whose wish and to whom; `doubts` stand below it."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"[{number}]", style="bold yellow"), Text("would be sent:", style="bold"))
    for row, text in _sent(proposal):
        grid.add_row(Text(row, style="dim"), Text(text))
    grid.add_row(Text("Proposed by", style="dim"), name(proposal.proposer))
    to = names(proposal.target) if proposal.target else Text("nobody in particular")
    grid.add_row(Text("To", style="dim"), to)
    left = f"in {ago(proposal.expires_at - now)}, at {ask_words.moment(proposal.expires_at)}"
    grid.add_row(Text("Expires", style="dim"), Text(left))
    for doubt in doubts:
        grid.add_row(Text("But", style="bold yellow"), Text(doubt, style="yellow"))
    return grid


def _sent(proposal: Followed) -> Iterable[tuple[str, str]]:
    yield "Method", one_line(proposal.method)
    params = proposal.params
    rest = dict(cast("Mapping[str, object]", params)) if isinstance(params, Mapping) else {}
    context = CONTEXT_OF.get(proposal.method)
    if context is not None and context in rest:
        label, said = _CONTEXTS[proposal.method], rest.pop(context)
        yield label, one_line(said if isinstance(said, str) else briefly(said))
    if proposal.method in (mcp.CALL_TOOL, mcp.GET_PROMPT):
        yield "Arguments", ask_words.in_full(rest.pop("arguments", {}))
        if rest:
            yield "Also sent", ask_words.in_full(rest)
    elif rest:
        yield "Parameters", ask_words.in_full(rest)
