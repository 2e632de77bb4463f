"""The servers behind the gateway: all started at once, each cared for by itself."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Final

from comity.kernel.catalog import Catalog, Kind
from comity.kernel.life import ServerOptions
from comity.kernel.listing import Listing, Vetting
from comity.kernel.standing import Transition
from comity.kernel.supervision import Server
from comity.ports import Reach, SchemaJudge
from comity.wire.errors import Misconfigured
from comity.wire.lifecycle import Reason, State

__all__ = ["Server", "ServerOptions", "Servers", "Transition"]

log = logging.getLogger(__name__)

LAST_CALLS: Final = timedelta(seconds=2)
"""What calls under way get when the gateway ends: their clients have gone before."""

LAST_WAIT: Final = timedelta(seconds=10)

_SETTLED: Final = frozenset({State.CONNECTED, State.DISCONNECTED, State.ERROR})

type Watcher = Callable[[Transition], None]


class Servers:
    """All of them, and who is told of each step in their lives."""

    def __init__(self, catalog: Catalog, judge: SchemaJudge, tools: Vetting | None = None) -> None:
        self._catalog = catalog
        self._listing = Listing(catalog, judge, tools)
        self._all: dict[str, Server] = {}
        self._met: set[str] = set()
        self._watchers: list[Watcher] = []
        self._orders: dict[str, str] = {}
        self._started = False

    def watch(self, watcher: Watcher) -> None:
        """Have a watcher told of every transition of every server."""
        self._watchers.append(watcher)

    def add(self, name: str, reach: Reach, options: ServerOptions) -> Server:
        """Take a server in; it is started with the others, or now if they have been."""
        if name in self._all:
            raise Misconfigured(f"there is a server {name!r} already")
        server = self._all[name] = Server(name, reach, self._listing, options, self._tell)
        if self._started:
            server.start()
        return server

    async def remove(self, name: str, reason: Reason = Reason.CONFIGURATION_CHANGE) -> None:
        """Let its calls finish, end it, and forget it with all that it offered."""
        await self.need(name).halt(reason)
        self._catalog.clear(name)
        self._all.pop(name, None)
        self._met.discard(name)

    async def restart(self, name: str, by: str = "") -> None:
        """Let its calls finish, end it and start it again, whatever was held against it."""
        await self._ordered(name, by).restart(Reason.OPERATOR_REQUEST)

    async def halt(self, name: str, by: str = "") -> None:
        """Let its calls finish and end it; what it offered is offered again when it begins."""
        try:
            await self._ordered(name, by).halt(Reason.OPERATOR_REQUEST)
        finally:
            self._orders.pop(name, None)
        self._catalog.clear(name)

    async def begin(self, name: str, by: str = "") -> None:
        """Start a server that was halted, or that failed for good."""
        is_there = self.need(name).state is State.CONNECTED
        await self._ordered(name, "" if is_there else by).begin()

    def _ordered(self, name: str, by: str) -> Server:
        """The server that an order is about: what it does until that is done, it does by it."""
        server = self.need(name)
        if by:
            self._orders[name] = by
        return server

    def __iter__(self) -> Iterator[Server]:
        return iter(list(self._all.values()))

    def names(self) -> list[str]:
        return list(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def get(self, name: str) -> Server | None:
        return self._all.get(name)

    def need(self, name: str) -> Server:
        """The server of that name; whoever names none of them is told so."""
        server = self._all.get(name)
        if server is None:
            raise Misconfigured(f"there is no server {name!r:.200}")
        return server

    @property
    def is_started(self) -> bool:
        """Whether they were started, and are not to end."""
        return self._started

    @property
    def all_tried(self) -> bool:
        """Whether every server has either connected or failed its first start."""
        return all(server.tried.is_set() for server in self._all.values())

    async def first_tries(self, within: timedelta) -> None:
        """Until every server has either connected or failed its first start, but not longer."""
        tries = [asyncio.ensure_future(server.tried.wait()) for server in self._all.values()]
        if tries:
            _, late = await asyncio.wait(tries, timeout=within.total_seconds())
            for task in late:
                task.cancel()

    def start(self) -> None:
        self._started = True
        for server in self._all.values():
            server.start()

    async def stop(self, within: timedelta = LAST_WAIT) -> None:
        """End all of them at once; what has not ended by then is killed."""
        self._started = False
        ending = [asyncio.ensure_future(self._stop(server)) for server in self]
        if ending:
            _, late = await asyncio.wait(ending, timeout=within.total_seconds())
            for task in late:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def _stop(self, server: Server) -> None:
        server.hurry(LAST_CALLS)
        await server.halt(Reason.KERNEL_SHUTDOWN, LAST_CALLS)

    def _tell(self, transition: Transition) -> None:
        if transition.state is State.CONNECTED:
            self._welcome(transition.server)
        step = replace(transition, by=self._orders.get(transition.server, ""))
        if step.state in _SETTLED:
            self._orders.pop(step.server, None)
        for watcher in self._watchers:
            try:
                watcher(step)
            except Exception:
                log.exception("a watcher of the servers failed")

    def _welcome(self, name: str) -> None:
        """Its lists are the same, perhaps; but who met it before may have given up on its tools."""
        for kind in Kind if name in self._met else ():
            if self._catalog.count(name, kind):
                self._catalog.announce(name, kind)
        self._met.add(name)
