"""How one server is reached and treated, by its settings."""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from comity.adapters.upstream.command import Command
from comity.adapters.upstream.dialling import chosen_by
from comity.adapters.upstream.http import HttpReach
from comity.adapters.upstream.pool import Pool, PoolLimits
from comity.adapters.upstream.sse import SseReach
from comity.adapters.upstream.stdio import StdioReach
from comity.config import ServerSettings, Settings
from comity.kernel.reached import BOTH_ERAS, LinkOptions
from comity.kernel.servers import ServerOptions
from comity.ports import Reach
from comity.rules.backoff import Backoff
from comity.rules.health import Probing
from comity.rules.proxies import Proxies, proxies_from
from comity.rules.restarts import Restarts
from comity.wire.jsonrpc import Limits
from comity.wire.lifecycle import RestartPolicy
from comity.wire.mcp import Era
from comity.wire.negotiation import Statement

_ERAS: Final = {
    "auto": BOTH_ERAS,
    "handshake": frozenset({Era.HANDSHAKE}),
    "modern": frozenset({Era.MODERN}),
}


@dataclass(frozen=True, slots=True)
class Pools:
    """Connections to HTTP servers: for calls, and for streams, which take none from the calls."""

    calls: Pool
    streams: Pool

    async def close(self) -> None:
        await self.calls.close()
        await self.streams.close()


def make_pools(settings: Settings) -> Pools:
    # One TLS context for the whole process: making one costs more than a call.
    tls, choose = ssl.create_default_context(), chosen_by(proxies_of(settings))
    streams = PoolLimits(connections=settings.max_sessions)
    return Pools(Pool(tls, choose_proxy=choose), Pool(tls, streams, choose))


def proxies_of(settings: Settings) -> Proxies:
    """Through what everything that Comity connects to by HTTP is reached."""
    return proxies_from(settings.network_proxy, settings.network_no_proxy, os.environ)


def limits_of(settings: Settings) -> Limits:
    """How much of a client's message is read."""
    return Limits(settings.frame_bytes, settings.depth, settings.max_values)


def server_limits_of(settings: Settings) -> Limits:
    """How much of a server's message is read."""
    return Limits(settings.frame_bytes, settings.depth, settings.max_server_values)


def make_reach(server: ServerSettings, settings: Settings, pools: Pools) -> Reach:
    """Raises Misconfigured where the settings name something that cannot be."""
    limits = server_limits_of(settings)
    if server.transport == "stdio":
        argv = (server.command, *server.args)
        return StdioReach(server.id, Command(argv, server.env, server.cwd, server.containment))
    if server.transport == "sse":
        return SseReach(pools.calls, server.url, server.headers, limits)
    return HttpReach(pools.calls, server.url, server.headers, limits, pools.streams)


def options_of(server: ServerSettings, settings: Settings) -> ServerOptions:
    care = server.supervision
    links = LinkOptions(
        eras=_ERAS[server.era],
        own_process_for_each_session=server.sharing == "session",
        start_within=settings.start_deadline,
        backoff=Backoff(care.backoff_base, max(care.backoff_base, care.backoff_max)),
        limits=server_limits_of(settings),
        declared=_declared(server),
    )
    # A remote server may be away for an hour, and trying again costs nobody a process.
    most = care.max_restarts if server.transport == "stdio" else None
    restarts = Restarts(RestartPolicy(care.restart_policy), most, care.restart_window)
    probing = Probing(every=care.health_interval, while_busy=settings.call_deadline)
    bounds = care.stop_when_idle, care.max_memory * 1024 * 1024
    return ServerOptions(links, restarts, probing, care.drain_deadline, *bounds)


def _declared(server: ServerSettings) -> Statement | None:
    """What its operator wrote of it in MGP's words; without a word it is a server of plain MCP."""
    if not server.mgp:
        return None
    extensions = frozenset(server.extensions)
    return Statement("", extensions, server.permissions_required, server.trust_level)


def described(server: ServerSettings) -> Mapping[str, str]:
    """How it is reached, without its arguments and paths, which may be secrets."""
    return {
        "label": server.label,
        "transport": server.transport,
        "reached": server.command or urlsplit(server.url).netloc.rpartition("@")[2],
    }
