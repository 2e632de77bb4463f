"""Closing a database while tasks still use it."""

import asyncio
from pathlib import Path

from sqlalchemy import text

from comity.storage.database import SqlDatabase
from comity.storage.sqlite import SqliteBackend

TURNS = 20


async def test_close_waits_for_cancelled_tasks_that_use_the_database(tmp_path: Path) -> None:
    database = SqlDatabase(SqliteBackend(tmp_path / "store.db"), lambda: None)
    is_reading = asyncio.Event()

    async def read() -> None:
        async with database.reading() as connection:
            await connection.execute(text("SELECT 1"))
            is_reading.set()
            try:
                await asyncio.Event().wait()
            finally:
                # A cancelled task may take several turns of the loop to end.
                for _ in range(TURNS):
                    await connection.execute(text("SELECT 1"))

    reading = asyncio.ensure_future(read())
    await is_reading.wait()
    reading.cancel()
    await database.close()
    assert reading.cancelled()
