"""The sample agents of `comity demo`: they call tools over HTTP, and talk in a topic."""

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from comity.errors import MalformedMessage, Unavailable
from comity.sdk.agent import Agent
from comity.sdk.agent_results import AgentCallResult, AgentRefusal
from comity.sdk.topics.participant import Participant, join_topic

log = logging.getLogger(__name__)

PAUSE: Final = timedelta(seconds=2)
RECONNECT_DELAY: Final = timedelta(seconds=2)
ROUTINE_APPROVAL_PATIENCE: Final = timedelta(0)
GUIDED_TOOL: Final = "payments__refund"
GUIDED_ARGUMENTS: Final[Mapping[str, object]] = {
    "order": "A-1042",
    "amount": 40,
    "currency": "EUR",
}


@dataclass(frozen=True, slots=True)
class SampleCall:
    """One call of an agent."""

    tool: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])


CALLS_BY_AGENT: Final[Mapping[str, Sequence[SampleCall]]] = {
    "agent:research": (
        SampleCall("notes__search_notes", {"word": "refund"}),
        SampleCall("notes__read_note", {"title": "Roadmap"}),
        SampleCall("flaky__quote", {"item": "desk"}),
        SampleCall("reports__monthly_report", {"month": "2026-10"}),
        # It has no grant for payments, so Comity denies this.
        SampleCall("payments__refund", {"order": "A-1041", "amount": 5, "currency": "EUR"}),
        SampleCall("flaky__quote", {"item": "lamp"}),
        # There is no such note, so the tool returns an error.
        SampleCall("notes__read_note", {"title": "Budget"}),
    ),
    "agent:billing": (
        SampleCall("payments__list_invoices"),
        SampleCall("notes__search_notes", {"word": "invoices"}),
        SampleCall("flaky__quote", {"item": "paper"}),
        SampleCall("orders__plan_stop", {"stop": "Harbour Street 5"}),
        # Only a person can allow this. The agent does not wait for it.
        SampleCall("notes__delete_note", {"title": "Meeting"}),
    ),
}
"""The calls that each agent repeats."""


async def run_agent(url: str, name: str, key: str) -> None:
    """Repeat the calls of one agent until cancelled, with a new session after a failure."""
    while True:
        try:
            async with Agent(url, key, name=name) as agent:
                await _repeat_calls(agent, CALLS_BY_AGENT[name])
        except (Unavailable, MalformedMessage, OSError) as problem:
            log.info("The sample agent %s connects again: %s", name, problem)
        await asyncio.sleep(RECONNECT_DELAY.total_seconds())


async def _repeat_calls(agent: Agent, calls: Sequence[SampleCall]) -> None:
    for each in itertools.cycle(calls):
        await agent.call(each.tool, each.arguments, patience=ROUTINE_APPROVAL_PATIENCE)
        await asyncio.sleep(PAUSE.total_seconds())


async def ask_for_refund(url: str, key: str, patience: timedelta) -> AgentCallResult | AgentRefusal:
    """Call the tool that needs an approval, and wait for it."""
    async with Agent(url, key, name="agent:billing") as agent:
        return await agent.call(GUIDED_TOOL, GUIDED_ARGUMENTS, patience=patience)


TOPIC: Final = "refunds"
PROPOSER: Final = "agent:research"
ADVISER: Final = "agent:billing"
MODEL: Final = "agent:host"
PAYMENTS: Final = "server:payments"
PROPOSED_CALL: Final[Mapping[str, Any]] = {
    "name": "refund",
    "arguments": {"order": "A-1041", "amount": 5, "currency": "EUR"},
}
TALK_PAUSE: Final = timedelta(seconds=10)
PROPOSAL_PAUSE: Final = timedelta(seconds=15)
QUESTIONS: Final = (
    "Should we refund order A-1042?",
    "What is the next step for the refund of A-1042?",
)


async def run_topic(address: str, keys: Mapping[str, str], operator_token: str) -> None:
    """Run the members until cancelled. The person is a member without words of its own."""
    async with (
        join_topic(address, TOPIC, token=operator_token),
        join_topic(address, TOPIC, token=keys[PROPOSER]) as proposer,
        join_topic(address, TOPIC, token=keys[ADVISER]) as adviser,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(_propose(proposer, adviser))
        tasks.create_task(_talk(adviser))


async def _propose(proposer: Participant, adviser: Participant) -> None:
    """Keep one proposal open. `agent:research` may not pay, so a person must decide."""
    while True:
        question = await proposer.chat("Order A-1041 came back. I may not refund it.")
        await adviser.chat("Propose the call, and a person decides.", reply_to=question)
        try:
            proposed = await proposer.propose("tools/call", PROPOSED_CALL, to=PAYMENTS)
            await proposed
            await proposer.chat("The refund of A-1041 is done.", reply_to=question)
        except (Unavailable, MalformedMessage, TimeoutError) as outcome:
            log.info("The sample proposal was not fulfilled: %s", outcome)
        await asyncio.sleep(PROPOSAL_PAUSE.total_seconds())


async def _talk(adviser: Participant) -> None:
    """Ask the model and a server in turn. Each answer belongs to its question."""
    for question in itertools.cycle(QUESTIONS):
        await adviser.chat(question, to=MODEL)
        await asyncio.sleep(TALK_PAUSE.total_seconds())
        try:
            await adviser.ask("tools/call", {"name": "list_invoices"}, to=PAYMENTS)
        except (Unavailable, TimeoutError) as problem:
            log.info("The sample request in the topic failed: %s", problem)
        await asyncio.sleep(TALK_PAUSE.total_seconds())
