"""The store that an address names; the packages for each product are an extra."""

import importlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol, cast
from urllib.parse import urlsplit

from comity.adapters.memory.records import MemoryRecords
from comity.ports import Records
from comity.wire.errors import Misconfigured

SQLITE: Final = "sqlite:///"
NO_TABLES: Final = "base"
"""The schema of a store that has none, as Alembic names it."""

_EXTRAS: Final = {"sqlite": "sqlite", "postgresql": "postgres", "postgres": "postgres"}
_DRIVERS: Final = {"sqlite": "aiosqlite", "postgres": "asyncpg"}
_PACKAGES: Final = ("sqlalchemy", "alembic", "aiosqlite", "asyncpg", "greenlet")


class _Product(Protocol):
    @property
    def engine(self) -> Any: ...
    def prepare(self) -> None: ...
    async def close(self) -> None: ...


class _Room(Protocol):
    def open_records(self, url: str) -> Records: ...
    def product(self, url: str) -> _Product: ...


class _Steps(Protocol):
    def newest(self) -> str: ...
    def is_known(self, schema: str) -> bool: ...
    async def current(self, engine: Any) -> str: ...
    async def upgrade(self, engine: Any, to: str) -> None: ...
    async def downgrade(self, engine: Any, to: str) -> None: ...


def open_store(url: str) -> Records:
    """Raises Misconfigured where the extra for it is not installed; connects to nothing yet."""
    return cast("_Room", _room(url)).open_records(url) if url else MemoryRecords()


def file_of(url: str) -> Path | None:
    """The file that a store is, where it is one."""
    return Path(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else None


def described(url: str) -> str:
    """Where a store is, without what may be a secret."""
    if not url:
        return "memory"
    if url.startswith(SQLITE):
        return f"SQLite, {url.removeprefix(SQLITE)}"
    try:
        parts = urlsplit(url)
        return f"PostgreSQL, {parts.hostname or 'localhost'}{parts.path}"
    except ValueError:
        return "PostgreSQL"


def newest() -> str:
    """The schema that this version of Comity needs."""
    return _steps().newest()


def is_known(schema: str) -> bool:
    """Whether this version of Comity can upgrade from it; a newer version made all others."""
    return _steps().is_known(schema)


async def current(url: str) -> str:
    """The schema that a store has; `base` where it has none."""
    file = file_of(url)
    if file is not None and not file.exists():
        return NO_TABLES
    async with _opened(url) as product:
        return await _steps().current(product.engine)


async def upgrade(url: str, to: str = "head") -> None:
    """Bring a store up to a schema, with all that is in it."""
    async with _opened(url) as product:
        product.prepare()
        await _steps().upgrade(product.engine, to)


async def downgrade(url: str, to: str) -> None:
    """Bring a store back to an older schema; what that one has no place for is lost."""
    async with _opened(url) as product:
        await _steps().downgrade(product.engine, to)


@asynccontextmanager
async def _opened(url: str) -> AsyncGenerator[_Product]:
    product = cast("_Room", _room(url)).product(url)
    try:
        yield product
    finally:
        await product.close()


def _steps() -> _Steps:
    return cast("_Steps", importlib.import_module("comity.adapters.sql.migrating"))


def _room(url: str) -> object:
    """Loaded by name, because its packages may be missing, and are slow to load."""
    extra = _EXTRAS[url.partition(":")[0]]
    try:
        importlib.import_module(_DRIVERS[extra])
        return importlib.import_module(f"comity.adapters.sql.{extra}")
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _PACKAGES:
            raise
        raise Misconfigured(
            f"to keep records there, install what that needs: pip install 'comity[{extra}]'"
        ) from None
