"""Database store of webhooks.

Each step is one short transaction, and none waits for the transactions of other records. A
subscription with waiting messages has a job in the work queue. Each transaction locks the row of
the subscription before the row of the job, so that no two transactions deadlock.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import groupby
from typing import Any, Final

import msgspec
from sqlalchemy import Select, and_, delete, exists, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from comity.events.model import Severity
from comity.events.webhooks import model
from comity.events.webhooks.model import (
    PAGE,
    DeliveryResult,
    JournalCursor,
    WebhookMessage,
    WebhookState,
    WebhookSubscription,
)
from comity.secrets.model import SEALED_PAGE, SealedRecord
from comity.storage import values
from comity.storage.changes import RecordKind
from comity.storage.database import (
    EVENT_MARKS,
    JOURNAL,
    POSTS,
    WEBHOOKS,
    DatabaseBackend,
    Row,
    SqlDatabase,
)
from comity.storage.work_queue import SqlWorkQueue
from comity.toolkit.jobs import JobOutcome, JobState, QueuedJob

WEBHOOK_JOBS: Final = "webhook"

_WEBHOOK_COLUMNS: Final = [WEBHOOKS.c[name] for name in WebhookSubscription.__dataclass_fields__]
_POST: Final = [
    *(POSTS.c.webhook, POSTS.c.event, POSTS.c.body, POSTS.c.at, POSTS.c.due_at),
    *(POSTS.c.number, POSTS.c.attempts, POSTS.c.state, POSTS.c.last_error),
]
_RENEWED: Final = ("credential", "expires_at", "sealed", "rotated_until", "state")
_SETTLED: Final = ("state", "failures", "failing_since", "last_error", "delivered_at")
WAITING: Final = "waiting"
FAILED: Final = "failed"
DONE: Final = "done"
_NO_SECRETS: Final = "[]"
_sealed: Final = msgspec.json.Decoder(tuple[bytes, ...])


class SqlWebhooks:
    def __init__(self, database: SqlDatabase, backend: DatabaseBackend, jobs: SqlWorkQueue) -> None:
        self.jobs = jobs
        self._database = database
        self._backend = backend

    async def put(self, subscription: WebhookSubscription) -> None:
        new = model.checked_subscription(subscription)
        row = _row(new)
        made = self._backend.insert(WEBHOOKS).values(row)
        renewed = {name: made.excluded[name] for name in _RENEWED}
        fresh: Row = {"failures": 0, "failing_since": None, "rest_until": None}
        async with self._database.writing() as writing:
            await writing.connection.execute(
                made.on_conflict_do_update(index_elements=["id"], set_={**renewed, **fresh})
            )
            await self._schedule(writing.connection, new.id)
            await writing.record_change(RecordKind.WEBHOOKS, [new.id])

    async def get(self, id: str) -> WebhookSubscription | None:
        found = await self._several(select(*_WEBHOOK_COLUMNS).where(WEBHOOKS.c.id == id), id)
        return found[0] if found else None

    async def list_of_party(self, party: str) -> Sequence[WebhookSubscription]:
        wanted = select(*_WEBHOOK_COLUMNS).where(WEBHOOKS.c.party == party).order_by(WEBHOOKS.c.id)
        return await self._several(wanted, party)

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[WebhookSubscription]:
        wanted = (
            select(*_WEBHOOK_COLUMNS)
            .where(WEBHOOKS.c.id > after)
            .order_by(WEBHOOKS.c.id)
            .limit(limit)
        )
        return await self._several(wanted, after or "any")

    sealed_name = "webhooks"

    async def list_sealed(
        self, after: str = "", limit: int = SEALED_PAGE
    ) -> Sequence[SealedRecord]:
        """Return the secrets of some subscriptions. The id of a secret is its number in one."""
        wanted = (
            select(WEBHOOKS.c.id, WEBHOOKS.c.sealed)
            .where(WEBHOOKS.c.id > after.rpartition("/")[0], WEBHOOKS.c.sealed != _NO_SECRETS)
            .order_by(WEBHOOKS.c.id)
            .limit(limit)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(wanted)).all()
        return [
            SealedRecord(f"{id}/{number}", each, model.secret_context(id))
            for id, sealed in rows
            for number, each in enumerate(_sealed.decode(sealed))
        ]

    async def replace_sealed(self, record: SealedRecord, sealed: bytes) -> bool:
        id, of_it = record.id.rpartition("/")[0], WEBHOOKS.c.id == record.id.rpartition("/")[0]
        async with self._database.writing() as writing:
            locked = select(WEBHOOKS.c.sealed).where(of_it).with_for_update()
            text = (await writing.connection.execute(locked)).scalar()
            found = () if text is None else _sealed.decode(text)
            if record.sealed not in found:
                return False
            fresh = [sealed if each == record.sealed else each for each in found]
            await writing.connection.execute(
                update(WEBHOOKS).where(of_it).values(sealed=msgspec.json.encode(fresh).decode())
            )
            await writing.record_change(RecordKind.WEBHOOKS, [id])
        return True

    async def remove(self, id: str) -> bool:
        if not values.is_name(id):
            return False
        async with self._database.writing() as writing:
            gone = await writing.connection.execute(delete(WEBHOOKS).where(WEBHOOKS.c.id == id))
            await self.jobs.remove_in(writing.connection, [id])
            await writing.record_change(RecordKind.WEBHOOKS, [id] * gone.rowcount)
        return gone.rowcount > 0

    async def initialize_marks(self) -> None:
        heads = select(JOURNAL.c.node, func.max(JOURNAL.c.seq)).group_by(JOURNAL.c.node)
        # This takes the same lock as a subscription, so that none is added between the check and
        # the marks.
        async with self._database.writing() as writing:
            connection = writing.connection
            if (await connection.execute(select(WEBHOOKS.c.id).limit(1))).first() is not None:
                return
            found = [{"chain": chain, "seq": seq} for chain, seq in await connection.execute(heads)]
            await connection.execute(delete(EVENT_MARKS))
            if found:
                await connection.execute(insert(EVENT_MARKS), found)

    async def marks(self) -> Mapping[str, int]:
        async with self._database.reading() as connection:
            rows = await connection.execute(select(EVENT_MARKS))
            return {row.chain: row.seq for row in rows}

    async def add(
        self, messages: Sequence[WebhookMessage], maximum: int, cursor: JournalCursor | None = None
    ) -> bool:
        kept = sorted(map(model.checked_message, messages), key=lambda post: post.subscription)
        async with self._database.beside() as connection:
            if cursor is not None and not await self._advance_cursor(connection, cursor):
                return False
            # Always in the same order, so that no two of these transactions deadlock.
            for id, some in groupby(kept, key=lambda post: post.subscription):
                await self._add(connection, id, list(some), maximum)
        return True

    async def _advance_cursor(self, connection: AsyncConnection, cursor: JournalCursor) -> bool:
        begun = self._backend.insert(EVENT_MARKS).values(chain=cursor.chain, seq=0)
        await connection.execute(begun.on_conflict_do_nothing())
        at_it = (EVENT_MARKS.c.chain == cursor.chain, EVENT_MARKS.c.seq == cursor.seen)
        moved = await connection.execute(update(EVENT_MARKS).where(*at_it).values(seq=cursor.upto))
        return moved.rowcount > 0

    async def _add(
        self, connection: AsyncConnection, id: str, messages: list[WebhookMessage], maximum: int
    ) -> None:
        wanted = select(WEBHOOKS.c.waiting, WEBHOOKS.c.state, WEBHOOKS.c.rest_until)
        locked = wanted.where(WEBHOOKS.c.id == id).with_for_update()
        one = (await connection.execute(locked)).first()
        if one is None:
            return
        accepted = messages[: max(maximum - one.waiting, 0)]
        added = 0
        if accepted:
            new = self._backend.insert(POSTS).values([_post_row(post) for post in accepted])
            done = await connection.execute(new.on_conflict_do_nothing().returning(POSTS.c.number))
            added = len(done.all())
        changed: Row = {
            "waiting": WEBHOOKS.c.waiting + added,
            "dropped": WEBHOOKS.c.dropped + len(messages) - len(accepted),
        }
        await connection.execute(update(WEBHOOKS).where(WEBHOOKS.c.id == id).values(changed))
        if added and one.state == WebhookState.ACTIVE:
            earliest = min(post.due_at for post in messages)
            due_at = max(earliest, one.rest_until) if one.rest_until else earliest
            await self.jobs.schedule_in(connection, id, due_at)

    async def _schedule(self, connection: AsyncConnection, id: str) -> None:
        """Schedule the delivery of the waiting messages of a subscription."""
        due_at = await _next_due(connection, id)
        if due_at is not None:
            await self.jobs.schedule_in(connection, id, due_at)

    async def due(self, id: str, now: datetime, limit: int) -> Sequence[WebhookMessage]:
        of_it = (POSTS.c.webhook == id, POSTS.c.state == WAITING)
        wanted = select(*_POST).where(*of_it, POSTS.c.due_at <= values.to_utc(now))
        return await self._posts(wanted.order_by(POSTS.c.number).limit(limit))

    async def settle(self, job: QueuedJob, result: DeliveryResult) -> bool:
        said, at = result.subscription, values.to_utc(result.at)
        of_it = WEBHOOKS.c.id == said.id
        row = _row(said)
        async with self._settle_transaction(said) as connection:
            locked = select(WEBHOOKS.c.id).where(of_it).with_for_update()
            is_there = (await connection.execute(locked)).first() is not None
            if not is_there or not await self.jobs.lock_in(connection, job):
                return False
            await _write_posts(connection, result)
            rest_until = values.to_optional_utc(result.rest_until)
            changed: Row = {
                **{name: row[name] for name in _SETTLED},
                **_message_counts(said.id),
                "rest_until": rest_until,
            }
            await connection.execute(update(WEBHOOKS).where(of_it).values(changed))
            due_at = await _next_due(connection, said.id)
            outcome = JobOutcome(JobState.DONE, at)
            if due_at is not None and said.state is WebhookState.ACTIVE:
                due_at = max(due_at, rest_until) if rest_until else due_at
                outcome = JobOutcome(JobState.WAITING, due_at, said.last_error)
            return await self.jobs.settle_in(connection, job, outcome)

    async def postpone(self, job: QueuedJob, due_at: datetime) -> bool:
        return await self.jobs.settle(job, JobOutcome(JobState.WAITING, due_at))

    @asynccontextmanager
    async def _settle_transaction(
        self, said: WebhookSubscription
    ) -> AsyncGenerator[AsyncConnection]:
        """Open the transaction that ends a claim.

        Other nodes need to know that a subscription is no longer active, and nothing else.
        """
        if said.state is WebhookState.ACTIVE:
            async with self._database.beside() as connection:
                yield connection
            return
        async with self._database.writing() as writing:
            yield writing.connection
            await writing.record_change(RecordKind.WEBHOOKS, [said.id])

    async def posts(self, id: str, after: int = 0, limit: int = PAGE) -> Sequence[WebhookMessage]:
        of_it = (POSTS.c.webhook == id, POSTS.c.state != DONE, POSTS.c.number > after)
        wanted = select(*_POST).where(*of_it).order_by(POSTS.c.number).limit(limit)
        return await self._posts(wanted) if values.is_name(id) else []

    async def retry(self, id: str, now: datetime) -> int:
        if not values.is_name(id):
            return 0
        now = values.to_utc(now)
        of_it = and_(POSTS.c.webhook == id, POSTS.c.state == FAILED)
        fresh: Row = {"state": WebhookState.ACTIVE, "failures": 0, "failing_since": None}
        async with self._database.writing() as writing:
            execute = writing.connection.execute
            await execute(select(WEBHOOKS.c.id).where(WEBHOOKS.c.id == id).with_for_update())
            waits = update(POSTS).where(of_it).values(state=WAITING, due_at=now, at=now)
            again = (await execute(waits)).rowcount
            fresh |= {**_message_counts(id), "rest_until": None}
            there = await execute(update(WEBHOOKS).where(WEBHOOKS.c.id == id).values(fresh))
            await self._schedule(writing.connection, id)
            await writing.record_change(RecordKind.WEBHOOKS, [id] * there.rowcount)
        return again

    async def prune(self, now: datetime, remembered: datetime) -> Sequence[WebhookSubscription]:
        ended = WEBHOOKS.c.expires_at <= values.to_utc(now)
        old = and_(POSTS.c.state == DONE, POSTS.c.done_at < values.to_utc(remembered))
        async with self._database.reading() as connection:
            any_old = (await connection.execute(select(exists().where(old)))).scalar()
            any_ended = (await connection.execute(select(exists().where(ended)))).scalar()
        if any_old:
            async with self._database.beside() as connection:
                await connection.execute(delete(POSTS).where(old))
        if not any_ended:
            return []
        async with self._database.writing() as writing:
            gone = delete(WEBHOOKS).where(ended).returning(*_WEBHOOK_COLUMNS)
            removed = [_subscription(row) for row in await writing.connection.execute(gone)]
            ids = [each.id for each in removed]
            await self.jobs.remove_in(writing.connection, ids)
            await writing.record_change(RecordKind.WEBHOOKS, ids)
        return removed

    async def _several(self, statement: Select[Any], name: str) -> list[WebhookSubscription]:
        if not values.is_name(name):
            return []
        async with self._database.reading() as connection:
            return [_subscription(row) for row in await connection.execute(statement)]

    async def _posts(self, statement: Select[Any]) -> list[WebhookMessage]:
        async with self._database.reading() as connection:
            return [_post(row) for row in await connection.execute(statement)]


async def _write_posts(connection: AsyncConnection, result: DeliveryResult) -> None:
    if result.delivered:
        done = update(POSTS).where(POSTS.c.number.in_(result.delivered))
        # The body is no longer needed. The row remains, so that the event is not delivered again.
        emptied: Row = {"state": DONE, "done_at": values.to_utc(result.at), "body": b""}
        await connection.execute(done.values(emptied))
    for post in map(model.checked_message, result.tried):
        changed: Row = {
            "attempts": post.attempts,
            "due_at": post.due_at,
            "state": FAILED if post.failed else WAITING,
            "last_error": post.last_error,
        }
        await connection.execute(update(POSTS).where(POSTS.c.number == post.number).values(changed))


async def _next_due(connection: AsyncConnection, id: str) -> datetime | None:
    of_it = (POSTS.c.webhook == id, POSTS.c.state == WAITING)
    return (await connection.execute(select(func.min(POSTS.c.due_at)).where(*of_it))).scalar()


def _message_counts(id: str) -> Row:
    """Expressions for the current numbers of waiting and failed messages."""

    def of(state: str) -> Any:
        return and_(POSTS.c.webhook == id, POSTS.c.state == state)

    number = select(func.count()).select_from(POSTS)
    return {
        "waiting": number.where(of(WAITING)).scalar_subquery(),
        "failed": number.where(of(FAILED)).scalar_subquery(),
    }


def _row(subscription: WebhookSubscription) -> Row:
    row: Row = {
        name: getattr(subscription, name) for name in WebhookSubscription.__dataclass_fields__
    }
    return {**row, "sealed": msgspec.json.encode(subscription.sealed).decode()}


def _subscription(row: Sequence[Any]) -> WebhookSubscription:
    found: Row = dict(zip(WebhookSubscription.__dataclass_fields__, row, strict=True))
    found["sealed"] = _sealed.decode(found["sealed"])
    found["least"], found["state"] = Severity(found["least"]), WebhookState(found["state"])
    return WebhookSubscription(**found)


def _post_row(message: WebhookMessage) -> Row:
    return {
        "webhook": message.subscription,
        "event": message.event,
        "body": message.body,
        "at": message.at,
        "due_at": message.due_at,
        "attempts": message.attempts,
        "state": WAITING,
        "last_error": "",
    }


def _post(row: Sequence[Any]) -> WebhookMessage:
    webhook, event, body, at, due_at, number, attempts, state, last_error = row
    failed = state == FAILED
    return WebhookMessage(
        webhook, event, bytes(body), at, due_at, number, attempts, failed, last_error
    )
