"""One channel, or family of channels, listened for at one server. (MGP §13.2, D-27)

It is subscribed to on the gateway's own link, once for all who want it. A server that forgets it is
told again; one that does not have it is left alone until it connects anew. In the modern era the
stream is the subscription.
"""

import asyncio
import contextlib
import logging
import random
from typing import Final

from comity.kernel.links import Link
from comity.kernel.listing import envelope
from comity.kernel.terms import Shared
from comity.rules.backoff import Backoff
from comity.rules.events import covers
from comity.rules.standard_channels import STANDARD
from comity.wire import jsonrpc, mcp
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.events import LISTENED, SUBSCRIBE, UNSUBSCRIBE, subscribed_in
from comity.wire.jsonrpc import UNSET, Frame

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0


class Ear:
    """Hears one name at one server for as long as its task runs."""

    def __init__(self, shared: Shared, name: str, *, is_modern: bool) -> None:
        self.id = ""
        self.channels: tuple[str, ...] = ()
        self._link: Link = shared.link
        self._sharers = shared.sharers
        self._name = name
        self._is_modern = is_modern
        self._settled = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    async def found(self) -> tuple[str, ...]:
        """The channels that the server has under this name, once it has said so."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._settled.wait()
        return self.channels

    def hears(self, subscription: str, channel: str) -> bool:
        """Whether what a server tells so was asked for by this name."""
        return subscription == self.id != "" and covers(self._name, channel)

    def close(self) -> None:
        self._task.cancel()

    async def closed(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        ended = 0
        try:
            while self._link.is_open:
                try:
                    if not await (self._listen() if self._is_modern else self._subscribe()):
                        return
                except (Unavailable, TimeoutError) as error:
                    log.info("server %r: its events are not heard: %s", self._link.server, error)
                except MalformedMessage as error:
                    # It has no such thing; asking again would change nothing.
                    log.info("server %r agrees to no events: %s", self._link.server, error)
                    return
                self.id, ended = "", ended + 1
                pause = Backoff().delay(ended, random.random())  # noqa: S311  # no secret
                await asyncio.sleep(pause.total_seconds())
        except Exception:
            log.exception("hearing the events of server %r ended in a bug", self._link.server)
        finally:
            self._settled.set()

    async def _subscribe(self) -> bool:
        """Until the server has forgotten it; whether it is worth another try."""
        anew = self._sharers.anew
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await self._link.request(SUBSCRIBE, {"channels": [self._name]})
        if jsonrpc.error_of(answer) is not None:
            return False
        self._agree(*subscribed_in(answer.result))
        try:
            if self.channels:
                await anew.wait()
                return True
            return False
        finally:
            if not anew.is_set():
                await self._unsubscribe()

    async def _unsubscribe(self) -> None:
        named, self.id = {"subscription_id": self.id}, ""
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._link.request(UNSUBSCRIBE, named)

    async def _listen(self) -> bool:
        wanted = {LISTENED: {"channels": [self._name]}}
        params = {"_meta": envelope(), "notifications": wanted}
        headers = ((mcp.METHOD_HEADER, mcp.LISTEN.encode()),)
        asking = asyncio.ensure_future(
            self._link.request(mcp.LISTEN, params, headers, self._acknowledged)
        )
        try:
            answer = await asking
        finally:
            asking.cancel()
        return jsonrpc.error_of(answer) is None and bool(self.channels)

    def _acknowledged(self, frame: Frame) -> None:
        if frame.method != mcp.ACKNOWLEDGED:
            return
        try:
            agreed = jsonrpc.members(jsonrpc.params_of(frame).get("notifications", b"{}"))
            self._agree(*subscribed_in(agreed.get(LISTENED, UNSET)))
        except MalformedMessage as error:
            log.info("server %r agrees to no events: %s", self._link.server, error)
            self.close()

    def _agree(self, subscription: str, channels: tuple[str, ...]) -> None:
        self.id = subscription
        own = [each for each in channels if covers(self._name, each) and each not in STANDARD]
        self.channels = tuple(own)
        self._settled.set()
