"""NATS for the tests of what speaks with it."""

from collections.abc import Generator

import pytest

from tests.cluster.nats_cluster import NatsCluster, a_nats_cluster


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Generator[NatsCluster]:
    """One server, of one test module."""
    with a_nats_cluster(tmp_path_factory.mktemp("nats"), 1) as cluster:
        yield cluster
