"""The table of all durable work. Only this module claims its rows.

Each step is one short transaction without a version. A claim takes only rows that no other
transaction has locked, so that many nodes can claim at once. Methods that end in `_in` run inside a
transaction of the caller, which also writes rows of its own domain.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    and_,
    case,
    delete,
    exists,
    func,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from comity.storage import values
from comity.storage.database import (
    METADATA,
    NUMBER,
    DatabaseBackend,
    EarliestTime,
    Row,
    SqlDatabase,
    UtcDateTime,
)
from comity.toolkit.jobs import (
    JobAdmission,
    JobOutcome,
    JobState,
    KeyClaim,
    KeyState,
    QueuedJob,
    WorkClaim,
)

JOB_PAGE: Final = 100
IS_WAITING: Final = text("state = 'waiting'")
"""Has a literal value, because a database uses a partial index only for a literal."""

JOBS: Final = Table(
    "comity_jobs",
    METADATA,
    Column("number", NUMBER, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("key", Text, nullable=False),
    Column("group_key", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("state", Text, nullable=False),
    Column("due_at", UtcDateTime, nullable=False),
    Column("claimed_by", Text, nullable=False),
    Column("claimed_until", UtcDateTime),
    Column("attempts", Integer, nullable=False),
    Column("last_error", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    UniqueConstraint("kind", "key", name="comity_jobs_once"),
    Index("comity_jobs_by_kind", "kind", "number"),
    Index(
        "comity_jobs_due", "kind", "due_at", sqlite_where=IS_WAITING, postgresql_where=IS_WAITING
    ),
    Index(
        "comity_jobs_waiting",
        "kind",
        "group_key",
        "number",
        sqlite_where=IS_WAITING,
        postgresql_where=IS_WAITING,
    ),
    Index("comity_jobs_ended", "kind", "ended_at"),
)

NEVER_LAPSES: Final = datetime(9999, 12, 31, tzinfo=UTC)
_UNIQUE_COLUMNS: Final = ("kind", "key")
_FREE: Final[Row] = {"claimed_by": "", "claimed_until": None}
_JOB_COLUMNS: Final = [
    *(JOBS.c.key, JOBS.c.due_at, JOBS.c.created_at, JOBS.c.group_key, JOBS.c.payload),
    *(JOBS.c.state, JOBS.c.attempts, JOBS.c.last_error, JOBS.c.result, JOBS.c.ended_at),
    *(JOBS.c.number, JOBS.c.claimed_by),
]


class SqlWorkQueue:
    """The jobs of one kind. In a serial queue the jobs of one group run one after the other."""

    def __init__(
        self, database: SqlDatabase, backend: DatabaseBackend, kind: str, *, is_serial: bool = False
    ) -> None:
        self._database = database
        self._backend = backend
        self._kind = kind
        self._is_serial = is_serial
        self._of_kind = JOBS.c.kind == kind
        self._next_due = EarliestTime(database, JOBS.c.due_at, IS_WAITING, self._of_kind)

    # Adding and reading jobs.

    async def enqueue(
        self, job: QueuedJob, claim: WorkClaim | None = None, max_waiting: int | None = None
    ) -> JobAdmission | None:
        """Add a job unless its key is known. Returns None if too many jobs of its group wait."""
        async with self._database.beside() as connection:
            if max_waiting is None or await self._count_in(connection, job.group) < max_waiting:
                added = await self.add_in(connection, job, claim)
                if added is not None:
                    return JobAdmission(added, is_new=True)
        known = await self.get(job.key)
        return None if known is None else JobAdmission(known, is_new=False)

    async def add_in(
        self, connection: AsyncConnection, job: QueuedJob, claim: WorkClaim | None = None
    ) -> QueuedJob | None:
        """Add a job with a claim. Returns None if its key is known."""
        row = self._row(job)
        if claim is not None and job.state is JobState.WAITING:
            row |= {"claimed_by": claim.holder, "claimed_until": values.to_utc(claim.until)}
            row["attempts"] = job.attempts + 1
        new = (
            self._backend.insert(JOBS)
            .values(row)
            .on_conflict_do_nothing(index_elements=_UNIQUE_COLUMNS)
        )
        found = (await connection.execute(new.returning(*_JOB_COLUMNS))).first()
        return None if found is None else _job(found)

    async def schedule_in(self, connection: AsyncConnection, key: str, due_at: datetime) -> None:
        """Schedule the job of this key again, at that time or sooner. An existing claim stays."""
        due_at = values.to_utc(due_at)
        new = self._backend.insert(JOBS).values(self._row(QueuedJob(key, due_at, due_at)))
        is_sooner = and_(JOBS.c.state == JobState.WAITING, JOBS.c.due_at < due_at)
        again: Row = {
            "state": JobState.WAITING,
            "due_at": case((is_sooner, JOBS.c.due_at), else_=new.excluded.due_at),
            "ended_at": None,
        }
        await connection.execute(
            new.on_conflict_do_update(index_elements=_UNIQUE_COLUMNS, set_=again)
        )

    async def remove_in(self, connection: AsyncConnection, keys: Sequence[str]) -> None:
        if keys:
            await connection.execute(delete(JOBS).where(self._of_kind, JOBS.c.key.in_(keys)))

    async def get(self, key: str) -> QueuedJob | None:
        named = select(*_JOB_COLUMNS).where(self._of_kind, JOBS.c.key == key)
        async with self._database.reading() as connection:
            found = (await connection.execute(named)).first()
        return None if found is None else _job(found)

    async def page(
        self, before: int = 0, limit: int = JOB_PAGE, group: str = ""
    ) -> Sequence[QueuedJob]:
        """Return jobs before that number, the newest first, of one group or of all."""
        where: list[ColumnElement[bool]] = [self._of_kind]
        where += [JOBS.c.number < before] if before else []
        where += [JOBS.c.group_key == group] if group else []
        wanted = select(*_JOB_COLUMNS).where(*where).order_by(JOBS.c.number.desc()).limit(limit)
        async with self._database.reading() as connection:
            return [_job(row) for row in await connection.execute(wanted)]

    async def count_by_state(self) -> Mapping[JobState, int]:
        counted = select(JOBS.c.state, func.count()).where(self._of_kind).group_by(JOBS.c.state)
        async with self._database.reading() as connection:
            found = {row[0]: row[1] for row in await connection.execute(counted)}
        return {state: found.get(state, 0) for state in JobState}

    # Claiming and finishing jobs.

    async def claim(self, claim: WorkClaim, now: datetime, limit: int) -> Sequence[QueuedJob]:
        """Claim due jobs that no node holds, the oldest first."""
        now, until = values.to_utc(now), values.to_utc(claim.until)
        self._database.watch_jobs(self._kind)
        # A runner claims all the time. While nothing is due, this sends no query.
        if not await self._next_due.is_reached(now):
            return []
        where: list[ColumnElement[bool]] = [self._of_kind, JOBS.c.due_at <= now, _is_free(now)]
        if self._is_serial:
            earlier = JOBS.alias("earlier")
            is_behind = exists().where(
                earlier.c.kind == JOBS.c.kind,
                earlier.c.group_key == JOBS.c.group_key,
                earlier.c.number < JOBS.c.number,
                text("earlier.state = 'waiting'"),
            )
            where.append(~is_behind)
        first = select(JOBS.c.number).where(text("comity_jobs.state = 'waiting'"), *where)
        first = first.order_by(JOBS.c.due_at, JOBS.c.number).limit(limit)
        async with self._database.reading() as connection:
            # Other nodes may hold all that is due. Then this takes no write lock.
            if (await connection.execute(first.limit(1))).first() is None:
                return []
        async with self._database.beside() as connection:
            found = await connection.execute(first.with_for_update(skip_locked=True))
            held: Row = {"claimed_by": claim.holder, "claimed_until": until}
            taken = (
                update(JOBS)
                .where(JOBS.c.number.in_(found.scalars().all()))
                .values({**held, "attempts": JOBS.c.attempts + 1})
                .returning(*_JOB_COLUMNS)
            )
            claimed = [_job(row) for row in await connection.execute(taken)]
        return sorted(claimed, key=lambda job: (job.due_at, job.number))

    async def renew(self, job: QueuedJob, until: datetime) -> bool:
        """Extend the claim on a job. Returns False if the holder has lost it."""
        longer = update(JOBS).where(_is_held(job)).values(claimed_until=values.to_utc(until))
        async with self._database.beside() as connection:
            return (await connection.execute(longer)).rowcount > 0

    async def settle(self, job: QueuedJob, outcome: JobOutcome) -> bool:
        """Write the outcome of a claim and end it. Returns False if the holder has lost it."""
        async with self._database.beside() as connection:
            return await self.settle_in(connection, job, outcome)

    async def settle_in(
        self, connection: AsyncConnection, job: QueuedJob, outcome: JobOutcome
    ) -> bool:
        at = values.to_utc(outcome.at)
        is_again = outcome.state is JobState.WAITING
        changed: Row = {
            "state": outcome.state,
            "last_error": values.clean_words(outcome.last_error),
            "result": values.clean_words(outcome.result),
            **({"due_at": at} if is_again else {"ended_at": at}),
            **({} if outcome.payload is None else {"payload": outcome.payload}),
            **_FREE,
        }
        settled = update(JOBS).where(_is_held(job)).values(changed)
        return (await connection.execute(settled)).rowcount > 0

    async def lock_in(self, connection: AsyncConnection, job: QueuedJob) -> bool:
        """Lock a job until the end of the transaction. Returns False if the holder has lost it."""
        held = select(JOBS.c.number).where(_is_held(job)).with_for_update()
        return (await connection.execute(held)).first() is not None

    async def abandon(self, holders: str) -> None:
        """Void the claims of all holders whose names begin with this text."""
        theirs = JOBS.c.claimed_by.startswith(holders, autoescape=True)
        void = update(JOBS).where(self._of_kind, IS_WAITING, theirs).values(_FREE)
        async with self._database.beside() as connection:
            await connection.execute(void)

    async def reopen(self, number: int, now: datetime) -> bool:
        """Queue a failed job again. Returns False if there is none."""
        failed = (self._of_kind, JOBS.c.number == number, JOBS.c.state == JobState.FAILED)
        fresh: Row = {"state": JobState.WAITING, "due_at": values.to_utc(now), "attempts": 0}
        again = update(JOBS).where(*failed).values({**fresh, "ended_at": None})
        async with self._database.beside() as connection:
            return (await connection.execute(again)).rowcount > 0

    async def prune(self, ended_before: datetime) -> int:
        """Delete jobs that ended before that time, and return their number."""
        return await self._forget(JOBS.c.ended_at < values.to_utc(ended_before))

    # Once-only keys: jobs that the node that adds them runs itself.

    async def take(
        self, keys: Sequence[str], holder: str, now: datetime, until: datetime | None
    ) -> Sequence[KeyClaim]:
        """Take each key that no node holds, in the order of the keys, which must differ.

        Without `until`, a claim never expires.
        """
        if not keys:
            return []
        at, end = values.to_utc(now), values.to_utc(until or NEVER_LAPSES)
        claimed: Row = {"claimed_by": holder, "claimed_until": end, "created_at": at}
        rows = [self._key_row(key, at) | claimed for key in sorted(keys)]
        new = (
            self._backend.insert(JOBS)
            .values(rows)
            .on_conflict_do_nothing(index_elements=_UNIQUE_COLUMNS)
        )
        wanted = and_(self._of_kind, JOBS.c.key.in_(keys))
        async with self._database.beside() as connection:
            ours = set((await connection.execute(new.returning(JOBS.c.key))).scalars())
            lapsed = (wanted, JOBS.c.key.not_in(ours), IS_WAITING, _is_free(at))
            again = update(JOBS).where(*lapsed).values(claimed).returning(JOBS.c.key)
            ours |= set((await connection.execute(again)).scalars())
            done = select(JOBS.c.key, JOBS.c.result).where(wanted, JOBS.c.state == JobState.DONE)
            results: dict[str, str] = {row[0]: row[1] for row in await connection.execute(done)}
        return [_key_claim(key, ours, results) for key in keys]

    async def finish(self, holder: str, results: Mapping[str, str], now: datetime) -> None:
        """Mark keys as done, each with its result. A key that no node took is done from now on."""
        if not results:
            return
        at = values.to_utc(now)
        rows = [
            self._key_row(key, at)
            | {"state": JobState.DONE, "ended_at": at, "claimed_by": holder}
            | {"result": values.clean_words(results[key])}
            for key in sorted(results)
        ]
        new = self._backend.insert(JOBS).values(rows)
        own = new.on_conflict_do_update(
            index_elements=_UNIQUE_COLUMNS,
            set_={name: new.excluded[name] for name in ("state", "result", "ended_at")},
            where=and_(JOBS.c.claimed_by == holder, JOBS.c.state == JobState.WAITING),
        )
        async with self._database.beside() as connection:
            await connection.execute(own)

    async def release(self, holder: str, keys: Sequence[str]) -> None:
        """Release keys whose work was not done, so that any node may take them again."""
        own = (self._of_kind, JOBS.c.key.in_(keys), JOBS.c.claimed_by == holder, IS_WAITING)
        if keys:
            async with self._database.beside() as connection:
                await connection.execute(delete(JOBS).where(*own))

    async def forget(self, taken_before: datetime) -> int:
        """Delete keys that were taken before that time, done or not, and return their number."""
        return await self._forget(JOBS.c.created_at < values.to_utc(taken_before))

    async def _forget(self, old: ColumnElement[bool]) -> int:
        old = and_(self._of_kind, old)
        async with self._database.reading() as connection:
            if not (await connection.execute(select(exists().where(old)))).scalar():
                return 0
        async with self._database.beside() as connection:
            return (await connection.execute(delete(JOBS).where(old))).rowcount

    async def _count_in(self, connection: AsyncConnection, group: str) -> int:
        of_group = and_(self._of_kind, JOBS.c.group_key == group, IS_WAITING)
        waiting = await connection.execute(select(func.count()).select_from(JOBS).where(of_group))
        return waiting.scalar_one()

    def _key_row(self, key: str, at: datetime) -> Row:
        return self._row(QueuedJob(values.check_name(key, "a key"), at, at))

    def _row(self, job: QueuedJob) -> Row:
        return {
            "kind": self._kind,
            "key": job.key,
            "group_key": job.group,
            "payload": job.payload,
            "state": job.state,
            "due_at": values.to_utc(job.due_at),
            "attempts": job.attempts,
            "last_error": values.clean_words(job.last_error),
            "result": values.clean_words(job.result),
            "created_at": values.to_utc(job.created_at),
            "ended_at": values.to_optional_utc(job.ended_at),
            **_FREE,
        }


def _is_free(now: datetime) -> ColumnElement[bool]:
    return or_(JOBS.c.claimed_until.is_(None), JOBS.c.claimed_until <= now)


def _is_held(job: QueuedJob) -> ColumnElement[bool]:
    is_claimed = and_(JOBS.c.claimed_by == job.holder, JOBS.c.claimed_until.is_not(None))
    return and_(JOBS.c.number == job.number, JOBS.c.state == JobState.WAITING, is_claimed)


def _job(row: Sequence[Any]) -> QueuedJob:
    key, due_at, created_at, group, payload, state, attempts, last_error, result, *rest = row
    ended_at, number, holder = rest
    return QueuedJob(
        key=key,
        due_at=due_at,
        created_at=created_at,
        group=group,
        payload=bytes(payload),
        state=JobState(state),
        attempts=attempts,
        last_error=last_error,
        result=result,
        ended_at=ended_at,
        number=number,
        holder=holder,
    )


def _key_claim(key: str, ours: set[str], results: Mapping[str, str]) -> KeyClaim:
    if key in ours:
        return KeyClaim(key, KeyState.OURS)
    if key in results:
        return KeyClaim(key, KeyState.DONE, results[key])
    return KeyClaim(key, KeyState.BUSY)
