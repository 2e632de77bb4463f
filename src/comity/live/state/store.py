"""The SQL store of server state and its tables."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from comity.live.state.model import (
    CheckpointNode,
    CheckpointRemoval,
    CheckpointTree,
    CurrentState,
    NewCheckpoint,
    StateForm,
    StateKey,
    StateSummary,
)
from comity.storage import values as keeping
from comity.storage.database import METADATA, DatabaseBackend, SqlDatabase, UtcDateTime

STATES = Table(
    "comity_states",
    METADATA,
    Column("server", Text, primary_key=True),
    Column("feature", Text, primary_key=True),
    # It grows with each change and never repeats, so it also numbers the checkpoints.
    Column("revision", BigInteger, nullable=False),
    Column("head", BigInteger),
    # The full state at the head, because every call needs it.
    Column("data", LargeBinary),
    Column("moved_at", UtcDateTime, nullable=False),
)

STATE_CHECKPOINTS = Table(
    "comity_state_checkpoints",
    METADATA,
    Column("server", Text, primary_key=True),
    Column("feature", Text, primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("parent", Text),
    Column("base", BigInteger),
    Column("form", Text, nullable=False),
    Column("line", Integer, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("why", Text, nullable=False),
    Column("is_lost", Boolean, nullable=False),
    Column("content", LargeBinary),
    UniqueConstraint("server", "feature", "name", name="comity_state_checkpoints_names"),
    # The database keeps the base of a patch for as long as the patch exists.
    ForeignKeyConstraint(
        ["server", "feature", "base"],
        [f"comity_state_checkpoints.{name}" for name in ("server", "feature", "number")],
        name="comity_state_checkpoints_base",
    ),
    CheckConstraint("base < number", name="comity_state_checkpoints_no_circle"),
    CheckConstraint(
        "(form = 'opaque') = (content IS NULL)", name="comity_state_checkpoints_content"
    ),
    CheckConstraint("form <> 'patch' OR base IS NOT NULL", name="comity_state_checkpoints_patch"),
)


_NODE_COLUMNS: Final = [STATE_CHECKPOINTS.c[name] for name in CheckpointNode.__dataclass_fields__]
_NO_KEY: Final = StateKey("", "")


class SqlStates:
    """Stores server state in SQL (`comity.live.state.model.StateStore`)."""

    def __init__(self, database: SqlDatabase, backend: DatabaseBackend) -> None:
        self._database = database
        self._backend = backend

    async def current(self, state_key: StateKey) -> CurrentState | None:
        joined = STATES.join(
            STATE_CHECKPOINTS,
            _is_of(STATE_CHECKPOINTS, STATES.c) & (STATE_CHECKPOINTS.c.number == STATES.c.head),
        )
        columns = (STATES.c.head, STATE_CHECKPOINTS.c.name, STATES.c.data)
        wanted = select(*columns).select_from(joined).where(_key_clause(STATES, state_key))
        async with self._database.reading() as connection:
            row = (await connection.execute(wanted)).first()
        return None if row is None else CurrentState(row[0], row[1], _bytes(row[2]))

    async def find(self, state_key: StateKey, name: str) -> CheckpointNode | None:
        if not keeping.is_name(name):
            return None
        at_it = (_key_clause(STATE_CHECKPOINTS, state_key), STATE_CHECKPOINTS.c.name == name)
        async with self._database.reading() as connection:
            row = (await connection.execute(select(*_NODE_COLUMNS).where(*at_it))).first()
        return None if row is None else _node(row)

    async def tree(self, state_key: StateKey) -> CheckpointTree:
        # One statement reads one snapshot, so the revision belongs to these checkpoints.
        joined = STATES.outerjoin(STATE_CHECKPOINTS, _is_of(STATE_CHECKPOINTS, STATES.c))
        columns = (STATES.c.revision, STATES.c.head, *_NODE_COLUMNS)
        wanted = select(*columns).select_from(joined).where(_key_clause(STATES, state_key))
        async with self._database.reading() as connection:
            rows: list[Any] = list((await connection.execute(wanted)).all())
        if not rows:
            return CheckpointTree()
        nodes = [_node(row[2:]) for row in rows if row[2] is not None]
        return CheckpointTree(rows[0][0], rows[0][1], {each.number: each for each in nodes})

    async def read_chain(self, state_key: StateKey, number: int) -> Sequence[bytes]:
        here = STATE_CHECKPOINTS
        columns = (here.c.number, here.c.base, here.c.form, here.c.content)
        start = select(*columns).where(_key_clause(here, state_key), here.c.number == number)
        back = start.cte("back", recursive=True)
        further = (
            select(*columns)
            .join(back, here.c.number == back.c.base)
            .where(_key_clause(here, state_key), back.c.form == StateForm.PATCH)
        )
        back = back.union_all(further)
        wanted = select(back.c.content).where(back.c.content.is_not(None)).order_by(back.c.number)
        async with self._database.reading() as connection:
            return [bytes(content) for content in (await connection.execute(wanted)).scalars()]

    async def add(
        self, state_key: StateKey, new: NewCheckpoint, instead: CheckpointRemoval | None = None
    ) -> CheckpointNode | None:
        gone = () if instead is None else instead.numbers
        node = _node_of(new)
        async with self._database.beside() as connection:
            revision = await self._lock_row(connection, state_key, node.at)
            if instead is not None and instead.revision != revision:
                return None
            if not await self._can_add(connection, state_key, new, gone):
                return None
            if instead is not None:
                await self._drop(connection, state_key, instead)
            node = replace(node, number=revision + 1)
            row = {name: getattr(node, name) for name in CheckpointNode.__dataclass_fields__}
            values = {**state_key._asdict(), **row, "content": new.content}
            await connection.execute(insert(STATE_CHECKPOINTS).values(values))
            await self._set_head(connection, state_key, node.number, new.state, new.at)
        return node

    async def move(
        self, state_key: StateKey, number: int, state: bytes | None, at: datetime
    ) -> bool:
        at_it = (_key_clause(STATE_CHECKPOINTS, state_key), STATE_CHECKPOINTS.c.number == number)
        found_again = update(STATE_CHECKPOINTS).where(*at_it).values(is_lost=False)
        async with self._database.beside() as connection:
            if await self._revision(connection, state_key) is None:
                return False
            if not (await connection.execute(found_again)).rowcount:
                return False
            await self._set_head(connection, state_key, number, state, at)
        return True

    async def drop(self, state_key: StateKey, dropped: CheckpointRemoval) -> bool:
        async with self._database.beside() as connection:
            if await self._revision(connection, state_key) != dropped.revision:
                return False
            await self._drop(connection, state_key, dropped)
            await connection.execute(_bump_revision(state_key))
        return True

    async def mark_lost(self, state_key: StateKey, number: int) -> None:
        at_it = (_key_clause(STATE_CHECKPOINTS, state_key), STATE_CHECKPOINTS.c.number == number)
        async with self._database.beside() as connection:
            await connection.execute(update(STATE_CHECKPOINTS).where(*at_it).values(is_lost=True))

    async def forget(self, state_key: StateKey) -> int:
        async with self._database.beside() as connection:
            await self._revision(connection, state_key)
            gone = await connection.execute(
                delete(STATE_CHECKPOINTS).where(_key_clause(STATE_CHECKPOINTS, state_key))
            )
            await connection.execute(_bump_revision(state_key).values(head=None, data=None))
        return gone.rowcount

    async def summaries(self) -> Sequence[StateSummary]:
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
        # Databases collate names differently. Sorting here gives the same order everywhere.
        return sorted(map(_summary, rows), key=lambda each: each.state_key)

    async def _lock_row(
        self, connection: AsyncConnection, state_key: StateKey, at: datetime
    ) -> int:
        """Lock a feature set's row until the transaction ends, and return its revision."""
        first = {**state_key._asdict(), "revision": 0, "moved_at": keeping.to_utc(at)}
        made = self._backend.insert(STATES).values(first).on_conflict_do_nothing()
        await connection.execute(made)
        return await self._revision(connection, state_key) or 0

    async def _revision(self, connection: AsyncConnection, state_key: StateKey) -> int | None:
        """Lock the row and return its revision. None if the feature set never had state."""
        wanted = select(STATES.c.revision).where(_key_clause(STATES, state_key)).with_for_update()
        return (await connection.execute(wanted)).scalar()

    async def _can_add(
        self,
        connection: AsyncConnection,
        state_key: StateKey,
        new: NewCheckpoint,
        gone: Collection[int],
    ) -> bool:
        """Whether the base still exists and the name is free."""
        here = STATE_CHECKPOINTS
        near = (here.c.number == new.base) | (here.c.name == new.name)
        rows = await connection.execute(
            select(here.c.number, here.c.name).where(_key_clause(here, state_key), near)
        )
        found = {row.number: row.name for row in rows if row.number not in gone}
        return (new.base is None or new.base in found) and new.name not in found.values()

    async def _drop(
        self, connection: AsyncConnection, state_key: StateKey, dropped: CheckpointRemoval
    ) -> None:
        here = STATE_CHECKPOINTS
        for number, state in dropped.whole.items():
            whole = {"form": StateForm.DATA, "line": 0, "content": state, "size": len(state)}
            at_it = (_key_clause(here, state_key), here.c.number == number)
            await connection.execute(update(here).where(*at_it).values({**whole, "base": None}))
        rest = (here.c.base.in_(dropped.numbers), here.c.number.not_in(dropped.numbers))
        await connection.execute(
            update(here).where(_key_clause(here, state_key), *rest).values(base=None)
        )
        gone = (_key_clause(here, state_key), here.c.number.in_(dropped.numbers))
        await connection.execute(delete(here).where(*gone))

    async def _set_head(
        self,
        connection: AsyncConnection,
        state_key: StateKey,
        number: int,
        state: bytes | None,
        at: datetime,
    ) -> None:
        moved = {"head": number, "data": state, "moved_at": keeping.to_utc(at)}
        await connection.execute(_bump_revision(state_key).values(moved))


def _key_clause(table: Any, state_key: StateKey) -> ColumnElement[bool]:
    if not (keeping.is_name(state_key.server) and keeping.is_name(state_key.feature or "-")):
        # No row has such a name, and a database would reject the query.
        state_key = _NO_KEY
    return (table.c.server == state_key.server) & (table.c.feature == state_key.feature)


def _is_of(table: Any, of: Any) -> ColumnElement[bool]:
    return (table.c.server == of.server) & (table.c.feature == of.feature)


def _bump_revision(state_key: StateKey) -> Any:
    return (
        update(STATES).where(_key_clause(STATES, state_key)).values(revision=STATES.c.revision + 1)
    )


def _node_of(new: NewCheckpoint) -> CheckpointNode:
    """Return the row of a checkpoint, except for its number. Raises MalformedMessage."""
    size = len(new.content or b"")
    rest = (new.parent, new.base, new.form, new.line, size, keeping.clean_words(new.why))
    return CheckpointNode(
        0, keeping.check_name(new.name, "a checkpoint"), keeping.to_utc(new.at), *rest
    )


def _node(row: Sequence[Any]) -> CheckpointNode:
    number, name, at, parent, base, form, *rest = row
    return CheckpointNode(number, name, at, parent, base, StateForm(form), *rest)


def _summary(row: Sequence[Any]) -> StateSummary:
    server, feature, head, moved_at, count, size, held = row
    return StateSummary(
        StateKey(server, feature), head, held is None, count, int(size or 0), moved_at
    )


def _bytes(found: Any) -> bytes | None:
    return None if found is None else bytes(found)
