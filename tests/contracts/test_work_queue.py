"""The work queue on every database: who holds a job, what comes of it, and what is forgotten."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from comity.app.records import RecordStores
from comity.storage.work_queue import SqlWorkQueue
from comity.toolkit.jobs import JobAdmission, JobOutcome, JobState, QueuedJob, WorkClaim
from tests.contracts.stores import Open

NOW = datetime(2026, 7, 28, 12, 0, 0, 123456, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SOON = NOW + timedelta(hours=1)
MINE = WorkClaim("mine/1", SOON)
DONE = JobOutcome(JobState.DONE, NOW, result="it")


def job_no(number: int, group: str = "a", due_at: datetime = NOW) -> QueuedJob:
    return QueuedJob(f"key-{number}", due_at, NOW, group, b"\0payload")


async def added(jobs: SqlWorkQueue, job: QueuedJob, claim: WorkClaim | None = None) -> QueuedJob:
    found = await jobs.enqueue(job, claim)
    assert found is not None
    assert found.is_new
    return found.job


async def keys(jobs: SqlWorkQueue, claim: WorkClaim, now: datetime, limit: int = 9) -> list[str]:
    return [each.key for each in await jobs.claim(claim, now, limit)]


async def test_a_job_comes_back_as_it_was_written(records: RecordStores, again: Open) -> None:
    written = await added(records.pushes.jobs, job_no(0))
    other = (await again()).pushes.jobs
    assert await other.get("key-0") == written == replace(job_no(0), number=written.number)
    assert await other.page() == [written]
    assert await other.get("key-1") is None


async def test_a_key_is_unique_among_the_jobs_of_one_kind(records: RecordStores) -> None:
    one, other = records.pushes.jobs, records.webhooks.jobs
    first = await added(one, job_no(0))
    assert await one.enqueue(replace(job_no(0), payload=b"")) == JobAdmission(first, is_new=False)
    assert (await added(other, job_no(0))).number != first.number
    assert await keys(one, MINE, NOW) == ["key-0"]
    await one.abandon("mine/")
    assert await keys(other, MINE, NOW) == ["key-0"]
    assert await keys(one, MINE, NOW) == ["key-0"]


async def test_of_many_who_enqueue_one_key_at_once_one_is_first(
    records: RecordStores, again: Open
) -> None:
    queues = [(await again()).pushes.jobs for _ in range(3)]
    tries = [queues[each % 3].enqueue(job_no(0), WorkClaim(f"h{each}", SOON)) for each in range(12)]
    found = [each for each in await asyncio.gather(*tries) if each is not None]
    assert [each.is_new for each in found].count(True) == 1
    assert len({each.job.number for each in found}) == 1
    assert len(found) == 12


async def test_no_more_jobs_of_a_group_wait_than_there_is_room_for(records: RecordStores) -> None:
    jobs = records.pushes.jobs
    for number in range(3):
        await added(jobs, job_no(number))
    assert await jobs.enqueue(job_no(9), None, 3) is None
    known = await jobs.enqueue(job_no(1), None, 3)
    assert known is not None
    assert not known.is_new
    assert await jobs.enqueue(job_no(9, "b"), None, 3) is not None


async def test_a_job_that_is_enqueued_with_a_claim_is_its_holders_alone(
    records: RecordStores,
) -> None:
    jobs = records.pushes.jobs
    job = await added(jobs, job_no(0), MINE)
    assert (job.holder, job.attempts) == ("mine/1", 1)
    assert await keys(jobs, WorkClaim("other", SOON), NOW) == []
    assert not await jobs.settle(replace(job, holder="other"), DONE)
    assert await jobs.settle(job, DONE)
    assert not await jobs.settle(job, DONE)
    found = await jobs.get("key-0")
    assert found is not None
    assert (found.state, found.result, found.ended_at) == (JobState.DONE, "it", NOW)
    assert await keys(jobs, MINE, SOON + SECOND) == []


async def test_one_holder_at_a_time_has_a_job(records: RecordStores, again: Open) -> None:
    for number in range(8):
        await added(records.pushes.jobs, job_no(number))
    queues = [(await again()).pushes.jobs for _ in range(4)]
    claims = (keys(each, WorkClaim(f"h{n}", SOON), NOW, 3) for n, each in enumerate(queues))
    claimed = [key for some in await asyncio.gather(*claims) for key in some]
    assert len(claimed) == len(set(claimed))
    for _ in range(8):
        claimed += await keys(queues[0], WorkClaim("h0", SOON), NOW, 3)
    assert sorted(claimed) == [f"key-{each}" for each in range(8)]


async def test_jobs_are_claimed_in_the_order_in_which_they_are_due(records: RecordStores) -> None:
    jobs = records.pushes.jobs
    for number, seconds in ((0, 2), (1, 0), (2, 1), (3, 9)):
        await added(jobs, job_no(number, due_at=NOW + seconds * SECOND))
    assert await keys(jobs, MINE, NOW + 2 * SECOND, 2) == ["key-1", "key-2"]
    assert await keys(jobs, MINE, NOW + 2 * SECOND) == ["key-0"]


async def test_a_claim_lapses_and_then_settles_nothing(records: RecordStores) -> None:
    jobs = records.pushes.jobs
    dead = await added(jobs, job_no(0), WorkClaim("dead", NOW + SECOND))
    assert await jobs.claim(WorkClaim("heir", SOON), NOW, 9) == []
    (taken,) = await jobs.claim(WorkClaim("heir", SOON), NOW + SECOND, 9)
    assert (taken.key, taken.attempts) == ("key-0", 2)
    assert not await jobs.settle(dead, DONE)
    assert not await jobs.renew(dead, SOON)
    assert await jobs.settle(taken, DONE)


async def test_a_claim_that_is_renewed_lapses_later(records: RecordStores) -> None:
    jobs = records.pushes.jobs
    job = await added(jobs, job_no(0), WorkClaim("mine", NOW + SECOND))
    assert await jobs.renew(job, NOW + 3 * SECOND)
    assert await keys(jobs, WorkClaim("heir", SOON), NOW + 2 * SECOND) == []
    assert await keys(jobs, WorkClaim("heir", SOON), NOW + 3 * SECOND) == ["key-0"]


async def test_a_job_that_could_not_be_done_is_due_later(records: RecordStores) -> None:
    jobs = records.pushes.jobs
    job = await added(jobs, job_no(0), MINE)
    assert await jobs.settle(job, JobOutcome(JobState.WAITING, NOW + SECOND, "no\0turn"))
    assert await jobs.claim(MINE, NOW, 9) == []
    (found,) = await jobs.claim(MINE, NOW + SECOND, 9)
    assert (found.attempts, found.last_error, found.payload) == (2, "no�turn", job.payload)


async def test_a_holder_that_is_gone_holds_nothing(records: RecordStores) -> None:
    jobs = records.pushes.jobs
    await added(jobs, job_no(0), WorkClaim("n_a/1", SOON))
    await added(jobs, job_no(1), WorkClaim("nXa/1", SOON))
    await added(jobs, job_no(2), WorkClaim("n%/1", SOON))
    await jobs.abandon("n_a/")
    assert await keys(jobs, MINE, NOW) == ["key-0"]
    await jobs.abandon("n%/")
    assert await keys(jobs, MINE, NOW) == ["key-2"]


async def test_a_job_that_failed_for_good_can_be_tried_again(records: RecordStores) -> None:
    jobs = records.pushes.jobs
    job = await added(jobs, job_no(0), MINE)
    await jobs.settle(job, JobOutcome(JobState.FAILED, NOW, "no"))
    assert await jobs.claim(MINE, SOON, 9) == []
    assert await jobs.reopen(job.number, NOW)
    assert not await jobs.reopen(job.number, NOW)
    assert not await jobs.reopen(job.number + 1, NOW)
    (found,) = await jobs.claim(MINE, NOW, 9)
    assert (found.attempts, found.payload, found.ended_at) == (1, job.payload, None)


async def test_jobs_of_a_group_run_one_after_the_other_in_a_serial_queue(
    records: RecordStores,
) -> None:
    jobs = records.topic_messages.jobs
    for number in range(3):
        await added(jobs, job_no(number))
    await added(jobs, job_no(7, "b"))
    first, other = await jobs.claim(MINE, NOW, 9)
    assert (first.key, other.key) == ("key-0", "key-7")
    assert await jobs.claim(MINE, NOW, 9) == []
    await jobs.settle(first, JobOutcome(JobState.WAITING, NOW + SECOND))
    assert await keys(jobs, MINE, NOW) == [], "the first is due again before the second"
    (first,) = await jobs.claim(MINE, NOW + SECOND, 9)
    await jobs.settle(first, JobOutcome(JobState.FAILED, NOW))
    assert await keys(jobs, MINE, NOW) == ["key-1"]


async def test_each_job_of_a_serial_queue_goes_to_one_of_many_who_claim(
    records: RecordStores, again: Open
) -> None:
    stores = [records, await again(), await again()]
    for number in range(30):
        await added(records.topic_messages.jobs, job_no(number, f"group {number % 10}"))
    taken: list[str] = []

    async def work(holder: str, jobs: SqlWorkQueue) -> None:
        while len(taken) < 30:
            for each in await jobs.claim(WorkClaim(holder, SOON), NOW, 2):
                taken.append(each.key)
                assert await jobs.settle(each, DONE)

    async with asyncio.timeout(60):
        await asyncio.gather(
            *(work(f"n{number}", store.topic_messages.jobs) for number, store in enumerate(stores))
        )
    assert sorted(taken) == sorted(f"key-{number}" for number in range(30))


async def test_jobs_are_listed_from_the_newest_on(records: RecordStores) -> None:
    jobs = records.pushes.jobs
    for number in range(4):
        await added(jobs, job_no(number))
    await added(jobs, job_no(4, "b"))
    first = await jobs.page(limit=2)
    assert [each.key for each in first] == ["key-4", "key-3"]
    second = await jobs.page(first[-1].number)
    assert [each.key for each in second] == ["key-2", "key-1", "key-0"]
    assert [each.key for each in await jobs.page(group="b")] == ["key-4"]


async def test_jobs_are_counted_and_the_old_forgotten(records: RecordStores) -> None:
    jobs = records.pushes.jobs
    for number, state in enumerate((JobState.DONE, JobState.DONE, JobState.FAILED)):
        job = await added(jobs, job_no(number), MINE)
        await jobs.settle(job, JobOutcome(state, NOW + number * SECOND))
    await added(jobs, job_no(7))
    assert list((await jobs.count_by_state()).values()) == [1, 2, 1]
    assert await jobs.prune(NOW) == 0
    assert await jobs.prune(NOW + SECOND) == 1
    assert await jobs.get("key-0") is None
    assert await jobs.prune(SOON) == 2
    assert list((await jobs.count_by_state()).values()) == [1, 0, 0]
