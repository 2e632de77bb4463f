"""The servers behind the gateway, each with its endpoints, as they come and go."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from comity.accounts.wiring import AccountComponents
from comity.app.cluster import LocalClusterNode
from comity.app.http import HttpApp
from comity.app.settings import ServerSettings, Settings
from comity.gateway.http_endpoint import McpHttp
from comity.gateway.one_server import McpEndpoint, ServerEndpoint
from comity.gateway.sse_endpoint import McpSse
from comity.gateway.subscriptions import ListSubscriptions
from comity.http.asgi import HttpEndpoint
from comity.identity.http_auth import AuthMember
from comity.mcp.jsonrpc import FrameLimits
from comity.mcp.mgp import ServerLifecycleState, ShutdownReason
from comity.policy.wiring import ServerPolicyService
from comity.servers.sandbox.wiring import SandboxComponents
from comity.servers.service import ServerService
from comity.servers.supervisor import ServerOptions, ServerTransition, UpstreamServer
from comity.servers.wiring import (
    UpstreamPools,
    describe_server,
    limits_of,
    make_transport_factory,
    options_of,
)
from comity.sessions.sessions import SessionStore
from comity.sessions.upstream import TransportFactory


@dataclass(slots=True)
class UpstreamRegistry:
    """All enabled servers. Adding one creates its endpoints."""

    settings: Settings
    servers: ServerService
    sessions: SessionStore
    subscriptions: ListSubscriptions
    http_app: HttpApp
    pools: UpstreamPools
    make_endpoint: Callable[[UpstreamServer], ServerEndpoint]
    server_policies: ServerPolicyService
    sandboxes: SandboxComponents
    auth: AuthMember = field(default_factory=AuthMember)
    descriptions: dict[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    # This node of the cluster, if there is one.
    cluster: LocalClusterNode | None = None
    accounts: AccountComponents | None = None
    # Called with the names of the affected servers when the settings change.
    on_configured: Callable[[Mapping[str, object]], None] | None = None
    _endpoint_by_server: dict[str, ServerEndpoint] = field(
        default_factory=dict[str, ServerEndpoint]
    )
    _paths_by_server: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    _replaced_servers: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.servers.watch(self._on_transition)
        if self.accounts is not None:
            self.accounts.follow(self.servers)

    def transport_factory(self, server: ServerSettings) -> TransportFactory:
        """Return the transport factory of a server. Raises Misconfigured and changes nothing."""
        made = self._make_transport_factory(server)
        if self.cluster is None or not self._runs_once(server):
            return made
        return self.cluster.transport_factory(
            server, self._make_transport_factory, options_of(server, self.settings)
        )

    def _make_transport_factory(self, server: ServerSettings) -> TransportFactory:
        confine = self.sandboxes.confine_configured(server)
        return make_transport_factory(server, self.settings, self.pools, confine)

    async def add_all(self, servers: Iterable[ServerSettings]) -> None:
        """Add all servers that are not disabled.

        Each has a turn of the event loop. Added in one turn, a thousand servers stop the heartbeats
        of the permissions, and these have to be confirmed anew.
        """
        for server in servers:
            if not server.disabled:
                self.add(server, self.transport_factory(server))
                await asyncio.sleep(0)

    def add(self, server: ServerSettings, transport_factory: TransportFactory) -> None:
        """Add a server. A replacement of a removed server keeps the endpoint of its predecessor."""
        options = self.server_policies.apply_to_server(server, self._options_of(server))
        if self.accounts is not None:
            options = self.accounts.options_for(server, options)
        added = self.servers.add(server.id, transport_factory, options)
        if self.accounts is not None:
            self.accounts.adjust(added)
        self.descriptions[server.id] = describe_server(server)
        if server.id in self._endpoint_by_server:
            self._endpoint_by_server[server.id].replace_server(added)
            self._replaced_servers.add(server.id)
            return
        desk = self._endpoint_by_server[server.id] = self.make_endpoint(added)
        doors = make_endpoints(server.id, desk, self.sessions, limits_of(self.settings), self.auth)
        self._paths_by_server[server.id] = tuple(doors)
        self.http_app.add_endpoints(doors)

    def _options_of(self, server: ServerSettings) -> ServerOptions:
        options = options_of(server, self.settings)
        if self.cluster is None:
            return options
        if self._runs_once(server):
            return self.cluster.cluster_options(options)
        self.cluster.release_server(server.id)
        return options

    def _runs_once(self, server: ServerSettings) -> bool:
        """Return whether only one node of the cluster runs the server at a time."""
        is_shared_process = server.transport == "stdio" and server.process_per == "gateway"
        return server.replicas == "single" or (
            self.settings.cluster.single_replica and is_shared_process
        )

    def endpoint_of(self, name: str) -> ServerEndpoint | None:
        """Return the endpoint of one server, for callers without an HTTP path of their own."""
        return self._endpoint_by_server.get(name)

    async def stop_for_replacement(self, name: str, reason: ShutdownReason) -> None:
        """Stop a server after its calls. Its clients stay and wait for a replacement."""
        await self.servers.remove(name, reason)

    async def remove(self, name: str, reason: ShutdownReason) -> None:
        """Stop a server for good, and remove its endpoints, subscriptions and sessions."""
        await self.stop_for_replacement(name, reason)
        self.servers.release_name(name)
        self.server_policies.remove_server(name)
        if self.accounts is not None:
            self.accounts.service.remove_server(name)
        self.sandboxes.forget(name)
        if self.cluster is not None:
            self.cluster.release_server(name)
        self.http_app.remove_endpoints(self._paths_by_server.pop(name))
        self._replaced_servers.discard(name)
        del self._endpoint_by_server[name], self.descriptions[name]
        self.subscriptions.end_server_streams(name)
        mine = [session for session in self.sessions if session.endpoint_name == name]
        await asyncio.gather(*(self.sessions.end(session) for session in mine))

    def on_listening(self, address: str) -> None:
        """Note the URL at which the gateway accepts connections: no server may reach it."""
        self.sandboxes.add_own_address(address)

    async def close(self) -> None:
        await self.sandboxes.close()

    def _on_transition(self, transition: ServerTransition) -> None:
        """Tell the sessions of a replaced server that its lists have changed."""
        name = transition.server
        server = self.servers.get(name)
        if (
            transition.state is not ServerLifecycleState.CONNECTED
            or name not in self._replaced_servers
            or not server
        ):
            return
        self._replaced_servers.discard(name)
        own = server.connections.own_connection
        if own is not None:
            for session in self.sessions:
                if session.endpoint_name == name and session.is_initialized:
                    session.on_session_renewed(own.connection)


def make_endpoints(
    name: str,
    endpoint: McpEndpoint,
    sessions: SessionStore,
    limits: FrameLimits,
    auth: AuthMember | None = None,
    *,
    folder: str | None = None,
) -> dict[str, HttpEndpoint]:
    """Return the HTTP endpoints of one server, of all, or of a view: streamable HTTP and SSE."""
    if folder is None:
        folder = f"/servers/{name}" if name else ""
    doors: dict[str, HttpEndpoint] = {
        f"{folder}/mcp": McpHttp(name, endpoint, sessions, limits, auth)
    }
    return doors | McpSse(name, folder, endpoint, sessions, limits, auth).endpoints
