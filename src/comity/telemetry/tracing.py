"""W3C trace context in headers and messages, and the interface of a tracer."""

import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from msgspec import UNSET, Raw, UnsetType

from comity.errors import MalformedMessage
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import Frame
from comity.mcp.mgp import METHOD_PREFIX
from comity.toolkit.text import as_uuid

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
TRACE_ID: Final = "trace_id"
PARENT_HEADER: Final = PARENT.encode()
STATE_HEADER: Final = STATE.encode()
HEADERS: Final = frozenset({PARENT_HEADER, STATE_HEADER})
MAX_STATE_LENGTH: Final = 512
TRACED: Final = frozenset(
    {
        *(
            protocol.CALL_TOOL,
            protocol.READ_RESOURCE,
            protocol.GET_PROMPT,
            protocol.COMPLETE,
            protocol.PING,
        ),
        *(
            protocol.LIST_TOOLS,
            protocol.LIST_RESOURCES,
            protocol.LIST_TEMPLATES,
            protocol.LIST_PROMPTS,
        ),
        *(protocol.SUBSCRIBE, protocol.UNSUBSCRIBE, protocol.SET_LEVEL),
    }
)
"""The methods of MCP that carry a trace; MGP's own methods also do."""

MAX_MEMBERS: Final = 32

# A later version may append members after the flags; version 00 may not. (Trace Context §3.2)
_PARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,128})?"
)
_MEMBER: Final = re.compile(
    r"[ \t]*[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~][ \t]*|[ \t]*"
)


_IDS_AT_ONCE: Final = 256
_unused_ids: list[str] = []
# A forked process must not continue with the ids of its parent.
os.register_at_fork(after_in_child=_unused_ids.clear)


def new_trace_id() -> str:
    """Return a trace id of 32 hexadecimal digits: 8 of the time in seconds, then 24 random ones.

    With the time in front, entries that are written together stand together in the index of
    traces, and a commit writes few of its pages. The random bytes of many ids are read at once:
    one by one, each call would cost a system call.
    """
    if not _unused_ids:
        now, digits = f"{int(time.time()):08x}", secrets.token_hex(12 * _IDS_AT_ONCE)
        _unused_ids.extend(now + digits[at : at + 24] for at in range(0, len(digits), 24))
    return _unused_ids.pop()


class TraceContext(NamedTuple):
    """A position in a trace: the parent span and the state of vendors."""

    parent: str
    state: str = ""

    @property
    def trace_id(self) -> str:
        return self.parent[3:35]

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        parent = ((PARENT_HEADER, self.parent.encode()),)
        return (*parent, (STATE_HEADER, self.state.encode())) if self.state else parent


def context_of(parent: str | None, state: str | None) -> TraceContext | None:
    """Return the context that these values name; None if `parent` is invalid."""
    found = _PARENT.fullmatch(parent) if parent is not None and len(parent) <= 256 else None
    if parent is None or found is None or (parent.startswith("00") and found[1]):
        return None
    return TraceContext(parent, state if state and _is_state(state) else "")


def from_headers(headers: Mapping[bytes, bytes]) -> TraceContext | None:
    """Return the context in HTTP headers; None if there is none or it is invalid."""
    parent, state = headers.get(PARENT_HEADER), headers.get(STATE_HEADER, b"")
    if parent is None:
        return None
    return context_of(parent.decode("latin-1").strip(" \t"), state.decode("latin-1").strip(" \t"))


def from_params(params: Raw | UnsetType) -> TraceContext | None:
    """Return the context in the `_meta` of params; None if there is none or it is invalid."""
    if params is UNSET or PARENT_HEADER not in bytes(params):
        return None
    try:
        meta = jsonrpc.decode_members(jsonrpc.decode_members(params).get("_meta", b"{}"))
        return context_of(
            jsonrpc.decode_text(meta.get(PARENT)), jsonrpc.decode_text(meta.get(STATE))
        )
    except MalformedMessage:
        return None


def with_context(frame: Frame, context: TraceContext) -> Frame:
    """Return the request with this context; params that are not an object stay unchanged."""
    try:
        params = frame.parameters
        meta = jsonrpc.decode_members(params.get("_meta", b"{}"))
    except MalformedMessage:
        return frame
    said: dict[str, object] = {**meta, PARENT: context.parent}
    said.pop(STATE, None)
    if context.state:
        said[STATE] = context.state
    return jsonrpc.with_params(frame, jsonrpc.to_raw({**params, "_meta": said}))


def with_trace_id(frame: Frame, trace: str) -> Frame:
    """Return the request with this trace id in MGP's form. (MGP §6.5, D-33)

    A request that already names a trace, or whose method is not traced, stays unchanged.
    """
    if frame.method not in TRACED and not str(frame.method).startswith(METHOD_PREFIX):
        return frame
    named = as_uuid(trace)
    if frame.params is UNSET:
        return jsonrpc.with_params(frame, jsonrpc.to_raw({TRACE_ID: named}))
    written = bytes(frame.params)
    if written[:1] != b"{":
        return frame
    if TRACE_ID.encode() in written and TRACE_ID in jsonrpc.decode_members(frame.params):
        return frame
    # Most params contain no trace id, so it is added without decoding them.
    rest = written[1:].lstrip()
    between = b"" if rest[:1] == b"}" else b","
    params = Raw(b'{"trace_id":"%b"%b%b' % (named.encode(), between, rest))
    return jsonrpc.with_params(frame, params)


def _is_state(state: str) -> bool:
    members = state.split(",")
    fits = len(state) <= MAX_STATE_LENGTH and len(members) <= MAX_MEMBERS
    return fits and all(_MEMBER.fullmatch(member) for member in members)


type Headers = tuple[tuple[bytes, bytes], ...]


type Describe = Callable[[str], Mapping[str, str]]
"""Returns a server's `transport` and `reached` (host and port), by its name."""


class CallTraceOutcome(NamedTuple):
    """The outcome of a call.

    It holds no text of a client: the gateway knows the server, method and tool.
    """

    server: str
    method: str
    tool: str
    outcome: str
    answer: Frame | None


class CallTrace(Protocol):
    """One call as a part of a trace."""

    @property
    def context(self) -> TraceContext | None:
        """The position of the call in its trace; None without a trace."""
        ...

    def onward(
        self, frame: Frame, headers: Headers, server: str, in_headers: bool
    ) -> tuple[Frame, Headers]:
        """Return the request and the headers as they go to a server.

        `in_headers` tells whether the transport of the server carries headers.
        """
        ...

    def ended(self, outcome: CallTraceOutcome) -> None: ...


class ModelTraceOutcome(NamedTuple):
    """The outcome of a request to a language model: its finish reason or its error."""

    outcome: str
    is_answered: bool
    input_tokens: int
    output_tokens: int


class ModelTrace(Protocol):
    """One request to a language model as a part of a trace."""

    def ended(self, outcome: ModelTraceOutcome) -> None: ...


class Tracer(Protocol):
    """Records every call. `begin` runs at the start of each call, so it must be fast."""

    def begin(self, frame: Frame, told: CallTrace | None, session: str, version: str) -> CallTrace:
        """Start the trace of a call.

        `told` is the context of the transport; `session` is empty in the modern protocol.
        """
        ...

    def begin_model(self, vendor: str, model: str, max_tokens: int) -> ModelTrace:
        """Start the trace of a request to a language model."""
        ...

    async def close(self) -> None:
        """Send the remaining records, within a limited time."""
        ...


class HeaderTrace:
    """A trace context that came in a header and is passed on without spans."""

    __slots__ = ("context",)

    def __init__(self, context: TraceContext) -> None:
        self.context: TraceContext = context

    def onward(
        self, frame: Frame, headers: Headers, server: str, in_headers: bool
    ) -> tuple[Frame, Headers]:
        if in_headers:
            return frame, (*headers, *self.context.headers)
        if from_params(frame.params) is not None:
            return frame, headers
        return with_context(frame, self.context), headers

    def ended(self, outcome: CallTraceOutcome) -> None:
        """Do nothing: this trace has no spans."""


def trace_context_in(headers: Mapping[bytes, bytes]) -> HeaderTrace | None:
    """Return the trace that the headers name; None if there is none."""
    context = from_headers(headers)
    return None if context is None else HeaderTrace(context)
