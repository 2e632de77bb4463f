"""Asks a server again and again whether it is well, in the way that its link offers. (MGP §11.3)

`mgp/health/ping` where `lifecycle` was negotiated, MCP's `ping` on other links that shook hands,
`server/discover` on those of the modern era, which has no ping. (D-23)
"""

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from comity.kernel.links import Link
from comity.kernel.listing import envelope
from comity.kernel.pulse import Pulse
from comity.kernel.reached import Reached
from comity.rules.health import Health, Probing
from comity.rules.phrases import count_noun
from comity.wire import jsonrpc, mcp
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.lifecycle import HEALTH_PING
from comity.wire.negotiation import Extension

log = logging.getLogger(__name__)

DISCOVER_HEADERS: Final = ((mcp.METHOD_HEADER, mcp.DISCOVER.encode()),)


class Prober:
    """The care for one server's health; what was found is kept for whoever looks."""

    def __init__(self, reached: Reached, pulse: Pulse, probing: Probing) -> None:
        self.health = Health()
        self._reached = reached
        self._pulse = pulse
        self._probing = probing
        self._doubted = asyncio.Event()
        self._heard = 0
        self._heard_at = 0.0

    def doubt(self) -> None:
        """Something failed on the way to the server: ask it soon, whatever was heard before."""
        self._doubted.set()

    async def watch(self) -> str:
        """Until the server is to be taken for lost; gives why."""
        self.health = Health()
        self._note_heard()
        while True:
            await self._pause()
            doubted = self._doubted.is_set()
            self._doubted.clear()
            if self._note_heard() and not doubted:
                self.health = self.health.after_sign_of_life()
                continue
            await self._probe()
            self._note_heard()
            silent = timedelta(seconds=asyncio.get_running_loop().time() - self._heard_at)
            if self._probing.finds_lost(self.health, bool(self._pulse.calls), silent):
                missed = count_noun(self.health.missed, "time")
                return f"it did not answer {missed} when asked how it is"

    async def _pause(self) -> None:
        """Until the next probe is due; one in doubt is asked soon, but not without a break."""
        whole = self._probing.next_after(self.health)
        least = min(whole, self._probing.when_in_doubt)
        await asyncio.sleep(least.total_seconds())
        try:
            async with asyncio.timeout((whole - least).total_seconds()):
                await self._doubted.wait()
        except TimeoutError:
            return

    def _note_heard(self) -> bool:
        """Whether anything was heard of the server since this was asked last."""
        if self._pulse.heard == self._heard:
            return False
        self._heard = self._pulse.heard
        self._heard_at = asyncio.get_running_loop().time()
        return True

    async def _probe(self) -> None:
        shared = self._reached.own or self._reached.modern
        if shared is None:
            return
        falters = self._pulse.falters
        try:
            async with asyncio.timeout(self._probing.within.total_seconds()):
                answer = await self._ask(shared.link)
            self.health = self.health.after_answer(_status(answer))
        except TimeoutError:
            self._miss("in time")
        except Unavailable as error:
            if self._reached.costs_a_process or self._pulse.falters != falters:
                self._miss(f"well: {error}")
            else:
                # Some remote servers know no ping and say so by HTTP alone; they do live.
                self.health = self.health.after_sign_of_life()

    def _miss(self, how: str) -> None:
        self.health = self.health.after_miss()
        log.info("server %r did not answer a probe %s", self._reached.name, how)

    async def _ask(self, link: Link) -> Frame:
        """Any answer will do, an error too: whoever refuses lives."""
        modern = self._reached.own is None
        if manages_lifecycle(link):
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            return await ask_of_mgp(link, HEALTH_PING, {"timestamp": now}, modern=modern)
        if modern:
            return await link.request(mcp.DISCOVER, {"_meta": envelope()}, DISCOVER_HEADERS)
        return await link.request(mcp.PING)


def manages_lifecycle(link: Link) -> bool:
    """Whether the server agreed to be asked of its health and to shut down. (MGP §2.4)"""
    return link.mgp is not None and Extension.LIFECYCLE in link.mgp.extensions


async def ask_of_mgp(
    link: Link, method: str, params: Mapping[str, object], *, modern: bool
) -> Frame:
    """A request of MGP's, in the envelope of its link's era."""
    if not modern:
        return await link.request(method, params)
    headers = ((mcp.METHOD_HEADER, method.encode()),)
    return await link.request(method, {**params, "_meta": envelope()}, headers)


def _status(answer: Frame) -> str | None:
    """What the server says of itself; only MGP has words for that."""
    try:
        found = {} if answer.result is UNSET else jsonrpc.members(answer.result)
        return jsonrpc.text(found.get("status"))
    except MalformedMessage:
        return None
