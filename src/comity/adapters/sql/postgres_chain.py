"""A chain in PostgreSQL: held by a lock of the very connection that writes it.

Rule 1: who loses the connection has lost the lock, and cannot have written after that.
Rule 2: a connection of which nothing is known is given up. Whoever opens the chain again first has
        the server end what is left of it, so that no batch is written that was taken for lost.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs]  # it has none

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

FAILURES: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # as when a COPY is begun while the connection is being lost
    OSError,
    TimeoutError,
)
FEW: Final = 10
"""Below so many, statements cost less than a COPY, which has a round trip more."""

INSERT: Final = f"INSERT INTO {TABLE} ({', '.join(COLUMNS)}) VALUES ({
    ', '.join(f'${each}' for each in range(1, len(COLUMNS) + 1))
})"  # noqa: S608 - our own names, no words of anybody else
LOCK: Final = "SELECT pg_try_advisory_lock($1)"
UNLOCK_ONE: Final = "SELECT pg_advisory_unlock($1)"
UNLOCK: Final = "SELECT pg_advisory_unlock_all()"
WHO: Final = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
END: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1 AND backend_start = $2"
)
ENDING_SECONDS: Final = 2.0
LOOKED_EVERY_SECONDS: Final = 0.05

type Connect = Callable[[], Awaitable[Any]]


class PostgresChain:
    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._connection: Any = None
        self._insert: Any = None
        self._node = ""
        self._seq = 0
        self._told: set[str] = set()
        # Whom the server takes us for; and the same of the connection that was given up last, with
        # the chain that it held.
        self._own: tuple[Any, ...] | None = None
        self._left: tuple[Any, ...] | None = None
        self._former = ""

    async def open(self, node: str) -> Head:
        keeping.name(node, "a node")
        try:
            connection = self._connection or await self._reach()
            held = await self._take(node)
            heads = [await connection.fetchrow(each, held) for each in HEADS]
            doubtful = [] if held in self._told else await self._doubtful(held, 0)
            doubtful += [] if held in self._told else await self._abandoned(node, held)
        except BaseException as error:
            self._give_up()
            if isinstance(error, FAILURES):
                raise unanswered(error) from None
            raise
        self._node, (self._seq, linked) = held, furthest(heads)
        self._told.add(held)
        return Head(held, self._seq, linked, tuple(doubtful))

    async def append(self, lines: Sequence[Line]) -> None:
        if not lines:
            return
        if self._connection is None or not chain.follow(lines, self._node, self._seq):
            raise went_on()
        rows = list(map(chain.kept, lines))
        try:
            if len(rows) < FEW:
                await self._insert.executemany(rows)
            else:
                await self._connection.copy_records_to_table(TABLE, records=rows, columns=COLUMNS)
        except asyncpg.UniqueViolationError:
            self._give_up()
            raise went_on() from None
        except BaseException as error:
            # Also where nobody waits for it any more: it may have been written, or not.
            self._give_up()
            if isinstance(error, FAILURES):
                raise unanswered(error) from None
            raise
        self._seq = lines[-1].seq

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        self._node = self._former = ""
        self._told.clear()
        if connection is None:
            return
        try:
            # The server may take a while to see that a connection has ended.
            with suppress(*FAILURES):
                await connection.fetchval(UNLOCK)
        finally:
            connection.terminate()

    async def _reach(self) -> Any:
        connection = self._connection = await self._connect()
        await connection.execute("SET synchronous_commit = on")
        self._own = tuple(await connection.fetchrow(WHO))
        self._insert = await connection.prepare(INSERT)
        return connection

    async def _take(self, node: str) -> str:
        if is_beside(self._node, node):
            return self._node
        await self._connection.fetchval(UNLOCK)
        if is_beside(self._former, node) and await self._take_back():
            return self._former
        for name in beside(node):
            if await self._locks(name):
                return name
        raise Unavailable(f"every chain of {node} is held by others")

    async def _take_back(self) -> bool:
        """The chain that was ours: whoever holds it now may be what is left of ourselves."""
        if await self._locks(self._former):
            return True
        if self._left is None or not await self._connection.fetchval(END, *self._left):
            return False
        deadline = asyncio.get_running_loop().time() + ENDING_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            if await self._locks(self._former):
                return True
            await asyncio.sleep(LOOKED_EVERY_SECONDS)
        return False

    async def _locks(self, name: str) -> bool:
        return await self._connection.fetchval(LOCK, _key(name))

    async def _abandoned(self, node: str, held: str) -> list[bytes]:
        """Doubtful of chains beside ours that nobody holds: who wrote them may never come back."""
        doubtful: list[bytes] = []
        for name in beside(node):
            last = await self._connection.fetchrow(HEADS[0], name)
            if last is None and name not in (node, held):
                break
            if last is None or name in {held, *self._told} or not await self._locks(name):
                continue
            doubtful += await self._doubtful(name, last[0] - LOOKED_BACK)
            await self._connection.fetchval(UNLOCK_ONE, _key(name))
        return doubtful

    async def _doubtful(self, name: str, after: int) -> list[bytes]:
        rows = await self._connection.fetch(DOUBTFUL, name, after, timeout=PATIENT_SECONDS)
        return [row[0] for row in rows]

    def _give_up(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        if self._own is not None:
            self._left, self._own = self._own, None
        self._former, self._node = self._node or self._former, ""
        self._connection = self._insert = None


def _key(name: str) -> int:
    digest = hashlib.sha256(f"comity journal {name}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)
