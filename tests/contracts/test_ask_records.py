"""Asks as every store keeps them: what may become of one, who may say so, and for how long."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from comity.app.records import RecordStores
from comity.approvals import model as rules
from comity.approvals.model import (
    TRANSITIONS,
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalEvent,
    ApprovalState,
)
from comity.errors import MalformedMessage
from tests.contracts.asked import (
    ANA,
    ASK,
    BEA,
    DEEDS,
    HOUR,
    NOW,
    UNTIL,
    WAYS,
    ask_no,
    brought_to,
    kept,
    said,
)
from tests.contracts.stores import Open


async def test_an_ask_comes_back_as_it_was_written(records: RecordStores, again: Open) -> None:
    assert await records.approval_requests.open(ASK) == ASK
    other = (await again()).approval_requests
    assert await other.get("0a") == ASK
    assert await other.find_latest("d1") == ASK
    assert await other.page() == [ASK]
    assert await other.get("0b") is None
    assert await other.find_latest("d2") is None


async def test_an_answer_comes_back_as_it_was_given(records: RecordStores, again: Open) -> None:
    await records.approval_requests.open(replace(ASK, quorum=2))
    given = ApprovalAnswer(
        ANA, ApprovalDecision.ACCEPT, NOW, "looks right", {"reason": "é\0", "n": [1.5, None]}
    )
    heard = await records.approval_requests.answer("0a", given, UNTIL)
    assert heard == replace(ASK, quorum=2, answers=(given,))
    assert await (await again()).approval_requests.get("0a") == heard


@pytest.mark.parametrize("state", ApprovalState)
async def test_an_ask_takes_the_steps_of_the_table_and_no_other(
    records: RecordStores, state: ApprovalState
) -> None:
    for number, happened in enumerate(ApprovalEvent):
        before = await brought_to(records.approval_requests, state, ask_no(number))
        given = await DEEDS[happened](records.approval_requests, before.id)
        found = await kept(records.approval_requests, before.id)
        assert found.state is TRANSITIONS.get((state, happened), state), happened
        if (state, happened) in TRANSITIONS:
            assert given == found != before
        else:
            assert given is None, happened
            assert found == before


async def test_what_has_ended_says_when(records: RecordStores) -> None:
    for number, state in enumerate(ApprovalState):
        found = await brought_to(records.approval_requests, state, ask_no(number))
        assert found.ended_at == (None if state in rules.LIVE_STATES else NOW)
        assert found.call == ("call-1" if state is ApprovalState.CONSUMED else "")
        assert found.expires_at == (UNTIL if ApprovalEvent.APPROVED in WAYS[state] else NOW + HOUR)


async def test_only_some_states_are_ends(records: RecordStores) -> None:
    await records.approval_requests.open(ASK)
    for state in set(ApprovalState) - set(rules.EVENT_BY_END_STATE):
        assert await records.approval_requests.end("0a", state, NOW) is None
    assert await records.approval_requests.get("0a") == ASK


async def test_what_is_not_there_takes_no_step(records: RecordStores) -> None:
    for deed in DEEDS.values():
        assert await deed(records.approval_requests, "0a") is None
    assert await records.approval_requests.page() == []


async def test_as_many_as_the_quorum_must_accept(records: RecordStores) -> None:
    await records.approval_requests.open(replace(ASK, quorum=2))
    first = await records.approval_requests.answer("0a", said(), UNTIL)
    assert first is not None
    assert (first.state, first.expires_at) == (ApprovalState.PENDING, NOW + HOUR)
    assert await records.approval_requests.answer("0a", said(), UNTIL) is None
    assert (
        await records.approval_requests.answer("0a", said(ApprovalDecision.DECLINE), UNTIL) is None
    )
    assert await records.approval_requests.consume("0a", "call-1", NOW) is None
    second = await records.approval_requests.answer("0a", said(by=BEA), UNTIL)
    assert second is not None
    assert (second.state, second.expires_at) == (ApprovalState.APPROVED, UNTIL)
    assert [each.by for each in second.answers] == [ANA, BEA]


async def test_one_no_outweighs_every_yes(records: RecordStores) -> None:
    await records.approval_requests.open(replace(ASK, quorum=3))
    await records.approval_requests.answer("0a", said(), UNTIL)
    declined = await records.approval_requests.answer(
        "0a", said(ApprovalDecision.DECLINE, BEA), UNTIL
    )
    assert declined is not None
    assert declined.state is ApprovalState.DENIED
    assert await records.approval_requests.answer("0a", said(by="person:cem"), UNTIL) is None


async def test_who_said_later_may_say_at_last_what_it_decided(records: RecordStores) -> None:
    await records.approval_requests.open(replace(ASK, quorum=2))
    await records.approval_requests.answer("0a", said(ApprovalDecision.DEFER), UNTIL)
    assert await records.approval_requests.answer("0a", said(ApprovalDecision.DEFER), UNTIL) is None
    await records.approval_requests.answer("0a", said(by=BEA), UNTIL)
    heard = await records.approval_requests.answer("0a", said(), UNTIL)
    assert heard is not None
    assert heard.state is ApprovalState.APPROVED
    assert heard == await kept(records.approval_requests)
    assert [(each.by, each.verdict) for each in heard.answers] == [
        (BEA, ApprovalDecision.ACCEPT),
        (ANA, ApprovalDecision.ACCEPT),
    ]


async def test_a_second_one_who_says_later_is_heard(records: RecordStores) -> None:
    await brought_to(records.approval_requests, ApprovalState.DEFERRED)
    heard = await records.approval_requests.answer("0a", said(ApprovalDecision.DEFER), UNTIL)
    assert heard == await kept(records.approval_requests)
    assert heard is not None
    assert heard.state is ApprovalState.DEFERRED
    assert [each.by for each in heard.answers] == [BEA, ANA]


async def test_of_many_who_answer_at_once_each_is_heard_once(
    records: RecordStores, again: Open
) -> None:
    await records.approval_requests.open(replace(ASK, quorum=4))
    stores = [(await again()).approval_requests for _ in range(3)]
    words = [said(by=f"person:{number % 4}") for number in range(12)]
    heard = await asyncio.wait_for(
        asyncio.gather(*(stores[n % 3].answer("0a", word, UNTIL) for n, word in enumerate(words))),
        30,
    )
    assert sum(each is not None for each in heard) == 4
    found = await kept(records.approval_requests)
    assert found.state is ApprovalState.APPROVED
    assert sorted(each.by for each in found.answers) == [f"person:{n}" for n in range(4)]


async def test_nobody_answers_what_it_asks_itself(records: RecordStores) -> None:
    await records.approval_requests.open(replace(ASK, asker=ANA))
    for verdict in ApprovalDecision:
        with pytest.raises(MalformedMessage, match="it is your own request"):
            await records.approval_requests.answer("0a", said(verdict), UNTIL)
    assert (await kept(records.approval_requests)).answers == ()


async def test_who_may_answer_for_itself_can(records: RecordStores) -> None:
    await records.approval_requests.open(replace(ASK, asker=ANA, own=True))
    heard = await records.approval_requests.answer("0a", said(), UNTIL)
    assert heard is not None
    assert heard.state is ApprovalState.APPROVED


async def test_nobody_answers_what_is_past_its_time(records: RecordStores) -> None:
    await records.approval_requests.open(ASK)
    late = said(at=NOW + HOUR)
    assert await records.approval_requests.answer("0a", late, UNTIL) is None
    assert await records.approval_requests.get("0a") == ASK
    in_time = said(at=NOW + HOUR - timedelta(microseconds=1))
    assert await records.approval_requests.answer("0a", in_time, UNTIL) is not None


async def test_an_acceptance_past_its_time_authorises_nothing(records: RecordStores) -> None:
    await brought_to(records.approval_requests, ApprovalState.APPROVED)
    assert await records.approval_requests.consume("0a", "call-1", UNTIL) is None
    used = await records.approval_requests.consume(
        "0a", "call-1", UNTIL - timedelta(microseconds=1)
    )
    assert used is not None
    assert (used.state, used.call) == (ApprovalState.CONSUMED, "call-1")


async def test_of_sixty_who_use_it_at_once_one_succeeds(records: RecordStores, again: Open) -> None:
    stores = [
        records.approval_requests,
        (await again()).approval_requests,
        (await again()).approval_requests,
    ]
    accepted = await brought_to(records.approval_requests, ApprovalState.APPROVED)
    tries = (stores[n % 3].consume(accepted.id, f"call-{n}", NOW) for n in range(60))
    used = await asyncio.wait_for(asyncio.gather(*tries), 50)
    (won,) = [each for each in used if each is not None]
    assert won == await kept(records.approval_requests)
    assert (won.state, won.call) == (ApprovalState.CONSUMED, f"call-{used.index(won)}")


async def test_all_past_their_time_end_some_at_once(records: RecordStores) -> None:
    for number in range(6):
        expires = NOW + number * HOUR
        await records.approval_requests.open(ask_no(number, expires_at=expires))
    # An acceptance has another time, and what has ended has none.
    await records.approval_requests.answer("01", said(at=NOW), NOW + 9 * HOUR)
    await records.approval_requests.answer("02", said(ApprovalDecision.DECLINE, at=NOW), UNTIL)
    assert [each.id for each in await records.approval_requests.expire(NOW + 4 * HOUR, 2)] == [
        "00",
        "03",
    ]
    (last,) = await records.approval_requests.expire(NOW + 4 * HOUR)
    assert (last.id, last.state, last.ended_at) == ("04", ApprovalState.EXPIRED, NOW + 4 * HOUR)
    assert await records.approval_requests.expire(NOW + 4 * HOUR) == []
    assert [each.id for each in await records.approval_requests.expire(NOW + 9 * HOUR)] == [
        "01",
        "05",
    ]


async def test_what_was_filled_in_can_be_taken_out_and_nothing_else_is_lost(
    records: RecordStores,
) -> None:
    """Also while another with the same digest is open."""
    asks = records.approval_requests
    await asks.open(ASK)
    filled = replace(said(), reason="because", content={"text": "hunter2"})
    await asks.answer(ASK.id, filled, UNTIL)
    used = await asks.consume(ASK.id, "call-1", NOW)
    assert used is not None
    assert used.answers == (filled,)
    other = await asks.open(replace(ASK, id="0b"))
    await asks.erase_content(ASK.id)
    await asks.erase_content("0c")
    await asks.erase_content("\0")
    erased = replace(used, answers=(replace(filled, content={}),))
    assert await asks.get(ASK.id) == erased
    assert await asks.page([ApprovalState.CONSUMED]) == [erased]
    assert await asks.find_latest(ASK.digest) == other
    assert await asks.open(replace(ASK, id="0d")) == other
