"""Leases and first pushes in JetStream where answers are lost and servers fail."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from nats.js import JetStreamContext

from comity.cluster.bus import Lease
from comity.cluster.connect import open_firsts
from comity.cluster.nats.addresses import NatsAddressList
from comity.cluster.nats.bus import NatsBus
from comity.cluster.nats.jetstream import NatsFirsts, NatsLeases
from comity.errors import Unavailable
from tests.cluster.nats_cluster import SECRET, NatsCluster, a_nats_cluster
from tests.cluster.proxies import a_proxy
from tests.contracts.nodes import insist
from tests.support.clock import ManualClock

TEN = timedelta(seconds=10)


def _addresses(*urls: str) -> NatsAddressList:
    return NatsAddressList.of(urls, f"test_{secrets.token_hex(6)}")


@pytest.fixture
async def buses(nats: NatsCluster) -> AsyncGenerator[list[NatsBus]]:
    """Of two nodes of one deployment."""
    name = f"test_{secrets.token_hex(6)}"
    found = [NatsBus(NatsAddressList.of(nats.urls, name), SECRET) for _ in range(2)]
    for bus in found:
        await bus.open()
    yield found
    for bus in found:
        await bus.close()


@pytest.fixture
def bus(buses: list[NatsBus]) -> NatsBus:
    return buses[0]


async def _took(leases: NatsLeases, name: str, holder: str) -> Lease:
    lease = await insist(lambda: leases.take(name, holder), Unavailable)
    assert lease is not None
    return lease


async def test_others_count_a_lifetime_from_when_they_first_saw_a_revision(bus: NatsBus) -> None:
    clock, theirs = ManualClock(0.0), ManualClock(0.0)
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
    clock = ManualClock(0.0)
    leases = NatsLeases(bus, TEN, clock=clock)
    lease = await _took(leases, "it", "n1")
    clock.now = 9.9
    assert await leases.renew(lease)
    clock.now = 19.8
    assert await leases.holder("it") == lease
    clock.now = 19.9
    assert await leases.holder("it") is None
    assert not await leases.renew(lease), "though nobody else has it"


async def test_a_renewal_whose_answer_was_lost_costs_nobody_its_lease(
    bus: NatsBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases = NatsLeases(bus, TEN)
    lease = await _took(leases, "it", "n1")
    lost: list[str] = []
    told = JetStreamContext.publish

    async def publish(*said: Any, **more: Any) -> object:
        ack = await told(*said, **more)
        if lost:
            raise TimeoutError(lost.pop())
        return ack

    monkeypatch.setattr(JetStreamContext, "publish", publish)
    for ask in (leases.renew, leases.release):
        lost.append("the answer")
        with pytest.raises(Unavailable):
            await leases.renew(lease)
        assert await leases.holder("it") == lease
        await ask(lease)
    assert await leases.holder("it") is None


async def test_a_bucket_that_is_made_anew_begins_above_the_one_before(bus: NatsBus) -> None:
    leases = NatsLeases(bus, TEN)
    lease = await _took(leases, "it", "n1")
    for _ in range(3):
        assert await leases.renew(lease)
    assert await JetStreamContext(bus.connection).delete_stream(leases.stream)
    with pytest.raises(Unavailable):
        await leases.renew(lease)
    again = await _took(NatsLeases(bus, TEN), "it", "n2")
    assert again.token > lease.token + 3
    assert not await insist(lambda: leases.renew(lease), Unavailable)


JUNK = (
    *(b"", b"hello", b"[]", b"\xff", b'{"holder": 1}', b'{"holder":"n","token":"x"}'),
    *(b'{"holder":""}', b'{"holder":"n9","token":1,"number":9999999999999,"seal":"00"}'),
)
"""What somebody may write into the bucket who is no node."""


async def _written(bus: NatsBus, leases: NatsLeases, data: bytes) -> None:
    await JetStreamContext(bus.connection).publish(f"$KV.{leases.bucket}.it", data)


async def _value(bus: NatsBus, leases: NatsLeases) -> bytes:
    js = JetStreamContext(bus.connection)
    return (await js.get_last_msg(leases.stream, f"$KV.{leases.bucket}.it")).data or b""


async def test_a_forged_value_ends_no_lease_and_its_holder_writes_over_it(
    bus: NatsBus, caplog: pytest.LogCaptureFixture
) -> None:
    clock, theirs = ManualClock(0.0), ManualClock(0.0)
    one, other = NatsLeases(bus, TEN, clock=clock), NatsLeases(bus, TEN, clock=theirs)
    newcomer = NatsLeases(bus, TEN, clock=theirs)
    lease = await _took(one, "it", "n1")
    assert await other.holder("it") == lease
    for junk in JUNK:
        await _written(bus, one, junk)
        assert await other.take("it", "n2") is None
        assert await other.holder("it") == lease
        assert await NatsLeases(bus, TEN, clock=theirs).take("it", "n3") is None
        assert await newcomer.holder("it") in (None, lease)
        assert await one.holder("it") == lease
        assert await one.renew(lease)
        assert await newcomer.holder("it") == lease
    told = [each for each in caplog.records if "was not written by a node" in each.getMessage()]
    assert len(told) == 1 + 1 + 1 + len(JUNK), "once for each that reads there"


async def test_a_value_that_is_written_again_ends_no_lease(bus: NatsBus) -> None:
    clock = ManualClock(0.0)
    one, other = NatsLeases(bus, TEN, clock=clock), NatsLeases(bus, TEN, clock=clock)
    seen: list[bytes] = []
    first = await _took(one, "it", "n1")
    seen.append(await _value(bus, one))
    assert await one.renew(first)
    seen.append(await _value(bus, one))
    await one.release(first)
    seen.append(await _value(bus, one))
    lease = await _took(other, "it", "n2")
    seen.append(await _value(bus, one))
    assert await one.holder("it") == lease
    for value in seen:
        await _written(bus, one, value)
        assert await one.take("it", "n1") is None
        assert await one.holder("it") == lease
        assert await other.renew(lease)


async def test_forged_values_make_the_lease_of_a_dead_node_last_no_longer(bus: NatsBus) -> None:
    clock = ManualClock(0.0)
    one, other = NatsLeases(bus, TEN, clock=clock), NatsLeases(bus, TEN, clock=clock)
    lease = await _took(one, "it", "n1")
    value = await _value(bus, one)
    assert await other.take("it", "n2") is None
    for junk in (value, *JUNK):
        clock.now += 1
        await _written(bus, one, junk)
        assert await other.take("it", "n2") is None
    clock.now += 2
    await _written(bus, one, value)
    taken = await other.take("it", "n2")
    assert taken is not None
    assert taken.token > lease.token
    newcomer = NatsLeases(bus, TEN, clock=clock)
    await _written(bus, one, b"junk")
    assert await newcomer.take("it", "n3") is None
    clock.now += 11
    assert await newcomer.take("it", "n3") is not None, "nobody held it for a lifetime"


async def test_whoever_gets_no_answer_knows_so_within_seconds(nats: NatsCluster) -> None:
    async with a_proxy(nats.servers[0].port) as proxy:
        bus = NatsBus(_addresses(f"nats://127.0.0.1:{proxy.port}"), SECRET)
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
        wide = NatsBus(_addresses(*three.urls), SECRET)
        await wide.open()
        try:
            lease = await _took(NatsLeases(wide, TEN, replicas=1), "it", "n1")
            leases = NatsLeases(wide, TEN)
            assert await insist(lambda: leases.holder("it"), Unavailable) == lease
            assert await _copies(wide, leases) == 3
        finally:
            await wide.close()


async def _copies(bus: NatsBus, leases: NatsLeases) -> int:
    told = await cast("Any", JetStreamContext(bus.connection)).stream_info(leases.stream)
    return told.config.num_replicas


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
        bus = NatsBus(NatsAddressList.of(nats.urls, f"test_{secrets.token_hex(6)}"), SECRET)
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
    js: Any = JetStreamContext(buses[0].connection)
    await js.delete_stream(firsts.stream)
    with pytest.raises(Unavailable):
        await firsts.is_first("push:ci/1")
    assert await first(firsts, "push:ci/1")


async def test_without_nats_nothing_is_known() -> None:
    bus = NatsBus(NatsAddressList.of(["nats://127.0.0.1:1"], "test"), SECRET)
    with pytest.raises(Unavailable):
        await open_firsts(bus).is_first("push:ci/1")


async def test_it_is_kept_three_times_and_known_though_a_server_dies(tmp_path: Path) -> None:
    with a_nats_cluster(tmp_path, 3) as cluster:
        bus = NatsBus(NatsAddressList.of(cluster.urls, "test"), SECRET)
        await bus.open()
        firsts = NatsFirsts(bus)
        assert await first(firsts, "push:ci/1")
        told = await JetStreamContext(bus.connection).stream_info(firsts.stream)
        assert told.config.num_replicas == 3
        leader = cluster.leader_of(firsts.stream)
        assert leader is not None
        leader.kill()
        assert not await first(firsts, "push:ci/1")
        assert await first(firsts, "push:ci/2")
        await bus.close()
