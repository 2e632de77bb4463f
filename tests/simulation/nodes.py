"""Whole gateways in one process, each a node that can be killed and started again."""

import asyncio
import json
from asyncio import Future
from collections.abc import Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final, cast

from comity.app import gateway
from comity.app.cluster import LocalClusterNode
from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.settings import ServerSettings, Settings
from comity.app.upstreams import UpstreamRegistry
from comity.cluster.in_process import LeaseBook
from comity.errors import Misconfigured, Unavailable
from comity.gateway.remote_servers import FENCE_VARIABLE
from comity.live import wiring as live_wiring
from comity.policy.risk import RequireApproval, Risk, ToolPolicy
from tests.simulation.bus import SimulatedBus, SimulatedLeases, SimulatedNetwork
from tests.simulation.loop import NODE, SimulationLoop
from tests.simulation.replacing import replace_member
from tests.simulation.store import SimulatedDisk
from tests.simulation.upstream import SimulatedTransportFactory, SimulatedUpstream
from tests.support.settings import settings_with

type Json = dict[str, Any]

OPERATOR_TOKEN: Final = "operator-token-of-the-simulation"
LEASE: Final = timedelta(seconds=6)
STALENESS: Final = timedelta(milliseconds=700)
START_SECONDS: Final = 30.0
EVERYWHERE: Final = "effects"
"""A server that every node reaches by itself."""
ALONE: Final = "alone"
"""A server that one node at a time runs, by a lease."""

_TOOLS: Final = {
    "write": ToolPolicy(risk=Risk.DANGEROUS),
    "wipe": ToolPolicy(risk=Risk.DANGEROUS, require_approval=RequireApproval.ALWAYS),
    "look": ToolPolicy(risk=Risk.SAFE, idempotent=True, max_retries=2),
}


@dataclass
class Machinery:
    """What all nodes share, and what faults act on."""

    loop: SimulationLoop
    folder: Path
    disk: SimulatedDisk
    network: SimulatedNetwork
    upstream: SimulatedUpstream
    leases: LeaseBook
    random: Random


class SimulatedNode:
    """One gateway of the cluster, over all of its runs."""

    def __init__(self, machinery: Machinery, name: str) -> None:
        self.name = name
        self.is_up = False
        self.parts: GatewayParts
        # A set would have an order that depends on addresses in memory.
        self.exchanges: dict[Exchange, None] = {}
        self._machinery = machinery
        self._run_count = 0
        self._bus: SimulatedBus | None = None
        self._end = asyncio.Event()
        self._life: asyncio.Task[None] | None = None

    @property
    def run(self) -> str:
        """The name of the present run of this node."""
        return f"{self.name}#{self._run_count}"

    async def start(self) -> None:
        loop = self._machinery.loop
        self._run_count += 1
        loop.note(f"{self.run} starts")
        self._end = asyncio.Event()
        ready: Future[None] = loop.create_future()
        context = copy_context()
        context.run(NODE.set, self.run)
        running = self._life = loop.create_task(self._live(ready), context=context)
        await asyncio.wait([running, ready], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            try:
                running.result()
            except (Unavailable, Misconfigured) as error:
                loop.note(f"{self.run} did not start: {error}")
                self.kill()
                return
        self.is_up = True

    async def start_patiently(self) -> None:
        """Start as a service manager does: again and again."""
        await self.start()
        while not self.is_up:
            await asyncio.sleep(0.5)
            await self.start()

    async def _live(self, ready: "Future[None]") -> None:
        settings = self._settings()
        async with assemble_gateway(settings, None, OPERATOR_TOKEN) as parts:
            self.parts = parts
            await parts.servers.wait_for_first_starts(timedelta(seconds=START_SECONDS))
            ready.set_result(None)
            await self._end.wait()

    def _settings(self) -> Settings:
        folder = self._machinery.folder
        servers = (
            ServerSettings(EVERYWHERE, EVERYWHERE, "http", url="http://a.test/mcp", tools=_TOOLS),
            ServerSettings(
                ALONE, ALONE, "http", url="http://b.test/mcp", tools=_TOOLS, replicas="single"
            ),
        )
        return settings_with(
            servers=servers,
            store_url=f"sqlite:///{self._machinery.disk.path}",
            store_policy_max_staleness=STALENESS,
            cluster_url="nats://in-memory",
            cluster_node=self.name,
            cluster_lease_ttl=LEASE,
            audit_node=self.name,
            audit_arguments="all",
            audit_write_timeout=timedelta(seconds=2),
            audit_key_file=str(folder / f"{self.name}.key"),
            approvals_client_wait=timedelta(milliseconds=500),
            policy_fallback_validators="off",
            policy_sandbox="none",
            limits_call_idle_timeout=timedelta(seconds=4),
            limits_call_total_timeout=timedelta(seconds=8),
        )

    def kill(self) -> None:
        """End this run as `kill -9` does: nothing of it ever happens again."""
        machinery, run = self._machinery, self.run
        machinery.loop.note(f"{run} is killed")
        self.is_up = False
        machinery.loop.kill(run)
        machinery.disk.kill(run)
        if self._bus is not None:
            self._bus.die()
        for exchange in [*self.exchanges]:
            exchange.lose()

    async def stop(self) -> None:
        """End this run in order, as SIGTERM does."""
        self._machinery.loop.note(f"{self.run} stops")
        self.is_up = False
        self._end.set()
        if self._life is not None:
            await asyncio.wait([self._life], timeout=START_SECONDS)
        self.kill()

    def cut_off(self, *, is_cut: bool) -> None:
        """Separate the node from the bus, or join it again; it knows."""
        if self._bus is not None and self.is_up:
            context = copy_context()
            context.run(NODE.set, self.run)
            context.run(self._bus.cut_off if is_cut else self._bus.rejoin)

    def join(self, settings: Settings) -> LocalClusterNode:
        network = self._machinery.network
        self._bus = SimulatedBus(network, self.name)
        leases = SimulatedLeases(self._machinery.leases, self._bus, network)
        return LocalClusterNode(settings, self._bus, leases)

    def send(
        self, method: str, path: str, body: Json | None, headers: Mapping[str, str]
    ) -> "Exchange":
        """Send one HTTP request to this node."""
        return Exchange(self, self._machinery.loop, method, path, body, headers)


class Exchange:
    """One HTTP request, and its response as it comes."""

    def __init__(
        self,
        node: SimulatedNode,
        loop: SimulationLoop,
        method: str,
        path: str,
        body: Json | None,
        headers: Mapping[str, str],
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.is_lost = False
        self._node = node
        self._request: bytes | None = b"" if body is None else json.dumps(body).encode()
        self._left = asyncio.Event()
        self._end: Future[None] = loop.create_future()
        if not node.is_up:
            self.lose()
            return
        node.exchanges[self] = None
        context = copy_context()
        context.run(NODE.set, node.run)
        scope = self._scope(method, path, headers)
        loop.create_task(node.parts.http_app(scope, self._receive, self._send), context=context)

    def _scope(self, method: str, path: str, headers: Mapping[str, str]) -> Json:
        length = str(len(self._request or b""))
        pairs = {"host": "127.0.0.1:2664", "content-length": length, **headers}
        return {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "scheme": "http",
            "root_path": "",
            "client": ("127.0.0.1", 9),
            "server": ("127.0.0.1", 2664),
            "headers": [(name.encode(), value.encode()) for name, value in pairs.items()],
            "extensions": {},
            "state": {},
        }

    async def wait(self, seconds: float) -> bool:
        """Wait for the end of the response. Return whether it came whole."""
        await asyncio.wait([self._end], timeout=seconds)
        if not self._end.done():
            self.leave()
        return not self.is_lost and self._end.done()

    def leave(self) -> None:
        """Close the connection from the side of the client."""
        self._left.set()
        self._node.exchanges.pop(self, None)

    def lose(self) -> None:
        """The connection broke."""
        self.is_lost = True
        self._finish()

    def frames(self) -> list[Json]:
        """Return the JSON messages of the response, of a stream or of its whole body."""
        text = self.body.decode(errors="replace")
        if self.headers.get("content-type", "").startswith("text/event-stream"):
            lines = [line[5:] for line in text.splitlines() if line.startswith("data:")]
        else:
            lines = [text]
        return [message for line in lines if (message := _object(line)) is not None]

    async def _receive(self) -> Json:
        if self._request is not None:
            body, self._request = self._request, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Json) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode().lower(): v.decode() for k, v in message["headers"]}
            return
        self.body += message.get("body", b"")
        if not message.get("more_body"):
            self._finish()

    def _finish(self) -> None:
        self._node.exchanges.pop(self, None)
        if not self._end.done():
            self._end.set_result(None)


@dataclass
class Cluster:
    """All nodes."""

    machinery: Machinery
    nodes: dict[str, SimulatedNode] = field(default_factory=dict[str, SimulatedNode])

    @property
    def up(self) -> list[SimulatedNode]:
        return [node for node in self.nodes.values() if node.is_up]

    def install(self) -> None:
        """Let each gateway of this process find the simulated bus and the simulated servers."""

        def make_cluster(settings: Settings, _: bytes) -> LocalClusterNode:
            return self.nodes[settings.cluster.node].join(settings)

        def make_transport_factory(
            self_: UpstreamRegistry, server: ServerSettings
        ) -> SimulatedTransportFactory:
            token = int(server.env.get(FENCE_VARIABLE, "0"))
            return self.machinery.upstream.transport_factory(server.id, token)

        def no_firsts(_: object) -> None:
            """Pushes are not part of the simulation."""

        replace_member(gateway, "make_cluster", make_cluster)
        replace_member(live_wiring, "open_firsts", no_firsts)
        replace_member(UpstreamRegistry, "_make_transport_factory", make_transport_factory)


def _object(text: str) -> Json | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return cast("Json", value) if isinstance(value, dict) else None
