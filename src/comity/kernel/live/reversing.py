"""The way back from a server of the modern era: asked for once, and held open. (mcp-wire §4)"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from comity.kernel.chores import Chores
from comity.kernel.listing import envelope
from comity.kernel.pulse import LiveLink
from comity.rules.backoff import Backoff
from comity.wire import jsonrpc, mcp, reverse
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.jsonrpc import Frame

log = logging.getLogger(__name__)

RESPOND_SECONDS: Final = 10.0
STEADY_SECONDS: Final = 60.0
"""A way back that held for so long did not fail: the next try need not wait for longer."""

MOST_ANSWERS: Final = 256
"""How many answers may be on their way; a server that takes none of them gets no more."""

type Deal = Callable[[LiveLink, Frame, Callable[[Frame], None]], None]
"""Who deals with what a server asks or tells, and how its answer goes back."""


class Reverse:
    """Listens to one server for as long as its link is open."""

    def __init__(self, link: LiveLink, deal: Deal) -> None:
        self._link = link
        self._deal = deal
        self._chores = Chores(f"the way back from server {link.server!r}")
        self._task = asyncio.ensure_future(self._run())

    def close(self) -> None:
        self._task.cancel()
        self._chores.cancel()

    async def _run(self) -> None:
        ended, now = 0, asyncio.get_running_loop().time
        headers = ((mcp.METHOD_HEADER, reverse.LISTEN.encode()),)
        while self._link.is_open:
            began = now()
            try:
                asked = {"_meta": envelope()}
                answer = await self._link.request(reverse.LISTEN, asked, headers)
                if jsonrpc.error_of(answer) is not None:
                    log.info("server %r has no way back", self._link.server)
                    return
            except Unavailable as error:
                log.info("server %r is not heard: %s", self._link.server, error)
            ended = 1 if now() - began > STEADY_SECONDS else ended + 1
            pause = Backoff().delay(ended, random.random())  # noqa: S311  # no secret
            await asyncio.sleep(pause.total_seconds())

    def heard(self, frame: Frame) -> None:
        """What the server asks or tells on this way."""
        try:
            carried = reverse.carried_in(frame)
        except MalformedMessage as error:
            log.info("server %r: %s", self._link.server, error)
            return
        self._deal(self._link, carried, self._respond)

    def _respond(self, frame: Frame) -> None:
        if len(self._chores) >= MOST_ANSWERS:
            log.info("server %r takes no answers; one is lost", self._link.server)
            return
        self._chores.start(self._send(reverse.response(frame)), at_once=True)

    async def _send(self, response: dict[str, object]) -> None:
        headers = ((mcp.METHOD_HEADER, reverse.RESPOND.encode()),)
        try:
            async with asyncio.timeout(RESPOND_SECONDS):
                told = {**response, "_meta": envelope()}
                await self._link.request(reverse.RESPOND, told, headers)
        except (Unavailable, TimeoutError) as error:
            log.info("server %r did not hear an answer: %s", self._link.server, error)
