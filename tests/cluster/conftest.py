"""NATS and PostgreSQL for the tests of what speaks with them."""

import asyncio
from collections.abc import Generator

import pytest

from comity.storage import stores
from tests.cluster.nats_cluster import NatsCluster, a_nats_cluster
from tests.cluster.postgres import Postgres, a_postgres


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsCluster]:
    """One server, of one test module."""
    with a_nats_cluster(tmp_path_factory.mktemp("nats"), 1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def postgres() -> Generator[Postgres]:
    """One server with Comity's tables, of one test module."""
    with a_postgres() as server:
        asyncio.run(stores.upgrade_store(server.url))
        yield server
