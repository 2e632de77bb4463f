"""Keeps what is listed of one server as fresh as that server tells. (MCP §5.1, §5.2)

One reading at a time, so that the last list read is the last one there was; a flood of changes is
read as few times as it takes.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Final

from msgspec import Raw

from comity.kernel.catalog import Kind
from comity.kernel.chores import Chores
from comity.kernel.links import Link
from comity.kernel.listing import CHANGED_BY, METHODS, Listing, envelope
from comity.kernel.patience import Patience
from comity.rules.backoff import Backoff
from comity.wire import jsonrpc, mcp
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.mcp import Era

log = logging.getLogger(__name__)

CHANGES: Final = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
}

type Source = Callable[[], tuple[Link, Era] | None]
"""Over which link, and in which era, the lists can be read just now."""


class Freshness:
    """The care for the shelves of one server."""

    def __init__(
        self, name: str, listing: Listing, source: Source, within: timedelta, backoff: Backoff
    ) -> None:
        self._name = name
        self._listing = listing
        self._source = source
        self._within = within
        self._backoff = backoff
        self._stale: set[Kind] = set()
        self._reading = asyncio.Lock()
        self._chores = Chores(f"server {name!r}")

    async def read(self, capabilities: Raw | None, patience: Patience) -> None:
        """Read all the lists that a server declared; it is asked for nothing else. (MCP §4.1)"""
        declared = _declared(capabilities)
        async with self._reading:
            kinds = (kind for kind in Kind if mcp.SERVER_CAPABILITY[METHODS[kind]] in declared)
            await self._read(tuple(kinds), patience)

    def changed(self, method: str) -> None:
        """The server told that a list has changed."""
        if not self._stale:
            self._chores.start(self._reread())
        self._stale.update(CHANGED_BY[method])

    def changed_for_some(self, method: str) -> None:
        """The server told it on a link that others share, where the list may be another."""
        self._listing.announce(self._name, CHANGED_BY[method])
        self.changed(method)

    def listen(self, link: Link) -> None:
        """Hear of changes the modern way, for as long as the link lives."""
        self._chores.start(self._listen(link))

    def stop(self) -> None:
        """The server is let go; whoever starts it again reads everything anew."""
        self._chores.cancel()
        self._stale.clear()

    async def _listen(self, link: Link) -> None:
        params = {"_meta": envelope(), "notifications": CHANGES}
        headers = ((mcp.METHOD_HEADER, mcp.LISTEN.encode()),)
        ended = 0
        while link.is_open:
            try:
                answer = await link.request(mcp.LISTEN, params, headers, self._hear)
                if answer.error is not UNSET:
                    # It has no such thing; asking again would change nothing.
                    return
            except Unavailable as error:
                log.info("server %r: its changes are not heard: %s", self._name, error)
            ended += 1
            pause = self._backoff.delay(ended, random.random())  # noqa: S311  # no secret
            await asyncio.sleep(pause.total_seconds())
            # What changed while nobody listened was told to nobody.
            for method in CHANGED_BY:
                self.changed(method)

    def _hear(self, frame: Frame) -> None:
        if frame.method in CHANGED_BY:
            self.changed(str(frame.method))

    async def _reread(self) -> None:
        async with self._reading:
            kinds = tuple(kind for kind in Kind if kind in self._stale)
            self._stale.clear()
            try:
                async with asyncio.timeout(self._within.total_seconds()) as limit:
                    await self._read(kinds, Patience(limit))
            except (Unavailable, MalformedMessage, TimeoutError) as error:
                log.warning("server %r: its list could not be read again: %s", self._name, error)

    async def _read(self, kinds: tuple[Kind, ...], patience: Patience) -> None:
        source = self._source()
        if source is not None:
            await self._listing.read(*source, kinds, patience)


def _declared(capabilities: Raw | None) -> Mapping[str, Raw]:
    try:
        return {} if capabilities is None else jsonrpc.members(capabilities)
    except MalformedMessage:
        return {}
