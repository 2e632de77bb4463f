"""The values that an agent receives: results, refusals, chunks and events."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, Self, cast

from comity.errors import PENDING_APPROVAL, MalformedMessage
from comity.events import model
from comity.mcp import jsonrpc, mgp_streaming
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.protocol import LATEST_HANDSHAKE

VERSION: Final = LATEST_HANDSHAKE
LONGEST_PAUSE_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class AgentRefusal:
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
        """Whether the call waits for approval and has not run; `details` names the request."""
        return self.error_type == PENDING_APPROVAL.error_type

    def __bool__(self) -> bool:
        """A refusal is no result: `if found := await agent.discover(...)`."""
        return False


@dataclass(frozen=True, slots=True)
class AgentCallResult:
    """The result of a call; `tool` is the tool that answered, which may be a fallback."""

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
        """The structured content if the tool returned any, else its text."""
        return self.text if self.structured is None else self.structured


@dataclass(frozen=True, slots=True)
class AgentStreamChunk:
    """One part of a result that is still coming."""

    index: int
    content: Mapping[str, Any]

    @property
    def text(self) -> str:
        return str(self.content.get("text", ""))


@dataclass(frozen=True, slots=True)
class AgentCallProgress:
    """How far a call is, from 0 to 1."""

    share: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One event. `missed` is the number of events that were dropped before it."""

    channel: str
    timestamp: str
    data: Mapping[str, Any]
    severity: str = model.Severity.INFO
    id: str = ""
    missed: int = 0


def refused_in(frame: Frame, attempts: int = 1) -> AgentRefusal | None:
    """The refusal in an answer; None for a result. Members of a wrong type are left out."""
    error = jsonrpc.error_of(frame)
    if error is None:
        return None
    data = _members(error.data)
    said = _members(data.get("_mgp"))
    after = said.get("retry_after_ms")
    known = isinstance(after, int | float) and 0 <= after < LONGEST_PAUSE_MS
    more = data.get("suggestions")
    return AgentRefusal(
        error.code,
        error.message,
        _text(data.get("error_type")),
        _text(said.get("category")),
        said.get("retryable") is True,
        timedelta(milliseconds=cast("float", after) if known else 0),
        _text(said.get("fallback_tool")),
        _text(data.get("trace_id")),
        tuple(map(str, cast("list[object]", more))) if isinstance(more, list) else (),
        _members(said.get("details")),
        attempts,
    )


def called_in(tool: str, frame: Frame, attempts: int = 1) -> AgentCallResult:
    """The result of a tool call. Raises MalformedMessage."""
    found = result_in(frame)
    content = found.get("content")
    if not isinstance(content, list):
        raise MalformedMessage("a tool answers with content")
    blocks = tuple(_members(each) for each in cast("list[object]", content))
    structured = found.get("structuredContent")
    mirrored = _members(_members(found.get("_meta")).get(mgp_streaming.MIRROR))
    return AgentCallResult(
        tool,
        blocks,
        None if structured is None else _members(structured),
        found.get("isError") is True,
        {**mirrored, **_members(found.get(mgp_streaming.MEMBER))},
        attempts,
    )


def result_in(frame: Frame) -> dict[str, Any]:
    """The members of a result. Raises MalformedMessage."""
    found = None if frame.result is UNSET else jsonrpc.decode_value(frame.result)
    if not isinstance(found, dict):
        raise MalformedMessage("an answer is an object")
    return cast("dict[str, Any]", found)


def piece_in(frame: Frame) -> AgentStreamChunk | AgentCallProgress | None:
    """The chunk or progress in a frame; None for another frame, or a malformed one."""
    try:
        if frame.method == mgp_streaming.CHUNK:
            chunk = mgp_streaming.chunk_in(frame.params)
            content = {name: jsonrpc.decode_value(raw) for name, raw in chunk.content.items()}
            return AgentStreamChunk(chunk.index, content)
        if frame.method == mgp_streaming.STREAM_PROGRESS:
            said = mgp_streaming.progress_in(frame.params)
            return AgentCallProgress(said.progress, said.message or "")
    except MalformedMessage:
        return None
    return None


def happened_in(frame: Frame) -> tuple[str, AgentEvent]:
    """An event, and the subscription that it is for. Raises MalformedMessage."""
    told = model.event_in(frame.params)
    event = AgentEvent(told.channel, told.timestamp, told.data, told.severity, told.id or "")
    return told.subscription, event


def _members(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


MOST_PIECES: Final = 64
MOST_EVENTS: Final = 1_000

type Told = AgentStreamChunk | AgentCallProgress


class AgentCallStream:
    """A running call: iterate over its chunks and progress, then await `result()`.

    The queue of chunks is bounded. When it is full, the stream is read no further until the caller
    takes a chunk. Use it in an `async with`, which cancels a call that is left early.
    """

    def __init__(self, cancel: Callable[[str], Awaitable[dict[str, Any] | AgentRefusal]]) -> None:
        self._cancel = cancel
        self._told: asyncio.Queue[Told | None] = asyncio.Queue(MOST_PIECES)
        self._running: asyncio.Task[AgentCallResult | AgentRefusal] | None = None
        self._is_left = False

    def begin(self, running: "asyncio.Task[AgentCallResult | AgentRefusal]") -> Self:
        self._running = running
        running.add_done_callback(lambda _: self._end())
        return self

    async def take(self, told: Told) -> None:
        if not self._is_left:
            await self._told.put(told)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Told:
        if self._is_left or (self._task.done() and self._told.empty()):
            raise StopAsyncIteration
        told = await self._told.get()
        if told is None:
            raise StopAsyncIteration
        return told

    async def result(self) -> AgentCallResult | AgentRefusal:
        """The whole result; chunks that were not taken are dropped. Raises as `call` does."""
        self._leave()
        return await self._task

    async def cancel(self, reason: str = "user_cancelled") -> tuple[dict[str, Any], ...]:
        """Cancel the call, and return the content that it had so far. (MGP §12.7)"""
        self._leave()
        answer = await self._cancel(reason)
        if isinstance(answer, AgentRefusal):
            return ()
        partial: dict[str, Any] = answer.get("partial_result") or {}
        return tuple(partial.get("content") or ())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._task.done():
            await self.cancel()
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def _task(self) -> "asyncio.Task[AgentCallResult | AgentRefusal]":
        assert self._running is not None, "a stream begins with its call"
        return self._running

    def _leave(self) -> None:
        """Empty the queue, which also releases a task that waits to add to it."""
        self._is_left = True
        while not self._told.empty():
            self._told.get_nowait()

    def _end(self) -> None:
        if not self._told.full():
            self._told.put_nowait(None)


class AgentSubscription:
    """The events of one subscription; iterate over it, in an `async with` that ends it.

    When too many events wait, the oldest are dropped. The next event has their number.
    """

    def __init__(self, leave: Callable[["AgentSubscription"], Awaitable[None]]) -> None:
        self.id = ""
        self.channels: tuple[str, ...] = ()
        self.unsupported: tuple[str, ...] = ()
        self._leave = leave
        self._waiting: deque[AgentEvent] = deque()
        self._missed = 0
        self._news = asyncio.Event()

    def give(self, event: AgentEvent) -> None:
        self._waiting.append(event)
        if len(self._waiting) > MOST_EVENTS:
            self._waiting.popleft()
            self._missed += 1
        self._news.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AgentEvent:
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        event, missed = self._waiting.popleft(), self._missed
        self._missed = 0
        return replace(event, missed=missed) if missed else event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._leave(self)
