"""What of the journal is old enough to go: sealed first, on record as gone, then removed.

Rule 1: only this node's own chain, and only from its beginning: what is left is whole.
Rule 2: that a segment was sealed, and to what hash it led, stands in the journal and is kept there
        before anything is removed; so whoever verifies what is left sees that nothing is missing.
"""

import asyncio
import logging
from datetime import datetime, timedelta
from typing import Final

from comity.kernel.journal import Journal
from comity.ports.journaling import PAGE
from comity.rules.chain import GENESIS
from comity.wire.audit import Event, Type
from comity.wire.errors import Unavailable
from comity.wire.journal import Line, Segment
from comity.wire.parties import GATEWAY

log = logging.getLogger(__name__)

EVERY_SECONDS: Final = 3600.0
AT_ONCE: Final = 50_000
"""How many entries one segment has at most; more go into the next one."""


class Retention:
    """Lets go of what is older than it has to be kept."""

    def __init__(self, journal: Journal, kept_for: timedelta) -> None:
        self._journal = journal
        self._kept_for = kept_for

    async def keep_on(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            try:
                while await self.sweep():
                    pass
            except Unavailable as error:
                log.warning("old entries of the journal stay for now: %s", error)
            except Exception:
                log.exception("letting go of old entries ended in a bug")
            await asyncio.sleep(EVERY_SECONDS)

    async def sweep(self) -> int:
        """Seal and remove one segment; gives how many entries it had. Raises Unavailable."""
        head = self._journal.head
        if head is None:
            return 0
        store = self._journal.store
        gone = list(await store.segments(head.node))
        after, before = (gone[-1].last, gone[-1].hash) if gone else (0, GENESIS)
        last = await self._last_before(head.node, after, self._journal.clock() - self._kept_for)
        if last is None:
            return 0
        now = self._journal.clock()
        segment = Segment(head.node, after + 1, last.seq, before, last.hash, now)
        said = {"first": segment.first, "last": segment.last, "hash": segment.hash.hex()}
        await self._journal.write(Event(Type.SEGMENT_SEALED, GATEWAY, now, details=said))
        await store.drop(segment)
        return segment.last - segment.first + 1

    async def _last_before(self, node: str, after: int, until: datetime) -> Line | None:
        found: Line | None = None
        while found is None or found.seq - after < AT_ONCE:
            page = await self._journal.store.page(node, after if found is None else found.seq, PAGE)
            old = [line for line in page if line.at < until]
            found = old[-1] if old else found
            if not old or len(old) < len(page):
                return found
        return found
