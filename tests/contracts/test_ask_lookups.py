"""Asks as every store finds them: asked once, by what used them, page by page, in the news."""

import asyncio
from dataclasses import replace

import pytest

from comity.app.records import RecordStores
from comity.approvals import model as rules
from comity.approvals.model import ApprovalDecision, ApprovalEvent, ApprovalState
from comity.errors import MalformedMessage
from comity.storage.changes import RecordChange, RecordKind
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


async def test_the_same_question_is_asked_once(records: RecordStores) -> None:
    for number, state in enumerate(rules.LIVE_STATES):
        first = await brought_to(records.approval_requests, state, ask_no(number))
        again = replace(ask_no(number), id="0b", message="said in another way")
        assert await records.approval_requests.open(again) == first
    assert len(await records.approval_requests.page()) == len(rules.LIVE_STATES)


async def test_what_has_ended_can_be_asked_again(records: RecordStores) -> None:
    for number, state in enumerate(set(ApprovalState) - set(rules.LIVE_STATES)):
        first = await brought_to(records.approval_requests, state, ask_no(number))
        again = replace(ask_no(number), id=f"0b{number}")
        assert await records.approval_requests.open(again) == again
        assert await records.approval_requests.find_latest(first.digest) == again
        assert await records.approval_requests.get(first.id) == first


async def test_what_is_past_its_time_ends_when_it_is_asked_again(records: RecordStores) -> None:
    for number, state in enumerate(rules.LIVE_STATES):
        first = await brought_to(records.approval_requests, state, ask_no(number))
        then = first.expires_at
        again = replace(ask_no(number), id=f"0b{number}", created_at=then, expires_at=then + HOUR)
        assert await records.approval_requests.open(again) == again
        ended = await kept(records.approval_requests, first.id)
        assert (ended.state, ended.ended_at) == (ApprovalState.EXPIRED, then)


async def test_of_many_who_ask_the_same_at_once_one_is_kept(
    records: RecordStores, again: Open
) -> None:
    stores = [
        records.approval_requests,
        (await again()).approval_requests,
        (await again()).approval_requests,
    ]
    opened = await asyncio.wait_for(
        asyncio.gather(*(stores[n % 3].open(replace(ASK, id=f"{n:02}")) for n in range(15))), 30
    )
    assert len({each.id for each in opened}) == 1
    assert await records.approval_requests.page() == [opened[0]]


async def test_an_id_is_given_once(records: RecordStores) -> None:
    await records.approval_requests.open(ASK)
    with pytest.raises(MalformedMessage, match="this id exists already"):
        await records.approval_requests.open(replace(ASK, digest="d2"))
    assert await records.approval_requests.page() == [ASK]


async def test_only_the_call_that_used_it_gives_it_back(records: RecordStores) -> None:
    accepted = await brought_to(records.approval_requests, ApprovalState.APPROVED)
    await records.approval_requests.consume("0a", "call-1", NOW)
    assert await records.approval_requests.release("0a", "call-2") is None
    assert await records.approval_requests.release("0a", "") is None
    assert await records.approval_requests.release("0a", "call-1") == accepted
    assert await records.approval_requests.release("0a", "call-1") is None
    assert (await records.approval_requests.consume("0a", "call-2", NOW)) is not None


async def test_nothing_is_given_back_where_the_same_was_asked_anew(records: RecordStores) -> None:
    used = await brought_to(records.approval_requests, ApprovalState.CONSUMED)
    await records.approval_requests.open(replace(ASK, id="0b"))
    assert await records.approval_requests.release("0a", "call-1") is None
    assert await records.approval_requests.get("0a") == used
    await records.approval_requests.end("0b", ApprovalState.WITHDRAWN, NOW)
    assert await records.approval_requests.release("0a", "call-1") is not None


async def test_asks_are_read_page_by_page_and_counted(records: RecordStores) -> None:
    for number in range(9):
        await records.approval_requests.open(ask_no(number))
    for number in range(0, 9, 3):
        await records.approval_requests.end(f"{number:02}", ApprovalState.WITHDRAWN, NOW)
    await records.approval_requests.answer("01", said(), UNTIL)
    await records.approval_requests.answer("02", said(ApprovalDecision.DEFER), UNTIL)

    async def ids(*states: ApprovalState, after: str = "", limit: int = 250) -> list[str]:
        return [each.id[1] for each in await records.approval_requests.page(states, after, limit)]

    live = (ApprovalState.PENDING, ApprovalState.DEFERRED, ApprovalState.APPROVED)
    assert await ids() == [str(number) for number in range(9)]
    assert await ids(after="03", limit=2) == ["4", "5"]
    assert await ids(*live) == ["1", "2", "4", "5", "7", "8"]
    assert await ids(*live, limit=3) == ["1", "2", "4"]
    assert await ids(*live, *live, after="02", limit=2) == ["4", "5"]
    assert await ids(ApprovalState.WITHDRAWN) == ["0", "3", "6"]
    assert await ids(ApprovalState.CONSUMED) == []
    assert await ids(after="\ud800") == []
    assert await records.approval_requests.count(live) == 6
    assert (
        await records.approval_requests.count(
            [*live, ApprovalState.WITHDRAWN, ApprovalState.PENDING]
        )
        == 9
    )
    assert await records.approval_requests.count([]) == 0


async def test_every_step_is_heard_of_by_who_follows_the_changes(
    records: RecordStores, again: Open
) -> None:
    follower = (await again()).changes
    steps: list[Deed] = [
        lambda asks, _: asks.open(ASK),
        DEEDS[ApprovalEvent.DEFERRED],
        DEEDS[ApprovalEvent.APPROVED],
        DEEDS[ApprovalEvent.CONSUMED],
        DEEDS[ApprovalEvent.RELEASED],
        lambda asks, _: asks.expire(UNTIL),
    ]
    for step in steps:
        version = (await follower.since(0)).version
        assert await step(records.approval_requests, "0a")
        assert (await follower.since(version)).changes == (RecordChange(RecordKind.ASKS, "0a"),)
    version = (await follower.since(0)).version
    for step in steps[1:-1]:
        assert await step(records.approval_requests, "0a") is None
    assert (await follower.since(version)).changes == ()
