"""Nodes of one test, joined by a bus in memory and a clock that passes when the test says so."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from secrets import token_bytes

from comity.cluster.in_process import MemoryBus, MemoryBusHub
from comity.cluster.nodes import ClusterMembers, HeartbeatSettings, new_node
from comity.cluster.streams import ClusterStreams
from tests.support.carriers import Clock, settled

MOST_BYTES = 4 * 1024 * 1024
# Nobody beats by itself within a test: the hand that drives the clock says when.
RHYTHM = HeartbeatSettings(timedelta(hours=1), timedelta(hours=5))


@dataclass(frozen=True, slots=True)
class OneNode:
    bus: MemoryBus
    peers: ClusterMembers
    carrying: ClusterStreams

    @property
    def id(self) -> str:
        return self.peers.me.id


@asynccontextmanager
async def a_node(hub: MemoryBusHub, name: str, clock: Clock) -> AsyncGenerator[OneNode]:
    bus = MemoryBus(hub)
    await bus.open()
    peers = ClusterMembers(bus, new_node(name, token_bytes(8)), "test", RHYTHM, clock)
    carrying = ClusterStreams(bus, peers, MOST_BYTES)
    await carrying.start()
    await peers.open()
    try:
        yield OneNode(bus, peers, carrying)
    finally:
        await carrying.close()
        await peers.close()
        await bus.close()


@asynccontextmanager
async def some_nodes(*names: str, clock: Clock | None = None) -> AsyncGenerator[list[OneNode]]:
    hub, clock = MemoryBusHub(), Clock() if clock is None else clock
    async with AsyncExitStack() as nodes:
        made = [await nodes.enter_async_context(a_node(hub, name, clock)) for name in names]
        await settled()
        yield made
