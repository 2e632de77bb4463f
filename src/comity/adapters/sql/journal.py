"""The journal in tables: a chain that is written, and what is read of all of them."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Text,
    delete,
    func,
    literal,
    select,
    tuple_,
    union,
)

from comity.adapters.sql.chain import Chain
from comity.adapters.sql.database import Database, Writing
from comity.adapters.sql.tables import CHECKPOINTS, JOURNAL, SEGMENTS, Moment
from comity.ports.journaling import PAGE, Head, Sought
from comity.rules import keeping
from comity.rules.chain import found_by
from comity.wire.errors import Misconfigured
from comity.wire.journal import Checkpoint, Line, Segment

AT_ONCE: Final = 2_000
"""How many entries are removed in one transaction, for which whoever adds some may have to wait."""

_MOST: Final = 2**63 - 1
_FOUND_BY: Final = ("trace", "call", "actor", "server", "tool", "result")


class SqlJournal:
    def __init__(self, database: Database, chain: Chain) -> None:
        self._database = database
        self._chain = chain

    async def open(self, node: str) -> Head:
        return await self._chain.open(node)

    async def append(self, lines: Sequence[Line]) -> None:
        await self._chain.append(lines)

    async def close(self) -> None:
        await self._chain.close()

    async def keep(self, checkpoint: Checkpoint) -> None:
        async with self._database.writing() as writing:
            row = checkpoint._asdict() | {"at": keeping.moment(checkpoint.at)}
            await writing.put(CHECKPOINTS, [row])

    async def page(self, node: str, after: int = 0, limit: int = PAGE) -> Sequence[Line]:
        if not keeping.is_name(node):
            return []
        own = (JOURNAL.c.node == node, JOURNAL.c.seq > _number(after))
        return await self._lines(select(JOURNAL).where(*own).order_by(JOURNAL.c.seq).limit(limit))

    async def find(self, sought: Sought, limit: int = PAGE) -> Sequence[Line]:
        if sought.after is not None and not keeping.is_name(sought.after[1]):
            return []
        return await self._lines(sought_for(sought).limit(limit))

    async def nodes(self) -> Sequence[str]:
        async with self._database.reading() as connection:
            return sorted((await connection.execute(nodes_known())).scalars())

    async def checkpoints(self, node: str, after: int = 0) -> Sequence[Checkpoint]:
        if not keeping.is_name(node):
            return []
        own = (CHECKPOINTS.c.node == node, CHECKPOINTS.c.seq > _number(after))
        wanted = select(CHECKPOINTS).where(*own).order_by(CHECKPOINTS.c.seq)
        async with self._database.reading() as connection:
            return [Checkpoint(*row) for row in await connection.execute(wanted)]

    async def segments(self, node: str) -> Sequence[Segment]:
        if not keeping.is_name(node):
            return []
        wanted = select(SEGMENTS).where(SEGMENTS.c.node == node).order_by(SEGMENTS.c.first)
        async with self._database.reading() as connection:
            return [Segment(*row) for row in await connection.execute(wanted)]

    async def drop(self, segment: Segment) -> None:
        """Piece by piece; what is on record grows with what is gone, whenever this is ended."""
        gone = segment.first - 1
        for known in await self.segments(segment.node):
            if known.first <= segment.first and segment.last <= known.last:
                return
            if known.first == segment.first:
                gone = known.last
        async with self._database.writing() as writing:
            if await _hash_of(writing, segment.node, segment.last) != segment.hash:
                raise Misconfigured("no entry is where this segment of the journal ends")
        while gone < segment.last:
            until = min(gone + AT_ONCE, segment.last)
            async with self._database.writing() as writing:
                await _drop(writing, segment, gone + 1, until)
            gone = until

    async def _lines(self, wanted: Select[Any]) -> list[Line]:
        async with self._database.reading() as connection:
            return [Line(*row) for row in await connection.execute(wanted)]


def sought_for(sought: Sought) -> Select[Any]:
    """The question by which entries are found; an index goes before each of its parts or all."""
    place = tuple_(JOURNAL.c.at, JOURNAL.c.node, JOURNAL.c.seq)
    wanted = select(JOURNAL).where(*_bounds(sought))
    if sought.after is not None:
        at, node, seq = sought.after
        last = tuple_(
            literal(keeping.moment(at), Moment),
            literal(node, Text),
            literal(_number(seq), BigInteger),
        )
        wanted = wanted.where(place < last if sought.newest_first else place > last)
    order = (JOURNAL.c.at, JOURNAL.c.node, JOURNAL.c.seq)
    return wanted.order_by(*(each.desc() for each in order) if sought.newest_first else order)


def _bounds(sought: Sought) -> list[ColumnElement[bool]]:
    words = ((JOURNAL.c[name], getattr(sought, name)) for name in _FOUND_BY)
    bounds = [column == found_by(word) for column, word in words if word]
    if sought.call:
        # Said for the index, which has only those of calls.
        bounds.append(JOURNAL.c.call != "")
    if sought.types:
        bounds.append(JOURNAL.c.type.in_([found_by(each) for each in sought.types]))
    if sought.since is not None:
        bounds.append(JOURNAL.c.at >= keeping.moment(sought.since))
    if sought.until is not None:
        bounds.append(JOURNAL.c.at < keeping.moment(sought.until))
    return bounds


def nodes_known() -> Select[Any]:
    """From one node to the next greater one, instead of through all entries of each."""
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


async def _drop(writing: Writing, segment: Segment, first: int, last: int) -> None:
    linked = await _hash_of(writing, segment.node, last)
    if linked is None:
        raise Misconfigured("this segment of the journal has a gap; `comity journal verify` tells")
    on_record = segment._replace(last=last, hash=linked)._asdict()
    await writing.put(SEGMENTS, [on_record | {"sealed_at": keeping.moment(segment.sealed_at)}])
    between = JOURNAL.c.seq.between(first, last)
    await writing.connection.execute(delete(JOURNAL).where(JOURNAL.c.node == segment.node, between))


async def _hash_of(writing: Writing, node: str, seq: int) -> bytes | None:
    if not keeping.is_name(node):
        return None
    wanted = select(JOURNAL.c.hash).where(JOURNAL.c.node == node, JOURNAL.c.seq == _number(seq))
    return (await writing.connection.execute(wanted)).scalar_one_or_none()


def _number(seq: int) -> int:
    """One that a database has room for."""
    return min(max(seq, 0), _MOST)
