"""The servers behind the gateway, each with its desk and its doors; they come and go."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from comity.app.caring import Caring
from comity.app.clustering import Cluster
from comity.app.reaching import Pools, described, limits_of, make_reach, options_of
from comity.config import ServerSettings, Settings
from comity.kernel.forwarding import Desk, OneServer
from comity.kernel.servers import Server, ServerOptions, Servers, Transition
from comity.kernel.sessions import Sessions
from comity.kernel.subscribing import Subscriptions
from comity.ports import Reach
from comity.surfaces.auth_member import AuthMember
from comity.surfaces.gateway import Door, Gateway
from comity.surfaces.mcp_http import McpHttp
from comity.surfaces.mcp_sse import McpSse
from comity.wire.jsonrpc import Limits
from comity.wire.lifecycle import Reason, State


@dataclass(slots=True)
class Residents:
    """Every server that is enabled; whoever admits one gives it a door of its own."""

    settings: Settings
    servers: Servers
    sessions: Sessions
    subscriptions: Subscriptions
    gateway: Gateway
    pools: Pools
    make_desk: Callable[[Server], OneServer]
    caring: Caring
    auth: AuthMember = field(default_factory=AuthMember)
    descriptions: dict[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    # This gateway among other nodes, where there are any.
    cluster: Cluster | None = None
    # Told which servers are concerned when the settings are other ones.
    configured: Callable[[Mapping[str, object]], None] | None = None
    _desks: dict[str, OneServer] = field(default_factory=dict[str, OneServer])
    _doors: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    _returning: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.servers.watch(self._watch)

    def reach(self, server: ServerSettings) -> Reach:
        """Raises Misconfigured, before anything is changed, where a server cannot be."""
        made = make_reach(server, self.settings, self.pools)
        if self.cluster is None or server.placement != "one":
            return made
        make = partial(make_reach, settings=self.settings, pools=self.pools)
        return self.cluster.reach(server, make, options_of(server, self.settings))

    def admit_all(self, servers: Iterable[ServerSettings]) -> None:
        """Those that stand in a file, without the ones that it leaves out."""
        for server in servers:
            if not server.disabled:
                self.admit(server, self.reach(server))

    def admit(self, server: ServerSettings, reach: Reach) -> None:
        """Let a server in; if one of that name was let go before, at its old desk."""
        options = self.caring.admit(server, self._options_of(server))
        added = self.servers.add(server.id, reach, options)
        self.descriptions[server.id] = described(server)
        if server.id in self._desks:
            self._desks[server.id].turn_to(added)
            self._returning.add(server.id)
            return
        desk = self._desks[server.id] = self.make_desk(added)
        doors = make_doors(server.id, desk, self.sessions, limits_of(self.settings), self.auth)
        self._doors[server.id] = tuple(doors)
        self.gateway.open(doors)

    def _options_of(self, server: ServerSettings) -> ServerOptions:
        options = options_of(server, self.settings)
        if self.cluster is None:
            return options
        if server.placement == "one":
            return self.cluster.options(options)
        self.cluster.forget(server.id)
        return options

    def desk_of(self, name: str) -> OneServer | None:
        """Where one server is asked, for who comes by no door of its own."""
        return self._desks.get(name)

    async def let_go(self, name: str, reason: Reason) -> None:
        """End a server once its calls are done; its clients may wait for another in its place."""
        await self.servers.remove(name, reason)

    async def dismiss(self, name: str, reason: Reason) -> None:
        """End a server for good, and with it whatever led to it alone."""
        await self.let_go(name, reason)
        self.caring.dismiss(name)
        if self.cluster is not None:
            self.cluster.forget(name)
        self.gateway.close(self._doors.pop(name))
        self._returning.discard(name)
        del self._desks[name], self.descriptions[name]
        self.subscriptions.dismiss(name)
        mine = [session for session in self.sessions if session.door == name]
        await asyncio.gather(*(self.sessions.end(session) for session in mine))

    def _watch(self, transition: Transition) -> None:
        """Those at the door of a server that took another's place learn that its lists are new."""
        name = transition.server
        server = self.servers.get(name)
        if transition.state is not State.CONNECTED or name not in self._returning or not server:
            return
        self._returning.discard(name)
        own = server.reached.own
        if own is not None:
            for session in self.sessions:
                if session.door == name and session.greeted:
                    session.renewed(own.link)


def make_doors(
    name: str, desk: Desk, sessions: Sessions, limits: Limits, auth: AuthMember | None = None
) -> dict[str, Door]:
    """The doors to one server, or with no name to all: streamable HTTP, and the old pair."""
    folder = f"/servers/{name}" if name else ""
    doors: dict[str, Door] = {f"{folder}/mcp": McpHttp(name, desk, sessions, limits, auth)}
    return doors | McpSse(name, folder, desk, sessions, limits, auth).doors
