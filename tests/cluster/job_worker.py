"""A node that works on jobs until it is killed; it says on stdout which job it begins.

`python -m tests.cluster.job_worker URL NODE LEASE WORK EFFECTS`. LEASE says how long a claim lasts,
WORK how long a job takes, in seconds. EFFECTS is a folder with one file for each side effect, named
by its idempotency key; every second job has its side effect first, the others have it last.
"""

import asyncio
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from comity.app.records import open_store
from comity.storage.work_queue import SqlWorkQueue
from comity.toolkit.jobs import JobOutcome, JobState, QueuedJob
from comity.toolkit.work_queue import RunnerSettings, WorkQueueRunner

MAX_ACTIVE = 4
POLL_INTERVAL = timedelta(milliseconds=50)


def bring_about(effects: Path, key: str, node: str) -> None:
    """The side effect of a job: its key makes sure that there is one."""
    try:
        with (effects / key).open("x") as file:
            file.write(node)
    except FileExistsError:
        return


async def work(url: str, node: str, lease: float, seconds: float, effects: Path) -> None:
    records = open_store(url)
    await records.open()
    jobs: SqlWorkQueue = records.pushes.jobs

    async def handle(job: QueuedJob) -> None:
        if job.number % 2:
            bring_about(effects, job.key, node)
        print("began", job.key, flush=True)
        await asyncio.sleep(seconds)
        bring_about(effects, job.key, node)
        await jobs.settle(job, JobOutcome(JobState.DONE, datetime.now(UTC), result=node))

    held_for = timedelta(seconds=lease)
    settings = RunnerSettings(MAX_ACTIVE, lease=held_for, poll_interval=POLL_INTERVAL)
    runner = WorkQueueRunner("jobs", jobs, handle, settings, clock=lambda: datetime.now(UTC))
    await runner.run(node)


if __name__ == "__main__":
    _, url, node, lease, seconds, folder = sys.argv
    asyncio.run(work(url, node, float(lease), float(seconds), Path(folder)))
