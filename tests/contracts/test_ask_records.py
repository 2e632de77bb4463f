"""Asks as every store keeps them: what may become of one, who may say so, and for how long."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from comity.ports import Records
from comity.rules import asks as rules
from comity.rules.asks import TRANSITIONS, Happened
from comity.wire.asks import Answer, State, Verdict
from comity.wire.errors import MalformedMessage
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


async def test_an_ask_comes_back_as_it_was_written(records: Records, again: Open) -> None:
    assert await records.asks.open(ASK) == ASK
    other = (await again()).asks
    assert await other.get("0a") == ASK
    assert await other.latest("d1") == ASK
    assert await other.page() == [ASK]
    assert await other.get("0b") is None
    assert await other.latest("d2") is None


async def test_an_answer_comes_back_as_it_was_given(records: Records, again: Open) -> None:
    await records.asks.open(replace(ASK, quorum=2))
    given = Answer(ANA, Verdict.ACCEPT, NOW, "looks right", {"reason": "é\0", "n": [1.5, None]})
    heard = await records.asks.answer("0a", given, UNTIL)
    assert heard == replace(ASK, quorum=2, answers=(given,))
    assert await (await again()).asks.get("0a") == heard


@pytest.mark.parametrize("state", State)
async def test_an_ask_takes_the_steps_of_the_table_and_no_other(
    records: Records, state: State
) -> None:
    for number, happened in enumerate(Happened):
        before = await brought_to(records.asks, state, ask_no(number))
        given = await DEEDS[happened](records.asks, before.id)
        found = await kept(records.asks, before.id)
        assert found.state is TRANSITIONS.get((state, happened), state), happened
        if (state, happened) in TRANSITIONS:
            assert given == found != before
        else:
            assert given is None, happened
            assert found == before


async def test_what_has_ended_says_when(records: Records) -> None:
    for number, state in enumerate(State):
        found = await brought_to(records.asks, state, ask_no(number))
        assert found.ended_at == (None if state in rules.LIVE else NOW)
        assert found.call == ("call-1" if state is State.USED else "")
        assert found.expires_at == (UNTIL if Happened.ACCEPTED in WAYS[state] else NOW + HOUR)


async def test_only_some_states_are_ends(records: Records) -> None:
    await records.asks.open(ASK)
    for state in set(State) - set(rules.ENDINGS):
        assert await records.asks.end("0a", state, NOW) is None
    assert await records.asks.get("0a") == ASK


async def test_what_is_not_there_takes_no_step(records: Records) -> None:
    for deed in DEEDS.values():
        assert await deed(records.asks, "0a") is None
    assert await records.asks.page() == []


async def test_as_many_as_the_quorum_must_accept(records: Records) -> None:
    await records.asks.open(replace(ASK, quorum=2))
    first = await records.asks.answer("0a", said(), UNTIL)
    assert first is not None
    assert (first.state, first.expires_at) == (State.PENDING, NOW + HOUR)
    assert await records.asks.answer("0a", said(), UNTIL) is None
    assert await records.asks.answer("0a", said(Verdict.DECLINE), UNTIL) is None
    assert await records.asks.use("0a", "call-1", NOW) is None
    second = await records.asks.answer("0a", said(by=BEA), UNTIL)
    assert second is not None
    assert (second.state, second.expires_at) == (State.ACCEPTED, UNTIL)
    assert [each.by for each in second.answers] == [ANA, BEA]


async def test_one_no_outweighs_every_yes(records: Records) -> None:
    await records.asks.open(replace(ASK, quorum=3))
    await records.asks.answer("0a", said(), UNTIL)
    declined = await records.asks.answer("0a", said(Verdict.DECLINE, BEA), UNTIL)
    assert declined is not None
    assert declined.state is State.DECLINED
    assert await records.asks.answer("0a", said(by="person:cem"), UNTIL) is None


async def test_who_said_later_may_say_at_last_what_it_decided(records: Records) -> None:
    await records.asks.open(replace(ASK, quorum=2))
    await records.asks.answer("0a", said(Verdict.DEFER), UNTIL)
    assert await records.asks.answer("0a", said(Verdict.DEFER), UNTIL) is None
    await records.asks.answer("0a", said(by=BEA), UNTIL)
    heard = await records.asks.answer("0a", said(), UNTIL)
    assert heard is not None
    assert heard.state is State.ACCEPTED
    assert heard == await kept(records.asks)
    assert [(each.by, each.verdict) for each in heard.answers] == [
        (BEA, Verdict.ACCEPT),
        (ANA, Verdict.ACCEPT),
    ]


async def test_a_second_one_who_says_later_is_heard(records: Records) -> None:
    await brought_to(records.asks, State.DEFERRED)
    heard = await records.asks.answer("0a", said(Verdict.DEFER), UNTIL)
    assert heard == await kept(records.asks)
    assert heard is not None
    assert heard.state is State.DEFERRED
    assert [each.by for each in heard.answers] == [BEA, ANA]


async def test_of_many_who_answer_at_once_each_is_heard_once(records: Records, again: Open) -> None:
    await records.asks.open(replace(ASK, quorum=4))
    stores = [(await again()).asks for _ in range(3)]
    words = [said(by=f"person:{number % 4}") for number in range(12)]
    heard = await asyncio.wait_for(
        asyncio.gather(*(stores[n % 3].answer("0a", word, UNTIL) for n, word in enumerate(words))),
        30,
    )
    assert sum(each is not None for each in heard) == 4
    found = await kept(records.asks)
    assert found.state is State.ACCEPTED
    assert sorted(each.by for each in found.answers) == [f"person:{n}" for n in range(4)]


async def test_nobody_answers_what_it_asks_itself(records: Records) -> None:
    await records.asks.open(replace(ASK, asker=ANA))
    for verdict in Verdict:
        with pytest.raises(MalformedMessage, match="it is your own request"):
            await records.asks.answer("0a", said(verdict), UNTIL)
    assert (await kept(records.asks)).answers == ()


async def test_who_may_answer_for_itself_can(records: Records) -> None:
    await records.asks.open(replace(ASK, asker=ANA, own=True))
    heard = await records.asks.answer("0a", said(), UNTIL)
    assert heard is not None
    assert heard.state is State.ACCEPTED


async def test_nobody_answers_what_is_past_its_time(records: Records) -> None:
    await records.asks.open(ASK)
    late = said(at=NOW + HOUR)
    assert await records.asks.answer("0a", late, UNTIL) is None
    assert await records.asks.get("0a") == ASK
    in_time = said(at=NOW + HOUR - timedelta(microseconds=1))
    assert await records.asks.answer("0a", in_time, UNTIL) is not None


async def test_an_acceptance_past_its_time_authorises_nothing(records: Records) -> None:
    await brought_to(records.asks, State.ACCEPTED)
    assert await records.asks.use("0a", "call-1", UNTIL) is None
    used = await records.asks.use("0a", "call-1", UNTIL - timedelta(microseconds=1))
    assert used is not None
    assert (used.state, used.call) == (State.USED, "call-1")


async def test_of_sixty_who_use_it_at_once_one_succeeds(records: Records, again: Open) -> None:
    stores = [records.asks, (await again()).asks, (await again()).asks]
    accepted = await brought_to(records.asks, State.ACCEPTED)
    tries = (stores[n % 3].use(accepted.id, f"call-{n}", NOW) for n in range(60))
    used = await asyncio.wait_for(asyncio.gather(*tries), 50)
    (won,) = [each for each in used if each is not None]
    assert won == await kept(records.asks)
    assert (won.state, won.call) == (State.USED, f"call-{used.index(won)}")


async def test_all_past_their_time_end_some_at_once(records: Records) -> None:
    for number in range(6):
        expires = NOW + number * HOUR
        await records.asks.open(ask_no(number, expires_at=expires))
    # An acceptance has another time, and what has ended has none.
    await records.asks.answer("01", said(at=NOW), NOW + 9 * HOUR)
    await records.asks.answer("02", said(Verdict.DECLINE, at=NOW), UNTIL)
    assert [each.id for each in await records.asks.expire(NOW + 4 * HOUR, 2)] == ["00", "03"]
    (last,) = await records.asks.expire(NOW + 4 * HOUR)
    assert (last.id, last.state, last.ended_at) == ("04", State.EXPIRED, NOW + 4 * HOUR)
    assert await records.asks.expire(NOW + 4 * HOUR) == []
    assert [each.id for each in await records.asks.expire(NOW + 9 * HOUR)] == ["01", "05"]


async def test_what_was_filled_in_can_be_taken_out_and_nothing_else_is_lost(
    records: Records,
) -> None:
    """Also while another with the same digest is open."""
    asks = records.asks
    await asks.open(ASK)
    filled = replace(said(), reason="because", content={"text": "hunter2"})
    await asks.answer(ASK.id, filled, UNTIL)
    used = await asks.use(ASK.id, "call-1", NOW)
    assert used is not None
    assert used.answers == (filled,)
    other = await asks.open(replace(ASK, id="0b"))
    await asks.erase(ASK.id)
    await asks.erase("0c")
    await asks.erase("\0")
    erased = replace(used, answers=(replace(filled, content={}),))
    assert await asks.get(ASK.id) == erased
    assert await asks.page([State.USED]) == [erased]
    assert await asks.latest(ASK.digest) == other
    assert await asks.open(replace(ASK, id="0d")) == other
