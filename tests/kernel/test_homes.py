"""A session is where its name says, or nowhere; and nobody says so who cannot know it."""

from secrets import token_bytes

import pytest

from comity.kernel.carrying import Reply
from comity.kernel.homes import Homes
from comity.wire.errors import CUT_OFF, Unavailable
from tests.kernel.carriers import Clock, settled
from tests.kernel.node_house import OneNode, some_nodes

HOUR = 3600.0


def homes_of(node: OneNode) -> Homes:
    return Homes(node.peers, node.carrying)


async def test_a_session_is_at_the_node_that_named_it() -> None:
    async with some_nodes("a", "b") as (a, b):
        homes, session = homes_of(a), b.peers.me.session_id(token_bytes(16))
        assert homes.home_of(session) == b.id
        assert homes.home_of(a.peers.me.session_id(token_bytes(16))) is None
        assert homes.home_of("anything else") is None
        assert homes_of(b).home_of(session) is None


async def test_a_session_of_a_dead_node_is_nowhere() -> None:
    clock = Clock()
    async with some_nodes("a", "b", clock=clock) as (a, b):
        session = b.peers.me.session_id(token_bytes(16))
        clock.passes(6 * HOUR)
        a.peers.look()
        assert homes_of(a).home_of(session) is None


async def test_who_cannot_know_where_a_session_is_says_to_come_back() -> None:
    clock = Clock()
    async with some_nodes("a", "b", clock=clock) as (a, b):
        unknown = b.peers.me.session_id(token_bytes(16)).replace(b.peers.me.epoch, "f" * 16)
        with pytest.raises(Unavailable) as refused:
            homes_of(a).home_of(unknown)
        assert refused.value.fault is CUT_OFF
        clock.passes(3 * HOUR)
        assert homes_of(a).home_of(unknown) is None
        a.bus.cut_off()
        clock.passes(9 * HOUR)
        with pytest.raises(Unavailable):
            homes_of(a).home_of(unknown)
        # Of one that was there it is known; only nothing can be said to it.
        assert homes_of(a).home_of(b.peers.me.session_id(token_bytes(16))) == b.id


async def test_a_request_is_answered_at_home() -> None:
    async def answer(head: bytes, body: bytes, reply: Reply) -> None:
        await reply.send(head + body)

    async with some_nodes("a", "b") as (a, b):
        homes_of(b).answer(answer)
        answers = await homes_of(a).ask(b.id, b"head ", b"body")
        assert [piece async for piece in answers] == [b"head body"]
        await settled()
