"""Database stores of principals and API keys."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import batched
from typing import Any, Final

from sqlalchemy import bindparam, delete, select, update

from comity.identity import principals
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import PrincipalKind
from comity.storage import values
from comity.storage.changes import PAGE, RecordKind
from comity.storage.database import (
    BROWSER_SESSIONS,
    KEYS,
    PARTIES,
    SqlDatabase,
    WriteTransaction,
    record_row,
    select_page,
    select_row,
    select_rows,
)


class SqlPrincipalStore:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def put(self, *parties: Principal) -> None:
        async with self._database.writing() as writing:
            await write_principals(writing, parties)

    async def get(self, party: str) -> Principal | None:
        row = await select_row(self._database, PARTIES, id=party)
        return None if row is None else _party(row)

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[Principal]:
        return [_party(row) for row in await select_page(self._database, PARTIES, after, limit)]

    async def change(
        self, party: str, change: Callable[[Principal | None], Principal | None]
    ) -> Principal | None:
        values.check_name(party, "a principal's id")
        async with self._database.writing() as writing:
            found = (await read_principals(writing, [party])).get(party)
            changed = change(found)
            if changed is None or changed == found:
                return found
            (written,) = await write_principals(writing, [changed])
        return written

    async def remove(self, party: str) -> bool:
        if not values.is_name(party):
            return False
        async with self._database.writing() as writing:
            execute = writing.connection.execute
            gone = await execute(delete(PARTIES).where(PARTIES.c.id == party))
            if gone.rowcount:
                own = delete(KEYS).where(KEYS.c.party == party).returning(KEYS.c.id)
                keys = (await execute(own)).scalars().all()
                await writing.record_change(RecordKind.PARTIES, [party])
                await writing.record_change(RecordKind.KEYS, keys)
                await _end_sessions(writing, [party])
        return gone.rowcount > 0


class SqlKeyStore:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def put(self, key: ApiKey, at: datetime) -> None:
        checked = principals.checked_key(key)
        async with self._database.writing() as writing:
            principals.refuse_third_key(checked, await _keys_of(writing, key.party), at)
            await _put(writing, checked)

    async def put_first(self, key: ApiKey) -> bool:
        checked = principals.checked_key(key)
        async with self._database.writing() as writing:
            found = await writing.connection.execute(select(KEYS.c.id).limit(1))
            is_first = found.first() is None
            if is_first:
                await _put(writing, checked)
        return is_first

    async def get(self, key: str) -> ApiKey | None:
        row = await select_row(self._database, KEYS, id=key)
        return None if row is None else _key(row)

    async def list_of_party(self, party: str) -> Sequence[ApiKey]:
        rows = await select_rows(self._database, KEYS, party=party)
        return [_key(row) for row in rows]

    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[ApiKey]:
        return [_key(row) for row in await select_page(self._database, KEYS, after, limit)]

    async def revoke(self, key: str, at: datetime) -> bool:
        if not values.is_name(key):
            return False
        revoked = (
            update(KEYS)
            .where(KEYS.c.id == key, KEYS.c.revoked_at.is_(None))
            .values(revoked_at=values.to_optional_utc(at))
        )
        async with self._database.writing() as writing:
            gone = await writing.connection.execute(revoked)
            await writing.record_change(RecordKind.KEYS, [key] * gone.rowcount)
        return gone.rowcount > 0

    async def touch(self, used: Mapping[str, datetime]) -> None:
        if not used:
            return
        touched = (
            update(KEYS).where(KEYS.c.id == bindparam("key")).values(last_used=bindparam("at"))
        )
        rows = [{"key": key, "at": values.to_optional_utc(at)} for key, at in sorted(used.items())]
        async with self._database.writing() as writing:
            await writing.connection.execute(touched, rows)


async def _put(transaction: WriteTransaction, key: ApiKey) -> None:
    row = {**record_row(KEYS, key), "permissions": values.encode_names(key.permissions)}
    await transaction.put(KEYS, [row])
    await transaction.record_change(RecordKind.KEYS, [key.id])


async def _keys_of(transaction: WriteTransaction, party: str) -> list[ApiKey]:
    found = await transaction.connection.execute(select(KEYS).where(KEYS.c.party == party))
    return [_key(row) for row in found]


async def read_principals(
    transaction: WriteTransaction, ids: Sequence[str]
) -> dict[str, Principal]:
    """Return the principals with these ids, for a transaction that changes them."""
    found: dict[str, Principal] = {}
    for some in batched(ids, _IDS_AT_ONCE):
        wanted = select(PARTIES).where(PARTIES.c.id.in_(some))
        for row in await transaction.connection.execute(wanted):
            party = _party(row)
            found[party.id] = party
    return found


async def write_principals(
    transaction: WriteTransaction, changed: Iterable[Principal]
) -> list[Principal]:
    """Write principals in a transaction that also changes other records.

    It ends the browser sessions of disabled ones. Otherwise a stolen cookie would work again when
    the principal is enabled.
    """
    checked = {party.id: party for party in map(principals.checked_principal, changed)}
    await transaction.put(PARTIES, [_party_row(party) for party in checked.values()])
    await transaction.record_change(RecordKind.PARTIES, checked)
    await _end_sessions(transaction, [id for id, party in checked.items() if party.disabled])
    return list(checked.values())


async def _end_sessions(transaction: WriteTransaction, parties: Sequence[str]) -> None:
    for some in batched(parties, _IDS_AT_ONCE):
        signed_in = delete(BROWSER_SESSIONS).where(BROWSER_SESSIONS.c.party.in_(some))
        ended = await transaction.connection.execute(signed_in.returning(BROWSER_SESSIONS.c.id))
        await transaction.record_change(RecordKind.SESSIONS, ended.scalars().all())


_IDS_AT_ONCE: Final = 500


def _party_row(party: Principal) -> dict[str, Any]:
    return {**record_row(PARTIES, party), "groups": values.encode_names(party.groups)}


def _party(row: Sequence[Any]) -> Principal:
    id, kind, *rest, groups = row
    return Principal(id, PrincipalKind(kind), *rest, groups=values.read_list(groups))


def _key(row: Sequence[Any]) -> ApiKey:
    id, party, mac, label, permissions, *rest = row
    return ApiKey(id, party, bytes(mac), label, values.read_list(permissions), *rest)
