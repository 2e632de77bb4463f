"""Messages of JSON-RPC, and the transports from both sides. (MCP §2, §3)"""

import asyncio
import itertools
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

from comity.cli.api_client import find_gateway_by_url
from tests.conformance.conftest import standing
from tests.conformance.servers.talker_words import GO
from tests.conformance.ways import COMITY, Entry, Frame, House, Talk, Way, on_pipes, on_port
from tests.interop.hand_client import NOTHING, SECONDS, HttpClient, frames_of
from tests.interop.processes import http_server

HEADERS = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
HELLO: Frame = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "raw", "version": "1"},
}
_numbers = itertools.count(1)

NOT_JSON = [b"", b"{", b"not json", b'{"jsonrpc": "2.0", "id": 1, "method": "ping"', b'"\xff"']
NOT_A_REQUEST: list[object] = [
    [],
    7,
    {},
    {"jsonrpc": "1.0", "id": 1, "method": "ping"},
    {"id": 1, "method": "ping"},
    {"jsonrpc": 2.0, "id": 1, "method": "ping"},
    {"jsonrpc": "2.0", "id": 1, "method": 7},
    {"jsonrpc": "2.0", "id": None, "method": "ping"},
    {"jsonrpc": "2.0", "id": 1.5, "method": "ping"},
    {"jsonrpc": "2.0", "id": True, "method": "ping"},
    {"jsonrpc": "2.0", "id": {"a": 1}, "method": "ping"},
    {"jsonrpc": "2.0", "id": 1},
    {"jsonrpc": "2.0", "id": 1, "result": {}, "error": {"code": 1, "message": "both"}},
]


async def posted(client: HttpClient, url: str, body: bytes) -> tuple[int, Frame]:
    async with (
        aiohttp.ClientSession() as http,
        asyncio.timeout(SECONDS),
        http.post(url, data=body, headers={**HEADERS, **client.session}) as reply,
    ):
        return reply.status, [frame async for frame in frames_of(reply)][-1]


@pytest.fixture(params=["near", "merged"])
def url(house: House, request: pytest.FixtureRequest) -> str:
    return house.merged if request.param == "merged" else house.door(request.param)


@pytest.mark.requirement("MCP-2.2-32700", "MCP-2.2-onlyone")
@pytest.mark.parametrize("body", NOT_JSON)
async def test_what_is_not_json_is_a_parse_error(house: House, url: str, body: bytes) -> None:
    async with house.own("near").talk() as talk, house.among_all("near").talk() as merged:
        session = talk if "servers" in url else merged
        assert isinstance(session.client, HttpClient)
        status, answer = await posted(session.client, url, body)
        assert (await session.call("echo")).result
    assert status == 400
    assert answer.keys() == {"jsonrpc", "id", "error"}
    assert (answer["jsonrpc"], answer["id"], answer["error"]["code"]) == ("2.0", None, -32700)


@pytest.mark.requirement("MCP-2.2-32600", "MCP-2.1-jsonrpc", "MCP-2.1-id")
@pytest.mark.requirement("MCP-2.2-onlyone")
async def test_what_is_no_message_is_an_invalid_request(house: House) -> None:
    async with house.own("near").talk() as talk:
        assert isinstance(talk.client, HttpClient)
        for message in NOT_A_REQUEST:
            body = json.dumps(message).encode()
            status, answer = await posted(talk.client, house.door("near"), body)
            assert (status, answer["error"]["code"]) == (400, -32600), message
        before = await talk.seen()
    # Nothing of it went on to the server.
    assert all(frame["jsonrpc"] == "2.0" for frame in before)


@pytest.mark.requirement("MCP-4.1-nobatch", "MCP-2.2-32600")
async def test_a_batch_is_refused_also_one_with_initialize_in_it(house: House, url: str) -> None:
    batch: list[Frame] = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    ]
    async with (
        aiohttp.ClientSession() as http,
        http.post(url, data=json.dumps(batch), headers=HEADERS) as reply,
    ):
        assert reply.status == 400
        assert "mcp-session-id" not in reply.headers
        assert (await reply.json())["error"]["code"] == -32600


@pytest.mark.requirement("MCP-2.2-32601", "MCP-2.2-32602")
async def test_unknown_methods_and_invalid_params_have_their_codes(any_way: Way) -> None:
    async with any_way.talk() as talk:
        answered = await talk.client.request("no/such/method", {})
        assert answered.response["error"]["code"] == -32601
        if any_way.prefix:
            for cursor in (7, "made up", ""):
                answered = await talk.client.request("tools/list", {"cursor": cursor})
                assert answered.response["error"]["code"] == -32602


@pytest.mark.requirement("MCP-2.2-32603", "MCP-2.2-onlyone")
async def test_a_server_that_is_not_there_is_an_internal_error(tmp_path: Path) -> None:
    absent: Entry = {"command": "no-such-program"}
    with standing(tmp_path, {"absent": absent}) as house:
        async with house.own("absent").dial() as client:
            answer = (await client.request("initialize", HELLO)).response
    assert answer.keys() == {"jsonrpc", "id", "error"}
    assert answer["error"]["code"] == -32603
    assert answer["error"]["data"]["error_type"] == "server_not_ready"


@pytest.mark.requirement("MCP-2.2-onlyone")
async def test_a_call_in_which_its_server_dies_has_one_answer_that_says_so(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    servers = {"mortal": on_pipes("talker", TALKER_NAME="mortal")}
    with standing(tmp_path_factory.mktemp("mortal"), servers) as house:
        for way in (house.own("mortal"), house.among_all("mortal")):
            async with way.talk() as talk:
                died = (await talk.call("die")).response
            assert died.keys() == {"jsonrpc", "id", "result"}
            refusal = died["result"]["_meta"]["dev.comity/refusal"]
            assert (died["result"]["isError"], refusal["error_type"]) == (True, "upstream_failed")
            assert refusal["details"] == {"outcome": "unknown"}
            await _until_alive(way)


async def _until_alive(way: Way) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            async with way.dial() as client:
                await client.request("initialize", HELLO)
                params: Frame = {"name": way.name("echo"), "arguments": {}}
                try:
                    if "result" in (await client.request("tools/call", params)).response:
                        return
                except (AssertionError, ConnectionError):
                    continue


@pytest.mark.requirement("MCP-2.1-id")
@pytest.mark.parametrize("name", [0, -1, 7, "7", "", "ünïcode", 2**53 - 1], ids=json.dumps)
async def test_an_answer_bears_the_id_of_its_request_to_the_letter(way: Way, name: object) -> None:
    async with way.talk() as talk:
        answered = (await talk.call("echo", named=name)).response
    assert (type(answered["id"]), answered["id"]) == (type(name), name)


@pytest.mark.requirement("MCP-2.1-id", "MCP-2.1-jsonrpc")
async def test_a_server_never_sees_an_id_twice_whatever_clients_choose(way: Way) -> None:
    async with way.talk() as one, way.talk() as other:
        await asyncio.gather(*(talk.call("echo", named="same") for talk in (one, other)))
        await one.call("echo", named="same")
        for talk in (one, other):
            seen = await talk.seen()
            asked = [frame["id"] for frame in seen if "id" in frame]
            assert len(asked) == len(set(asked))
            assert all(type(name) is int for name in asked)
            assert {frame["jsonrpc"] for frame in seen} == {"2.0"}


@pytest.mark.requirement("MCP-2.1-params")
@pytest.mark.parametrize(
    "params",
    [pytest.param(NOTHING, id="nothing"), {}, {"a": 1}, [], [1, "two"]],
)
@pytest.mark.parametrize("server", ["near", "far"])
async def test_params_may_be_absent_an_object_or_a_list(
    house: House, server: str, params: object
) -> None:
    method = f"notifications/talker.note.{next(_numbers)}"
    # What an extension adds reaches only a connection that no other principal uses. A client that
    # declares an extension gets one.
    async with house.own(server).talk({"talker": {"notes": True}}) as talk:
        await talk.client.notify(method, params)
        async with asyncio.timeout(SECONDS):
            while not (seen := [one for one in await talk.seen() if one["method"] == method]):
                await asyncio.sleep(0.02)
    expected: Frame = {"jsonrpc": "2.0", "method": method}
    assert seen == [expected if params is NOTHING else {**expected, "params": params}]


@pytest.mark.requirement("MCP-2.2-onlyone")
@pytest.mark.parametrize(
    "members",
    [
        {"result": {}, "error": {"code": 1, "message": "both"}},
        {},
        {"jsonrpc": "1.0", "result": {}},
    ],
    ids=json.dumps,
)
async def test_a_broken_answer_of_a_server_becomes_one_proper_answer(
    way: Way, members: Frame
) -> None:
    async with way.talk() as talk:
        answered = (await talk.call("answer", {"members": members})).response
        assert (await talk.call("echo")).result
    assert answered.keys() == {"jsonrpc", "id", "result"}
    assert answered["jsonrpc"] == "2.0"
    assert answered["result"]["isError"] is True
    assert answered["result"]["content"][0]["text"]


@pytest.mark.requirement("MCP-2.3-notif")
async def test_a_notification_is_taken_without_an_answer(house: House, url: str) -> None:
    way = house.own("near") if "servers" in url else house.among_all("near")
    async with way.talk() as talk:
        assert isinstance(talk.client, HttpClient)
        for method in ("notifications/roots/list_changed", "notifications/unknown"):
            async with talk.client.post({"jsonrpc": "2.0", "method": method}) as reply:
                assert (reply.status, await reply.read()) == (202, b"")


@pytest.mark.requirement("MCP-2.3-notif")
async def test_a_notification_of_a_server_is_passed_on_and_never_answered(way: Way) -> None:
    notices = [{"method": f"notifications/talker.{n}", "params": {"n": n}} for n in range(3)]
    async with way.talk() as talk:
        before = len(await talk.seen())
        exchange = await talk.call("tell", {"notices": notices})
        after = (await talk.seen())[before:]
    assert exchange.frames[:-1] == [{"jsonrpc": "2.0", **notice} for notice in notices]
    assert [frame["method"] for frame in after] == ["tools/call", "tools/call"]


@pytest.mark.requirement("MCP-2.2-32700", "MCP-2.2-32600", "MCP-2.3-notif", "MCP-3.1-stdout")
async def test_on_a_pipe_every_line_is_a_message_and_every_broken_one_is_answered(
    house: House,
) -> None:
    lines: list[bytes] = [
        b"not json",
        b"[]",
        b'{"jsonrpc":"2.0","method":"notifications/unknown"}',
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}).encode(),
        b'{"jsonrpc":"2.0","id":"last","method":"ping"}',
    ]
    process = await asyncio.create_subprocess_exec(
        COMITY,
        "serve",
        "-c",
        str(house.config),
        "--stdio",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"\n".join(lines) + b"\n")
    said: list[Frame] = []
    async with asyncio.timeout(SECONDS):
        while not said or said[-1].get("id") != "last":
            said.append(json.loads(await process.stdout.readline()))
        process.stdin.close()
        rest = await process.stdout.read()
        status = await process.wait()
    assert [frame.get("error", {}).get("code") for frame in said[:2]] == [-32700, -32600]
    assert [frame["id"] for frame in said[2:]] == [1, "last"]
    assert (rest, status) == (b"", 0)


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
        await talk.client.notify(GO)
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
