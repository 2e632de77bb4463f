"""One node holds what only one may; it lets go before anybody else can take it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from comity.adapters.memory.leases import LeaseBook, MemoryLeases
from comity.kernel.leasing import OVER_AT, Leasing, Place
from comity.wire.errors import SERVER_NOT_READY, Unavailable
from tests.kernel.carriers import Clock, settled
from tests.kernel.node_house import OneNode, some_nodes

LIFETIME = 12.0


@dataclass
class Holder:
    """A node, and what it does about one server."""

    node: OneNode
    leasing: Leasing
    place: Place
    moves: list[int | str | None] = field(default_factory=list[int | str | None])

    async def look(self) -> None:
        await self.leasing.look(self.place)
        await settled()

    async def moved(self) -> None:
        lease = self.place.lease
        self.moves.append(self.place.elsewhere if lease is None else lease.token)


@asynccontextmanager
async def holders(clock: Clock) -> AsyncGenerator[list[Holder]]:
    book = LeaseBook(timedelta(seconds=LIFETIME), clock)
    async with some_nodes("a", "b", clock=clock) as nodes:
        made: list[Holder] = []
        for node in nodes:
            leasing = Leasing(MemoryLeases(book, node.bus), node.peers, clock)
            holder = Holder(node, leasing, leasing.place("files"))
            holder.place.moved = holder.moved
            made.append(holder)
        yield made


async def test_the_first_to_ask_runs_it_and_the_others_learn_who_does() -> None:
    async with holders(Clock()) as (a, b):
        await a.look()
        await b.look()
        assert a.place.is_here
        assert not b.place.is_here
        assert b.place.elsewhere == a.node.id
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
        assert 0 < a.place.left(OVER_AT) < LIFETIME / 3
        await b.look()
        assert not b.place.is_here
        clock.passes(LIFETIME * 0.6)
        await b.look()
        assert b.place.lease is not None
        assert b.place.lease.token > lease.token
        a.node.bus.rejoin()
        await a.look()
        assert a.place.elsewhere == b.node.id


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
        a.place.bids = lambda: False
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
            assert a.place.elsewhere == b.node.id
            clock.passes(LIFETIME * 1.1)
            await b.node.peers.close()
            await settled(100)
            assert a.place.is_here
            other = a.leasing.place("other")
            other.poked.set()
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
