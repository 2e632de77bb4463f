"""PostgreSQL: one store for many nodes, which tells each of them when something has changed.

The address goes to asyncpg as it is, so that it may say all that libpq's may: sslmode, a socket,
several hosts, a password file.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from random import random
from typing import Any, Final, Protocol, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]  # it has none
from sqlalchemy import Table
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from comity.adapters.sql.database import CHANNEL, unanswered
from comity.adapters.sql.postgres_chain import FAILURES, PostgresChain
from comity.adapters.sql.records import SqlRecords
from comity.rules.backoff import Backoff
from comity.wire.errors import Misconfigured, Unavailable

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 5.0
PROBED_EVERY_SECONDS: Final = 10.0
AGAIN: Final = Backoff(timedelta(milliseconds=100), timedelta(seconds=2))

UNREADABLE: Final = (
    "the url of the store cannot be read; write postgresql://user:password@host:5432/database"
)
REFUSALS: Final = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InsufficientPrivilegeError,
)


class Connection(Protocol):
    """As much as is used here of asyncpg's, which says nothing of its types."""

    def add_termination_listener(self, callback: Callable[[object], None]) -> None: ...
    async def add_listener(self, channel: str, callback: Callable[..., None]) -> None: ...
    async def execute(self, query: str) -> str: ...
    def terminate(self) -> None: ...


class Postgres:
    """A pool of connections for questions, and one that only listens."""

    tells = True

    def __init__(self, url: str, stir: Callable[[], None], patience: float | None) -> None:
        self._url = url
        self._patience = patience
        self._stir = stir
        self._listening: asyncio.Task[None] | None = None
        self.chain = PostgresChain(self._connect)
        self.engine: AsyncEngine = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=self._connect,
            pool_size=3,
            max_overflow=5,
            pool_timeout=PATIENCE_SECONDS,
            pool_pre_ping=True,
        )

    def insert(self, table: Table) -> Any:
        return insert(table)

    def prepare(self) -> None:
        """Its databases are made by whoever looks after the server."""

    async def open(self) -> None:
        if self._listening is None:
            self._listening = asyncio.ensure_future(self._listen())

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self.engine.dispose()

    async def _connect(self) -> Connection:
        try:
            made: Any = await cast("Any", asyncpg).connect(
                self._url,
                timeout=PATIENCE_SECONDS,
                command_timeout=self._patience,
                # Whatever the database is set to: an approval that was used stays so.
                server_settings={"application_name": "comity", "synchronous_commit": "on"},
            )
            return cast("Connection", made)
        except (ValueError, asyncpg.ClientConfigurationError):
            # In nobody's words but ours: theirs quote what may be the password.
            raise Misconfigured(UNREADABLE) from None
        except REFUSALS as error:
            raise Misconfigured(f"the store refuses to be used: {error}") from None
        except FAILURES as error:
            raise unanswered(error) from None

    async def _listen(self) -> None:
        """Hear of changes as long as there is a connection, and make another when there is none."""
        failures = 0
        while True:
            try:
                await self._hear()
                failures = 0
            except (Unavailable, Misconfigured, *FAILURES):
                failures += 1  # whoever reads the records tells that they cannot be read
            except Exception:
                failures += 1
                log.exception("listening for changes of the store ended in a bug")
            await asyncio.sleep(AGAIN.delay(failures, random()).total_seconds())  # noqa: S311  # no secret

    def _heard(self, *_: object) -> None:
        self._stir()

    async def _hear(self) -> None:
        """Until this connection ends; what was told while there was none is read anew."""
        connection = await self._connect()
        ended = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: ended.set())
            await connection.add_listener(CHANNEL, self._heard)
            self._stir()
            while not ended.is_set():
                try:
                    async with asyncio.timeout(PROBED_EVERY_SECONDS):
                        await ended.wait()
                except TimeoutError:
                    # A connection can be dead without a word; then nothing would ever be heard.
                    await connection.execute("SELECT 1")
        finally:
            connection.terminate()


def open_records(url: str) -> SqlRecords:
    stir = asyncio.Event()
    return SqlRecords(Postgres(url, stir.set, PATIENCE_SECONDS), stir)


def product(url: str) -> Postgres:
    """For work that may take its time."""
    return Postgres(url, lambda: None, None)
