"""Whether OpenTelemetry is asked for, and what is said where its packages are missing."""

import json
import sys
import urllib.request
from pathlib import Path

import pytest

from comity import telemetry
from comity.errors import Misconfigured
from comity.telemetry.setup import is_asked_for, open_tracer
from tests.interop.processes import running
from tests.support.cases import loop_over
from tests.support.collector import collecting, collecting_grpc

pytestmark = pytest.mark.integration


@loop_over(
    ("environ", "asked"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "comity"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a", "OTEL_SDK_DISABLED": "True"}, False),
    ],
)
def test_it_is_asked_for_where_an_endpoint_is_named(environ: dict[str, str], asked: bool) -> None:
    assert is_asked_for(environ) is asked


def test_a_missing_extra_is_the_operators_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # An earlier test may have imported it; then the package holds it as an attribute as well.
    monkeypatch.delitem(sys.modules, "comity.telemetry.otel", raising=False)
    monkeypatch.delattr(telemetry, "otel", raising=False)
    for name in [name for name in sys.modules if name.startswith("opentelemetry.exporter")]:
        monkeypatch.delitem(sys.modules, name)

    class Missing:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.startswith("opentelemetry.exporter"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    with pytest.raises(Misconfigured, match=r"comity\[otel\]"):
        open_tracer("1", lambda name: {}, {})


SERVE = [str(Path(sys.executable).with_name("comity")), "serve"]
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_PROTOCOL is 'http/json'",
        ),
        ({"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "x"}, "a variable of OpenTelemetry has a wrong"),
    ],
)
def test_a_wrong_variable_is_one_warning_and_stops_no_start(
    tmp_path: Path, variables: dict[str, str], told: str
) -> None:
    config = tmp_path / "comity.toml"
    config.write_text("[telemetry]\ntraces = true\n")
    with running([*SERVE, "-c", str(config), "--port", "0"], {**ENDPOINT, **variables}) as program:
        program.wait_for_line(r"listening on http://")
        assert program.said.count("Telemetry is off") == 1
        assert told in program.said


@pytest.mark.timeout(120)
def test_a_missing_extra_is_one_warning_and_stops_no_start(tmp_path: Path) -> None:
    config = tmp_path / "comity.toml"
    config.write_text("")
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    # Python looks here first, and finds a package that has none of what is needed.
    (blocked / "opentelemetry").mkdir()
    (blocked / "opentelemetry" / "__init__.py").write_text("")
    variables = {**ENDPOINT, "PYTHONPATH": str(blocked)}
    with running([*SERVE, "-c", str(config), "--port", "0"], variables) as program:
        program.wait_for_line(r"listening on http://")
        assert program.said.count("Telemetry is off") == 1
        assert "pip install 'comity[otel]'" in program.said


@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_spans_reach_a_collector_by_either_protocol(tmp_path: Path, protocol: str) -> None:
    config = tmp_path / "comity.toml"
    config.write_text("")
    with (collecting_grpc if protocol == "grpc" else collecting)() as collected:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collected.endpoint,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "50",
        }
        with running([*SERVE, "-c", str(config), "--port", "0"], variables) as program:
            origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
            assert _list_tools(origin) == 200
            (span,) = collected.wait_for_spans(1)
            assert (span.service, span.name, span.kind) == ("comity", "tools/list", "server")
            program.wait_until(lambda: "mcp.server.operation.duration" in collected.metrics)


def _list_tools(origin: str) -> int:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/list",
    }
    data = json.dumps(body).encode()
    asked = urllib.request.Request(f"{origin}/mcp", data, headers)  # noqa: S310 - loopback only
    with urllib.request.urlopen(asked, timeout=30) as reply:  # noqa: S310 - loopback only
        return reply.status


@loop_over(
    "name",
    [
        "OTEL_EXPORTER_OTLP_PROTOCOL",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
    ],
)
def test_a_protocol_that_is_not_spoken_is_named_with_what_to_do(name: str) -> None:
    with pytest.raises(Misconfigured, match=rf"{name} is 'http/json'.*4318.*4317"):
        open_tracer("1", lambda server: {}, {name: "http/json"})
