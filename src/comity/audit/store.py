"""The tables of the audit log: it writes one chain and reads all of them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    Text,
    TextClause,
    delete,
    func,
    literal,
    select,
    tuple_,
    union,
    union_all,
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
from comity.audit.events import AuditResult, AuditType
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
_CALL_TYPES: Final = frozenset((AuditType.TOOL_EXECUTED, AuditType.CALL_INTENDED))
_FILTER_COLUMNS: Final = ("trace", "call", "actor", "server", "tool")


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
        return await self._lines(sought_for(criteria, limit))

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


def sought_for(criteria: AuditFilter, limit: int) -> Select[Any]:
    """The query for a page of a filter.

    Each of its conditions has an index, but for two: a tool, whose server has one, and the type of
    successful calls.
    """
    if len(criteria.results) < 2:
        return _in_order(_matching(criteria), JOURNAL, criteria).limit(limit)
    # The index holds the entries of each result in order. A condition on several results would sort
    # all of their entries, so each result gives one page, and the pages are merged.
    pages = (
        _in_order(_matching(replace(criteria, results=(each,))), JOURNAL, criteria).limit(limit)
        for each in criteria.results
    )
    merged = union_all(*(select(page.subquery()) for page in pages)).subquery()
    return _in_order(select(merged), merged, criteria).limit(limit)


def _in_order(query: Select[Any], source: FromClause, criteria: AuditFilter) -> Select[Any]:
    order = (source.c.at, source.c.node, source.c.seq)
    return query.order_by(*(each.desc() for each in order) if criteria.newest_first else order)


def _matching(criteria: AuditFilter) -> Select[Any]:
    place = tuple_(JOURNAL.c.at, JOURNAL.c.node, JOURNAL.c.seq)
    wanted = select(JOURNAL).where(*_bounds(criteria))
    if criteria.after is None:
        return wanted
    at, node, seq = criteria.after
    last = tuple_(
        literal(values.to_optional_utc(at), UtcDateTime),
        literal(node, Text),
        literal(_number(seq), BigInteger),
    )
    return wanted.where(place < last if criteria.newest_first else place > last)


def _bounds(criteria: AuditFilter) -> list[ColumnElement[bool] | TextClause]:
    words = ((JOURNAL.c[name], getattr(criteria, name)) for name in _FILTER_COLUMNS)
    bounds: list[ColumnElement[bool] | TextClause] = [
        column == index_value(word) for column, word in words if word
    ]
    if criteria.call:
        # The partial index holds only entries that have a call.
        bounds.append(JOURNAL.c.call != "")
    if criteria.server:
        bounds.append(AUDIT_CONDITIONS["server"])
    for result in criteria.results:
        bounds.append(JOURNAL.c.result == index_value(result))
        if result != AuditResult.SUCCESS:
            bounds.append(AUDIT_CONDITIONS["result"])
    if criteria.types:
        # Calls are in no index by type. A walk along the time meets some of them soon.
        if _CALL_TYPES.isdisjoint(criteria.types):
            bounds.append(AUDIT_CONDITIONS["type"])
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
