"""SQLite: one file for one node, shared by processes of the same machine.

Write-ahead logging (WAL) lets readers never wait for a writer. A writer waits for another one up to
a limit. Only the owner can read the file.
"""

import asyncio
import errno
import logging
import os
import secrets
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import aiosqlite
from sqlalchemy import ColumnElement, Connection, Double, Table, bindparam, event
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from comity.config.files import prepare_state_file
from comity.config.secret_files import read_secret, write_secret
from comity.errors import Misconfigured
from comity.storage import schema
from comity.storage.database import WRITES

log = logging.getLogger(__name__)

BUSY_SECONDS: Final = 5.0
CHECK_SECONDS: Final = 10.0
"""How long the search for damage may hold up the opening of a large file.

SQLite before 3.41 does not look at the time while it reads the pages of one table.
"""

_CHECK_STEPS: Final = 10_000
"""The number of steps of SQLite between two looks at the time."""
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
            connect_args={
                "timeout": BUSY_SECONDS,
                "isolation_level": None,
                "async_creator_fn": _connect,
            },
            pool_size=2,
            max_overflow=2,
        )
        event.listen(self.engine.sync_engine, "connect", self._set_pragmas)
        event.listen(self.engine.sync_engine, "begin", _begin)
        self._watching: sqlite3.Connection | None = None

    def insert(self, table: Table) -> Any:
        return insert(table)

    def clock(self) -> ColumnElement[float]:
        # All processes that share a file have the clock of one machine.
        return bindparam("clock_of_the_machine", callable_=time.time, type_=Double)

    async def open(self) -> None:
        """Open the file and upgrade its schema. A file of one owner needs no confirmation."""
        self.prepare()
        await asyncio.to_thread(refuse_damage, self.path)
        await schema.bring_up_to_date(self.engine)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.close()
            self._watching = None
        await self.engine.dispose()

    async def read_change_mark(self, job_kinds: Sequence[str]) -> object:
        """Read `data_version`, which each commit of another connection changes.

        SQLite answers from shared memory within some microseconds, so no thread is needed.
        """
        try:
            if self._watching is None:
                # `mode=rw` creates no file: an empty one must not replace a store that is gone.
                place = f"{self.path.absolute().as_uri()}?mode=rw"
                self._watching = sqlite3.connect(place, timeout=0, isolation_level=None, uri=True)
            return self._watching.execute("PRAGMA data_version").fetchone()
        except sqlite3.Error:
            return None

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
    prepare_state_file(path)
    # A file that exists is not opened here: its closing would end the locks that SQLite holds on it
    # for other connections of this process, and the next one to close would delete their log.
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        problem = 0
    except FileExistsError:
        is_writable = os.access(path, os.R_OK | os.W_OK)
        problem = errno.EISDIR if path.is_dir() else 0 if is_writable else errno.EACCES
    except OSError as error:
        problem = error.errno or errno.EIO
    if problem:
        raise Misconfigured(f"the store {path} cannot be written: {os.strerror(problem)}")


def refuse_damage(path: Path) -> None:
    """Raise Misconfigured if the file is no database, or if SQLite finds damage in it.

    A gateway on a damaged file could only refuse calls, and never say why.
    """
    deadline = time.monotonic() + CHECK_SECONDS
    try:
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
            connection.set_progress_handler(lambda: time.monotonic() > deadline, _CHECK_STEPS)
            first = connection.execute("PRAGMA quick_check(1)").fetchone()
        problem = "" if first == ("ok",) else str(first[0])
    except sqlite3.DatabaseError as error:
        code = error.sqlite_errorcode & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT:
            log.warning("The store %s was searched for damage for %.0f s only", path, CHECK_SECONDS)
        # Every other failure shows again when the store is used, and may end by itself.
        problem = str(error) if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) else ""
    if problem:
        raise Misconfigured(
            f"the store {path.absolute()} is damaged ({' '.join(problem.split())[:200]}); "
            "restore the files of your last `comity db backup`, "
            "or move it away to begin with an empty store"
        )


async def _connect(path: str, **options: Any) -> aiosqlite.Connection:
    """Open a connection. If the caller is cancelled meanwhile, close it as soon as it is open.

    The driver alone would leave such a connection open.
    """
    connection: Any = aiosqlite.connect(path, **options)
    # SQLAlchemy does the same: no connection keeps a process alive that ends.
    getattr(connection, "_thread", connection).daemon = True
    opening: asyncio.Future[aiosqlite.Connection] = asyncio.ensure_future(connection)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_unwanted)
        raise


def _close_unwanted(opening: asyncio.Future[Any]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().stop()


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    # A reader that becomes a writer may fail with a conflict, so a writer locks at once.
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def back_up(url: str, secret_files: Iterable[Path], folder: Path) -> list[Path]:
    """Copy the store and those secrets that exist into a new folder, and return the copies.

    A gateway may run meanwhile. Raises Misconfigured if the store is no file or something cannot
    be copied.
    """
    if not url.startswith(SCHEME):
        raise Misconfigured("only a SQLite store is copied; for PostgreSQL, use pg_dump")
    store = Path(url.removeprefix(SCHEME))
    if not store.exists():
        raise Misconfigured(f"there is no store at {store}")
    try:
        folder.mkdir(mode=0o700)
    except OSError as problem:
        raise Misconfigured(f"{folder} cannot be created: {problem.strerror}") from None
    # The secrets first. Otherwise the last checkpoint could name an entry that the copy lacks.
    copies = [_copy_secret(file, folder) for file in secret_files if file.exists()]
    return [*copies, _copy_store(store, folder)]


def _copy_secret(file: Path, folder: Path) -> Path:
    copy = folder / file.name
    try:
        write_secret(copy, read_secret(file, "backup") + b"\n")
    except OSError as problem:
        raise Misconfigured(f"{copy} cannot be written: {problem.strerror}") from None
    return copy


def _copy_store(store: Path, folder: Path) -> Path:
    """Copy the database as it is at one moment, by the online backup of SQLite."""
    copy = folder / store.name
    try:
        # An empty file is an empty database, and this one only its owner can read.
        write_secret(copy, b"")
        place = f"{store.absolute().as_uri()}?mode=ro"
        with (
            closing(sqlite3.connect(place, uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
    except (OSError, sqlite3.Error) as problem:
        raise Misconfigured(f"{copy} cannot be written: {problem}") from None
    return copy
