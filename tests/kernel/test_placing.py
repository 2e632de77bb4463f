"""A server that runs here by a lease: fenced in all it is told, and gone when the lease is."""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest

from comity.kernel.leasing import Place
from comity.kernel.placing import FENCE, Fenced, Placed, environment, fenced
from comity.ports import Carrier, Reach, Receiver
from comity.ports.clustering import Lease
from comity.wire import jsonrpc, mcp
from comity.wire.errors import SERVER_NOT_READY, Unavailable
from comity.wire.mcp import UNKNOWN, Era
from tests.kernel.carriers import Clock, Script, ScriptedCarrier, params_of, settled, until

LIFETIME = 12.0
LEASE = Lease("server.files", "a-1", 7)


@dataclass
class Heard:
    """A receiver, of which only the end matters here."""

    ends: list[str] = field(default_factory=list[str])

    def closed(self, because: str) -> None:
        self.ends.append(because)


@dataclass
class Scene:
    clock: Clock = field(default_factory=Clock)
    script: Script = field(default_factory=lambda: Script(costs_a_process=True))
    heard: Heard = field(default_factory=Heard)

    def __post_init__(self) -> None:
        self.place = Place("files", LIFETIME, self.clock)
        self.there = Script(modern=True)
        self.leases: list[Lease] = []
        eras = frozenset({Era.HANDSHAKE})
        self.placed = Placed(self.place, eras, self.here, self.there)

    def here(self, lease: Lease) -> Reach:
        self.leases.append(lease)
        return self.script

    @property
    def receiver(self) -> Receiver:
        return cast("Receiver", self.heard)

    async def opened(self) -> Carrier:
        carrier = self.placed.carrier(Era.HANDSHAKE)
        await carrier.open(self.receiver)
        return carrier


def test_it_is_a_process_only_where_this_node_holds_the_lease() -> None:
    scene = Scene()
    assert not scene.placed.costs_a_process
    assert isinstance(scene.placed.carrier(Era.MODERN), ScriptedCarrier)
    assert len(scene.there.carriers) == 1
    scene.place.hold(LEASE, scene.clock())
    assert scene.placed.costs_a_process
    assert isinstance(scene.placed.carrier(Era.HANDSHAKE), Fenced)
    assert scene.leases == [LEASE]
    assert environment(LEASE) == {"COMITY_FENCE": "7", "COMITY_NODE": "a-1"}


async def test_each_call_carries_the_fence_whatever_its_client_says() -> None:
    scene = Scene()
    scene.place.hold(LEASE, scene.clock())
    carrier = await scene.opened()
    params = {"name": "write", "_meta": {FENCE: 999, "progressToken": 1}}
    carrier.send(jsonrpc.request(1, mcp.CALL_TOOL, params), UNKNOWN)
    carrier.send(jsonrpc.request(2, mcp.LIST_TOOLS, {}), UNKNOWN)
    call, listing = (sent.frame for sent in scene.script.last.sent)
    assert params_of(call) == {"name": "write", "_meta": {FENCE: 7, "progressToken": 1}}
    assert params_of(listing) == {}
    bare = fenced(jsonrpc.request(1, mcp.CALL_TOOL, {"name": "x"}), 8)
    assert params_of(bare) == {"name": "x", "_meta": {FENCE: 8}}


async def test_a_gateway_that_stood_still_finds_out_before_it_speaks() -> None:
    scene = Scene()
    scene.place.hold(LEASE, scene.clock())
    carrier = await scene.opened()
    scene.clock.passes(LIFETIME / 2)
    with pytest.raises(Unavailable) as refused:
        carrier.send(jsonrpc.request(1, mcp.CALL_TOOL, {"name": "write"}), UNKNOWN)
    assert refused.value.fault is SERVER_NOT_READY
    assert scene.script.last.sent == []
    with pytest.raises(Unavailable):
        await scene.placed.carrier(Era.HANDSHAKE).open(scene.receiver)
    assert len(scene.script.open) == 1


async def test_a_process_of_a_lease_of_before_is_told_nothing_by_a_later_one() -> None:
    scene = Scene()
    scene.place.hold(LEASE, scene.clock())
    carrier = await scene.opened()
    scene.place.hold(LEASE._replace(token=9), scene.clock())
    with pytest.raises(Unavailable):
        carrier.send(jsonrpc.request(1, mcp.PING), UNKNOWN)


async def test_it_is_spoken_to_only_in_the_eras_that_its_operator_wants() -> None:
    scene = Scene()
    scene.place.hold(LEASE, scene.clock())
    with pytest.raises(Unavailable, match="era"):
        await scene.placed.carrier(Era.MODERN).open(scene.receiver)
    assert scene.script.open == []


async def test_when_the_lease_is_lost_all_that_runs_here_is_ended() -> None:
    scene = Scene()
    scene.place.hold(LEASE, scene.clock())
    for _ in range(2):
        await scene.opened()
    scene.place.is_held_by(None)
    async with asyncio.timeout(10):
        await scene.placed.end()
    assert scene.script.open == []
    assert len(scene.heard.ends) == 2
    assert "may not run" in scene.heard.ends[0]


async def test_one_that_does_not_go_is_killed_before_the_lease_is_over() -> None:
    scene, was_killed = Scene(), asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_killed.set()

    scene.place.hold(LEASE, scene.clock())
    carrier = await scene.opened()
    scene.script.last.close = hang
    waiting = asyncio.ensure_future(carrier.close())
    await settled()
    assert not waiting.done()
    scene.clock.passes(LIFETIME * 0.75)
    async with asyncio.timeout(10):
        await scene.placed.end()
    await until(was_killed.is_set)
    # Whoever else waits for its end is not taken for cancelled.
    await waiting


async def test_who_hurries_has_it_killed() -> None:
    scene, was_killed = Scene(), asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_killed.set()

    scene.place.hold(LEASE, scene.clock())
    carrier = await scene.opened()
    scene.script.last.close = hang
    waiting = asyncio.ensure_future(carrier.close())
    await settled()
    waiting.cancel()
    await until(was_killed.is_set)
    assert carrier.hints() == ("last words",)
    assert not carrier.ended_well
    assert not carrier.tells_streams_apart


async def test_all_else_is_the_carriers_own() -> None:
    scene = Scene()
    scene.place.hold(LEASE, scene.clock())
    carrier = await scene.opened()
    carrier.speaks("2025-11-25")
    carrier.listen()
    carrier.pause(1)
    carrier.resume(1)
    carrier.abandon(1)
    inner = scene.script.last
    assert (inner.versions, inner.listens) == (["2025-11-25"], 1)
    assert (inner.paused, inner.abandoned) == ([(True, 1), (False, 1)], [1])
