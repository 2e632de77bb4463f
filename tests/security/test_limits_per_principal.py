"""One principal at its limits takes nothing from another: sessions, streams, calls, places."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.admitted import INITIALIZE, Admitted, admitting
from tests.support.upstream import Exchange
from tests.support.visitor import MODERN, SECONDS, Frame, Reply, Visitor, request

FORM: Frame = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
ASKABLE: Frame = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}


@asynccontextmanager
async def two_principals(**chosen: Any) -> AsyncGenerator[tuple[Admitted, str, str]]:
    async with admitting(modern=False, tools=("plain", "asks"), **chosen) as scene:
        keys = [scene.given_out.give(party) for party in ("agent:hostile", "agent:good")]
        yield scene, keys[0], keys[1]


async def refusal(reply: Reply) -> tuple[int, Frame]:
    (frame,) = await reply.frames()
    return reply.status, frame["error"]


async def test_one_principal_cannot_take_all_sessions() -> None:
    bounds = {"limits_max_sessions": 50, "limits_max_sessions_per_principal": 40}
    async with two_principals(**bounds) as (scene, hostile, good):
        before = await scene.greeted(good)
        for _ in range(60):
            assert (await scene.come(hostile).post(INITIALIZE)).status == 200
        after = await scene.greeted(good)
        for each in (before, after):
            assert (await each.post(request(1, "ping"))).status == 200
        assert len(scene.visitor.parts.sessions) == 42


async def test_where_all_places_are_taken_the_largest_holder_makes_room() -> None:
    async with two_principals(limits_max_sessions=10) as (scene, hostile, good):
        for _ in range(30):
            assert (await scene.come(hostile).post(INITIALIZE)).status in (200, 503)
        visitor = await scene.greeted(good)
        assert (await visitor.post(request(1, "ping"))).status == 200


async def test_one_principal_has_so_many_streams() -> None:
    async with two_principals(limits_max_streams_per_principal=3) as (scene, hostile, good):
        visitors = [await scene.greeted(hostile) for _ in range(4)]
        streams = [await each.get() for each in visitors]
        assert [each.status for each in streams] == [200, 200, 200, 503]
        told = await streams[3].json()
        assert told["error"]["data"]["retry_after_ms"] == 1000
        assert streams[3].headers["retry-after"] == "1"
        old = await scene.come(hostile).send(
            "GET", scene.come(hostile).session.items(), path="/sse"
        )
        assert old.status == 503
        visitor = await scene.greeted(good)
        kept = await visitor.get()
        assert kept.status == 200
        for each in (*streams[:3], kept):
            each.leave()


async def test_one_principal_has_so_many_requests_in_flight() -> None:
    async with two_principals(limits_max_requests_per_principal=3) as (scene, hostile, good):
        go_on = asyncio.Event()

        @scene.server.act("plain")
        async def plain(exchange: Exchange) -> None:
            if exchange.frame["params"]["arguments"]:
                async with asyncio.timeout(SECONDS):
                    await go_on.wait()
            await exchange.text("done")

        visitor = await scene.greeted(hostile)

        async def call(who: Visitor, number: int, **arguments: object) -> Reply:
            params: Frame = {"name": "up__plain", "arguments": arguments}
            return await who.post(request(number, "tools/call", params))

        slow = [asyncio.ensure_future(call(visitor, n, slow=True)) for n in range(1, 4)]
        await scene.server.arrival("tools/call", 3)
        reply = await call(visitor, 4)
        (refused,) = await reply.frames()
        told = refused["result"]["_meta"]["dev.comity/refusal"]
        assert (refused["id"], refused["result"]["isError"]) == (4, True)
        assert (told["error_type"], told["retry_after_ms"]) == ("exhausted", 1000), told
        assert len(scene.server.of("tools/call")) == 3
        served = await call(await scene.greeted(good), 1)
        assert (await served.frames())[0]["result"]["content"][0]["text"] == "done"
        go_on.set()
        assert [(await each).status for each in slow] == [200, 200, 200]
        again = await call(visitor, 5)
        assert (await again.frames())[0]["result"]["content"][0]["text"] == "done"


async def test_one_principal_has_so_many_parked_calls() -> None:
    async with two_principals(limits_max_pending_input_per_principal=2) as (scene, hostile, good):

        @scene.server.act("asks")
        async def asks(exchange: Exchange) -> None:
            await exchange.stream()
            named = f"q{exchange.id}"
            await exchange.event({"id": named, "method": "elicitation/create", "params": FORM})
            await exchange.left()

        async def ask(key: str) -> Frame:
            visitor = scene.come(key, "/servers/up/mcp")
            params: Frame = {"name": "asks", "arguments": {}, "_meta": ASKABLE}
            headers = {"mcp-name": "asks", **visitor.session}
            reply = await visitor.ask_modern("tools/call", params, **headers)
            return (await reply.frames())[0]

        for _ in range(2):
            assert (await ask(hostile))["result"]["resultType"] == "input_required"
        beyond = asyncio.ensure_future(ask(hostile))
        await scene.server.arrival("tools/call", 3)
        assert (await ask(good))["result"]["resultType"] == "input_required"
        # Its question was refused, not its call, which its server never answers.
        (answer,) = [each for each in scene.server.heard if "error" in each.frame]
        assert "max_parked_per_principal" in json.dumps(answer.frame)
        beyond.cancel()
