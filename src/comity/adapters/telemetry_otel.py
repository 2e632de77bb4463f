"""OpenTelemetry, opened by its own variables: spans and durations leave by OTLP over HTTP.

They leave in batches from threads of its own; a collector that is away costs what it would have
been told, and no call waits for it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from typing import Final

from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from comity.adapters.telemetry_spans import CallTrace, Instruments, about_session
from comity.ports import Describe, Trace
from comity.wire.errors import Misconfigured
from comity.wire.jsonrpc import Frame

LAST_WORDS_SECONDS: Final = 5.0
# As the conventions want them.
BOUNDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
_METRICS_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_PROTOCOLS: Final = (
    "OTEL_EXPORTER_OTLP_PROTOCOL",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
    "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
)


class Otel:
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
        self._instruments = Instruments(
            spans.get_tracer("comity", version),
            _histogram(meter, "mcp.server.operation.duration", "as its receiver saw it"),
            _histogram(meter, "mcp.client.operation.duration", "as its sender saw it"),
            describe,
        )

    def begin(self, frame: Frame, told: Trace | None, session: str, version: str) -> CallTrace:
        named = None if told is None else told.context
        return CallTrace(self._instruments, frame, named, about_session(session, version))

    async def close(self) -> None:
        """Send what is left, but wait for no collector that is slow or away."""
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def shut_down() -> None:
            self._spans.shutdown()
            if self._durations is not None:
                self._durations.shutdown(LAST_WORDS_SECONDS * 1000)
            with contextlib.suppress(RuntimeError):  # nobody waits any more, and the loop is gone
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, name="telemetry end", daemon=True).start()
        waiting = asyncio.ensure_future(done.wait())
        await asyncio.wait([waiting], timeout=LAST_WORDS_SECONDS)
        waiting.cancel()


def open_tracer(version: str, describe: Describe, environ: Mapping[str, str]) -> Otel:
    """All else that OpenTelemetry's variables can say is read by its own packages."""
    for name in _PROTOCOLS:
        if environ.get(name, "http/protobuf") != "http/protobuf":
            raise Misconfigured(
                f"{name} is {environ[name]!r}, and only http/protobuf is spoken here; "
                "set it so, with the collector's port for HTTP (4318 as a rule)"
            )
    resource = _resource(version)
    spans = TracerProvider(resource=resource, shutdown_on_exit=False)
    if environ.get("OTEL_TRACES_EXPORTER", "otlp") != "none":
        spans.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    durations = None
    wanted = any(environ.get(name) for name in _METRICS_ENDPOINTS)
    if wanted and environ.get("OTEL_METRICS_EXPORTER", "otlp") != "none":
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        durations = MeterProvider([reader], resource, shutdown_on_exit=False)
    return Otel(spans, durations, version, describe)


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
