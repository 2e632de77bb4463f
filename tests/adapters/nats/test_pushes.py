"""Which pushes were there lately, by JetStream: at all nodes, and though servers of it fail."""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.js import JetStreamContext

from comity.adapters.buses import open_firsts
from comity.adapters.nats.addresses import Addresses
from comity.adapters.nats.bus import NatsBus
from comity.adapters.nats.pushes import NatsFirsts
from comity.wire.errors import Unavailable
from tests.cluster.nats_cluster import SECRET, NatsCluster, a_nats_cluster
from tests.contracts.nodes import insist


@pytest.fixture
async def buses(nats: NatsCluster) -> AsyncGenerator[list[NatsBus]]:
    """Of two nodes of one deployment."""
    name = f"test_{secrets.token_hex(6)}"
    found = [NatsBus(Addresses.of(nats.urls, name), SECRET) for _ in range(2)]
    for bus in found:
        await bus.open()
    yield found
    for bus in found:
        await bus.close()


async def first(firsts: NatsFirsts, key: str) -> bool:
    return await insist(lambda: firsts.is_first(key), Unavailable)


async def test_what_one_node_was_told_another_knows(buses: list[NatsBus]) -> None:
    one, other = (NatsFirsts(bus) for bus in buses)
    assert await first(one, "push:ci/1")
    assert not await first(other, "push:ci/1")
    assert not await first(one, "push:ci/1")
    assert await first(other, "push:ci/2")
    assert await first(other, "push:ci/\ud800 \0" + "x" * 10_000)


async def test_of_many_at_once_one_is_first(buses: list[NatsBus]) -> None:
    both = [NatsFirsts(bus) for bus in buses]
    await first(both[0], "push:ci/0")
    tries = (both[each % 2].is_first("push:ci/1") for each in range(40))
    assert (await asyncio.gather(*tries)).count(True) == 1


async def test_deployments_know_nothing_of_each_other(nats: NatsCluster) -> None:
    for _ in range(2):
        bus = NatsBus(Addresses.of(nats.urls, f"test_{secrets.token_hex(6)}"), SECRET)
        await bus.open()
        assert await first(NatsFirsts(bus), "push:ci/1")
        await bus.close()


async def test_after_its_window_a_push_is_forgotten(buses: list[NatsBus]) -> None:
    firsts = NatsFirsts(buses[0], timedelta(milliseconds=200))
    assert await first(firsts, "push:ci/1")
    async with asyncio.timeout(30):
        while not await firsts.is_first("push:ci/1"):
            # Each try would begin the window anew if it counted; it does not.
            await asyncio.sleep(0.05)


async def test_a_stream_that_is_gone_is_made_anew(buses: list[NatsBus]) -> None:
    firsts = NatsFirsts(buses[0])
    await first(firsts, "push:ci/1")
    js: Any = JetStreamContext(buses[0].link)
    await js.delete_stream(firsts.stream)
    with pytest.raises(Unavailable):
        await firsts.is_first("push:ci/1")
    assert await first(firsts, "push:ci/1")


async def test_without_nats_nothing_is_known() -> None:
    bus = NatsBus(Addresses.of(["nats://127.0.0.1:1"], "test"), SECRET)
    with pytest.raises(Unavailable):
        await open_firsts(bus).is_first("push:ci/1")


async def test_it_is_kept_three_times_and_known_though_a_server_dies(tmp_path: Path) -> None:
    with a_nats_cluster(tmp_path, 3) as cluster:
        bus = NatsBus(Addresses.of(cluster.urls, "test"), SECRET)
        await bus.open()
        firsts = NatsFirsts(bus)
        assert await first(firsts, "push:ci/1")
        told = await JetStreamContext(bus.link).stream_info(firsts.stream)
        assert told.config.num_replicas == 3
        leader = cluster.leader_of(firsts.stream)
        assert leader is not None
        leader.kill()
        assert not await first(firsts, "push:ci/1")
        assert await first(firsts, "push:ci/2")
        await bus.close()
