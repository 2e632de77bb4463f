"""Writes the hash chain in SQLite, and holds what both databases share."""

import asyncio
import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain as chained
from pathlib import Path
from typing import Any, Final

from comity.audit import chain
from comity.audit.chain import GENESIS, OUTCOMES, AuditRecord, ChainHead
from comity.audit.events import AuditType
from comity.errors import Misconfigured, Unavailable
from comity.storage import values as keeping
from comity.storage.database import to_unavailable
from comity.toolkit.text import format_sql_timestamp

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
  SELECT seq FROM {TABLE} WHERE node = $1 AND type = '{AuditType.AUDIT_LOG_OPENED}'
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
    return Misconfigured("another process wrote to the audit log; the chain must be reopened")


FAILURES: Final = (sqlite3.Error, OSError, TimeoutError)
INSERT: Final = f"INSERT OR ROLLBACK INTO {TABLE} VALUES "  # noqa: S608  # names of our own
"""`OR ROLLBACK` saves a quarter of the cost. Without it, SQLite journals each page before a
statement changes it, so that the transaction can go on after a failed statement."""

ROW: Final = f"({', '.join('?' * len(COLUMNS))})"
OLDEST: Final = f"""
SELECT coalesce((SELECT min(seq) FROM {TABLE} WHERE node = $1),
  (SELECT max(last) + 1 FROM comity_audit_segments WHERE node = $1), 1)
"""  # noqa: S608  # our name
REMOVE: Final = f"DELETE FROM {TABLE} WHERE node = ? AND seq <= ?"  # noqa: S608  # our name
SEAL: Final = "INSERT INTO comity_audit_segments VALUES (?, ?, ?, ?, ?, ?)"
LENGTHEN: Final = (
    "UPDATE comity_audit_segments SET last = ?, hash = ?, sealed_at = ? WHERE node = ? AND last = ?"
)
_INSERTS: Final = tuple((count, INSERT + ", ".join([ROW] * count)) for count in (64, 8, 1))
"""Statements for so many rows. With one row each, this thread gives the interpreter to a busy event
loop at every row, and thousands of entries took seconds. With any number, SQLite would have to
compile a statement for each batch."""

BEYOND_BUSY: Final = 2.0
"""How much longer than the lock timeout an answer may take: a disk may hang."""

type Row = tuple[object, ...]


class SqliteChain:
    """One node's chain in a SQLite file.

    `remembered` is for a file that ends with the process: how many entries stay at least; up to as
    many more may. They stay in memory until the log is read, so most are never written.
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
        # The entries that are remembered, the last one before them, and the last one in the file.
        self._entries: list[AuditRecord] = []
        self._forgotten: AuditRecord | None = None
        self._written_seq = 0
        self._flushing = asyncio.Lock()

    async def open(self, node: str) -> ChainHead:
        keeping.check_name(node, "a node")
        await self.flush()
        self._seq = None
        head = await self._run(PATIENT_SECONDS, lambda: self._open(node))
        self._node, self._seq, self._written_seq = head.node, head.seq, head.seq
        self._reported_intents.add(head.node)
        return head

    async def append(self, records: Sequence[AuditRecord]) -> None:
        if not records:
            return
        if self._seq is None or not chain.is_next_in_chain(records, self._node, self._seq):
            raise went_on()
        if self._remembered is not None:
            self._remember(records, self._remembered)
            return
        self._seq = None
        try:
            await self._run(self._timeout * BEYOND_BUSY, lambda: self._write(records))
        except sqlite3.IntegrityError:
            raise went_on() from None
        self._seq = records[-1].seq

    def _remember(self, records: Sequence[AuditRecord], remembered: int) -> None:
        self._entries += records
        self._seq = records[-1].seq
        gone = len(self._entries) - remembered
        if gone > remembered:
            self._forgotten = self._entries[gone - 1]
            del self._entries[:gone]

    async def flush(self) -> None:
        """Write the entries that are only in memory."""
        async with self._flushing:
            records = [each for each in self._entries if each.seq > self._written_seq]
            if records:
                work = partial(self._write_remembered, records, self._forgotten)
                await self._run(self._timeout * BEYOND_BUSY, work)
                self._written_seq = records[-1].seq

    async def close(self) -> None:
        await self.flush()
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
        self._connect()
        if self._lock is None or not is_beside(self._node, node):
            self._node = self._claim_chain(node)
        held = self._node
        seq, linked = furthest_head(head for each in HEADS for head in self._execute(each, held))
        if held in self._reported_intents:
            return ChainHead(held, seq, linked)
        return ChainHead(
            held, seq, linked, (*self._doubtful(held, 0), *self._find_abandoned(node, held))
        )

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_chain_file(self._path, self._timeout)
            if not self._is_durable:
                self._connection.execute("PRAGMA synchronous = OFF")
        return self._connection

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
        if self._connection is None:
            raise went_on()
        with self._transaction(self._connection):
            _insert(self._connection, records)

    def _write_remembered(
        self, records: Sequence[AuditRecord], forgotten: AuditRecord | None
    ) -> None:
        connection = self._connect()
        with self._transaction(connection):
            if forgotten is not None:
                _forget_entries(connection, forgotten)
            _insert(connection, records)

    @contextmanager
    def _transaction(self, connection: sqlite3.Connection) -> Generator[None]:
        try:
            connection.execute("BEGIN IMMEDIATE")
            yield
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
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _insert(connection: sqlite3.Connection, records: Sequence[AuditRecord]) -> None:
    rows, done = [_row(chain.to_stored_record(each)) for each in records], 0
    for count, statement in _INSERTS:
        while len(rows) - done >= count:
            connection.execute(statement, [*chained.from_iterable(rows[done : done + count])])
            done += count


def _forget_entries(connection: sqlite3.Connection, last: AuditRecord) -> None:
    """Remove the entries up to this one, and put on record which are gone."""
    (oldest,) = connection.execute(OLDEST, {"1": last.node}).fetchone()
    if oldest > last.seq:
        return
    at = format_sql_timestamp(last.at)
    lengthened = connection.execute(LENGTHEN, (last.seq, last.hash, at, last.node, oldest - 1))
    if not lengthened.rowcount:
        connection.execute(SEAL, (last.node, oldest, last.seq, GENESIS, last.hash, at))
    connection.execute(REMOVE, (last.node, last.seq))


def _row(record: AuditRecord) -> Row:
    """A row, with the time in the form that SQLAlchemy uses."""
    return (record[0], record[1], format_sql_timestamp(record[2]), *record[3:])
