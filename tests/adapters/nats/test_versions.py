"""The test of NATS that `comity check` makes, against real servers."""

from pathlib import Path

import pytest

from comity.adapters.nats import versions
from comity.adapters.nats.addresses import Addresses
from comity.wire.errors import Unavailable
from tests.cluster.nats_cluster import NatsCluster, a_nats_cluster
from tests.interop.processes import free_port


async def version_at(url: str) -> str:
    addresses = Addresses.of([url])
    return await versions.usable_version(addresses.servers[0], addresses)


async def test_a_server_that_nodes_can_use_tells_its_version(nats: NatsCluster) -> None:
    major, minor, _ = (await version_at(nats.servers[0].url)).split(".")
    assert (int(major), int(minor)) >= versions.OLDEST


async def test_an_old_server_is_refused(nats: NatsCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "OLDEST", (99, 1))
    with pytest.raises(Unavailable, match=r"it runs version 2\.\d+\.\d+, and nodes need 99.1"):
        await version_at(nats.servers[0].url)


async def test_a_server_without_jetstream_is_refused(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path, 1)
    server = cluster.servers[0]
    server.configure(f'listen: "127.0.0.1:{server.port}"\nhttp: "127.0.0.1:{server.watch_port}"\n')
    try:
        cluster.start()
        with pytest.raises(Unavailable, match="JetStream is off"):
            await version_at(server.url)
    finally:
        cluster.stop()


async def test_an_account_without_jetstream_is_refused(tmp_path: Path) -> None:
    accounts = "accounts { A { users: [{user: u, password: p}] } }"
    with a_nats_cluster(tmp_path, 1, accounts) as cluster:
        url = cluster.servers[0].url
        with pytest.raises(Unavailable, match="this account may not use JetStream"):
            await version_at(url.replace("//", "//u:p@"))
        with pytest.raises(Unavailable, match=r"(?i)authorization"):
            await version_at(url.replace("//", "//u:wrong@"))


async def test_a_server_that_is_away_is_told() -> None:
    with pytest.raises(Unavailable, match=r"refused|failed"):
        await version_at(f"nats://127.0.0.1:{free_port()}")
