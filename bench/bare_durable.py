"""The bare relay with two commits for each call: one before the call leaves, one before the reply.

Events that arrive during a commit are committed together by the next one, as the audit log does.
"""

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import asyncpg as asyncpg_module  # pyright: ignore[reportMissingTypeStubs]  # it has none

from bench import doorstep
from bench.bare import HttpUpstream, StdioUpstream, decode

asyncpg: Any = asyncpg_module
_CREATE = "CREATE TABLE IF NOT EXISTS bench_events (body {blob} NOT NULL)"


class EventStore(Protocol):
    async def commit(self, events: list[bytes]) -> None: ...


class SqliteEvents:
    """A file in WAL mode with `synchronous = FULL`, in a thread of its own."""

    def __init__(self, path: str) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute(_CREATE.format(blob="BLOB"))

    async def commit(self, events: list[bytes]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, events)

    def _commit(self, events: list[bytes]) -> None:
        values = ", ".join(["(?)"] * len(events))
        self._connection.execute(f"INSERT INTO bench_events VALUES {values}", events)  # noqa: S608 - our names


class PostgresEvents:
    """A connection with `synchronous_commit = on`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._insert: Any = None

    async def commit(self, events: list[bytes]) -> None:
        if self._insert is None:
            connection = await asyncpg.connect(self._url)
            await connection.execute("SET synchronous_commit = on")
            await connection.execute(_CREATE.format(blob="BYTEA"))
            self._insert = await connection.prepare("INSERT INTO bench_events VALUES ($1)")
        await self._insert.executemany([(event,) for event in events])


class EventLog:
    """Commits events in groups."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._events: list[bytes] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._committing: asyncio.Task[None] | None = None

    def append(self, event: bytes) -> asyncio.Future[None]:
        """The future is done once the event is durable."""
        waiter = asyncio.get_running_loop().create_future()
        self._events.append(event)
        self._waiters.append(waiter)
        if self._committing is None:
            self._committing = asyncio.ensure_future(self._commit())
        return waiter

    async def _commit(self) -> None:
        while self._events:
            events, self._events = self._events, []
            waiters, self._waiters = self._waiters, []
            await self._store.commit(events)
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        self._committing = None


def application(store: str, target: list[str]) -> Callable[..., Awaitable[None]]:
    upstream = HttpUpstream(target[0]) if "://" in target[0] else StdioUpstream(target)
    log = EventLog(PostgresEvents(store) if "://" in store else SqliteEvents(store))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        event = await receive()
        body = event["body"]
        while event["more_body"]:
            event = await receive()
            body += event["body"]
        await log.append(body)
        status, headers, content = await upstream.relay(decode(body), scope["headers"])
        await log.append(content)
        headers.append((b"content-length", b"%d" % len(content)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return app


if __name__ == "__main__":
    doorstep.run(lambda: application(sys.argv[1], sys.argv[2:]), "bare-durable")
