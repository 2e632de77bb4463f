"""Writes the hash chain in SQLite, and holds what both databases share."""

import asyncio
import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from itertools import batched
from pathlib import Path
from typing import Any, Final

from comity.audit import chain
from comity.audit.chain import GENESIS, OUTCOMES, AuditRecord, ChainHead
from comity.audit.events import AuditType
from comity.errors import Misconfigured, Unavailable
from comity.storage import values as keeping
from comity.storage.database import to_unavailable

TABLE: Final = "comity_audit_entries"
COLUMNS: Final = AuditRecord._fields
PATIENT_SECONDS: Final = 120.0
"""For the first query, which may read all entries of the last run."""

LOOKED_BACK: Final = 200_000
"""How many entries of a neighbouring chain are read: its open intents are near its end."""

_MAX_CHAINS: Final = 1_000

HEADS: Final = (
    f"SELECT seq, hash FROM {TABLE} WHERE node = $1 ORDER BY seq DESC LIMIT 1",  # noqa: S608 - our name
    "SELECT last, hash FROM comity_audit_segments WHERE node = $1 ORDER BY last DESC LIMIT 1",
)
"""The last entry, and the last removed one: a whole chain may be removed."""

DOUBTFUL: Final = f"""
SELECT body FROM {TABLE} AS intent
WHERE node = $1 AND type = '{AuditType.CALL_INTENDED}' AND seq > $2 AND seq > coalesce((
  SELECT seq FROM {TABLE} WHERE node = $1 AND type = '{AuditType.JOURNAL_OPENED}'
  ORDER BY seq DESC LIMIT 1
), 0) AND NOT EXISTS (
  SELECT 1 FROM {TABLE} AS outcome WHERE outcome.call = intent.call AND outcome.call <> ''
  AND outcome.type IN ({", ".join(f"'{each}'" for each in OUTCOMES)})
) ORDER BY seq
"""  # noqa: S608  # it holds only constants


def chain_names(node: str) -> Iterator[str]:
    """The names that a chain of a node may have: its own, and those beside it."""
    yield node
    yield from (f"{node}~{each}" for each in range(2, _MAX_CHAINS))


def is_beside(chain: str, node: str) -> bool:
    return chain == node or chain.startswith(f"{node}~")


def furthest_head(heads: Iterable[Any]) -> tuple[int, bytes]:
    """The number and hash of the last entry of a chain."""
    found = ((int(head[0]), bytes(head[1])) for head in heads if head is not None)
    return max(found, default=(0, GENESIS))


def went_on() -> Misconfigured:
    return Misconfigured("the journal went on without us; its chain has to be opened again")


FAILURES: Final = (sqlite3.Error, OSError, TimeoutError)
INSERT: Final = f"INSERT INTO {TABLE} VALUES "  # noqa: S608  # names of our own
ROW: Final = f"({', '.join('?' * len(COLUMNS))})"
OLDEST: Final = f"SELECT min(seq) FROM {TABLE} WHERE node = ?"  # noqa: S608  # our name
LINK: Final = f"SELECT hash, at FROM {TABLE} WHERE node = ? AND seq = ?"  # noqa: S608  # our name
REMOVE: Final = f"DELETE FROM {TABLE} WHERE node = ? AND seq <= ?"  # noqa: S608  # our name
SEAL: Final = "INSERT INTO comity_audit_segments VALUES (?, ?, ?, ?, ?, ?)"
LENGTHEN: Final = (
    "UPDATE comity_audit_segments SET last = ?, hash = ?, sealed_at = ? WHERE node = ? AND last = ?"
)
AT_ONCE: Final = 500
"""Rows in one statement. With one row each, this thread releases the interpreter at every row and
waits for a busy event loop to release it again: thousands of entries then took seconds."""

BEYOND_BUSY: Final = 2.0
"""How much longer than the lock timeout an answer may take: a disk may hang."""

type Row = tuple[object, ...]


class SqliteChain:
    """One node's chain in a SQLite file; one that only has to remember so many lets go of others.

    `remembered` is how many entries stay at least; up to as many more may.
    """

    def __init__(
        self,
        path: Path,
        timeout: float,
        *,
        is_durable: bool = True,
        remembered: int | None = None,
    ) -> None:
        self._path = path
        self._timeout = timeout
        self._is_durable = is_durable
        self._remembered = remembered
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._node = ""
        self._seq: int | None = None
        self._reported_intents: set[str] = set()

    async def open(self, node: str) -> ChainHead:
        keeping.check_name(node, "a node")
        self._seq = None
        head = await self._run(PATIENT_SECONDS, lambda: self._open(node))
        self._node, self._seq = head.node, head.seq
        self._reported_intents.add(head.node)
        return head

    async def append(self, records: Sequence[AuditRecord]) -> None:
        if not records:
            return
        if self._seq is None or not chain.is_next_in_chain(records, self._node, self._seq):
            raise went_on()
        self._seq = None
        try:
            await self._run(self._timeout * BEYOND_BUSY, lambda: self._write(records))
        except sqlite3.IntegrityError:
            raise went_on() from None
        self._seq = records[-1].seq

    async def close(self) -> None:
        thread, self._thread, self._seq = self._thread, None, None
        self._reported_intents.clear()
        if thread is not None:
            await asyncio.get_running_loop().run_in_executor(thread, self._close)
            thread.shutdown(wait=False)

    async def _run[T](self, seconds: float, work: Callable[[], T]) -> T:
        """Run work in the one thread, so that a new `open` sees the result of the last batch."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="comity-journal")
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.IntegrityError:
            raise
        except FAILURES as error:
            raise to_unavailable(error) from None

    def _open(self, node: str) -> ChainHead:
        if self._connection is None:
            self._connection = open_chain_file(self._path, self._timeout)
            if not self._is_durable:
                self._connection.execute("PRAGMA synchronous = OFF")
        if self._lock is None or not is_beside(self._node, node):
            self._node = self._claim_chain(node)
        held = self._node
        seq, linked = furthest_head(head for each in HEADS for head in self._execute(each, held))
        if held in self._reported_intents:
            return ChainHead(held, seq, linked)
        return ChainHead(
            held, seq, linked, (*self._doubtful(held, 0), *self._find_abandoned(node, held))
        )

    def _execute(self, statement: str, node: str, after: int = 0) -> list[tuple[Any, ...]]:
        assert self._connection is not None
        return self._connection.execute(statement, {"1": node, "2": after}).fetchall()

    def _doubtful(self, name: str, after: int) -> list[bytes]:
        return [row[0] for row in self._execute(DOUBTFUL, name, after)]

    def _find_abandoned(self, node: str, held: str) -> Iterator[bytes]:
        """Doubtful intents of chains beside ours that no process holds: it may never return."""
        for name in chain_names(node):
            last = self._execute(HEADS[0], name)
            if not last and name not in (node, held):
                break
            if (
                not last
                or name in {held, *self._reported_intents}
                or (lock := self._try_lock(name)) is None
            ):
                continue
            try:
                yield from self._doubtful(name, last[0][0] - LOOKED_BACK)
            finally:
                os.close(lock)

    def _claim_chain(self, node: str) -> str:
        self._release()
        for name in chain_names(node):
            self._lock = self._try_lock(name)
            if self._lock is not None:
                return name
        raise Unavailable(f"every chain of {node} is held by others")

    def _try_lock(self, name: str) -> int | None:
        """Lock a chain without waiting; None if another process holds it."""
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

    def _write(self, records: Sequence[AuditRecord]) -> None:
        connection = self._connection
        if connection is None:
            raise went_on()
        rows = [_row(chain.to_stored_record(line)) for line in records]
        try:
            connection.execute("BEGIN IMMEDIATE")
            for some in batched(rows, AT_ONCE):
                values = ", ".join([ROW] * len(some))
                connection.execute(INSERT + values, [each for row in some for each in row])
            if self._remembered is not None:
                _forget_entries(connection, records[-1], self._remembered)
            connection.execute("COMMIT")
        except BaseException:
            # Closing the connection rolls back, and removes whatever was wrong with it.
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


def open_chain_file(path: Path, timeout: float) -> sqlite3.Connection:
    # `mode=rw` creates no file: if the store is gone, an empty one must not replace it.
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=timeout,
        isolation_level=None,
        # One thread uses it; but the end of the process may close it from another.
        check_same_thread=False,
    )
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _forget_entries(connection: sqlite3.Connection, newest: AuditRecord, remembered: int) -> None:
    """Remove the oldest entries of a chain, and put on record which are gone."""
    oldest: int = connection.execute(OLDEST, (newest.node,)).fetchone()[0]
    if newest.seq - oldest < 2 * remembered:
        return
    last = newest.seq - remembered
    linked, at = connection.execute(LINK, (newest.node, last)).fetchone()
    lengthened = connection.execute(LENGTHEN, (last, linked, at, newest.node, oldest - 1))
    if not lengthened.rowcount:
        connection.execute(SEAL, (newest.node, oldest, last, GENESIS, linked, at))
    connection.execute(REMOVE, (newest.node, last))


def _row(record: AuditRecord) -> Row:
    """A row, with the time in the form that SQLAlchemy uses: UTC without a zone."""
    at = record.at if record.at.tzinfo is UTC else record.at.astimezone(UTC)
    return (record.node, record.seq, at.isoformat(" ", "microseconds")[:26], *record[3:])
