"""Migrations of the tables of a store from one version of Comity to the next.

The Alembic migrations are in the package `migrations`, and each begins with its number. Two
processes that start at the same time migrate one after the other. A failed migration leaves no
trace. There is no downgrade: to return to an older version, restore a backup.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sqlalchemy import Column, Connection, Dialect, MetaData, String, Table, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.schema import CreateIndex, CreateTable

from comity.errors import Misconfigured
from comity.storage.database import (
    METADATA,
    SCHEMA_TABLE,
    VERSION,
    WRITES,
    map_database_errors,
)

STEPS: Final = Path(__file__).with_name("migrations")
NO_SCHEMA: Final = "base"
_LOCK: Final = 0x636F6D697479  # "comity"
_REVISION: Final = Table(
    SCHEMA_TABLE, MetaData(), Column("version_num", String(32), primary_key=True)
)
"""The version table, as Alembic creates it."""


def newest_revision() -> str:
    """Return the newest schema that this version of Comity knows."""
    return max(_steps())


async def current_revision(engine: AsyncEngine) -> str:
    """Return the schema of a store, or `base` without tables."""
    async with map_database_errors(), engine.connect() as connection:
        return await connection.run_sync(_current)


async def upgrade_schema(engine: AsyncEngine) -> None:
    """Upgrade a store with its data to the newest schema."""
    async with map_database_errors(), engine.connect() as connection:
        await connection.execution_options(**{WRITES: True})
        async with connection.begin():
            await connection.run_sync(_upgrade)


def creation_statements(dialect: Dialect) -> Iterator[str]:
    """Yield the statements that create an empty store with the newest schema.

    They take a fraction of the time of the migrations. They leave out the triggers that guard the
    audit log, because this is for a file that only one process uses.
    """
    for table in (*METADATA.sorted_tables, _REVISION):
        yield str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            yield str(CreateIndex(index).compile(dialect=dialect))
    yield f"INSERT INTO {VERSION.name} VALUES (1, 1, 0)"  # noqa: S608  # our name
    yield f"INSERT INTO {SCHEMA_TABLE} VALUES ('{newest_revision()}')"  # noqa: S608  # our name


def is_known(schema: str) -> bool:
    """Return whether this version can upgrade from a schema. Newer versions made all others."""
    return schema == NO_SCHEMA or schema in _steps()


async def bring_up_to_date(engine: AsyncEngine) -> None:
    """Upgrade an older store. A newer one stays as it is."""
    found = await current_revision(engine)
    if found != newest_revision() and is_known(found):
        await upgrade_schema(engine)


async def refuse_another_schema(engine: AsyncEngine) -> None:
    """Raise Misconfigured if the schema of the store is not the one that this version needs."""
    found, known = await current_revision(engine), newest_revision()
    if found == known:
        return
    if found == NO_SCHEMA:
        raise Misconfigured("the store has no tables yet; run `comity db migrate`")
    if is_known(found):
        raise Misconfigured(
            f"the store has schema {found}, and this version of Comity needs {known}; "
            "run `comity db migrate`"
        )
    raise Misconfigured(
        f"the store has schema {found:.40}, which a newer version of Comity made; run that version"
    )


def _upgrade(connection: Connection) -> None:
    # Imported here because Alembic loads slowly, and only an older store needs it.
    from alembic import command

    # Imported here because Alembic loads slowly, and only an older store needs it.
    from alembic.config import Config

    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(STEPS).replace("%", "%%"))
    command.upgrade(config, "head")


def _steps() -> set[str]:
    return {path.stem.partition("_")[0] for path in STEPS.glob("versions/[0-9]*.py")}


def _current(connection: Connection) -> str:
    if not inspect(connection).has_table(SCHEMA_TABLE):
        return NO_SCHEMA
    return connection.execute(select(_REVISION.c.version_num)).scalar() or NO_SCHEMA
