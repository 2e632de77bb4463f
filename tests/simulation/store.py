"""The shared SQLite file as several processes see it: without threads, slow, and failing.

Each statement waits a moment of virtual time, may fail before it has run, and a commit may also
fail after it: the writer cannot know then whether it is durable. Where another connection holds
the lock of the file, the statement waits for it in virtual time, as SQLite does in real time.
"""

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final, override

import aiosqlite

from comity.app import records
from comity.audit.chain import AuditRecord
from comity.audit.chain_writer import FAILURES, SqliteChain
from comity.storage import sqlite
from comity.storage.database import to_unavailable
from tests.simulation.loop import NODE, SimulationLoop
from tests.simulation.replacing import replace_member

_real_connect = sqlite3.connect
_LOCK_RETRY_SECONDS: Final = 0.01
_BUSY_SECONDS: Final = 5.0


@dataclass
class SimulatedDisk:
    """How the file behaves now, and which connections and locks each node has open."""

    loop: SimulationLoop
    path: Path
    random: Random
    on_committed: Callable[[Sequence[AuditRecord]], None]
    usual_pause: float = 0.0015
    pause: float = 0.0015
    failure_rate: float = 0.0
    connections: dict[str, list[sqlite3.Connection]] = field(
        default_factory=lambda: defaultdict[str, list[sqlite3.Connection]](list)
    )
    chains: dict[str, list["SimulatedChain"]] = field(
        default_factory=lambda: defaultdict[str, list["SimulatedChain"]](list)
    )

    def kill(self, node: str) -> None:
        """Close what a dead process had open. What it had not committed is gone."""
        for chain in self.chains.pop(node, ()):
            chain.release_lock()
        for connection in self.connections.pop(node, ()):
            with suppress(sqlite3.Error):
                connection.close()

    def close(self) -> None:
        for node in [*self.connections]:
            self.kill(node)

    async def run[T](
        self, work: Callable[[], T], *, is_commit: bool, name: str, needs_lock: bool = False
    ) -> T:
        await asyncio.sleep(self.random.expovariate(1 / self.pause))
        if self._fails():
            self.loop.note(f"{NODE.get()} {name} failed before")
            raise sqlite3.OperationalError("disk I/O error")
        if needs_lock:
            await self._wait_for_write_lock()
        result = await self._run_unlocked(work)
        if is_commit:
            await asyncio.sleep(self.random.expovariate(1 / self.pause))
            if self._fails():
                self.loop.note(f"{NODE.get()} {name} failed after")
                raise sqlite3.OperationalError("disk I/O error")
        return result

    def _fails(self) -> bool:
        # A store that fails before a gateway runs at all is another subject.
        return self.failure_rate > 0 and self.random.random() < self.failure_rate

    async def _run_unlocked[T](self, work: Callable[[], T]) -> T:
        until = self.loop.time() + _BUSY_SECONDS
        while True:
            try:
                return work()
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or self.loop.time() > until:
                    raise
            await asyncio.sleep(_LOCK_RETRY_SECONDS * (0.5 + self.random.random()))

    async def _wait_for_write_lock(self) -> None:
        """Wait until a transaction that writes could begin."""
        probe = _real_connect(self.path, timeout=0, isolation_level=None)
        try:
            with suppress(sqlite3.OperationalError):
                await self._run_unlocked(lambda: probe.execute("BEGIN IMMEDIATE"))
        finally:
            probe.close()


class _Present:
    """The disk of the world that this process simulates."""

    disk: SimulatedDisk


class _InlineConnection(aiosqlite.Connection):
    """A connection of aiosqlite without its thread."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)

    @override
    def __await__(self) -> Generator[Any, None, aiosqlite.Connection]:
        return self._opened().__await__()

    async def _opened(self) -> aiosqlite.Connection:
        self._connection = self._connector()
        return self

    async def _execute(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        name = getattr(fn, "__name__", "statement")
        # SQLAlchemy begins and commits by statements: the driver starts no transaction by itself.
        is_commit = name == "commit" or (name == "execute" and args[:1] == ("COMMIT",))
        return await _Present.disk.run(lambda: fn(*args, **options), is_commit=is_commit, name=name)

    @override
    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @override
    def stop(self) -> None:
        """There is no thread."""

    def __del__(self) -> None:
        """The disk closes what a node leaves open."""


class SimulatedChain(SqliteChain):
    """The writer of the audit log, without its thread."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__(path, timeout)
        _Present.disk.chains[NODE.get()].append(self)

    async def _run[T](self, seconds: float, work: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await _Present.disk.run(work, is_commit=True, name="audit", needs_lock=True)
        except sqlite3.IntegrityError:
            raise
        except FAILURES as error:
            raise to_unavailable(error) from None

    @override
    def _write(self, records: Sequence[AuditRecord]) -> None:
        super()._write(records)
        _Present.disk.on_committed(records)

    @override
    async def close(self) -> None:
        await super().close()
        self._close()

    def release_lock(self) -> None:
        """Give up the lock of the file, as the system does for a dead process."""
        self._release()


async def _connect(path: str, **options: Any) -> aiosqlite.Connection:
    options["check_same_thread"] = False
    return await _InlineConnection(lambda: sqlite3.connect(path, **options))


def _tracked_connect(path: Any, *args: Any, **options: Any) -> sqlite3.Connection:
    # A wait inside of SQLite would stop the whole world.
    options["timeout"] = 0
    connection = _real_connect(path, *args, **options)
    _Present.disk.connections[NODE.get()].append(connection)
    return connection


def install(disk: SimulatedDisk) -> None:
    """Let every store of this process use this disk."""
    _Present.disk = disk
    replace_member(sqlite, "_connect", _connect)
    replace_member(sqlite3, "connect", _tracked_connect)
    replace_member(records, "SqliteChain", SimulatedChain)
    # The power of this machine does not fail in a simulation.
    sqlite.SqliteBackend.synchronous = "OFF"
