"""A store for tests that several processes may open, and a way around them all."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from comity.adapters import stores
from comity.adapters.sql import postgres, sqlite
from comity.adapters.sql.database import Product
from comity.adapters.sql.records import SqlRecords


@dataclass
class Store:
    """A store that several processes may open, and a way around them all."""

    url: str
    product: Product
    opened: list[SqlRecords]

    @property
    def is_file(self) -> bool:
        return self.url.startswith("sqlite")

    async def open(self) -> SqlRecords:
        records = (sqlite if self.is_file else postgres).open_records(self.url)
        self.opened.append(records)
        await records.open()
        return records

    async def run(self, statement: str, **values: object) -> list[Any]:
        async with self.product.engine.begin() as connection:
            done = await connection.execute(text(statement), values)
            return list(done) if done.returns_rows else []


@asynccontextmanager
async def a_store(url: str) -> AsyncGenerator[Store]:
    await stores.upgrade(url)
    product = (sqlite if url.startswith("sqlite") else postgres).product(url)
    made = Store(url, product, [])
    try:
        yield made
    finally:
        for records in made.opened:
            await records.close()
        await product.close()
