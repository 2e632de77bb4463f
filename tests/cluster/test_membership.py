"""Nodes hear of each other, miss who falls silent, and know when it is they who hear nothing."""

import logging
from secrets import token_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.cluster import nodes
from comity.cluster.in_process import MemoryBusHub
from comity.cluster.nodes import NodeHeartbeat, epoch_in, new_node
from comity.errors import CUT_OFF, MalformedMessage, Unavailable
from tests.support.carriers import Clock, settled
from tests.support.node_house import OneNode, a_node, some_nodes

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
    clock, hub = Clock(), MemoryBusHub()
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

    hub, clock, told = MemoryBusHub(), Clock(), list[str]()
    async with a_node(hub, "a", clock) as a:
        a.peers.watch(fails)
        a.peers.watch(lambda node, _: told.append(node))
        async with a_node(hub, "b", clock) as b:
            await settled()
            assert told == [b.id]
    assert "A listener for nodes failed" in caplog.text


def test_a_node_is_another_one_after_each_start() -> None:
    first, second = new_node("east-1", b"12345678"), new_node("east-1", b"87654321")
    assert first.name == second.name == "east-1"
    assert first.id != second.id
    assert first.id.startswith("east-1-")


@pytest.mark.parametrize("name", ["", "...", "a.b *>", "ä" * 99])
def test_whatever_a_machine_is_called_its_node_fits_into_a_subject(name: str) -> None:
    said = new_node(name, b"12345678").id.replace("-", "").replace("_", "")
    assert said.isascii()
    assert said.isalnum()


def test_a_session_tells_at_which_node_it_is() -> None:
    node = new_node("a", b"12345678")
    assert epoch_in(node.session_id(token_bytes(16))) == node.epoch
    assert node.session_id(token_bytes(16)) != node.session_id(token_bytes(16))
    assert "a-" not in node.session_id(token_bytes(16))


@pytest.mark.parametrize("name", ["", "0" * 32, "0" * 47, "0" * 49, "G" * 48, "0" * 48 + "\n"])
def test_a_name_that_no_node_has_given_is_at_none(name: str) -> None:
    assert epoch_in(name) is None


def test_a_sign_of_life_is_read_as_it_was_given() -> None:
    beat = NodeHeartbeat("a", "0" * 16, runs={"files": 7})
    assert nodes.decode_heartbeat(nodes.encode_heartbeat(beat)) == beat


@given(st.binary(max_size=64))
def test_whatever_comes_is_a_sign_of_life_or_is_refused(data: bytes) -> None:
    try:
        nodes.decode_heartbeat(data)
    except MalformedMessage:
        return
