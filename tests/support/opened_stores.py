"""A store for tests that several processes may open, and a way around them all."""

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from comity.app.records import RecordStores, open_store
from comity.storage import postgres, sqlite, stores
from comity.storage.database import DatabaseBackend
from tests.support.inline_store import migrated_file


@dataclass
class Store:
    """A store that several processes may open, and a way around them all."""

    url: str
    product: DatabaseBackend
    opened: list[RecordStores]

    @property
    def is_file(self) -> bool:
        return self.url.startswith("sqlite")

    async def open(self) -> RecordStores:
        records = open_store(self.url)
        assert isinstance(records, RecordStores)
        self.opened.append(records)
        await records.open()
        return records

    async def run(self, statement: str, **values: object) -> list[Any]:
        async with self.product.engine.begin() as connection:
            done = await connection.execute(text(statement), values)
            return list(done) if done.returns_rows else []


@asynccontextmanager
async def a_store(url: str) -> AsyncGenerator[Store]:
    file = stores.file_of(url)
    if file is None:
        await stores.upgrade_store(url)
    else:
        shutil.copy(migrated_file(), file)
    product = (sqlite if url.startswith("sqlite") else postgres).product(url)
    made = Store(url, product, [])
    try:
        yield made
    finally:
        for records in made.opened:
            await records.close()
        await product.close()
