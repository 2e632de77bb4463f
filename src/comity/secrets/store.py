"""A column of sealed values, as the rotation of keys sees it."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Column, select, update

from comity.secrets.model import SEALED_PAGE, SealedRecord
from comity.storage.changes import RecordKind
from comity.storage.database import SqlDatabase


class SqlSealedColumn:
    """Lists and replaces the values of one column, whose rows have an `id`.

    `context_of_row` gets the values of `context_columns`. With a `kind`, nodes learn of each
    replacement, because they keep the sealed values of these records in memory.
    """

    def __init__(
        self,
        database: SqlDatabase,
        sealed_name: str,
        column: Column[bytes],
        context_columns: Sequence[str],
        context_of_row: Callable[..., str],
        *,
        kind: RecordKind | None = None,
    ) -> None:
        self.sealed_name = sealed_name
        self._database = database
        self._table, self._column = column.table, column
        self._context_columns = [self._table.c[name] for name in context_columns]
        self._context_of_row = context_of_row
        self._kind = kind

    async def list_sealed(
        self, after: str = "", limit: int = SEALED_PAGE
    ) -> Sequence[SealedRecord]:
        key = self._table.c.id
        wanted = (
            select(key, self._column, *self._context_columns)
            .where(key > after, self._column != b"")
            .order_by(key)
            .limit(limit)
        )
        async with self._database.reading() as connection:
            rows = (await connection.execute(wanted)).all()
        return [self._to_record(row) for row in rows]

    def _to_record(self, row: Sequence[Any]) -> SealedRecord:
        return SealedRecord(row[0], bytes(row[1]), self._context_of_row(*row[2:]))

    async def replace_sealed(self, record: SealedRecord, sealed: bytes) -> bool:
        changed = (
            update(self._table)
            .where(self._table.c.id == record.id, self._column == record.sealed)
            .values({self._column: sealed})
        )
        if self._kind is None:
            async with self._database.beside() as connection:
                return (await connection.execute(changed)).rowcount > 0
        async with self._database.writing() as writing:
            done = await writing.connection.execute(changed)
            await writing.record_change(self._kind, [record.id] * done.rowcount)
        return done.rowcount > 0
