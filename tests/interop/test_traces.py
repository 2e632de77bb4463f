"""One trace through a client, the gateway and a server: all three real, each its own process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.conftest import Entry, command_of, served
from tests.interop.processes import http_server
from tests.support.collector import Collected, Seen, collecting

SECONDS = 50.0


def call(origin: str, mode: str, tool: str, env: dict[str, str]) -> str:
    command = command_of("traced", "call", f"{origin}/servers/greeter/mcp", mode, tool)
    done = subprocess.run(
        command, env=env, check=True, capture_output=True, text=True, timeout=SECONDS
    )
    return done.stdout


def the_call(collected: Collected, tool: str) -> list[Seen]:
    """The spans of the one tool call, from the client's to the server's."""
    (root,) = [span for span in collected.spans if span.name == "the whole"]
    trace = [span for span in collected.spans if span.trace_id == root.trace_id]
    way, at = [root], root
    while below := [span for span in trace if span.parent_id == at.span_id]:
        (at,) = [span for span in below if tool in span.name]
        way.append(at)
    return way


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
def test_one_trace_crosses_client_gateway_and_server(
    transport: str, mode: str, tmp_path: Path
) -> None:
    with collecting() as collected:
        exporting = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collected.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "PATH": str(Path(sys.executable).parent),
        }
        client = {**exporting, "OTEL_SERVICE_NAME": "the client"}
        server = {**exporting, "OTEL_SERVICE_NAME": "the server"}
        if transport == "stdio":
            stdio: Entry = {"command": sys.executable, "env": server}
            stdio["args"] = command_of("traced", "stdio")[1:]
            with served({"greeter": stdio}, tmp_path, **exporting) as origin:
                said = call(origin, mode, "greet", client)
        else:
            with http_server(lambda port: command_of("traced", "http", str(port)), server) as up:
                entry: Entry = {"type": "http", "url": f"{up}/mcp"}
                with served({"greeter": entry}, tmp_path, **exporting) as origin:
                    said = call(origin, mode, "greet", client)
    assert "Hello, Ada!" in said
    way = the_call(collected, "greet")
    assert [(span.service, span.kind) for span in way] == [
        ("the client", "internal"),
        ("the client", "client"),
        ("comity", "server"),
        ("comity", "client"),
        ("the server", "server"),
    ]
    inwards, outwards = way[2], way[3]
    for span in (inwards, outwards):
        assert span.name == "tools/call greet"
        assert span.attributes["mcp.method.name"] == "tools/call"
        assert span.attributes["gen_ai.tool.name"] == "greet"
        assert span.attributes["gen_ai.operation.name"] == "execute_tool"
        assert not span.error
        assert "Ada" not in str(span)
    assert outwards.attributes["comity.server"] == "greeter"
    transports = {"stdio": "pipe", "http": "tcp"}
    assert outwards.attributes["network.transport"] == transports[transport]
    assert inwards.seconds >= outwards.seconds
