"""What the gateway tells of itself: subscriptions, channels and who may hear. (MGP §13.2, §13.5)"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from comity.events.methods import MAX_PER_SESSION, MOST_WAITING
from comity.events.model import MAX_CHANNELS, NOTICE, EventFilter, GatewayEvent, Severity
from comity.events.standard_channels import STANDARD
from comity.mcp.actors import Actor, PrincipalKind
from comity.policy.grants import Effect, Grant
from tests.cli.program import EXAMPLE
from tests.conformance.audited import ANA, CI, GRANTS, METADATA, audited
from tests.conformance.evented import (
    BOTH,
    call,
    following,
    following_modern,
    subscribe,
    until_nobody_follows,
)
from tests.conformance.ways import House
from tests.interop.processes import comity

HANDSHAKE = pytest.param(following, id="handshake")
MODERN = pytest.param(following_modern, id="modern")
FOR_CI = (*GRANTS, Grant(CI, "tools/call", "files/read", Effect.ALLOW))


@pytest.mark.requirement("MGP-13.2-subscribe", "MGP-13.2-subscribe-result", "MGP-13.3-event")
@pytest.mark.requirement("MGP-2.2-ext-bidirectional", "MGP-13.5-tool")
@pytest.mark.parametrize("follow", [HANDSHAKE, MODERN])
async def test_whoever_subscribed_hears_of_a_call_from_its_beginning_to_its_end(
    follow: Any,
) -> None:
    async with audited() as scene:
        ear = await follow(scene.guest(), "tool.started", "tool.completed", "no.such")
        assert ear.answer.keys() == {"subscribed", "unsupported", "subscription_id"}
        assert ear.answer["subscribed"] == ["tool.completed", "tool.started"]
        assert ear.answer["unsupported"] == ["no.such"]
        await call(await scene.guest().greet())
        started, completed = await ear.next(), await ear.next()
        for told in (started, completed):
            told.pop("_meta", None)
            assert told.keys() == {
                *("subscription_id", "channel", "timestamp", "severity", "id", "data")
            }
            assert told["subscription_id"] == ear.answer["subscription_id"]
            assert (told["data"]["server_id"], told["data"]["tool_name"]) == ("files", "read")
            assert told["data"]["actor"] == ANA
        assert [started["channel"], completed["channel"]] == ["tool.started", "tool.completed"]
        assert started["data"]["trace_id"] == completed["data"]["trace_id"]
        assert started["data"]["call_id"] == completed["data"]["call_id"]
        assert completed["data"]["duration_ms"] > 0
        assert started["id"] != completed["id"]


@pytest.mark.requirement("MGP-13.2-subscribe", "MGP-13.5-noassume")
@pytest.mark.parametrize("follow", [HANDSHAKE, MODERN])
async def test_a_family_and_everything_are_answered_with_the_real_channels(follow: Any) -> None:
    """So that nobody has to assume that a channel exists. (D-27)"""
    async with audited() as scene:
        family = await follow(scene.guest(), "security.*")
        assert family.answer["subscribed"] == sorted(
            name for name in STANDARD if name.startswith("security.")
        )
        everything = await follow(scene.guest(), "*")
        assert everything.answer["subscribed"] == sorted(STANDARD)
        assert everything.answer["unsupported"] == []


@pytest.mark.requirement("MGP-13.2-subscribe")
async def test_what_matters_less_than_wanted_is_not_told() -> None:
    async with audited() as scene:
        least = {"filter": {"min_severity": "warning"}}
        ear = await following(scene.guest(), "tool.*", **least)
        caller = await scene.guest().greet()
        await call(caller)
        await call(caller, "fetch", url=METADATA)
        assert [told["channel"] for told in await ear.until("tool.blocked")] == ["tool.blocked"]


@pytest.mark.requirement("MGP-13.2-unsubscribe", "MGP-13.3-event")
async def test_after_the_subscription_has_ended_nothing_is_told() -> None:
    async with audited() as scene:
        ear = await following(scene.guest(), "tool.started")
        other = await subscribe(ear.guest, "tool.completed")
        named = {"subscription_id": ear.answer["subscription_id"]}
        ended = await ear.guest.ask("mgp/events/unsubscribe", named)
        assert ended["result"] == {"unsubscribed": True, **named}
        await call(await scene.guest().greet())
        told = await ear.next()
        assert (told["channel"], told["subscription_id"]) == (
            "tool.completed",
            other["subscription_id"],
        )
        again = await ear.guest.ask("mgp/events/unsubscribe", named)
        assert again["error"]["code"] == -32602


async def test_nobody_ends_the_subscription_of_another_session() -> None:
    async with audited() as scene:
        ear, thief = (
            await following(scene.guest(), "tool.started"),
            await scene.guest().greet(**BOTH),
        )
        named = {"subscription_id": ear.answer["subscription_id"]}
        assert (await thief.ask("mgp/events/unsubscribe", named))["error"]["code"] == -32602
        await call(thief)
        assert (await ear.next())["channel"] == "tool.started"


@pytest.mark.requirement("MGP-2.2-ext-bidirectional", "MGP-13.3-event")
async def test_without_the_extension_there_is_nothing_to_subscribe_to() -> None:
    async with audited() as scene:
        plain = await scene.guest().greet()
        other = await scene.guest().greet(mgp={"version": "0.3.0", "extensions": ["audit"]})
        for guest in (plain, other):
            for method in ("subscribe", "unsubscribe"):
                answer = await guest.ask(f"mgp/events/{method}", {"channels": ["*"]})
                assert answer["error"]["code"] == -32601
        assert len(scene.visitor.parts.event_components.events) == 0


async def test_a_request_of_the_modern_era_is_told_where_to_listen() -> None:
    async with audited() as scene:
        answer = await scene.guest().modern(
            "mgp/events/subscribe", {"channels": ["tool.*"]}, **BOTH
        )
        assert answer["error"]["code"] == -32601
        assert "subscriptions/listen" in answer["error"]["message"]
        assert "mgp.events" in answer["error"]["message"]


@pytest.mark.requirement("MGP-13.5-security")
async def test_what_was_refused_is_told_with_why_and_without_what_was_sent() -> None:
    async with audited(grants=FOR_CI) as scene:
        ear = await following(scene.guest(), "security.*", "tool.blocked")
        agent = await scene.guest(CI, PrincipalKind.AGENT).greet()
        await call(agent, "write", secret="hunter2")
        told = await ear.until("security.access_denied")
        assert told[-1]["severity"] == "warning"
        assert told[-1]["data"]["outcome"] == "access_denied"
        assert told[-1]["data"]["actor"] == CI
        await call(await scene.guest().greet(), "fetch", url=METADATA)
        told += await ear.until("security.validation_failed")
        assert "hunter2" not in json.dumps(told)
        assert METADATA not in json.dumps(told)


@pytest.mark.requirement("MGP-13.5-security")
async def test_grants_and_keys_that_change_are_told_to_who_may_read_of_them() -> None:
    async with audited(grants=FOR_CI) as scene:
        of_agent = await following(scene.guest(CI, PrincipalKind.AGENT), "security.*", "tool.*")
        ear = await following(scene.guest(), "security.*")
        ana = await scene.guest().greet(**BOTH)
        entry = {
            "entry_type": "tool_grant",
            "agent_id": CI,
            "server_id": "files",
            "tool_name": "write",
            "permission": "allow",
        }
        granted = await ana.ask("mgp/access/grant", entry)
        assert "error" not in granted, granted
        told = (await ear.until("security.grant_changed"))[-1]["data"]
        assert (told["change"], told["subject"], told["actor"]) == ("granted", CI, ANA)
        status, _ = await ana.http("POST", "/api/keys", {"principal": "agent:new", "label": "hush"})
        assert status == 200
        told = (await ear.until("security.key_changed"))[-1]["data"]
        assert (told["change"], told["principal"]) == ("issued", "agent:new")
        assert "hush" not in json.dumps(told)
        # The agent has heard nothing of all that: next it hears of its own call.
        await call(await scene.guest(CI, PrincipalKind.AGENT).greet())
        assert (await of_agent.next())["channel"] == "tool.started"


@pytest.mark.requirement("MGP-13.5-tool")
async def test_an_agent_hears_of_its_own_calls_and_of_nobody_elses() -> None:
    async with audited(grants=FOR_CI) as scene:
        own = await following(scene.guest(CI, PrincipalKind.AGENT), "tool.*")
        await call(await scene.guest().greet())
        await call(await scene.guest(CI, PrincipalKind.AGENT).greet())
        told = await own.until("tool.completed")
        assert {each["data"]["actor"] for each in told} == {CI}


@pytest.mark.requirement("MGP-13.5-system")
async def test_how_a_server_fares_is_told_to_those_who_may_know_it() -> None:
    stranger = "agent:stranger"
    grants = (*FOR_CI, Grant(stranger, "tools/call", "log/*", Effect.ALLOW))
    async with audited(grants=grants) as scene:
        knows = await following(scene.guest(CI, PrincipalKind.AGENT), "system.*")
        does_not = await following(scene.guest(stranger, PrincipalKind.AGENT), "system.*")
        ana = await scene.guest().greet()
        assert (await ana.http("POST", "/api/servers/files/stop", {}))[0] == 200
        told = await knows.until("system.server_state", new_state="disconnected")
        assert {each["data"]["server_id"] for each in told} == {"files"}
        assert (await ana.http("POST", "/api/servers/log/stop", {}))[0] == 200
        told = await does_not.until("system.server_state", new_state="disconnected")
        assert {each["data"]["server_id"] for each in told} == {"log"}


async def test_whose_key_was_taken_back_hears_nothing_more() -> None:
    async with audited() as scene:
        gone, stays = scene.guest(), scene.guest()
        deaf, ear = await following(gone, "tool.*"), await following(stays, "tool.*")
        scene.given_out.revoke(gone.key)
        await call(await scene.guest().greet())
        await ear.until("tool.completed")
        # Lists are told to whoever has a stream: what comes first is that, and no event.
        heard: list[str] = []
        assert (await stays.http("POST", "/api/servers/files/stop", {}))[0] == 200
        while "notifications/tools/list_changed" not in heard:
            event = await deaf.stream.event()
            heard += [event.frame["method"]] if event.data else []
        assert NOTICE not in heard


async def test_who_reads_too_slowly_is_told_how_much_it_lost_and_holds_up_nobody() -> None:
    async with audited() as scene:
        guest = await scene.guest().greet(**BOTH)
        answer = await subscribe(guest, "tool.started")
        events = scene.visitor.parts.event_components.events
        many = MOST_WAITING + 100
        for number in range(many):
            events.publish(_happened(f"n-{number}", events.clock()))
        guest.visitor.session = guest.session
        stream = await guest.visitor.get()
        for number in range(MOST_WAITING):
            assert (await _told(stream))["id"] == f"n-{number}"
        events.publish(_happened("after", events.clock()))
        lost, after = await _told(stream), await _told(stream)
        assert lost["channel"] == "system.events_lost"
        assert lost["data"] == {"lost": 100}
        assert lost["subscription_id"] == answer["subscription_id"]
        assert after["id"] == "after"


def _happened(name: str, at: Any) -> GatewayEvent:
    return GatewayEvent(name, "tool.started", at, Severity.INFO, {}, "files", "read", ANA)


async def _told(stream: Any) -> Any:
    while True:
        event = await stream.event()
        if event.data and event.frame["method"] == NOTICE:
            return event.frame["params"]


async def test_one_session_can_subscribe_so_often_and_no_more() -> None:
    async with audited() as scene:
        guest = await scene.guest().greet(**BOTH)
        for _ in range(MAX_PER_SESSION):
            await subscribe(guest, "tool.started")
        refused = await guest.ask("mgp/events/subscribe", {"channels": ["tool.*"]})
        assert refused["error"]["data"]["error_type"] == "exhausted"
        many = ["tool.started"] * (MAX_CHANNELS + 1)
        refused = await guest.ask("mgp/events/subscribe", {"channels": many})
        assert refused["error"]["data"]["error_type"] == "exhausted"
        assert len(scene.visitor.parts.event_components.events) == MAX_PER_SESSION


@pytest.mark.parametrize("follow", [HANDSHAKE, MODERN])
async def test_what_nobody_hears_any_more_is_not_looked_at(follow: Any) -> None:
    async with audited() as scene:
        parts = scene.visitor.parts
        before = list(parts.audit_log_components.audit_log.listeners)
        assert parts.call_audit.on_call_sent is None
        ear = await follow(scene.guest(), "*")
        assert parts.call_audit.on_call_sent is not None
        assert len(parts.audit_log_components.audit_log.listeners) == len(before) + 1
        if follow is following:
            await ear.guest.visitor.send("DELETE", ear.guest.session.items())
        ear.stream.peer.writer.close()
        await until_nobody_follows(scene)
        assert parts.call_audit.on_call_sent is None
        assert parts.audit_log_components.audit_log.listeners == before


async def test_a_part_of_the_gateway_can_follow_as_somebody() -> None:
    async with audited(grants=FOR_CI) as scene:
        events = scene.visitor.parts.event_components.events
        heard: list[GatewayEvent] = []
        actor = Actor(CI)
        following = events.subscribe(EventFilter(("tool.completed",)), actor, heard.append)
        await following.settled()
        await call(await scene.guest().greet())
        await call(await scene.guest(CI, PrincipalKind.AGENT).greet())
        async with asyncio.timeout(10):
            while not heard:
                await asyncio.sleep(0.01)
        assert [each.party for each in heard] == [CI]
        following.close()
        assert not events.has_subscribers


@pytest.mark.requirement("MGP-13.5-model")
async def test_what_the_tools_in_a_context_cost_is_told_to_whose_context_it_is() -> None:
    async with audited(grants=FOR_CI, discovery_mode="on") as scene:
        ear = await following(scene.guest(CI, PrincipalKind.AGENT), "model.*")
        other = await following(
            scene.guest("agent:other", PrincipalKind.AGENT), "model.*", "tool.*"
        )
        assert ear.answer["subscribed"] == ["model.tool_budget"]
        await call(await scene.guest(CI, PrincipalKind.AGENT).greet())
        told = (await ear.until("model.tool_budget"))[-1]["data"]
        assert (told["actor"], told["tools_loaded"]) == (CI, 1)
        assert told["tokens_used"] > 0 <= told["tokens_remaining"]
        await call(await scene.guest("agent:other", PrincipalKind.AGENT).greet())
        assert (await other.next())["channel"] == "tool.blocked"


@pytest.mark.requirement("MGP-13.5-system")
async def test_settings_that_change_are_told_to_who_may_read_everything(tmp_path: Path) -> None:
    entry = {"mcpServers": {"example": EXAMPLE}}
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps(entry))
    with comity(config) as origin:
        house = House(origin, config)
        async with house.operated("example").talk(BOTH) as talk:
            await talk.client.listen()
            asked = {"channels": ["system.config_changed", "system.server_state"]}
            await talk.client.request("mgp/events/subscribe", asked)
            entry["mcpServers"]["second"] = EXAMPLE
            config.write_text(json.dumps(entry))
            told = (await talk.told(NOTICE))["params"]
            assert told["channel"] == "system.config_changed"
            servers = {"added": ["second"], "changed": [], "removed": []}
            assert told["data"] == {"servers": servers}
            state = (await talk.told(NOTICE))["params"]["data"]
            assert (state["server_id"], state["new_state"]) == ("second", "connecting")
