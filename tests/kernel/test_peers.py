"""Nodes hear of each other, miss who falls silent, and know when it is they who hear nothing."""

import logging

import pytest

from comity.adapters.memory.bus import Hub
from comity.wire.errors import CUT_OFF, Unavailable
from tests.kernel.carriers import Clock, settled
from tests.kernel.node_house import OneNode, a_node, some_nodes

HOUR = 3600.0


def known_to(node: OneNode) -> set[str]:
    return {peer.node.name for peer in node.peers}


async def test_nodes_hear_of_each_other_as_soon_as_they_start() -> None:
    async with some_nodes("a", "b", "c") as (a, b, c):
        assert (known_to(a), known_to(b), known_to(c)) == ({"b", "c"}, {"a", "c"}, {"a", "b"})
        assert a.peers.of_epoch(b.peers.me.epoch) == b.id
        assert a.peers.of_epoch("0" * 16) is None


async def test_one_that_is_silent_for_too_long_is_dead_until_it_is_heard_again() -> None:
    clock = Clock()
    async with some_nodes("a", "b", "c", clock=clock) as (a, b, c):
        told: list[tuple[str, bool]] = []
        a.peers.watch(lambda node, is_alive: told.append((node, is_alive)))
        clock.passes(4 * HOUR)
        c.peers.beat()
        await settled()
        clock.passes(2 * HOUR)
        a.peers.look()
        assert told == [(b.id, False)]
        assert not a.peers.is_alive(b.id)
        assert a.peers.silent == 1
        b.peers.beat()
        await settled()
        assert told == [(b.id, False), (b.id, True)]
        assert a.peers.silent == 0


async def test_one_that_fell_silent_is_missed_until_a_node_of_its_name_is_there() -> None:
    clock, hub = Clock(), Hub()
    async with a_node(hub, "a", clock) as a:
        async with a_node(hub, "b", clock) as b:
            await settled()
            b.bus.cut_off()
        clock.passes(6 * HOUR)
        a.peers.look()
        assert (len(a.peers), a.peers.silent) == (0, 1)
        async with a_node(hub, "c", clock):
            await settled()
            assert (len(a.peers), a.peers.silent) == (1, 1)
        async with a_node(hub, "b", clock):
            await settled()
            assert (len(a.peers), a.peers.silent) == (1, 0)
        await settled()
        assert (len(a.peers), a.peers.silent) == (0, 0), "it has said goodbye"


async def test_one_that_says_goodbye_is_missed_at_once_and_for_good() -> None:
    async with some_nodes("a", "b") as (a, b):
        await b.peers.close()
        await settled()
        assert known_to(a) == set()
        b.peers.beat()
        await settled()
        assert known_to(a) == set()


async def test_nobody_dies_while_this_node_hears_nothing() -> None:
    clock = Clock()
    async with some_nodes("a", "b", clock=clock) as (a, b):
        a.bus.cut_off()
        clock.passes(9 * HOUR)
        a.peers.look()
        assert a.peers.is_alive(b.id)
        a.bus.rejoin()
        a.peers.look()
        assert a.peers.is_alive(b.id)
        # It had its chance since.
        clock.passes(6 * HOUR)
        b.bus.cut_off()
        a.peers.look()
        assert not a.peers.is_alive(b.id)


async def test_a_short_cut_refuses_what_needs_the_others_and_a_long_one_is_told() -> None:
    clock = Clock()
    async with some_nodes("a", "b", clock=clock) as (a, _):
        clock.passes(3 * HOUR)
        assert a.peers.has_heard_all
        a.peers.require()
        a.bus.cut_off()
        assert a.peers.cut_off == ""
        with pytest.raises(Unavailable, match="the bus is away") as refused:
            a.peers.require()
        assert refused.value.fault is CUT_OFF
        assert refused.value.retry_after is not None
        clock.passes(3 * HOUR)
        assert "has been away" in a.peers.cut_off
        a.bus.rejoin()
        assert a.peers.cut_off == ""
        a.peers.require()
        assert not a.peers.has_heard_all


async def test_a_doubt_counts_only_when_it_lasts() -> None:
    clock = Clock()
    async with some_nodes("a", clock=clock) as (a,):
        a.peers.doubt("leases cannot be reached")
        assert a.peers.cut_off == ""
        clock.passes(3 * HOUR)
        a.peers.doubt("nor now")
        assert a.peers.cut_off == "leases cannot be reached"
        a.peers.doubt("")
        assert a.peers.cut_off == ""


async def test_what_is_no_sign_of_life_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with some_nodes("a", "b") as (a, b):
        with caplog.at_level(logging.WARNING):
            b.bus.publish("test.nodes", b"\xc1 nonsense")
            await settled()
        assert "no sign of life" in caplog.text
        assert known_to(a) == {"b"}


async def test_a_watcher_that_fails_keeps_nobody_from_being_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(node: str, is_alive: bool) -> None:
        raise RuntimeError(node)

    hub, clock, told = Hub(), Clock(), list[str]()
    async with a_node(hub, "a", clock) as a:
        a.peers.watch(fails)
        a.peers.watch(lambda node, _: told.append(node))
        async with a_node(hub, "b", clock) as b:
            await settled()
            assert told == [b.id]
    assert "a watcher of the nodes failed" in caplog.text
