"""A gateway of two nodes and a browser for all tests of a module. Each test has its own people."""

import asyncio
from collections.abc import AsyncGenerator, Generator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from comity.storage import stores
from tests.cluster.nats_cluster import a_nats_cluster
from tests.cluster.postgres import a_postgres
from tests.console.world import World, a_browser, a_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Generator[World]:
    folder = tmp_path_factory.mktemp("console")
    with a_nats_cluster(tmp_path_factory.mktemp("nats"), 1) as nats, a_postgres() as postgres:
        asyncio.run(stores.upgrade_store(postgres.url))
        with a_world(folder, nats, postgres) as world:
            yield world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    async with a_browser() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def browser(chromium: Browser) -> AsyncGenerator[Browser]:
    yield chromium
    for context in chromium.contexts:
        await context.close()
