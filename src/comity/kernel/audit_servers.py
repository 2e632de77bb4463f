"""Audit servers: those whom their operator lets hear all that happens here. (MGP §6.1, §6.3)

Rule 1: what happens is kept here first, whether or not anybody hears of it. (D-34)
Rule 2: nothing waits for a server that is away, and only so much for one that is slow: the oldest
        is dropped, and the next notice says how many were.
Rule 3: so many notices are sent at a time; then the server has to answer something before more are.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from comity.kernel.audit import agreed_on, is_told, said_of
from comity.kernel.chores import Chores
from comity.kernel.links import Link
from comity.kernel.listing import envelope
from comity.kernel.servers import Server, Servers, Transition
from comity.wire import jsonrpc, mcp
from comity.wire.audit import NOTICE, Event
from comity.wire.errors import Unavailable
from comity.wire.lifecycle import State

log = logging.getLogger(__name__)

MOST_QUEUED: Final = 1000
AT_ONCE: Final = 64
ANSWER_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 1.0


def link_of(server: Server) -> Link | None:
    """The gateway's own link to a server that agreed on `audit`, if there is one."""
    shared = server.reached.own or server.reached.modern
    return shared.link if shared is not None and agreed_on(shared.link.mgp) else None


class AuditServers:
    """Every server that is told what happens, for as long as it is there."""

    def __init__(self, servers: Servers, is_wanted: Callable[[str], bool]) -> None:
        self._servers = servers
        self._is_wanted = is_wanted
        self._told: dict[str, _Told] = {}
        # What each of them has missed while it was away.
        self._missed: dict[str, int] = {}
        self._chores = Chores("the audit servers")
        servers.watch(self._stepped)

    def __len__(self) -> int:
        return len(self._told)

    def happened(self, event: Event) -> None:
        """An event was kept."""
        if not is_told(event):
            return
        for told in self._told.values():
            told.put(event)
        for name in self._missed:
            self._missed[name] += 1

    def _stepped(self, step: Transition) -> None:
        server = self._servers.get(step.server)
        if step.state is State.CONNECTED and server is not None:
            self._begin(server)
        elif step.state is not State.DRAINING:
            self._end(step.server)

    def _begin(self, server: Server) -> None:
        if not self._is_wanted(server.name):
            return
        link = link_of(server)
        if link is None:
            log.warning(
                "server %r is to hear all that happens, but did not agree on the MGP extension "
                "audit; it hears nothing",
                server.name,
            )
            return
        is_modern = server.reached.own is None
        told = self._told[server.name] = _Told(link, self._missed.pop(server.name, 0), is_modern)
        self._chores.start(told.keep_telling())

    def _end(self, name: str) -> None:
        told = self._told.pop(name, None)
        if told is not None:
            told.stop()
            self._missed[name] = told.missed + len(told.queue)
        elif not self._is_wanted(name):
            self._missed.pop(name, None)


class _Told:
    """One server, and what waits to be said to it."""

    def __init__(self, link: Link, missed: int, is_modern: bool) -> None:
        self.queue: deque[Event] = deque()
        self.missed = missed
        self._link = link
        self._is_modern = is_modern
        self._stirred = asyncio.Event()
        self._is_over = False

    def put(self, event: Event) -> None:
        if len(self.queue) >= MOST_QUEUED:
            self.queue.popleft()
            self.missed += 1
        self.queue.append(event)
        self._stirred.set()

    def stop(self) -> None:
        self._is_over = True
        self._stirred.set()

    async def keep_telling(self) -> None:
        while not self._is_over and self._link.is_open:
            await self._stirred.wait()
            self._stirred.clear()
            while self.queue and not self._is_over and self._link.is_open:
                for _ in range(min(AT_ONCE, len(self.queue))):
                    self._tell(self.queue.popleft())
                await self._answered()

    def _tell(self, event: Event) -> None:
        params = said_of(event, self.missed)
        self.missed = 0
        if self._is_modern:
            headers = ((mcp.METHOD_HEADER, NOTICE.encode()),)
            notice = jsonrpc.notification(NOTICE, {**params, "_meta": envelope()})
            self._link.tell(notice, headers)
        else:
            self._link.tell(jsonrpc.notification(NOTICE, params))

    async def _answered(self) -> None:
        """Until the server answers: so it has read, or could have, what was said before."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if self._is_modern:
                    headers = ((mcp.METHOD_HEADER, mcp.DISCOVER.encode()),)
                    await self._link.request(mcp.DISCOVER, {"_meta": envelope()}, headers)
                else:
                    await self._link.request(mcp.PING)
        except (Unavailable, TimeoutError) as error:
            log.info("server %r hears too slowly what happens: %s", self._link.server, error)
            await asyncio.sleep(PAUSE_SECONDS)
