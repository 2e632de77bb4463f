"""An orchestrator fulfils on the word of people, learns from it, and goes by what they taught."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from comity.rules.capabilities import FULL, RESPOND
from comity.sdk.events import Chat
from comity.sdk.learning import Rule
from comity.sdk.orchestrator import AskApproval, Orchestrator
from comity.sdk.participant import Participant, join
from comity.sdk.proposing import ProposedHandle
from comity.sdk.streams import Events
from tests.sdk.room import room
from tests.sdk.scene import ANA, BEA, BOT, WORKER, write

CHIEF = "agent:chief"


@dataclass
class Crew:
    ana: Participant
    bea: Participant
    bot: Participant
    orchestrator: Orchestrator
    chats: Events[Chat]

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
        await self.heard("fulfilled")
        return handle


@asynccontextmanager
async def crew(approve: AskApproval | None = None) -> AsyncGenerator[Crew]:
    async with (
        room({ANA: FULL, BEA: FULL, CHIEF: FULL, WORKER: RESPOND}) as gateway,
        join(gateway.url, "ops", token=WORKER, serves={"write": write}),
        join(gateway.url, "ops", token=CHIEF) as chief,
        join(gateway.url, "ops", token=ANA) as ana,
        join(gateway.url, "ops", token=BEA) as bea,
        join(gateway.url, "ops", token=BOT) as bot,
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
        told = await made.heard("fulfilled")
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


@pytest.mark.parametrize("words", ["approve", "hello", "always x1", "approve x"])
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
