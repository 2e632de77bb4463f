"""A store in a file and one in PostgreSQL, each for tests that need one of them or both."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.contracts.stores import a_database
from tests.support.opened_stores import Store, a_store


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Store]:
    if request.param == "sqlite":
        async with a_store(f"sqlite:///{tmp_path / 'store.db'}") as made:
            yield made
        return
    async with a_database() as url, a_store(url) as made:
        yield made


@pytest.fixture
async def in_postgres() -> AsyncGenerator[Store]:
    async with a_database() as url, a_store(url) as made:
        yield made


@pytest.fixture
async def in_file(tmp_path: Path) -> AsyncGenerator[Store]:
    async with a_store(f"sqlite:///{tmp_path / 'store.db'}") as made:
        yield made
