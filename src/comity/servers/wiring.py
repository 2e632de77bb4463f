"""Builds the transports to servers, and the health report of the gateway itself."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit

from comity.app.settings import ServerSettings, Settings
from comity.audit.log import AuditLog
from comity.errors import UPSTREAM_DOWN, Unavailable
from comity.gateway.mgp_methods import GatewayControl
from comity.http.client.client import default_tls
from comity.http.client.dial import Find, Resolver, proxy_chooser
from comity.http.client.pool import HttpConnectionPool, PoolLimits
from comity.http.client.proxies import ProxySettings, proxies_from
from comity.mcp.jsonrpc import FrameLimits
from comity.mcp.mgp import MgpStatement, RestartPolicy
from comity.mcp.protocol import Era
from comity.policy.administration import GrantAdmin
from comity.servers.connections import BOTH_ERAS, ConnectionOptions
from comity.servers.lifecycle import HealthCheckSettings, RestartRules
from comity.servers.packages.launcher import ServerLauncher
from comity.servers.process.process import ServerCommand
from comity.servers.service import ServerService
from comity.servers.supervisor import ServerOptions
from comity.servers.transports.http import HttpTransportFactory
from comity.servers.transports.openapi import OpenApiSource, OpenApiTransportFactory
from comity.servers.transports.sse import SseTransportFactory
from comity.servers.transports.stdio import Confine, StdioTransportFactory
from comity.sessions.sessions import SessionStore
from comity.sessions.upstream import TransportFactory
from comity.telemetry.process import resident_bytes
from comity.toolkit.resilience import RetrySchedule
from comity.validation.network import answers_problem, host_problem


def build_gateway_control(
    settings: Settings,
    servers: ServerService,
    sessions: SessionStore,
    administration: GrantAdmin,
    audit_log: AuditLog,
) -> GatewayControl:
    """Build the handler for the gateway's own health report and shutdown request.

    `open_connections` in the report counts client sessions and connections to servers.
    """

    def readings() -> Mapping[str, int]:
        found = {"open_connections": len(sessions) + _count_connections(servers)}
        memory = resident_bytes()
        return found if memory is None else {"memory_bytes": int(memory), **found}

    return GatewayControl(
        administration,
        audit_log,
        readings,
        settings.limits.shutdown_grace,
        is_enabled=settings.remote_shutdown,
    )


def _count_connections(servers: ServerService) -> int:
    return sum(len(server.activity.connections) for server in servers)


_ERAS_BY_CHOICE: Final = {
    "auto": BOTH_ERAS,
    "2025-11-25": frozenset({Era.HANDSHAKE}),
    "2026-07-28": frozenset({Era.MODERN}),
}


@dataclass(frozen=True, slots=True)
class UpstreamPools:
    """HTTP connection pools for servers. Streams have a pool of their own."""

    calls: HttpConnectionPool
    streams: HttpConnectionPool
    # For addresses that no operator wrote. It refuses those that are not public.
    public: HttpConnectionPool

    async def close(self) -> None:
        await self.calls.close()
        await self.streams.close()
        await self.public.close()


def make_pools(settings: Settings) -> UpstreamPools:
    tls, choose = default_tls(), proxy_chooser(proxies_of(settings))
    streams = PoolLimits(connections=settings.limits.max_sessions)
    calls = HttpConnectionPool(tls, choose_proxy=choose)
    public = calls.like(find_public_addresses(Resolver(time.monotonic)))
    return UpstreamPools(calls, HttpConnectionPool(tls, streams, choose), public)


def find_public_addresses(resolver: Resolver, hosts: frozenset[str] = frozenset()) -> Find:
    """Return the address check for new connections. `hosts` may have any address.

    A name that resolved to a public address before may resolve to another one later.
    """

    async def find(host: str) -> Sequence[str]:
        problem, name = host_problem(host, hosts)
        if problem is None and not name:
            return (host,)
        answers = await resolver.resolve(name) if problem is None else ()
        if problem is None and not answers:
            return ()
        problem = problem or answers_problem(answers)
        if problem is not None or not answers:
            raise Unavailable(f"{host:.200} is refused: {problem}", UPSTREAM_DOWN)
        return answers[:1]

    return find


def proxies_of(settings: Settings) -> ProxySettings:
    """Return the proxies for every HTTP connection that Comity opens."""
    return proxies_from(settings.network.proxy, settings.network.no_proxy, os.environ)


def limits_of(settings: Settings) -> FrameLimits:
    """Return the size limits for messages of clients."""
    limits = settings.limits
    return FrameLimits(limits.max_message_bytes, limits.max_depth, limits.max_values)


def server_limits_of(settings: Settings) -> FrameLimits:
    """Return the size limits for messages of servers."""
    limits = settings.limits
    return FrameLimits(limits.max_message_bytes, limits.max_depth, limits.max_server_values)


def make_transport_factory(
    server: ServerSettings, settings: Settings, pools: UpstreamPools, confine: Confine | None = None
) -> TransportFactory:
    """Return the transport factory of a server. Raise Misconfigured if its settings are invalid.

    `confine` prepares the sandbox of a server process.
    """
    limits = server_limits_of(settings)
    launcher = launcher_of(server, settings)
    # A start that lasts longer fails, and should say that its package is being downloaded.
    launcher = replace(launcher, install_wait=settings.limits.start_timeout * 0.9)
    # A server that differs from the lock file never gets past the launcher, whatever its transport.
    if server.transport == "stdio" or launcher.problem:
        return StdioTransportFactory(server.id, launcher.prepare, confine)
    if server.transport == "openapi":
        source = OpenApiSource(
            server.openapi,
            server.url,
            server.headers,
            server.auth,
            server.operations,
            settings.limits.call_idle_timeout,
        )
        return OpenApiTransportFactory(source, pools.calls, pools.public, limits)
    if server.transport == "sse":
        return SseTransportFactory(pools.calls, server.url, server.headers, limits)
    return HttpTransportFactory(pools.calls, server.url, server.headers, limits, pools.streams)


def sandbox_of(server: ServerSettings, settings: Settings) -> str:
    """Return the level at which a server's process runs. `auto` is the best one there is."""
    trust = server.policy.get("trust") or server.trust_level
    if server.sandbox != "auto":
        return server.sandbox
    if trust == "sandboxed" or any(server.policy.get("permissions", {}).values()):
        return "auto"
    return "none" if trust == "trusted" else settings.policy.sandbox


def launcher_of(server: ServerSettings, settings: Settings) -> ServerLauncher:
    """Return how a server of the file is started, with its lock entry and its package."""
    argv = (server.command, *server.args)
    command = ServerCommand(argv, server.env, server.cwd, server.process_cleanup)
    packages = server.packages
    if packages == "auto" and sandbox_of(server, settings) != "none":
        # A runner in a sandbox has neither its cache nor the network to download the package.
        packages = "store"
    return ServerLauncher(server.id, command, server.written, packages, server.lock)


def options_of(server: ServerSettings, settings: Settings) -> ServerOptions:
    care = server.supervision
    connections = ConnectionOptions(
        eras=_ERAS_BY_CHOICE[server.protocol],
        own_process_for_each_session=server.process_per == "session",
        start_timeout=settings.limits.start_timeout,
        backoff=RetrySchedule(care.backoff_base, max(care.backoff_base, care.backoff_max)),
        limits=server_limits_of(settings),
        declared=_declared_statement(server),
    )
    # A remote server may be away for an hour, and connecting again starts no process.
    most = care.max_restarts if server.transport == "stdio" else None
    restarts = RestartRules(RestartPolicy(care.restart_policy), most, care.restart_window)
    probing = HealthCheckSettings(
        interval=care.health_interval, busy_timeout=settings.limits.call_idle_timeout
    )
    bounds = care.idle_timeout, care.max_memory_mb * 1024 * 1024
    return ServerOptions(connections, restarts, probing, care.drain_timeout, *bounds)


def _declared_statement(server: ServerSettings) -> MgpStatement | None:
    """Return the operator's declarations in the server's `mgp` table, or None for plain MCP."""
    if not server.mgp:
        return None
    extensions = frozenset(server.extensions)
    return MgpStatement("", extensions, server.permissions_required, server.trust_level)


def describe_server(server: ServerSettings) -> Mapping[str, str]:
    """Return how a server is reached, without arguments and paths, because these may be secrets."""
    return {
        "label": server.label,
        "transport": server.transport,
        "reached": server.command or _reached_host(server),
    }


def _reached_host(server: ServerSettings) -> str:
    """Return the host of a server without credentials, or the name of its document."""
    if server.transport == "openapi" and not server.url:
        place = server.openapi.partition("?")[0].rpartition("/")[2]
        return urlsplit(server.openapi).netloc.rpartition("@")[2] or place
    return urlsplit(server.url).netloc.rpartition("@")[2]
