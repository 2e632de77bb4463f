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
from comity.adapters.upstream.pool import Pool
from comity.adapters.upstream.sse import SseReach
from comity.adapters.upstream.stdio import StdioReach
from comity.config import ServerSettings, Settings
from comity.kernel.call import Underway, tend
from comity.kernel.catalog import Catalog
from comity.kernel.forwarding import OneServer
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


@contextlib.asynccontextmanager
async def assembled(settings: Settings) -> AsyncGenerator[Parts]:
    """Every part joined and every server starting; all of it ended on the way out."""
    loop = asyncio.get_running_loop()
    limits = Limits(frame_bytes=settings.frame_bytes, depth=settings.depth)
    # One TLS context for the whole process: making one costs more than a call.
    pool = Pool(ssl.create_default_context())
    catalog = Catalog()
    schemas = Schemas()
    servers = Servers(catalog, schemas)
    for server in settings.servers:
        if not server.disabled:
            servers.add(server.id, _reach(server, pool, limits), _options(server, settings, limits))
    deadline = settings.call_deadline.total_seconds()
    underway = Underway(loop.time, deadline, settings.call_cap.total_seconds())
    sessions = Sessions(loop.time, settings.max_sessions, settings.idle_session.total_seconds())
    about = {"name": "comity", "version": version("comity")}
    everything = AllServers(servers, catalog, underway, about)
    doors: dict[str, Door] = {"/mcp": McpHttp("", everything, sessions, limits)}
    doors |= McpSse("", "", everything, sessions, limits).doors
    for server in servers:
        desk = OneServer(server, catalog, underway)
        folder = f"/servers/{server.name}"
        doors[f"{folder}/mcp"] = McpHttp(server.name, desk, sessions, limits)
        doors |= McpSse(server.name, folder, desk, sessions, limits).doors
    way = Doorway(settings.allowed_hosts, settings.allowed_origins)
    gateway = Gateway(way, doors, lambda: servers.all_tried)
    tending = asyncio.ensure_future(
        tend((underway.look, sessions.look), LOOK_EVERY_SECONDS, PATIENCE_SECONDS)
    )
    servers.start()
    try:
        yield Parts(servers, catalog, sessions, underway, everything, gateway)
    finally:
        tending.cancel()
        await sessions.close()
        await servers.stop()
        await pool.close()


def _reach(server: ServerSettings, pool: Pool, limits: Limits) -> Reach:
    if server.transport == "stdio":
        argv = (server.command, *server.args)
        return StdioReach(server.id, Command(argv, server.env, server.cwd))
    if server.transport == "sse":
        return SseReach(pool, server.url, server.headers, limits)
    return HttpReach(pool, server.url, server.headers, limits)


def _options(server: ServerSettings, settings: Settings, limits: Limits) -> ServerOptions:
    return ServerOptions(
        own_process_for_each_session=server.sharing == "session",
        start_within=settings.start_deadline,
        limits=limits,
    )
