"""The transports, seen from both of Comity's sides: as a server, and as a client of servers."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
import pytest
from mcp import Client
from mcp.client.sse import sse_client

from comity.cli.gateway_records import find_gateway_by_url
from tests.conformance.conftest import standing
from tests.conformance.ways import Frame, House, Talk, on_pipes, on_port
from tests.interop.hand_client import SECONDS, HttpClient, frames_of
from tests.interop.processes import http_server

MULTILINE: Frame = {"text": "one\ntwo\r\nthree\u2028four", "key\nwith": ["a", {"b": "\n"}]}


@dataclass(frozen=True)
class Tapped:
    """Comity before servers that write down what they are sent."""

    house: House
    log: Path
    upstream: str

    def lines(self) -> list[bytes]:
        """Every line that the process was sent, as it came."""
        noted = self.log.read_text().splitlines()
        return [bytes.fromhex(line) for line in noted if not line.startswith(("begun", "end"))]

    async def record(self) -> list[Frame]:
        """Every request that the HTTP server was sent."""
        async with aiohttp.ClientSession() as http, http.get(f"{self.upstream}/record") as reply:
            return await reply.json()


@pytest.fixture(scope="module")
def tapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tapped]:
    log = tmp_path_factory.mktemp("tapped") / "wiretap"
    with http_server(on_port("recorder"), {"TALKER_NAME": "far", "PRETTY": "1"}) as pretty:
        servers = {
            "tapped": on_pipes("wiretap", WIRETAP=str(log)),
            "pretty": {"type": "http", "url": f"{pretty}/mcp"},
        }
        with standing(tmp_path_factory.mktemp("house"), servers) as house:
            yield Tapped(house, log, pretty)


@pytest.mark.requirement("MCP-3.1-spawn")
async def test_a_server_on_pipes_is_a_process_that_comity_began(tapped: Tapped) -> None:
    begun, _, parent, _, own = tapped.log.read_text().splitlines()[0].split(" ")[:5]
    assert begun == "begun"
    server = psutil.Process(int(own))
    assert server.ppid() == int(parent)
    # Between the two stands the guard, who ends the server should the gateway be killed.
    gateway = find_gateway_by_url(tapped.house.origin)
    assert gateway is not None
    assert gateway.pid in [each.pid for each in server.parents()]


@pytest.mark.requirement("MCP-3.1-newline", "MCP-3.1-stdin")
async def test_a_process_is_sent_one_message_a_line_and_nothing_else(tapped: Tapped) -> None:
    """Also when a client spreads its message over many lines, as it may over HTTP."""
    async with tapped.house.own("tapped").talk() as talk:
        assert isinstance(talk.client, HttpClient)
        params: Frame = {"name": "echo", "arguments": MULTILINE}
        call: Frame = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
        body = json.dumps(call, indent=2).replace("\n", "\r\n").encode()
        headers = {"accept": "application/json, text/event-stream"}
        headers |= {"content-type": "application/json", **talk.client.session}
        async with (
            aiohttp.ClientSession() as http,
            http.post(tapped.house.door("tapped"), data=body, headers=headers) as reply,
        ):
            answered = [frame async for frame in frames_of(reply)][-1]
    assert json.loads(answered["result"]["content"][0]["text"]) == MULTILINE
    lines = tapped.lines()
    assert len(lines) > 3
    for line in lines:
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert b"\r" not in line
        frame = json.loads(line)
        assert frame["jsonrpc"] == "2.0"
        assert "method" in frame
    assert json.loads(lines[-1])["params"]["arguments"] == MULTILINE


@pytest.mark.requirement("MCP-3.1-newline", "MCP-3.1-stdout")
async def test_on_its_own_pipe_comity_writes_one_message_a_line(tapped: Tapped) -> None:
    """The server behind it spreads its answers over lines, and the hand client reads lines."""
    async with tapped.house.by_pipe("pretty").talk() as talk:
        called = await talk.call("echo", MULTILINE)
        noisy = await talk.client.request("tools/call", {"name": "tapped__echo", "arguments": {}})
    assert called.result["structuredContent"]["given"] == MULTILINE
    assert noisy.result["content"] == [{"type": "text", "text": "{}"}]


@pytest.mark.requirement("MCP-3.1-stderr")
async def test_what_a_server_logs_on_stderr_neither_stops_it_nor_reaches_a_client(
    tapped: Tapped,
) -> None:
    async with tapped.house.own("tapped").talk() as talk:
        for number in range(5):
            exchange = await talk.call("echo", {"number": number})
            assert len(exchange.frames) == 1
            assert exchange.result["content"][0]["text"] == json.dumps({"number": number})


@pytest.mark.requirement("MCP-3.2-post", "MCP-3.2-sessionecho", "MCP-3.2-endpoint")
async def test_a_server_over_http_is_spoken_to_at_one_place_in_one_session(tapped: Tapped) -> None:
    async with tapped.house.own("pretty").talk() as talk:
        await talk.listen()
        await talk.call("echo")
        await talk.client.notify("notifications/roots/list_changed")
        seen = await talk.seen()
    assert seen[0]["method"] == "initialize"
    record = await tapped.record()
    assert {one["path"] for one in record} == {"/mcp"}
    posts = [one["headers"] for one in record if one["method"] == "POST"]
    for headers in posts:
        assert headers["content-type"] == "application/json"
        assert {"application/json", "text/event-stream"} <= {
            kind.strip() for kind in headers["accept"].split(",")
        }
    # Only a greeting, and a request of the era that knows no sessions, comes without one.
    for headers in posts:
        if headers.get("mcp-protocol-version") == "2025-11-25":
            assert headers["mcp-session-id"]


@pytest.mark.requirement("MCP-4.3-http", "MCP-4.3-noshutdown")
async def test_the_end_of_a_session_is_told_to_its_server_by_the_transport(tapped: Tapped) -> None:
    async with tapped.house.own("pretty").talk() as talk:
        seen = await talk.seen()
        before = [one for one in await tapped.record() if one["method"] == "DELETE"]
    async with asyncio.timeout(SECONDS):
        while len(ended := [r for r in await tapped.record() if r["method"] == "DELETE"]) <= len(
            before
        ):
            await asyncio.sleep(0.02)
    assert ended[-1]["headers"]["mcp-session-id"]
    assert not any("shutdown" in frame["method"] or "exit" in frame["method"] for frame in seen)


@pytest.mark.requirement("MCP-3.2-endpoint", "MCP-3.2-post", "MCP-3.2-get", "MCP-3.2-session")
@pytest.mark.parametrize("path", ["/mcp", "/servers/near/mcp", "/servers/far/mcp"])
async def test_one_endpoint_serves_every_method_of_a_session(house: House, path: str) -> None:
    url = house.origin + path
    hello: Frame = {"protocolVersion": "2025-11-25", "capabilities": {}}
    hello["clientInfo"] = {"name": "raw", "version": "1"}
    accept = {"accept": "application/json, text/event-stream"}
    async with aiohttp.ClientSession(headers=accept) as http:
        begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        async with http.post(url, json=begin) as reply:
            session = {"mcp-session-id": reply.headers["mcp-session-id"]}
            assert session["mcp-session-id"].isascii()
            assert session["mcp-session-id"].isprintable()
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        async with http.post(url, json=ping, headers=session) as reply:
            assert reply.status == 200
        async with http.get(url, headers=session) as reply:
            assert (reply.status, reply.content_type) == (200, "text/event-stream")
        async with http.post(url, json=ping) as reply:
            assert reply.status == 400
        async with http.delete(url, headers=session) as reply:
            assert reply.status == 200
        async with http.post(url, json=ping, headers=session) as reply:
            assert reply.status == 404


@pytest.mark.requirement("MCP-3.2-reply")
async def test_a_reply_is_one_json_response_or_a_stream_that_ends_with_it(house: House) -> None:
    notices = [{"method": "notifications/talker.one"}, {"method": "notifications/talker.two"}]
    async with house.among_all("near").talk() as talk:
        assert isinstance(talk.client, HttpClient)
        kinds: list[str] = []
        for tool, arguments in (("echo", {}), ("tell", {"notices": notices})):
            params: Frame = {"name": f"near__{tool}", "arguments": arguments}
            call: Frame = {"jsonrpc": "2.0", "id": tool, "method": "tools/call", "params": params}
            async with asyncio.timeout(SECONDS), talk.client.post(call) as reply:
                kinds.append(reply.content_type)
                frames = [frame async for frame in frames_of(reply)]
            assert frames[-1]["id"] == tool
            assert all("id" not in frame for frame in frames[:-1])
    assert kinds == ["application/json", "text/event-stream"]
    assert len(frames) == 3


@pytest.mark.requirement("MCP-3.2-resume")
async def test_a_standing_stream_is_taken_up_after_the_last_event_that_was_read(
    house: House,
) -> None:
    async with house.own("far").talk() as talk:
        assert isinstance(talk.client, HttpClient)
        async with _stream(talk, house.door("far"), "") as reply:
            await _push(talk, 1)
            last, read = await _one_event(reply)
        assert read["params"] == {"n": 1}
        # The connection is broken now; what is said meanwhile waits.
        await _push(talk, 2)
        await _push(talk, 3)
        async with _stream(talk, house.door("far"), last) as reply:
            missed = [(await _one_event(reply))[1]["params"] for _ in range(2)]
        # And once more, as if the client had lost them after they were sent.
        async with _stream(talk, house.door("far"), last) as reply:
            again = [(await _one_event(reply))[1]["params"] for _ in range(2)]
    assert missed == again == [{"n": 2}, {"n": 3}]


@pytest.mark.requirement("MCP-3.2-resume")
@pytest.mark.parametrize("server", ["near", "far"])
async def test_a_call_whose_stream_broke_is_taken_up_and_its_answer_comes(
    house: House, server: str
) -> None:
    async with house.own(server).talk() as talk:
        assert isinstance(talk.client, HttpClient)
        params: Frame = {"name": "wait", "arguments": {}}
        call: Frame = {"jsonrpc": "2.0", "id": "broken", "method": "tools/call", "params": params}
        async with asyncio.timeout(SECONDS), talk.client.post(call) as reply:
            last, said = await _one_event(reply)
            assert said["method"] == "notifications/talker.waiting"
        await talk.client.notify("notifications/talker.go")
        async with _stream(talk, house.door(server), last) as reply:
            _, answered = await _one_event(reply)
    assert answered["id"] == "broken"
    assert answered["result"]["content"][0]["text"] == "went"


@pytest.mark.requirement("MCP-3.3-legacy")
@pytest.mark.parametrize("folder", ["", "/servers/near", "/servers/far"])
async def test_an_old_client_uses_the_two_endpoints_of_the_old_transport(
    house: House, folder: str
) -> None:
    """With the official SDK as the old client."""
    prefix = "" if folder else "far__"
    async with (
        asyncio.timeout(SECONDS),
        Client(sse_client(f"{house.origin}{folder}/sse"), mode="legacy") as client,
    ):
        listed = await client.list_tools()
        called = await client.call_tool(f"{prefix}echo", {"old": True})
    assert f"{prefix}get_weather" in [tool.name for tool in listed.tools]
    assert called.structured_content is not None
    assert called.structured_content["given"] == {"old": True}


@asynccontextmanager
async def _stream(talk: Talk, url: str, last: str) -> AsyncGenerator[aiohttp.ClientResponse]:
    assert isinstance(talk.client, HttpClient)
    headers = {"accept": "text/event-stream", **talk.client.session}
    if last:
        headers["last-event-id"] = last
    async with (
        aiohttp.ClientSession() as http,
        asyncio.timeout(SECONDS),
        http.get(url, headers=headers) as reply,
    ):
        assert reply.status == 200
        yield reply


async def _one_event(reply: aiohttp.ClientResponse) -> tuple[str, Frame]:
    """The id and the message of the next event that brings one."""
    name = ""
    async for raw in reply.content:
        line = raw.decode().rstrip("\r\n")
        if line.startswith("id:"):
            name = line.removeprefix("id:").strip()
        elif line.startswith("data:") and (data := line.removeprefix("data:").strip()):
            return name, json.loads(data)
    raise ConnectionError("the stream ended")


async def _push(talk: Talk, number: int) -> None:
    """Have the server say something out of any call."""
    notice = {"method": "notifications/talker.push", "params": {"n": number}}
    await talk.call("tell", {"notices": [notice], "standalone": True})
