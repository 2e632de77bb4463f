"""A gateway as one of several nodes, joined from the settings: who is there, and who runs what."""

import asyncio
import contextlib
import platform
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Final

from comity.adapters.buses import Reached, open_bus
from comity.app.eventing import Eventing
from comity.app.reaching import limits_of
from comity.config import ServerSettings, Settings
from comity.kernel.bridge import Bridge
from comity.kernel.carrying import Carrying
from comity.kernel.catalog import Catalog
from comity.kernel.certainty import sleepless_clock
from comity.kernel.chores import Chores
from comity.kernel.event_span import EventSpan
from comity.kernel.forwarding import OneServer
from comity.kernel.gate import Gate
from comity.kernel.homes import Homes
from comity.kernel.leasing import Leasing, Place
from comity.kernel.parking import Parking
from comity.kernel.peers import Peers, Rhythm
from comity.kernel.placing import Placed, environment
from comity.kernel.reached import BOTH_ERAS
from comity.kernel.relayed import WHAT, AtOwner, CarriedUnderway, Relay
from comity.kernel.servers import ServerOptions, Servers
from comity.kernel.sessions import Sessions
from comity.kernel.subscribing import Subscriptions
from comity.kernel.topic_span import TopicSpan
from comity.kernel.topics import Topics
from comity.ports import Reach
from comity.ports.clustering import Bus, Lease, Leases
from comity.rules.keys import mac
from comity.rules.restarts import Restarts
from comity.surfaces.auth_member import AuthMember
from comity.surfaces.elsewhere import Elsewhere, FromElsewhere
from comity.surfaces.gateway import Gateway
from comity.surfaces.probes import Probes
from comity.wire.errors import Misconfigured
from comity.wire.exposition import Family
from comity.wire.lifecycle import Reason, RestartPolicy
from comity.wire.nodes import EPOCH_BYTES, SECRET_BYTES, new_node

_HEADROOM: Final = 1024 * 1024
"""What surrounds a message on its way between nodes."""

_SUMS_EVERY: Final = 5
_SHORTEST_LEASE: Final = timedelta(seconds=6)
_ELSEWHERE: Final = Restarts(RestartPolicy.ALWAYS, None)
"""Whatever was decided of its process is the business of the node that runs it."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The parts of a gateway that a cluster touches."""

    servers: Servers
    catalog: Catalog
    sessions: Sessions
    parking: Parking
    gateway: Gateway
    auth: AuthMember
    probes: Probes
    topics: Topics
    eventing: Eventing


@dataclass(frozen=True, slots=True)
class _Way:
    """Both ways to one server, of which one is open at a time."""

    place: Place
    placed: Placed
    relay: Relay
    order: asyncio.Lock


class Cluster:
    """This node among the others."""

    def __init__(self, settings: Settings, bus: Bus, leases: Leases) -> None:
        self.bus = bus
        self._settings = settings
        now = sleepless_clock()
        rhythm = Rhythm(settings.cluster_heartbeat, settings.cluster_dead_after)
        me = new_node(settings.cluster_node or platform.node(), secrets.token_bytes(EPOCH_BYTES))
        self.peers = Peers(bus, me, settings.cluster_name, rhythm, now)
        self.carrying = Carrying(bus, self.peers, settings.frame_bytes + _HEADROOM)
        self.leasing = Leasing(leases, self.peers, now)
        self._homes = Homes(self.peers, self.carrying)
        self._servers: Servers | None = None
        # By what calls that other nodes have judged are let pass here.
        self.gate: Gate | None = None
        self._spans: list[TopicSpan | EventSpan] = []
        self._ways: dict[str, _Way] = {}
        self._chores = Chores("the cluster")
        self._looks = 0

    def join(self, parts: Joined) -> None:
        """Have this gateway act as one of several."""
        self._servers = parts.servers
        events, told = parts.eventing.events, parts.eventing.servers
        told.is_only_here = self._runs
        self._spans = [
            TopicSpan(self.bus, self.peers, parts.topics),
            EventSpan(self.bus, self.peers, events, told),
        ]
        me = self.peers.me
        parts.sessions.name = lambda: me.session_id(secrets.token_bytes(SECRET_BYTES))
        parts.gateway.elsewhere = Elsewhere(self._homes, limits_of(self._settings), parts.auth)
        self._homes.answer(FromElsewhere(parts.gateway).answer)
        parts.probes.cut_off = lambda: self.peers.cut_off
        parts.probes.nodes = lambda: {"nodes": len(self.peers), "silent": self.peers.silent}
        parts.probes.sources.append(self.figures)
        # What comes from other nodes was judged there; so this gate lets everything pass.
        gate = self.gate = Gate(parts.catalog)
        subscriptions = Subscriptions(parts.servers, gate)
        bridge, underway = Bridge(parts.catalog, parts.parking), CarriedUnderway(time.monotonic)
        desks: dict[str, OneServer] = {}

        def desk_of(name: str) -> OneServer | None:
            way, server = self._ways.get(name), parts.servers.get(name)
            if way is None or server is None or not way.place.is_here:
                return None
            if name not in desks:
                desks[name] = OneServer(server, gate, underway, bridge, subscriptions)
            desks[name].turn_to(server)
            return desks[name]

        self.carrying.answer(WHAT, AtOwner(desk_of, limits_of(self._settings)).answer)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Among the others, until the end; what this node held is then free."""
        await self.bus.open()
        try:
            await self.carrying.start()
            await self.peers.open()
            await self.leasing.start()
            for span in self._spans:
                await span.open()
            yield
        finally:
            for span in self._spans:
                await span.close()
            await self.carrying.close()
            await self.leasing.close()
            await self.peers.close()
            await self.bus.close()

    def look(self, patience: float) -> None:
        del patience
        self._looks += 1
        if self._looks % _SUMS_EVERY == 0 or self.peers.cut_off:
            self.carrying.look()

    def reach(
        self,
        server: ServerSettings,
        make: Callable[[ServerSettings], Reach],
        options: ServerOptions,
    ) -> Reach:
        """How a server is reached of which there is one: here, or at another node."""
        place = self.leasing.place(server.id)

        def here(lease: Lease) -> Reach:
            return make(replace(server, env={**server.env, **environment(lease)}))

        relay = Relay(place, self.carrying)
        placed = Placed(place, options.links.eras, here, relay)
        self._ways[server.id] = _Way(place, placed, relay, asyncio.Lock())
        place.moved = partial(self._moved, server.id)
        place.bids = partial(self._bids, server.id)
        return placed

    def options(self, options: ServerOptions) -> ServerOptions:
        """How such a server is treated: in which eras, the way to it decides."""
        links = replace(options.links, eras=BOTH_ERAS)
        return replace(options, links=links, restarts_elsewhere=_ELSEWHERE)

    def forget(self, name: str) -> None:
        """A server is there no more, or each node runs it; so it is nobody's."""
        if self._ways.pop(name, None) is not None:
            self._chores.start(self.leasing.forget(name))

    def _runs(self, name: str) -> bool:
        """Whether a server runs at this node and at no other."""
        way = self._ways.get(name)
        return way is not None and way.place.is_here

    def is_elsewhere(self, name: str) -> bool:
        """Whether a server runs at another node, and is only reached from here."""
        way = self._ways.get(name)
        return way is not None and not way.place.is_here

    def _bids(self, name: str) -> bool:
        """Whether this node would run it: not where an operator has stopped it."""
        server = None if self._servers is None else self._servers.get(name)
        return server is not None and not server.is_halted

    async def _moved(self, name: str) -> None:
        """End what runs where it may not any more, and turn to where it runs now."""
        way = self._ways.get(name)
        if way is None:
            return
        way.relay.end()
        ending = asyncio.ensure_future(way.placed.end())
        async with way.order:
            servers = self._servers
            server = servers.get(name) if servers is not None and servers.is_started else None
            if server is not None and not server.is_halted:
                await server.restart(Reason.CONFIGURATION_CHANGE)
            await ending

    def figures(self) -> Iterable[Family]:
        held = sum(place.is_here for place in self.leasing)
        yield _gauge("comity_cluster_nodes", "Other nodes that are alive.", len(self.peers))
        yield _gauge(
            "comity_cluster_cut_off",
            "Whether this node cannot reach the others.",
            int(bool(self.peers.cut_off)),
        )
        yield _gauge("comity_cluster_leases", "Servers that this node alone runs.", held)
        yield _gauge(
            "comity_cluster_streams",
            "Requests under way between this node and others.",
            len(self.carrying),
        )
        yield Family(
            "comity_cluster_messages_refused_total",
            "counter",
            "Messages on NATS that were dropped because no other node had sent them.",
            [((("reason", reason),), count) for reason, count in self.bus.refused.items()],
        )


def make_cluster(settings: Settings, pepper: bytes) -> Cluster | None:
    """Raises Misconfigured where the settings name something that cannot be."""
    if not settings.cluster_url:
        return None
    if settings.cluster_dead_after < 3 * settings.cluster_heartbeat:
        raise Misconfigured("dead_after in [cluster] must be three heartbeats at least")
    if settings.cluster_lease < _SHORTEST_LEASE:
        raise Misconfigured("lease in [cluster] must be 6s at least: half of it is for one answer")
    return Cluster(settings, *open_bus(reached_at(settings, pepper)))


def reached_at(settings: Settings, pepper: bytes) -> Reached:
    return Reached(
        settings.cluster_url,
        settings.cluster_name,
        settings.cluster_lease,
        mac(pepper, b"nodes of " + settings.cluster_name.encode()),
        settings.cluster_credentials_file,
        settings.cluster_authority_file,
        settings.cluster_allow_open_nats,
    )


def _gauge(name: str, meaning: str, value: int) -> Family:
    return Family(name, "gauge", meaning, [((), value)])
