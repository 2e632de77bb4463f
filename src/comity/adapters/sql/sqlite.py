"""SQLite: one file beside one node, for as many processes as share the machine.

Written ahead (WAL), so that readers never wait for a writer; a writer waits for another for a
while. The file is its owner's alone.
"""

import asyncio
import os
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Table, event
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from comity.adapters.sql import migrating
from comity.adapters.sql.database import WRITES
from comity.adapters.sql.records import SqlRecords
from comity.adapters.sql.sqlite_chain import SqliteChain
from comity.wire.errors import Misconfigured

BUSY_SECONDS: Final = 5.0
SCHEME: Final = "sqlite:///"
# An approval that was used, or a key that was revoked, stays so when the power goes.
_PRAGMAS: Final = ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON")


class Sqlite:
    """A file, made where there is none."""

    tells = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self.chain = SqliteChain(path, BUSY_SECONDS)
        self.engine: AsyncEngine = create_async_engine(
            f"sqlite+aiosqlite:///{path}",
            # The driver begins no transaction by itself: what is only read must lock nobody out.
            connect_args={"timeout": BUSY_SECONDS, "isolation_level": None},
            pool_size=2,
            max_overflow=2,
        )
        event.listen(self.engine.sync_engine, "connect", _prepare)
        event.listen(self.engine.sync_engine, "begin", _begin)

    def insert(self, table: Table) -> Any:
        return insert(table)

    async def open(self) -> None:
        """A file of one's own is brought up to date without asking."""
        self.prepare()
        await migrating.bring_up_to_date(self.engine)

    async def close(self) -> None:
        await self.engine.dispose()

    def prepare(self) -> None:
        _create(self._path)


def open_records(url: str) -> SqlRecords:
    return SqlRecords(product(url), asyncio.Event())


def product(url: str) -> Sqlite:
    path = url.removeprefix(SCHEME)
    if not path or path == ":memory:" or "?" in path:
        raise Misconfigured("name a file for the store, as sqlite:///comity.db")
    return Sqlite(Path(path))


def _create(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise Misconfigured(f"the store {path} cannot be written: {error.strerror}") from None


def _prepare(connection: Any, _: object) -> None:
    cursor = connection.cursor()
    for pragma in _PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    # A reader that turns writer halfway could have to give up; a writer says so at once.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
