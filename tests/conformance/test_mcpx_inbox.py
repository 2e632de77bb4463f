"""Proposals in the one inbox: approved at any door, done once, and told to whom they concern."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from comity.approvals.model import ANSWER_VERB
from comity.mcp.actors import CALL
from comity.policy.grants import Effect, Grant
from comity.policy.risk import ToolPolicy
from comity.topics.proposals import FULFILS
from tests.conformance.mounted_scene import (
    ANA,
    BEA,
    BOT,
    CI,
    FILES,
    INBOX,
    Heard,
    Member,
    a_topic,
    may_send,
)

MAY_ANSWER = Grant(BEA, ANSWER_VERB, "*", Effect.ALLOW)
MAY_CALL = Grant(BEA, CALL, "files/*", Effect.ALLOW)
CHAIN = ("proposal", "request", "response")
UNDER_PROJECT: dict[str, Any] = {"paths": {"/path": {"under": "/project"}}, "only": ["path"]}


def is_response(each: Heard) -> bool:
    return each["kind"].startswith("mcp/response:tools/call")


async def pending(member: Member, proposal: str) -> str:
    return (await member.told("pending", proposal))["approval"]


@pytest.mark.requirement(
    "MCPX-2.1-governance",
    "MCPX-2.1-isolation",
    "MCPX-3.2.1-fulfil",
    "MCPX-3.2.1-corr",
    "MCPX-3.2.1-respto",
    "MCPX-3.2.1-respcorr",
)
async def test_a_proposal_that_is_approved_at_another_door_is_done_once_and_told() -> None:
    async with a_topic() as scene:
        ci, ana = await scene.join(CI, "directed"), await scene.join(ANA)
        proposal = await ci.propose(path="/b", token="tell-nobody-of-this")
        ask = await pending(ci, proposal)
        status, listed = await scene.guest().http("GET", "/api/approvals")
        assert status == 200
        (shown,) = [each for each in listed["approvals"] if each["id"] == ask]
        assert shown["requester"] == CI
        assert shown["about"]["topic"] == "ops"
        assert shown["about"]["proposal"] == proposal
        assert "tell-nobody-of-this" not in str(shown)
        assert await scene.runs() == []
        assert (await scene.answer(ask))[0] == 200
        answer = await ci.until(is_response)
        fulfilment = await ana.until(lambda each: each["id"] == answer["correlation_id"])
        assert fulfilment["from"] == INBOX
        assert fulfilment["correlation_id"] == proposal
        assert fulfilment["to"] == [FILES]
        behind = {"approval": ask, "approved_by": [ANA], "proposal": proposal, "proposer": CI}
        assert fulfilment["payload"]["params"]["_meta"][FULFILS] == behind
        assert answer["to"] == [INBOX, CI, ANA]
        (run,) = await scene.runs()
        assert run["params"]["arguments"] == {"path": "/b", "token": "tell-nobody-of-this"}
        assert "_meta" not in run["params"] or FULFILS not in run["params"]["_meta"]


@pytest.mark.requirement("MCPX-3.2.1-audit", "MCPX-7.1-monitor")
async def test_one_trace_tells_of_the_ask_the_fulfilment_and_the_call() -> None:
    async with a_topic() as scene:
        ci = await scene.join(CI)
        proposal = await ci.propose(path="/b")
        ask = await pending(ci, proposal)
        await scene.answer(ask)
        await ci.until(is_response)
        (opened,) = await scene.entries("approval_requested")
        (fulfilled,) = await scene.entries("proposal_fulfilled")
        (done,) = await scene.entries("TOOL_EXECUTED")
        assert opened.trace == fulfilled.trace == done.trace
        assert (fulfilled.actor, done.actor) == (ANA, ANA)
        assert fulfilled.details["proposal"] == proposal
        assert fulfilled.details["proposer"] == CI
        assert fulfilled.details["approval"] == ask
        kinds = {str(each.details["kind"]) for each in await scene.entries("topic_message")}
        assert kinds == {f"mcp/{each}:tools/call:plain" for each in CHAIN}


@pytest.mark.requirement("MCPX-3.2.1-multistep")
async def test_a_proposal_that_needs_two_people_waits_for_the_second() -> None:
    twice = {"plain": ToolPolicy(approvals=2)}
    async with a_topic(MAY_ANSWER, MAY_CALL, tools=twice) as scene:
        ci = await scene.join(CI)
        ask = await pending(ci, await ci.propose(path="/b"))
        assert (await scene.answer(ask))[1]["state"] == "pending"
        assert (await scene.answer(ask))[0] == 400
        assert await scene.runs() == []
        assert (await scene.answer(ask, party=BEA))[0] == 200
        await ci.until(is_response)
        (run,) = await scene.runs()
        assert run["params"]["arguments"] == {"path": "/b"}
        (done,) = await scene.entries("proposal_fulfilled")
        assert done.details["approved_by"] == [ANA, BEA]


async def test_of_two_who_fulfil_one_is_first_and_the_other_is_told_and_written_down() -> None:
    async with a_topic(MAY_CALL) as scene:
        ci, ana, bea = [await scene.join(party) for party in (CI, ANA, BEA)]
        proposal = await ci.propose(path="/b")
        ask = await pending(ci, proposal)
        ids = await asyncio.gather(
            ana.request(about=proposal, path="/b"), bea.request(about=proposal, path="/b")
        )
        answers = [
            (await each.answer_to(id))["payload"] for each, id in zip((ana, bea), ids, strict=True)
        ]
        assert sorted("result" in each for each in answers) == [False, True]
        (refused,) = [each for each in answers if "error" in each]
        assert "a proposal runs only once" in refused["error"]["message"]
        assert len(await scene.runs()) == 1
        (warned,) = await scene.entries("proposal_repeated")
        assert warned.details["proposal"] == proposal
        assert (await scene.answer(ask))[0] != 200


async def test_an_answer_and_a_member_at_the_same_time_are_one_call() -> None:
    async with a_topic(MAY_CALL) as scene:
        ci, bea = await scene.join(CI), await scene.join(BEA)
        for number in range(5):
            proposal = await ci.propose(number=number)
            ask = await pending(ci, proposal)
            id, _ = await asyncio.gather(
                bea.request(about=proposal, number=number), scene.answer(ask)
            )
            await bea.answer_to(id)
            await ci.until(lambda each, id=proposal: is_response(each) and CI in each["to"])
            ci.heard.clear()
        numbers: list[int] = [r["params"]["arguments"]["number"] for r in await scene.runs()]
        assert sorted(numbers) == [0, 1, 2, 3, 4]


async def test_nobody_answers_what_it_proposes_itself_and_no_agent_answers() -> None:
    async with a_topic(MAY_ANSWER, Grant(BOT, ANSWER_VERB, "*", Effect.ALLOW)) as scene:
        ana, bot = await scene.join(ANA), await scene.join(BOT)
        ask = await pending(ana, await ana.propose(path="/own"))
        for party, because in ((ANA, "your own request"), (BOT, "only a person")):
            status, said = await scene.answer(ask, party=party)
            assert status == 400
            assert because in str(said)
        call = {"name": "answer_approval", "arguments": {"approval": ask, "verdict": "accept"}}
        for member in (ana, bot):
            said = (await member.ask("tools/call", call, INBOX))["result"]
            assert said["isError"]
        assert await scene.runs() == []
        assert (await scene.answer(ask, "decline", BEA))[0] == 200


async def test_an_answer_lets_nobody_do_what_neither_of_them_may() -> None:
    async with a_topic(MAY_ANSWER) as scene:
        ci = await scene.join(CI)
        ask = await pending(ci, await ci.propose(path="/b"))
        status, said = await scene.answer(ask, party=BEA)
        assert status == 400
        assert "an approval grants nothing" in str(said)
        assert await scene.runs() == []
        assert (await scene.answer(ask, party=ANA))[0] == 200
        await ci.until(is_response)
        (done,) = [e for e in await scene.entries("TOOL_EXECUTED") if e.tool == "plain"]
        assert done.actor == ANA


async def test_a_proposer_who_may_with_a_yes_does_it_by_its_own_grants() -> None:
    asked = Grant(CI, CALL, "files/plain", Effect.ASK)
    async with a_topic(MAY_ANSWER, asked) as scene:
        ci = await scene.join(CI)
        ask = await pending(ci, await ci.propose(path="/b"))
        assert (await scene.answer(ask, party=BEA))[0] == 200
        await ci.until(is_response)
        (done,) = await scene.entries("TOOL_EXECUTED")
        assert done.actor == CI
        assert done.details["answered_by"] == ask
        assert len(await scene.entries("approval_requested")) == 1


async def test_who_proposes_is_told_that_it_was_declined_or_that_nobody_answered() -> None:
    async with a_topic() as scene:
        ci = await scene.join(CI)
        first = await ci.propose(path="/a")
        await scene.answer(await pending(ci, first), "decline")
        told = await ci.told("denied", first)
        assert ANA in told["message"]
        second = await ci.propose(path="/b")
        await pending(ci, second)
        approvals = scene.visitor.parts.approval_components.approvals
        real = approvals.clock
        approvals.clock = lambda: real() + timedelta(minutes=5, seconds=1)
        await approvals.expire_overdue()
        await ci.told("expired", second)
        assert await scene.runs() == []


async def test_a_proposal_whose_kind_lies_is_asked_of_nobody() -> None:
    async with a_topic() as scene:
        ci = await scene.join(CI)
        payload: Heard = {"method": "tools/call", "params": {"name": "hang", "arguments": {}}}
        id = await ci.say("mcp/proposal:tools/call:plain", payload, (FILES,))
        told = await ci.answer_to(id)
        assert told["payload"]["error"] == "kind_mismatch"
        _, listed = await scene.guest().http("GET", "/api/approvals")
        assert listed["approvals"] == []


@pytest.mark.requirement("MCPX-2.1-progressive", "MCPX-9.4-delegated")
async def test_what_people_answered_once_and_for_all_is_fulfilled_at_once() -> None:
    asked = Grant(CI, CALL, "files/mild", Effect.ASK)
    async with a_topic(asked) as scene:
        standing = Grant(CI, CALL, "files/mild", Effect.ALLOW, where=UNDER_PROJECT)
        await scene.grant(standing)
        (grant,) = [
            each
            for each in await scene.visitor.parts.snapshot.records.grants.page()
            if each.where is not None
        ]
        ci = await scene.join(CI)
        inside = await ci.propose("mild", path="/project/a")
        await ci.until(lambda each: is_response(each) and "/project/a" in str(each))
        (run,) = await scene.runs("mild")
        assert run["params"]["arguments"] == {"path": "/project/a"}
        (fulfilled,) = await scene.entries("proposal_fulfilled")
        assert fulfilled.details["proposal"] == inside
        assert fulfilled.details["grant"] == grant.id
        (done,) = [e for e in await scene.entries("TOOL_EXECUTED") if e.tool == "mild"]
        assert (done.actor, done.details["answered_by"]) == (CI, grant.id)
        outside = await ci.propose("mild", path="/etc/passwd")
        await pending(ci, outside)
        assert len(await scene.runs("mild")) == 1
        assert len(await scene.entries("approval_requested")) == 1


@pytest.mark.requirement("MCPX-2.1-governance")
async def test_asks_of_the_gateway_are_told_in_a_topic_and_answered_there() -> None:
    held = Grant(BOT, CALL, "files/plain", Effect.ASK)
    async with a_topic(held, asks=True) as scene:
        bot, ana, bea = [await scene.join(party) for party in (BOT, ANA, BEA)]
        id = await bot.request(path="/held")
        put = await ana.until(
            lambda each: each["kind"] == "mcp/proposal:tools/call:answer_approval"
        )
        assert put["from"] == INBOX
        shown = put["payload"]["params"]["_meta"]["dev.comity/approval"]
        assert shown["about"]["arguments"] == {"path": "/held"}
        call = put["payload"]["params"]
        refused = (await bea.ask("tools/call", call, INBOX))["result"]
        assert refused["isError"]
        listed = (await ana.ask("tools/call", {"name": "list_approvals"}, INBOX))["result"]
        assert [each["id"] for each in listed["structuredContent"]["approvals"]] == [shown["id"]]
        said = (await ana.ask("tools/call", call, INBOX))["result"]
        assert "isError" not in said
        assert "result" in (await bot.answer_to(id))["payload"]
        told = await bea.told("approval_ended", put["id"])
        assert told["state"] == "approved"
        assert len(await scene.runs()) == 1


async def test_what_is_proposed_to_another_member_is_put_before_people_too() -> None:
    worker = may_send("agent:worker", "mcp/response:*")
    async with a_topic(*worker, asks=True, mounts=()) as scene:
        ci, other = await scene.join(CI), await scene.join("agent:worker")
        proposal = await ci.propose("dig", "agent:worker", depth=2)
        ask = await pending(ci, proposal)
        assert (await scene.answer(ask))[0] == 200
        asked = await other.until(lambda each: each["kind"] == "mcp/request:tools/call:dig")
        assert (asked["from"], asked["correlation_id"]) == (INBOX, proposal)
        assert asked["payload"]["params"]["arguments"] == {"depth": 2}
        nowhere = await ci.propose("dig", "", depth=3)
        await ci.told("unaddressed", nowhere)


@pytest.mark.requirement("MCPX-9.4-members")
async def test_equal_proposals_to_a_member_become_a_rule_that_a_person_accepts() -> None:
    worker = may_send("agent:worker", "mcp/response:*")
    rule = {"suggestions_min_approvals": 4, "suggestions_min_people": 1}
    async with a_topic(*worker, asks=True, mounts=(), **rule) as scene:
        ci, other = await scene.join(CI), await scene.join("agent:worker")

        async def runs_without_a_person(**arguments: Any) -> bool:
            """Propose; approve it if a person is needed; the worker answers."""
            proposal = await ci.propose("write_file", "agent:worker", **arguments)
            first = await ci.until(
                lambda each: is_notice(each, proposal) or is_fulfilment(each, proposal)
            )
            is_alone = first["kind"] != "system/notice"
            if not is_alone:
                assert (await scene.answer(first["payload"]["approval"]))[0] == 200
            asked = await other.until(lambda each: is_fulfilment(each, proposal))
            assert asked["payload"]["params"]["arguments"] == arguments
            reply: Heard = {
                "jsonrpc": "2.0",
                "id": asked["payload"]["id"],
                "result": {"content": []},
            }
            kind = "mcp/response:tools/call:write_file"
            id = await other.say(kind, reply, (asked["from"],), asked["id"])
            await ci.until(lambda each: each["id"] == id)
            return is_alone

        assert not any([await runs_without_a_person(path="/notes/a") for _ in range(4)])
        _, listed = await scene.guest().http("GET", "/api/grant-suggestions")
        (suggestion,) = listed["suggestions"]
        assert "agent:worker/write_file" in suggestion["description"]
        accepted = {"id": suggestion["id"], "decision": "accept"}
        status, _ = await scene.guest().http("POST", "/api/grant-suggestions", accepted)
        assert status == 200
        assert await runs_without_a_person(path="/notes/a")
        assert not await runs_without_a_person(path="/etc/passwd")


def is_notice(each: Heard, proposal: str) -> bool:
    return each["kind"] == "system/notice" and each.get("correlation_id") == proposal


def is_fulfilment(each: Heard, proposal: str) -> bool:
    is_request = each["kind"] == "mcp/request:tools/call:write_file"
    return is_request and each["correlation_id"] == proposal


async def test_a_topic_that_everybody_left_has_nothing_done() -> None:
    async with a_topic() as scene:
        ci = await scene.join(CI)
        ask = await pending(ci, await ci.propose(path="/b"))
        await ci.socket.close()
        approvals = scene.visitor.parts.approval_components.approvals
        async with asyncio.timeout(20):
            while (found := await approvals.store.get(ask)) is None or found.is_open:
                await asyncio.sleep(0.02)
        assert found.state == "withdrawn"
        assert await scene.runs() == []
