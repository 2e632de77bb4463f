"""A call of a topic before the step where a person is asked: one that was approved is not asked."""

import asyncio
from typing import Any

import pytest

from comity.kernel.outbox import Outbox
from comity.kernel.topic_outbox import Approval, HeldInTopic, InTopics, TopicOutbox, good_for
from comity.wire import jsonrpc, mcp
from comity.wire.asks import Ask, Verdict
from tests.kernel.asking import AGENT, ANA, ARGUMENTS, DONE, Bed, asking
from tests.kernel.desks import MODERN

DEFINITION = "delete first"


async def called(bed: Bed, approval: Approval | None, told: list[Ask]) -> Outbox:
    outbox = TopicOutbox()
    outbox.actor, outbox.approval, outbox.on_held = AGENT, approval, told.append
    params = {"name": "delete", "arguments": ARGUMENTS, "_meta": MODERN}
    frame = jsonrpc.decode(jsonrpc.encode(jsonrpc.request(1, mcp.CALL_TOOL, params)))
    await bed.front.desk.ask_modern(frame, outbox, ((mcp.METHOD_HEADER, b"tools/call"),))
    return outbox


def in_topics(bed: Bed) -> bytes:
    key = bed.holding.key
    bed.admission.asking = InTopics(bed.holding, key)
    bed.holding.forms.insert(0, HeldInTopic())
    return key


def result_in(outbox: Outbox) -> Any:
    return jsonrpc.value(jsonrpc.members(outbox.take()[-1])["result"])


async def test_what_was_approved_as_a_proposal_is_not_asked_about_again() -> None:
    async with asking() as bed:
        key, told = in_topics(bed), list[Ask]()
        approval = Approval("ask-1", good_for("srv", "delete", DEFINITION, ARGUMENTS, key))
        outbox = await called(bed, approval, told)
        async with asyncio.timeout(10):
            await outbox.until_final()
        assert result_in(outbox)["content"] == DONE["content"]
        assert told == []


@pytest.mark.parametrize(
    "good",
    [
        ("srv", "delete", "delete second", ARGUMENTS),
        ("srv", "delete", DEFINITION, {"path": "/tmp/y"}),
        ("srv", "other", DEFINITION, ARGUMENTS),
    ],
)
async def test_what_is_not_exactly_that_waits_for_a_person(
    good: tuple[str, str, str, object],
) -> None:
    async with asking() as bed:
        key, told = in_topics(bed), list[Ask]()
        outbox = await called(bed, Approval("ask-1", good_for(*good, key)), told)
        async with asyncio.timeout(10):
            while not told:
                await asyncio.sleep(0)
        assert not outbox.final
        await bed.approvals.answer(ANA, told[0].id, Verdict.ACCEPT)
        async with asyncio.timeout(10):
            await outbox.until_final()
        assert result_in(outbox)["content"] == DONE["content"]
