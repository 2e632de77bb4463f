"""Which trace a request is part of, as W3C Trace Context says it in headers and in `_meta`.

MCP says it in `params._meta` (traceparent, tracestate), HTTP in headers of the same names; MGP in
`params.trace_id`. A stranger wrote them: what has not exactly the shape does not exist, and a state
without a parent means nothing.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import UNSET, Raw, UnsetType

from comity.wire import jsonrpc, mcp
from comity.wire.audit import as_uuid
from comity.wire.errors import MalformedMessage
from comity.wire.jsonrpc import Frame
from comity.wire.negotiation import METHOD_PREFIX

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
TRACE_ID: Final = "trace_id"
PARENT_HEADER: Final = PARENT.encode()
STATE_HEADER: Final = STATE.encode()
HEADERS: Final = frozenset({PARENT_HEADER, STATE_HEADER})
LONGEST_STATE: Final = 512
TRACED: Final = frozenset(
    {
        *(mcp.CALL_TOOL, mcp.READ_RESOURCE, mcp.GET_PROMPT, mcp.COMPLETE, mcp.PING),
        *(mcp.LIST_TOOLS, mcp.LIST_RESOURCES, mcp.LIST_TEMPLATES, mcp.LIST_PROMPTS),
        *(mcp.SUBSCRIBE, mcp.UNSUBSCRIBE, mcp.SET_LEVEL),
    }
)
"""What a trace is added to: the methods of MCP, and beside them MGP's own."""

MOST_MEMBERS: Final = 32

# A later version may say more after the flags; version 00 may not. (Trace Context §3.2)
_PARENT: Final = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]{1,128})?"
)
_MEMBER: Final = re.compile(
    r"[ \t]*[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~][ \t]*|[ \t]*"
)


class Context(NamedTuple):
    """A place in a trace: the span that comes before, and what vendors say beside."""

    parent: str
    state: str = ""

    @property
    def trace_id(self) -> str:
        return self.parent[3:35]

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        parent = ((PARENT_HEADER, self.parent.encode()),)
        return (*parent, (STATE_HEADER, self.state.encode())) if self.state else parent


def context_of(parent: str | None, state: str | None) -> Context | None:
    """The place that these name, if they name one."""
    found = _PARENT.fullmatch(parent) if parent is not None and len(parent) <= 256 else None
    if parent is None or found is None or (parent.startswith("00") and found[1]):
        return None
    return Context(parent, state if state and _is_state(state) else "")


def from_headers(headers: Mapping[bytes, bytes]) -> Context | None:
    parent, state = headers.get(PARENT_HEADER), headers.get(STATE_HEADER, b"")
    if parent is None:
        return None
    return context_of(parent.decode("latin-1").strip(" \t"), state.decode("latin-1").strip(" \t"))


def from_params(params: Raw | UnsetType) -> Context | None:
    if params is UNSET or PARENT_HEADER not in bytes(params):
        return None
    try:
        meta = jsonrpc.members(jsonrpc.members(params).get("_meta", b"{}"))
        return context_of(jsonrpc.text(meta.get(PARENT)), jsonrpc.text(meta.get(STATE)))
    except MalformedMessage:
        return None


def with_context(frame: Frame, context: Context) -> Frame:
    """The same request at this place of the trace; one whose parameters are no object stays."""
    try:
        params = jsonrpc.params_of(frame)
        meta = jsonrpc.members(params.get("_meta", b"{}"))
    except MalformedMessage:
        return frame
    said: dict[str, object] = {**meta, PARENT: context.parent}
    said.pop(STATE, None)
    if context.state:
        said[STATE] = context.state
    return jsonrpc.with_params(frame, jsonrpc.to_raw({**params, "_meta": said}))


def with_trace_id(frame: Frame, trace: str) -> Frame:
    """The same request as a part of this trace, in MGP's words. (MGP §6.5, D-33)

    One that says something of it already, or that is nobody's but its sender's, stays as it is.
    """
    if frame.method not in TRACED and not str(frame.method).startswith(METHOD_PREFIX):
        return frame
    named = as_uuid(trace)
    if frame.params is UNSET:
        return jsonrpc.with_params(frame, jsonrpc.to_raw({TRACE_ID: named}))
    written = bytes(frame.params)
    if written[:1] != b"{":
        return frame
    if TRACE_ID.encode() in written and TRACE_ID in jsonrpc.members(frame.params):
        return frame
    # Most say nothing of it, and then nothing of them need be read.
    rest = written[1:].lstrip()
    between = b"" if rest[:1] == b"}" else b","
    params = Raw(b'{"trace_id":"%b"%b%b' % (named.encode(), between, rest))
    return jsonrpc.with_params(frame, params)


def _is_state(state: str) -> bool:
    members = state.split(",")
    fits = len(state) <= LONGEST_STATE and len(members) <= MOST_MEMBERS
    return fits and all(_MEMBER.fullmatch(member) for member in members)
