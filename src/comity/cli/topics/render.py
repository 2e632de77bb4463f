"""Topic events as lines of text that cannot control the terminal."""

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from rich.table import Table
from rich.text import Text

from comity.approvals import presentation
from comity.approvals.presentation import format_duration, one_line
from comity.catalog.definitions import reveal_hidden
from comity.mcp import protocol
from comity.sdk.topics.events import (
    Chat,
    DisconnectionEvent,
    EnvelopeRefusal,
    Event,
    MemberFulfilment,
    MemberMisbehaviour,
    MissedEnvelopes,
    Presence,
    Proposal,
    ReconnectionEvent,
    Rejection,
    Request,
    Response,
    UnknownKindMessage,
    Welcome,
    Withdrawal,
)
from comity.toolkit.text import escape_unsafe
from comity.topics.envelope import CONTEXT_OF
from comity.topics.rules import TrackedProposal as Followed

MAX_LENGTH: Final = 4_000
MAX_LINES: Final = 40
BRIEF: Final = 200
_MAX_NAMED: Final = 5
_COLOURS: Final = ("cyan", "magenta", "blue", "green", "bright_cyan", "bright_magenta")
_CONTEXTS: Final = {
    protocol.CALL_TOOL: "Tool",
    protocol.GET_PROMPT: "Prompt",
    protocol.READ_RESOURCE: "Resource",
}


def render_words(text: str) -> str:
    """Text with its line breaks, without hidden and control characters."""
    shown = escape_unsafe(reveal_hidden(text[:MAX_LENGTH].replace("\r\n", "\n"))).expandtabs(4)
    lines = shown.split("\n")
    left = len(text) - MAX_LENGTH
    if len(lines) > MAX_LINES:
        left = max(left, 0) + sum(map(len, lines[MAX_LINES:]))
        lines = lines[:MAX_LINES]
    if left > 0:
        lines.append(f"… and {left} more characters")
    return "\n".join(lines)


def render_value(value: object) -> str:
    """The beginning of a value, on one line."""
    said = json.dumps(value, ensure_ascii=False, default=str)
    shown = one_line(said[:BRIEF])
    return f"{shown}…" if len(said) > BRIEF else shown


def render_name(party: str, me: str = "") -> Text:
    """The name of a member, always in the same colour."""
    if party == me:
        return Text().append("you", "bold")
    colour = _COLOURS[zlib.crc32(party.encode(errors="replace")) % len(_COLOURS)]
    return Text().append(one_line(party), colour)


def render_names(parties: Sequence[str], me: str = "") -> Text:
    shown = [render_name(each, me) for each in parties[:_MAX_NAMED]]
    if len(parties) > _MAX_NAMED:
        shown.append(Text(f"{len(parties) - _MAX_NAMED} more"))
    return Text(", ").join(shown)


def describe_call(method: str, params: object) -> str:
    """A call or request on one line."""
    if method == protocol.CALL_TOOL and isinstance(params, Mapping):
        said = cast("Mapping[str, object]", params)
        return f"{one_line(str(said.get('name')))} {render_value(said.get('arguments', {}))}"
    return f"{one_line(method)} {render_value(params)}"


def render_chat(sender: str, me: str, text: str, to: Sequence[str] = ()) -> Text:
    found = render_name(sender, me)
    if to:
        found.append(" to ", "dim").append_text(render_names(to, me))
    return found.append(": ", "dim").append(render_words(text), "")


def render_proposal(sender: str, me: str, to: Sequence[str], number: int, what: str) -> Text:
    found = Text().append(f"[{number}] ", "bold yellow").append_text(render_name(sender, me))
    found.append(" propose" if sender == me else " proposes", "yellow")
    if to:
        found.append(" to ", "yellow").append_text(render_names(to, me))
    return found.append(": ", "yellow").append(what, "")


def render_request(sender: str, me: str, to: Sequence[str], what: str) -> Text:
    found = render_name(sender, me).append(" ask" if sender == me else " asks", "dim")
    found.append(" ").append_text(render_names(to, me) if to else Text("all members"))
    return found.append(": ", "dim").append(what, "")


def outcome_of(event: Response) -> tuple[str, bool]:
    """The text of an answer, and whether it is an error."""
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


def render_timed_line(text: Text, at: datetime) -> Table:
    """A line with its time in a column of its own.

    A wrapped or broken line stays in its column, so that no part of it looks like another message.
    """
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"{at:%H:%M:%S}", style="dim"), text)
    return grid


def render_capabilities(capabilities: Iterable[str]) -> str:
    return one_line(", ".join(capabilities)) or "nothing"


def in_full(proposal: Followed, number: int, now: datetime, doubts: Sequence[str]) -> Table:
    """All details of a proposal: content, proposer, target and expiry; then the `doubts`."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(f"[{number}]", style="bold yellow"), Text("would be sent:", style="bold"))
    for row, text in _sent(proposal):
        grid.add_row(Text(row, style="dim"), Text(text))
    grid.add_row(Text("Proposed by", style="dim"), render_name(proposal.proposer))
    to = render_names(proposal.target) if proposal.target else Text("any member")
    grid.add_row(Text("To", style="dim"), to)
    expires_at = proposal.expires_at
    left = f"in {format_duration(expires_at - now)}, at {presentation.format_moment(expires_at)}"
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
        yield label, one_line(said if isinstance(said, str) else render_value(said))
    if proposal.method in (protocol.CALL_TOOL, protocol.GET_PROMPT):
        yield "Arguments", presentation.indented_json(rest.pop("arguments", {}))
        if rest:
            yield "Also sent", presentation.indented_json(rest)
    elif rest:
        yield "Parameters", presentation.indented_json(rest)


type Number = Callable[[str], int]
"""Returns the number of a proposal by its id."""


class TopicEventRenderer:
    """Renders events as text for one member."""

    def __init__(self, me: str, capabilities: tuple[str, ...], number: Number) -> None:
        self._own_id = me
        self._capabilities = capabilities
        self._number = number
        self._renderer_by_type: dict[type[object], Callable[[Any], Text | None]] = {
            Chat: self._chat,
            Proposal: self._proposal,
            Request: self._request,
            Response: self._response,
            Rejection: self._rejection,
            Withdrawal: self._withdrawal,
            MemberFulfilment: self._fulfilment,
            Presence: self._presence,
            UnknownKindMessage: self._other,
            Welcome: self._welcome,
            EnvelopeRefusal: _refused,
            MissedEnvelopes: _missed,
            MemberMisbehaviour: _misbehaviour,
            DisconnectionEvent: _disconnected,
            ReconnectionEvent: _reconnected,
        }

    def render(self, event: Event) -> Text | None:
        """Render an event; None if it is no news for the person."""
        return self._renderer_by_type[type(event)](event)

    def _chat(self, event: Chat) -> Text:
        return render_chat(event.sender, self._own_id, event.text, event.to)

    def _proposal(self, event: Proposal) -> Text:
        what, number = describe_call(event.method, event.params), self._number(event.id)
        return render_proposal(event.sender, self._own_id, event.to, number, what)

    def _request(self, event: Request) -> Text:
        return render_request(
            event.sender, self._own_id, event.to, describe_call(event.method, event.params)
        )

    def _response(self, event: Response) -> Text:
        found = render_name(event.sender, self._own_id).append(" answers ", "dim")
        outcome, is_wrong = outcome_of(event)
        found.append_text(render_names(event.to, self._own_id)).append(": ", "dim")
        return found.append(render_words(outcome), "red" if is_wrong else "")

    def _rejection(self, event: Rejection) -> Text:
        return self._ended(event, "declines")

    def _withdrawal(self, event: Withdrawal) -> Text:
        return self._ended(event, "withdraws")

    def _ended(self, event: Rejection | Withdrawal, verb: str) -> Text:
        number = self._number(event.proposal.id)
        found = render_name(event.sender, self._own_id).append(f" {verb} [{number}]", "yellow")
        return found.append(f": {render_words(event.reason)}") if event.reason else found

    def _fulfilment(self, event: MemberFulfilment) -> Text:
        by, number = (
            render_name(event.request.sender, self._own_id),
            self._number(event.proposal.id),
        )
        if not event.is_first:
            return by.append(f" had [{number}] done, which was done already", "bold yellow")
        if not event.is_as_proposed:
            return by.append(f" had [{number}] done with other arguments", "bold yellow")
        verb = "approve" if event.request.sender == self._own_id else "approves"
        return by.append(f" {verb} [{number}]", "green")

    def _presence(self, event: Presence) -> Text | None:
        if event.id == self._own_id:
            return None
        return render_name(event.id).append(" joined" if event.has_come else " left", "dim")

    def _other(self, event: UnknownKindMessage) -> Text:
        return render_name(event.sender).append(f" sent {one_line(event.envelope.kind)}", "dim")

    def _welcome(self, event: Welcome) -> Text | None:
        # Each new connection has a welcome, usually with the same capabilities.
        was, self._capabilities = self._capabilities, event.capabilities
        if was == event.capabilities:
            return None
        return Text(f"You may send now: {render_capabilities(event.capabilities)}", style="yellow")


def _refused(event: EnvelopeRefusal) -> Text:
    return Text(f"Not passed on: {render_words(event.message)}", style="red")


def _missed(event: MissedEnvelopes) -> Text:
    count = "1 envelope was" if event.count == 1 else f"{event.count} envelopes were"
    reason = f": {render_words(event.because)}" if event.because else ""
    return Text(f"{count} missed{reason}", style="bold yellow")


def _misbehaviour(event: MemberMisbehaviour) -> Text | None:
    # The 1st, 2nd, 4th, 8th time and so on, so that dropped messages cannot fill the screen.
    if event.count & (event.count - 1):
        return None
    who = one_line(event.sender) or "an unknown sender"
    times = "" if event.count == 1 else f" ({event.count} times by now)"
    return Text(f"Dropped from {who}: {render_words(event.because)}{times}", style="yellow")


def _disconnected(event: DisconnectionEvent) -> Text:
    return Text(f"{render_words(event.because)}; trying again", style="yellow")


def _reconnected(_: ReconnectionEvent) -> Text:
    return Text("Back in the topic", style="green")
