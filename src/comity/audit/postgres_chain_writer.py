"""Writes the hash chain in PostgreSQL, under an advisory lock of the writing connection.

Rule 1: a process that loses the connection loses the lock, and cannot write after that.
Rule 2: a connection in an unknown state is given up. Before the chain is opened again, the server
        terminates that connection, so that no batch is written that counts as lost.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs]  # it has none

from comity.audit import chain
from comity.audit.chain import AuditRecord, ChainHead
from comity.audit.chain_writer import (
    COLUMNS,
    DOUBTFUL,
    HEADS,
    LOOKED_BACK,
    PATIENT_SECONDS,
    TABLE,
    chain_names,
    furthest_head,
    is_beside,
    went_on,
)
from comity.errors import Unavailable
from comity.storage import values
from comity.storage.database import to_unavailable
from comity.storage.postgres import FAILURES

MAX_ROW_INSERTS: Final = 10
"""Below this number, statements cost less than a COPY, which has one more round trip."""

INSERT: Final = f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({
    ', '.join(f'${each}' for each in range(1, len(COLUMNS) + 1))
})"  # noqa: S608 - our own names, no words of anybody else
LOCK: Final = "SELECT pg_try_advisory_lock($1)"
UNLOCK_ONE: Final = "SELECT pg_advisory_unlock($1)"
UNLOCK: Final = "SELECT pg_advisory_unlock_all()"
BACKEND_QUERY: Final = (
    "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
)
END: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2"
)
ENDING_SECONDS: Final = 2.0
LOOKED_EVERY_SECONDS: Final = 0.05

type Connect = Callable[[], Awaitable[Any]]


class PostgresChain:
    """A chain in PostgreSQL, and the connection that holds its lock."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: Any = None
        self._insert: Any = None
        self._node = ""
        self._seq = 0
        self._reported_intents: set[str] = set()
        # The server's identity of our connection; then that of the connection that was given up
        # last, and the chain that it held.
        self._own_backend: tuple[Any, ...] | None = None
        self._lost_backend: tuple[Any, ...] | None = None
        self._former = ""

    async def open(self, node: str) -> ChainHead:
        values.check_name(node, "a node")
        try:
            connection = self._connection or await self._reach()
            held = await self._claim_chain(node)
            heads = [await connection.fetchrow(each, held) for each in HEADS]
            doubtful = [] if held in self._reported_intents else await self._doubtful(held, 0)
            doubtful += (
                [] if held in self._reported_intents else await self._find_abandoned(node, held)
            )
        except BaseException as error:
            self._terminate()
            if isinstance(error, FAILURES):
                raise to_unavailable(error) from None
            raise
        self._node, (self._seq, linked) = held, furthest_head(heads)
        self._reported_intents.add(held)
        return ChainHead(held, self._seq, linked, tuple(doubtful))

    async def append(self, records: Sequence[AuditRecord]) -> None:
        if not records:
            return
        if self._connection is None or not chain.is_next_in_chain(records, self._node, self._seq):
            raise went_on()
        rows = list(map(chain.to_stored_record, records))
        try:
            if len(rows) < MAX_ROW_INSERTS:
                await self._insert.executemany(rows)
            else:
                await self._connection.copy_records_to_table(TABLE, records=rows, columns=COLUMNS)
        except asyncpg.UniqueViolationError:
            self._terminate()
            raise went_on() from None
        except BaseException as error:
            # Also if the caller was cancelled: the batch may be written, or not.
            self._terminate()
            if isinstance(error, FAILURES):
                raise to_unavailable(error) from None
            raise
        self._seq = records[-1].seq

    async def flush(self) -> None:
        """Do nothing: every batch is written at once."""

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        self._node = self._former = ""
        self._reported_intents.clear()
        if connection is None:
            return
        try:
            # The server may notice the end of a connection only after a while.
            with suppress(*FAILURES):
                await connection.fetchval(UNLOCK)
        finally:
            connection.terminate()

    async def _reach(self) -> Any:
        connection = self._connection = await self._connect()
        await connection.execute("SET synchronous_commit = on")
        self._own_backend = tuple(await connection.fetchrow(BACKEND_QUERY))
        self._insert = await connection.prepare(INSERT)
        return connection

    async def _claim_chain(self, node: str) -> str:
        if is_beside(self._node, node):
            return self._node
        await self._connection.fetchval(UNLOCK)
        if is_beside(self._former, node) and await self._take_back():
            return self._former
        for name in chain_names(node):
            if await self._locks(name):
                return name
        raise Unavailable(f"every chain of {node} is held by others")

    async def _take_back(self) -> bool:
        """Take the chain that was ours. Our last connection may still hold it."""
        if await self._locks(self._former):
            return True
        if self._lost_backend is None or not await self._connection.fetchval(
            END, *self._lost_backend
        ):
            return False
        deadline = asyncio.get_running_loop().time() + ENDING_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            if await self._locks(self._former):
                return True
            await asyncio.sleep(LOOKED_EVERY_SECONDS)
        return False

    async def _locks(self, name: str) -> bool:
        return await self._connection.fetchval(LOCK, _key(name))

    async def _find_abandoned(self, node: str, held: str) -> list[bytes]:
        """Doubtful intents of chains beside ours that no process holds: it may never return."""
        doubtful: list[bytes] = []
        for name in chain_names(node):
            last = await self._connection.fetchrow(HEADS[0], name)
            if last is None and name not in (node, held):
                break
            if (
                last is None
                or name in {held, *self._reported_intents}
                or not await self._locks(name)
            ):
                continue
            doubtful += await self._doubtful(name, last[0] - LOOKED_BACK)
            await self._connection.fetchval(UNLOCK_ONE, _key(name))
        return doubtful

    async def _doubtful(self, name: str, after: int) -> list[bytes]:
        rows = await self._connection.fetch(DOUBTFUL, name, after, timeout=PATIENT_SECONDS)
        return [row[0] for row in rows]

    def _terminate(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        if self._own_backend is not None:
            self._lost_backend, self._own_backend = self._own_backend, None
        self._former, self._node = self._node or self._former, ""
        self._connection = self._insert = None


def _key(name: str) -> int:
    digest = hashlib.sha256(f"comity journal {name}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)
