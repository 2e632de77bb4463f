"""Asks as every store finds them: asked once, by what used them, page by page, in the news."""

import asyncio
from dataclasses import replace

import pytest

from comity.ports import Change, Kept, Records
from comity.rules import asks as rules
from comity.rules.asks import Happened
from comity.wire.asks import State, Verdict
from comity.wire.errors import MalformedMessage
from tests.contracts.asked import (
    ASK,
    DEEDS,
    HOUR,
    NOW,
    UNTIL,
    Deed,
    ask_no,
    brought_to,
    kept,
    said,
)
from tests.contracts.stores import Open


async def test_the_same_question_is_asked_once(records: Records) -> None:
    for number, state in enumerate(rules.LIVE):
        first = await brought_to(records.asks, state, ask_no(number))
        again = replace(ask_no(number), id="0b", message="said in another way")
        assert await records.asks.open(again) == first
    assert len(await records.asks.page()) == len(rules.LIVE)


async def test_what_has_ended_can_be_asked_again(records: Records) -> None:
    for number, state in enumerate(set(State) - set(rules.LIVE)):
        first = await brought_to(records.asks, state, ask_no(number))
        again = replace(ask_no(number), id=f"0b{number}")
        assert await records.asks.open(again) == again
        assert await records.asks.latest(first.digest) == again
        assert await records.asks.get(first.id) == first


async def test_what_is_past_its_time_ends_when_it_is_asked_again(records: Records) -> None:
    for number, state in enumerate(rules.LIVE):
        first = await brought_to(records.asks, state, ask_no(number))
        then = first.expires_at
        again = replace(ask_no(number), id=f"0b{number}", created_at=then, expires_at=then + HOUR)
        assert await records.asks.open(again) == again
        ended = await kept(records.asks, first.id)
        assert (ended.state, ended.ended_at) == (State.EXPIRED, then)


async def test_of_many_who_ask_the_same_at_once_one_is_kept(records: Records, again: Open) -> None:
    stores = [records.asks, (await again()).asks, (await again()).asks]
    opened = await asyncio.wait_for(
        asyncio.gather(*(stores[n % 3].open(replace(ASK, id=f"{n:02}")) for n in range(15))), 30
    )
    assert len({each.id for each in opened}) == 1
    assert await records.asks.page() == [opened[0]]


async def test_an_id_is_given_once(records: Records) -> None:
    await records.asks.open(ASK)
    with pytest.raises(MalformedMessage, match="this id is kept already"):
        await records.asks.open(replace(ASK, digest="d2"))
    assert await records.asks.page() == [ASK]


async def test_only_the_call_that_used_it_gives_it_back(records: Records) -> None:
    accepted = await brought_to(records.asks, State.ACCEPTED)
    await records.asks.use("0a", "call-1", NOW)
    assert await records.asks.restore("0a", "call-2") is None
    assert await records.asks.restore("0a", "") is None
    assert await records.asks.restore("0a", "call-1") == accepted
    assert await records.asks.restore("0a", "call-1") is None
    assert (await records.asks.use("0a", "call-2", NOW)) is not None


async def test_nothing_is_given_back_where_the_same_was_asked_anew(records: Records) -> None:
    used = await brought_to(records.asks, State.USED)
    await records.asks.open(replace(ASK, id="0b"))
    assert await records.asks.restore("0a", "call-1") is None
    assert await records.asks.get("0a") == used
    await records.asks.end("0b", State.WITHDRAWN, NOW)
    assert await records.asks.restore("0a", "call-1") is not None


async def test_asks_are_read_page_by_page_and_counted(records: Records) -> None:
    for number in range(9):
        await records.asks.open(ask_no(number))
    for number in range(0, 9, 3):
        await records.asks.end(f"{number:02}", State.WITHDRAWN, NOW)
    await records.asks.answer("01", said(), UNTIL)
    await records.asks.answer("02", said(Verdict.DEFER), UNTIL)

    async def ids(*states: State, after: str = "", limit: int = 250) -> list[str]:
        return [each.id[1] for each in await records.asks.page(states, after, limit)]

    live = (State.PENDING, State.DEFERRED, State.ACCEPTED)
    assert await ids() == [str(number) for number in range(9)]
    assert await ids(after="03", limit=2) == ["4", "5"]
    assert await ids(*live) == ["1", "2", "4", "5", "7", "8"]
    assert await ids(*live, limit=3) == ["1", "2", "4"]
    assert await ids(*live, *live, after="02", limit=2) == ["4", "5"]
    assert await ids(State.WITHDRAWN) == ["0", "3", "6"]
    assert await ids(State.USED) == []
    assert await ids(after="\ud800") == []
    assert await records.asks.count(live) == 6
    assert await records.asks.count([*live, State.WITHDRAWN, State.PENDING]) == 9
    assert await records.asks.count([]) == 0


async def test_every_step_is_heard_of_by_who_follows_the_changes(
    records: Records, again: Open
) -> None:
    follower = (await again()).changes
    steps: list[Deed] = [
        lambda asks, _: asks.open(ASK),
        DEEDS[Happened.DEFERRED],
        DEEDS[Happened.ACCEPTED],
        DEEDS[Happened.USED],
        DEEDS[Happened.RESTORED],
        lambda asks, _: asks.expire(UNTIL),
    ]
    for step in steps:
        version = (await follower.since(0)).version
        assert await step(records.asks, "0a")
        assert (await follower.since(version)).changes == (Change(Kept.ASKS, "0a"),)
    version = (await follower.since(0)).version
    for step in steps[1:-1]:
        assert await step(records.asks, "0a") is None
    assert (await follower.since(version)).changes == ()
