"""The traps of MCP on the wire, each by its number in `docs/design/mcp-wire.md` §5.

Most are traps of an SDK or of a careless server. What is tested is that Comity has none of them,
in front of a server written by hand (`servers/odd.py`) whose habits are what each trap is made of.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.interop.conftest import DIRECT, by_hand, command_of, reached, served, served_alone
from tests.interop.hand_client import (
    SECONDS,
    Dial,
    Exchange,
    Frame,
    HandClient,
    HttpClient,
    frames_of,
    initialize,
    over_http,
)
from tests.interop.processes import http_server
from tests.interop.servers import odd

through_comity = pytest.mark.skipif(DIRECT, reason="the server by itself has this trap")

MEBIBYTE = 1024 * 1024
META: Frame = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "hand", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.fixture(scope="module")
def dial(transport: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dial]:
    with reached("odd", transport, tmp_path_factory.mktemp("odd")) as dial:
        yield dial


@pytest.fixture(scope="module")
def http_door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The door of the odd server, reached over HTTP, where it speaks both eras."""
    with http_server(lambda port: command_of("odd", str(port))) as upstream:
        if DIRECT:
            yield f"{upstream}/mcp"
            return
        entry = {"type": "http", "url": f"{upstream}/mcp"}
        with served({"odd": entry}, tmp_path_factory.mktemp("odd")) as origin:
            yield f"{origin}/servers/odd/mcp"


# What a shared process pushes without an address belongs to nobody (decision 0007).
where_each_has_its_own = pytest.mark.parametrize(
    "transport", ["own stdio", "http"], indirect=True, scope="module"
)


async def call(client: HandClient, tool: str, named: object = None, **arguments: object) -> Frame:
    params = {"name": tool, "arguments": arguments}
    return (await client.request("tools/call", params, named=named)).response


def text(response: Frame) -> str:
    return response["result"]["content"][0]["text"]


@through_comity
@where_each_has_its_own
@pytest.mark.requirement("MCP-3.2-get")
async def test_trap_01_a_push_waits_for_a_client_that_has_no_stream_open_yet(
    dial: Dial, transport: str
) -> None:
    async def be_pushed() -> Frame:
        async with dial() as client:
            # The server pushes as soon as it hears `initialized`, and the stream opens after that.
            await initialize(client, {})
            await client.listen()
            async with asyncio.timeout(SECONDS):
                return await client.standalone.get()

    pushed = await asyncio.gather(*(be_pushed() for _ in range(10)))
    assert [frame["method"] for frame in pushed] == [odd.PUSHED] * 10


@where_each_has_its_own
@pytest.mark.requirement("MCP-3.2-get")
async def test_trap_01_a_stream_that_is_open_loses_no_push(dial: Dial, transport: str) -> None:
    async def be_poked() -> Frame:
        async with dial() as client:
            await initialize(client, {})
            await client.listen()
            await client.notify("notifications/vendor.poke")
            async with asyncio.timeout(SECONDS):
                while True:
                    pushed = await client.standalone.get()
                    if pushed["params"]["after"] == "notifications/vendor.poke":
                        return pushed

    pushed = await asyncio.gather(*(be_poked() for _ in range(10)))
    assert [frame["method"] for frame in pushed] == [odd.PUSHED] * 10


@through_comity
@pytest.mark.requirement("MCP-3.2-reply")
async def test_trap_02_an_unread_stream_stalls_no_other_call(dial: Dial) -> None:
    async with dial() as client:
        assert isinstance(client, HttpClient)
        await initialize(client, {})
        flood: Frame = {"name": "flood", "arguments": {}}
        frame = {"jsonrpc": "2.0", "id": "flood", "method": "tools/call", "params": flood}
        async with client.post(frame) as unread:
            assert unread.status == 200
            for number in range(5):
                assert text(await call(client, "echo", text=f"call {number}")) == f"call {number}"


@pytest.mark.requirement("MCP-5.1-call")
async def test_trap_03_a_call_of_the_new_era_asks_the_server_for_no_list(http_door: str) -> None:
    async with aiohttp.ClientSession() as http:
        before = await _asked(http, http_door)
        for number in range(10):
            reply = await _modern_call(http, http_door, "echo", {"text": f"{number}"})
            assert text(reply) == f"{number}"
        after = await _asked(http, http_door)
    assert after["tools/call"] - before["tools/call"] == 11
    assert after.get("tools/list", 0) == before.get("tools/list", 0)


@through_comity
@pytest.mark.requirement("MCP-2.2-onlyone")
@pytest.mark.parametrize("transport_of_one", ["stdio", "own stdio", "http"])
async def test_trap_04_a_failure_on_the_way_is_a_result_and_tells_no_secret(
    transport_of_one: str, tmp_path: Path
) -> None:
    with reached("odd", transport_of_one, tmp_path) as dial:
        async with dial() as client:
            await initialize(client, {})
            response = await call(client, "die")
    assert response["result"]["isError"] is True
    assert "code" not in response["result"]
    told = json.dumps(response)
    assert "Traceback" not in told
    assert str(tmp_path) not in told
    assert str(Path.cwd()) not in told


@pytest.mark.requirement("MCP-4.1-result")
async def test_trap_05_extensions_of_the_server_reach_a_handshake_client(dial: Dial) -> None:
    async with dial() as client:
        initialized = await initialize(client, {})
    assert initialized["capabilities"]["extensions"] == {"vendor/odd": {"on": True}}


@through_comity
@pytest.mark.requirement("MCP-3.2-reply", "MCP-3.2-get", "MCP-3.2-session")
async def test_trap_06_a_server_that_answers_in_plain_json_keeps_its_back_channel(
    tmp_path: Path,
) -> None:
    with reached("odd", "http", tmp_path, "--json") as dial:
        async with dial() as client:
            assert isinstance(client, HttpClient)
            await initialize(client, {})
            await client.listen()
            assert client.session["mcp-session-id"]
            assert text(await call(client, "echo", text="plain")) == "plain"
            await client.notify("notifications/vendor.poke")
            async with asyncio.timeout(SECONDS):
                pushed = await client.standalone.get()
    assert pushed["method"] == odd.PUSHED


@pytest.mark.requirement("MCP-3.2-reply")
async def test_trap_06_a_server_asks_in_the_stream_of_the_call(dial: Dial) -> None:
    async with dial() as client:
        await initialize(client, {})
        client.answer = lambda frame: {"result": {"yes": True}}
        exchange = await _reuse_id(client)
    assert len(exchange.said("vendor/ask")) == 1
    assert json.loads(text(exchange.response)) == {"yes": True}


@through_comity
@pytest.mark.requirement("MCP-3.2-post")
@pytest.mark.parametrize("space", [b" ", b"\t", b"  \t "], ids=["space", "tab", "both"])
async def test_trap_07_white_space_around_a_header_is_not_part_of_it(
    http_door: str, space: bytes
) -> None:
    async with over_http(http_door) as client:
        await initialize(client, {})
        session = client.session["mcp-session-id"].encode()
        params: Frame = {"name": "echo", "arguments": {"text": "spacious"}}
        call: Frame = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        headers = {b"mcp-session-id": session, b"mcp-protocol-version": b"2025-11-25"}
        assert await _post_with_spaces(http_door, call, headers, space) == 200

        call["params"] = {**params, "_meta": META}
        headers = {b"mcp-protocol-version": b"2026-07-28", b"mcp-method": b"tools/call"}
        named = {**headers, b"mcp-name": b"echo"}
        assert await _post_with_spaces(http_door, call, named, space) == 200
        wrong = {**headers, b"mcp-name": b"ec ho"}
        assert await _post_with_spaces(http_door, call, wrong, space) == 400


@pytest.mark.requirement("MCP-2.1-id")
async def test_trap_08_the_ids_7_and_text_7_are_two_calls(dial: Dial) -> None:
    together = {"group": os.urandom(8).hex(), "together": 2}
    async with dial() as client:
        await initialize(client, {})
        number, word = await asyncio.gather(
            call(client, "echo", 7, text="number", **together),
            call(client, "echo", "7", text="word", **together),
        )
    assert (number["id"], text(number)) == (7, "number")
    assert (word["id"], text(word)) == ("7", "word")


@through_comity
@pytest.mark.requirement("MCP-2.1-id")
async def test_trap_08_a_repeated_id_never_brings_another_calls_answer(dial: Dial) -> None:
    together = {"group": os.urandom(8).hex(), "together": 2}
    async with dial() as client:
        await initialize(client, {})
        first = asyncio.ensure_future(call(client, "echo", 9, text="first", **together))
        again = asyncio.ensure_future(call(client, "echo", 9, text="again", **together))
        # Whether or not the repetition is refused, two calls of the group are open now.
        other = await call(client, "echo", 10, text="other", **together)
        assert text(other) == "other"
        for waiting, expected in ((first, "first"), (again, "again")):
            response = await waiting
            # An error may leave the id out: naming it would speak of the first call.
            refused = "error" in response and response["id"] in (9, None)
            assert refused or (response["id"] == 9 and text(response) == expected)
        assert "result" in first.result() or "result" in again.result()


@pytest.mark.requirement("MCP-2.1-id")
async def test_trap_08_no_id_is_used_twice_towards_the_server(dial: Dial) -> None:
    async with dial() as client:
        await initialize(client, {})
        calls = [call(client, "echo", name, text="x") for name in ("31", 31, "0", 0, -1, "a")]
        await asyncio.gather(*calls)
        names = json.loads(text(await call(client, "asked")))["names"]
    assert len(names) >= 7
    assert len({json.dumps(name) for name in names}) == len(names)


@pytest.mark.requirement("MCP-2.1-id")
async def test_trap_09_a_request_that_reuses_a_pending_id_is_not_its_response(dial: Dial) -> None:
    async with dial() as client:
        await initialize(client, {})
        client.answer = lambda frame: {"result": {"answers": frame["params"]}}
        exchange = await _reuse_id(client)
    (asked,) = exchange.said("vendor/ask")
    assert asked["params"] == {"reuses": True}
    assert json.loads(text(exchange.response)) == {"answers": {"reuses": True}}


@through_comity
@pytest.mark.requirement("MCP-3.1-spawn")
async def test_trap_10_a_server_sees_a_safe_environment_and_what_was_configured(
    tmp_path: Path,
) -> None:
    entry = {**by_hand("odd"), "env": {"ODD_WANTED": "wanted"}}
    with served_alone("odd", entry, tmp_path, COMITY_TEST_SECRET="not for servers") as url:
        async with over_http(url) as client:
            await initialize(client, {})
            environment = json.loads(text(await call(client, "environment")))
    assert environment["ODD_WANTED"] == "wanted"
    assert environment["PATH"] == os.environ["PATH"]
    assert "HOME" in environment
    assert "COMITY_TEST_SECRET" not in environment
    assert "not for servers" not in json.dumps(environment)


@pytest.mark.requirement("MCP-5.1-result")
async def test_trap_11_what_is_askew_is_relayed(dial: Dial) -> None:
    async with dial() as client:
        initialized = await initialize(client, {})
        assert initialized["serverInfo"] == odd.ASKEW_INFO
        assert odd.ASKEW_TOOL in (await client.request("tools/list", {})).result["tools"]
        for name, expected in odd.ASKEW_RESULTS.items():
            assert (await call(client, "askew", result=name))["result"] == expected, name
        assert (await call(client, "askew_error"))["error"] == odd.ASKEW_ERROR


async def test_trap_12_long_results_and_requests_cross(dial: Dial) -> None:
    long = "a" * (3 * MEBIBYTE)
    async with dial() as client:
        await initialize(client, {})
        assert len(text(await call(client, "big", size=2 * MEBIBYTE))) == 2 * MEBIBYTE
        assert text(await call(client, "echo", text=long)) == long


@through_comity
async def test_trap_12_a_request_beyond_the_limit_is_refused_and_the_session_lives(
    dial: Dial,
) -> None:
    async with dial() as client:
        assert isinstance(client, HttpClient)
        await initialize(client, {})
        params = {"name": "echo", "arguments": {"text": "a" * (16 * MEBIBYTE)}}
        frame = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        async with client.post(frame) as refused:
            assert refused.status == 413
        assert text(await call(client, "echo", text="alive")) == "alive"


@through_comity
@pytest.mark.requirement("MCP-3.1-newline")
async def test_trap_12_a_line_beyond_the_limit_fails_its_call_and_no_other_session(
    tmp_path: Path,
) -> None:
    with reached("odd", "own stdio", tmp_path) as dial:
        async with dial() as client, dial() as other:
            await initialize(client, {})
            await initialize(other, {})
            response = await call(client, "big", size=6 * MEBIBYTE)
            assert response["result"]["isError"] is True
            assert text(await call(other, "echo", text="alive")) == "alive"


async def _reuse_id(client: HandClient) -> Exchange:
    return await client.request("tools/call", {"name": "reuse_id", "arguments": {}})


async def _asked(http: aiohttp.ClientSession, url: str) -> dict[str, int]:
    return json.loads(text(await _modern_call(http, url, "asked", {})))["asked"]


async def _modern_call(http: aiohttp.ClientSession, url: str, tool: str, arguments: Frame) -> Frame:
    params = {"name": tool, "arguments": arguments, "_meta": META}
    frame = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }
    async with asyncio.timeout(SECONDS), http.post(url, json=frame, headers=headers) as reply:
        said = [said async for said in frames_of(reply)]
        return said[-1]


async def _post_with_spaces(
    url: str, frame: Frame, headers: dict[bytes, bytes], space: bytes
) -> int:
    """Post over a bare socket, because every HTTP client tidies its headers. Gives the status."""
    where = urlsplit(url)
    body = json.dumps(frame).encode()
    fixed = {
        b"host": where.netloc.encode(),
        b"content-type": b"application/json",
        b"accept": b"application/json, text/event-stream",
        b"content-length": str(len(body)).encode(),
        b"connection": b"close",
    }
    spacious = {name: space + value + space for name, value in headers.items()}
    lines = [name + b": " + value for name, value in {**fixed, **spacious}.items()]
    head = b"\r\n".join([b"POST " + where.path.encode() + b" HTTP/1.1", *lines, b"", b""])
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        async with asyncio.timeout(SECONDS):
            writer.write(head + body)
            return int((await reader.readline()).split()[1])
    finally:
        writer.close()
        await writer.wait_closed()
