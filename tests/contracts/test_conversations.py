"""Conversations as every store keeps them: begun once, taken one by one, written once."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.app.records import RecordStores
from comity.errors import MalformedMessage
from comity.inference.messages import ContentBlock, TokenUsage, to_text_content
from comity.inference.model import ConversationStep, ToolResult, ToolUse
from comity.live.turns.model import (
    InjectedText,
    RewrittenPart,
    StoredTurn,
    TurnFacts,
    TurnHookTexts,
    TurnState,
    TurnStore,
)
from comity.toolkit.jobs import QueuedJob, WorkClaim
from tests.contracts.stores import Open

NOW = datetime(2026, 11, 3, 12, 0, 0, 123456, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SOON = NOW + 30 * SECOND
STEPS = (
    ConversationStep(
        "assistant",
        to_text_content("let me look"),
        (ToolUse("t1", "files.read", {"path": ["a", 1]}),),
    ),
    ConversationStep(
        "user", results=(ToolResult("t1", (ContentBlock("image", data="AA==", mime="image/png"),)),)
    ),
    ConversationStep("assistant", to_text_content("it says \0 nothing")),
)
FACTS = TurnFacts("m-1", TokenUsage(12, 3), ("memory",), ("compliance",), 1, "", TurnState.DONE)
HOOK_TEXTS = TurnHookTexts(
    (InjectedText("memory", "facts", "beforeUser", "a \0 text"),),
    (RewrittenPart("kept ", 4, "new"), RewrittenPart(" text")),
)


def turn_no(number: int, conversation: str = "talk") -> StoredTurn:
    errand = {"party": "agent:host", "say_in": ["topic:talk"], "depth": 0}
    return StoredTurn(
        f"inf_{number}", f"push/{number}", conversation, errand, to_text_content("hello"), NOW
    )


type Claimed = tuple[QueuedJob, StoredTurn]


async def claimed_by(
    talks: TurnStore, holder: str = "h", now: datetime = NOW, until: datetime = SOON
) -> list[Claimed]:
    """The turns that a holder gets, each with its job."""
    jobs = await talks.jobs.claim(WorkClaim(holder, until), now, 9)
    found = [(job, await talks.read(job)) for job in jobs]
    return [(job, turn) for job, turn in found if turn is not None]


async def ended(
    talks: TurnStore, claimed: Claimed, state: TurnState = TurnState.DONE
) -> StoredTurn:
    job, turn = claimed
    done = replace(
        turn,
        state=state,
        steps=STEPS,
        said=to_text_content("done"),
        facts=FACTS,
        hook_texts=HOOK_TEXTS,
        ended_at=NOW,
    )
    assert await talks.write(job, done)
    return done


async def test_a_turn_comes_back_as_it_was_written(records: RecordStores, again: Open) -> None:
    begun = await records.topic_messages.begin(turn_no(1))
    assert replace(begun, number=0) == turn_no(1)
    other = (await again()).topic_messages
    assert await other.get("inf_1") == begun
    assert await other.page() == [begun]
    assert await other.page(conversation="talk") == [begun]
    assert await other.page(conversation="other") == []
    assert await other.page(before=begun.number) == []
    assert await other.get("inf_2") is None
    assert await other.get("\0") is None


async def test_no_cause_has_two_turns(records: RecordStores, again: Open) -> None:
    other = (await again()).topic_messages
    first = await records.topic_messages.begin(turn_no(1))
    same = replace(turn_no(2, "elsewhere"), cause=first.cause)
    assert await other.begin(same) == first
    assert await other.page(conversation="elsewhere") == []
    (claimed,) = await claimed_by(other)
    done = await ended(other, claimed)
    assert (await records.topic_messages.begin(same)).state is done.state
    # The conversation in which it was not begun begins at its first place.
    assert (await other.begin(turn_no(3, "elsewhere"))).index == 0


async def test_of_many_who_begin_the_same_one_does(records: RecordStores, again: Open) -> None:
    stores = [records, await again(), await again()]
    begun = await asyncio.gather(
        *(
            store.topic_messages.begin(replace(turn_no(number), cause=f"push/{number % 5}"))
            for number, store in enumerate(stores * 10)
        )
    )
    assert len({each.id for each in begun}) == 5
    assert sorted({each.index for each in begun}) == [0, 1, 2, 3, 4]


async def test_turns_of_a_conversation_are_taken_in_order(records: RecordStores) -> None:
    talks = records.topic_messages
    begun = [await talks.begin(turn_no(number)) for number in range(3)]
    await talks.begin(turn_no(7, "other"))
    assert [each.index for each in begun] == [0, 1, 2]
    first = await claimed_by(talks)
    assert [each.id for _, each in first] == ["inf_0", "inf_7"]
    assert [each.attempts for _, each in first] == [1, 1]
    assert await claimed_by(talks) == []
    job, turn = first[0]
    decided = replace(turn, state=TurnState.DECIDED, steps=STEPS, said=to_text_content("x"))
    assert await talks.write(job, decided)
    assert await claimed_by(talks) == []
    await ended(talks, first[0])
    assert [each.id for _, each in await claimed_by(talks)] == ["inf_1"]


async def test_a_turn_that_failed_holds_up_no_other(records: RecordStores) -> None:
    talks = records.topic_messages
    for number in range(2):
        await talks.begin(turn_no(number))
    (first,) = await claimed_by(talks)
    await ended(talks, first, TurnState.FAILED)
    assert [each.id for _, each in await claimed_by(talks)] == ["inf_1"]
    assert await talks.history("talk", 1, 9) == []


async def test_what_lapsed_is_taken_by_another_and_written_by_it_alone(
    records: RecordStores, again: Open
) -> None:
    talks, other = records.topic_messages, (await again()).topic_messages
    await talks.begin(turn_no(1))
    ((job, mine),) = await claimed_by(talks, "a/1")
    assert await claimed_by(other, "b/1") == []
    assert await talks.write(job, replace(mine, steps=STEPS[:1]))
    ((heirs, taken),) = await claimed_by(other, "b/1", SOON + SECOND, SOON + 60 * SECOND)
    assert taken.attempts == 2
    assert taken.steps == STEPS[:1]
    twice = replace(mine, state=TurnState.DONE, said=to_text_content("twice"))
    assert not await talks.write(job, twice)
    assert not await talks.write(job, replace(mine, steps=STEPS))
    once = replace(taken, state=TurnState.DONE, said=to_text_content("once"))
    assert await other.write(heirs, once)
    found = await talks.get(mine.id)
    assert found is not None
    assert found.said == to_text_content("once")


async def test_what_is_to_be_tried_again_waits_until_then(records: RecordStores) -> None:
    talks = records.topic_messages
    await talks.begin(turn_no(1))
    ((job, turn),) = await claimed_by(talks)
    assert await talks.retry(job, turn, NOW + 5 * SECOND)
    assert await claimed_by(talks, now=NOW + 4 * SECOND) == []
    assert len(await claimed_by(talks, now=NOW + 5 * SECOND)) == 1


async def test_the_past_of_a_conversation_is_what_was_said_in_it(records: RecordStores) -> None:
    talks = records.topic_messages
    for number in range(4):
        begun = await talks.begin(turn_no(number))
        (claimed,) = await claimed_by(talks)
        state = (
            TurnState.FAILED
            if number == 1
            else TurnState.WITHHELD
            if number == 2
            else TurnState.DONE
        )
        await ended(talks, claimed, state)
        assert begun.index == number
    past = await talks.history("talk", 4, 9)
    assert [each.id for each in past] == ["inf_3", "inf_2", "inf_0"]
    assert [each.id for each in await talks.history("talk", 3, 1)] == ["inf_2"]
    assert past[0].steps == STEPS
    assert past[0].facts == FACTS
    assert past[0].hook_texts == HOOK_TEXTS
    assert await talks.history("\0", 3, 1) == []


async def test_what_is_old_is_forgotten_and_that_it_was_is_not(records: RecordStores) -> None:
    talks = records.topic_messages
    await talks.begin(turn_no(1))
    (claimed,) = await claimed_by(talks)
    await ended(talks, claimed)
    assert await talks.prune(NOW) == 0
    assert await talks.prune(NOW + SECOND) == 1
    assert await talks.prune(NOW + SECOND) == 0
    found = await talks.begin(replace(turn_no(2), cause=claimed[1].cause))
    assert (found.id, found.content, found.steps, found.said) == ("inf_1", (), (), ())
    assert found.hook_texts == TurnHookTexts()
    assert await talks.history("talk", 9, 9) == []


async def test_what_cannot_be_written_down_is_not_begun(records: RecordStores) -> None:
    for wrong in (
        replace(turn_no(1), conversation="\0"),
        replace(turn_no(1), cause=""),
        replace(turn_no(1), at=NOW.replace(tzinfo=None)),
    ):
        with pytest.raises(MalformedMessage):
            await records.topic_messages.begin(wrong)
