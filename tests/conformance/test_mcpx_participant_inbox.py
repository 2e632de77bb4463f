"""Our participant before a server in its topic: a proposal that people approve, or do not."""

import asyncio

import pytest

from comity.errors import DECLINED, Unavailable
from comity.sdk.topics.events import MemberFulfilment, MemberMisbehaviour, Notice
from comity.sdk.topics.participant import join_topic
from tests.conformance.mounted_scene import CI, FILES, INBOX, a_topic

CALL = {"name": "plain", "arguments": {"path": "/b"}}


async def test_a_participant_proposes_and_hears_what_people_said_to_it() -> None:
    async with a_topic() as scene:
        url = scene.visitor.place.address
        key = scene.key_of(CI)
        async with asyncio.timeout(60), join_topic(url, "ops", token=key) as agent:
            assert "mcp/response:*" in agent.others[FILES]
            fulfilments, faults = agent.events(MemberFulfilment), agent.events(MemberMisbehaviour)
            notices = agent.events(Notice)
            proposed = await agent.propose("tools/call", CALL, to=FILES)
            waits = await anext(notices)
            assert isinstance(waits, Notice)
            assert (waits.about, waits.notice) == (proposed.id, "pending")
            await scene.answer(waits.ask)
            result = await proposed.result()
            assert "/b" in str(result["content"])
            fulfilled = await anext(fulfilments)
            assert isinstance(fulfilled, MemberFulfilment)
            assert fulfilled.is_as_proposed
            assert fulfilled.request.sender == INBOX
            other = await agent.propose("tools/call", CALL, to=FILES)
            waits = await anext(notices)
            assert isinstance(waits, Notice)
            await scene.answer(waits.ask, "decline")
            with pytest.raises(Unavailable, match="it was denied by") as declined:
                await other.result()
            assert declined.value.fault is DECLINED
            assert faults.taken() == []
