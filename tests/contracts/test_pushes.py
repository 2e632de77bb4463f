"""Pushes as every store keeps them: each once, who does what follows, and what came of it."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.ports import Records
from comity.ports.pushes import Claim, PushFigures, PushRecords
from comity.wire.contents import Block
from comity.wire.errors import MalformedMessage
from comity.wire.pushes import Goal, KeptPush, Push, PushState, Route
from tests.contracts.stores import Open

NOW = datetime(2026, 7, 28, 12, 0, 0, 123456, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SOON = NOW + timedelta(hours=1)
MOST = 1000
MINE = Claim("mine/1", SOON)
ROUTE = Route(Goal.TURN, "", "ops", "agent:ops", ("topic:ops", "channel:chat/1"))
PUSH = Push(
    *("ci", "evt-0", NOW, (Block("text", "built\0"), Block("image", uri="x:y")), "ci.builds"),
    {"repo": {"name": "a\0b"}, "n": [1, None, True]},
)
KEPT = KeptPush(PUSH, ROUTE, NOW, NOW)


def push_no(number: int, server: str = "ci", due: datetime = NOW) -> KeptPush:
    return replace(KEPT, push=replace(PUSH, id=f"evt-{number}", server=server), due_at=due)


async def added(pushes: PushRecords, kept: KeptPush = KEPT, claim: Claim = MINE) -> KeptPush:
    found = await pushes.add(kept, claim, MOST)
    assert found is not None
    assert found.is_new
    return found.kept


async def waiting(pushes: PushRecords, count: int) -> None:
    for number in range(count):
        await added(pushes, push_no(number), Claim("gone", NOW))


async def test_a_push_comes_back_as_it_was_written(records: Records, again: Open) -> None:
    written = await added(records.pushes)
    other = (await again()).pushes
    assert await other.get("ci", "evt-0") == written == replace(KEPT, number=written.number)
    assert await other.page() == [written]
    assert await other.get("ci", "evt-1") is None
    assert await other.get("cd", "evt-0") is None
    assert await other.get("\0", "evt-0") is None
    assert await other.page(server="\0") == []


async def test_a_push_that_cannot_be_written_down_is_refused(records: Records) -> None:
    for wrong in (replace(PUSH, id="\0"), replace(PUSH, id=""), replace(PUSH, at=datetime.min)):  # noqa: DTZ901  # it is to be wrong
        with pytest.raises(MalformedMessage):
            await records.pushes.add(replace(KEPT, push=wrong), MINE, MOST)


async def test_of_many_who_add_one_push_at_once_one_is_first(records: Records, again: Open) -> None:
    others = [(await again()).pushes for _ in range(3)]
    tries = [others[each % 3].add(KEPT, Claim(f"h{each}", SOON), MOST) for each in range(12)]
    found = [each for each in await asyncio.gather(*tries) if each is not None]
    assert [each.is_new for each in found].count(True) == 1
    assert len({each.kept.number for each in found}) == 1
    assert len(found) == 12


async def test_one_id_of_two_servers_is_two_pushes(records: Records) -> None:
    first, second = await added(records.pushes), await added(records.pushes, push_no(0, "cd"))
    assert first.number != second.number


async def test_no_more_pushes_of_a_server_wait_than_there_is_room_for(records: Records) -> None:
    await waiting(records.pushes, 3)
    assert await records.pushes.add(push_no(9), MINE, 3) is None
    known = await records.pushes.add(push_no(1), MINE, 3)
    assert known is not None
    assert not known.is_new
    assert await records.pushes.add(push_no(9, "cd"), MINE, 3) is not None


async def test_what_was_admitted_is_claimed_already(records: Records) -> None:
    kept = await added(records.pushes)
    assert await records.pushes.claim(Claim("other", SOON), NOW, 9) == []
    done = replace(kept, state=PushState.DONE, inference="inf_1", attempts=1, done_at=NOW)
    assert not await records.pushes.settle("other", done)
    assert await records.pushes.settle("mine/1", done)
    assert not await records.pushes.settle("mine/1", done)


async def test_of_what_is_done_only_that_it_was_is_kept(records: Records, again: Open) -> None:
    kept = await added(records.pushes)
    done = replace(kept, state=PushState.DONE, inference="inf_1", attempts=1, done_at=NOW)
    await records.pushes.settle("mine/1", done)
    other = (await again()).pushes
    emptied = replace(done, push=replace(PUSH, content=(), origin={}))
    assert await other.get("ci", "evt-0") == emptied
    known = await other.add(KEPT, MINE, MOST)
    assert known is not None
    assert (known.is_new, known.kept.inference) == (False, "inf_1")


async def test_what_needs_nothing_done_is_nobodys_to_do(records: Records) -> None:
    nothing = replace(KEPT, route=Route(Goal.NOTHING), state=PushState.DONE, done_at=NOW)
    await added(records.pushes, nothing)
    assert await records.pushes.claim(Claim("other", SOON), SOON + SECOND, 9) == []


async def test_one_holder_at_a_time_has_a_push(records: Records, again: Open) -> None:
    await waiting(records.pushes, 8)
    others = [(await again()).pushes for _ in range(4)]
    claims = (each.claim(Claim(f"h{n}", SOON), NOW, 3) for n, each in enumerate(others))
    claimed = [each.push.id for some in await asyncio.gather(*claims) for each in some]
    assert len(claimed) == len(set(claimed))
    for _ in range(8):
        more = await others[0].claim(Claim("h0", SOON), NOW, 3)
        claimed += [each.push.id for each in more]
    assert sorted(claimed) == [f"evt-{each}" for each in range(8)]


async def test_pushes_are_claimed_in_the_order_in_which_they_are_due(records: Records) -> None:
    for number, seconds in ((0, 2), (1, 0), (2, 1), (3, 9)):
        due = NOW + seconds * SECOND
        await added(records.pushes, push_no(number, due=due), Claim("gone", NOW))
    found = await records.pushes.claim(MINE, NOW + 2 * SECOND, 2)
    assert [each.push.id for each in found] == ["evt-1", "evt-2"]
    found = await records.pushes.claim(MINE, NOW + 2 * SECOND, 9)
    assert [each.push.id for each in found] == ["evt-0"]


async def test_a_claim_on_a_push_lapses_and_settles_nothing(records: Records) -> None:
    pushes = records.pushes
    kept = await added(pushes, claim=Claim("dead", NOW + SECOND))
    assert await pushes.claim(Claim("heir", SOON), NOW, 9) == []
    (taken,) = await pushes.claim(Claim("heir", SOON), NOW + SECOND, 9)
    assert taken == kept
    done = replace(kept, state=PushState.DONE, done_at=NOW)
    assert not await pushes.settle("dead", done)
    assert await pushes.settle("heir", done)


async def test_what_failed_once_is_due_later(records: Records) -> None:
    pushes = records.pushes
    kept = await added(pushes)
    later = replace(kept, attempts=1, due_at=NOW + SECOND, last_error="no\0turn")
    assert await pushes.settle("mine/1", later)
    assert await pushes.claim(MINE, NOW, 9) == []
    (found,) = await pushes.claim(MINE, NOW + SECOND, 9)
    assert (found.attempts, found.last_error) == (1, "no�turn")
    assert found.push == PUSH


async def test_who_is_gone_holds_nothing(records: Records) -> None:
    await added(records.pushes, push_no(0), Claim("node_a/1", SOON))
    await added(records.pushes, push_no(1), Claim("nodeXa/1", SOON))
    await records.pushes.abandon("node_a/")
    (found,) = await records.pushes.claim(MINE, NOW, 9)
    assert found.push.id == "evt-0"


async def test_what_failed_for_good_can_be_tried_again(records: Records) -> None:
    pushes = records.pushes
    kept = await added(pushes)
    await pushes.settle("mine/1", replace(kept, state=PushState.FAILED, attempts=9, done_at=NOW))
    assert await pushes.claim(MINE, SOON, 9) == []
    assert await pushes.retry(kept.number, NOW)
    assert not await pushes.retry(kept.number, NOW)
    (found,) = await pushes.claim(MINE, NOW, 9)
    assert (found.attempts, found.push) == (0, PUSH)
    assert not await pushes.retry(kept.number + 1, NOW)


async def test_pushes_are_listed_from_the_newest_on(records: Records) -> None:
    for number in range(4):
        await added(records.pushes, push_no(number))
    await added(records.pushes, push_no(4, "cd"))
    first = await records.pushes.page(limit=2)
    assert [each.push.id for each in first] == ["evt-4", "evt-3"]
    second = await records.pushes.page(first[-1].number)
    assert [each.push.id for each in second] == ["evt-2", "evt-1", "evt-0"]
    of_one = await records.pushes.page(server="cd")
    assert [each.push.id for each in of_one] == ["evt-4"]


async def test_pushes_are_counted_and_the_old_forgotten(records: Records) -> None:
    pushes = records.pushes
    for number, state in enumerate((PushState.DONE, PushState.DONE, PushState.FAILED)):
        kept = await added(pushes, push_no(number))
        at = NOW + number * SECOND
        await pushes.settle("mine/1", replace(kept, state=state, done_at=at))
    await added(pushes, push_no(7))
    assert await pushes.figures() == PushFigures(1, 2, 1)
    assert await pushes.prune(NOW) == 0
    assert await pushes.prune(NOW + SECOND) == 1
    assert await pushes.get("ci", "evt-0") is None
    assert await pushes.figures() == PushFigures(1, 1, 1)
    assert await pushes.prune(SOON) == 2
    assert await pushes.figures() == PushFigures(1, 0, 0)
