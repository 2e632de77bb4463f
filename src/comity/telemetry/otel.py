"""Traces and metrics sent with OpenTelemetry; loaded only if the extra is installed and used."""

import asyncio
import contextlib
import hashlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from opentelemetry import metrics
from opentelemetry.context import Context as Surroundings
from opentelemetry.metrics import Histogram
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
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

from comity.errors import MalformedMessage, Misconfigured
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import Frame
from comity.mcp.refusals import trace_beside
from comity.telemetry import tracing
from comity.telemetry.logging import redact_text
from comity.telemetry.tracing import CallTrace as Trace
from comity.telemetry.tracing import (
    CallTraceOutcome,
    Describe,
    Headers,
    ModelTraceOutcome,
    TraceContext,
)

MAX_MESSAGE_LENGTH: Final = 200
_MAX_INSPECTED_BYTES: Final = 4096
_BY_URI: Final = frozenset({protocol.READ_RESOURCE, protocol.SUBSCRIBE, protocol.UNSUBSCRIBE})
_WELL: Final = "ok"

type Attributes = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class OtelInstruments:
    """The OpenTelemetry instruments for spans and durations."""

    tracer: Tracer
    server_seconds: Histogram
    client_seconds: Histogram
    describe: Describe


class OtelCallTrace:
    """The spans of one call: one for the client's request, and one for each request to a server."""

    __slots__ = ("_began", "_instruments", "_sent", "_span", "_version")

    def __init__(
        self,
        instruments: OtelInstruments,
        frame: Frame,
        named: TraceContext | None,
        attributes: Attributes,
    ) -> None:
        self._instruments = instruments
        self._began = time.perf_counter()
        self._version = attributes["mcp.protocol.version"]
        # The span of each request to a server, with its end if another request followed.
        self._sent: list[tuple[Span, Attributes, float, int | None]] = []
        said = tracing.from_params(frame.params) or _in_mgp(frame, named)
        # The context in MCP's `_meta` is the parent; the transport's own context becomes a link.
        beside = [Link(_span_context(named))] if named and said and named != said else None
        parent = said or named
        self._span = instruments.tracer.start_span(
            str(frame.method),
            None if parent is None else _after(NonRecordingSpan(_span_context(parent))),
            SpanKind.SERVER,
            {**_of_request(frame), **attributes},
            beside,
        )

    @property
    def context(self) -> TraceContext | None:
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
        kept = tuple(pair for pair in headers if pair[0] not in tracing.HEADERS)
        return tracing.with_context(frame, context), (*kept, *context.headers)

    def ended(self, outcome: CallTraceOutcome) -> None:
        about = _outcome_attributes(outcome)
        known: Attributes = {**about, "mcp.protocol.version": self._version}
        now = time.perf_counter()
        for span, place, began, end in self._sent:
            _finish(span, outcome, about, end)
            self._instruments.client_seconds.record(now - began, {**known, **place})
        self._sent.clear()
        _finish(self._span, outcome, about, None)
        self._instruments.server_seconds.record(now - self._began, known)


class OtelModelTrace:
    """The span of one request to a language model, by the conventions for generative AI.

    It holds no prompt and no reply.
    """

    __slots__ = ("_span",)

    def __init__(self, tracer: Tracer, vendor: str, model: str, max_tokens: int) -> None:
        self._span = tracer.start_span(
            f"chat {model}",
            kind=SpanKind.CLIENT,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": vendor,
                "gen_ai.request.model": model,
                "gen_ai.request.max_tokens": max_tokens,
            },
        )

    def ended(self, outcome: ModelTraceOutcome) -> None:
        self._span.set_attribute("gen_ai.usage.input_tokens", outcome.input_tokens)
        self._span.set_attribute("gen_ai.usage.output_tokens", outcome.output_tokens)
        if outcome.is_answered:
            self._span.set_attribute("gen_ai.response.finish_reasons", [outcome.outcome])
        else:
            self._span.set_attribute("error.type", outcome.outcome)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


def about_session(session: str, version: str) -> Attributes:
    """Return the attributes of a session; its id is hashed."""
    about: Attributes = {"mcp.protocol.version": version}
    if session:
        about["mcp.session.id"] = hashlib.sha256(session.encode()).hexdigest()[:32]
    return about


def _finish(span: Span, outcome: CallTraceOutcome, attributes: Attributes, end: int | None) -> None:
    if not span.is_recording():
        return
    target = f" {outcome.tool}" if "gen_ai.tool.name" in attributes else ""
    span.update_name(outcome.method + target)
    span.set_attributes(attributes)
    if outcome.outcome != _WELL:
        span.set_status(Status(StatusCode.ERROR, _message(outcome.answer)))
    span.end(end)


def _of_request(frame: Frame) -> Attributes:
    about: Attributes = {
        "mcp.method.name": str(frame.method),
        "jsonrpc.request.id": str(frame.id),
    }
    if frame.method == protocol.CALL_TOOL:
        about["gen_ai.operation.name"] = "execute_tool"
    elif frame.method in _BY_URI and (uri := _uri(frame)):
        about["mcp.resource.uri"] = uri
    return about


def _outcome_attributes(outcome: CallTraceOutcome) -> Attributes:
    """Return the attributes known at the end, all of low cardinality."""
    about: Attributes = {"mcp.method.name": outcome.method}
    if outcome.tool not in ("", "other"):
        about["gen_ai.tool.name"] = outcome.tool
    if outcome.method == protocol.CALL_TOOL:
        about["gen_ai.operation.name"] = "execute_tool"
    error = None if outcome.answer is None else jsonrpc.error_of(outcome.answer)
    if error is not None:
        about["error.type"] = about["rpc.response.status_code"] = str(error.code)
    elif outcome.outcome != _WELL:
        about["error.type"] = outcome.outcome
    return about


def _message(answer: Frame | None) -> str | None:
    error = None if answer is None else jsonrpc.error_of(answer)
    return (
        None
        if error is None
        else redact_text(error.message[:_MAX_INSPECTED_BYTES])[:MAX_MESSAGE_LENGTH]
    )


def _uri(frame: Frame) -> str:
    """Return the URI without the parts that may hold secrets: user, query and fragment."""
    try:
        found = jsonrpc.decode_text(frame.parameters.get("uri"))
        parts = urlsplit((found or "")[:1000])
    except (MalformedMessage, ValueError):
        return ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@lru_cache(1024)
def _place(transport: str, reached: str) -> Attributes:
    """Return the address of a server, without parts that may be secret."""
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


def _in_mgp(frame: Frame, named: TraceContext | None) -> TraceContext | None:
    """Return the context of a trace that a request names without a span, as MGP does. (D-33)

    The caller has no spans, so Comity makes up a parent span to keep the caller's trace id.
    """
    trace = trace_beside(frame)
    if trace is None or (named is not None and named.trace_id == trace):
        return None
    return tracing.context_of(f"00-{trace}-{trace[16:]}-01", None)


def _span_context(context: TraceContext) -> SpanContext:
    parent = context.parent
    return SpanContext(
        int(parent[3:35], 16),
        int(parent[36:52], 16),
        is_remote=True,
        trace_flags=TraceFlags(int(parent[53:55], 16)),
        trace_state=TraceState.from_header([context.state]) if context.state else None,
    )


def _context(span: Span) -> TraceContext | None:
    found = span.get_span_context()
    if not found.is_valid:
        return None
    parent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
    return TraceContext(parent, found.trace_state.to_header())


LAST_WORDS_SECONDS: Final = 5.0
# The bucket bounds of OpenTelemetry's semantic conventions.
BOUNDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
_METRICS_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_ALL_SIGNALS: Final = "OTEL_EXPORTER_OTLP_PROTOCOL"
_HTTP: Final = "http/protobuf"
_GRPC: Final = "grpc"


class OtelTracer:
    """The tracer of one gateway."""

    def __init__(
        self,
        spans: TracerProvider,
        durations: MeterProvider | None,
        version: str,
        describe: Describe,
    ) -> None:
        self._spans = spans
        self._durations = durations
        meter = (durations or metrics.NoOpMeterProvider()).get_meter("comity", version)
        self._instruments = OtelInstruments(
            spans.get_tracer("comity", version),
            _histogram(meter, "mcp.server.operation.duration", "as its receiver saw it"),
            _histogram(meter, "mcp.client.operation.duration", "as its sender saw it"),
            describe,
        )

    def begin(self, frame: Frame, told: Trace | None, session: str, version: str) -> OtelCallTrace:
        named = None if told is None else told.context
        return OtelCallTrace(self._instruments, frame, named, about_session(session, version))

    def begin_model(self, vendor: str, model: str, max_tokens: int) -> OtelModelTrace:
        return OtelModelTrace(self._instruments.tracer, vendor, model, max_tokens)

    async def close(self) -> None:
        """Send the remaining spans, but wait at most LAST_WORDS_SECONDS for the collector."""
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def shut_down() -> None:
            self._spans.shutdown()
            if self._durations is not None:
                self._durations.shutdown(LAST_WORDS_SECONDS * 1000)
            with contextlib.suppress(RuntimeError):  # the event loop is already closed
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, name="telemetry end", daemon=True).start()
        waiting = asyncio.ensure_future(done.wait())
        await asyncio.wait([waiting], timeout=LAST_WORDS_SECONDS)
        waiting.cancel()


def open_tracer(version: str, describe: Describe, environ: Mapping[str, str]) -> OtelTracer:
    """Create the tracer; OpenTelemetry's packages read their other variables themselves.

    Raises Misconfigured if a variable asks for an unknown protocol.
    """
    resource = _resource(version)
    for_spans = _protocol("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", environ)
    for_metrics = _protocol("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", environ)
    spans = TracerProvider(resource=resource, shutdown_on_exit=False)
    if environ.get("OTEL_TRACES_EXPORTER", "otlp") != "none":
        spans.add_span_processor(BatchSpanProcessor(_span_exporter(for_spans)))
    durations = None
    wanted = any(environ.get(name) for name in _METRICS_ENDPOINTS)
    if wanted and environ.get("OTEL_METRICS_EXPORTER", "otlp") != "none":
        reader = PeriodicExportingMetricReader(_metric_exporter(for_metrics))
        durations = MeterProvider([reader], resource, shutdown_on_exit=False)
    return OtelTracer(spans, durations, version, describe)


def _protocol(signal: str, environ: Mapping[str, str]) -> str:
    """Return the protocol of one signal: from its own variable, or from that of all signals."""
    name = signal if environ.get(signal) else _ALL_SIGNALS
    chosen = environ.get(name) or _HTTP
    if chosen not in (_HTTP, _GRPC):
        raise Misconfigured(f"{name} is {chosen!r}; use {_HTTP} (port 4318) or {_GRPC} (port 4317)")
    return chosen


def _span_exporter(protocol_name: str) -> SpanExporter:
    if protocol_name == _GRPC:
        # gRPC takes long to import, and few deployments use it.
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter

        return trace_exporter.OTLPSpanExporter()
    # Only one of the two exporters is needed.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _metric_exporter(protocol_name: str) -> MetricExporter:
    if protocol_name == _GRPC:
        # gRPC takes long to import, and few deployments use it.
        from opentelemetry.exporter.otlp.proto.grpc import metric_exporter

        return metric_exporter.OTLPMetricExporter()
    # Only one of the two exporters is needed.
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()


def _resource(version: str) -> Resource:
    found = Resource.create({SERVICE_VERSION: version})
    unnamed = str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service")
    return found.merge(Resource({SERVICE_NAME: "comity"})) if unnamed else found


def _histogram(meter: metrics.Meter, name: str, seen: str) -> metrics.Histogram:
    return meter.create_histogram(
        name,
        "s",
        f"How long an MCP request took, {seen}.",
        explicit_bucket_boundaries_advisory=BOUNDS,
    )
