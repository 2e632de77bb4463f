"""Messages of JSON-RPC: their form in both directions, and what is said to a broken one."""

import asyncio
import itertools
import json
from pathlib import Path

import aiohttp
import pytest

from tests.conformance.conftest import standing
from tests.conformance.ways import COMITY, Entry, Frame, House, Way, on_pipes
from tests.interop.hand_client import NOTHING, SECONDS, HttpClient, frames_of

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
@pytest.mark.parametrize("message", NOT_A_REQUEST, ids=json.dumps)
async def test_what_is_no_message_is_an_invalid_request(house: House, message: object) -> None:
    async with house.own("near").talk() as talk:
        assert isinstance(talk.client, HttpClient)
        url = house.door("near")
        status, answer = await posted(talk.client, url, json.dumps(message).encode())
        before = await talk.seen()
    assert status == 400
    assert answer["error"]["code"] == -32600
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


@pytest.mark.requirement("MCP-2.2-32601")
async def test_a_method_that_nobody_knows_is_not_found(any_way: Way) -> None:
    async with any_way.talk() as talk:
        answered = await talk.client.request("no/such/method", {})
    assert answered.response["error"]["code"] == -32601


@pytest.mark.requirement("MCP-2.2-32602")
@pytest.mark.parametrize("params", [{"cursor": 7}, {"cursor": "made up"}, {"cursor": ""}])
async def test_params_that_cannot_be_are_invalid(house: House, params: Frame) -> None:
    async with house.among_all("near").talk() as talk:
        answered = await talk.client.request("tools/list", params)
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
    async with house.own(server).talk() as talk:
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
