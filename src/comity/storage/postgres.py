"""PostgreSQL: one store for many nodes, with notifications of changes.

asyncpg gets the URL unchanged, so that it supports the same options as libpq: sslmode, a socket,
several hosts, a password file.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, Protocol, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]  # it has none
from sqlalchemy import ColumnElement, Double, Table, extract, func
from sqlalchemy import cast as cast_type
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from comity.errors import Misconfigured, Unavailable
from comity.storage.database import CHANNEL, to_unavailable
from comity.toolkit.background import draw_delay
from comity.toolkit.resilience import RetrySchedule

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 5.0
AGAIN: Final = RetrySchedule(timedelta(milliseconds=100), timedelta(seconds=2))

UNREADABLE: Final = (
    "the url of the store cannot be read; write postgresql://user:password@host:5432/database"
)
CHANGE_MARK: Final = """
SELECT version, ARRAY(
    SELECT (SELECT min(due_at) FROM comity_jobs WHERE state = 'waiting' AND kind = each)
    FROM unnest($1::text[]) AS each
) FROM comity_version
"""
REFUSALS: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)


FAILURES: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # raised when COPY begins while the connection is lost
    OSError,
    TimeoutError,
)


class AsyncpgConnection(Protocol):
    """The part of asyncpg's connection that Comity uses. asyncpg has no type hints."""

    def add_termination_listener(self, callback: Callable[[object], None]) -> None: ...
    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...
    async def fetchrow(self, query: str, *values: object) -> Sequence[Any] | None: ...
    def terminate(self) -> None: ...


class PostgresBackend:
    """A pool of connections for queries, and one connection that listens for changes."""

    tells = True

    def __init__(self, url: str, wake: Callable[[], None], timeout: float | None) -> None:
        self._url = url
        self._timeout = timeout
        self._wake = wake
        self._listen_task: asyncio.Task[None] | None = None
        self._listening: AsyncpgConnection | None = None
        self.engine: AsyncEngine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self.connect,
            pool_size=3,
            max_overflow=5,
            pool_timeout=PATIENCE_SECONDS,
            pool_pre_ping=True,
        )

    def insert(self, table: Table) -> Any:
        return insert(table)

    def clock(self) -> ColumnElement[float]:
        return cast_type(extract("epoch", func.statement_timestamp()), Double)

    def prepare(self) -> None:
        """Do nothing. The administrator of the server creates its databases."""

    async def open(self) -> None:
        if self._listen_task is None:
            self._listen_task = asyncio.ensure_future(self._listen())

    async def close(self) -> None:
        if self._listen_task is not None:
            self._listen_task.cancel()
            await asyncio.gather(self._listen_task, return_exceptions=True)
        await self.engine.dispose()

    async def connect(self) -> AsyncpgConnection:
        try:
            made: Any = await cast("Any", asyncpg).connect(
                self._url,
                timeout=PATIENCE_SECONDS,
                command_timeout=self._timeout,
                # Overrides the setting of the database: a consumed approval must survive a crash.
                server_settings={"application_name": "comity", "synchronous_commit": "on"},
            )
            return cast("AsyncpgConnection", made)
        except (ValueError, asyncpg.ClientConfigurationError):
            # Comity's own message, because the message of asyncpg may quote the password.
            raise Misconfigured(UNREADABLE) from None
        except REFUSALS as error:
            raise Misconfigured(f"the store refuses to be used: {error}") from None
        except FAILURES as error:
            raise to_unavailable(error) from None

    async def _listen(self) -> None:
        """Listen for changes, and reconnect after a failure."""
        failures = 0
        while True:
            try:
                await self._listen_once()
                failures = 0
            except (Unavailable, Misconfigured, *FAILURES):
                failures += 1  # readers of the records report the failure
            except Exception:
                failures += 1
                log.exception("Listening for changes of the store failed")
            await asyncio.sleep(draw_delay(AGAIN, failures).total_seconds())

    def _on_notification(self, *_: object) -> None:
        self._wake()

    async def _listen_once(self) -> None:
        """Listen until the connection ends. First, trigger a read of the changes missed before."""
        connection = await self.connect()
        ended = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: ended.set())
            await connection.add_listener(CHANNEL, self._on_notification)
            self._listening = connection
            self._wake()
            await ended.wait()
        finally:
            self._listening = None
            connection.terminate()

    async def read_change_mark(self, job_kinds: Sequence[str]) -> object:
        """Read the version and the due times on the listening connection.

        This also finds out that the connection is dead, which may never report its end.
        """
        connection = self._listening
        if connection is None:
            return None
        try:
            found = await connection.fetchrow(CHANGE_MARK, job_kinds)
        except FAILURES:
            connection.terminate()
            return None
        return None if found is None else tuple(found)


def product(url: str) -> PostgresBackend:
    """Return a backend without listener, for maintenance work."""
    return PostgresBackend(url, lambda: None, None)
