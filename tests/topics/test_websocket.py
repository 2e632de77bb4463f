"""The endpoint of topics: who is let in, and how a connection lives and ends. (MCPx §5, §6)"""

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from websockets import InvalidStatus
from websockets.frames import Frame, Opcode

from comity.app.settings import Settings
from comity.mcp.actors import LOCAL
from comity.policy.grants import Effect, Grant
from comity.topics.settings import TopicOverride
from tests.support.cases import loop_over
from tests.support.credentials import bearer
from tests.support.topic_scene import ANA, BEA, CI, FULL, OPS, SECONDS, Member, Scene, gathering


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


async def test_what_was_said_lately_is_given_where_an_operator_wants_it() -> None:
    async with gathering(topics_overrides=(TopicOverride(OPS, history=2),)) as scene:
        ana = await scene.sits(ANA)
        said = [await ana.says() for _ in range(3)]
        await ana.hears_until(said[-1])
        await scene.grants(BEA, *FULL)
        bea = await scene.joins(BEA)
        heard = [await bea.hears() for _ in range(4)]
        assert [each["kind"] for each in heard][::3] == ["system/welcome", "system/presence"]
        assert [each["id"] for each in heard[1:3]] == said[1:]


REPLACED, UNENTITLED, FLOODING = 4001, 4003, 1008


async def presence(member: Member, until: str) -> list[tuple[str, str]]:
    """Who came and went, up to the envelope with this id."""
    heard = await member.hears_until(until)
    told = [each["payload"] for each in heard if each["kind"] == "system/presence"]
    return [(each["event"], each["participant"]["id"]) for each in told]


async def test_the_newest_connection_stays_and_nobody_notices(scene: Scene) -> None:
    ana, older = await scene.sits(ANA), await scene.sits(BEA)
    newer = await scene.joins(BEA)
    assert (await older.closed())[0] == REPLACED
    assert (await newer.hears())["kind"] == "system/welcome"
    id = await newer.says()
    assert await presence(ana, id) == [("join", BEA)]


async def test_a_cut_is_resumed_without_a_flicker_and_what_was_missed_is_told(
    scene: Scene,
) -> None:
    ana, bea = await scene.sits(ANA), await scene.sits(BEA)
    bea.is_cut()
    seat = scene.visitor.parts.topic_components.topics.topics[OPS].local_members[BEA]
    async with asyncio.timeout(SECONDS):
        while seat.outlet is not None:
            await asyncio.sleep(0.01)
    said = [await ana.says() for _ in range(3)]
    await ana.hears_until(said[-1])
    again = await scene.joins(BEA)
    assert (await again.hears())["kind"] == "system/welcome"
    missed = await again.hears()
    assert missed["kind"] == "system/missed"
    assert missed["payload"]["count"] == 3
    assert (missed["payload"]["first"], missed["payload"]["last"]) == (said[0], said[-1])
    id = await ana.says()
    assert await presence(ana, id) == []
    assert (await again.hears())["id"] == id


async def test_who_leaves_with_a_word_has_left_at_once(scene: Scene) -> None:
    ana, bea = await scene.sits(ANA), await scene.sits(BEA)
    await bea.leaves()
    while (told := await ana.hears_kind("system/presence"))["payload"]["event"] != "leave":
        pass
    assert told["payload"]["participant"] == {"id": BEA}


@pytest.mark.requirement("MCPX-5.1-dynamic", "MCPX-6.2-enforce")
async def test_who_was_granted_nothing_any_more_has_to_go(scene: Scene) -> None:
    ci = await scene.sits(CI, "chat")
    await scene.done("/api/grants/delete", grant(CI, "ops/chat"))
    code, why = await ci.closed()
    assert (code, why) == (UNENTITLED, "you no longer have access to this topic")
    assert (await scene.is_sent_away(CI))[0] == 403


async def test_what_is_written_into_the_file_anew_counts_at_once(scene: Scene) -> None:
    ci = await scene.sits(CI, "chat")
    written = Grant(CI, "topic/send", "ops/mcp/request:*", Effect.ALLOW)
    await scene.visitor.parts.policy_components.apply_settings(Settings(grants=(written,)))
    told = (await ci.hears_kind("system/welcome"))["payload"]["you"]["capabilities"]
    assert {*told} == {"chat", "mcp/request:*"}


async def test_a_revoked_key_ends_the_connections_that_were_opened_with_it(scene: Scene) -> None:
    await scene.grants(CI, "chat")
    made = await scene.done("/api/keys", {"principal": CI})
    other = await scene.joins(CI, topic=OPS, key=await scene.key_of(CI))
    await scene.grants(CI, "chat", topic="dev")
    ci = await scene.joins(CI, topic="dev", key=made["key"])
    await scene.done(f"/api/keys/{made['id']}/revoke", {})
    assert await ci.closed() == (UNENTITLED, "your credentials are void")
    assert await other.says() == (await other.hears_kind("chat"))["id"]


async def test_a_party_that_is_disabled_has_to_go(scene: Scene) -> None:
    ci = await scene.sits(CI, "chat")
    await scene.done(f"/api/principals/{CI}/disable", {})
    assert (await ci.closed())[0] == UNENTITLED
    assert (await scene.is_sent_away(CI))[0] == 401


async def test_a_member_has_the_capabilities_of_its_groups(scene: Scene) -> None:
    grant = {"subject": "group:sre", "verb": "topic/send", "target": f"{OPS}/chat"}
    await scene.done("/api/grants", grant)
    key = await scene.key_of(CI)
    await scene.done(f"/api/principals/{CI}/groups", {"add": ["sre", "qa"]})
    ci = await scene.joins(CI, key=key)
    assert await ci.says() == (await ci.hears_kind("chat"))["id"]
    # A change of the grants of a group counts for a member that is here.
    await scene.done("/api/grants", {**grant, "target": f"{OPS}/mcp/proposal:*"})
    await scene.done("/api/grants/delete", grant)
    await ci.is_refused()
    await scene.done("/api/grants", grant)
    assert await ci.says() == (await ci.hears_kind("chat"))["id"]
    # Another group changes nothing. Without the group, nothing admits the member.
    await scene.done(f"/api/principals/{CI}/groups", {"remove": ["qa"]})
    assert await ci.says() == (await ci.hears_kind("chat"))["id"]
    await scene.done(f"/api/principals/{CI}/groups", {"remove": ["sre"]})
    assert (await ci.closed())[0] == UNENTITLED


async def joins_for_a_while(scene: Scene, seconds: float = 1.5) -> tuple[Member, datetime]:
    """With a key that expires soon; tried again where a busy machine was too late."""
    ends = datetime.now(UTC) + timedelta(seconds=seconds)
    key = await scene.key_of(CI, expires_at=ends.isoformat())
    try:
        return await scene.joins(CI, key=key), ends
    except InvalidStatus:
        return await joins_for_a_while(scene, seconds * 3)


async def test_a_key_that_expires_ends_its_connection(scene: Scene) -> None:
    await scene.grants(CI, "chat")
    ci, ends = await joins_for_a_while(scene)
    assert (await ci.hears())["kind"] == "system/welcome"
    assert (await ci.closed())[0] == UNENTITLED
    assert datetime.now(UTC) >= ends


async def test_the_end_of_the_gateway_is_told(scene: Scene) -> None:
    ana = await scene.sits(ANA)
    scene.visitor.place.task.cancel()
    assert await ana.closed() == (1001, "the gateway is going away")


@loop_over(("data", "code"), [(b"{}", 1003), ("x" * 5_000, 1009)], ids=["binary", "too long"])
async def test_bad_data_closes_with_its_code(data: str | bytes, code: int) -> None:
    async with gathering(topics_max_envelope_bytes=4_096) as scene:
        ana = await scene.sits(ANA)
        await ana.socket.send(data)
        assert (await ana.closed())[0] == code


# What is bounded
async def test_members_and_topics_are_bounded_and_told_with_a_status() -> None:
    async with gathering(topics_max_members=2, topics_max_topics=1) as scene:
        ana, _ = await scene.sits(ANA), await scene.sits(BEA)
        await scene.grants(CI, "chat", topic="*")
        status, told = await scene.is_sent_away(CI)
        assert (status, told["error"]["data"]["error_type"]) == (503, "exhausted")
        assert "has 2 members already" in told["error"]["message"]
        status, told = await scene.is_sent_away(CI, {"topic": "dev"})
        assert (status, told["error"]["data"]["error_type"]) == (503, "exhausted")
        await ana.leaves()
        async with asyncio.timeout(SECONDS):
            while len(scene.visitor.parts.topic_components.topics.topics[OPS].local_members) > 1:
                await asyncio.sleep(0.01)
        await scene.sits(CI, "chat")


async def test_a_flood_is_told_now_and_then_and_ends_in_a_close() -> None:
    async with gathering(topics_message_rate=60, topics_chat_rate=10) as scene:
        ana, bea = await scene.sits(ANA), await scene.sits(BEA)
        for number in range(2_000):
            said = {"id": str(number), "from": BEA, "kind": "mcp/proposal:x"}
            whole = json.dumps({"protocol": "mcpx/v0.1", **said, "payload": {}})
            bea.socket.transport.write(Frame(Opcode.TEXT, whole.encode()).serialize(mask=True))
        assert (await bea.closed())[0] == FLOODING
        last = await ana.says()
        heard = [each for each in await ana.hears_until(last) if each["from"] == BEA]
        assert 60 <= len(heard) < 70
        chats = [await ana.says() for _ in range(11)]
        told = await ana.hears_kind("system/error")
        assert (told["payload"]["error"], told["correlation_id"]) == ("rate_limited", chats[9])


@pytest.mark.requirement("MCPX-2.2-besteffort")
async def test_a_slow_member_is_told_what_it_missed_and_nobody_waits_for_it() -> None:
    async with gathering() as scene:
        ana, bea = await scene.sits(ANA), await scene.sits(BEA)
        slow = await scene.sits(CI, "chat")
        slow.socket.transport.pause_reading()
        said: list[str] = []
        for _ in range(300):
            said.append(await ana.says(payload={"text": "x" * 50_000}))
            for each in (ana, bea):
                assert (await each.hears_until(said[-1]))[-1]["id"] == said[-1]
        slow.socket.transport.resume_reading()
        heard_by_slow: list[str] = []
        while (found := await slow.hears())["kind"] != "system/missed":
            if found["from"] == ANA:
                heard_by_slow.append(found["id"])
        missed = found["payload"]
        assert len(heard_by_slow) + missed["count"] == 300
        assert heard_by_slow == said[: len(heard_by_slow)]
        assert (missed["first"], missed["last"]) == (said[len(heard_by_slow)], said[-1])
        assert missed["reason"] == "you read messages too slowly"
        assert await slow.says() == (await slow.hears_kind("chat"))["id"]


async def test_what_happens_is_written_down_without_a_word_of_what_was_said(scene: Scene) -> None:
    ana, ci = await scene.sits(ANA), await scene.sits(CI, "mcp/proposal:*")
    secret = {"text": "a word for members alone", "method": "a word for members alone"}
    wish = await ci.says("mcp/proposal:tools/call:write", payload=secret, to=[ANA])
    await ana.says(payload=secret)
    await ci.is_refused("mcp/request:tools/call:write", payload=secret)
    await ci.leaves()
    async with asyncio.timeout(SECONDS):
        while not any("left" in each["event_type"] for each in await scene.journal()):
            await asyncio.sleep(0.02)
    found = await scene.journal()
    assert "a word for" not in json.dumps(found)
    kinds = [(each["event_type"].rpartition("_")[2], each["actor"]["id"]) for each in found]
    assert kinds == [
        *(("joined", ANA), ("joined", CI), ("message", CI)),
        *(("refused", CI), ("left", CI)),
    ]
    assert found[2]["details"] == {
        "topic": OPS,
        "envelope": wish,
        "kind": "mcp/proposal:tools/call:write",
        "to": [ANA],
    }
    assert (found[3]["result"], found[3]["details"]["error"]) == ("BLOCKED", "capability_violation")


def grant(party: str, target: str) -> dict[str, Any]:
    return {"subject": party, "verb": "topic/send", "target": target}
