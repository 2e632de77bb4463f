"""The tables of accounts and of this gateway's registrations at authorization servers."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from comity.accounts.model import Account, AccountKey, AccountState
from comity.storage import values
from comity.storage.changes import RecordKind
from comity.storage.database import (
    ACCOUNT_CLIENTS,
    ACCOUNTS,
    Row,
    SqlDatabase,
    select_row,
    select_rows,
)

_COLUMNS: Final = ACCOUNTS.c


class SqlAccounts:
    """Stores accounts. Each change increases the version of the record and of the store."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def get(self, key: AccountKey) -> Account | None:
        row = await select_row(self._database, ACCOUNTS, id=key.id)
        return None if row is None else _account(row)

    async def list_all(self) -> Sequence[Account]:
        return [_account(row) for row in await select_rows(self._database, ACCOUNTS)]

    async def put(self, account: Account) -> Account:
        values.check_name(account.server, "the server of an account")
        values.check_name(account.owner or "-", "the owner of an account")
        async with self._database.writing() as writing:
            known = select(_COLUMNS.version).where(_COLUMNS.id == account.id)
            version = (await writing.connection.execute(known)).scalar_one_or_none() or 0
            stored = replace(account, version=version + 1)
            await writing.put(ACCOUNTS, [_row(stored)])
            await writing.record_change(RecordKind.ACCOUNTS, [account.id])
        return stored

    async def replace(self, account: Account) -> Account | None:
        known = _COLUMNS.id == account.id, _COLUMNS.version == account.version
        async with self._database.writing() as writing:
            demanded: str | None = (
                await writing.connection.execute(select(_COLUMNS.missing_scopes).where(*known))
            ).scalar_one_or_none()
            if demanded is None:
                return None
            # A server may have demanded more scopes since the account was read.
            missing = tuple(each for each in demanded.split() if each not in account.scopes)
            stored = replace(account, version=account.version + 1, missing_scopes=missing)
            await writing.connection.execute(update(ACCOUNTS).where(*known).values(_row(stored)))
            await writing.record_change(RecordKind.ACCOUNTS, [account.id])
        return stored

    async def set_missing_scopes(self, key: AccountKey, scopes: tuple[str, ...]) -> None:
        changed = update(ACCOUNTS).where(_COLUMNS.id == key.id)
        async with self._database.writing() as writing:
            done = await writing.connection.execute(changed.values(missing_scopes=" ".join(scopes)))
            await writing.record_change(RecordKind.ACCOUNTS, [key.id] * done.rowcount)

    async def remove(self, key: AccountKey) -> bool:
        async with self._database.writing() as writing:
            gone = await writing.connection.execute(delete(ACCOUNTS).where(_COLUMNS.id == key.id))
            await writing.record_change(RecordKind.ACCOUNTS, [key.id] * gone.rowcount)
        return gone.rowcount > 0

    async def lease_refresh(
        self, account: Account, node: str, now: datetime, until: datetime
    ) -> bool:
        is_free = or_(
            _COLUMNS.refresh_by.in_(["", node]), _COLUMNS.refresh_until <= values.to_utc(now)
        )
        taken = update(ACCOUNTS).where(
            _COLUMNS.id == account.id, _COLUMNS.version == account.version, is_free
        )
        async with self._database.beside() as connection:
            done = await connection.execute(
                taken.values(refresh_by=node, refresh_until=values.to_utc(until))
            )
        return done.rowcount > 0

    async def end_lease(self, key: AccountKey, node: str) -> None:
        ended = update(ACCOUNTS).where(_COLUMNS.id == key.id, _COLUMNS.refresh_by == node)
        async with self._database.beside() as connection:
            await connection.execute(ended.values(refresh_by="", refresh_until=None))

    async def get_client(self, issuer: str, redirect_uri: str) -> bytes | None:
        row = await select_row(
            self._database, ACCOUNT_CLIENTS, id=client_record_id(issuer, redirect_uri)
        )
        return None if row is None else bytes(row[3])

    async def put_client(self, issuer: str, redirect_uri: str, sealed: bytes) -> bytes:
        row = {
            "id": client_record_id(issuer, redirect_uri),
            "issuer": issuer,
            "redirect_uri": redirect_uri,
            "sealed": sealed,
        }
        try:
            async with self._database.beside() as connection:
                await connection.execute(insert(ACCOUNT_CLIENTS), [row])
        except IntegrityError:
            return await self.get_client(issuer, redirect_uri) or sealed
        return sealed

    async def remove_client(self, issuer: str, redirect_uri: str) -> None:
        gone = delete(ACCOUNT_CLIENTS).where(
            ACCOUNT_CLIENTS.c.id == client_record_id(issuer, redirect_uri)
        )
        async with self._database.beside() as connection:
            await connection.execute(gone)


def client_record_id(issuer: str, redirect_uri: str) -> str:
    return hashlib.blake2b(f"{issuer}\0{redirect_uri}".encode(), digest_size=16).hexdigest()


def _row(account: Account) -> Row:
    row = {
        column.name: getattr(account, column.name)
        for column in ACCOUNTS.columns
        if column.name not in ("scopes", "missing_scopes", "refresh_by", "refresh_until")
    }
    return {
        **row,
        "scopes": " ".join(account.scopes),
        "missing_scopes": " ".join(account.missing_scopes),
        "refresh_by": "",
        "refresh_until": None,
    }


def _account(row: Sequence[Any]) -> Account:
    found: dict[str, Any] = dict(zip(ACCOUNTS.columns.keys(), row, strict=True))
    del found["id"], found["refresh_by"], found["refresh_until"]
    found["scopes"] = tuple(found["scopes"].split())
    found["missing_scopes"] = tuple(found["missing_scopes"].split())
    found["state"] = AccountState(found["state"])
    found["sealed"] = bytes(found["sealed"])
    return Account(**found)
