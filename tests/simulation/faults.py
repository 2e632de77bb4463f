"""What goes wrong in a run: a list that follows from the seed and that can be made shorter."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from random import Random
from typing import Final

from tests.simulation.bus import SimulatedNetwork
from tests.simulation.nodes import Cluster, SimulatedNode
from tests.simulation.store import SimulatedDisk
from tests.simulation.upstream import UpstreamFaults


class FaultKind(StrEnum):
    """What goes wrong."""

    KILL = "kill"
    STOP = "stop"
    CUT_OFF = "cut off"
    CUT_ONE_WAY = "cut one way"
    LATE_MESSAGES = "late messages"
    LOST_MESSAGES = "lost messages"
    REPEATED_MESSAGES = "repeated messages"
    SLOW_STORE = "slow store"
    FAILING_STORE = "failing store"
    SLOW_UPSTREAM = "slow upstream"
    SILENT_UPSTREAM = "silent upstream"
    HALF_ANSWERS = "half answers"
    BROKEN_UPSTREAM = "broken upstream"
    CLOCK_JUMP = "clock jump"


@dataclass(frozen=True)
class Fault:
    """One fault: when it begins, how long it lasts, and what it concerns."""

    at: float
    kind: FaultKind
    length: float
    node: int = 0
    size: float = 0.0

    def __str__(self) -> str:
        return f"{self.at:.2f}s {self.kind} node {self.node} for {self.length:.2f}s"


def plan_faults(seed: int, seconds: float, nodes: int) -> list[Fault]:
    """Return the faults of a seed, in their order. Kills are the most frequent."""
    random = Random(f"faults {seed}")  # noqa: S311  # a seed, not a secret
    weights = dict.fromkeys(FaultKind, 1) | {FaultKind.KILL: 4}
    kinds = random.choices([*weights], [*weights.values()], k=random.randint(4, 8))
    faults = [
        Fault(
            random.random() * seconds,
            kind,
            0.2 + random.random() * 2.5,
            random.randrange(nodes),
            random.uniform(-3600, 3600),
        )
        for kind in kinds
    ]
    return sorted(faults, key=lambda fault: fault.at)


@dataclass
class FaultInjector:
    """Makes faults happen in a cluster."""

    cluster: Cluster

    async def run(self, faults: list[Fault]) -> None:
        """Make each fault happen at its time. Return when all are over."""
        loop = self.cluster.machinery.loop
        began = loop.time()
        injected: list[asyncio.Task[None]] = []
        for fault in faults:
            await asyncio.sleep(max(0.0, began + fault.at - loop.time()))
            loop.note(f"fault {fault}")
            injected.append(asyncio.ensure_future(self._inject(fault)))
        await asyncio.gather(*injected)

    async def _inject(self, fault: Fault) -> None:
        nodes = list(self.cluster.nodes.values())
        node = nodes[fault.node]
        other = nodes[(fault.node + 1) % len(nodes)]
        await _INJECTIONS[fault.kind](self, fault, node, other)

    async def restart(self, fault: Fault, node: SimulatedNode, _: SimulatedNode) -> None:
        if not node.is_up:
            return
        if fault.kind is FaultKind.STOP:
            await node.stop()
        else:
            node.kill()
        await asyncio.sleep(fault.length)
        await node.start_patiently()

    async def cut_off(self, fault: Fault, node: SimulatedNode, _: SimulatedNode) -> None:
        run = node.run
        node.cut_off(is_cut=True)
        await asyncio.sleep(fault.length * 2)
        if node.run == run:
            node.cut_off(is_cut=False)

    async def cut_one_way(self, fault: Fault, node: SimulatedNode, other: SimulatedNode) -> None:
        cuts, way = self.cluster.machinery.network.cuts, (node.name, other.name)
        cuts.add(way)
        await asyncio.sleep(fault.length * 2)
        cuts.discard(way)

    async def disturb_network(self, fault: Fault, _: SimulatedNode, __: SimulatedNode) -> None:
        network = self.cluster.machinery.network
        match fault.kind:
            case FaultKind.LATE_MESSAGES:
                network.pause = 0.3
            case FaultKind.LOST_MESSAGES:
                network.loss_rate = 0.2
            case _:
                network.repeat_rate = 0.3
        await asyncio.sleep(fault.length)
        calm_network(network)

    async def disturb_store(self, fault: Fault, _: SimulatedNode, __: SimulatedNode) -> None:
        disk = self.cluster.machinery.disk
        if fault.kind is FaultKind.SLOW_STORE:
            disk.pause = 0.2
        else:
            disk.failure_rate = 0.08
        await asyncio.sleep(fault.length)
        calm_disk(disk)

    async def disturb_upstream(self, fault: Fault, _: SimulatedNode, __: SimulatedNode) -> None:
        upstream = self.cluster.machinery.upstream
        upstream.faults = _UPSTREAM_FAULTS[fault.kind]
        await asyncio.sleep(fault.length)
        upstream.faults = UpstreamFaults()

    async def jump(self, fault: Fault, _: SimulatedNode, __: SimulatedNode) -> None:
        self.cluster.machinery.loop.clock.jump(timedelta(seconds=fault.size))


def calm_network(network: SimulatedNetwork) -> None:
    network.pause, network.loss_rate, network.repeat_rate = 0.002, 0.0, 0.0


def calm_disk(disk: SimulatedDisk) -> None:
    disk.pause, disk.failure_rate = disk.usual_pause, 0.0


def shorten(faults: list[Fault], fails: Callable[[list[Fault]], bool]) -> list[Fault]:
    """Leave out faults, and halve the length of the others, as long as the run still fails."""
    for fault in [*faults]:
        fewer = [each for each in faults if each is not fault]
        if fails(fewer):
            faults = fewer
    for number, fault in enumerate(faults):
        brief = [*faults[:number], replace(fault, length=fault.length / 2), *faults[number + 1 :]]
        if fails(brief):
            faults = brief
    return faults


_UPSTREAM_FAULTS: Final[Mapping[FaultKind, UpstreamFaults]] = {
    FaultKind.SLOW_UPSTREAM: UpstreamFaults(pause=1.0),
    FaultKind.SILENT_UPSTREAM: UpstreamFaults(silence_rate=0.3),
    FaultKind.HALF_ANSWERS: UpstreamFaults(half_answer_rate=0.3),
    FaultKind.BROKEN_UPSTREAM: UpstreamFaults(break_rate=0.2),
}

type Injection = Callable[[FaultInjector, Fault, SimulatedNode, SimulatedNode], Awaitable[None]]

_INJECTIONS: Final[Mapping[FaultKind, Injection]] = {
    FaultKind.KILL: FaultInjector.restart,
    FaultKind.STOP: FaultInjector.restart,
    FaultKind.CUT_OFF: FaultInjector.cut_off,
    FaultKind.CUT_ONE_WAY: FaultInjector.cut_one_way,
    FaultKind.LATE_MESSAGES: FaultInjector.disturb_network,
    FaultKind.LOST_MESSAGES: FaultInjector.disturb_network,
    FaultKind.REPEATED_MESSAGES: FaultInjector.disturb_network,
    FaultKind.SLOW_STORE: FaultInjector.disturb_store,
    FaultKind.FAILING_STORE: FaultInjector.disturb_store,
    FaultKind.CLOCK_JUMP: FaultInjector.jump,
    **dict.fromkeys(_UPSTREAM_FAULTS, FaultInjector.disturb_upstream),
}
