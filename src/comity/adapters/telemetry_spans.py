"""One call as spans and durations, by OpenTelemetry's conventions for MCP.

The call is a span of kind server. What goes on to a tool server is one of kind client below it, and
the tool server is told of that one as its parent. Neither arguments nor results are recorded, and
of a session only a digest: who knows its name could speak in it.
"""

import hashlib
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from opentelemetry.context import Context as Surroundings
from opentelemetry.metrics import Histogram
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    Tracer,
    TraceState,
    set_span_in_context,
)

from comity.adapters.log_lines import hidden
from comity.ports import Describe, Ending, Headers
from comity.rules.refusals import trace_beside
from comity.wire import jsonrpc, mcp, traces
from comity.wire.errors import MalformedMessage
from comity.wire.jsonrpc import Frame
from comity.wire.traces import Context

LONGEST_MESSAGE: Final = 200
_LOOKED_AT: Final = 4096
_BY_URI: Final = frozenset({mcp.READ_RESOURCE, mcp.SUBSCRIBE, mcp.UNSUBSCRIBE})
_WELL: Final = "ok"

type Attributes = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Instruments:
    """What spans and durations are made with."""

    tracer: Tracer
    server_seconds: Histogram
    client_seconds: Histogram
    describe: Describe


class CallTrace:
    """The record of one call."""

    __slots__ = ("_began", "_instruments", "_sent", "_span", "_version")

    def __init__(
        self, instruments: Instruments, frame: Frame, named: Context | None, about: Attributes
    ) -> None:
        self._instruments = instruments
        self._began = time.perf_counter()
        self._version = about["mcp.protocol.version"]
        # Each span that went on to a server, with when it ended if another followed it.
        self._sent: list[tuple[Span, Attributes, float, int | None]] = []
        said = traces.from_params(frame.params) or _in_mgp(frame, named)
        # What MCP itself says is the parent; the transport's own context is only related to it.
        beside = [Link(_span_context(named))] if named and said and named != said else None
        parent = said or named
        self._span = instruments.tracer.start_span(
            str(frame.method),
            None if parent is None else _after(NonRecordingSpan(_span_context(parent))),
            SpanKind.SERVER,
            {**_of_request(frame), **about},
            beside,
        )

    @property
    def context(self) -> Context | None:
        return _context(self._span)

    def onward(
        self, frame: Frame, headers: Headers, server: str, in_headers: bool
    ) -> tuple[Frame, Headers]:
        self._sent = [(*sent[:3], sent[3] or time.time_ns()) for sent in self._sent]
        described = self._instruments.describe(server)
        place = _place(described.get("transport", ""), described.get("reached", ""))
        span = self._instruments.tracer.start_span(
            str(frame.method),
            _after(self._span),
            SpanKind.CLIENT,
            {
                **_of_request(frame),
                **place,
                "mcp.protocol.version": self._version,
                "comity.server": server,
            },
        )
        self._sent.append((span, place, time.perf_counter(), None))
        context = _context(span)
        if context is None:
            return frame, headers
        kept = tuple(pair for pair in headers if pair[0] not in traces.HEADERS)
        return traces.with_context(frame, context), (*kept, *context.headers)

    def ended(self, ending: Ending) -> None:
        about = _of_ending(ending)
        known: Attributes = {**about, "mcp.protocol.version": self._version}
        now = time.perf_counter()
        for span, place, began, end in self._sent:
            _finish(span, ending, about, end)
            self._instruments.client_seconds.record(now - began, {**known, **place})
        self._sent.clear()
        _finish(self._span, ending, about, None)
        self._instruments.server_seconds.record(now - self._began, known)


def about_session(session: str, version: str) -> Attributes:
    about: Attributes = {"mcp.protocol.version": version}
    if session:
        about["mcp.session.id"] = hashlib.sha256(session.encode()).hexdigest()[:32]
    return about


def _finish(span: Span, ending: Ending, about: Attributes, end: int | None) -> None:
    if not span.is_recording():
        return
    target = f" {ending.tool}" if "gen_ai.tool.name" in about else ""
    span.update_name(ending.method + target)
    span.set_attributes(about)
    if ending.outcome != _WELL:
        span.set_status(Status(StatusCode.ERROR, _message(ending.answer)))
    span.end(end)


def _of_request(frame: Frame) -> Attributes:
    about: Attributes = {
        "mcp.method.name": str(frame.method),
        "jsonrpc.request.id": str(frame.id),
    }
    if frame.method == mcp.CALL_TOOL:
        about["gen_ai.operation.name"] = "execute_tool"
    elif frame.method in _BY_URI and (uri := _uri(frame)):
        about["mcp.resource.uri"] = uri
    return about


def _of_ending(ending: Ending) -> Attributes:
    """What is known at the end, in words of which there are few."""
    about: Attributes = {"mcp.method.name": ending.method}
    if ending.tool not in ("", "other"):
        about["gen_ai.tool.name"] = ending.tool
    if ending.method == mcp.CALL_TOOL:
        about["gen_ai.operation.name"] = "execute_tool"
    error = None if ending.answer is None else jsonrpc.error_of(ending.answer)
    if error is not None:
        about["error.type"] = about["rpc.response.status_code"] = str(error.code)
    elif ending.outcome != _WELL:
        about["error.type"] = ending.outcome
    return about


def _message(answer: Frame | None) -> str | None:
    error = None if answer is None else jsonrpc.error_of(answer)
    return None if error is None else hidden(error.message[:_LOOKED_AT])[:LONGEST_MESSAGE]


def _uri(frame: Frame) -> str:
    """The resource without what a URI may hold as a secret: user, query, fragment."""
    try:
        found = jsonrpc.text(jsonrpc.params_of(frame).get("uri"))
        parts = urlsplit((found or "")[:1000])
    except (MalformedMessage, ValueError):
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@lru_cache(1024)
def _place(transport: str, reached: str) -> Attributes:
    """Where a tool server is, as far as that is no secret."""
    if transport == "stdio":
        return {"network.transport": "pipe"}
    try:
        parts = urlsplit(f"//{reached}")
        place: Attributes = {"server.address": parts.hostname or "", "network.transport": "tcp"}
        if parts.port is not None:
            place["server.port"] = parts.port
    except ValueError:
        return {"network.transport": "tcp"}
    return {**place, "network.protocol.name": "http"}


def _after(span: Span) -> Surroundings:
    return set_span_in_context(span, Surroundings())


def _in_mgp(frame: Frame, named: Context | None) -> Context | None:
    """The trace that a request names without a place in it, as MGP does. (D-33)

    Whoever named it knows no spans: the place is made up, so that the trace is the one it knows.
    """
    trace = trace_beside(frame)
    if trace is None or (named is not None and named.trace_id == trace):
        return None
    return traces.context_of(f"00-{trace}-{trace[16:]}-01", None)


def _span_context(context: Context) -> SpanContext:
    parent = context.parent
    return SpanContext(
        int(parent[3:35], 16),
        int(parent[36:52], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(parent[53:55], 16)),
        trace_state=TraceState.from_header([context.state]) if context.state else None,
    )


def _context(span: Span) -> Context | None:
    found = span.get_span_context()
    if not found.is_valid:
        return None
    parent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
    return Context(parent, found.trace_state.to_header())
