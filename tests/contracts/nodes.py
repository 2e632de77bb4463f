"""Nodes for tests, with what is between them: one process, one NATS server, or three of them."""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Protocol

from comity.cluster.bus import Bus, LeaseStore
from comity.cluster.in_process import LeaseBook, MemoryBus, MemoryBusHub, MemoryLeases
from comity.cluster.nats.addresses import NatsAddressList
from comity.cluster.nats.bus import NatsBus
from comity.cluster.nats.jetstream import NatsLeases
from tests.cluster.nats_cluster import SECRET, NatsCluster

SECONDS = 30.0
KINDS = ("memory", "one nats", "three nats")


async def eventually(is_so: Callable[[], bool], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it never came to be"
        await asyncio.sleep(0.005)


class Nodes(Protocol):
    """All of one deployment, which no other test has."""

    async def bus(self) -> Bus:
        """Of one more node, connected."""
        ...

    def leases(self, bus: Bus, lifetime: timedelta) -> LeaseStore: ...

    async def strike(self, victim: Bus) -> None:
        """Something fails that this node, at least, depends on."""
        ...

    async def strike_keeper(self, victim: Bus) -> None:
        """Whoever keeps the leases fails; where all do alike, this node alone is cut off."""
        ...

    async def heal(self) -> None: ...


class InMemory:
    def __init__(self) -> None:
        self._hub = MemoryBusHub()
        self._books: dict[timedelta, LeaseBook] = {}
        self._struck: list[MemoryBus] = []

    async def bus(self) -> MemoryBus:
        bus = MemoryBus(self._hub)
        await bus.open()
        return bus

    def leases(self, bus: Bus, lifetime: timedelta) -> LeaseStore:
        assert isinstance(bus, MemoryBus)
        return MemoryLeases(self._books.setdefault(lifetime, LeaseBook(lifetime)), bus)

    async def strike(self, victim: Bus) -> None:
        assert isinstance(victim, MemoryBus)
        victim.cut_off()
        self._struck.append(victim)

    async def strike_keeper(self, victim: Bus) -> None:
        await self.strike(victim)

    async def heal(self) -> None:
        while self._struck:
            self._struck.pop().rejoin()


class OnNats:
    def __init__(self, cluster: NatsCluster) -> None:
        self._cluster = cluster
        self._addresses = NatsAddressList.of(cluster.urls, f"test_{secrets.token_hex(6)}")
        self.made: list[NatsBus] = []

    async def bus(self) -> NatsBus:
        bus = NatsBus(self._addresses, SECRET)
        self.made.append(bus)
        await bus.open()
        await eventually(lambda: bus.is_connected)
        return bus

    def leases(self, bus: Bus, lifetime: timedelta) -> NatsLeases:
        assert isinstance(bus, NatsBus)
        return NatsLeases(bus, lifetime)

    async def strike(self, victim: Bus) -> None:
        """The server that it is connected to is killed."""
        assert isinstance(victim, NatsBus)
        reached = victim.connection.connected_url
        assert reached is not None
        for server in self._cluster.servers:
            if server.port == reached.port:
                server.kill()

    async def strike_keeper(self, victim: Bus) -> None:
        """The leader of the bucket is killed, where somebody knows it."""
        assert isinstance(victim, NatsBus)
        stream = NatsLeases(victim).stream
        leader = await asyncio.to_thread(self._cluster.leader_of, stream)
        if leader is None:
            await self.strike(victim)
        else:
            leader.kill()

    async def heal(self) -> None:
        await asyncio.to_thread(self._cluster.start)


@asynccontextmanager
async def on_nats(cluster: NatsCluster) -> AsyncGenerator[OnNats]:
    nodes = OnNats(cluster)
    try:
        yield nodes
    finally:
        await nodes.heal()
        for bus in nodes.made:
            await bus.close()


async def insist[T](attempt: Callable[[], Awaitable[T]], *until: type[Exception]) -> T:
    """Again and again while it fails in a way that passes."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return await attempt()
        except until:
            assert time.monotonic() < deadline, "it never came to be"
            await asyncio.sleep(0.05)
