"""A gateway as one of several nodes: its membership, and the node on which each server runs."""

import asyncio
import contextlib
import platform
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from typing import Final

from comity.app.http import HttpApp
from comity.app.settings import ServerSettings, Settings
from comity.catalog.catalog import Catalog
from comity.cluster.bus import Bus, Lease, LeaseStore
from comity.cluster.connect import ClusterAddress, open_bus
from comity.cluster.leases import ServerLocation, ServerPlacement
from comity.cluster.nodes import (
    EPOCH_BYTES,
    SECRET_BYTES,
    ClusterMembers,
    HeartbeatSettings,
    Node,
    new_node,
)
from comity.cluster.streams import ClusterStreams
from comity.errors import Misconfigured
from comity.events.cluster import ClusterEvents
from comity.events.wiring import EventComponents
from comity.gateway.era_bridge import EraBridge, ParkedCalls
from comity.gateway.node_forwarding import FromElsewhere, NodeRequestForwarder
from comity.gateway.one_server import ServerEndpoint
from comity.gateway.pipeline import CallGate
from comity.gateway.remote_servers import (
    STREAM_SUBJECT,
    PlacedServer,
    RemoteCallHandler,
    RemoteCalls,
    RemoteServer,
    SessionRouter,
    lease_environment,
)
from comity.gateway.subscriptions import ListSubscriptions
from comity.identity.http_auth import AuthMember
from comity.identity.keys import mac_of_key
from comity.live.scopes.service import ScopeDenyList, ScopeService
from comity.mcp.eras import UNKEYED_TASK_IDS
from comity.mcp.mgp import RestartPolicy, ShutdownReason
from comity.policy.snapshot import sleepless_clock
from comity.servers.connections import BOTH_ERAS
from comity.servers.lifecycle import RestartRules
from comity.servers.service import ServerService
from comity.servers.supervisor import ServerOptions
from comity.servers.wiring import limits_of
from comity.sessions.upstream import TransportFactory
from comity.telemetry.metrics import MetricFamily
from comity.toolkit.background import BackgroundTasks
from comity.topics.cluster import ClusterTopics
from comity.topics.service import TopicService

_MESSAGE_OVERHEAD_BYTES: Final = 1024 * 1024
"""Bytes allowed for the envelope around a message between nodes."""

_CHECKS_PER_SUMMARY: Final = 5
_MIN_LEASE: Final = timedelta(seconds=6)
_REMOTE_RESTART_RULES: Final = RestartRules(RestartPolicy.ALWAYS, None)
"""Restart rules of a server that runs on another node. That node applies the real ones."""


@dataclass(frozen=True, slots=True)
class ClusterGatewayParts:
    """The parts of a gateway that the cluster code uses."""

    servers: ServerService
    catalog: Catalog
    parked_calls: ParkedCalls
    http_app: HttpApp
    topics: TopicService
    event_components: EventComponents
    scopes: ScopeService


@dataclass(frozen=True, slots=True)
class _ClusterServerRoute:
    """The local and the remote route to one server. Only one of them is open at a time."""

    location: ServerLocation
    placed_server: PlacedServer
    remote_server: RemoteServer
    lock: asyncio.Lock


def make_node(settings: Settings) -> Node:
    """Return this run of the gateway as a node."""
    name = settings.cluster.node or platform.node()
    return new_node(name, secrets.token_bytes(EPOCH_BYTES), version("comity"))


class LocalClusterNode:
    """This gateway as a node of the cluster."""

    def __init__(self, settings: Settings, bus: Bus, leases: LeaseStore) -> None:
        self.bus = bus
        self._settings = settings
        now = sleepless_clock()
        rhythm = HeartbeatSettings(settings.cluster.heartbeat_interval, settings.cluster.dead_after)
        me = make_node(settings)
        self.members = ClusterMembers(bus, me, settings.cluster.name, rhythm, now)
        self.streams = ClusterStreams(
            bus, self.members, settings.limits.max_message_bytes + _MESSAGE_OVERHEAD_BYTES
        )
        self.placement = ServerPlacement(leases, self.members, now)
        self._session_router = SessionRouter(self.members, self.streams)
        self._servers: ServerService | None = None
        self._cluster_services: list[ClusterTopics | ClusterEvents] = []
        self._route_by_server: dict[str, _ClusterServerRoute] = {}
        self._background_tasks = BackgroundTasks("the cluster")
        self._check_count = 0

    def session_id(self) -> str:
        """Return an id for a new session. It tells every node that this node holds the session."""
        return self.members.me.session_id(secrets.token_bytes(SECRET_BYTES))

    def request_forwarder(self, auth: AuthMember) -> NodeRequestForwarder:
        """Return the forwarder that sends a request to the node that holds its session."""
        return NodeRequestForwarder(self._session_router, limits_of(self._settings), auth)

    def isolation_reason(self) -> str:
        """The reason why this node cannot reach the others, or empty while it can."""
        return self.members.cut_off

    def node_counts(self) -> Mapping[str, object]:
        """Return how many nodes there are, with this one, as `comity nodes` lists them."""
        return {"nodes": len(self.members) + 1, "silent": self.members.silent}

    def join(self, parts: ClusterGatewayParts) -> None:
        """Connect the parts of this gateway to the cluster."""
        self._servers = parts.servers
        events, told = parts.event_components.events, parts.event_components.servers
        self._cluster_services = [
            ClusterTopics(self.bus, self.members, parts.topics),
            ClusterEvents(self.bus, self.members, events, told),
        ]
        self._session_router.set_handler(FromElsewhere(parts.http_app).answer)
        # Other nodes authorize their calls before they send them, so this gate allows every call.
        # Only the node that runs a server knows which of its feature sets are enabled.
        gate = CallGate(parts.catalog, scope_checker=ScopeDenyList(parts.scopes))
        subscriptions = ListSubscriptions(parts.servers, gate)
        bridge, active_calls = (
            EraBridge(parts.catalog, parts.parked_calls),
            RemoteCalls(time.monotonic),
        )
        desks: dict[str, ServerEndpoint] = {}

        def desk_of(name: str) -> ServerEndpoint | None:
            way, server = self._route_by_server.get(name), parts.servers.get(name)
            if way is None or server is None or not way.location.is_here:
                return None
            if name not in desks:
                # The node of the client gives tasks their public ids, so none is made here.
                desks[name] = ServerEndpoint(
                    server, gate, active_calls, bridge, subscriptions, UNKEYED_TASK_IDS
                )
            desks[name].replace_server(server)
            return desks[name]

        self.streams.answer(
            STREAM_SUBJECT, RemoteCallHandler(desk_of, limits_of(self._settings)).answer
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Keep this node in the cluster until the context ends, then release its leases."""
        await self.bus.open()
        try:
            await self.streams.start()
            await self.members.open()
            await self.placement.start()
            for span in self._cluster_services:
                await span.open()
            yield
        finally:
            for span in self._cluster_services:
                await span.close()
            await self.streams.close()
            await self.placement.close()
            await self.members.close()
            await self.bus.close()

    def check(self, keep_alive_seconds: float) -> None:
        del keep_alive_seconds
        self._check_count += 1
        if self._check_count % _CHECKS_PER_SUMMARY == 0 or self.members.cut_off:
            self.streams.look()

    def transport_factory(
        self,
        server: ServerSettings,
        make: Callable[[ServerSettings], TransportFactory],
        options: ServerOptions,
    ) -> TransportFactory:
        """Return the transport factory of a server that runs on exactly one node."""
        place = self.placement.place(
            server.id, partial(self._on_server_moved, server.id), partial(self._may_run, server.id)
        )

        def here(lease: Lease) -> TransportFactory:
            return make(replace(server, env={**server.env, **lease_environment(lease)}))

        relay = RemoteServer(place, self.streams)
        placed = PlacedServer(place, options.connections.eras, here, relay)
        self._route_by_server[server.id] = _ClusterServerRoute(place, placed, relay, asyncio.Lock())
        return placed

    def cluster_options(self, options: ServerOptions) -> ServerOptions:
        """Return the options of such a server. The route to it decides its protocol era."""
        connections = replace(options.connections, eras=BOTH_ERAS)
        return replace(options, connections=connections, remote_restart_rules=_REMOTE_RESTART_RULES)

    def release_server(self, name: str) -> None:
        """Give up the lease of a server that was removed, or that each node now runs itself."""
        if self._route_by_server.pop(name, None) is not None:
            self._background_tasks.start(self.placement.forget(name))

    def is_run_here(self, name: str) -> bool:
        """Return whether this node runs the server and no other node does."""
        way = self._route_by_server.get(name)
        return way is not None and way.location.is_here

    def is_run_elsewhere(self, name: str) -> bool:
        """Return whether another node runs the server and this node only forwards to it."""
        way = self._route_by_server.get(name)
        return way is not None and not way.location.is_here

    def _may_run(self, name: str) -> bool:
        """Return whether this node may run the server. An operator may have stopped it."""
        server = None if self._servers is None else self._servers.get(name)
        return server is not None and not server.is_halted

    async def _on_server_moved(self, name: str) -> None:
        """Stop the server where it may no longer run, and connect to the node that runs it now."""
        way = self._route_by_server.get(name)
        if way is None:
            return
        # The old route ends at once, even while an earlier move still restarts the server.
        way.remote_server.close_all()
        ending = asyncio.ensure_future(way.placed_server.stop_local())
        async with way.lock:
            servers = self._servers
            server = servers.get(name) if servers is not None and servers.is_started else None
            if server is not None and not server.is_halted:
                await server.restart(ShutdownReason.CONFIGURATION_CHANGE)
            await ending

    def metric_families(self) -> Iterable[MetricFamily]:
        held = sum(place.is_here for place in self.placement)
        yield MetricFamily(
            "comity_cluster_node_info",
            "gauge",
            "The name of this node; the value is always 1.",
            [((("node", self.members.me.name),), 1)],
        )
        yield _gauge("comity_cluster_nodes", "Other nodes that are alive.", len(self.members))
        yield _gauge(
            "comity_cluster_disconnected",
            "Whether this node cannot reach the others.",
            int(bool(self.members.cut_off)),
        )
        yield _gauge("comity_cluster_leases", "Servers that this node alone runs.", held)
        yield _gauge(
            "comity_cluster_streams",
            "Requests under way between this node and others.",
            len(self.streams),
        )
        yield MetricFamily(
            "comity_cluster_messages_refused_total",
            "counter",
            "Messages on NATS that were dropped because no other node had sent them.",
            [((("reason", reason),), count) for reason, count in self.bus.refused_counts.items()],
        )


def make_cluster(settings: Settings, pepper: bytes) -> LocalClusterNode | None:
    """Return this node, or None without a cluster. Raises Misconfigured for unusable settings."""
    if not settings.cluster.url:
        return None
    if settings.cluster.dead_after < 3 * settings.cluster.heartbeat_interval:
        raise Misconfigured("dead_after in [cluster] must be three heartbeats at least")
    if settings.cluster.lease_ttl < _MIN_LEASE:
        raise Misconfigured("lease in [cluster] must be 6s at least: half of it is for one answer")
    return LocalClusterNode(settings, *open_bus(cluster_address(settings, pepper)))


def cluster_address(settings: Settings, pepper: bytes) -> ClusterAddress:
    return ClusterAddress(
        settings.cluster.url,
        settings.cluster.name,
        settings.cluster.lease_ttl,
        mac_of_key(pepper, b"nodes of " + settings.cluster.name.encode()),
        settings.cluster.credentials_file,
        settings.cluster.ca_file,
        settings.cluster.allow_open_nats,
    )


def _gauge(name: str, meaning: str, value: int) -> MetricFamily:
    return MetricFamily(name, "gauge", meaning, [((), value)])
