"""The location and the schema version of the store that a URL names."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from comity.errors import Misconfigured

SQLITE: Final = "sqlite:///"
NO_TABLES: Final = "base"
"""Alembic's name for the schema of an empty store."""


class _StoreBackend(Protocol):
    """The part of a backend that this module uses, declared here to avoid loading SQLAlchemy."""

    @property
    def engine(self) -> Any: ...
    def prepare(self) -> None: ...
    async def close(self) -> None: ...


def file_of(url: str) -> Path | None:
    """Return the file of a store, or None if it is not a file."""
    return Path(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else None


def describe_store(url: str) -> str:
    """Describe the location of a store without secrets."""
    if not url:
        return "a temporary file"
    if url.startswith(SQLITE):
        return f"SQLite, {url.removeprefix(SQLITE)}"
    try:
        parts = urlsplit(url)
        return f"PostgreSQL, {parts.hostname or 'localhost'}{parts.path}"
    except ValueError:
        return "PostgreSQL"


async def current_schema(url: str) -> str:
    """Return the schema of a store, or `base` without tables."""
    # Imported here because SQLAlchemy loads slowly, and most commands only name the store.
    from comity.storage import schema

    file = file_of(url)
    if file is not None and not file.exists():
        return NO_TABLES
    async with _opened(url) as product:
        return await schema.current_revision(product.engine)


async def upgrade_store(url: str) -> None:
    """Upgrade a store with its data to the newest schema."""
    # Imported here because SQLAlchemy loads slowly, and most commands only name the store.
    from comity.storage import schema

    async with _opened(url) as product:
        product.prepare()
        await schema.upgrade_schema(product.engine)


@asynccontextmanager
async def _opened(url: str) -> AsyncGenerator[_StoreBackend]:
    product = _product(url)
    try:
        yield product
    finally:
        await product.close()


def _product(url: str) -> _StoreBackend:
    if url.startswith(SQLITE):
        # Imported here because SQLAlchemy loads slowly, and most commands only name the store.
        from comity.storage import sqlite

        return sqlite.product(url)
    with needed_extra():
        # Imported here because asyncpg is an extra.
        from comity.storage import postgres
    return postgres.product(url)


@contextmanager
def needed_extra() -> Generator[None]:
    """Raise Misconfigured if an import fails because the PostgreSQL extra is missing."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name != "asyncpg":
            raise
        raise Misconfigured(
            "to keep records there, install what that needs: pip install 'comity[postgres]'"
        ) from None
