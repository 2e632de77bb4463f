"""The tables of the audit log: it writes one chain and reads all of them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Text,
    TextClause,
    delete,
    func,
    literal,
    select,
    tuple_,
    union,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from comity.audit.chain import (
    PAGE,
    AuditFilter,
    AuditRecord,
    ChainCheckpoint,
    ChainHead,
    ChainSegment,
    ChainWriter,
    index_value,
)
from comity.audit.events import AuditResult
from comity.errors import Misconfigured
from comity.storage import values
from comity.storage.database import (
    AUDIT_CONDITIONS,
    CHECKPOINTS,
    JOURNAL,
    SEGMENTS,
    SqlDatabase,
    UtcDateTime,
    WriteTransaction,
)

AT_ONCE: Final = 2_000
"""How many entries are removed in one transaction. A writer may have to wait for it."""

_MAX_ENTRIES: Final = 2**63 - 1
_FILTER_COLUMNS: Final = ("trace", "call", "actor", "server", "tool", "result")


class SqlAuditLog:
    def __init__(self, database: SqlDatabase, chain: ChainWriter) -> None:
        self._database = database
        self._chain = chain

    async def open(self, node: str) -> ChainHead:
        return await self._chain.open(node)

    async def append(self, records: Sequence[AuditRecord]) -> None:
        await self._chain.append(records)

    async def flush(self) -> None:
        await self._chain.flush()

    async def close(self) -> None:
        await self._chain.close()

    async def add_checkpoint(self, checkpoint: ChainCheckpoint) -> None:
        async with self._database.writing() as writing:
            row = checkpoint._asdict() | {"at": values.to_optional_utc(checkpoint.at)}
            await writing.put(CHECKPOINTS, [row])

    async def page(self, node: str, after: int = 0, limit: int = PAGE) -> Sequence[AuditRecord]:
        if not values.is_name(node):
            return []
        own = (JOURNAL.c.node == node, JOURNAL.c.seq > _number(after))
        return await self._lines(select(JOURNAL).where(*own).order_by(JOURNAL.c.seq).limit(limit))

    async def find(self, criteria: AuditFilter, limit: int = PAGE) -> Sequence[AuditRecord]:
        if criteria.after is not None and not values.is_name(criteria.after[1]):
            return []
        return await self._lines(sought_for(criteria).limit(limit))

    async def nodes(self) -> Sequence[str]:
        async with self._reading() as connection:
            return sorted((await connection.execute(nodes_known())).scalars())

    async def checkpoints(self, node: str, after: int = 0) -> Sequence[ChainCheckpoint]:
        if not values.is_name(node):
            return []
        own = (CHECKPOINTS.c.node == node, CHECKPOINTS.c.seq > _number(after))
        wanted = select(CHECKPOINTS).where(*own).order_by(CHECKPOINTS.c.seq)
        async with self._database.reading() as connection:
            return [ChainCheckpoint(*row) for row in await connection.execute(wanted)]

    async def segments(self, node: str) -> Sequence[ChainSegment]:
        if not values.is_name(node):
            return []
        wanted = select(SEGMENTS).where(SEGMENTS.c.node == node).order_by(SEGMENTS.c.first)
        async with self._reading() as connection:
            return [ChainSegment(*row) for row in await connection.execute(wanted)]

    async def drop(self, segment: ChainSegment) -> None:
        """Remove a segment in pieces. If this stops halfway, the record says what is removed."""
        gone = segment.first - 1
        for known in await self.segments(segment.node):
            if known.first <= segment.first and segment.last <= known.last:
                return
            if known.first == segment.first:
                gone = known.last
        async with self._database.writing() as writing:
            if await _hash_of(writing, segment.node, segment.last) != segment.hash:
                raise Misconfigured("the last entry of this audit log segment is missing")
        while gone < segment.last:
            until = min(gone + AT_ONCE, segment.last)
            async with self._database.writing() as writing:
                await _drop(writing, segment, gone + 1, until)
            gone = until

    @asynccontextmanager
    async def _reading(self) -> AsyncGenerator[AsyncConnection]:
        await self._chain.flush()
        async with self._database.reading() as connection:
            yield connection

    async def _lines(self, statement: Select[Any]) -> list[AuditRecord]:
        async with self._reading() as connection:
            return [AuditRecord(*row) for row in await connection.execute(statement)]


def sought_for(criteria: AuditFilter) -> Select[Any]:
    """The query for a filter. Each of its conditions, or all together, has an index."""
    place = tuple_(JOURNAL.c.at, JOURNAL.c.node, JOURNAL.c.seq)
    wanted = select(JOURNAL).where(*_bounds(criteria))
    if criteria.after is not None:
        at, node, seq = criteria.after
        last = tuple_(
            literal(values.to_optional_utc(at), UtcDateTime),
            literal(node, Text),
            literal(_number(seq), BigInteger),
        )
        wanted = wanted.where(place < last if criteria.newest_first else place > last)
    order = (JOURNAL.c.at, JOURNAL.c.node, JOURNAL.c.seq)
    return wanted.order_by(*(each.desc() for each in order) if criteria.newest_first else order)


def _bounds(criteria: AuditFilter) -> list[ColumnElement[bool] | TextClause]:
    words = ((JOURNAL.c[name], getattr(criteria, name)) for name in _FILTER_COLUMNS)
    bounds: list[ColumnElement[bool] | TextClause] = [
        column == index_value(word) for column, word in words if word
    ]
    if criteria.call:
        # The partial index holds only entries that have a call.
        bounds.append(JOURNAL.c.call != "")
    for name, where in AUDIT_CONDITIONS.items():
        if getattr(criteria, name) not in ("", AuditResult.SUCCESS):
            bounds.append(where)
    if criteria.types:
        bounds.append(JOURNAL.c.type.in_([index_value(each) for each in criteria.types]))
    if criteria.since is not None:
        bounds.append(JOURNAL.c.at >= values.to_optional_utc(criteria.since))
    if criteria.until is not None:
        bounds.append(JOURNAL.c.at < values.to_optional_utc(criteria.until))
    return bounds


def nodes_known() -> Select[Any]:
    """The names of all nodes: it jumps from one to the next instead of reading all entries."""
    names: list[Select[Any]] = []
    for table in (JOURNAL, CHECKPOINTS, SEGMENTS):
        found = select(func.min(table.c.node).label("node")).cte(
            f"{table.name}_nodes", recursive=True
        )
        following = select(func.min(table.c.node)).where(table.c.node > found.c.node)
        found = found.union_all(
            select(following.scalar_subquery()).where(found.c.node.is_not(None))
        )
        names.append(select(found.c.node).where(found.c.node.is_not(None)))
    return select(union(*names).subquery().c.node)


async def _drop(
    transaction: WriteTransaction, segment: ChainSegment, first: int, last: int
) -> None:
    linked = await _hash_of(transaction, segment.node, last)
    if linked is None:
        raise Misconfigured("this audit log segment has a gap; run `comity audit verify`")
    on_record = segment._replace(last=last, hash=linked)._asdict()
    await transaction.put(
        SEGMENTS, [on_record | {"sealed_at": values.to_optional_utc(segment.sealed_at)}]
    )
    between = JOURNAL.c.seq.between(first, last)
    await transaction.connection.execute(
        delete(JOURNAL).where(JOURNAL.c.node == segment.node, between)
    )


async def _hash_of(transaction: WriteTransaction, node: str, seq: int) -> bytes | None:
    if not values.is_name(node):
        return None
    wanted = select(JOURNAL.c.hash).where(JOURNAL.c.node == node, JOURNAL.c.seq == _number(seq))
    return (await transaction.connection.execute(wanted)).scalar_one_or_none()


def _number(seq: int) -> int:
    """A number that fits into a column."""
    return min(max(seq, 0), _MAX_ENTRIES)
