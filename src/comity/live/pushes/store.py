"""The SQL store of pushes. Each push is a job whose payload holds the push and its route."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import msgspec

from comity.inference.messages import ContentBlock
from comity.live.pushes import model
from comity.live.pushes.model import PUSH_PAGE, Push, PushAdmission, PushRoute, StoredPush
from comity.storage import values
from comity.storage.work_queue import SqlWorkQueue
from comity.toolkit.jobs import JobOutcome, JobState, QueuedJob, WorkClaim

PUSH_JOBS: Final = "push"


class _PushDocument(msgspec.Struct):
    server: str
    event: str
    at: datetime
    feature: str
    route: PushRoute
    content: tuple[ContentBlock, ...] = ()
    origin: Mapping[str, Any] = {}


_document: Final = msgspec.json.Decoder(_PushDocument)


class SqlPushes:
    """Stores pushes in the work queue, grouped by server."""

    def __init__(self, jobs: SqlWorkQueue) -> None:
        self.jobs = jobs

    async def add(
        self, stored_push: StoredPush, claim: WorkClaim | None, max_waiting: int
    ) -> PushAdmission | None:
        found = await self.jobs.enqueue(
            _to_job(model.checked_push(stored_push)), claim, max_waiting
        )
        if found is None:
            return None
        job = found.job if found.is_new and found.job.holder else None
        return PushAdmission(self.read(found.job), found.is_new, job)

    async def get(self, server: str, id: str) -> StoredPush | None:
        if not values.is_name(server) or not values.is_name(id):
            return None
        found = await self.jobs.get(_key_of(server, id))
        return None if found is None else self.read(found)

    def read(self, job: QueuedJob) -> StoredPush:
        said = _document.decode(job.payload)
        return StoredPush(
            Push(said.server, said.event, said.at, said.content, said.feature, said.origin),
            said.route,
            job.created_at,
            job.due_at,
            number=job.number,
            state=job.state,
            attempts=job.attempts,
            inference=job.result,
            last_error=job.last_error,
            done_at=job.ended_at,
        )

    async def settle(self, job: QueuedJob, outcome: JobOutcome) -> bool:
        if outcome.state is JobState.DONE:
            # The content is no longer needed. The rest stays, so that duplicates are recognised.
            kept = self.read(job)
            emptied = replace(kept.push, content=(), origin={})
            outcome = replace(outcome, payload=_encode(emptied, kept.route))
        return await self.jobs.settle(job, outcome)

    async def page(
        self, before: int = 0, limit: int = PUSH_PAGE, server: str = ""
    ) -> Sequence[StoredPush]:
        if server and not values.is_name(server):
            return []
        return [self.read(job) for job in await self.jobs.page(before, limit, server)]

    async def count_by_state(self) -> Mapping[JobState, int]:
        return await self.jobs.count_by_state()

    async def retry(self, number: int, now: datetime) -> bool:
        return await self.jobs.reopen(number, now)

    async def prune(self, ended_before: datetime) -> int:
        return await self.jobs.prune(ended_before)


def _key_of(server: str, event: str) -> str:
    # No server id contains a `/`.
    return f"{server}/{event}"


def _encode(push: Push, route: PushRoute) -> bytes:
    payload = _PushDocument(
        server=push.server,
        event=push.id,
        at=push.at,
        feature=push.feature,
        route=route,
        content=tuple(push.content),
        origin=push.origin,
    )
    return msgspec.json.encode(payload)


def _to_job(stored_push: StoredPush) -> QueuedJob:
    push, is_done = stored_push.push, stored_push.state is JobState.DONE
    return QueuedJob(
        key=_key_of(push.server, push.id),
        due_at=stored_push.due_at,
        created_at=stored_push.received_at,
        group=push.server,
        payload=_encode(
            replace(push, content=(), origin={}) if is_done else push, stored_push.route
        ),
        state=stored_push.state,
        ended_at=stored_push.done_at,
    )
