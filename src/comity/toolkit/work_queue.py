"""A durable work queue: jobs that any node may take, each held by one node at a time.

A domain writes its jobs into a queue. `WorkQueueRunner` claims the due jobs for this node and
passes each to the handler of the domain, which writes the outcome. A job runs at least once: the
claim of a node that dies expires, and another node takes the job over. Handlers therefore give each
side effect an idempotency key. `storage.work_queue` holds the table.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from comity.errors import Misconfigured, Unavailable
from comity.toolkit.background import BackgroundTasks, finish_before_cancel, wait_for_change
from comity.toolkit.jobs import QueuedJob, WorkClaim, WorkQueue

log = logging.getLogger(__name__)


type JobHandler = Callable[[QueuedJob], Awaitable[None]]
"""Runs a claimed job and writes its outcome.

If the handler raises, a node takes the job again when the claim expires.
"""


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """How one node runs the jobs of one kind."""

    max_active: int
    lease: timedelta = timedelta(seconds=30)
    poll_interval: timedelta = timedelta(seconds=1)
    prune_interval: timedelta = timedelta(minutes=10)
    # Whether the end of one job may make another one due.
    looks_after_each: bool = False


class WorkQueueRunner:
    """Claims the due jobs of one kind for this node, and passes them to their handler."""

    def __init__(
        self,
        name: str,
        queue: WorkQueue,
        handle: JobHandler,
        settings: RunnerSettings,
        *,
        clock: Callable[[], datetime],
        prune: Callable[[datetime], Awaitable[object]] | None = None,
    ) -> None:
        # Set this event to make the runner look for jobs at once.
        self.wakeup = asyncio.Event()
        self.clock = clock
        self._name = name
        self._queue = queue
        self._handle = handle
        self._settings = settings
        self._prune = prune
        self._pruned_at: datetime | None = None
        # Unique for each process, so that claims of an earlier run never count as claims of this
        # one.
        self._run = secrets.token_hex(8)
        self._node = ""
        self._active: set[int] = set()
        self._reserved = 0
        self._tasks = BackgroundTasks(name)
        self._is_behind = False
        self._is_paused = False
        self._is_stopped = False

    @property
    def holder(self) -> str:
        """The name under which this node claims jobs."""
        return f"{self._node}/{self._run}"

    @contextmanager
    def reserve(self) -> Generator[WorkClaim | None]:
        """Yield a claim for a job that this node adds and starts itself, or None if it is busy."""
        if self._is_stopped or self._free_slots <= 0:
            self._is_behind = True
            yield None
            return
        self._reserved += 1
        try:
            yield WorkClaim(self.holder, self.clock() + self._settings.lease)
        finally:
            self._reserved -= 1

    @property
    def _free_slots(self) -> int:
        return self._settings.max_active - len(self._active) - self._reserved

    def start(self, job: QueuedJob) -> None:
        """Start a job that this node has claimed."""
        # A claim may expire and be taken again by this node while the job still runs.
        if job.number not in self._active:
            self._active.add(job.number)
            self._tasks.start(self._run_job(job), at_once=True)

    async def run(self, node: str = "") -> None:
        """Run jobs until cancelled. `node` is a name that no other running process has.

        This voids the claims of an earlier process of that name.
        """
        self._node = node
        is_abandoned = not node
        while True:
            try:
                if not is_abandoned:
                    await self._queue.abandon(f"{node}/")
                    is_abandoned = True
                # A transaction that is cancelled in its midst may keep the lock of a SQLite file.
                await finish_before_cancel(self.start_due_jobs())
                self._report(None)
            except (Unavailable, Misconfigured) as problem:
                self._report(problem)
                await asyncio.sleep(self._settings.poll_interval.total_seconds())
            except Exception:
                log.exception("Looking for due %s failed", self._name)
                await asyncio.sleep(self._settings.poll_interval.total_seconds())
            await wait_for_change(self.wakeup, self._settings.poll_interval)

    async def start_due_jobs(self) -> None:
        """Start all due jobs for which there are free slots. Raises Unavailable."""
        now = self.clock()
        await self._prune_when_due(now)
        topic = self._free_slots
        if topic <= 0 or self._is_stopped:
            self._is_behind = True
            return
        claim = WorkClaim(self.holder, now + self._settings.lease)
        found = await self._queue.claim(claim, now, topic)
        self._is_behind = len(found) == topic
        for job in found:
            self.start(job)

    async def finish(self) -> None:
        """Wait until all started jobs have ended."""
        await self._tasks.finish()

    async def stop(self) -> None:
        """Release all jobs to other nodes, or to a later run of this one."""
        self._is_stopped = True
        self._tasks.cancel()
        await self._tasks.finish()
        with suppress(Unavailable, Misconfigured):
            await self._queue.abandon(f"{self._node}/" if self._node else self.holder)

    async def _prune_when_due(self, now: datetime) -> None:
        if self._prune is None:
            return
        if self._pruned_at is None or now - self._pruned_at >= self._settings.prune_interval:
            self._pruned_at = now
            await self._prune(now)

    async def _run_job(self, job: QueuedJob) -> None:
        task = asyncio.current_task()
        assert task is not None
        renewal = asyncio.ensure_future(self._keep_claim(job, task))
        try:
            await self._handle(job)
        except (Unavailable, Misconfigured) as problem:
            log.warning("A result of %s could not be stored: %s", self._name, problem)
        finally:
            renewal.cancel()
            self._active.discard(job.number)
            if self._is_behind or self._settings.looks_after_each:
                self.wakeup.set()

    async def _keep_claim(self, job: QueuedJob, work: asyncio.Task[None]) -> None:
        """Renew the claim while the job runs, and cancel the job if another node holds it."""
        while True:
            await asyncio.sleep(self._settings.lease.total_seconds() / 3)
            try:
                is_held = await self._queue.renew(job, self.clock() + self._settings.lease)
            except (Unavailable, Misconfigured):
                # The store decides which node holds the job when the outcome is written.
                continue
            if not is_held:
                log.info("One of the %s continues on another node", self._name)
                work.cancel()
                return

    def _report(self, problem: Unavailable | Misconfigured | None) -> None:
        """Log once that the queue is unavailable, and once that it is available again."""
        if problem is not None and not self._is_paused:
            log.warning("Work on %s is paused: %s", self._name, problem)
        elif problem is None and self._is_paused:
            log.warning("Work on %s continues.", self._name)
        self._is_paused = problem is not None
