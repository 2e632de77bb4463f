"""What an agent is told by its gateway: results, refusals, pieces of results, events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, cast

from comity.wire import events, jsonrpc, streaming
from comity.wire.errors import PENDING_APPROVAL, MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.mcp import LATEST_HANDSHAKE

VERSION: Final = LATEST_HANDSHAKE
LONGEST_PAUSE_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Refused:
    """Why something was not done, and what may help. (MGP §14.4, §14.5)"""

    code: int
    reason: str
    error_type: str = ""
    category: str = ""
    retryable: bool = False
    retry_after: timedelta = timedelta(0)
    fallback_tool: str = ""
    trace_id: str = ""
    suggestions: tuple[str, ...] = ()
    details: Mapping[str, object] = field(default_factory=dict[str, object])
    attempts: int = 1

    @property
    def awaits_approval(self) -> bool:
        """Whether a person has yet to say yes: nothing has run, and `details` names the ask."""
        return self.error_type == PENDING_APPROVAL.error_type

    def __bool__(self) -> bool:
        """A refusal is no result: `if found := await agent.discover(...)`."""
        return False


@dataclass(frozen=True, slots=True)
class Called:
    """What a tool answered; `tool` is the one that did, which may be a fallback."""

    tool: str
    content: tuple[Mapping[str, Any], ...]
    structured: Mapping[str, Any] | None = None
    is_error: bool = False
    mgp: Mapping[str, Any] = field(default_factory=dict[str, Any])
    attempts: int = 1

    @property
    def text(self) -> str:
        return "".join(str(each["text"]) for each in self.content if each.get("type") == "text")

    @property
    def value(self) -> Mapping[str, Any] | str:
        """What there is to work with: data where the tool gave some, else its text."""
        return self.text if self.structured is None else self.structured


@dataclass(frozen=True, slots=True)
class Piece:
    """One part of a result that is still coming."""

    index: int
    content: Mapping[str, Any]

    @property
    def text(self) -> str:
        return str(self.content.get("text", ""))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a call is, from 0 to 1."""

    share: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class Happened:
    """One event of a subscription. `missed` is how many before it were taken too slowly here."""

    channel: str
    timestamp: str
    data: Mapping[str, Any]
    severity: str = events.Severity.INFO
    id: str = ""
    missed: int = 0


def refused_in(frame: Frame, attempts: int = 1) -> Refused | None:
    """The refusal that an answer is; None where it is a result. Whatever is odd is left out."""
    error = jsonrpc.error_of(frame)
    if error is None:
        return None
    data = _members(error.data)
    said = _members(data.get("_mgp"))
    after = said.get("retry_after_ms")
    known = isinstance(after, int | float) and 0 <= after < LONGEST_PAUSE_MS
    more = data.get("suggestions")
    return Refused(
        error.code,
        error.message,
        *(_text(data.get("error_type")), _text(said.get("category"))),
        said.get("retryable") is True,
        timedelta(milliseconds=cast("float", after) if known else 0),
        *(_text(said.get("fallback_tool")), _text(data.get("trace_id"))),
        tuple(map(str, cast("list[object]", more))) if isinstance(more, list) else (),
        _members(said.get("details")),
        attempts,
    )


def called_in(tool: str, frame: Frame, attempts: int = 1) -> Called:
    """What a tool answered. Raises MalformedMessage."""
    found = result_in(frame)
    content = found.get("content")
    if not isinstance(content, list):
        raise MalformedMessage("a tool answers with content")
    blocks = tuple(_members(each) for each in cast("list[object]", content))
    structured = found.get("structuredContent")
    mirrored = _members(_members(found.get("_meta")).get(streaming.MIRROR))
    return Called(
        *(tool, blocks, None if structured is None else _members(structured)),
        found.get("isError") is True,
        {**mirrored, **_members(found.get(streaming.MEMBER))},
        attempts,
    )


def result_in(frame: Frame) -> dict[str, Any]:
    """The members of a result. Raises MalformedMessage."""
    found = None if frame.result is UNSET else jsonrpc.value(frame.result)
    if not isinstance(found, dict):
        raise MalformedMessage("an answer is an object")
    return cast("dict[str, Any]", found)


def piece_in(frame: Frame) -> Piece | Progress | None:
    """What a call tells of itself; None where it is anything else, or cannot be read."""
    try:
        if frame.method == streaming.CHUNK:
            chunk = streaming.chunk_in(frame.params)
            content = {name: jsonrpc.value(raw) for name, raw in chunk.content.items()}
            return Piece(chunk.index, content)
        if frame.method == streaming.STREAM_PROGRESS:
            said = streaming.progress_in(frame.params)
            return Progress(said.progress, said.message or "")
    except MalformedMessage:
        return None
    return None


def happened_in(frame: Frame) -> tuple[str, Happened]:
    """An event, and the subscription that it is for. Raises MalformedMessage."""
    told = events.told_in(frame.params)
    event = Happened(told.channel, told.timestamp, told.data, told.severity, told.id or "")
    return told.subscription, event


def _members(said: object) -> dict[str, Any]:
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _text(said: object) -> str:
    return said if isinstance(said, str) else ""
