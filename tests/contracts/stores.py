"""Stores for tests: a SQLite file, and a database of a real PostgreSQL."""

import os
import secrets
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from comity.app.records import RecordStores, open_store
from comity.storage import postgres, schema
from tests.support.inline_store import migrated_file

SERVER = os.environ.get("COMITY_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432")
type Open = Callable[[], Awaitable[RecordStores]]
"""Opens the same store once more, as another process would."""


async def run_on(url: str, *statements: str) -> list[Any]:
    """What the last statement gives, each by itself."""
    connection = await cast("Any", asyncpg).connect(url, timeout=10)
    try:
        rows: list[Any] = []
        for statement in statements:
            rows = await connection.fetch(statement)
        return rows
    finally:
        await connection.close()


@asynccontextmanager
async def a_database() -> AsyncGenerator[str]:
    """The address of an empty database that is dropped afterwards."""
    name = f"comity_test_{secrets.token_hex(8)}"
    await run_on(f"{SERVER}/postgres", f'CREATE DATABASE "{name}"')
    try:
        yield f"{SERVER}/{name}"
    finally:
        await run_on(f"{SERVER}/postgres", f'DROP DATABASE "{name}" WITH (FORCE)')


@asynccontextmanager
async def in_sqlite(folder: Path) -> AsyncGenerator[Open]:
    file = shutil.copy(migrated_file(), folder / "records.db")
    async with _opened(open_store, f"sqlite:///{file}") as again:
        yield again


@asynccontextmanager
async def in_postgres(_: Path) -> AsyncGenerator[Open]:
    async with a_database() as url:
        fresh = postgres.product(url)
        await schema.upgrade_schema(fresh.engine)
        await fresh.close()
        async with _opened(open_store, url) as again:
            yield again


@asynccontextmanager
async def _opened(make: Callable[[str], RecordStores], url: str) -> AsyncGenerator[Open]:
    made: list[RecordStores] = []

    async def again() -> RecordStores:
        records = make(url)
        made.append(records)
        await records.open()
        return records

    try:
        yield again
    finally:
        for records in made:
            await records.close()


STORES = {"sqlite": in_sqlite, "postgres": in_postgres}
