"""An orchestrator fulfils proposals for people and learns rules from them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.sdk.topics.events import Chat, ParticipantEventStream
from comity.sdk.topics.membership import ProposedHandle
from comity.sdk.topics.orchestrator import (
    AskApproval,
    Orchestrator,
    OrchestratorLimits,
    Rule,
    RuleLearner,
)
from comity.sdk.topics.participant import Participant, join_topic
from comity.topics.rules import FULL, LIFETIME, RESPOND, TrackedProposal
from tests.sdk.room import room
from tests.sdk.scene import ANA, BEA, BOT, WORKER, write
from tests.support.cases import loop_over

CHIEF = "agent:chief"


@dataclass
class Crew:
    ana: Participant
    bea: Participant
    bot: Participant
    orchestrator: Orchestrator
    chats: ParticipantEventStream[Chat]

    async def propose(self, path: str) -> ProposedHandle:
        params = {"name": "write", "arguments": {"path": path}}
        return await self.bot.propose("tools/call", params, to=WORKER)

    async def heard(self, start: str) -> str:
        """What the orchestrator says that begins so."""
        async with asyncio.timeout(20):
            async for chat in self.chats:
                if isinstance(chat, Chat) and chat.sender == CHIEF and chat.text.startswith(start):
                    return chat.text
        raise AssertionError

    async def approved(self, path: str) -> ProposedHandle:
        handle = await self.propose(path)
        await self.heard(BOT)
        await self.ana.chat(f"approve {handle.id[:8]}")
        await self.heard("ran")
        return handle


@asynccontextmanager
async def crew(approve: AskApproval | None = None) -> AsyncGenerator[Crew]:
    async with (
        room({ANA: FULL, BEA: FULL, CHIEF: FULL, WORKER: RESPOND}) as gateway,
        join_topic(gateway.url, "ops", token=WORKER, serves={"write": write}),
        join_topic(gateway.url, "ops", token=CHIEF) as chief,
        join_topic(gateway.url, "ops", token=ANA) as ana,
        join_topic(gateway.url, "ops", token=BEA) as bea,
        join_topic(gateway.url, "ops", token=BOT) as bot,
    ):
        orchestrator = Orchestrator(chief, WORKER, [ANA], approve=approve)
        running = asyncio.create_task(orchestrator.run())
        yield Crew(ana, bea, bot, orchestrator, ana.events(Chat))
        running.cancel()
        await asyncio.wait({running})


async def test_a_person_directs_it_and_the_proposer_is_given_the_result() -> None:
    async with crew() as made:
        handle = await made.approved("/srv/reports/a")
        assert await handle == {"content": [{"type": "text", "text": "wrote /srv/reports/a"}]}
        assert handle.proposal.fulfilled_by == CHIEF


@pytest.mark.requirement("MCPX-9.4-learn")
async def test_after_some_equal_decisions_it_asks_for_a_rule_and_then_acts_alone() -> None:
    async with crew() as made:
        first = await made.approved("/srv/reports/a")
        await made.approved("/srv/reports/b")
        await made.approved("/srv/reports/c")
        suggestion = await made.heard("I could")
        (rule,) = [word.strip("`") for word in suggestion.split("`always ")[1:]]
        await made.ana.chat(f"always {rule.split('`')[0]}")
        await made.heard("rule")
        alone = await made.propose("/srv/reports/d")
        assert "content" in await alone
        told = await made.heard("ran")
        assert f"by rule {rule.split('`')[0]}" in told
        assert f"approved by {ANA}" in told
        assert first.id[:8] in told
        # And what is not covered still waits for a person.
        await made.propose("/etc/passwd")
        assert "approve" in await made.heard(BOT)


async def test_what_a_person_fulfils_itself_is_a_precedent_and_a_callback_may_approve() -> None:
    asked: list[Rule] = []

    async def approve(rule: Rule) -> str:
        asked.append(rule)
        return ANA

    async with crew(approve) as made:
        for name in "abc":
            handle = await made.propose(f"/srv/reports/{name}")
            await made.heard(BOT)
            await made.ana.fulfil(handle.id)
        await made.heard("rule")
        assert [rule.precedents for rule in asked] != []
        assert "content" in await (await made.propose("/srv/reports/d"))


@loop_over("words", ["approve", "hello", "always x1", "approve x"])
async def test_what_is_no_order_does_nothing(words: str) -> None:
    async with crew() as made:
        handle = await made.propose("/srv/reports/a")
        await made.heard(BOT)
        await made.ana.chat(words)
        await made.bea.chat(f"approve {handle.id}")
        await made.ana.chat(f"forget {handle.id[:8]}")
        await made.heard("rule")
        assert handle.proposal.is_open
        assert made.orchestrator.learning.rules == {}


async def test_a_no_is_told_and_counts_against_a_rule() -> None:
    async with crew() as made:
        chats = made.bot.events(Chat)
        handle = await made.propose("/srv/reports/x")
        await made.heard(BOT)
        await made.ana.chat(f"decline {handle.id[:8]}")
        async with asyncio.timeout(20):
            async for chat in chats:
                if isinstance(chat, Chat) and "declined" in chat.text:
                    break
        for name in "abcd":
            await made.approved(f"/srv/reports/{name}")
        assert made.orchestrator.learning.approve("anything", ANA) is None


async def test_nobody_approves_what_it_proposed() -> None:
    async with crew() as made:
        params = {"name": "write", "arguments": {"path": "/srv/a"}}
        handle = await made.ana.propose("tools/call", params, to=WORKER)
        await made.heard(ANA)
        await made.ana.chat(f"approve {handle.id[:8]}")
        assert "cannot approve" in await made.heard(ANA)
        assert handle.proposal.is_open


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def proposed(path: str, id: str = "", tool: str = "write", **more: Any) -> TrackedProposal:
    params = {"name": tool, "arguments": {"path": path}, **more.pop("params", {})}
    proposer, method = more.pop("proposer", BOT), more.pop("method", "tools/call")
    return TrackedProposal(id or path, proposer, (), method, params, NOW, NOW + LIFETIME)


def taught(learning: RuleLearner, *paths: str) -> Rule | None:
    rule: Rule | None = None
    for path in paths:
        rule = learning.decided(proposed(path), WORKER, ANA, NOW) or rule
    return rule


def ready(bounds: OrchestratorLimits | None = None) -> RuleLearner:
    learning = RuleLearner(bounds or OrchestratorLimits())
    rule = taught(learning, "/srv/reports/a", "/srv/reports/b", "/srv/reports/c")
    assert rule is not None
    assert learning.approve(rule.id, ANA) is not None
    return learning


def test_three_equal_decisions_suggest_a_rule_that_says_what_it_stands_on() -> None:
    learning = RuleLearner(OrchestratorLimits())
    assert taught(learning, "/srv/reports/a", "/srv/reports/b") is None
    rule = taught(learning, "/srv/reports/c")
    assert rule is not None
    assert rule.precedents == ("/srv/reports/a", "/srv/reports/b", "/srv/reports/c")
    assert rule.words() == (
        "always fulfil tools/call:write under /srv/reports for agent:bot by agent:wk: "
        "approved 3 times by person:ana@example.org"
    )
    assert learning.rule_for(proposed("/srv/reports/d"), WORKER, NOW) is None


def test_a_rule_that_a_person_approved_covers_what_was_approved() -> None:
    found = ready().rule_for(proposed("/srv/reports/d"), WORKER, NOW)
    assert found is not None
    assert found.approved_by == ANA


@loop_over(
    "other",
    [
        proposed("/srv/secrets/a"),
        proposed("/srv/reports/../secrets/a"),
        proposed("/srv/reports/.hidden"),
        proposed("/srv/reports/d", tool="delete"),
        proposed("/srv/reports/d", proposer="agent:other"),
        proposed("/srv/reports/d", params={"_meta": {"sudo": True}}),
        proposed("/srv/reports/d", params={"arguments": {"path": "/srv/reports/d", "mode": 7}}),
        proposed("/srv/reports/d", params={"arguments": [1]}),
        proposed("/srv/reports/d", method="resources/read"),
    ],
)
def test_a_rule_covers_nothing_wider(other: TrackedProposal) -> None:
    assert ready().rule_for(other, WORKER, NOW) is None


def test_a_rule_is_for_the_worker_it_was_learnt_with() -> None:
    assert ready().rule_for(proposed("/srv/reports/d"), "agent:other", NOW) is None


def test_a_no_to_the_same_holds_a_suggestion_back() -> None:
    learning = RuleLearner(OrchestratorLimits())
    learning.decided(proposed("/srv/reports/x"), WORKER, ANA, NOW, approved=False)
    assert taught(learning, "/srv/reports/a", "/srv/reports/b", "/srv/reports/c") is None


def test_nobody_teaches_a_rule_about_its_own_proposals() -> None:
    learning = RuleLearner(OrchestratorLimits())
    for path in ("/srv/r/a", "/srv/r/b", "/srv/r/c"):
        assert learning.decided(proposed(path), WORKER, BOT, NOW) is None
    rule = taught(learning, "/srv/r/a", "/srv/r/b", "/srv/r/c")
    assert rule is not None
    assert learning.approve(rule.id, BOT) is None
    assert learning.approve("unknown", ANA) is None


def test_it_acts_so_often_in_a_minute_and_no_more() -> None:
    learning = ready(OrchestratorLimits(per_minute=2))
    found = [learning.rule_for(proposed(f"/srv/reports/{n}"), WORKER, NOW) for n in range(3)]
    assert [rule is not None for rule in found] == [True, True, False]
    later = NOW + timedelta(minutes=1)
    assert learning.rule_for(proposed("/srv/reports/x"), WORKER, later) is not None


@loop_over(
    "bounds",
    [OrchestratorLimits(methods=("resources/*",)), OrchestratorLimits(contexts=("read*",))],
)
def test_what_is_out_of_bounds_is_done_by_no_rule(bounds: OrchestratorLimits) -> None:
    assert ready(bounds).rule_for(proposed("/srv/reports/d"), WORKER, NOW) is None


def test_a_forgotten_rule_covers_nothing() -> None:
    learning = ready()
    (id,) = learning.rules
    assert learning.forget(id)
    assert not learning.forget(id)
    assert learning.rule_for(proposed("/srv/reports/d"), WORKER, NOW) is None


def test_another_rule_stands_beside_the_first() -> None:
    learning = ready()
    rule: Rule | None = None
    for name in "abc":
        other = proposed(f"/srv/plans/{name}", tool="read")
        rule = learning.decided(other, WORKER, ANA, NOW)
    assert rule is not None
    assert learning.approve(rule.id, ANA) is not None
    assert len(learning.rules) == 2
    assert learning.rule_for(proposed("/srv/plans/d", tool="read"), WORKER, NOW) is not None
    assert learning.rule_for(proposed("/srv/reports/d"), WORKER, NOW) is not None
