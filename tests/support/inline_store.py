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
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
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


class _InlineConnection(aiosqlite.Connection):
    """As aiosqlite's, without its thread."""

    def __await__(self) -> Generator[Any, None, aiosqlite.Connection]:
        return self._connected().__await__()

    async def _connected(self) -> aiosqlite.Connection:
        self._connection = self._connector()
        return self

    async def _execute(self, fn: Callable[..., Any], *args: Any, **named: Any) -> Any:
        return fn(*args, **named)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def stop(self) -> None:
        """There is no thread."""

    def __del__(self) -> None:
        """Nothing is left behind: who makes a store for a test need not close it."""


class InlineBackend(SqliteBackend):
    """A copy of the migrated file."""

    synchronous = "OFF"

    def __init__(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=folder_of_stores()))
        super().__init__(folder / "store.db")
        shutil.copy(migrated_file(), self.path)
        event.listen(self.engine.sync_engine, "do_connect", _connect_inline)
        event.listen(self.engine.sync_engine, "checkout", _keep)
        event.listen(self.engine.sync_engine, "checkin", _drop)
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)


_IN_USE: dict[int, object] = {}
"""Connections in use. Where a test ends amid a statement, the collector would complain of one."""


def _keep(_: object, record: object, proxy: object) -> None:
    _IN_USE[id(record)] = proxy


def _drop(_: object, record: object) -> None:
    _IN_USE.pop(id(record), None)


def _connect_inline(_: object, __: object, ___: object, named: dict[str, Any]) -> None:
    def connect(path: str, **said: Any) -> aiosqlite.Connection:
        said["check_same_thread"] = False
        return _InlineConnection(lambda: sqlite3.connect(path, **said), iter_chunk_size=64)

    named["async_creator_fn"] = connect


class InlineChain(SqliteChain):
    """The writer of the audit log, without its thread."""

    async def _run[T](self, seconds: float, work: Callable[[], T]) -> T:
        return work()


class _ChangesTold(asyncio.Event):
    """Tells of each change when it is written."""

    def __init__(self, path: Path, told: Told) -> None:
        super().__init__()
        self._path = path
        self._told = told
        self._version = 1

    def set(self) -> None:
        super().set()
        reader = sqlite3.connect(self._path)
        changes = "SELECT version, what, whose FROM comity_changes WHERE version > ?"
        rows = reader.execute(f"{changes} ORDER BY version", (self._version,)).fetchall()
        reader.close()
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
