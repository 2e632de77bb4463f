"""Leases inside one process, by a clock that the test holds."""

from datetime import timedelta

import pytest

from comity.adapters.memory.bus import Hub, MemoryBus
from comity.adapters.memory.leases import LIFETIME, LeaseBook, MemoryLeases
from comity.ports.clustering import Lease
from comity.wire.errors import Unavailable


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_lease_ends_with_its_lifetime_and_not_before() -> None:
    clock = Clock()
    book = LeaseBook(timedelta(seconds=10), clock)
    one, other = MemoryLeases(book), MemoryLeases(book)
    lease = await one.take("it", "n1")
    assert lease is not None
    assert lease == Lease("it", "n1", 1)
    clock.now = 9.9
    assert await other.take("it", "n2") is None
    assert await one.renew(lease)
    clock.now = 19.8
    assert await other.holder("it") == lease
    clock.now = 19.9
    assert await other.holder("it") is None
    assert not await one.renew(lease)
    assert await other.take("it", "n2") == Lease("it", "n2", 2)
    await one.give_up(lease)
    assert await one.holder("it") == Lease("it", "n2", 2)


async def test_a_node_that_is_cut_off_does_not_know_who_holds_a_lease() -> None:
    bus = MemoryBus(Hub())
    await bus.open()
    leases = MemoryLeases(LeaseBook(), bus)
    lease = await leases.take("it", "n1")
    assert lease is not None
    bus.cut_off()
    with pytest.raises(Unavailable):
        await leases.renew(lease)
    bus.rejoin()
    assert await leases.renew(lease)


async def test_a_lease_that_could_not_be_given_up_is_not_taken_for_held() -> None:
    bus = MemoryBus(Hub())
    await bus.open()
    clock = Clock()
    leases = MemoryLeases(LeaseBook(timedelta(seconds=10), clock), bus)
    lease = await leases.take("it", "n1")
    assert lease is not None
    bus.cut_off()
    with pytest.raises(Unavailable):
        await leases.give_up(lease)
    bus.rejoin()
    assert await leases.take("it", "n1") is None
    clock.now = 10.0
    again = await leases.take("it", "n1")
    assert again is not None
    assert again.token > lease.token


async def test_a_gateway_alone_has_leases_without_further_ado() -> None:
    leases = MemoryLeases()
    assert leases.lifetime == LIFETIME
    assert await leases.take("it", "n1") is not None
