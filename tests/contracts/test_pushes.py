"""Pushes as every store keeps them: each once, and what came of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.app.records import RecordStores
from comity.errors import MalformedMessage
from comity.inference.messages import ContentBlock
from comity.live.pushes.model import (
    Push,
    PushAdmission,
    PushRoute,
    PushStore,
    PushTarget,
    StoredPush,
)
from comity.toolkit.jobs import JobOutcome, JobState, WorkClaim
from tests.contracts.stores import Open

NOW = datetime(2026, 7, 28, 12, 0, 0, 123456, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SOON = NOW + timedelta(hours=1)
MOST = 1000
MINE = WorkClaim("mine/1", SOON)
ROUTE = PushRoute(PushTarget.TURN, "", "ops", "agent:ops", ("topic:ops", "channel:chat/1"))
PUSH = Push(
    *(
        "ci",
        "evt-0",
        NOW,
        (ContentBlock("text", "built\0"), ContentBlock("image", uri="x:y")),
        "ci.builds",
    ),
    {"repo": {"name": "a\0b"}, "n": [1, None, True]},
)
KEPT = StoredPush(PUSH, ROUTE, NOW, NOW)


def push_no(number: int, server: str = "ci", due: datetime = NOW) -> StoredPush:
    return replace(KEPT, push=replace(PUSH, id=f"evt-{number}", server=server), due_at=due)


async def added(
    pushes: PushStore, kept: StoredPush = KEPT, claim: WorkClaim | None = None
) -> PushAdmission:
    found = await pushes.add(kept, claim, MOST)
    assert found is not None
    assert found.is_new
    return found


async def waiting(pushes: PushStore, count: int) -> None:
    for number in range(count):
        await added(pushes, push_no(number))


async def test_a_push_comes_back_as_it_was_written(records: RecordStores, again: Open) -> None:
    written = (await added(records.pushes)).stored_push
    other = (await again()).pushes
    assert await other.get("ci", "evt-0") == written == replace(KEPT, number=written.number)
    assert await other.page() == [written]
    assert await other.get("ci", "evt-1") is None
    assert await other.get("cd", "evt-0") is None
    assert await other.get("\0", "evt-0") is None
    assert await other.page(server="\0") == []


async def test_a_push_that_cannot_be_written_down_is_refused(records: RecordStores) -> None:
    for wrong in (replace(PUSH, id="\0"), replace(PUSH, id=""), replace(PUSH, at=datetime.min)):  # noqa: DTZ901  # it is to be wrong
        with pytest.raises(MalformedMessage):
            await records.pushes.add(replace(KEPT, push=wrong), MINE, MOST)


async def test_one_id_of_two_servers_is_two_pushes(records: RecordStores) -> None:
    first, second = await added(records.pushes), await added(records.pushes, push_no(0, "cd"))
    assert first.stored_push.number != second.stored_push.number


async def test_no_more_pushes_of_a_server_wait_than_there_is_room_for(
    records: RecordStores,
) -> None:
    await waiting(records.pushes, 3)
    assert await records.pushes.add(push_no(9), MINE, 3) is None
    known = await records.pushes.add(push_no(1), MINE, 3)
    assert known is not None
    assert not known.is_new
    assert await records.pushes.add(push_no(9, "cd"), MINE, 3) is not None


async def test_of_what_is_done_only_that_it_was_is_kept(records: RecordStores, again: Open) -> None:
    found = await added(records.pushes, claim=MINE)
    assert found.job is not None
    assert await records.pushes.settle(found.job, JobOutcome(JobState.DONE, NOW, result="inf_1"))
    other = (await again()).pushes
    done = replace(found.stored_push, state=JobState.DONE, inference="inf_1", done_at=NOW)
    emptied = replace(done, push=replace(PUSH, content=(), origin={}))
    assert await other.get("ci", "evt-0") == emptied
    known = await other.add(KEPT, MINE, MOST)
    assert known is not None
    assert (known.is_new, known.stored_push.inference) == (False, "inf_1")


async def test_what_needs_nothing_done_is_nobodys_to_do(records: RecordStores) -> None:
    nothing = replace(KEPT, route=PushRoute(PushTarget.NOTHING), state=JobState.DONE, done_at=NOW)
    assert (await added(records.pushes, nothing, MINE)).job is None
    assert await records.pushes.jobs.claim(MINE, SOON + SECOND, 9) == []


async def test_pushes_are_listed_from_the_newest_on(records: RecordStores) -> None:
    for number in range(4):
        await added(records.pushes, push_no(number))
    await added(records.pushes, push_no(4, "cd"))
    first = await records.pushes.page(limit=2)
    assert [each.push.id for each in first] == ["evt-4", "evt-3"]
    second = await records.pushes.page(first[-1].number)
    assert [each.push.id for each in second] == ["evt-2", "evt-1", "evt-0"]
    of_one = await records.pushes.page(server="cd")
    assert [each.push.id for each in of_one] == ["evt-4"]
