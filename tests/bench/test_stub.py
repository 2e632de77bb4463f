"""The stub is a tool server that the official client takes for a real one, in both eras."""

import sys
from collections.abc import Iterator

import msgspec
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from bench.contenders import STUB
from bench.eras import MODERN, call_body, discover_body, initialize_body, initialized_body
from bench.processes import ROOT, Running
from bench.stub import respond, serve_stdio

ECHO = {"text": "well met"}
MODERN_HEAD = b"post /mcp http/1.1\r\nmcp-protocol-version: 2026-07-28"
HANDSHAKE_HEAD = b"post /mcp http/1.1\r\nmcp-protocol-version: 2025-11-25"


@pytest.fixture(scope="module")
def stub_url() -> Iterator[str]:
    with Running([*STUB, "http"]) as stub:
        yield f"http://127.0.0.1:{stub.port()}/mcp"


@pytest.mark.parametrize("mode", ["legacy", "auto", MODERN])
async def test_the_official_client_uses_it_over_http(stub_url: str, mode: str) -> None:
    async with Client(stub_url, mode=mode) as client:
        listed = await client.list_tools()
        called = await client.call_tool("echo", ECHO)
    assert [tool.name for tool in listed.tools] == ["echo"]
    assert called.model_dump()["content"][0]["text"] == "well met"


@pytest.mark.parametrize("mode", ["legacy", MODERN])
async def test_the_official_client_uses_it_over_stdio(mode: str) -> None:
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "bench.stub", "stdio"], cwd=ROOT
    )
    async with Client(command, mode=mode) as client:
        called = await client.call_tool("echo", ECHO)
    assert called.model_dump()["content"][0]["text"] == "well met"


def test_a_modern_request_must_name_its_method_in_a_header() -> None:
    assert b"-32020" in respond(MODERN_HEAD, discover_body())
    assert respond(MODERN_HEAD + b"\r\nmcp-method: tools/call", discover_body()).find(b"-32020") > 0
    named = respond(MODERN_HEAD + b"\r\nmcp-method: server/discover", discover_body())
    assert named.startswith(b"HTTP/1.1 200 ")


def test_a_handshake_request_must_name_its_session() -> None:
    assert respond(HANDSHAKE_HEAD, call_body("handshake")).startswith(b"HTTP/1.1 400 ")
    named = respond(HANDSHAKE_HEAD + b"\r\nmcp-session-id: ab", call_body("handshake"))
    assert named.startswith(b"HTTP/1.1 200 ")
    assert b"mcp-session-id: " in respond(b"post /mcp http/1.1", initialize_body())


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        (b"get /mcp http/1.1", b"", b"405"),
        (b"delete /mcp http/1.1", b"", b"200"),
        (b"post /mcp http/1.1", initialized_body(), b"202"),
        (b"post /mcp http/1.1", b"{", b"400"),
    ],
)
def test_what_is_no_call_has_its_status(head: bytes, body: bytes, status: bytes) -> None:
    assert respond(head, body)[9:12] == status


def test_lines_are_answered_however_they_are_cut_and_whatever_a_write_takes() -> None:
    sent = initialize_body() + b"\n" + initialized_body() + b"\n" + call_body("handshake") + b"\n"
    pieces = [sent[at : at + 7] for at in range(0, len(sent), 7)]
    written = bytearray()

    def write_five(data: bytes) -> int:
        written.extend(data[:5])
        return len(data[:5])

    serve_stdio(iter([*pieces, b""]).__next__, write_five)
    answers = [msgspec.json.decode(line) for line in written.splitlines()]
    assert [answer["id"] for answer in answers] == [1, 10_000_000]
    assert "resultType" not in answers[1]["result"]
