"""An idle node sends no query to its store, and still notices each change of another process."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from sqlalchemy import event

from comity.app.records import RecordStores
from comity.policy.grants import Effect, Grant
from comity.policy.snapshot import GrantSnapshot, PolicySnapshot, SnapshotFreshness
from comity.toolkit.jobs import JobOutcome, JobState, WorkClaim
from tests.contracts.asked import ASK, NOW
from tests.contracts.stores import Open
from tests.contracts.test_work_queue import job_no

LATER = NOW + timedelta(hours=2)
MINE = WorkClaim("mine/1", LATER)
ROUNDS = 20

type Change = Callable[[RecordStores], Awaitable[object]]

CHANGES: dict[str, Change] = {
    "a grant": lambda it: it.grants.put(Grant("agent:ci", "call", "files/read", Effect.ALLOW)),
    "a push": lambda it: it.pushes.jobs.enqueue(job_no(0, due_at=NOW)),
    "an approval request": lambda it: it.approval_requests.open(ASK),
}


class IdleNode:
    """What a node does all the time with its store, and the statements that it sends."""

    def __init__(self, records: RecordStores) -> None:
        self.records = records
        self.statements: list[str] = []
        freshness = SnapshotFreshness(timedelta(seconds=30))
        self.snapshot = PolicySnapshot(records, GrantSnapshot(freshness=freshness), freshness)
        engine = records._backend.engine.sync_engine  # pyright: ignore[reportPrivateUsage]  # to count
        event.listen(engine, "before_cursor_execute", self._count)

    def _count(self, *told: object) -> None:
        self.statements.append(str(told[2]))

    async def look(self) -> tuple[int, int, int]:
        """One second of it: the version of the policy, and what is due."""
        for _ in range(3):
            await self.snapshot.refresh()
        queues = (self.records.pushes.jobs, self.records.webhooks.jobs)
        jobs = [await queue.claim(MINE, LATER, 9) for queue in queues]
        ended = await self.records.approval_requests.expire(LATER)
        return self.snapshot.version, sum(map(len, jobs)), len(ended)

    async def settle(self) -> None:
        """Until two looks in a row find the same, with the connection that they share."""
        async with asyncio.timeout(20):
            while await self.records.changes.count_changes() != (
                await self.records.changes.count_changes()
            ):
                await asyncio.sleep(0.01)
        # The first round adds the queues to what a look covers, so the second one reads again.
        for _ in range(2):
            await self.look()
        self.statements.clear()


@pytest.fixture
async def node(records: RecordStores) -> IdleNode:
    found = IdleNode(records)
    await found.settle()
    return found


async def test_an_idle_node_sends_no_statement(node: IdleNode) -> None:
    for _ in range(ROUNDS):
        await node.look()
    assert node.statements == []
    assert node.snapshot.is_fresh


@pytest.mark.parametrize("what", CHANGES)
async def test_a_change_of_another_process_is_found_at_the_next_look(
    node: IdleNode, again: Open, what: str
) -> None:
    before = await node.look()
    await CHANGES[what](await again())
    assert await node.look() != before
    assert node.statements


async def test_a_job_that_is_not_due_yet_is_found_when_it_is(node: IdleNode, again: Open) -> None:
    jobs = node.records.pushes.jobs
    other = (await again()).pushes.jobs
    await other.enqueue(job_no(0, due_at=LATER))
    assert await jobs.claim(MINE, NOW, 9) == []
    node.statements.clear()
    for _ in range(ROUNDS):
        assert await jobs.claim(MINE, NOW, 9) == []
    assert node.statements == []
    (job,) = await jobs.claim(MINE, LATER, 9)
    await jobs.settle(job, JobOutcome(JobState.DONE, LATER))
    await other.enqueue(job_no(1, due_at=NOW))
    assert [each.key for each in await jobs.claim(MINE, NOW, 9)] == ["key-1"]


async def test_callers_that_wait_for_a_look_share_one(
    node: IdleNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = node.records._backend  # pyright: ignore[reportPrivateUsage]  # to count
    go_on, looks = asyncio.Event(), 0

    async def look(_: object) -> object:
        nonlocal looks
        looks += 1
        await go_on.wait()
        return looks

    monkeypatch.setattr(backend, "read_change_mark", look)
    first = asyncio.ensure_future(node.records.changes.count_changes())
    await asyncio.sleep(0)
    # These ask after the first look began, so it may have missed what they ask about.
    later = [asyncio.ensure_future(node.records.changes.count_changes()) for _ in range(9)]
    await asyncio.sleep(0)
    go_on.set()
    found = await asyncio.gather(*later)
    assert looks == 2
    assert set(found) == {await first + 1}
