"""The other nodes: who is there, who has fallen silent, and whether this one can hear any of them.

Rule 1: a node that was silent for too long is dead until it is heard of again; one that has said
        goodbye is never heard of again, since a start makes another one.
Rule 2: silence proves nothing while this node itself hears nobody; then nobody dies.
Rule 3: what is about a node of which nothing is known is put off until all had time to speak up.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.kernel.chores import Chores
from comity.ports.clustering import Bus, Heard, Interest
from comity.wire import nodes
from comity.wire.errors import CUT_OFF, MalformedMessage, Unavailable
from comity.wire.nodes import Beat, Node

log = logging.getLogger(__name__)

SOON: Final = timedelta(seconds=1)
MOST_REMEMBERED: Final = 1000

type Watcher = Callable[[str, bool], None]
"""Told the id of a node, and whether it appeared or died."""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often nodes give signs of life, and how long one may go without."""

    every: timedelta = timedelta(seconds=1)
    dead_after: timedelta = timedelta(seconds=5)

    @property
    def moment(self) -> float:
        """How long the bus may be away before that counts: it comes back from most cuts sooner."""
        return 2 * self.every.total_seconds()


@dataclass(slots=True)
class Peer:
    """Another node, as it last said of itself."""

    node: Node
    heard: float
    runs: Mapping[str, int]


class Peers:
    """Every node that lives, by what it says."""

    def __init__(
        self,
        bus: Bus,
        me: Node,
        prefix: str,
        rhythm: Rhythm,
        now: Callable[[], float],
    ) -> None:
        self.me = me
        self.prefix = prefix
        self.rhythm = rhythm
        # What this node says that it alone may run.
        self.runs: dict[str, int] = {}
        self._bus = bus
        self._now = now
        self._alive: dict[str, Peer] = {}
        self._left: dict[str, None] = {}
        # Those that fell silent, until they or another start of theirs is heard.
        self._silent: dict[str, str] = {}
        self._watchers: list[Watcher] = []
        self._interest: Interest | None = None
        self._chores = Chores("the signs of life")
        # Since when the bus is there or away; a node that starts has not heard anybody yet.
        self._since = now()
        self._is_there = False
        # Why the others cannot be reached though the bus seems to be there.
        self._doubt: tuple[str, float] | None = None

    def __iter__(self) -> Iterator[Peer]:
        return iter(list(self._alive.values()))

    def __len__(self) -> int:
        return len(self._alive)

    def watch(self, watcher: Watcher) -> None:
        """Have it told of every node that appears or dies."""
        self._watchers.append(watcher)

    async def open(self) -> None:
        self._bus.watch(self._changed)
        self._interest = await self._bus.subscribe(f"{self.prefix}.nodes", self._hear)
        self._changed(self._bus.is_connected)
        self._chores.start(self._live())

    async def close(self) -> None:
        """Say goodbye, so that nobody has to wait for this node to be missed."""
        self._chores.cancel()
        self._say(Beat(self.me.name, self.me.epoch, leaves=True))
        if self._interest is not None:
            await self._interest.close()

    @property
    def silent(self) -> int:
        """How many nodes fell silent without a goodbye, and have not been heard since."""
        return len(self._silent)

    def is_alive(self, node: str) -> bool:
        return node in self._alive

    def of_epoch(self, epoch: str) -> str | None:
        """The id of the living node of that epoch."""
        return next((id for id, peer in self._alive.items() if peer.node.epoch == epoch), None)

    @property
    def cut_off(self) -> str:
        """Why this node cannot reach the others; empty while it can."""
        away = self._now() - self._since
        if not self._is_there and away > self.rhythm.moment:
            return f"the bus between the nodes has been away for {away:.0f} s"
        if self._doubt is not None and self._now() - self._doubt[1] > self.rhythm.moment:
            return self._doubt[0]
        return ""

    @property
    def has_heard_all(self) -> bool:
        """Whether every node had the time to be heard since this one could hear."""
        return self._is_there and self._now() - self._since > self.rhythm.moment

    def doubt(self, because: str) -> None:
        """Note that the others could not be reached, or (with no reason) that they could."""
        if not because:
            self._doubt = None
        elif self._doubt is None:
            self._doubt = (because, self._now())

    def require(self) -> None:
        """Raise Unavailable unless the others can be reached."""
        if because := self.cut_off or ("" if self._is_there else "the bus is away"):
            raise Unavailable(f"this node is cut off from the others: {because}", CUT_OFF, SOON)

    def beat(self, *, asks: bool = False) -> None:
        """Give a sign of life."""
        self._say(Beat(self.me.name, self.me.epoch, asks=asks, runs=dict(self.runs)))

    def look(self) -> None:
        """Find out who has fallen silent."""
        if not self._is_there:
            return
        horizon = self._now() - self.rhythm.dead_after.total_seconds()
        for id, peer in list(self._alive.items()):
            if peer.heard < horizon:
                log.warning("node %s has fallen silent, and counts as dead", id)
                self._bury(id)
                self._silent[id] = peer.node.name
                if len(self._silent) > MOST_REMEMBERED:
                    del self._silent[next(iter(self._silent))]

    async def _live(self) -> None:
        while True:
            self.beat()
            self.look()
            await asyncio.sleep(self.rhythm.every.total_seconds())

    def _changed(self, is_there: bool) -> None:
        if is_there == self._is_there:
            return
        self._is_there, self._since = is_there, self._now()
        if is_there:
            # Nobody could be heard meanwhile; so nobody was silent.
            for peer in self._alive.values():
                peer.heard = self._since
            self.beat(asks=True)
        else:
            log.warning("the bus between the nodes is away")

    def _say(self, beat: Beat) -> None:
        try:
            self._bus.publish(f"{self.prefix}.nodes", nodes.encode(beat))
        except Unavailable as error:
            log.debug("no sign of life can be given: %s", error)

    def _hear(self, heard: Heard) -> None:
        try:
            beat = nodes.decode(heard.data)
        except MalformedMessage as error:
            log.warning("%s", error)
            return
        node = Node(beat.name, beat.epoch)
        if node.id == self.me.id or node.id in self._left:
            return
        if beat.leaves:
            self._left[node.id] = None
            if len(self._left) > MOST_REMEMBERED:
                del self._left[next(iter(self._left))]
            self._bury(node.id)
            return
        is_new = node.id not in self._alive
        self._alive[node.id] = Peer(node, self._now(), beat.runs)
        if is_new:
            log.info("node %s is there", node.id)
            self._silent = {id: name for id, name in self._silent.items() if name != node.name}
            self._tell(node.id, True)
        if beat.asks:
            self.beat()

    def _bury(self, id: str) -> None:
        if self._alive.pop(id, None) is not None:
            self._tell(id, False)

    def _tell(self, id: str, is_alive: bool) -> None:
        for watcher in self._watchers:
            try:
                watcher(id, is_alive)
            except Exception:
                log.exception("a watcher of the nodes failed")
