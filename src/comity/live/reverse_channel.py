"""The reverse channel: how a modern live server sends messages outside of a client's call."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from comity.catalog.listing import gateway_envelope
from comity.errors import MalformedMessage, Unavailable
from comity.mcp import jsonrpc, mcpl, protocol
from comity.mcp.jsonrpc import Frame
from comity.sessions.upstream import LiveConnection
from comity.toolkit.background import BackgroundTasks, draw_delay
from comity.toolkit.resilience import RetrySchedule

log = logging.getLogger(__name__)

RESPOND_SECONDS: Final = 10.0
STABLE_CONNECTION_SECONDS: Final = 60.0
"""A reverse channel that stays open this long counts as healthy, so the retry delay starts over."""

MOST_ANSWERS: Final = 256
"""The number of responses to one server that may be in flight. Further responses are dropped."""

type MessageDispatcher = Callable[[LiveConnection, Frame, Callable[[Frame], None]], None]
"""Handles a request or notification of a server. The third argument sends the response."""


class ReverseChannel:
    """Listens to one modern server on its reverse channel while its connection is open."""

    def __init__(self, connection: LiveConnection, dispatch: MessageDispatcher) -> None:
        self._connection = connection
        self._dispatch = dispatch
        self._background_tasks = BackgroundTasks(f"the way back from server {connection.server!r}")
        self._task = asyncio.ensure_future(self._run())

    def close(self) -> None:
        self._task.cancel()
        self._background_tasks.cancel()

    async def _run(self) -> None:
        ended, now = 0, asyncio.get_running_loop().time
        headers = ((protocol.METHOD_HEADER, mcpl.LISTEN.encode()),)
        while self._connection.is_open:
            began = now()
            try:
                asked = {"_meta": gateway_envelope()}
                answer = await self._connection.request(mcpl.LISTEN, asked, headers)
                if jsonrpc.error_of(answer) is not None:
                    log.info("Server %r has no return stream", self._connection.server)
                    return
            except Unavailable as error:
                log.info("Server %r cannot be read: %s", self._connection.server, error)
            ended = 1 if now() - began > STABLE_CONNECTION_SECONDS else ended + 1
            pause = draw_delay(RetrySchedule(), ended)
            await asyncio.sleep(pause.total_seconds())

    def on_message(self, frame: Frame) -> None:
        """Handle a message that the server sends on the reverse channel."""
        try:
            carried = mcpl.embedded_message_in(frame)
        except MalformedMessage as error:
            log.info("server %r: %s", self._connection.server, error)
            return
        self._dispatch(self._connection, carried, self._start_response)

    def _start_response(self, frame: Frame) -> None:
        if len(self._background_tasks) >= MOST_ANSWERS:
            log.info("Server %r reads no responses; one is lost", self._connection.server)
            return
        self._background_tasks.start(self._send_response(mcpl.embed_response(frame)), at_once=True)

    async def _send_response(self, response: dict[str, object]) -> None:
        headers = ((protocol.METHOD_HEADER, mcpl.RESPOND.encode()),)
        try:
            async with asyncio.timeout(RESPOND_SECONDS):
                told = {**response, "_meta": gateway_envelope()}
                await self._connection.request(mcpl.RESPOND, told, headers)
        except (Unavailable, TimeoutError) as error:
            log.info(
                "A response could not be sent to server %r: %s", self._connection.server, error
            )
