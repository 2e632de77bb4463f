"""SQLite: one file for one node, shared by processes of the same machine.

Write-ahead logging (WAL) lets readers never wait for a writer. A writer waits for another one up to
a limit. Only the owner can read the file.
"""

import os
import secrets
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Table, event
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from comity.errors import Misconfigured
from comity.storage import schema
from comity.storage.database import WRITES

BUSY_SECONDS: Final = 5.0
SCHEME: Final = "sqlite:///"


class SqliteBackend:
    """A SQLite file, created if it is missing."""

    tells = False
    # A consumed approval or a revoked key must survive a power failure.
    synchronous = "FULL"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine: AsyncEngine = create_async_engine(
            f"sqlite+aiosqlite:///{path}",
            # The driver starts no transaction by itself, so that reads take no write lock.
            connect_args={"timeout": BUSY_SECONDS, "isolation_level": None},
            pool_size=2,
            max_overflow=2,
        )
        event.listen(self.engine.sync_engine, "connect", self._set_pragmas)
        event.listen(self.engine.sync_engine, "begin", _begin)

    def insert(self, table: Table) -> Any:
        return insert(table)

    async def open(self) -> None:
        """Open the file and upgrade its schema. A file of one owner needs no confirmation."""
        self.prepare()
        await schema.bring_up_to_date(self.engine)

    async def close(self) -> None:
        await self.engine.dispose()

    def prepare(self) -> None:
        _create(self.path)

    def _set_pragmas(self, connection: Any, _: object) -> None:
        cursor = connection.cursor()
        for name, value in (
            ("journal_mode", "WAL"),
            ("synchronous", self.synchronous),
            ("foreign_keys", "ON"),
        ):
            cursor.execute(f"PRAGMA {name} = {value}")
        cursor.close()


class TemporarySqliteBackend(SqliteBackend):
    """A file in a private temporary folder. Closing the backend deletes both."""

    synchronous = "OFF"

    def __init__(self) -> None:
        folder = Path(tempfile.gettempdir()) / f"comity-{secrets.token_hex(8)}"
        super().__init__(folder / "store.db")

    async def open(self) -> None:
        if not self.path.exists():
            self.prepare()

    async def close(self) -> None:
        await super().close()
        shutil.rmtree(self.path.parent, ignore_errors=True)

    def prepare(self) -> None:
        folder = self.path.parent
        try:
            # Fails if the folder exists, because then another process created it.
            folder.mkdir(mode=0o700)
            super().prepare()
            statements = schema.creation_statements(self.engine.dialect)
            with closing(sqlite3.connect(self.path)) as connection:
                connection.execute("PRAGMA synchronous = OFF")
                connection.executescript(f"BEGIN; {'; '.join(statements)}; COMMIT")
        except (OSError, sqlite3.Error) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise Misconfigured(
                f"no temporary store can be made in {folder.parent}: {error}; "
                'name a store, as url = "sqlite:///comity.db" in [store]'
            ) from None


def product(url: str) -> SqliteBackend:
    path = url.removeprefix(SCHEME)
    if not path or path == ":memory:" or "?" in path:
        raise Misconfigured("name a file for the store, as sqlite:///comity.db")
    return SqliteBackend(Path(path))


def _create(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise Misconfigured(f"the store {path} cannot be written: {error.strerror}") from None


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    # A reader that becomes a writer may fail with a conflict, so a writer locks at once.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
