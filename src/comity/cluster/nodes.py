"""Node identity, heartbeats, and the members of the cluster."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from comity.cluster.bus import Bus, BusMessage, BusSubscription
from comity.errors import CUT_OFF, MalformedMessage, Unavailable
from comity.toolkit.background import BackgroundTasks

EPOCH_BYTES: Final = 8
SECRET_BYTES: Final = 16
_SESSION: Final = re.compile(rf"([0-9a-f]{{{2 * EPOCH_BYTES}}})[0-9a-f]{{{2 * SECRET_BYTES}}}")
_NOT_IN_A_SUBJECT: Final = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the gateway, for one run of its process."""

    name: str
    epoch: str
    version: str = ""
    started_at: str = ""

    @property
    def id(self) -> str:
        return f"{self.name}-{self.epoch}"

    def session_id(self, secret: bytes) -> str:
        """Return a session id that tells other nodes where the session is, and clients nothing."""
        return self.epoch + secret.hex()


def new_node(name: str, secret: bytes, version: str = "") -> Node:
    """Return a new node of that name. Characters that a subject cannot hold become dashes."""
    plain = _NOT_IN_A_SUBJECT.sub("-", name)[:32].strip("-") or "node"
    return Node(plain, secret.hex(), version, datetime.now(UTC).isoformat(timespec="seconds"))


def epoch_in(session_id: str) -> str | None:
    """Return the epoch of the node of a session, or None if no node made this session id."""
    found = _SESSION.fullmatch(session_id)
    return None if found is None else found.group(1)


class NodeHeartbeat(msgspec.Struct, frozen=True):
    """One heartbeat of a node."""

    name: str
    epoch: str
    # Whether the node is leaving.
    leaves: bool = False
    # Whether the other nodes should send a heartbeat at once.
    asks: bool = False
    # The fencing token of each server that only this node may run.
    runs: Mapping[str, int] = {}
    version: str = ""
    started_at: str = ""


_decoder = msgspec.msgpack.Decoder(NodeHeartbeat)
_encoder = msgspec.msgpack.Encoder()


def encode_heartbeat(heartbeat: NodeHeartbeat) -> bytes:
    return _encoder.encode(heartbeat)


def decode_heartbeat(data: bytes) -> NodeHeartbeat:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"no sign of life of a node: {error}") from None


log = logging.getLogger(__name__)

SOON: Final = timedelta(seconds=1)
MAX_REMEMBERED: Final = 1000
"""How many nodes that left, or that fell silent, are remembered."""

type Watcher = Callable[[str, bool], None]
"""Called with the id of a node, and whether it appeared or died."""


@dataclass(frozen=True, slots=True)
class HeartbeatSettings:
    """How often nodes send heartbeats, and after what silence a node counts as dead."""

    every: timedelta = timedelta(seconds=1)
    dead_after: timedelta = timedelta(seconds=5)

    @property
    def moment(self) -> float:
        """How long the bus may be away unnoticed. Most outages are shorter."""
        return 2 * self.every.total_seconds()


@dataclass(slots=True)
class PeerNode:
    """Another node, as of its last heartbeat."""

    node: Node
    heard: float
    runs: Mapping[str, int]


class ClusterMembers:
    """All live nodes, by their heartbeats."""

    def __init__(
        self,
        bus: Bus,
        me: Node,
        prefix: str,
        rhythm: HeartbeatSettings,
        now: Callable[[], float],
    ) -> None:
        self.me = me
        self.prefix = prefix
        self.rhythm = rhythm
        # The servers that only this node may run, with their fencing tokens.
        self.runs: dict[str, int] = {}
        self._bus = bus
        self._now = now
        self._alive: dict[str, PeerNode] = {}
        self._left: dict[str, None] = {}
        # Nodes that fell silent, until they or another run of theirs are heard.
        self._silent: dict[str, str] = {}
        self._watchers: list[Watcher] = []
        self._interest: BusSubscription | None = None
        self._background_tasks = BackgroundTasks("the signs of life")
        # Since when the bus is connected or away. A new node has heard no other node yet.
        self._since = now()
        self._is_there = False
        # Why the others cannot be reached although the bus seems to be connected.
        self._doubt: tuple[str, float] | None = None

    def __iter__(self) -> Iterator[PeerNode]:
        return iter(list(self._alive.values()))

    def __len__(self) -> int:
        return len(self._alive)

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` for every node that appears or dies."""
        self._watchers.append(watcher)

    async def open(self) -> None:
        self._bus.watch(self._changed)
        self._interest = await self._bus.subscribe(f"{self.prefix}.nodes", self._hear)
        self._changed(self._bus.is_connected)
        self._background_tasks.start(self._live())

    async def close(self) -> None:
        """Announce the leave, so that the others need not wait for this node to time out."""
        self._background_tasks.cancel()
        self._say(NodeHeartbeat(self.me.name, self.me.epoch, leaves=True))
        if self._interest is not None:
            await self._interest.close()

    @property
    def silent(self) -> int:
        """How many nodes fell silent without leaving, and have not been heard since."""
        return len(self._silent)

    def is_alive(self, node: str) -> bool:
        return node in self._alive

    def of_epoch(self, epoch: str) -> str | None:
        """Return the id of the live node of that epoch, or None."""
        return next((id for id, peer in self._alive.items() if peer.node.epoch == epoch), None)

    @property
    def cut_off(self) -> str:
        """Why this node cannot reach the others. Empty while it can."""
        away = self._now() - self._since
        if not self._is_there and away > self.rhythm.moment:
            return f"the bus between the nodes has been away for {away:.0f} s"
        if self._doubt is not None and self._now() - self._doubt[1] > self.rhythm.moment:
            return self._doubt[0]
        return ""

    @property
    def has_heard_all(self) -> bool:
        """Whether the bus has been connected long enough for every node to send a heartbeat."""
        return self._is_there and self._now() - self._since > self.rhythm.moment

    def doubt(self, reason: str) -> None:
        """Note that the others could not be reached, or (with no reason) that they could."""
        if not reason:
            self._doubt = None
        elif self._doubt is None:
            self._doubt = (reason, self._now())

    def require(self) -> None:
        """Raise Unavailable unless the others can be reached."""
        if reason := self.cut_off or ("" if self._is_there else "the bus is away"):
            raise Unavailable(f"this node cannot reach the other nodes: {reason}", CUT_OFF, SOON)

    def beat(self, *, asks: bool = False) -> None:
        """Send a heartbeat."""
        self._say(
            NodeHeartbeat(
                self.me.name,
                self.me.epoch,
                asks=asks,
                runs=dict(self.runs),
                version=self.me.version,
                started_at=self.me.started_at,
            )
        )

    def look(self) -> None:
        """Find the nodes that have fallen silent, and report their death."""
        if not self._is_there:
            return
        horizon = self._now() - self.rhythm.dead_after.total_seconds()
        for id, peer in list(self._alive.items()):
            if peer.heard < horizon:
                log.warning("Node %s sent no heartbeat and counts as dead", id)
                self._bury(id)
                self._silent[id] = peer.node.name
                if len(self._silent) > MAX_REMEMBERED:
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
            # No heartbeat could arrive while the bus was away, so the silence does not count.
            for peer in self._alive.values():
                peer.heard = self._since
            self.beat(asks=True)
        else:
            log.warning("The bus between the nodes is unavailable")

    def _say(self, heartbeat: NodeHeartbeat) -> None:
        try:
            self._bus.publish(f"{self.prefix}.nodes", encode_heartbeat(heartbeat))
        except Unavailable as error:
            log.debug("no sign of life can be given: %s", error)

    def _hear(self, message: BusMessage) -> None:
        try:
            beat = decode_heartbeat(message.data)
        except MalformedMessage as error:
            log.warning("%s", error)
            return
        node = Node(beat.name, beat.epoch, beat.version, beat.started_at)
        if node.id == self.me.id or node.id in self._left:
            return
        if beat.leaves:
            self._left[node.id] = None
            if len(self._left) > MAX_REMEMBERED:
                del self._left[next(iter(self._left))]
            self._bury(node.id)
            return
        is_new = node.id not in self._alive
        self._alive[node.id] = PeerNode(node, self._now(), beat.runs)
        if is_new:
            log.info("Node %s joined", node.id)
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
                log.exception("A listener for nodes failed")
