"""Database stores of grants, and of the counts of limits."""

from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Text,
    bindparam,
    case,
    delete,
    select,
    update,
)
from sqlalchemy.types import TypeEngine

from comity.policy import grants as keeping__grant
from comity.policy.grants import Effect, Grant, Where
from comity.policy.limits import LimitShare
from comity.storage import values
from comity.storage.changes import PAGE, RecordKind
from comity.storage.database import (
    GRANTS,
    LIMIT_COUNTS,
    DatabaseBackend,
    Row,
    SqlDatabase,
    WriteTransaction,
    record_row,
    select_page,
    select_row,
)
from comity.toolkit.resilience import RateLimit


class SqlGrantStore:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def put(self, *grants: Grant) -> tuple[Grant, ...]:
        kept = [keeping__grant.checked_grant(grant) for grant in grants]
        checked = {grant.id: grant for grant in kept}
        async with self._database.writing() as writing:
            await _put(writing, checked.values())
        return tuple(checked[grant.id] for grant in kept)

    async def extend(self, grant: Grant) -> Grant:
        checked = keeping__grant.checked_grant(grant)
        wanted = select(GRANTS).where(GRANTS.c.id == checked.id)
        async with self._database.writing() as writing:
            row = (await writing.connection.execute(wanted)).first()
            current = None if row is None else _grant(row)
            extended = keeping__grant.extended_grant(checked, current)
            keeping__grant.check_reach(extended)
            await _put(writing, [extended])
        return extended

    async def revoke(self, subject: str, verb: str, target: str, where: Where = None) -> bool:
        id = keeping__grant.grant_id(subject, verb, target, where)
        async with self._database.writing() as writing:
            gone = await writing.connection.execute(delete(GRANTS).where(GRANTS.c.id == id))
            await writing.record_change(RecordKind.GRANTS, [subject] * gone.rowcount)
        return gone.rowcount > 0

    async def get(self, subject: str, verb: str, target: str, where: Where = None) -> Grant | None:
        id = keeping__grant.grant_id(subject, verb, target, where)
        row = await select_row(self._database, GRANTS, id=id)
        return None if row is None else _grant(row)

    async def page(
        self, after: str = "", limit: int = PAGE, subjects: Collection[str] | None = None
    ) -> Sequence[Grant]:
        narrowed: list[ColumnElement[bool]] = []
        if subjects is not None:
            narrowed = [GRANTS.c.subject.in_([each for each in subjects if values.is_name(each)])]
        rows = await select_page(self._database, GRANTS, after, limit, *narrowed)
        return [_grant(row) for row in rows]


async def _put(writing: WriteTransaction, grants: Collection[Grant]) -> None:
    rows = [
        {
            **record_row(GRANTS, grant),
            "where": keeping__grant.condition_text(grant.where),
            "reach": values.encode_names(grant.reach),
        }
        for grant in grants
    ]
    await writing.put(GRANTS, rows)
    await writing.record_change(RecordKind.GRANTS, (grant.subject for grant in grants))


def _grant(row: Sequence[Any]) -> Grant:
    id, subject, verb, target, effect, by, justification, at, until, where, reach = row
    return Grant(
        subject,
        verb,
        target,
        Effect(effect),
        id=id,
        granted_by=by,
        justification=justification,
        granted_at=at,
        expires_at=until,
        where=keeping__grant.read_condition(where),
        reach=values.read_list(reach),
    )


_CLOCK_ERROR_SECONDS: Final = 1e-6
"""A shorter time is a rounding error: seconds since 1970 have no more digits."""


class SqlLimitCounts:
    """Counts the units of limits that the nodes have taken, by the clock of the store.

    One statement takes as many units as were asked for, else the least number, else none. A row
    whose time has ended equals a missing one.
    """

    def __init__(self, database: SqlDatabase, backend: DatabaseBackend) -> None:
        self._database = database
        self._backend = backend
        # Calls wait for these statements, and it takes a millisecond to build one.
        self._take_rate = self._rate_statement()
        self._take_quota = self._quota_statement()

    async def read_clock(self) -> float:
        async with self._database.reading() as connection:
            return (await connection.execute(select(self._backend.clock()))).scalar_one()

    async def take_rate(self, key: str, rate: RateLimit, least: int, most: int) -> LimitShare:
        """Take units of a rate. The row ends when all of its units are earned again (GCRA)."""
        late_for_least, late_for_most = (
            (rate.burst - units) * rate.each + _CLOCK_ERROR_SECONDS for units in (least, most)
        )
        amounts = {"take_each": rate.each, "take_least": least, "take_most": most}
        bounds = {"late_for_least": late_for_least, "late_for_most": late_for_most}
        return await self._take(self._take_rate, {"take_key": key, **amounts, **bounds})

    async def take_quota(
        self, key: str, count: int, end: float, least: int, most: int
    ) -> LimitShare:
        """Take units of a quota in the window that ends at that time.

        A later window is never replaced, so a node that is late gets nothing.
        """
        amounts = {"take_least": least, "take_most": most, "take_count": count}
        return await self._take(self._take_quota, {"take_key": key, "take_end": end, **amounts})

    async def _take(self, statement: Any, values: Row) -> LimitShare:
        async with self._database.single() as connection:
            return LimitShare(*(await connection.execute(statement, values)).one())

    def _rate_statement(self) -> Any:
        now, ends_at = self._backend.clock(), LIMIT_COUNTS.c.ends_at
        each, most, least = _given("take_each", Double), _given("take_most"), _given("take_least")
        late = case((ends_at > now, ends_at - now), else_=0.0)
        granted = case(
            (late <= _given("late_for_most", Double), most),
            (late <= _given("late_for_least", Double), least),
            else_=0,
        )
        return self._upsert(
            {"used": 0, "ends_at": now + most * each, "granted": most},
            {
                "ends_at": case((ends_at > now, ends_at), else_=now) + granted * each,
                "granted": granted,
            },
        )

    def _quota_statement(self) -> Any:
        used, ends_at, end = LIMIT_COUNTS.c.used, LIMIT_COUNTS.c.ends_at, _given("take_end", Double)
        count, most, least = _given("take_count"), _given("take_most"), _given("take_least")
        before = case((ends_at == end, used), (ends_at > end, count), else_=0)
        granted = case((before + most <= count, most), (before + least <= count, least), else_=0)
        return self._upsert(
            {"used": most, "ends_at": end, "granted": most},
            {
                "used": case((ends_at > end, used), else_=before + granted),
                "ends_at": case((ends_at > end, ends_at), else_=end),
                "granted": granted,
            },
        )

    def _upsert(self, new: Row, changed: Row) -> Any:
        row = self._backend.insert(LIMIT_COUNTS).values(key=_given("take_key", Text), **new)
        return row.on_conflict_do_update(index_elements=["key"], set_=changed).returning(
            LIMIT_COUNTS.c.granted,
            LIMIT_COUNTS.c.used,
            LIMIT_COUNTS.c.ends_at,
            self._backend.clock(),
        )

    async def give_back_rate(self, key: str, rate: RateLimit, units: int) -> None:
        ends_at = LIMIT_COUNTS.c.ends_at - units * rate.each
        await self._change(LIMIT_COUNTS.c.key == key, ends_at=ends_at)

    async def give_back_quota(self, key: str, end: float, units: int) -> None:
        used = LIMIT_COUNTS.c.used
        is_same = (LIMIT_COUNTS.c.key == key) & (LIMIT_COUNTS.c.ends_at == end) & (used >= units)
        await self._change(is_same, used=used - units)

    async def _change(self, where: ColumnElement[bool], **changed: ColumnElement[Any]) -> None:
        async with self._database.single() as connection:
            await connection.execute(update(LIMIT_COUNTS).where(where).values(changed))

    async def remove_ended(self) -> int:
        """Remove the rows that equal missing ones, and return how many they were."""
        ended = delete(LIMIT_COUNTS).where(LIMIT_COUNTS.c.ends_at < self._backend.clock())
        async with self._database.single() as connection:
            return (await connection.execute(ended)).rowcount


def _given(name: str, kind: type[TypeEngine[Any]] = BigInteger) -> Any:
    """Return a value that each execution of a statement gives."""
    return bindparam(name, type_=kind())
