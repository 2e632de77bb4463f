"""Closing a database while tasks still use it."""

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from comity.storage.database import SqlDatabase
from comity.storage.sqlite import SqliteBackend

TURNS = 20
SECONDS = 30.0


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


async def test_a_connection_that_opens_after_its_user_was_cancelled_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_opening, may_open, is_closed = threading.Event(), threading.Event(), threading.Event()
    connect = sqlite3.connect

    class NotedConnection(sqlite3.Connection):
        def close(self) -> None:
            super().close()
            is_closed.set()

    def connect_late(*args: Any, **named: Any) -> sqlite3.Connection:
        is_opening.set()
        assert may_open.wait(SECONDS)
        return connect(*args, **named, factory=NotedConnection)

    monkeypatch.setattr(sqlite3, "connect", connect_late)
    database = SqlDatabase(SqliteBackend(tmp_path / "store.db"), lambda: None)

    async def read() -> None:
        async with database.reading():
            pass

    reading = asyncio.ensure_future(read())
    assert await asyncio.to_thread(is_opening.wait, SECONDS)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    may_open.set()
    assert await asyncio.to_thread(is_closed.wait, SECONDS)
    await database.close()
