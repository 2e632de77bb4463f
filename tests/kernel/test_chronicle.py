"""What the journal keeps of topics, and what it never does. (D-48)"""

import json
from typing import Any

import pytest

from comity.kernel.audit_recorder import AT_ONCE
from comity.kernel.chronicle import Kept, TopicChronicle
from comity.wire.audit import Event, Result, Type
from tests.kernel.journals import FailingStore, kept
from tests.kernel.topic_house import ANA, BEA, CI, House

SECRET = "a word that nobody keeps"


async def written(act: Any, what: Kept = Kept.MCP) -> list[Event]:
    """What is in the journal after this was done in a topic."""
    found: list[Event] = []
    async with kept(FailingStore()) as journal:
        journal.noted.append(found.append)
        house = House()
        house.topics.chronicle = TopicChronicle(journal, what)
        await house.joins(ANA)
        await house.joins(CI)
        await act(house)
    return [each for each in found if "topic_" in each.type]


async def talk(house: House) -> None:
    payload = {"text": SECRET, "method": SECRET}
    house.says(ANA, "hello", payload=payload)
    house.says(CI, "wish", "mcp/proposal:tools/call:write", payload=payload, to=[BEA, ANA])
    house.says(ANA, "real", "mcp/request:tools/call:write", correlation_id="wish", payload=payload)
    house.says(CI, "bad", "admin/reset", payload=payload)
    house.goes(CI)


async def test_who_came_what_was_asked_and_refused_and_who_left() -> None:
    found = await written(talk)
    assert [(each.type, each.actor) for each in found] == [
        (Type.TOPIC_JOINED, ANA),
        (Type.TOPIC_JOINED, CI),
        (Type.TOPIC_SAID, CI),
        (Type.TOPIC_SAID, ANA),
        (Type.TOPIC_REFUSED, CI),
        (Type.TOPIC_LEFT, CI),
    ]
    wish, real, refused = found[2:5]
    assert wish.details == {
        "topic": "ops",
        "envelope": "wish",
        "kind": "mcp/proposal:tools/call:write",
        "to": [BEA, ANA],
    }
    assert real.details["correlation_id"] == "wish"
    assert refused.result is Result.BLOCKED
    assert refused.details["error"] == "capability_violation"
    assert found[0].details["capabilities"] == ["mcp/*", "chat"]


@pytest.mark.parametrize("what", Kept)
async def test_of_a_payload_nothing_is_kept(what: Kept) -> None:
    found = await written(talk, what)
    assert SECRET not in json.dumps([dict(each.details) for each in found])


@pytest.mark.parametrize(
    ("what", "ids"),
    [(Kept.NONE, []), (Kept.MCP, ["wish", "real"]), (Kept.ALL, ["hello", "wish", "real"])],
)
async def test_an_operator_says_of_which_envelopes_the_heading_is_kept(
    what: Kept, ids: list[str]
) -> None:
    found = await written(talk, what)
    said = [each.details["envelope"] for each in found if each.type == Type.TOPIC_SAID]
    assert said == ids


async def test_nobody_fills_the_journal_by_being_refused_or_coming_and_going() -> None:
    async def flood(house: House) -> None:
        for number in range(3 * AT_ONCE):
            house.says(CI, str(number), "admin/reset")
            await house.joins(BEA)
            house.goes(BEA)

    found = [each.type for each in await written(flood)]
    assert found.count(Type.TOPIC_REFUSED) == AT_ONCE
    assert found.count(Type.TOPIC_JOINED) == AT_ONCE + 2
    assert found.count(Type.TOPIC_LEFT) == AT_ONCE


async def test_what_others_chose_is_cut_to_a_length() -> None:
    async def long(house: House) -> None:
        everybody = [f"agent:{number}" for number in range(100)]
        house.says(CI, "1", "mcp/proposal:" + "x" * 600, to=everybody)

    (said,) = [each for each in await written(long) if each.type == Type.TOPIC_SAID]
    assert said.details["kind"] == "mcp/proposal:" + "x" * 243
    assert said.details["to"] == [f"agent:{number}" for number in range(20)]


async def test_where_the_journal_is_full_nobody_waits() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        store.gate.clear()
        house = House()
        house.topics.chronicle = TopicChronicle(journal)
        await house.joins(CI)
        for number in range(20_000):
            house.says(CI, str(number), "mcp/proposal:x")
            if not journal.has_room:
                break
        house.says(CI, "last", "mcp/proposal:x")
        assert house.ears[CI].said[-1] == "last"
        store.gate.set()
