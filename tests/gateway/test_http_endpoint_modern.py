"""Modern requests at the HTTP endpoint: envelope, headers, statuses, withdrawal."""

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from comity.app import gateway
from tests.support.commands import by_command, heard_by
from tests.support.upstream import Exchange, Upstream, encode, scripted
from tests.support.visitor import BOTH, ENVELOPE, MODERN, SECONDS, Visitor, at, request, visiting

NOTE = {"method": "notifications/message", "params": {"level": "info", "data": "told"}}


@dataclass
class Scene:
    """A scripted server of both eras, and a visitor at its door."""

    server: Upstream
    visitor: Visitor


@pytest.fixture(autouse=True)
def _an_attentive_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the gateway does once a second it does at once, and patience is short."""
    monkeypatch.setattr(gateway, "CHECK_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(gateway, "KEEP_ALIVE_SECONDS", 0.2)


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with scripted(modern=True) as server, visiting(at(server.url)) as visitor:
        yield Scene(server, visitor)


async def hang(exchange: Exchange) -> None:
    await exchange.left()


async def stream_and_hang(exchange: Exchange) -> None:
    await exchange.stream()
    await exchange.event(NOTE)
    await exchange.left()


async def test_a_request_is_answered_without_any_session(scene: Scene) -> None:
    reply = await scene.visitor.call_modern("plain", named="mine")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    assert "mcp-session-id" not in reply.headers
    assert (await reply.json())["id"] == "mine"
    assert len(scene.visitor.parts.sessions) == 0


async def test_only_the_headers_that_repeat_the_body_go_on(scene: Scene) -> None:
    strange = {"cookie": "a=b", "x-token": "mine", "referer": "http://10.0.0.1/"}
    params = {"mcp-param-region": "eu", "mcp-session-id": "stolen", "last-event-id": "1-1"}
    await scene.visitor.call_modern("plain", **strange, **params)
    (sent,) = scene.server.of("tools/call")
    assert sent.headers["mcp-method"] == "tools/call"
    assert sent.headers["mcp-name"] == "plain"
    assert sent.headers["mcp-param-region"] == "eu"
    assert sent.headers["mcp-protocol-version"] == MODERN
    assert not {*strange, "mcp-session-id", "last-event-id", "origin"} & set(sent.headers)
    assert sent.headers["host"] == scene.server.url.split("/")[2]


async def test_white_space_around_a_name_is_no_part_of_it(scene: Scene) -> None:
    reply = await scene.visitor.call_modern("plain", **{"mcp-name": "  plain \t"})
    assert reply.status == 200
    (sent,) = scene.server.of("tools/call")
    assert ("mcp-name", "plain") in sent.pairs


@pytest.mark.parametrize("name", ["mcp-protocol-version", "mcp-method", "mcp-name"])
async def test_a_routing_header_that_appears_twice_is_refused(scene: Scene, name: str) -> None:
    frame = request(1, "tools/call", {"name": "plain", "_meta": ENVELOPE})
    headers = [
        ("content-type", "application/json"),
        ("accept", BOTH),
        ("mcp-protocol-version", MODERN),
        ("mcp-method", "tools/call"),
        ("mcp-name", "plain"),
    ]
    twice = [*headers, next(pair for pair in headers if pair[0] == name)]
    reply = await scene.visitor.send("POST", twice, json.dumps(frame).encode())
    assert (reply.status, (await reply.json())["error"]["code"]) == (400, -32020)
    assert scene.server.of("tools/call") == []


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"mcp-method": "tools/list"}, -32020),
        ({"mcp-method": "TOOLS/CALL"}, -32020),
        ({"mcp-name": "other"}, -32020),
        ({"mcp-name": "Plain"}, -32020),
        ({"mcp-name": "=?base64?!!!?="}, -32020),
        ({"mcp-protocol-version": "2027-01-01"}, -32020),
    ],
)
async def test_headers_that_contradict_the_body_are_refused(
    scene: Scene, headers: dict[str, str], code: int
) -> None:
    reply = await scene.visitor.call_modern("plain", named="contradictory", **headers)
    answer = await reply.json()
    assert (reply.status, answer["error"]["code"], answer["id"]) == (400, code, "contradictory")
    assert scene.server.of("tools/call") == []


async def test_a_name_wrapped_in_base64_is_understood(scene: Scene) -> None:
    wrapped = {"mcp-name": "=?base64?d8O2cms=?="}
    reply = await scene.visitor.call_modern("w\u00f6rk", **wrapped)
    assert reply.status == 200
    (sent,) = scene.server.of("tools/call")
    assert sent.headers["mcp-name"] == "=?base64?d8O2cms=?="


async def test_a_version_that_nobody_speaks_is_answered_with_those_we_do(scene: Scene) -> None:
    strange = "2030-01-01"
    meta = {**ENVELOPE, "io.modelcontextprotocol/protocolVersion": strange}
    reply = await scene.visitor.ask_modern(
        "tools/list", {"_meta": meta}, **{"mcp-protocol-version": strange}
    )
    error = (await reply.json())["error"]
    assert (reply.status, error["code"]) == (400, -32022)
    assert (error["data"]["requested"], error["data"]["supported"]) == (strange, [MODERN])


async def test_initialize_opens_no_session_in_this_era(scene: Scene) -> None:
    reply = await scene.visitor.ask_modern("initialize")
    assert (reply.status, (await reply.json())["error"]["code"]) == (404, -32601)
    assert len(scene.visitor.parts.sessions) == 0


@pytest.mark.requirement("MCP-2.3-notif")
async def test_a_notification_is_taken_and_goes_nowhere(scene: Scene) -> None:
    headers = [("content-type", "application/json"), ("mcp-protocol-version", MODERN)]
    told = b'{"jsonrpc":"2.0","method":"notifications/custom"}'
    assert (await scene.visitor.send("POST", headers, told)).status == 202
    assert scene.server.of("notifications/custom") == []


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (-32700, 400),
        (-32600, 400),
        (-32602, 400),
        (-32020, 400),
        (-32021, 400),
        (-32022, 400),
        (-32601, 404),
        (-32603, 200),
        (-32000, 200),
        (42, 200),
    ],
)
@pytest.mark.requirement("MCP-5.1-protoerr")
async def test_the_code_of_an_error_decides_the_status(
    scene: Scene, code: int, status: int
) -> None:
    @scene.server.act("failing")
    async def fail(exchange: Exchange) -> None:
        error = {"code": code, "message": "no", "data": {"why": [1]}}
        await exchange.respond(200, encode({"id": exchange.id, "error": error}))

    reply = await scene.visitor.call_modern("failing", named=3)
    answer = await reply.json()
    assert (reply.status, answer["id"]) == (status, 3)
    assert answer["error"] == {"code": code, "message": "no", "data": {"why": [1]}}


async def test_a_stream_has_neither_ids_nor_waits(scene: Scene) -> None:
    @scene.server.act("two")
    async def two(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(NOTE)
        await exchange.event({"id": exchange.id, "result": {}})
        exchange.hang_up()

    events = await (await scene.visitor.call_modern("two")).events()
    assert [(event.id, event.retry) for event in events] == [(None, None)] * 2
    assert events[0].frame["params"]["data"] == "told"


async def test_a_silent_call_becomes_a_stream_with_signs_of_life(scene: Scene) -> None:
    go_on = asyncio.Event()

    @scene.server.act("slow")
    async def slow(exchange: Exchange) -> None:
        await go_on.wait()
        await exchange.text("at last")

    reply = await scene.visitor.call_modern("slow")
    assert reply.is_stream
    assert (await reply.event()).comment
    go_on.set()
    (answer,) = [event.frame for event in await reply.events() if event.data]
    assert answer["result"]["content"][0]["text"] == "at last"


@pytest.mark.requirement("MCP-4.4-cancelled")
@pytest.mark.parametrize("act", [hang, stream_and_hang])
async def test_closing_the_connection_withdraws_the_call(scene: Scene, act: Any) -> None:
    left = asyncio.Event()

    @scene.server.act("long")
    async def long(exchange: Exchange) -> None:
        await act(exchange)
        left.set()

    asking = asyncio.ensure_future(scene.visitor.call_modern("long"))
    await scene.server.arrival("tools/call")
    for peer in scene.visitor.place.peers:
        if act is stream_and_hang:
            await (await asking).event()
        peer.writer.transport.abort()
    async with asyncio.timeout(SECONDS):
        await left.wait()
    await asyncio.gather(asking, return_exceptions=True)
    assert scene.server.of("notifications/cancelled") == []
    assert len(scene.visitor.parts.active_calls) == 0


@pytest.mark.requirement("MCP-4.4-cancelled")
async def test_closing_the_connection_cancels_the_call_of_a_stdio_server() -> None:
    async with visiting(by_command()) as visitor:
        asking = asyncio.ensure_future(visitor.call_modern("hang"))
        hanging = None
        while not visitor.place.peers:
            await asyncio.sleep(0)
        async with asyncio.timeout(SECONDS):
            while hanging is None:
                heard = await heard_by(visitor)
                named = {f["id"]: f.get("params", {}).get("name") for f in heard if "id" in f}
                hanging = next((each for each in named if named[each] == "hang"), None)
        visitor.place.peers[0].writer.transport.abort()
        await asyncio.gather(asking, return_exceptions=True)
        cancelled: list[Any] = []
        async with asyncio.timeout(SECONDS):
            while not cancelled:
                heard = await heard_by(visitor)
                cancelled = [f for f in heard if f["method"] == "notifications/cancelled"]
        assert [frame["params"]["requestId"] for frame in cancelled] == [hanging]


async def test_a_stream_that_the_server_breaks_off_is_an_error_at_once(scene: Scene) -> None:
    """There is no resumption in this era, whatever ids a server gives its events."""

    @scene.server.act("broken")
    async def broken(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(NOTE, named="17", retry=60_000)
        exchange.hang_up()

    frames = await (await scene.visitor.call_modern("broken", named=9)).frames()
    assert [frame.get("method") for frame in frames[:-1]] == ["notifications/message"]
    assert (frames[-1]["id"], frames[-1]["result"]["isError"]) == (9, True)
    assert [each for each in scene.server.heard if "last-event-id" in each.headers] == []


@pytest.mark.parametrize("path", ["/servers/up/mcp", "/mcp"])
async def test_listening_has_no_deadline_and_shows_signs_of_life(
    path: str,
) -> None:
    async with scripted(modern=True) as server:

        @server.act("subscriptions/listen")
        async def listen(exchange: Exchange) -> None:
            await exchange.stream()
            stamp = {"io.modelcontextprotocol/subscriptionId": exchange.id}
            params = {"notifications": {}, "_meta": stamp}
            method = "notifications/subscriptions/acknowledged"
            await exchange.event({"method": method, "params": params})
            await exchange.left()

        quick = timedelta(milliseconds=50)
        async with visiting(
            at(server.url), limits_call_idle_timeout=quick, limits_call_total_timeout=quick
        ) as visitor:
            visitor.path = path
            params = {"_meta": ENVELOPE, "notifications": {"toolsListChanged": True}}
            reply = await visitor.ask_modern("subscriptions/listen", params, named="L")
            first = await reply.event()
            assert first.frame["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": "L"}
            signs = 0
            while signs < 3:
                event = await reply.event()
                signs += event.comment is not None
                assert not event.data or "error" not in event.frame
