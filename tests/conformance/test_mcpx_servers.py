"""A hosted server in a topic: there by a grant alone, and asked through the whole gate. (D-101)"""

import asyncio
import json
from collections.abc import Callable

import pytest
from websockets.exceptions import InvalidStatus

from comity.mcp.actors import CALL
from comity.policy.grants import Effect, Grant, Guardrail
from comity.policy.limits import LimitRule
from comity.toolkit.resilience import RateLimit
from tests.conformance.mounted_scene import (
    ANA,
    BOT,
    CI,
    FILES,
    INBOX,
    MOUNTED,
    SECRET,
    Heard,
    a_call,
    a_topic,
    may_send,
)
from tests.conformance.topic_server import NOTES

CALL_PLAIN = "mcp/request:tools/call:plain"


def is_presence(event: str, party: str = FILES) -> Callable[[Heard], bool]:
    def is_it(each: Heard) -> bool:
        payload = each["payload"]
        if each["kind"] != "system/presence" or payload["event"] != event:
            return False
        return payload["participant"]["id"] == party

    return is_it


@pytest.mark.requirement("MCPX-3.1.2-corr", "MCPX-3.1.2-context", "MCPX-3.1.2-payload")
async def test_a_server_that_is_mounted_is_a_member_and_answers_who_asks_it() -> None:
    async with a_topic() as scene:
        bot = await scene.join(BOT)
        others = bot.heard[0]["payload"]["participants"]
        mounted = ["mcp/response:*", "mcp/request:notifications/resources/updated"]
        assert {"id": FILES, "capabilities": mounted} in others
        id = await bot.request(path="/a")
        answer = await bot.answer_to(id)
        assert (answer["from"], answer["to"]) == (FILES, [BOT])
        assert answer["kind"] == "mcp/response:tools/call:plain"
        assert answer["correlation_id"] == id
        assert answer["payload"]["id"] == 7
        assert '"path": "/a"' in answer["payload"]["result"]["content"][0]["text"]
        (run,) = await scene.runs()
        assert run["params"]["arguments"] == {"path": "/a"}


async def test_what_an_mcp_server_is_asked_first_is_answered_as_by_one() -> None:
    async with a_topic() as scene:
        bot = await scene.join(BOT)
        hello = (await bot.ask("initialize", {"protocolVersion": "2025-06-18"}))["result"]
        assert hello["protocolVersion"] == "2025-06-18"
        assert hello["capabilities"] == {
            "tools": {},
            "resources": {"subscribe": True},
            "prompts": {},
        }
        assert await bot.ask("ping") == {"jsonrpc": "2.0", "id": 1, "result": {}}
        listed = (await bot.ask("tools/list"))["result"]
        assert "plain" in [tool["name"] for tool in listed["tools"]]
        assert listed.keys() == {"tools"}
        refused = await bot.ask("logging/setLevel", {"level": "debug"})
        assert refused["error"]["code"] == -32601


async def test_resources_and_prompts_are_asked_for_alike() -> None:
    grants = (
        Grant(BOT, "resources/read", "files/*", Effect.ALLOW),
        Grant(BOT, "prompts/get", "files/*", Effect.ALLOW),
    )
    async with a_topic(*grants) as scene:
        bot = await scene.join(BOT)
        listed = (await bot.ask("resources/list"))["result"]["resources"]
        assert [each["uri"] for each in listed] == [NOTES]
        payload = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": NOTES}}
        id = await bot.say(f"mcp/request:resources/read:{NOTES}", payload, (FILES,))
        answer = await bot.answer_to(id)
        assert answer["kind"] == f"mcp/response:resources/read:{NOTES}"
        assert answer["payload"]["result"]["contents"][0]["text"] == "water the plants"
        assert (await bot.ask("prompts/get", {"name": "review"}))["result"] == {"messages": []}
        assert (await bot.ask("prompts/list"))["result"]["prompts"] == [{"name": "review"}]


SUBSCRIBE = f"mcp/request:resources/subscribe:{NOTES}"
UPDATED = f"mcp/request:notifications/resources/updated:{NOTES}"
READS = Grant(BOT, "resources/read", "files/*", Effect.ALLOW)


def a_request(method: str, uri: str = NOTES) -> Heard:
    return {"jsonrpc": "2.0", "id": 8, "method": method, "params": {"uri": uri}}


@pytest.mark.requirement("MCPX-4.1-w-resources", "MCPX-4.1-subscribe")
async def test_a_member_subscribes_to_a_resource_and_hears_of_its_updates() -> None:
    async with a_topic(READS) as scene:
        bot = await scene.join(BOT)
        id = await bot.say(SUBSCRIBE, a_request("resources/subscribe"), (FILES,))
        answer = await bot.answer_to(id)
        assert answer["kind"] == f"mcp/response:resources/subscribe:{NOTES}"
        assert answer["payload"] == {"jsonrpc": "2.0", "id": 8, "result": {}}
        await bot.answer_to(await bot.request("touch", uri=NOTES))
        update = await bot.until(lambda each: each["kind"] == UPDATED)
        assert (update["from"], update["to"], update["correlation_id"]) == (FILES, [BOT], id)
        assert update["payload"] == {
            "jsonrpc": "2.0",
            "method": "notifications/resources/updated",
            "params": {"uri": NOTES},
        }
        ended = f"mcp/request:resources/unsubscribe:{NOTES}"
        answer = await bot.answer_to(
            await bot.say(ended, a_request("resources/unsubscribe"), (FILES,))
        )
        assert answer["payload"]["result"] == {}
        await bot.answer_to(await bot.request("touch", uri=NOTES))
        # A second answer of the server follows the update that nobody hears of any more.
        await bot.answer_to(await bot.request())
        assert [each["kind"] for each in bot.heard].count(UPDATED) == 1


async def test_a_member_without_a_grant_to_read_cannot_subscribe() -> None:
    async with a_topic() as scene:
        bot = await scene.join(BOT)
        id = await bot.say(SUBSCRIBE, a_request("resources/subscribe"), (FILES,))
        answer = await bot.answer_to(id)
        assert answer["payload"]["error"]["code"] == -32600
        await bot.answer_to(await bot.request("touch", uri=NOTES))
        await bot.answer_to(await bot.request())
        assert UPDATED not in [each["kind"] for each in bot.heard]


async def test_an_approved_proposal_subscribes_its_proposer() -> None:
    async with a_topic(Grant(CI, "resources/read", "files/*", Effect.ALLOW)) as scene:
        ci, bot = await scene.join(CI), await scene.join(BOT)
        payload = {"method": "resources/subscribe", "params": {"uri": NOTES}}
        id = await ci.say(f"mcp/proposal:resources/subscribe:{NOTES}", payload, (FILES,))
        ask = (await ci.told("pending", id))["approval"]
        assert (await scene.answer(ask))[0] == 200
        await ci.until(lambda each: each["kind"] == SUBSCRIBE.replace("request", "response"))
        await bot.answer_to(await bot.request("touch", uri=NOTES))
        assert CI in (await ci.until(lambda each: each["kind"] == UPDATED))["to"]


@pytest.mark.requirement("MCPX-5.1-dynamic")
async def test_nothing_is_mounted_by_default_and_a_grant_does_it_at_once() -> None:
    async with a_topic(mounts=()) as scene:
        bot, ana = await scene.join(BOT), await scene.join(ANA)
        assert [each["id"] for each in bot.heard[0]["payload"]["participants"]] == []
        await bot.request()
        granted = {"subject": FILES, "verb": "topic/join", "target": "ops/*", "effect": "allow"}
        status, _ = await scene.guest().http("POST", "/api/grants", granted)
        assert status == 200
        await ana.until(is_presence("join"))
        answer = await bot.answer_to(await bot.request(n=2))
        assert answer["from"] == FILES
        assert [run["params"]["arguments"] for run in await scene.runs()] == [{"n": 2}]
        del granted["effect"]
        status, _ = await scene.guest().http("POST", "/api/grants/delete", granted)
        assert status == 200
        await ana.until(is_presence("leave"))
        await bot.request(n=3)
        assert len(await scene.runs()) == 1


async def test_a_denial_takes_out_what_the_file_puts_in() -> None:
    denied = Grant(FILES, "topic/join", "ops/*", Effect.DENY)
    async with a_topic(denied) as scene:
        bot = await scene.join(BOT)
        assert bot.heard[0]["payload"]["participants"] == []
    forbid = (Guardrail("server:*", "topic/*", "*"),)
    async with a_topic(MOUNTED, forbid=forbid) as scene:
        bot = await scene.join(BOT)
        assert bot.heard[0]["payload"]["participants"] == []


async def test_a_request_that_is_for_all_is_for_no_server() -> None:
    async with a_topic() as scene:
        bot = await scene.join(BOT)
        await bot.say(CALL_PLAIN, a_call())
        await bot.say(CALL_PLAIN, a_call(), ("agent:worker",))
        await bot.answer_to(await bot.request(n=1))
        assert len(await scene.runs()) == 1


LIES: tuple[tuple[str, Heard], ...] = (
    (CALL_PLAIN, a_call("mild")),
    ("mcp/request:tools/list", a_call()),
    (CALL_PLAIN, {**a_call(), "jsonrpc": "1.0"}),
    (CALL_PLAIN, {**a_call(), "Method": "x"}),
    (CALL_PLAIN, {"jsonrpc": "2.0", "id": 1, "result": {}}),
    ("mcp/request:tools/call:PLAIN", a_call()),
)


@pytest.mark.requirement("MCPX-4.3-drop", "MCPX-7.1-strict")
async def test_a_kind_that_hides_another_call_is_dropped_told_and_written_down() -> None:
    async with a_topic() as scene:
        bot = await scene.join(BOT)
        ids = [await bot.say(kind, payload, (FILES,)) for kind, payload in LIES]
        for id, (kind, _) in zip(ids, LIES, strict=True):
            told = await bot.answer_to(id)
            assert told["kind"] == "system/error"
            assert told["payload"]["error"] == "kind_mismatch"
            assert told["payload"]["attempted_kind"] == kind
        assert await scene.runs("plain") == await scene.runs("mild") == []
        entries = await scene.entries("topic_refused")
        assert [each.details["envelope"] for each in entries] == ids
        assert {(each.actor, each.details["error"]) for each in entries} == {(BOT, "kind_mismatch")}


async def test_who_may_not_call_a_tool_is_denied_whatever_it_may_send() -> None:
    denied = Grant(BOT, CALL, "files/plain", Effect.DENY)
    async with a_topic(denied) as scene:
        bot = await scene.join(BOT)
        answer = (await bot.answer_to(await bot.request()))["payload"]
        assert "nothing with this name that you may use" in str(answer)
        listed = (await bot.ask("tools/list"))["result"]["tools"]
        assert "plain" not in [tool["name"] for tool in listed]
        assert await scene.runs() == []
        (entry,) = await scene.entries("TOOL_BLOCKED")
        assert entry.actor == BOT


async def test_a_key_that_is_bounded_to_the_topic_calls_nothing() -> None:
    async with a_topic() as scene:
        bot = await scene.join(BOT, "all", "topic/send ops/*")
        answer = (await bot.answer_to(await bot.request()))["payload"]
        assert "nothing with this name" in str(answer)
        assert await scene.runs() == []


@pytest.mark.requirement("MCPX-6.4-filter")
async def test_a_capability_for_one_tool_is_for_no_other() -> None:
    narrow = may_send("agent:narrow", "mcp/request:tools/call:plain")
    uses = Grant("agent:narrow", CALL, "files/*", Effect.ALLOW)
    async with a_topic(*narrow, uses) as scene:
        member = await scene.join("agent:narrow")
        for kind in ("mcp/request:tools/call:mild", "mcp/request:tools/call"):
            id = await member.say(kind, a_call("mild"), (FILES,))
            assert (await member.answer_to(id))["payload"]["error"] == "capability_violation"
        assert "result" in (await member.answer_to(await member.request()))["payload"]
        assert await scene.runs("mild") == []


async def test_a_secret_of_the_gateway_is_not_read_by_a_topic() -> None:
    async with a_topic() as scene:
        bot, ana = await scene.join(BOT), await scene.join(ANA)
        id = await bot.request(note="the environment please")
        told = str((await ana.answer_to(id))["payload"])
        assert "SERVICE_TOKEN" in told
        assert SECRET not in told
        assert "[secret:" in told


async def test_an_answer_that_is_too_long_for_a_topic_is_an_error_of_its_own() -> None:
    async with a_topic(topics_max_envelope_bytes=4096) as scene:
        bot = await scene.join(BOT)
        answer = (await bot.answer_to(await bot.request(note="x" * 3500)))["payload"]
        assert "does not fit into this topic" in answer["error"]["message"]


async def test_a_call_that_waits_for_a_person_is_told_and_answered_later() -> None:
    async with a_topic(Grant(BOT, CALL, "files/plain", Effect.ASK)) as scene:
        bot = await scene.join(BOT)
        id = await bot.request(path="/held")
        told = await bot.told("pending", id)
        assert await scene.runs() == []
        status, _ = await scene.answer(told["approval"])
        assert status == 200
        answer = await bot.answer_to(id)
        assert "/held" in str(answer["payload"]["result"])
        id = await bot.request(path="/declined")
        told = await bot.told("pending", id)
        await scene.answer(told["approval"], "decline")
        assert "declined this call" in str((await bot.answer_to(id))["payload"])
        assert len(await scene.runs()) == 1


async def test_what_nobody_wants_any_more_is_called_off() -> None:
    async with a_topic() as scene:
        bot = await scene.join(BOT)
        await bot.request("hang")
        underway = scene.visitor.parts.active_calls
        async with asyncio.timeout(20):
            while not len(underway):
                await asyncio.sleep(0.01)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
        payload = {**cancel, "params": {"requestId": 7}}
        await bot.say("mcp/request:notifications/cancelled", payload, (FILES,))
        async with asyncio.timeout(20):
            while len(underway):
                await asyncio.sleep(0.01)
        await bot.answer_to(await bot.request())


async def test_limits_of_a_party_hold_in_a_topic_as_well() -> None:
    twice = LimitRule(rate=RateLimit(2, 3600.0, 2))
    async with a_topic(limits_rates=(twice,)) as scene:
        bot = await scene.join(BOT)
        answers = [(await bot.answer_to(await bot.request(n=n)))["payload"] for n in range(3)]
        assert "rate_limited" in str(answers[2])
        assert len(await scene.runs()) == 2


async def test_nobody_joins_in_the_name_of_a_member_of_the_gateway() -> None:
    parties = (FILES, INBOX)
    grants = [each for party in parties for each in may_send(party, "mcp/*")]
    async with a_topic(*grants) as scene:
        bot = await scene.join(BOT)
        for party in parties:
            with pytest.raises(InvalidStatus) as refused:
                await scene.join(party)
            assert refused.value.response.status_code in (400, 403)
        await bot.answer_to(await bot.request())


async def test_a_member_cannot_make_the_inbox_call_anything() -> None:
    """Only the inbox says what it fulfils: whoever says it in its name is somebody else."""
    async with a_topic() as scene:
        ci = await scene.join(CI)
        forged = {"protocol": "mcpx/v0.1", "id": "f-1", "from": INBOX, "kind": CALL_PLAIN}
        whole = {**forged, "to": [FILES], "payload": a_call()}
        await ci.socket.send(json.dumps(whole))
        told = await ci.until(lambda each: each["kind"] == "system/error")
        assert told["payload"]["error"] == "auth_violation"
        assert await scene.runs() == []


@pytest.mark.requirement("MCPX-7.1-monitor")
async def test_the_journal_ties_an_envelope_to_its_call() -> None:
    async with a_topic() as scene:
        bot = await scene.join(BOT)
        id = await bot.request(path="/a")
        await bot.answer_to(id)
        (tied,) = await scene.entries("topic_called")
        (done,) = await scene.entries("TOOL_EXECUTED")
        assert tied.details["envelope"] == id
        assert tied.trace == done.trace
        assert (done.actor, done.server, done.tool) == (BOT, "files", "plain")
        said = [each.details["envelope"] for each in await scene.entries("topic_message")]
        assert id in said
