"""The records in tables: what is written, looked up and read page by page."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, bindparam, delete, select, update

from comity.adapters.sql.asks import SqlAsks
from comity.adapters.sql.budgets import SqlBudgets
from comity.adapters.sql.conversations import SqlConversations
from comity.adapters.sql.database import Database, Product, Row, Writing
from comity.adapters.sql.incoming import SqlIncoming
from comity.adapters.sql.journal import SqlJournal
from comity.adapters.sql.migrating import refuse_another_schema
from comity.adapters.sql.pushes import SqlPushes
from comity.adapters.sql.states import SqlStates
from comity.adapters.sql.tables import (
    CHANGES,
    GRANTS,
    KEYS,
    PARTIES,
    PINS,
    REGISTRATIONS,
    VERSION,
)
from comity.adapters.sql.webhooks import SqlWebhooks
from comity.adapters.stirring import stirred
from comity.ports import PAGE, Change, Kept, News
from comity.rules import keeping
from comity.wire.grants import Effect, Grant, Where
from comity.wire.parties import Key, Party, PartyKind
from comity.wire.pins import Pin, Registration

TOLD_AT_MOST: Final = 5_000


class Changes:
    """What came after a version, and the stir by which this process hears of it at once."""

    def __init__(self, database: Database, stir: asyncio.Event) -> None:
        self._database = database
        self._stir = stir

    async def since(self, version: int) -> News:
        # One statement sees one moment, so no change is between the version and its list.
        joined = VERSION.outerjoin(CHANGES, CHANGES.c.version > version)
        columns = (VERSION.c.version, VERSION.c.forgotten, CHANGES.c.what, CHANGES.c.whose)
        wanted = select(*columns).select_from(joined).limit(TOLD_AT_MOST + 1)
        async with self._database.reading() as connection:
            rows = (await connection.execute(wanted)).all()
        latest, forgotten = rows[0][0], rows[0][1]
        # One that is ahead has seen a store that is no more: this one was put back from a copy.
        if version < forgotten or version > latest or len(rows) > TOLD_AT_MOST:
            return News(latest, None)
        told = (Change(Kept(what), whose) for _, _, what, whose in rows if what is not None)
        return News(latest, tuple(dict.fromkeys(told)))

    async def stirred(self, within: timedelta) -> None:
        await stirred(self._stir, within)


class Grants:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, *grants: Grant) -> tuple[Grant, ...]:
        kept = [keeping.grant(grant) for grant in grants]
        checked = {grant.id: grant for grant in kept}
        rows = [
            {**_row(GRANTS, grant), "where": keeping.condition(grant.where)}
            for grant in checked.values()
        ]
        async with self._database.writing() as writing:
            await writing.put(GRANTS, rows)
            await writing.note(Kept.GRANTS, (grant.subject for grant in checked.values()))
        return tuple(checked[grant.id] for grant in kept)

    async def revoke(self, subject: str, verb: str, target: str, where: Where = None) -> bool:
        id = keeping.grant_id(subject, verb, target, where)
        async with self._database.writing() as writing:
            gone = await writing.connection.execute(delete(GRANTS).where(GRANTS.c.id == id))
            await writing.note(Kept.GRANTS, [subject] * gone.rowcount)
        return gone.rowcount > 0

    async def get(self, subject: str, verb: str, target: str, where: Where = None) -> Grant | None:
        id = keeping.grant_id(subject, verb, target, where)
        row = await _one(self._database, GRANTS, id=id)
        return None if row is None else _grant(row)

    async def page(
        self, after: str = "", limit: int = PAGE, subjects: Collection[str] | None = None
    ) -> Sequence[Grant]:
        narrowed: list[ColumnElement[bool]] = []
        if subjects is not None:
            narrowed = [GRANTS.c.subject.in_([each for each in subjects if keeping.is_name(each)])]
        rows = await _page(self._database, GRANTS, after, limit, *narrowed)
        return [_grant(row) for row in rows]


class Parties:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, *parties: Party) -> None:
        checked = {party.id: party for party in map(keeping.party, parties)}
        async with self._database.writing() as writing:
            await writing.put(PARTIES, [_row(PARTIES, party) for party in checked.values()])
            await writing.note(Kept.PARTIES, checked)

    async def get(self, party: str) -> Party | None:
        row = await _one(self._database, PARTIES, id=party)
        return None if row is None else _party(row)

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[Party]:
        return [_party(row) for row in await _page(self._database, PARTIES, after, limit)]

    async def remove(self, party: str) -> bool:
        if not keeping.is_name(party):
            return False
        async with self._database.writing() as writing:
            execute = writing.connection.execute
            gone = await execute(delete(PARTIES).where(PARTIES.c.id == party))
            if gone.rowcount:
                own = delete(KEYS).where(KEYS.c.party == party).returning(KEYS.c.id)
                keys = (await execute(own)).scalars().all()
                await writing.note(Kept.PARTIES, [party])
                await writing.note(Kept.KEYS, keys)
        return gone.rowcount > 0


class Keys:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, key: Key, at: datetime) -> None:
        checked = keeping.key(key)
        row = {**_row(KEYS, checked), "permissions": keeping.listed(checked.permissions)}
        async with self._database.writing() as writing:
            keeping.refuse_a_third(checked, await _keys_of(writing, key.party), at)
            await writing.put(KEYS, [row])
            await writing.note(Kept.KEYS, [key.id])

    async def get(self, key: str) -> Key | None:
        row = await _one(self._database, KEYS, id=key)
        return None if row is None else _key(row)

    async def of(self, party: str) -> Sequence[Key]:
        rows = await _several(self._database, KEYS, party=party)
        return [_key(row) for row in rows]

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[Key]:
        return [_key(row) for row in await _page(self._database, KEYS, after, limit)]

    async def revoke(self, key: str, at: datetime) -> bool:
        if not keeping.is_name(key):
            return False
        revoked = (
            update(KEYS)
            .where(KEYS.c.id == key, KEYS.c.revoked_at.is_(None))
            .values(revoked_at=keeping.moment(at))
        )
        async with self._database.writing() as writing:
            gone = await writing.connection.execute(revoked)
            await writing.note(Kept.KEYS, [key] * gone.rowcount)
        return gone.rowcount > 0

    async def touch(self, used: Mapping[str, datetime]) -> None:
        if not used:
            return
        touched = (
            update(KEYS).where(KEYS.c.id == bindparam("key")).values(last_used=bindparam("at"))
        )
        rows = [{"key": key, "at": keeping.moment(at)} for key, at in sorted(used.items())]
        async with self._database.writing() as writing:
            await writing.connection.execute(touched, rows)


class Pins:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, *pins: Pin) -> None:
        checked = {(pin.server, pin.tool): pin for pin in map(keeping.pin, pins)}
        async with self._database.writing() as writing:
            await writing.put(PINS, [_row(PINS, pin) for pin in checked.values()])
            await writing.note(Kept.PINS, (pin.server for pin in checked.values()))

    async def get(self, server: str, tool: str) -> Pin | None:
        row = await _one(self._database, PINS, server=server, tool=tool)
        return None if row is None else Pin(*row)

    async def of(self, server: str) -> Sequence[Pin]:
        return [Pin(*row) for row in await _several(self._database, PINS, server=server)]

    async def remove(self, server: str, tool: str = "") -> bool:
        if not keeping.is_name(server) or (tool and not keeping.is_name(tool)):
            return False
        unwanted = delete(PINS).where(PINS.c.server == server)
        if tool:
            unwanted = unwanted.where(PINS.c.tool == tool)
        async with self._database.writing() as writing:
            gone = await writing.connection.execute(unwanted)
            await writing.note(Kept.PINS, [server] * gone.rowcount)
        return gone.rowcount > 0


class Registrations:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, registration: Registration) -> None:
        checked = keeping.registration(registration)
        row = {**_row(REGISTRATIONS, checked), "entry": keeping.document(checked.entry)}
        async with self._database.writing() as writing:
            await writing.put(REGISTRATIONS, [row])
            await writing.note(Kept.REGISTRATIONS, [checked.server])

    async def get(self, server: str) -> Registration | None:
        row = await _one(self._database, REGISTRATIONS, server=server)
        return None if row is None else _registration(row)

    async def all(self) -> Sequence[Registration]:
        return [_registration(row) for row in await _several(self._database, REGISTRATIONS)]

    async def remove(self, server: str) -> bool:
        if not keeping.is_name(server):
            return False
        unwanted = delete(REGISTRATIONS).where(REGISTRATIONS.c.server == server)
        async with self._database.writing() as writing:
            gone = await writing.connection.execute(unwanted)
            await writing.note(Kept.REGISTRATIONS, [server] * gone.rowcount)
        return gone.rowcount > 0


class SqlRecords:
    """All of them, in one database."""

    def __init__(self, product: Product, stir: asyncio.Event) -> None:
        database = Database(product, stir.set)
        self._product = product
        self.changes = Changes(database, stir)
        self.grants = Grants(database)
        self.parties = Parties(database)
        self.keys = Keys(database)
        self.pins = Pins(database)
        self.registrations = Registrations(database)
        self.asks = SqlAsks(database)
        self.pushes = SqlPushes(database, product)
        self.conversations = SqlConversations(database, product)
        self.webhooks = SqlWebhooks(database, product)
        self.budgets = SqlBudgets(database, product)
        self.states = SqlStates(database, product)
        self.incoming = SqlIncoming(database, product)
        self.journal = SqlJournal(database, product.chain)

    async def open(self) -> None:
        await self._product.open()
        await refuse_another_schema(self._product.engine)

    async def close(self) -> None:
        await self.journal.close()
        await self._product.close()


def _row(table: Table, record: object) -> Row:
    """A record's fields are the columns of its table."""
    return {column.name: getattr(record, column.name) for column in table.columns}


async def _several(database: Database, table: Table, **where: str) -> Sequence[Sequence[Any]]:
    # No record has such a name, and a database would refuse to look for it.
    if any(not keeping.is_name(value) for value in where.values()):
        return []
    wanted = select(table).where(*(table.c[name] == value for name, value in where.items()))
    wanted = wanted.order_by(*table.primary_key.columns)
    async with database.reading() as connection:
        return (await connection.execute(wanted)).all()


async def _one(database: Database, table: Table, **where: str) -> Sequence[Any] | None:
    return next(iter(await _several(database, table, **where)), None)


async def _page(
    database: Database, table: Table, after: str, limit: int, *where: ColumnElement[bool]
) -> Sequence[Sequence[Any]]:
    if after and not keeping.is_name(after):
        return []
    wanted = select(table).where(table.c.id > after, *where).order_by(table.c.id).limit(limit)
    async with database.reading() as connection:
        return (await connection.execute(wanted)).all()


async def _keys_of(writing: Writing, party: str) -> list[Key]:
    found = await writing.connection.execute(select(KEYS).where(KEYS.c.party == party))
    return [_key(row) for row in found]


def _grant(row: Sequence[Any]) -> Grant:
    id, subject, verb, target, effect, by, justification, at, until, where = row
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
        where=keeping.read_condition(where),
    )


def _party(row: Sequence[Any]) -> Party:
    id, kind, *rest = row
    return Party(id, PartyKind(kind), *rest)


def _key(row: Sequence[Any]) -> Key:
    id, party, mac, label, permissions, *rest = row
    return Key(id, party, bytes(mac), label, keeping.read_list(permissions), *rest)


def _registration(row: Sequence[Any]) -> Registration:
    server, entry, *rest = row
    return Registration(server, keeping.read(entry), *rest)
