"""Whether OpenTelemetry is asked for, and what is said where its packages are missing."""

import sys
from pathlib import Path

import pytest

from comity import telemetry
from comity.errors import Misconfigured
from comity.telemetry.setup import is_asked_for, open_tracer
from tests.interop.processes import running
from tests.support.cases import loop_over

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


@pytest.mark.timeout(120)
def test_telemetry_never_stops_a_start(tmp_path: Path) -> None:
    config = tmp_path / "comity.toml"
    config.write_text("[telemetry]\ntraces = true\n")
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    command = [str(Path(sys.executable).with_name("comity")), "serve", str(config), "--port", "0"]
    with running(command, variables) as program:
        program.wait_for_line(r"listening on http://")
        assert "Telemetry is off: OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'" in program.said


@loop_over("name", ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"])
def test_a_protocol_that_is_not_spoken_is_named_with_what_to_do(name: str) -> None:
    with pytest.raises(Misconfigured, match=r"http/protobuf.*4318"):
        open_tracer("1", lambda server: {}, {name: "grpc"})
