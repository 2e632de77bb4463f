"""A chain in SQLite: a connection that waits for the disk, in a thread, and a locked file.

What it returned for survives a loss of power: its commits are FULL, the records' own are not.
"""

import asyncio
import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from itertools import batched
from pathlib import Path
from typing import Any, Final

from comity.adapters.sql.chain import (
    COLUMNS,
    DOUBTFUL,
    HEADS,
    LOOKED_BACK,
    PATIENT_SECONDS,
    TABLE,
    beside,
    furthest,
    is_beside,
    went_on,
)
from comity.adapters.sql.database import unanswered
from comity.ports.journaling import Head
from comity.rules import chain, keeping
from comity.wire.errors import Unavailable
from comity.wire.journal import Line

FAILURES: Final = (sqlite3.Error, OSError, TimeoutError)
INSERT: Final = f"INSERT INTO {TABLE} VALUES "  # noqa: S608  # names of our own
ROW: Final = f"({', '.join('?' * len(COLUMNS))})"
AT_ONCE: Final = 500
"""Rows in one statement. With one row each, this thread gives the interpreter away at every row,
and waits for a busy loop to give it back: thousands of entries then took seconds."""

BEYOND_BUSY: Final = 2.0
"""How much longer than for a lock is waited for an answer: a disk may hang without a word."""

type Row = tuple[object, ...]


class SqliteChain:
    def __init__(self, path: Path, patience: float) -> None:
        self._path = path
        self._patience = patience
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._node = ""
        self._seq: int | None = None
        self._told: set[str] = set()

    async def open(self, node: str) -> Head:
        keeping.name(node, "a node")
        self._seq = None
        head = await self._run(PATIENT_SECONDS, lambda: self._open(node))
        self._node, self._seq = head.node, head.seq
        self._told.add(head.node)
        return head

    async def append(self, lines: Sequence[Line]) -> None:
        if not lines:
            return
        if self._seq is None or not chain.follow(lines, self._node, self._seq):
            raise went_on()
        self._seq = None
        try:
            await self._run(self._patience * BEYOND_BUSY, lambda: self._write(lines))
        except sqlite3.IntegrityError:
            raise went_on() from None
        self._seq = lines[-1].seq

    async def close(self) -> None:
        thread, self._thread, self._seq = self._thread, None, None
        self._told.clear()
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown(wait=False)

    async def _run[T](self, seconds: float, work: Callable[[], T]) -> T:
        """One thing after the other: whoever opens it again sees what became of the last batch."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="comity-journal")
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.IntegrityError:
            raise
        except FAILURES as error:
            raise unanswered(error) from None

    def _open(self, node: str) -> Head:
        if self._connection is None:
            self._connection = connect(self._path, self._patience)
        if self._lock is None or not is_beside(self._node, node):
            self._node = self._take(node)
        held = self._node
        seq, linked = furthest(head for each in HEADS for head in self._ask(each, held))
        if held in self._told:
            return Head(held, seq, linked)
        return Head(held, seq, linked, (*self._doubtful(held, 0), *self._abandoned(node, held)))

    def _ask(self, statement: str, node: str, after: int = 0) -> list[tuple[Any, ...]]:
        assert self._connection is not None
        return self._connection.execute(statement, {"1": node, "2": after}).fetchall()

    def _doubtful(self, name: str, after: int) -> list[bytes]:
        return [row[0] for row in self._ask(DOUBTFUL, name, after)]

    def _abandoned(self, node: str, held: str) -> Iterator[bytes]:
        """Doubtful of chains beside ours that nobody holds: who wrote them may never come back."""
        for name in beside(node):
            last = self._ask(HEADS[0], name)
            if not last and name not in (node, held):
                break
            if not last or name in {held, *self._told} or (lock := self._locked(name)) is None:
                continue
            try:
                yield from self._doubtful(name, last[0][0] - LOOKED_BACK)
            finally:
                os.close(lock)

    def _take(self, node: str) -> str:
        self._release()
        for name in beside(node):
            self._lock = self._locked(name)
            if self._lock is not None:
                return name
        raise Unavailable(f"every chain of {node} is held by others")

    def _locked(self, name: str) -> int | None:
        """Never waits: a file that somebody has locked is left for one beside it."""
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        lock = os.open(f"{self._path}.{digest}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return lock

    def _write(self, lines: Sequence[Line]) -> None:
        connection = self._connection
        if connection is None:
            raise went_on()
        rows = [_row(chain.kept(line)) for line in lines]
        try:
            connection.execute("BEGIN IMMEDIATE")
            for some in batched(rows, AT_ONCE):
                values = ", ".join([ROW] * len(some))
                connection.execute(INSERT + values, [each for row in some for each in row])
            connection.execute("COMMIT")
        except BaseException:
            # With it goes what it had begun, and whatever was wrong with it.
            self._disconnect()
            raise

    def _close(self) -> None:
        self._disconnect()
        self._release()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def connect(path: Path, patience: float) -> sqlite3.Connection:
    # Not made where there is none: then the store has gone, and an empty one is not the same.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=patience,
        isolation_level=None,
        # Always in one thread; but whoever ends the process may end it in another.
        check_same_thread=False,
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _row(line: Line) -> Row:
    """A time as SQLAlchemy writes it, so that both read it: in UTC, without saying so."""
    at = line.at.astimezone(UTC).isoformat(" ", "microseconds")[:26]
    return (line.node, line.seq, at, *line[3:])
