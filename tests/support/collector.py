"""A collector of OpenTelemetry over HTTP or gRPC that keeps everything it is sent, decoded."""

import gzip
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True)
class Seen:
    """One span as it arrived."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, object]
    error: bool
    message: str
    links: list[str]
    seconds: float


@dataclass
class Collected:
    """What arrived so far."""

    endpoint: str = ""
    spans: list[Seen] = field(default_factory=list[Seen])
    metrics: dict[str, list[tuple[dict[str, object], int]]] = field(
        default_factory=dict[str, list[tuple[dict[str, object], int]]]
    )
    _arrived: threading.Condition = field(default_factory=threading.Condition)

    def take(self, path: str, body: bytes) -> None:
        with self._arrived:
            if path == "/v1/traces":
                self._take_spans(ExportTraceServiceRequest.FromString(body))
            elif path == "/v1/metrics":
                self._take_metrics(ExportMetricsServiceRequest.FromString(body))
            self._arrived.notify_all()

    def wait_for_spans(self, number: int, seconds: float = 30) -> list[Seen]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.spans) >= number, seconds), self.spans
            return list(self.spans)

    def of(self, service: str) -> list[Seen]:
        return [span for span in self.spans if span.service == service]

    def _take_spans(self, request: ExportTraceServiceRequest) -> None:
        for part in request.resource_spans:
            service = str(_values(part.resource.attributes)["service.name"])
            self.spans += [
                _seen(service, span) for scope in part.scope_spans for span in scope.spans
            ]

    def _take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        for part in request.resource_metrics:
            for scope in part.scope_metrics:
                for metric in scope.metrics:
                    points = metric.histogram.data_points
                    told = [(_values(point.attributes), int(point.count)) for point in points]
                    self.metrics[metric.name] = told


def _seen(service: str, span: Span) -> Seen:
    return Seen(
        service,
        span.name,
        Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        _values(span.attributes),
        span.status.code == span.status.STATUS_CODE_ERROR,
        span.status.message,
        [link.span_id.hex() for link in span.links],
        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
    )


def _values(pairs: Any) -> dict[str, object]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def collecting() -> Generator[Collected]:
    collected = Collected()

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collected.take(self.path, body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    collected.endpoint = f"http://127.0.0.1:{server.server_port}"
    serving = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    serving.start()
    try:
        yield collected
    finally:
        server.shutdown()
        serving.join(10)
        server.server_close()


@contextmanager
def collecting_grpc() -> Generator[Collected]:
    """The same over gRPC, with one handler for each of the two services."""
    collected = Collected()

    class Services(grpc.GenericRpcHandler):
        def service(self, handler_call_details: Any) -> Any:
            path = {"Trace": "/v1/traces", "Metrics": "/v1/metrics"}
            signal = handler_call_details.method.rpartition("/")[0].rpartition(".")[2]

            def take(body: bytes, context: object) -> bytes:
                collected.take(path[signal.removesuffix("Service")], body)
                return b""

            handle: Any = grpc.unary_unary_rpc_method_handler
            return handle(take)

    server = grpc.server(ThreadPoolExecutor(2), handlers=[Services()])
    collected.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield collected
    finally:
        server.stop(None).wait(10)
