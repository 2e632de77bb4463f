"""The bus and the leases between simulated nodes: late, cut in one direction, lossy, repeating.

The order of what one node sends to another is kept, as on a connection. What is on its way arrives
though its sender has died; what arrives at a dead node is lost.
"""

import asyncio
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from random import Random
from typing import override

from comity.cluster.bus import BusMessage, Lease, is_subject
from comity.cluster.in_process import LeaseBook, MemoryBus, MemoryBusHub, MemoryLeases
from comity.errors import UPSTREAM_DOWN, MalformedMessage, Unavailable
from tests.simulation.loop import SimulationLoop


@dataclass
class SimulatedNetwork:
    """What lies between the nodes."""

    loop: SimulationLoop
    random: Random
    hub: MemoryBusHub = field(default_factory=MemoryBusHub)
    pause: float = 0.002
    loss_rate: float = 0.0
    repeat_rate: float = 0.0
    # From which node nothing reaches which other.
    cuts: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    _arrivals: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])

    def carry(self, sender: "SimulatedBus", receiver: "SimulatedBus", message: BusMessage) -> None:
        way = sender.node, receiver.node
        if way in self.cuts or self.random.random() < self.loss_rate:
            self.loop.note(f"{sender.node} to {receiver.node} lost {message.subject}")
            return
        copies = 2 if self.random.random() < self.repeat_rate else 1
        for _ in range(copies):
            at = self.loop.time() + self.random.expovariate(1 / self.pause)
            # Of what is ready at one moment any may be next, so each has a moment of its own.
            at = self._arrivals[way] = max(at, self._arrivals.get(way, 0.0) + 1e-6)
            self.loop.call_at(at, receiver.receive, message, context=receiver.context)


class SimulatedBus(MemoryBus):
    """The bus of one node."""

    context: Context

    def __init__(self, network: SimulatedNetwork, node: str) -> None:
        super().__init__(network.hub)
        self.node = node
        self._network = network

    @override
    async def open(self) -> None:
        self.context = copy_context()
        await super().open()

    @override
    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        if not self.is_connected:
            raise Unavailable("this node cannot reach other nodes", UPSTREAM_DOWN)
        if not is_subject(subject) or (reply and not is_subject(reply)):
            raise MalformedMessage("not a subject to publish on")
        for other in [*self._network.hub.nodes]:
            if other is not self and isinstance(other, SimulatedBus) and other.is_connected:
                self._network.carry(self, other, BusMessage(subject, bytes(data), reply))

    def receive(self, message: BusMessage) -> None:
        if self.is_connected:
            self.enqueue(message)

    def die(self) -> None:
        """Disappear from the network without a word."""
        if self in self._network.hub.nodes:
            self._network.hub.nodes.remove(self)


class SimulatedLeases(MemoryLeases):
    """The leases as one node sees them, over the network."""

    def __init__(self, book: LeaseBook, bus: SimulatedBus, network: SimulatedNetwork) -> None:
        super().__init__(book, bus)
        self._network = network

    @override
    async def take(self, name: str, holder: str) -> Lease | None:
        await self._travel()
        lease = await super().take(name, holder)
        await self._travel()
        return lease

    @override
    async def renew(self, lease: Lease) -> bool:
        await self._travel()
        is_held = await super().renew(lease)
        await self._travel()
        return is_held

    @override
    async def holder(self, name: str) -> Lease | None:
        await self._travel()
        return await super().holder(name)

    async def _travel(self) -> None:
        await asyncio.sleep(self._network.random.expovariate(1 / self._network.pause))
