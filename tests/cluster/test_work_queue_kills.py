"""A node is killed amid its jobs: each is done by another one, and has its side effect once."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from comity.toolkit.jobs import JobState, QueuedJob
from tests.cluster.job_worker import MAX_ACTIVE
from tests.interop.peers import ROOT
from tests.pace import here
from tests.support.opened_stores import Store

JOBS = 2 * MAX_ACTIVE
NEVER = 3600.0
LEASE = 3.0
LONGER = 4.0
"""A job that takes so long is done only where its claim is renewed."""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


class Worker:
    """A process that works on jobs, and the keys of those that it began."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.began: list[str] = []
        self._process = process
        self._reads = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.began.append(line.decode().split()[1])

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reads


@asynccontextmanager
async def a_worker(
    url: str, node: str, lease: float, seconds: float, effects: Path
) -> AsyncGenerator[Worker]:
    command = ("-m", "tests.cluster.job_worker", url, node, str(lease), str(seconds), str(effects))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    worker = Worker(process)
    try:
        yield worker
    finally:
        await worker.kill()


async def killed_amid_jobs(store: Store, lease: float, effects: Path) -> list[str]:
    """Let a node begin as many jobs as it can, and kill it; the keys of these jobs."""
    jobs = (await store.open()).pushes.jobs
    now = datetime.now(UTC)
    for number in range(JOBS):
        assert await jobs.enqueue(QueuedJob(f"job-{number}", now, now))
    async with a_worker(store.url, "one", lease, NEVER, effects) as dying:
        async with asyncio.timeout(here(60)):
            while len(dying.began) < MAX_ACTIVE:
                await asyncio.sleep(0.01)
        await dying.kill()
    return dying.began


async def all_done(store: Store) -> dict[str, QueuedJob]:
    jobs = (await store.open()).pushes.jobs
    async with asyncio.timeout(here(60)):
        while (await jobs.count_by_state())[JobState.DONE] < JOBS:
            await asyncio.sleep(0.05)
    return {job.key: job for job in await jobs.page()}


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    folder = tmp_path / "effects"
    folder.mkdir()
    return folder


def done_by(effects: Path) -> dict[str, str]:
    """Which node brought about each side effect."""
    return {file.name: file.read_text() for file in effects.iterdir()}


async def test_other_nodes_take_over_when_the_claims_lapse(store: Store, effects: Path) -> None:
    held = await killed_amid_jobs(store, LEASE, effects)
    before = done_by(effects)
    assert len(before) == MAX_ACTIVE // 2, "half of the jobs had their side effect before the kill"
    async with (
        a_worker(store.url, "two", LEASE, LONGER, effects) as two,
        a_worker(store.url, "three", LEASE, LONGER, effects) as three,
    ):
        found = await all_done(store)
    assert sorted([*two.began, *three.began]) == sorted(found), "no job was begun by both"
    assert {key for key, job in found.items() if job.attempts == 2} == set(held)
    assert {job.attempts for job in found.values()} == {1, 2}
    after = done_by(effects)
    assert after.keys() == found.keys()
    assert {key for key, node in after.items() if node == "one"} == before.keys()


async def test_a_node_that_comes_back_takes_up_its_jobs_at_once(
    store: Store, effects: Path
) -> None:
    held = await killed_amid_jobs(store, NEVER, effects)
    async with a_worker(store.url, "one", NEVER, 0.01, effects) as same:
        found = await all_done(store)
    assert sorted(same.began) == sorted(found)
    assert {key for key, job in found.items() if job.attempts == 2} == set(held)
    assert done_by(effects).keys() == found.keys()
