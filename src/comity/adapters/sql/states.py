"""State in tables: each step is one short transaction that holds the row of its feature set.

So steps of one set come one after the other, on however many nodes, and those of others wait for
none of them.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from comity.adapters.sql.database import Database, Product
from comity.adapters.sql.tables_states import STATE_CHECKPOINTS, STATES
from comity.ports.states import Current, Dropped, New, Place, Summary
from comity.rules import keeping
from comity.wire.state_trees import Form, Node, Tree

_KEPT: Final = [STATE_CHECKPOINTS.c[name] for name in Node.__dataclass_fields__]
_NOBODY: Final = Place("", "")


class SqlStates:
    def __init__(self, database: Database, product: Product) -> None:
        self._database = database
        self._product = product

    async def current(self, place: Place) -> Current | None:
        joined = STATES.join(
            STATE_CHECKPOINTS,
            _is_of(STATE_CHECKPOINTS, STATES.c) & (STATE_CHECKPOINTS.c.number == STATES.c.head),
        )
        columns = (STATES.c.head, STATE_CHECKPOINTS.c.name, STATES.c.data)
        wanted = select(*columns).select_from(joined).where(_at(STATES, place))
        async with self._database.reading() as connection:
            row = (await connection.execute(wanted)).first()
        return None if row is None else Current(row[0], row[1], _bytes(row[2]))

    async def find(self, place: Place, name: str) -> Node | None:
        if not keeping.is_name(name):
            return None
        at_it = (_at(STATE_CHECKPOINTS, place), STATE_CHECKPOINTS.c.name == name)
        async with self._database.reading() as connection:
            row = (await connection.execute(select(*_KEPT).where(*at_it))).first()
        return None if row is None else _node(row)

    async def tree(self, place: Place) -> Tree:
        # One statement sees one moment, so the revision is that of these checkpoints.
        joined = STATES.outerjoin(STATE_CHECKPOINTS, _is_of(STATE_CHECKPOINTS, STATES.c))
        columns = (STATES.c.revision, STATES.c.head, *_KEPT)
        wanted = select(*columns).select_from(joined).where(_at(STATES, place))
        async with self._database.reading() as connection:
            rows: list[Any] = list((await connection.execute(wanted)).all())
        if not rows:
            return Tree()
        nodes = [_node(row[2:]) for row in rows if row[2] is not None]
        return Tree(rows[0][0], rows[0][1], {each.number: each for each in nodes})

    async def line(self, place: Place, number: int) -> Sequence[bytes]:
        here = STATE_CHECKPOINTS
        columns = (here.c.number, here.c.base, here.c.form, here.c.content)
        start = select(*columns).where(_at(here, place), here.c.number == number)
        back = start.cte("back", recursive=True)
        further = (
            select(*columns)
            .join(back, here.c.number == back.c.base)
            .where(_at(here, place), back.c.form == Form.PATCH)
        )
        back = back.union_all(further)
        wanted = select(back.c.content).where(back.c.content.is_not(None)).order_by(back.c.number)
        async with self._database.reading() as connection:
            return [bytes(content) for content in (await connection.execute(wanted)).scalars()]

    async def add(self, place: Place, new: New, instead: Dropped | None = None) -> Node | None:
        gone = () if instead is None else instead.numbers
        node = _node_of(new)
        async with self._database.beside() as connection:
            revision = await self._locked(connection, place, node.at)
            if instead is not None and instead.revision != revision:
                return None
            if not await self._has_room(connection, place, new, gone):
                return None
            if instead is not None:
                await self._drop(connection, place, instead)
            node = replace(node, number=revision + 1)
            row = {name: getattr(node, name) for name in Node.__dataclass_fields__}
            values = {**place._asdict(), **row, "content": new.content}
            await connection.execute(insert(STATE_CHECKPOINTS).values(values))
            await self._at_head(connection, place, node.number, new.state, new.at)
        return node

    async def move(self, place: Place, number: int, state: bytes | None, at: datetime) -> bool:
        at_it = (_at(STATE_CHECKPOINTS, place), STATE_CHECKPOINTS.c.number == number)
        found_again = update(STATE_CHECKPOINTS).where(*at_it).values(is_lost=False)
        async with self._database.beside() as connection:
            if await self._revision(connection, place) is None:
                return False
            if not (await connection.execute(found_again)).rowcount:
                return False
            await self._at_head(connection, place, number, state, at)
        return True

    async def drop(self, place: Place, dropped: Dropped) -> bool:
        async with self._database.beside() as connection:
            if await self._revision(connection, place) != dropped.revision:
                return False
            await self._drop(connection, place, dropped)
            await connection.execute(_revised(place))
        return True

    async def lose(self, place: Place, number: int) -> None:
        at_it = (_at(STATE_CHECKPOINTS, place), STATE_CHECKPOINTS.c.number == number)
        async with self._database.beside() as connection:
            await connection.execute(update(STATE_CHECKPOINTS).where(*at_it).values(is_lost=True))

    async def forget(self, place: Place) -> int:
        async with self._database.beside() as connection:
            await self._revision(connection, place)
            gone = await connection.execute(
                delete(STATE_CHECKPOINTS).where(_at(STATE_CHECKPOINTS, place))
            )
            await connection.execute(_revised(place).values(head=None, data=None))
        return gone.rowcount

    async def summaries(self) -> Sequence[Summary]:
        here = STATE_CHECKPOINTS
        at_head = func.max(here.c.name).filter(here.c.number == STATES.c.head)
        columns = (STATES.c.server, STATES.c.feature, at_head, STATES.c.moved_at)
        counted = (func.count(), func.sum(here.c.size), func.max(func.length(STATES.c.data)))
        wanted = (
            select(*columns, *counted)
            .select_from(STATES.join(here, _is_of(here, STATES.c)))
            .group_by(STATES.c.server, STATES.c.feature, STATES.c.moved_at)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(wanted)).all()
        # Databases have an order of their own for names; here it is one everywhere.
        return sorted(map(_summary, rows), key=lambda each: each.place)

    async def _locked(self, connection: AsyncConnection, place: Place, at: datetime) -> int:
        """The revision of a feature set, which nobody else changes until this step is done."""
        first = {**place._asdict(), "revision": 0, "moved_at": keeping.certain(at)}
        made = self._product.insert(STATES).values(first).on_conflict_do_nothing()
        await connection.execute(made)
        return await self._revision(connection, place) or 0

    async def _revision(self, connection: AsyncConnection, place: Place) -> int | None:
        """The same; None where nothing was ever kept of it."""
        wanted = select(STATES.c.revision).where(_at(STATES, place)).with_for_update()
        return (await connection.execute(wanted)).scalar()

    async def _has_room(
        self, connection: AsyncConnection, place: Place, new: New, gone: Collection[int]
    ) -> bool:
        """Whether what it rests on is still there, and nothing else has its name."""
        here = STATE_CHECKPOINTS
        near = (here.c.number == new.base) | (here.c.name == new.name)
        rows = await connection.execute(
            select(here.c.number, here.c.name).where(_at(here, place), near)
        )
        found = {row.number: row.name for row in rows if row.number not in gone}
        return (new.base is None or new.base in found) and new.name not in found.values()

    async def _drop(self, connection: AsyncConnection, place: Place, dropped: Dropped) -> None:
        here = STATE_CHECKPOINTS
        for number, state in dropped.whole.items():
            whole = {"form": Form.DATA, "line": 0, "content": state, "size": len(state)}
            at_it = (_at(here, place), here.c.number == number)
            await connection.execute(update(here).where(*at_it).values({**whole, "base": None}))
        rest = (here.c.base.in_(dropped.numbers), here.c.number.not_in(dropped.numbers))
        await connection.execute(update(here).where(_at(here, place), *rest).values(base=None))
        gone = (_at(here, place), here.c.number.in_(dropped.numbers))
        await connection.execute(delete(here).where(*gone))

    async def _at_head(
        self,
        connection: AsyncConnection,
        place: Place,
        number: int,
        state: bytes | None,
        at: datetime,
    ) -> None:
        moved = {"head": number, "data": state, "moved_at": keeping.certain(at)}
        await connection.execute(_revised(place).values(moved))


def _at(table: Any, place: Place) -> ColumnElement[bool]:
    if not (keeping.is_name(place.server) and keeping.is_name(place.feature or "-")):
        # Nothing has such a name, and a database would refuse to look for it.
        place = _NOBODY
    return (table.c.server == place.server) & (table.c.feature == place.feature)


def _is_of(table: Any, of: Any) -> ColumnElement[bool]:
    return (table.c.server == of.server) & (table.c.feature == of.feature)


def _revised(place: Place) -> Any:
    return update(STATES).where(_at(STATES, place)).values(revision=STATES.c.revision + 1)


def _node_of(new: New) -> Node:
    """As it will stand there, but for its number. Raises MalformedMessage."""
    size = len(new.content or b"")
    rest = (new.parent, new.base, new.form, new.line, size, keeping.words(new.why))
    return Node(0, keeping.name(new.name, "a checkpoint"), keeping.certain(new.at), *rest)


def _node(row: Sequence[Any]) -> Node:
    number, name, at, parent, base, form, *rest = row
    return Node(number, name, at, parent, base, Form(form), *rest)


def _summary(row: Sequence[Any]) -> Summary:
    server, feature, head, moved_at, count, size, held = row
    return Summary(Place(server, feature), head, held is None, count, int(size or 0), moved_at)


def _bytes(found: Any) -> bytes | None:
    return None if found is None else bytes(found)
