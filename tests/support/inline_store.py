"""The real stores on SQLite, each statement run at once where it is asked for.

No thread takes part and nothing waits, so a test decides in which order things happen, with any
event loop and any clock. Each store is a copy of one migrated file, which goes when it does.
"""

import asyncio
import atexit
import shutil
import sqlite3
import tempfile
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import aiosqlite
from sqlalchemy import event

from comity.app.records import RecordStores
from comity.audit.chain_writer import SqliteChain
from comity.audit.store import SqlAuditLog
from comity.storage import stores
from comity.storage.changes import RecordKind
from comity.storage.database import SqlDatabase
from comity.storage.sqlite import BUSY_SECONDS, SqliteBackend

type Told = Callable[[RecordKind, Iterable[str]], None]


@cache
def folder_of_stores() -> Path:
    """Where the stores of this process are: in memory, where the machine has such a folder."""
    shared = Path("/dev/shm")  # a folder of our own is made in it
    made = tempfile.mkdtemp(prefix="comity-stores-", dir=shared if shared.is_dir() else None)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


@cache
def migrated_file() -> Path:
    """An empty store with the newest schema, to be copied."""
    path = folder_of_stores() / "migrated.db"
    with ThreadPoolExecutor(1) as apart:  # a loop may be running in this thread
        apart.submit(asyncio.run, stores.upgrade_store(f"sqlite:///{path}")).result()
    return path


class _OpenFiles:
    """Connections that are closed at the latest when their owner is gone.

    Who makes a store for a test need not close it, and the collector complains of an open one.
    """

    def __init__(self, owner: object) -> None:
        self._open: set[sqlite3.Connection] = set()
        weakref.finalize(owner, _close_all, self._open)

    def add(self, connection: sqlite3.Connection) -> None:
        self._open.add(connection)

    def close(self, connection: sqlite3.Connection) -> None:
        self._open.discard(connection)
        connection.close()


def _close_all(connections: set[sqlite3.Connection]) -> None:
    for connection in connections:
        connection.close()


class _InlineConnection(aiosqlite.Connection):
    """As aiosqlite's, without its thread."""

    def __init__(self, connector: Callable[[], sqlite3.Connection], files: _OpenFiles) -> None:
        super().__init__(connector, iter_chunk_size=64)
        self._files = files

    def __await__(self) -> Generator[Any, None, aiosqlite.Connection]:
        return self._connected().__await__()

    async def _connected(self) -> aiosqlite.Connection:
        self._connection = self._connector()
        self._files.add(self._connection)
        return self

    async def _execute(self, fn: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return fn(*args, **named)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._files.close(connection)

    def stop(self) -> None:
        """There is no thread."""

    def __del__(self) -> None:
        """Nothing is left behind: the store closes what is open."""


class InlineBackend(SqliteBackend):
    """A copy of the migrated file."""

    synchronous = "OFF"

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=folder_of_stores()))
        super().__init__(folder / "store.db")
        shutil.copy(migrated_file(), self.path)
        self._files = _OpenFiles(self)
        event.listen(self.engine.sync_engine, "do_connect", _inline_connector(self._files))
        event.listen(self.engine.sync_engine, "checkout", _keep)
        event.listen(self.engine.sync_engine, "checkin", _drop)
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    async def read_change_mark(self, job_kinds: Sequence[str]) -> object:
        if self._watching is None:
            # The collector may close it, in any thread.
            self._watching = sqlite3.connect(
                self.path, timeout=0, isolation_level=None, check_same_thread=False
            )
            self._files.add(self._watching)
        return await super().read_change_mark(job_kinds)


_IN_USE: dict[int, object] = {}
"""Connections in use. Where a test ends amid a statement, the collector would complain of one."""


def _keep(_: object, record: object, proxy: object) -> None:
    _IN_USE[id(record)] = proxy


def _drop(_: object, record: object) -> None:
    _IN_USE.pop(id(record), None)


def _inline_connector(files: _OpenFiles) -> Callable[..., None]:
    def connect(path: str, **said: Any) -> aiosqlite.Connection:
        said["check_same_thread"] = False
        return _InlineConnection(lambda: sqlite3.connect(path, **said), files)

    def choose(_: object, __: object, ___: object, named: dict[str, Any]) -> None:
        named["async_creator_fn"] = connect

    return choose


class InlineChain(SqliteChain):
    """The writer of the audit log, without its thread."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__(path, timeout)
        self._files = _OpenFiles(self)

    async def close(self) -> None:
        await super().close()
        self._close()

    async def _run[T](self, seconds: float, work: Callable[[], T]) -> T:
        return work()

    def _connect(self) -> sqlite3.Connection:
        connection = super()._connect()
        self._files.add(connection)
        return connection


class _ChangesTold(asyncio.Event):
    """Tells of each change when it is written."""

    def __init__(self, path: Path, told: Told) -> None:
        super().__init__()
        self._path = path
        self._told = told
        self._version = 1

    def set(self) -> None:
        super().set()
        changes = "SELECT version, what, whose FROM comity_changes WHERE version > ?"
        with closing(sqlite3.connect(self._path)) as reader:
            rows = reader.execute(f"{changes} ORDER BY version", (self._version,)).fetchall()
        for version, what, whose in rows:
            self._version = version
            self._told(RecordKind(what), [whose])


def inline_parts() -> tuple[SqlDatabase, InlineBackend]:
    """What a store is made of, for one that a test derives."""
    product = InlineBackend()
    return SqlDatabase(product, lambda: None), product


def inline_records(told: Told | None = None) -> RecordStores:
    product = InlineBackend()
    return RecordStores(product, InlineChain(product.path, BUSY_SECONDS), _stir(product, told))


def inline_journal() -> SqlAuditLog:
    return inline_records().audit_log


def _stir(product: SqliteBackend, told: Told | None) -> asyncio.Event:
    return asyncio.Event() if told is None else _ChangesTold(product.path, told)
