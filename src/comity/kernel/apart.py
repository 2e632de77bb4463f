"""Processes apart: for calls of tools that ask, at a server that several clients share.

On one pipe for all, a question names no call. So a call of a tool that has asked before gets a
process of its client's where calls of others are open: a question there can only be its client's.

Rule 1: all other calls stay on the shared process; a client that is alone there stays there too.
Rule 2: processes are bounded, in all and for each principal; beyond that the shared one serves.
Rule 3: a process apart that nobody uses ends where another client needs one, or none is needed.
"""

import logging
from collections.abc import Callable, Coroutine
from typing import Final

from comity.kernel.call import Call
from comity.kernel.chores import Chores
from comity.kernel.links import Link
from comity.kernel.once import Once
from comity.kernel.shares import Shares
from comity.kernel.sharing import client_of
from comity.kernel.tallies import name_in
from comity.wire import jsonrpc, mcp
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.jsonrpc import Frame

log = logging.getLogger(__name__)

MOST: Final = 8
MOST_OF_ONE: Final = 2

type Gone = Callable[[Link, str], None]
type Open = Callable[[Gone], Coroutine[None, None, Link]]
"""Start another process, and greet it; `Gone` hears when it has ended."""


class Apart:
    """The processes apart of one server, by the client that each is for."""

    def __init__(self, open_link: Open, chores: Chores) -> None:
        self._open_link = open_link
        self._chores = chores
        self._links: Once[str, Link] = Once()
        self._shares = Shares("processes apart", "", MOST_OF_ONE)
        self._principals: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._principals)

    def takes(self, link: Link, call: Call, frame: Frame) -> bool:
        """Whether a call is sent to a process apart, now or as soon as that has started."""
        pulse, params = link.pulse, frame.params
        if not pulse.asking or frame.method != mcp.CALL_TOOL or name_in(params) not in pulse.asking:
            return False
        client = client_of(call)
        if not pulse.is_crowded and all(client_of(each) == client for each in link.callers):
            self._end_idle()
            return False
        if "task" in jsonrpc.params_of(frame):
            # Whoever asks after the task later asks the process that all share.
            return False
        if client not in self._principals and not self._take(client, call.outbox.actor.party):
            log.info("server %r: no more processes apart; a call shares one", link.server)
            return False
        self._chores.start(self._send(client, call, frame), at_once=True)
        return True

    async def close(self) -> None:
        for link in self._links.clear():
            await link.close()
        for client in list(self._principals):
            self._give(client)

    async def _send(self, client: str, call: Call, frame: Frame) -> None:
        try:
            link = await self._links.get(client, lambda: self._open(client))
            link.ask(call, frame)
        except (Unavailable, MalformedMessage) as error:
            call.failed(error)

    async def _open(self, client: str) -> Link:
        def gone(link: Link, because: str) -> None:
            self._links.forget(client)
            self._give(client)

        try:
            return await self._open_link(gone)
        except BaseException:
            self._give(client)
            raise

    def _take(self, client: str, principal: str) -> bool:
        if len(self._principals) >= MOST:
            self._end_idle()
        if len(self._principals) >= MOST or not self._shares.take(principal):
            return False
        self._principals[client] = principal
        return True

    def _give(self, client: str) -> None:
        principal = self._principals.pop(client, None)
        if principal is not None:
            self._shares.give(principal)

    def _end_idle(self) -> None:
        for client, link in self._links.take(lambda link: not link.callers):
            self._give(client)
            self._chores.start(link.close())
