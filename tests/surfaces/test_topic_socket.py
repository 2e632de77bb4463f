"""The door of topics: who is let in, how a connection lives, and how it ends. (MCPx §6.2, §6.3)"""

from collections.abc import AsyncGenerator

import pytest

from comity.config.rooms import RoomSettings
from comity.wire.parties import LOCAL
from tests.surfaces.credentials import bearer
from tests.surfaces.topic_scene import (
    ANA,
    BEA,
    CI,
    FULL,
    OPS,
    Member,
    Scene,
    gathering,
)


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with gathering() as scene:
        yield scene


# Who is let in


@pytest.mark.requirement(
    "MCPX-6.2-connect", "MCPX-6.2-bearer", "MCPX-6.2-map", "MCPX-8.1-wsserver", "MCPX-3-from"
)
async def test_who_shows_a_key_is_the_party_that_it_was_given_to(scene: Scene) -> None:
    await scene.grants(CI, "chat")
    ci = await scene.joins(CI)
    assert (await ci.hears())["payload"]["you"]["id"] == CI
    for shown in ("Bearer comity_key_nobody_knows", "Bearer x", "Basic eDp5", "Bearer "):
        status, told = await scene.is_sent_away("", headers={"authorization": shown})
        assert status == 401
        assert told["error"]["data"]["error_type"] == "unauthenticated"


@pytest.mark.requirement("MCPX-6.2-bearer")
async def test_a_browser_shows_its_token_as_a_subprotocol(scene: Scene) -> None:
    await scene.grants(CI, "chat")
    offered = ["mcpx.v0.1", f"bearer.{await scene.key_of(CI)}"]
    socket = await scene.connects({"topic": OPS}, subprotocols=offered)
    assert socket.subprotocol == "mcpx.v0.1"
    ci = Member(CI, socket)
    assert (await ci.hears())["payload"]["you"]["id"] == CI
    assert await ci.says() == (await ci.hears_kind("chat"))["id"]
    await ci.leaves()
    status, _ = await scene.is_sent_away("", subprotocols=["mcpx.v0.1", "bearer.comity_key_x"])
    assert status == 401


async def test_what_is_asked_amiss_is_refused_as_http(scene: Scene) -> None:
    await scene.grants(CI, "chat")
    amiss: list[dict[str, str]] = [
        *({"topic": each} for each in ("", "../etc", "a b", "x" * 65)),
        *({"topic": OPS, "mode": each} for each in ("some", "ALL")),
        *({}, {"topic": OPS, "as": "worker"}),
    ]
    for query in amiss:
        status, told = await scene.is_sent_away(CI, query)
        assert status == 400, query
        assert told["error"]["message"]
    assert (await scene.is_sent_away(CI, {"topic": "unknown"}))[0] == 403


async def test_each_part_of_the_query_stands_once_and_it_is_short(scene: Scene) -> None:
    headers = [*bearer(await scene.key_of(CI)).items()]
    for query in ("topic=ops&topic=dev", "&".join(f"a{n}=b" for n in range(20)), "topic=%ff"):
        reply = await scene.visitor.send("GET", headers, path=f"/ws?{query}")
        assert reply.status == 400


async def test_without_an_upgrade_it_is_told_what_this_is(scene: Scene) -> None:
    await scene.grants(CI, "chat")
    headers = [*bearer(await scene.key_of(CI)).items()]
    reply = await scene.visitor.send("GET", headers, path="/ws?topic=ops")
    assert (reply.status, reply.headers["upgrade"]) == (426, "websocket")
    reply = await scene.visitor.send("POST", headers, b"{}", "/ws?topic=ops")
    assert (reply.status, reply.headers["allow"]) == (405, "GET")


async def test_a_handshake_of_another_version_is_refused(scene: Scene) -> None:
    await scene.grants(CI, "chat")
    headers = {
        **bearer(await scene.key_of(CI)),
        "connection": "upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "7",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    reply = await scene.visitor.send("GET", headers.items(), path="/ws?topic=ops")
    assert reply.status == 400
    assert "error" in await reply.json()


async def test_pages_of_elsewhere_open_nothing(scene: Scene) -> None:
    elsewhere = "https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1:1"
    for origin in elsewhere:
        status, told = await scene.is_sent_away("", {"topic": OPS}, headers={"origin": origin})
        assert (status, told["error"]["data"]["error_type"]) == (403, "origin_refused")


async def test_pages_from_here_and_from_where_they_were_named_may_join() -> None:
    async with gathering(allowed_origins=("https://app.example.org",)) as scene:
        for origin in (scene.origin, "https://app.example.org"):
            socket = await scene.connects({"topic": OPS}, {"origin": origin})
            assert (await Member("", socket).hears())["kind"] == "system/welcome"
            await socket.close()


async def test_whoever_runs_the_gateway_alone_may_be_several_members(scene: Scene) -> None:
    worker = Member("local:worker", await scene.connects({"topic": OPS, "as": "worker"}))
    own = Member(LOCAL.party, await scene.connects({"topic": OPS}))
    assert (await worker.hears())["payload"]["you"]["id"] == "local:worker"
    assert (await own.hears())["payload"]["you"]["id"] == LOCAL.party
    id = await worker.says()
    assert (await own.hears_until(id))[-1]["from"] == "local:worker"
    told = await worker.is_refused(**{"from": LOCAL.party})
    assert told["payload"]["error"] == "auth_violation"
    for alias in ("a b", "x" * 65, "agent:ci", "*"):
        assert (await scene.is_sent_away("", {"topic": OPS, "as": alias}))[0] == 400
    await worker.leaves()
    await own.leaves()


# Who is given what


@pytest.mark.requirement(
    *("MCPX-6.3-all", "MCPX-6.3-directed", "MCPX-6.3-respect", "MCPX-8.1-modes"),
    *("MCPX-8.1-route", "MCPX-3-to"),
)
async def test_a_member_is_given_what_its_mode_says(scene: Scene) -> None:
    ana = await scene.sits(ANA)
    every, some = await scene.sits(BEA, mode="all"), await scene.sits(CI, mode="directed")
    said = [
        await ana.says(),
        await ana.says(to=[]),
        await ana.says(to=[BEA]),
        await ana.says(to=[ANA]),
        await ana.says(to=[CI, BEA]),
        await ana.says(to=["agent:unknown"]),
        await ana.says(),
    ]
    heard = {
        member.party: [
            each["id"] for each in await member.hears_until(said[-1]) if each["from"] == ANA
        ]
        for member in (every, some, ana)
    }
    assert heard == {
        ANA: said,
        BEA: said,
        CI: [said[0], said[1], said[4], said[6]],
    }


async def test_a_directed_member_is_given_what_follows_from_its_own_words(scene: Scene) -> None:
    ana, bea = await scene.sits(ANA), await scene.sits(BEA, mode="directed")
    ci = await scene.sits(CI, mode="directed")
    wish = await ci.says("mcp/proposal:tools/call", to=[ANA])
    await ana.hears_until(wish)
    real = await ana.says("mcp/request:tools/call", to=[BEA], correlation_id=wish)
    await bea.hears_until(real)
    done = await bea.says("mcp/response:tools/call", to=[ANA], correlation_id=real)
    assert [each["id"] for each in await ci.hears_until(done)] == [real, done]


async def test_what_was_said_lately_is_given_where_an_operator_wants_it() -> None:
    async with gathering(rooms=(RoomSettings(OPS, history=2),)) as scene:
        ana = await scene.sits(ANA)
        said = [await ana.says() for _ in range(3)]
        await ana.hears_until(said[-1])
        await scene.grants(BEA, *FULL)
        bea = await scene.joins(BEA)
        heard = [await bea.hears() for _ in range(4)]
        assert [each["kind"] for each in heard][::3] == ["system/welcome", "system/presence"]
        assert [each["id"] for each in heard[1:3]] == said[1:]
