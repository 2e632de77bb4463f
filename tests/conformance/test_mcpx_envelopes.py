"""Envelopes through the door: what goes on unchanged, and what is refused. (MCPx §2, §3, §4.2)"""

import json
from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any

import pytest

from tests.support.topic_scene import ANA, BEA, CI, FULL, PROPOSE, Scene, gathering

GATEWAY = "system:gateway"
KINDS: dict[str, dict[str, Any]] = {
    "chat": {"text": "Good morning", "format": "plain"},
    "mcp/proposal:tools/call:empty_bin": {
        "method": "tools/call",
        "params": {"name": "empty_bin", "arguments": {"bin": "scratch"}},
    },
    "mcp/request:tools/call:empty_bin": {
        "jsonrpc": "2.0",
        "id": 42,
        "method": "tools/call",
        "params": {"name": "empty_bin", "arguments": {"bin": "scratch"}},
    },
}
ODD = (
    '  {"payload" :\n{"text":"h\\u00e9", "n": 1.0e2, "n": 1E+2, "deep": [[{}]]}, "x-more": [1,\t2],'
    '"kind":"chat","from":"person:ana@example.org" ,"to": [ ],"id":"odd\\u002d1",'
    '"protocol":"mcpx/v0.1"}\r\n'
)
GARBAGE: dict[str, Any] = {
    "jsonrpc": "1.0",
    "method": 3,
    "params": "none",
    "result": {},
    "error": None,
}
WRONG: dict[str, list[dict[str, Any]]] = {
    "invalid_envelope": [
        *({"protocol": each} for each in ("mcp-x/v0", "mcpx/v0.2", "mcpx/v1.0", None)),
        *({"payload": each} for each in ("text", [1], None)),
        *({"to": each} for each in ("everybody", [1])),
        *({"kind": each} for each in ("", "chat\n", "ch at", "ch\u00e9t")),
    ],
    "auth_violation": [{"from": BEA}, {"from": GATEWAY}, {"from": ""}],
}
NONE_AT_ALL = ("", "null", "[]", '"chat"', "{}", "{} {}", "{", '{"a":1}{"b":2}', "[" * 5_000)


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with gathering() as scene:
        yield scene


@pytest.mark.requirement(
    *("MCPX-3-single", "MCPX-3-protocol", "MCPX-3-kind", "MCPX-3-payload", "MCPX-8.1-preserve"),
    *("MCPX-3-kind-request", "MCPX-3-kind-proposal", "MCPX-3-kind-chat", "MCPX-2.1-observable"),
    *("MCPX-2.2-noe2e", "MCPX-3-kind-response"),
)
async def test_every_kind_of_a_member_is_given_to_all_as_the_very_text(scene: Scene) -> None:
    ana, bea = await scene.sits(ANA), await scene.sits(BEA)
    await ana.hears_kind("system/presence")
    for kind, payload in KINDS.items():
        said = json.dumps(
            {
                "protocol": "mcpx/v0.1",
                "id": kind,
                "ts": "2025-08-26T14:00:00Z",
                "from": ANA,
                "to": [BEA] if kind != "chat" else [],
                "kind": kind,
                "payload": payload,
            },
            indent=2,
        )
        await ana.socket.send(said)
        assert await bea.hears_text() == said
        assert await ana.hears_text() == said
    answered = "mcp/request:tools/call:empty_bin"
    result: dict[str, Any] = {"jsonrpc": "2.0", "id": 42, "result": {"content": []}}
    kind = "mcp/response:tools/call:empty_bin"
    id = await bea.says(kind, correlation_id=answered, to=[ANA], payload=result)
    assert (await ana.hears())["id"] == id
    await ana.socket.send(ODD)
    await bea.hears_kind(kind)
    assert await bea.hears_text() == ODD


@pytest.mark.requirement(
    *("MCPX-4.2-noparse", "MCPX-4.2-nokindcheck", "MCPX-4.2-nospoof", "MCPX-2.2-novalidate"),
    *("MCPX-8.1-noparse", "MCPX-2.1-stateless"),
)
async def test_a_payload_may_be_anything_and_need_not_fit_its_kind(scene: Scene) -> None:
    ana, bea = await scene.sits(ANA, "mcp/request:tools/call:safe_tool"), await scene.sits(BEA)
    spoofed = {"method": "tools/call", "params": {"name": "dangerous_tool"}}
    payloads: list[dict[str, Any]] = [GARBAGE, spoofed, {}, {"text": "\U0001f600" * 100}]
    for payload in payloads:
        id = await ana.says("mcp/request:tools/call:safe_tool", payload=payload)
        heard = await bea.hears_kind("mcp/request:tools/call:safe_tool")
        assert (heard["id"], heard["payload"]) == (id, payload)


@pytest.mark.requirement(
    *("MCPX-3-id", "MCPX-3-from", "MCPX-3-protocol", "MCPX-3-payload", "MCPX-3-corr-error"),
    *("MCPX-6.1c-match", "MCPX-6.1c-break", "MCPX-8.1-errors", "MCPX-3-to", "MCPX-6.3c-pin"),
)
async def test_what_is_no_envelope_of_its_sender_is_refused_by_its_id(scene: Scene) -> None:
    ana, bea = await scene.sits(ANA), await scene.sits(BEA)
    for error, wrongs in WRONG.items():
        for wrong in wrongs:
            told = await ana.is_refused(**wrong)
            assert (told["from"], told["to"]) == (GATEWAY, [ANA])
            assert told["payload"]["error"] == error, wrong
    id = await ana.says()
    assert [each["id"] for each in await bea.hears_until(id)] == [id]


@pytest.mark.requirement("MCPX-3-single", "MCPX-8.1-errors")
async def test_what_is_not_one_envelope_is_refused(scene: Scene) -> None:
    ana = await scene.sits(ANA)
    for text in NONE_AT_ALL:
        await ana.socket.send(text)
        told = await ana.hears()
        assert (told["kind"], told["payload"]["error"]) == ("system/error", "invalid_envelope")
        assert "correlation_id" not in told


@pytest.mark.requirement("MCPX-3-id")
async def test_an_id_that_was_used_is_refused_whoever_used_it(scene: Scene) -> None:
    ana, bea = await scene.sits(ANA), await scene.sits(BEA)
    await ana.says(id="the same")
    await bea.hears_kind("chat")
    assert (await bea.is_refused(id="the same"))["payload"]["error"] == "duplicate_id"


@pytest.mark.requirement("MCPX-3-ts", "MCPX-3-id", "MCPX-3.4-from", "MCPX-3-kind-system")
async def test_what_the_gateway_says_has_an_id_and_a_moment_and_is_from_it(scene: Scene) -> None:
    await scene.grants(ANA, *FULL)
    ana = await scene.joins(ANA)
    welcome, presence = await ana.hears(), await ana.hears()
    error = await ana.is_refused("admin/x")
    assert len({each["id"] for each in (welcome, presence, error)}) == 3
    for each in (welcome, presence, error):
        assert each["from"] == GATEWAY
        assert each["protocol"] == "mcpx/v0.1"
        assert datetime.fromisoformat(each["ts"]).tzinfo is not None
        assert each["kind"].startswith("system/")


@pytest.mark.requirement("MCPX-3-ts")
async def test_an_envelope_without_a_moment_goes_on_without_one(scene: Scene) -> None:
    ana = await scene.sits(ANA)
    await ana.says()
    assert "ts" not in await ana.hears()


@pytest.mark.requirement(
    *("MCPX-3.4-broadcast", "MCPX-3.4-event", "MCPX-3.4-participant", "MCPX-3.5.1-welcome"),
    *("MCPX-3.5.1-you", "MCPX-3.5.1-participants", "MCPX-6.2-welcome", "MCPX-3-kind-presence"),
)
async def test_who_comes_is_welcomed_first_and_everybody_is_told(scene: Scene) -> None:
    ana = await scene.sits(ANA)
    await scene.grants(CI, *PROPOSE)
    ci = await scene.joins(CI, mode="directed")
    welcome, own = await ci.hears(), await ci.hears()
    assert (welcome["kind"], welcome["to"]) == ("system/welcome", [CI])
    assert welcome["payload"]["you"]["id"] == CI
    assert set(welcome["payload"]["you"]["capabilities"]) == {*PROPOSE}
    (other,) = welcome["payload"]["participants"]
    assert (other["id"], {*other["capabilities"]}) == (ANA, {*FULL})
    assert own == await ana.hears()
    assert own["kind"] == "system/presence"
    assert "to" not in own
    assert own["payload"]["event"] == "join"
    assert own["payload"]["participant"]["id"] == CI
    assert set(own["payload"]["participant"]["capabilities"]) == {*PROPOSE}
    await ci.leaves()
    left = await ana.hears()
    assert left["kind"] == "system/presence"
    assert left["payload"] == {"event": "leave", "participant": {"id": CI}}


@pytest.mark.requirement("MCPX-3-correlation", "MCPX-3.2.1-audit", "MCPX-7.1-monitor")
async def test_a_chain_of_envelopes_can_be_followed_live_and_in_the_journal(scene: Scene) -> None:
    ana, bea, ci = [await scene.sits(party) for party in (ANA, BEA, CI)]
    wish = await ci.says("mcp/proposal:tools/call:write", to=[BEA])
    real = await ana.says("mcp/request:tools/call:write", to=[BEA], correlation_id=wish)
    await bea.hears_until(real)
    done = await bea.says("mcp/response:tools/call:write", to=[ANA, CI], correlation_id=real)
    heard = {each["id"]: each.get("correlation_id") for each in await ci.hears_until(done)}
    assert (heard[done], heard[real], heard[wish]) == (real, wish, None)
    said = [each for each in await scene.journal() if each["event_type"].endswith("topic_message")]
    kept = {each["details"]["envelope"]: each for each in said}
    assert kept[done]["details"]["correlation_id"] == real
    assert kept[real]["details"]["correlation_id"] == wish
    assert kept[wish]["actor"]["id"] == CI
    assert "hello" not in json.dumps(said)


@pytest.mark.requirement("MCPX-2.2-nopersist")
async def test_nothing_said_before_is_given_to_who_comes_later(scene: Scene) -> None:
    ana = await scene.sits(ANA)
    await ana.hears_until(await ana.says())
    bea = await scene.sits(BEA)
    id = await ana.says()
    assert [each["id"] for each in await bea.hears_until(id)] == [id]
    await ana.leaves()
    await bea.leaves()
    _, shown = await scene.asked("/api/topics")
    assert shown == {"topics": [], "total": 0}


@pytest.mark.requirement("MCPX-2.2-nocross")
async def test_nothing_crosses_from_one_topic_to_another(scene: Scene) -> None:
    ana, elsewhere = await scene.sits(ANA), await scene.sits(BEA, topic="dev")
    await ana.hears_until(await ana.says(to=[BEA]))
    request = await ana.says("mcp/request:tools/list", to=[BEA])
    await ana.hears_until(request)
    told = await elsewhere.is_refused("mcp/response:tools/list", correlation_id=request)
    assert told["payload"]["error"] == "unasked_response"
    id = await elsewhere.says(to=[ANA])
    assert [each["id"] for each in await elsewhere.hears_until(id)] == [id]
    again = await ana.says()
    assert [each["id"] for each in await ana.hears_until(again)] == [again]
    await scene.grants(CI, "chat")
    ci = await scene.joins(CI)
    assert [each["id"] for each in (await ci.hears())["payload"]["participants"]] == [ANA]
