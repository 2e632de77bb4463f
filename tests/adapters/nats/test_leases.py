"""Leases in JetStream where answers are lost, buckets are gone, and clocks are the test's."""

import secrets
import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any, cast

import pytest
from nats.js import JetStreamContext

from comity.adapters.nats.addresses import Addresses
from comity.adapters.nats.bus import NatsBus
from comity.adapters.nats.leases import NatsLeases
from comity.ports.clustering import Lease
from comity.wire.errors import Unavailable
from tests.adapters.nats.proxies import a_proxy
from tests.cluster.nats_cluster import NatsCluster, a_nats_cluster
from tests.contracts.nodes import insist

TEN = timedelta(seconds=10)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _addresses(*urls: str) -> Addresses:
    return Addresses.of(urls, f"test_{secrets.token_hex(6)}")


@pytest.fixture
async def bus(nats: NatsCluster) -> AsyncGenerator[NatsBus]:
    bus = NatsBus(_addresses(*nats.urls))
    await bus.open()
    yield bus
    await bus.close()


async def _took(leases: NatsLeases, name: str, holder: str) -> Lease:
    lease = await insist(lambda: leases.take(name, holder), Unavailable)
    assert lease is not None
    return lease


async def test_others_count_a_lifetime_from_when_they_first_saw_a_revision(bus: NatsBus) -> None:
    clock, theirs = Clock(), Clock()
    theirs.now = 1e6  # no two clocks are compared
    one, other = NatsLeases(bus, TEN, clock=clock), NatsLeases(bus, TEN, clock=theirs)
    lease = await _took(one, "it", "n1")
    theirs.now += 1000
    assert await other.take("it", "n2") is None
    theirs.now += 9
    clock.now += 9
    assert await one.renew(lease)
    theirs.now += 9
    assert await other.take("it", "n2") is None, "it was renewed since"
    theirs.now += 10
    assert await other.take("it", "n2") is None, "a little longer than the holder"
    theirs.now += 1
    taken = await other.take("it", "n2")
    assert taken is not None
    assert taken.token > lease.token
    assert not await one.renew(lease)
    assert await one.holder("it") == taken


async def test_a_holder_counts_from_before_it_asked(bus: NatsBus) -> None:
    clock = Clock()
    leases = NatsLeases(bus, TEN, clock=clock)
    lease = await _took(leases, "it", "n1")
    clock.now = 9.9
    assert await leases.renew(lease)
    clock.now = 19.8
    assert await leases.holder("it") == lease
    clock.now = 19.9
    assert await leases.holder("it") is None
    assert not await leases.renew(lease), "though nobody else has it"


async def test_a_renewal_whose_answer_was_lost_costs_nobody_its_lease(bus: NatsBus) -> None:
    leases = NatsLeases(bus, TEN)
    lease = await _took(leases, "it", "n1")
    js = JetStreamContext(bus.link)
    value = b'{"holder":"n1","token":%d}' % lease.token
    await js.publish(f"$KV.{leases.bucket}.it", value)
    assert await leases.renew(lease)
    assert await leases.holder("it") == lease
    await js.publish(f"$KV.{leases.bucket}.it", value)
    await leases.give_up(lease)
    assert await leases.holder("it") is None


async def test_a_bucket_that_is_made_anew_begins_above_the_one_before(bus: NatsBus) -> None:
    leases = NatsLeases(bus, TEN)
    lease = await _took(leases, "it", "n1")
    for _ in range(3):
        assert await leases.renew(lease)
    assert await JetStreamContext(bus.link).delete_stream(leases.stream)
    with pytest.raises(Unavailable):
        await leases.renew(lease)
    again = await _took(NatsLeases(bus, TEN), "it", "n2")
    assert again.token > lease.token + 3
    assert not await insist(lambda: leases.renew(lease), Unavailable)


async def test_what_is_not_of_our_making_in_the_bucket_is_nobodys_lease(bus: NatsBus) -> None:
    leases = NatsLeases(bus, TEN)
    await _took(leases, "other", "n1")
    js = JetStreamContext(bus.link)
    for junk in (b"hello", b"[]", b'{"holder": 1}', b'{"holder":"n","token":"x"}'):
        await js.publish(f"$KV.{leases.bucket}.it", junk)
        with pytest.raises(Unavailable, match="not of our making"):
            await leases.take("it", "n1")


async def test_whoever_gets_no_answer_knows_so_within_seconds(nats: NatsCluster) -> None:
    async with a_proxy(nats.servers[0].port) as proxy:
        bus = NatsBus(_addresses(f"nats://127.0.0.1:{proxy.port}"))
        await bus.open()
        try:
            leases = NatsLeases(bus, TEN)
            lease = await _took(leases, "it", "n1")
            proxy.swallow()
            began = time.monotonic()
            with pytest.raises(Unavailable) as unknown:
                await leases.renew(lease)
            assert unknown.value.fault.retryable
            assert time.monotonic() - began < 10
            proxy.forward()
            assert await insist(lambda: leases.renew(lease), Unavailable)
        finally:
            await bus.close()


async def test_three_servers_keep_it_three_times_and_one_once(
    bus: NatsBus, tmp_path_factory: pytest.TempPathFactory
) -> None:
    leases = NatsLeases(bus, TEN)
    await _took(leases, "it", "n1")
    assert await _copies(bus, leases) == 1
    with a_nats_cluster(tmp_path_factory.mktemp("nats"), 3) as three:
        wide = NatsBus(_addresses(*three.urls))
        await wide.open()
        try:
            lease = await _took(NatsLeases(wide, TEN, replicas=1), "it", "n1")
            leases = NatsLeases(wide, TEN)
            assert await insist(lambda: leases.holder("it"), Unavailable) == lease
            assert await _copies(wide, leases) == 3
        finally:
            await wide.close()


async def _copies(bus: NatsBus, leases: NatsLeases) -> int:
    told = await cast("Any", JetStreamContext(bus.link)).stream_info(leases.stream)
    return told.config.num_replicas
