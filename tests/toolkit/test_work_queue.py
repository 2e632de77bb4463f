"""A runner takes due jobs as far as it has room, keeps its claims, and leaves what it cannot do."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.errors import Unavailable
from comity.toolkit.jobs import QueuedJob, WorkClaim
from comity.toolkit.work_queue import RunnerSettings, WorkQueueRunner

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
SETTINGS = RunnerSettings(2, poll_interval=timedelta(minutes=1))
QUICK = RunnerSettings(2, lease=timedelta(milliseconds=30), poll_interval=timedelta(milliseconds=5))


def job_no(number: int) -> QueuedJob:
    return QueuedJob(f"key-{number}", NOW, NOW, number=number)


class Jobs:
    """Jobs that are due, and what was asked of them."""

    def __init__(self, count: int = 0) -> None:
        self.due = [job_no(number) for number in range(count)]
        self.is_away = False
        self.is_held = True
        self.renewed: list[str] = []
        self.abandoned: list[str] = []

    async def claim(self, claim: WorkClaim, now: datetime, limit: int) -> Sequence[QueuedJob]:
        if self.is_away:
            raise Unavailable("the store is away")
        found, self.due = self.due[:limit], self.due[limit:]
        return [replace(job, holder=claim.holder) for job in found]

    async def renew(self, job: QueuedJob, until: datetime) -> bool:
        if self.is_away:
            raise Unavailable("the store is away")
        self.renewed.append(job.key)
        return self.is_held

    async def abandon(self, holders: str) -> None:
        self.abandoned.append(holders)


class Work:
    """Jobs as they are done, each until the gate is open."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.problem: Exception | None = None
        self.gate = asyncio.Event()

    async def __call__(self, job: QueuedJob) -> None:
        self.began.append(job.key)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(job.key)
            raise
        if self.problem is not None:
            raise self.problem
        self.ended.append(job.key)


def runner_of(jobs: Jobs, work: Work, settings: RunnerSettings = SETTINGS) -> WorkQueueRunner:
    return WorkQueueRunner("jobs", jobs, work, settings, clock=lambda: NOW)


@asynccontextmanager
async def running(runner: WorkQueueRunner, node: str = "") -> AsyncGenerator[None]:
    task = asyncio.ensure_future(runner.run(node))
    try:
        async with asyncio.timeout(20):
            yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_no_more_jobs_are_taken_than_there_is_room_for_and_the_rest_follows() -> None:
    jobs, work = Jobs(5), Work()
    runner = runner_of(jobs, work)
    async with running(runner):
        while len(work.began) < 2:
            await asyncio.sleep(0)
        assert len(jobs.due) == 3
        with runner.reserve() as claim:
            assert claim is None
        work.gate.set()
        while len(work.ended) < 5:
            await asyncio.sleep(0)


async def test_room_that_is_reserved_is_not_given_away() -> None:
    jobs, work = Jobs(5), Work()
    runner = runner_of(jobs, work)
    with runner.reserve() as claim:
        assert claim == WorkClaim(runner.holder, NOW + SETTINGS.lease)
        await runner.start_due_jobs()
        assert work.began == ["key-0"]
    runner.start(job_no(7))
    assert work.began == ["key-0", "key-7"], "it begins at once"
    work.gate.set()
    await runner.finish()


async def test_a_job_that_is_under_way_is_not_begun_again() -> None:
    jobs, work = Jobs(1), Work()
    runner = runner_of(jobs, work)
    await runner.start_due_jobs()
    jobs.due = [job_no(0)]
    await runner.start_due_jobs()
    work.gate.set()
    await runner.finish()
    assert work.began == ["key-0"]


async def test_a_runner_that_is_woken_does_not_wait_for_its_next_poll() -> None:
    jobs, work = Jobs(), Work()
    runner = runner_of(jobs, work)
    async with running(runner):
        await asyncio.sleep(0.01)
        jobs.due = [job_no(0)]
        runner.wakeup.set()
        while not work.began:
            await asyncio.sleep(0)


async def test_a_claim_is_renewed_while_its_job_runs() -> None:
    jobs, work = Jobs(1), Work()
    runner = runner_of(jobs, work, QUICK)
    await runner.start_due_jobs()
    async with asyncio.timeout(20):
        while len(jobs.renewed) < 2:
            await asyncio.sleep(0.001)
    jobs.is_away = True
    await asyncio.sleep(0.03)
    assert work.cancelled == [], "a store that is away takes nothing from a node"
    work.gate.set()
    await runner.finish()
    assert work.ended == ["key-0"]


async def test_a_job_ends_here_when_another_node_has_it() -> None:
    jobs, work = Jobs(1), Work()
    jobs.is_held = False
    runner = runner_of(jobs, work, QUICK)
    await runner.start_due_jobs()
    async with asyncio.timeout(20):
        await runner.finish()
    assert work.cancelled == ["key-0"]


@pytest.mark.parametrize("problem", [Unavailable("the store is away"), ValueError("a bug")])
async def test_a_job_that_fails_keeps_no_other_from_being_done(problem: Exception) -> None:
    jobs, work = Jobs(2), Work()
    work.problem = problem
    work.gate.set()
    runner = runner_of(jobs, work)
    await runner.start_due_jobs()
    await runner.finish()
    assert work.began == ["key-0", "key-1"]
    work.problem, jobs.due = None, [job_no(0)]
    await runner.start_due_jobs()
    await runner.finish()
    assert work.ended == ["key-0"], "it can be taken again"


async def test_a_node_that_begins_voids_the_claims_of_its_earlier_run() -> None:
    jobs = Jobs()
    runner = runner_of(jobs, Work(), QUICK)
    async with running(runner, "n1"):
        await asyncio.sleep(0.02)
    assert jobs.abandoned == ["n1/"]
    assert runner.holder.startswith("n1/")


async def test_a_node_that_ends_leaves_its_jobs_to_others() -> None:
    jobs, work = Jobs(1), Work()
    runner = runner_of(jobs, work)
    await runner.start_due_jobs()
    await runner.stop()
    assert work.cancelled == ["key-0"]
    assert jobs.abandoned == [runner.holder]
    jobs.due = [job_no(1)]
    await runner.start_due_jobs()
    with runner.reserve() as claim:
        assert claim is None
    assert work.began == ["key-0"]


async def test_a_queue_that_is_away_is_logged_once_and_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs, work = Jobs(1), Work()
    jobs.is_away = True
    with caplog.at_level(logging.WARNING):
        async with running(runner_of(jobs, work, QUICK)):
            await asyncio.sleep(0.05)
            jobs.is_away = False
            while not work.began:
                await asyncio.sleep(0.001)
    told = [record.getMessage() for record in caplog.records]
    assert told == ["Work on jobs is paused: the store is away", "Work on jobs continues."]


async def test_old_jobs_are_pruned_now_and_then() -> None:
    pruned: list[datetime] = []
    now = NOW

    async def prune(at: datetime) -> None:
        pruned.append(at)

    runner = WorkQueueRunner("jobs", Jobs(), Work(), SETTINGS, clock=lambda: now, prune=prune)
    await runner.start_due_jobs()
    await runner.start_due_jobs()
    now += SETTINGS.prune_interval
    await runner.start_due_jobs()
    assert pruned == [NOW, NOW + SETTINGS.prune_interval]
