"""The one place where parts are chosen and joined."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from importlib.metadata import version

from comity.adapters.schemas import Schemas
from comity.adapters.upstream.command import Command
from comity.adapters.upstream.http import HttpReach
from comity.adapters.upstream.pool import Pool, PoolLimits
from comity.adapters.upstream.sse import SseReach
from comity.adapters.upstream.stdio import StdioReach
from comity.config import ServerSettings, Settings
from comity.kernel.call import Underway, tend
from comity.kernel.catalog import Catalog
from comity.kernel.forwarding import Desk, OneServer
from comity.kernel.servers import ServerOptions, Servers
from comity.kernel.sessions import Sessions
from comity.kernel.switchboard import AllServers
from comity.ports import Reach
from comity.surfaces.doorway import Doorway
from comity.surfaces.gateway import Door, Gateway
from comity.surfaces.mcp_http import McpHttp
from comity.surfaces.mcp_sse import McpSse
from comity.wire.jsonrpc import Limits

LOOK_EVERY_SECONDS = 1.0
PATIENCE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Parts:
    """What a surface is opened on."""

    servers: Servers
    catalog: Catalog
    sessions: Sessions
    underway: Underway
    everything: AllServers
    gateway: Gateway


@dataclass(frozen=True, slots=True)
class Pools:
    """Connections to HTTP servers: for calls, and for streams, which take none from the calls."""

    calls: Pool
    streams: Pool

    async def close(self) -> None:
        await self.calls.close()
        await self.streams.close()


@contextlib.asynccontextmanager
async def assembled(settings: Settings) -> AsyncGenerator[Parts]:
    """Every part joined and every server starting; all of it ended on the way out."""
    pools = _pools(settings)
    schemas = Schemas()
    parts = _join(settings, pools, schemas)
    tending = asyncio.ensure_future(
        tend((parts.underway.look, parts.sessions.look), LOOK_EVERY_SECONDS, PATIENCE_SECONDS)
    )
    parts.servers.start()
    try:
        yield parts
    finally:
        tending.cancel()
        await parts.sessions.close()
        await parts.servers.stop()
        await pools.close()
        await schemas.close()


def _join(settings: Settings, pools: Pools, schemas: Schemas) -> Parts:
    now = asyncio.get_running_loop().time
    limits = Limits(frame_bytes=settings.frame_bytes, depth=settings.depth)
    catalog = Catalog()
    servers = Servers(catalog, schemas)
    for server in settings.servers:
        if not server.disabled:
            reach = _reach(server, pools, limits)
            servers.add(server.id, reach, _options(server, settings, limits))
    deadline, cap = settings.call_deadline, settings.call_cap
    underway = Underway(now, deadline.total_seconds(), cap.total_seconds())
    sessions = Sessions(now, settings.max_sessions, settings.idle_session.total_seconds())
    about = {"name": "comity", "version": version("comity")}
    everything = AllServers(servers, catalog, underway, about)
    doors = _doors("", "", everything, sessions, limits)
    for server in servers:
        desk = OneServer(server, catalog, underway)
        doors |= _doors(server.name, f"/servers/{server.name}", desk, sessions, limits)
    way = Doorway(settings.allowed_hosts, settings.allowed_origins)
    gateway = Gateway(way, doors, lambda: servers.all_tried)
    return Parts(servers, catalog, sessions, underway, everything, gateway)


def _doors(
    name: str, folder: str, desk: Desk, sessions: Sessions, limits: Limits
) -> dict[str, Door]:
    """The doors to one server, or to all: streamable HTTP, and the old pair."""
    doors: dict[str, Door] = {f"{folder}/mcp": McpHttp(name, desk, sessions, limits)}
    return doors | McpSse(name, folder, desk, sessions, limits).doors


def _pools(settings: Settings) -> Pools:
    # One TLS context for the whole process: making one costs more than a call.
    tls = ssl.create_default_context()
    return Pools(Pool(tls), Pool(tls, PoolLimits(connections=settings.max_sessions)))


def _reach(server: ServerSettings, pools: Pools, limits: Limits) -> Reach:
    if server.transport == "stdio":
        argv = (server.command, *server.args)
        return StdioReach(server.id, Command(argv, server.env, server.cwd))
    if server.transport == "sse":
        return SseReach(pools.calls, server.url, server.headers, limits)
    return HttpReach(pools.calls, server.url, server.headers, limits, pools.streams)


def _options(server: ServerSettings, settings: Settings, limits: Limits) -> ServerOptions:
    return ServerOptions(
        own_process_for_each_session=server.sharing == "session",
        start_within=settings.start_deadline,
        limits=limits,
    )
