"""The HTTP carrier against a server whose every byte is scripted."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from comity.adapters.upstream.http import HttpReach
from comity.adapters.upstream.pool import Pool
from comity.ports import Carrier
from comity.wire import jsonrpc
from comity.wire.jsonrpc import Limits
from comity.wire.mcp import STANDALONE, UNKNOWN, Era
from tests.adapters.hearer import SECONDS, Hearer
from tests.surfaces.upstream import Exchange, Upstream, scripted

NOTE = {"method": "notifications/message", "params": {"data": "told"}}
HELLO: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {}}


@dataclass
class Scene:
    """A scripted server, the carrier to it, and who hears what comes."""

    server: Upstream
    carrier: Carrier
    hearer: Hearer

    def ask(self, named: int, tool: str = "plain") -> None:
        frame = jsonrpc.request(named, "tools/call", {"name": tool})
        self.carrier.send(frame, named)

    async def greet(self) -> None:
        self.carrier.send(jsonrpc.request(1, "initialize", HELLO), 1)
        await self.hearer.answer(1)
        self.carrier.speaks("2025-11-25")


@asynccontextmanager
async def reaching(
    era: Era = Era.HANDSHAKE, limits: Limits | None = None, headers: dict[str, str] | None = None
) -> AsyncGenerator[Scene]:
    async with scripted(modern=era is Era.MODERN) as server:
        pool = Pool()
        reach = HttpReach(pool, server.url, headers or {}, limits or Limits())
        carrier, hearer = reach.carrier(era), Hearer()
        await carrier.open(hearer)
        try:
            yield Scene(server, carrier, hearer)
        finally:
            await carrier.close()
            await pool.close()


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with reaching() as scene:
        await scene.greet()
        yield scene


def forgetting(server: Upstream, *forgotten: str) -> None:
    """Have the server refuse the calls of these sessions."""

    @server.act("tools/call")
    async def call(exchange: Exchange) -> None:
        if exchange.headers["mcp-session-id"] in forgotten:
            await exchange.respond(404, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600}}')
        else:
            await exchange.text("done")


async def test_the_session_and_its_version_are_named_in_every_later_request(scene: Scene) -> None:
    first = scene.server.of("initialize")[0]
    assert "mcp-session-id" not in first.headers
    scene.ask(2)
    await scene.hearer.answer(2)
    sent = scene.server.of("tools/call")[0]
    assert sent.headers["mcp-session-id"] == "session-1"
    assert sent.headers["mcp-protocol-version"] == "2025-11-25"
    assert sent.headers["accept"] == "application/json, text/event-stream"


async def test_configured_headers_go_with_every_request() -> None:
    async with reaching(headers={"Authorization": "Bearer configured"}) as scene:
        await scene.greet()
        scene.carrier.listen()
        await scene.server.arrival("GET")
        await scene.carrier.close()
        await scene.server.arrival("DELETE")
        told = [each.headers.get("authorization") for each in scene.server.heard]
        assert told == ["Bearer configured"] * len(scene.server.heard)


async def test_what_comes_on_a_stream_is_heard_as_that_questions(scene: Scene) -> None:
    @scene.server.act("streams")
    async def streams(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(NOTE)
        await exchange.event({"id": exchange.id, "result": {}})
        exchange.hang_up()

    scene.ask(2, "streams")
    await scene.hearer.answer(2)
    assert [(frame.get("method"), on) for frame, on, _ in scene.hearer.messages[1:]] == [
        ("notifications/message", 2),
        (None, 2),
    ]
    assert scene.hearer.opened == [2]


async def test_what_comes_on_the_standing_stream_is_nobodys(scene: Scene) -> None:
    @scene.server.act("GET")
    async def stand(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(NOTE)
        await exchange.left()

    scene.carrier.listen()
    scene.carrier.listen()
    found = await scene.hearer.until(lambda: scene.hearer.messages[1:])
    assert [(frame["method"], on) for frame, on, _ in found] == [
        ("notifications/message", STANDALONE)
    ]
    assert len([each for each in scene.server.heard if each.verb == "GET"]) == 1


async def test_a_server_without_a_standing_stream_is_asked_for_it_once(scene: Scene) -> None:
    scene.carrier.listen()
    await scene.server.arrival("GET")
    scene.ask(2)
    await scene.hearer.answer(2)
    scene.carrier.listen()
    scene.ask(3)
    await scene.hearer.answer(3)
    assert len([each for each in scene.server.heard if each.verb == "GET"]) == 1


async def test_a_standing_stream_that_ended_is_taken_up_after_its_last_event(scene: Scene) -> None:
    @scene.server.act("GET")
    async def stand(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(NOTE, named="e-1", retry=1)
        exchange.hang_up()

    scene.carrier.listen()
    again = await scene.server.arrival("GET", 2)
    assert again.headers["last-event-id"] == "e-1"


async def test_a_standing_stream_that_breaks_in_garbage_is_opened_again(scene: Scene) -> None:
    async with reaching(limits=Limits(frame_bytes=1024)) as small:
        await small.greet()

        @small.server.act("GET")
        async def stand(exchange: Exchange) -> None:
            await exchange.stream()
            await exchange.event(None, named="e-2", retry=1)
            await exchange.say(b"data: " + b"x" * 8192 + b"\n\n")
            await exchange.left()

        small.carrier.listen()
        again = await small.server.arrival("GET", 2)
        assert again.headers["last-event-id"] == "e-2"


async def test_a_forgotten_session_is_opened_again_and_the_call_repeated_once(
    scene: Scene,
) -> None:
    forgetting(scene.server, "session-1")
    scene.ask(2)
    answer, status = await scene.hearer.answer(2)
    assert (answer["result"]["content"][0]["text"], status) == ("done", 200)
    calls = [each.headers["mcp-session-id"] for each in scene.server.of("tools/call")]
    assert calls == ["session-1", "session-2"]
    greetings = scene.server.of("initialize")
    assert greetings[0].frame == greetings[1].frame
    assert "mcp-session-id" not in greetings[1].headers
    told = scene.server.of("notifications/initialized")
    assert [each.headers["mcp-session-id"] for each in told] == ["session-2"]
    assert scene.hearer.renewals == 1


async def test_calls_refused_together_share_one_new_session(scene: Scene) -> None:
    forgetting(scene.server, "session-1")
    for named in (2, 3, 4):
        scene.ask(named)
    for named in (2, 3, 4):
        await scene.hearer.answer(named)
    assert len(scene.server.of("tools/call")) == 6
    assert scene.hearer.renewals == len(scene.server.of("initialize")) - 1


async def test_a_call_that_is_refused_in_the_new_session_too_fails(scene: Scene) -> None:
    forgetting(scene.server, "session-1", "session-2")
    scene.ask(2)
    _, status = await scene.hearer.answer(2)
    assert status == 404
    assert len(scene.server.of("tools/call")) == 2


async def test_a_session_that_could_not_be_opened_again_is_tried_at_the_next_call(
    scene: Scene,
) -> None:
    forgetting(scene.server, "session-1")

    @scene.server.act("initialize")
    async def busy(exchange: Exchange) -> None:
        await exchange.respond(503)

    scene.ask(2)
    assert "would not open another" in await scene.hearer.ending(2)
    assert scene.hearer.renewals == 0
    del scene.server.acts["initialize"]
    scene.ask(3)
    answer, _ = await scene.hearer.answer(3)
    assert answer["result"]["content"][0]["text"] == "done"


async def test_a_stream_that_ended_early_is_taken_up_by_its_last_event(scene: Scene) -> None:
    minted: list[Any] = []

    @scene.server.act("polls")
    async def polls(exchange: Exchange) -> None:
        minted.append(exchange.id)
        await exchange.stream()
        await exchange.event(None, named="p-1", retry=1)
        exchange.hang_up()

    @scene.server.act("GET")
    async def resume(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(NOTE, named="p-2")
        await exchange.event({"id": minted[0], "result": {"late": True}}, named="p-3")
        await exchange.left()

    scene.ask(2, "polls")
    answer, _ = await scene.hearer.answer(2)
    assert answer["result"] == {"late": True}
    assert scene.hearer.suspended == [2]
    (resumed,) = [each for each in scene.server.heard if each.verb == "GET"]
    assert resumed.headers["last-event-id"] == "p-1"
    assert resumed.headers["mcp-session-id"] == "session-1"
    assert len(scene.server.of("tools/call")) == 1


async def test_a_stream_is_not_taken_up_for_ever(scene: Scene) -> None:
    async def break_off(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(None, named="again", retry=1)
        exchange.hang_up()

    scene.server.act("breaks")(break_off)
    scene.server.act("GET")(break_off)
    scene.ask(2, "breaks")
    assert await scene.hearer.ending(2)
    assert len([each for each in scene.server.heard if each.verb == "GET"]) == 8


async def test_a_call_whose_stream_had_begun_is_never_sent_again(scene: Scene) -> None:
    """The session is forgotten between the stream and its resumption: the tool may have run."""

    @scene.server.act("runs")
    async def runs(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(None, named="r-1", retry=1)
        exchange.hang_up()

    @scene.server.act("GET")
    async def forgotten(exchange: Exchange) -> None:
        await exchange.respond(404)

    scene.ask(2, "runs")
    assert "404" in await scene.hearer.ending(2)
    assert len(scene.server.of("tools/call")) == 1


@pytest.mark.parametrize("named", ["\x01", "a\x7fb", "x" * 4000, "\u2028"])
async def test_an_event_id_that_no_header_can_repeat_ends_the_stream(
    scene: Scene, named: str
) -> None:
    @scene.server.act("odd")
    async def odd(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(None, named=named, retry=1)
        exchange.hang_up()

    scene.ask(2, "odd")
    assert await scene.hearer.ending(2)
    assert [each for each in scene.server.heard if each.verb == "GET"] == []


async def test_an_event_id_beyond_ascii_is_repeated_as_it_was(scene: Scene) -> None:
    @scene.server.act("odd")
    async def odd(exchange: Exchange) -> None:
        await exchange.stream()
        await exchange.event(None, named="\u2603", retry=1)
        exchange.hang_up()

    scene.ask(2, "odd")
    resumed = await scene.server.arrival("GET")
    assert resumed.headers["last-event-id"].encode("latin-1").decode() == "\u2603"


async def test_a_withdrawn_call_of_the_modern_era_closes_its_connection() -> None:
    async with reaching(Era.MODERN) as scene:
        left = asyncio.Event()

        @scene.server.act("long")
        async def long(exchange: Exchange) -> None:
            await exchange.left()
            left.set()

        scene.ask(2, "long")
        await scene.server.arrival("tools/call")
        scene.carrier.send(
            jsonrpc.notification("notifications/cancelled", {"requestId": 2}), UNKNOWN
        )
        scene.carrier.abandon(2)
        async with asyncio.timeout(SECONDS):
            await left.wait()
        assert scene.server.of("notifications/cancelled") == []


async def test_a_withdrawn_call_of_the_handshake_era_is_cancelled_in_words(scene: Scene) -> None:
    @scene.server.act("long")
    async def long(exchange: Exchange) -> None:
        await exchange.left()

    scene.ask(2, "long")
    await scene.server.arrival("tools/call")
    scene.carrier.send(jsonrpc.notification("notifications/cancelled", {"requestId": 2}), UNKNOWN)
    scene.carrier.abandon(2)
    told = await scene.server.arrival("notifications/cancelled")
    assert told.headers["mcp-session-id"] == "session-1"


async def test_closing_ends_the_session_and_waits_for_no_dead_server() -> None:
    async with reaching() as scene:
        await scene.greet()

        @scene.server.act("DELETE")
        async def never(exchange: Exchange) -> None:
            await exchange.left()

        async with asyncio.timeout(SECONDS):
            await scene.carrier.close()
            await scene.carrier.close()
        deleted = [each for each in scene.server.heard if each.verb == "DELETE"]
        assert [each.headers["mcp-session-id"] for each in deleted] == ["session-1"]


async def test_a_paused_stream_is_read_on_when_its_reader_is_ready(scene: Scene) -> None:
    @scene.server.act("much")
    async def much(exchange: Exchange) -> None:
        await exchange.stream()
        for _ in range(64):
            await exchange.event({**NOTE, "params": {"data": "x" * 65536}})
        await exchange.event({"id": exchange.id, "result": {}})
        exchange.hang_up()

    scene.ask(2, "much")
    await scene.hearer.until(lambda: scene.hearer.opened)
    scene.carrier.pause(2)
    paused_at = len(scene.hearer.messages)
    scene.ask(3)
    await scene.hearer.answer(3)
    assert len(scene.hearer.messages) < 64, "the stream was read on while it was paused"
    assert len(scene.hearer.messages) >= paused_at
    scene.carrier.resume(2)
    await scene.hearer.answer(2)


@pytest.mark.parametrize("words", ["Authorization: Bearer canary-in-a-header"])
async def test_no_configured_header_is_logged_or_told(
    words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    name, _, value = words.partition(": ")
    async with reaching(headers={name: value}) as scene:
        await scene.greet()

        @scene.server.act("fails")
        async def fails(exchange: Exchange) -> None:
            await exchange.respond(500, b"canary-free")

        scene.ask(2, "fails")
        ending = await scene.hearer.ending(2)
        assert "canary" not in ending + caplog.text + repr(scene.carrier)
