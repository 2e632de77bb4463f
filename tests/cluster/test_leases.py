"""Leases inside one process, and the placement of servers by them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from comity.cluster.bus import Lease
from comity.cluster.in_process import (
    LIFETIME as DEFAULT_LIFETIME,
)
from comity.cluster.in_process import (
    LeaseBook,
    MemoryBus,
    MemoryBusHub,
    MemoryLeases,
)
from comity.cluster.leases import EXPIRY_FRACTION, ServerLocation, ServerPlacement
from comity.errors import SERVER_NOT_READY, Unavailable
from tests.support.carriers import Clock, settled
from tests.support.clock import ManualClock
from tests.support.node_house import OneNode, some_nodes


async def test_a_lease_ends_with_its_lifetime_and_not_before() -> None:
    clock = ManualClock(0.0)
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
    await one.release(lease)
    assert await one.holder("it") == Lease("it", "n2", 2)


async def test_a_node_that_is_cut_off_does_not_know_who_holds_a_lease() -> None:
    bus = MemoryBus(MemoryBusHub())
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
    bus = MemoryBus(MemoryBusHub())
    await bus.open()
    clock = ManualClock(0.0)
    leases = MemoryLeases(LeaseBook(timedelta(seconds=10), clock), bus)
    lease = await leases.take("it", "n1")
    assert lease is not None
    bus.cut_off()
    with pytest.raises(Unavailable):
        await leases.release(lease)
    bus.rejoin()
    assert await leases.take("it", "n1") is None
    clock.now = 10.0
    again = await leases.take("it", "n1")
    assert again is not None
    assert again.token > lease.token


async def test_a_gateway_alone_has_leases_without_further_ado() -> None:
    leases = MemoryLeases()
    assert leases.lifetime == DEFAULT_LIFETIME
    assert await leases.take("it", "n1") is not None


LIFETIME = 12.0


@dataclass
class Holder:
    """A node, and what it does about one server."""

    node: OneNode
    leasing: ServerPlacement
    place: ServerLocation
    moves: list[int | str | None] = field(default_factory=list[int | str | None])

    async def look(self) -> None:
        await self.leasing.look(self.place)
        await settled()

    async def moved(self) -> None:
        lease = self.place.lease
        self.moves.append(self.place.other_node if lease is None else lease.token)


@asynccontextmanager
async def holders(clock: Clock) -> AsyncGenerator[list[Holder]]:
    book = LeaseBook(timedelta(seconds=LIFETIME), clock)
    async with some_nodes("a", "b", clock=clock) as nodes:
        made: list[Holder] = []
        for node in nodes:
            leasing = ServerPlacement(MemoryLeases(book, node.bus), node.peers, clock)
            holder = Holder(node, leasing, leasing.place("files"))
            holder.place.on_moved = holder.moved
            made.append(holder)
        yield made


async def test_the_first_to_ask_runs_it_and_the_others_learn_who_does() -> None:
    async with holders(Clock()) as (a, b):
        await a.look()
        await b.look()
        assert a.place.is_here
        assert not b.place.is_here
        assert b.place.other_node == a.node.id
        assert a.node.peers.runs == {"files": 1}
        assert (a.moves, b.moves) == ([1], [a.node.id])
        await a.look()
        await b.look()
        assert (len(a.moves), len(b.moves)) == (1, 1)


async def test_who_holds_it_keeps_it_for_as_long_as_it_renews() -> None:
    clock = Clock()
    async with holders(clock) as (a, b):
        await a.look()
        for _ in range(9):
            clock.passes(LIFETIME / 3)
            await a.look()
            await b.look()
            assert a.place.is_here
        assert a.moves == [1]


async def test_who_gets_no_answer_lets_go_at_half_the_time_and_another_gets_a_greater_token() -> (
    None
):
    clock = Clock()
    async with holders(clock) as (a, b):
        await a.look()
        lease = a.place.lease
        assert lease is not None
        a.node.bus.cut_off()
        clock.passes(LIFETIME * 0.4)
        await a.look()
        assert a.place.is_here
        a.place.require(lease)
        clock.passes(LIFETIME * 0.1)
        # Even before it looks: a gateway that stood still must not speak first.
        assert not a.place.is_here
        with pytest.raises(Unavailable) as refused:
            a.place.require(lease)
        assert refused.value.fault is SERVER_NOT_READY
        await a.look()
        assert a.moves == [1, None]
        assert 0 < a.place.seconds_left(EXPIRY_FRACTION) < LIFETIME / 3
        await b.look()
        assert not b.place.is_here
        clock.passes(LIFETIME * 0.6)
        await b.look()
        assert b.place.lease is not None
        assert b.place.lease.token > lease.token
        a.node.bus.rejoin()
        await a.look()
        assert a.place.other_node == b.node.id


async def test_a_lease_that_is_taken_again_counts_from_when_it_was_renewed() -> None:
    clock = Clock()
    async with holders(clock) as (a, _):
        await a.look()
        a.node.bus.cut_off()
        clock.passes(LIFETIME * 0.9)
        await a.look()
        assert a.place.lease is None
        a.node.bus.rejoin()
        await a.look()
        assert a.place.is_here
        clock.passes(LIFETIME * 0.4)
        await a.look()
        assert a.place.is_here
        assert a.moves == [1, None, 1]


async def test_who_lost_it_in_the_book_lets_go_at_once() -> None:
    clock = Clock()
    async with holders(clock) as (a, b):
        await a.look()
        clock.passes(LIFETIME * 1.1)
        await b.look()
        await a.look()
        assert a.moves == [1, None]
        assert b.place.is_here
        await a.look()
        assert a.moves == [1, None, b.node.id]


async def test_who_was_stopped_by_order_does_not_ask_for_it() -> None:
    async with holders(Clock()) as (a, b):
        a.place.may_bid = lambda: False
        await a.look()
        assert a.moves == []
        await b.look()
        await a.look()
        assert a.moves == [b.node.id]


async def test_it_is_given_up_when_the_node_ends_or_the_server_is_there_no_more() -> None:
    async with holders(Clock()) as (a, b):
        await a.look()
        await a.leasing.forget("files")
        assert a.node.peers.runs == {}
        await b.look()
        assert b.place.is_here
        await b.leasing.close()
        assert list(b.leasing) == []
        again = a.leasing.place("files")
        await a.leasing.look(again)
        assert again.is_here
        a.node.bus.cut_off()
        # It ends by itself where nobody can be told.
        await a.leasing.close()


async def test_a_started_node_finds_out_by_itself_and_is_poked_by_a_death() -> None:
    clock = Clock()
    async with holders(clock) as (a, b):
        await b.look()
        try:
            await a.leasing.start()
            assert a.place.other_node == b.node.id
            clock.passes(LIFETIME * 1.1)
            await b.node.peers.close()
            await settled(100)
            assert a.place.is_here
            other = a.leasing.place("other")
            other.check_requested.set()
            await settled(100)
            assert other.is_here
        finally:
            await a.leasing.close()


async def test_a_node_that_cannot_ask_says_that_it_is_cut_off() -> None:
    clock = Clock()
    async with holders(clock) as (a, _):
        await a.look()
        a.node.bus.cut_off()
        a.node.bus.watch(lambda _: None)
        await a.look()
        clock.passes(3 * 3600)
        assert a.node.peers.cut_off
        a.node.bus.rejoin()
        await a.look()
        assert a.node.peers.cut_off == ""
