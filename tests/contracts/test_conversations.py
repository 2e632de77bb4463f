"""Conversations as every store keeps them: begun once, taken one by one, written once."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.ports import Records
from comity.ports.conversations import ConversationRecords, Facts, KeptTurn, State
from comity.ports.models import Step, ToolResult, ToolUse
from comity.wire.contents import Block, said
from comity.wire.errors import MalformedMessage
from comity.wire.inference import Usage
from tests.contracts.stores import Open

NOW = datetime(2026, 11, 3, 12, 0, 0, 123456, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SOON = NOW + 30 * SECOND
STEPS = (
    Step("assistant", said("let me look"), (ToolUse("t1", "files.read", {"path": ["a", 1]}),)),
    Step("user", results=(ToolResult("t1", (Block("image", data="AA==", mime="image/png"),)),)),
    Step("assistant", said("it says \0 nothing")),
)
FACTS = Facts("m-1", Usage(12, 3), ("memory",), ("compliance",), 1, "", State.DONE)


def turn_no(number: int, conversation: str = "talk") -> KeptTurn:
    errand = {"party": "agent:host", "say_in": ["topic:talk"], "depth": 0}
    return KeptTurn(f"inf_{number}", f"push/{number}", conversation, errand, said("hello"), NOW)


async def ended(talks: ConversationRecords, turn: KeptTurn, state: State = State.DONE) -> KeptTurn:
    done = replace(turn, state=state, steps=STEPS, said=said("done"), facts=FACTS, ended_at=NOW)
    assert await talks.write("h", done)
    return done


async def test_a_turn_comes_back_as_it_was_written(records: Records, again: Open) -> None:
    begun = await records.conversations.begin(turn_no(1))
    assert replace(begun, number=0) == turn_no(1)
    other = (await again()).conversations
    assert await other.get("inf_1") == begun
    assert await other.page() == [begun]
    assert await other.page(conversation="talk") == [begun]
    assert await other.page(conversation="other") == []
    assert await other.page(before=begun.number) == []
    assert await other.get("inf_2") is None
    assert await other.get("\0") is None


async def test_no_cause_has_two_turns(records: Records, again: Open) -> None:
    other = (await again()).conversations
    first = await records.conversations.begin(turn_no(1))
    same = replace(turn_no(2, "elsewhere"), cause=first.cause)
    assert await other.begin(same) == first
    assert await other.page(conversation="elsewhere") == []
    (claimed,) = await other.claim("h", NOW, SOON, 9)
    done = await ended(other, claimed)
    assert (await records.conversations.begin(same)).state is done.state
    # The conversation in which it was not begun begins at its first place.
    assert (await other.begin(turn_no(3, "elsewhere"))).index == 0


async def test_of_many_who_begin_the_same_one_does(records: Records, again: Open) -> None:
    stores = [records, await again(), await again()]
    begun = await asyncio.gather(
        *(
            store.conversations.begin(replace(turn_no(number), cause=f"push/{number % 5}"))
            for number, store in enumerate(stores * 10)
        )
    )
    assert len({each.id for each in begun}) == 5
    assert sorted({each.index for each in begun}) == [0, 1, 2, 3, 4]


async def test_turns_of_a_conversation_are_taken_in_order(records: Records) -> None:
    talks = records.conversations
    begun = [await talks.begin(turn_no(number)) for number in range(3)]
    await talks.begin(turn_no(7, "other"))
    assert [each.index for each in begun] == [0, 1, 2]
    first = await talks.claim("h", NOW, SOON, 9)
    assert [each.id for each in first] == ["inf_0", "inf_7"]
    assert [each.attempts for each in first] == [1, 1]
    assert await talks.claim("h", NOW, SOON, 9) == []
    decided = replace(first[0], state=State.DECIDED, steps=STEPS, said=said("x"))
    assert await talks.write("h", decided)
    assert await talks.claim("h", NOW, SOON, 9) == []
    await ended(talks, first[0])
    assert [each.id for each in await talks.claim("h", NOW, SOON, 9)] == ["inf_1"]


async def test_a_turn_that_failed_holds_up_no_other(records: Records) -> None:
    talks = records.conversations
    for number in range(2):
        await talks.begin(turn_no(number))
    (first,) = await talks.claim("h", NOW, SOON, 9)
    assert await talks.write("h", replace(first, state=State.FAILED, ended_at=NOW))
    assert [each.id for each in await talks.claim("h", NOW, SOON, 9)] == ["inf_1"]
    assert await talks.history("talk", 1, 9) == []


async def test_what_lapsed_is_taken_by_another_and_written_by_it_alone(
    records: Records, again: Open
) -> None:
    talks, other = records.conversations, (await again()).conversations
    await talks.begin(turn_no(1))
    (mine,) = await talks.claim("a/1", NOW, SOON, 9)
    assert await other.claim("b/1", NOW, SOON, 9) == []
    assert await talks.write("a/1", replace(mine, steps=STEPS[:1]))
    assert await talks.renew("a/1", mine.id, SOON + SECOND)
    assert await other.claim("b/1", SOON, SOON + 30 * SECOND, 9) == []
    (taken,) = await other.claim("b/1", SOON + SECOND, SOON + 60 * SECOND, 9)
    assert taken.attempts == 2
    assert taken.steps == STEPS[:1]
    assert not await talks.renew("a/1", mine.id, SOON + 90 * SECOND)
    assert not await talks.write("a/1", replace(mine, state=State.DONE, said=said("twice")))
    assert await other.write("b/1", replace(taken, state=State.DONE, said=said("once")))
    found = await talks.get(mine.id)
    assert found is not None
    assert found.said == said("once")


async def test_what_is_to_be_tried_again_waits_until_then(records: Records) -> None:
    talks = records.conversations
    await talks.begin(turn_no(1))
    (claimed,) = await talks.claim("h", NOW, SOON, 9)
    assert await talks.write("h", claimed, again_at=NOW + 5 * SECOND)
    assert await talks.claim("h", NOW + 4 * SECOND, SOON, 9) == []
    assert len(await talks.claim("h", NOW + 5 * SECOND, SOON, 9)) == 1


async def test_a_node_that_comes_back_takes_at_once_what_it_had(records: Records) -> None:
    talks = records.conversations
    await talks.begin(turn_no(1))
    await talks.begin(turn_no(2, "other"))
    (mine, _) = await talks.claim("a%/1", NOW, SOON, 9)
    await talks.abandon("a_/")
    assert await talks.claim("b/1", NOW, SOON, 9) == []
    await talks.abandon("a%/")
    assert len(await talks.claim("b/1", NOW, SOON, 9)) == 2
    assert not await talks.write("a%/1", mine)


async def test_of_many_who_claim_each_turn_goes_to_one(records: Records, again: Open) -> None:
    stores = [records, await again(), await again()]
    for number in range(30):
        await records.conversations.begin(turn_no(number, f"talk {number % 10}"))
    taken: list[str] = []

    async def work(holder: str, talks: ConversationRecords) -> None:
        while len(taken) < 30:
            for each in await talks.claim(holder, NOW, SOON, 2):
                taken.append(each.id)
                done = replace(each, state=State.DONE, steps=STEPS, ended_at=NOW)
                assert await talks.write(holder, done)

    async with asyncio.timeout(60):
        await asyncio.gather(
            *(work(f"n{number}", store.conversations) for number, store in enumerate(stores))
        )
    assert sorted(taken) == sorted(f"inf_{number}" for number in range(30))


async def test_the_past_of_a_conversation_is_what_was_said_in_it(records: Records) -> None:
    talks = records.conversations
    for number in range(4):
        begun = await talks.begin(turn_no(number))
        (claimed,) = await talks.claim("h", NOW, SOON, 9)
        state = State.FAILED if number == 1 else State.WITHHELD if number == 2 else State.DONE
        await ended(talks, claimed, state)
        assert begun.index == number
    past = await talks.history("talk", 4, 9)
    assert [each.id for each in past] == ["inf_3", "inf_2", "inf_0"]
    assert [each.id for each in await talks.history("talk", 3, 1)] == ["inf_2"]
    assert past[0].steps == STEPS
    assert past[0].facts == FACTS
    assert await talks.history("\0", 3, 1) == []


async def test_what_is_old_is_forgotten_and_that_it_was_is_not(records: Records) -> None:
    talks = records.conversations
    await talks.begin(turn_no(1))
    (claimed,) = await talks.claim("h", NOW, SOON, 9)
    await ended(talks, claimed)
    assert await talks.prune(NOW) == 0
    assert await talks.prune(NOW + SECOND) == 1
    assert await talks.prune(NOW + SECOND) == 0
    found = await talks.begin(replace(turn_no(2), cause=claimed.cause))
    assert (found.id, found.content, found.steps, found.said) == ("inf_1", (), (), ())
    assert await talks.history("talk", 9, 9) == []


async def test_what_cannot_be_written_down_is_not_begun(records: Records) -> None:
    for wrong in (
        replace(turn_no(1), conversation="\0"),
        replace(turn_no(1), cause=""),
        replace(turn_no(1), at=NOW.replace(tzinfo=None)),
    ):
        with pytest.raises(MalformedMessage):
            await records.conversations.begin(wrong)
