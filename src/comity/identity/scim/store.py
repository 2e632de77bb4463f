"""Database store of the users and groups of SCIM, and of the principals that they are."""

import json
from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import batched
from typing import Any, Final

from sqlalchemy import ColumnElement, Table, delete, func, select

from comity.identity.principals import Principal
from comity.identity.scim.model import ScimFilter, ScimGroup, ScimUser, comparison_key
from comity.identity.store import read_principals, write_principals
from comity.storage import values
from comity.storage.database import (
    SCIM_GROUPS,
    SCIM_MEMBERS,
    SCIM_USERS,
    SqlDatabase,
    WriteTransaction,
)

_IDS_AT_ONCE: Final = 500
_COLUMN_BY_ATTRIBUTE: Final = {
    "id": "id",
    "externalid": "external_id",
    "username": "name_key",
    "displayname": "name_key",
}


class SqlScimStore:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator["ScimTransaction"]:
        """Begin a transaction. It sees no change of another, and all its changes apply or none."""
        async with self._database.writing() as writing:
            yield ScimTransaction(writing)

    async def users(
        self, wanted: ScimFilter | None, start: int, count: int
    ) -> tuple[Sequence[ScimUser], int]:
        """Return some users in a stable order, beginning at an index, and the number of all."""
        rows, total = await self._page(SCIM_USERS, wanted, start, count)
        return [_user(row) for row in rows], total

    async def groups(
        self, wanted: ScimFilter | None, start: int, count: int
    ) -> tuple[Sequence[ScimGroup], int]:
        """Return some groups in a stable order, beginning at an index, and the number of all."""
        rows, total = await self._page(SCIM_GROUPS, wanted, start, count)
        return [_group(row) for row in rows], total

    async def groups_of(self, user_id: str) -> Sequence[ScimGroup]:
        wanted = _groups_of(user_id)
        async with self._database.reading() as connection:
            return [_group(row) for row in await connection.execute(wanted)]

    async def members_of(self, group_id: str) -> Sequence[ScimUser]:
        wanted = (
            select(SCIM_USERS)
            .join(SCIM_MEMBERS, SCIM_MEMBERS.c.user_id == SCIM_USERS.c.id)
            .where(SCIM_MEMBERS.c.group_id == group_id)
            .order_by(SCIM_USERS.c.id)
        )
        async with self._database.reading() as connection:
            return [_user(row) for row in await connection.execute(wanted)]

    async def _page(
        self, table: Table, wanted: ScimFilter | None, start: int, count: int
    ) -> tuple[Sequence[Sequence[Any]], int]:
        fitting = [] if wanted is None else [_condition(table, wanted)]
        counted = select(func.count()).select_from(table).where(*fitting)
        listed = select(table).where(*fitting).order_by(table.c.id)
        async with self._database.reading() as connection:
            total: int = (await connection.execute(counted)).scalar_one()
            if not count or start > total:
                return [], total
            rows = await connection.execute(listed.offset(start - 1).limit(count))
            return rows.all(), total


class ScimTransaction:
    """One change of users or groups, together with the principals that it concerns."""

    def __init__(self, transaction: WriteTransaction) -> None:
        self._transaction = transaction
        self._execute = transaction.connection.execute

    async def user(self, id: str) -> ScimUser | None:
        return await self._find_user(SCIM_USERS.c.id == id)

    async def user_named(self, user_name: str) -> ScimUser | None:
        """Return the user with this name. The case of the name does not matter."""
        return await self._find_user(SCIM_USERS.c.name_key == comparison_key(user_name))

    async def user_of(self, principal: str) -> ScimUser | None:
        return await self._find_user(SCIM_USERS.c.principal == principal)

    async def users(self, ids: Collection[str]) -> dict[str, ScimUser]:
        found: dict[str, ScimUser] = {}
        for some in batched(ids, _IDS_AT_ONCE):
            rows = await self._execute(select(SCIM_USERS).where(SCIM_USERS.c.id.in_(some)))
            found |= {user.id: user for user in map(_user, rows)}
        return found

    async def put_user(self, user: ScimUser) -> None:
        row = {
            "id": user.id,
            "principal": user.principal,
            "user_name": user.user_name,
            "name_key": comparison_key(user.user_name),
            "external_id": user.external_id,
            "active": user.active,
            "attributes": json.dumps(user.attributes),
            "created_at": values.to_optional_utc(user.created_at),
            "changed_at": values.to_optional_utc(user.changed_at),
        }
        await self._transaction.put(SCIM_USERS, [row])

    async def remove_user(self, id: str) -> None:
        await self._execute(delete(SCIM_MEMBERS).where(SCIM_MEMBERS.c.user_id == id))
        await self._execute(delete(SCIM_USERS).where(SCIM_USERS.c.id == id))

    async def groups_of(self, user_id: str) -> Sequence[ScimGroup]:
        return [_group(row) for row in await self._execute(_groups_of(user_id))]

    async def group(self, id: str) -> ScimGroup | None:
        return await self._find_group(SCIM_GROUPS.c.id == id)

    async def group_named(self, name: str) -> ScimGroup | None:
        """Return the group with this name. The case of the name does not matter."""
        return await self._find_group(SCIM_GROUPS.c.name_key == comparison_key(name))

    async def put_group(self, group: ScimGroup) -> None:
        row = {
            "id": group.id,
            "name": group.name,
            "name_key": comparison_key(group.name),
            "external_id": group.external_id,
            "created_at": values.to_optional_utc(group.created_at),
            "changed_at": values.to_optional_utc(group.changed_at),
        }
        await self._transaction.put(SCIM_GROUPS, [row])

    async def remove_group(self, id: str) -> None:
        await self._execute(delete(SCIM_MEMBERS).where(SCIM_MEMBERS.c.group_id == id))
        await self._execute(delete(SCIM_GROUPS).where(SCIM_GROUPS.c.id == id))

    async def member_ids(self, group_id: str) -> set[str]:
        wanted = select(SCIM_MEMBERS.c.user_id).where(SCIM_MEMBERS.c.group_id == group_id)
        return set((await self._execute(wanted)).scalars())

    async def change_members(
        self, group_id: str, added: Iterable[str], removed: Iterable[str]
    ) -> None:
        for some in batched(removed, _IDS_AT_ONCE):
            fitting = (SCIM_MEMBERS.c.group_id == group_id, SCIM_MEMBERS.c.user_id.in_(some))
            await self._execute(delete(SCIM_MEMBERS).where(*fitting))
        rows = [{"group_id": group_id, "user_id": each} for each in added]
        if rows:
            await self._execute(SCIM_MEMBERS.insert(), rows)

    async def principals(self, ids: Sequence[str]) -> dict[str, Principal]:
        return await read_principals(self._transaction, ids)

    async def put_principals(self, changed: Iterable[Principal]) -> None:
        await write_principals(self._transaction, changed)

    async def _find_user(self, condition: ColumnElement[bool]) -> ScimUser | None:
        row = (await self._execute(select(SCIM_USERS).where(condition))).first()
        return None if row is None else _user(row)

    async def _find_group(self, condition: ColumnElement[bool]) -> ScimGroup | None:
        row = (await self._execute(select(SCIM_GROUPS).where(condition))).first()
        return None if row is None else _group(row)


def _condition(table: Table, wanted: ScimFilter) -> ColumnElement[bool]:
    column = _COLUMN_BY_ATTRIBUTE[wanted.attribute]
    value = comparison_key(wanted.value) if column == "name_key" else wanted.value
    return table.c[column] == value


def _groups_of(user_id: str) -> Any:
    return (
        select(SCIM_GROUPS)
        .join(SCIM_MEMBERS, SCIM_MEMBERS.c.group_id == SCIM_GROUPS.c.id)
        .where(SCIM_MEMBERS.c.user_id == user_id)
        .order_by(SCIM_GROUPS.c.id)
    )


def _user(row: Sequence[Any]) -> ScimUser:
    id, principal, user_name, _, external_id, active, attributes, created, changed = row
    kept = dict(values.decode_document(attributes))
    return ScimUser(id, principal, user_name, external_id, active, kept, created, changed)


def _group(row: Sequence[Any]) -> ScimGroup:
    id, name, _, external_id, created, changed = row
    return ScimGroup(id, name, external_id, created, changed)
