"""Each test of a contract runs against every product that keeps it."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from comity.app.records import RecordStores
from tests.cluster.nats_cluster import NatsCluster, a_nats_cluster
from tests.contracts.nodes import KINDS, InMemory, Nodes, on_nats
from tests.contracts.stores import STORES, Open


@pytest.fixture(params=STORES)
async def again(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Open]:
    async with STORES[request.param](tmp_path) as opened:
        yield opened


@pytest.fixture
async def records(again: Open) -> RecordStores:
    return await again()


@pytest.fixture(scope="session")
def one_nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsCluster]:
    with a_nats_cluster(tmp_path_factory.mktemp("nats"), 1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three_nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsCluster]:
    with a_nats_cluster(tmp_path_factory.mktemp("nats"), 3) as cluster:
        yield cluster


@pytest.fixture(params=KINDS)
async def nodes(request: pytest.FixtureRequest) -> AsyncGenerator[Nodes]:
    if request.param == "memory":
        yield InMemory()
        return
    async with on_nats(request.getfixturevalue(request.param.replace(" ", "_"))) as between:
        yield between
