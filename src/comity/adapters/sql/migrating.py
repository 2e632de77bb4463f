"""How the tables of a store are brought from one version of Comity to another, and back.

The steps are Alembic's and stand in `migrations`, inside of the package. Two processes that come
at the same time do it one after the other; a step that fails leaves nothing behind.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncEngine

from comity.adapters.sql.database import WRITES, reached
from comity.adapters.sql.tables import SCHEMA_TABLE
from comity.wire.errors import Misconfigured

STEPS: Final = Path(__file__).with_name("migrations")
NOTHING: Final = "base"
NEWEST: Final = "head"
_LOCK: Final = 0x636F6D697479  # "comity"


def newest() -> str:
    """The schema that this version of Comity knows."""
    return _steps().get_current_head() or NOTHING


async def current(engine: AsyncEngine) -> str:
    """The schema that a store has; `base` where it has none."""
    async with reached(), engine.connect() as connection:
        return await connection.run_sync(_current)


async def upgrade(engine: AsyncEngine, to: str = NEWEST) -> None:
    """Bring a store up to this schema, with all that is in it."""
    await _migrate(engine, lambda config: command.upgrade(config, to))


async def downgrade(engine: AsyncEngine, to: str) -> None:
    """Bring a store back to an older schema; what that one has no place for is lost."""
    await _migrate(engine, lambda config: command.downgrade(config, to))


def is_known(schema: str) -> bool:
    """Whether this version of Comity can upgrade from it; a newer version made all others."""
    return schema == NOTHING or any(step.revision == schema for step in _steps().walk_revisions())


async def bring_up_to_date(engine: AsyncEngine) -> None:
    """Upgrade a store that is older; one that is newer is left as it is."""
    found = await current(engine)
    if found != newest() and is_known(found):
        await upgrade(engine)


async def refuse_another_schema(engine: AsyncEngine) -> None:
    """Raises Misconfigured where the store is not as this version needs it."""
    found, known = await current(engine), newest()
    if found == known:
        return
    if found == NOTHING:
        raise Misconfigured("the store has no tables yet; run `comity store upgrade`")
    if is_known(found):
        raise Misconfigured(
            f"the store has schema {found}, and this version of Comity needs {known}; "
            "run `comity store upgrade`"
        )
    raise Misconfigured(
        f"the store has schema {found:.40}, which a newer version of Comity made; run that version"
    )


async def _migrate(engine: AsyncEngine, step: Callable[[Config], None]) -> None:
    async with reached(), engine.connect() as connection:
        await connection.execution_options(**{WRITES: True})
        async with connection.begin():
            await connection.run_sync(_step, step)


def _step(connection: Connection, step: Callable[[Config], None]) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(STEPS).replace("%", "%%"))
    step(config)


def _steps() -> ScriptDirectory:
    return ScriptDirectory(str(STEPS))


def _current(connection: Connection) -> str:
    context = MigrationContext.configure(connection, opts={"version_table": SCHEMA_TABLE})
    return context.get_current_revision() or NOTHING
