"""Database store of grants."""

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, delete

from comity.policy import grants as keeping__grant
from comity.policy.grants import Effect, Grant, Where
from comity.storage import values
from comity.storage.changes import PAGE, RecordKind
from comity.storage.database import GRANTS, SqlDatabase, record_row, select_page, select_row


class SqlGrantStore:
    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    async def put(self, *grants: Grant) -> tuple[Grant, ...]:
        kept = [keeping__grant.checked_grant(grant) for grant in grants]
        checked = {grant.id: grant for grant in kept}
        rows = [
            {**record_row(GRANTS, grant), "where": keeping__grant.condition_text(grant.where)}
            for grant in checked.values()
        ]
        async with self._database.writing() as writing:
            await writing.put(GRANTS, rows)
            await writing.record_change(
                RecordKind.GRANTS, (grant.subject for grant in checked.values())
            )
        return tuple(checked[grant.id] for grant in kept)

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
        where=keeping__grant.read_condition(where),
    )
