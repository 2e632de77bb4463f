"""A database as the records use it: short reads, writes one after the other, and its failures."""

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, Protocol

from sqlalchemy import Table, delete, insert, select, text, update
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as NoConnectionFree
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from comity.adapters.sql.chain import Chain
from comity.adapters.sql.tables import CHANGES, VERSION
from comity.ports import Kept
from comity.rules import keeping
from comity.wire.errors import POLICY_UNKNOWN, Unavailable

CHANNEL: Final = "comity_changes"
REMEMBERED: Final = 2_000
"""How many versions back changes are told one by one."""

PRUNED_EVERY: Final = 100
WRITES: Final = "comity_writes"
"""The option of a connection that says what it is for, where that matters to a product."""

_ROWS_AT_ONCE: Final = 1_000
AGAIN: Final = timedelta(seconds=1)

type Row = dict[str, Any]


class Product(Protocol):
    """In what one database is other than the others."""

    @property
    def engine(self) -> AsyncEngine: ...

    @property
    def chain(self) -> Chain: ...

    @property
    def tells(self) -> bool:
        """Whether a change is told to other processes by the database itself."""
        ...

    def insert(self, table: Table) -> Any:
        """An insert as its dialect has it, which can take the place of a row with the same key."""
        ...

    def prepare(self) -> None:
        """Make room for a store where there is none, as far as that is ours to do."""
        ...

    async def open(self) -> None: ...
    async def close(self) -> None: ...


class Database:
    """One product, and who is told when this process has changed something."""

    def __init__(self, product: Product, stir: Callable[[], None]) -> None:
        self._product = product
        self._engine = product.engine
        self._stir = stir
        self._autocommit = {"isolation_level": "AUTOCOMMIT"} if product.tells else {}

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[AsyncConnection]:
        async with reached(), self._engine.connect() as connection:
            yield await connection.execution_options(**self._autocommit)

    @asynccontextmanager
    async def writing(self) -> AsyncGenerator["Writing"]:
        """One writer at a time, of all processes: so versions are in the order of the changes."""
        async with reached(), self._engine.connect() as connection:
            await connection.execution_options(**{WRITES: True})
            async with connection.begin():
                await connection.execute(select(VERSION.c.version).with_for_update())
                writing = Writing(connection, self._product)
                yield writing
        if writing.has_changed:
            self._stir()

    @asynccontextmanager
    async def beside(self) -> AsyncGenerator[AsyncConnection]:
        """One transaction of what no version counts, and so of nobody who waits for those."""
        async with reached(), self._engine.connect() as connection:
            await connection.execution_options(**{WRITES: True})
            async with connection.begin():
                yield connection


class Writing:
    """What is written together, or not at all."""

    def __init__(self, connection: AsyncConnection, product: Product) -> None:
        self.connection = connection
        self.has_changed = False
        self._product = product

    async def put(self, table: Table, rows: list[Row]) -> None:
        """Write these rows, each in the place of one with the same key."""
        new = self._product.insert(table)
        rest = [column.name for column in table.columns if not column.primary_key]
        statement = new.on_conflict_do_update(
            index_elements=table.primary_key, set_={name: new.excluded[name] for name in rest}
        )
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            await self.connection.execute(statement, rows[first : first + _ROWS_AT_ONCE])

    async def note(self, what: Kept, whose: Iterable[str]) -> None:
        """Say what is other than before; without anything there is no change."""
        changed = keeping.told(whose)
        if not changed:
            return
        self.has_changed = True
        bumped = update(VERSION).values(version=VERSION.c.version + 1).returning(VERSION.c.version)
        version: int = (await self.connection.execute(bumped)).scalar_one()
        rows = [{"version": version, "what": what, "whose": each} for each in changed]
        await self.connection.execute(insert(CHANGES), rows)
        if version % PRUNED_EVERY == 0:
            await self._forget(version - REMEMBERED)
        if self._product.tells:
            # Only a hint, so it says little: whoever hears it asks what came after what it knows.
            told = {"channel": CHANNEL, "version": str(version)}
            await self.connection.execute(text("SELECT pg_notify(:channel, :version)"), told)

    async def _forget(self, up_to: int) -> None:
        if up_to > 0:
            await self.connection.execute(delete(CHANGES).where(CHANGES.c.version <= up_to))
            await self.connection.execute(update(VERSION).values(forgotten=up_to))


@asynccontextmanager
async def reached() -> AsyncGenerator[None]:
    """What a database does not do is Unavailable; what it cannot keep is a bug of ours."""
    try:
        yield
    except (IntegrityError, DataError):
        raise
    except (DBAPIError, NoConnectionFree, OSError, TimeoutError) as error:
        raise unanswered(error) from None


def unanswered(error: BaseException) -> Unavailable:
    """In the database's own words, as far as they are no statement of ours."""
    original = error.orig if isinstance(error, DBAPIError) else error
    otherwise = "it stays silent" if isinstance(error, TimeoutError) else type(original).__name__
    because = next(iter(str(original).splitlines()), "") or otherwise
    return Unavailable(f"the store does not answer: {because[:300]}", POLICY_UNKNOWN, AGAIN)
