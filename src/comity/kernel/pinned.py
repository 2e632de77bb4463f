"""The definitions that were accepted, in memory and in the records. (attack 2)

What is accepted counts at once, and is written down soon after. What the records hold of a server
is read before the first of its tools is judged: without that a new start would accept everything.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

from comity.kernel.chores import Chores
from comity.ports import PinRecords
from comity.rules.standings import Accepted
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.pins import Pin

log = logging.getLogger(__name__)

AT_ONCE: Final = 200
"""How many are written in one go."""


class Pinned:
    """The pins of all servers."""

    def __init__(self, records: PinRecords) -> None:
        self._records = records
        self._servers: dict[str, dict[str, Accepted]] = {}
        self._unwritten: dict[tuple[str, str], Pin] = {}
        self._chores = Chores("the pins")
        self._writing = asyncio.Lock()

    def is_known(self, server: str) -> bool:
        """Whether it is known what was accepted of this server."""
        return server in self._servers

    def get(self, server: str, tool: str) -> Accepted | None:
        return self._servers.get(server, {}).get(tool)

    def of(self, server: str) -> Mapping[str, Accepted]:
        return self._servers.get(server, {})

    async def load(self, server: str, *, again: bool = False) -> None:
        """Read what was accepted of a server, unless that is known. Raises Unavailable."""
        if server in self._servers and not again:
            return
        found: dict[str, Accepted] = {}
        for number, pin in enumerate(await self._records.of(server)):
            found[pin.tool] = Accepted(pin.digest, pin.accepted_by, pin.accepted_at)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        unwritten = [pin for (owner, _), pin in self._unwritten.items() if owner == server]
        for pin in unwritten:
            # What was accepted here and is on its way there.
            found.setdefault(pin.tool, Accepted(pin.digest, pin.accepted_by, pin.accepted_at))
        self._servers[server] = found

    def accept(self, pin: Pin) -> None:
        """Let a definition count from now on; it is written down beside that."""
        accepted = Accepted(pin.digest, pin.accepted_by, pin.accepted_at)
        self._servers.setdefault(pin.server, {})[pin.tool] = accepted
        if not self._unwritten:
            self._chores.start(self._write_soon())
        self._unwritten[pin.server, pin.tool] = pin

    async def accept_now(self, pins: Iterable[Pin]) -> None:
        """The same for what somebody waits for: it is written before it counts. Raises."""
        accepted = list(pins)
        await self._records.put(*accepted)
        for pin in accepted:
            self._unwritten.pop((pin.server, pin.tool), None)
            known = Accepted(pin.digest, pin.accepted_by, pin.accepted_at)
            self._servers.setdefault(pin.server, {})[pin.tool] = known

    async def definition(self, server: str, tool: str) -> bytes | None:
        """What was accepted, as it was written then. Raises Unavailable."""
        unwritten = self._unwritten.get((server, tool))
        if unwritten is not None:
            return unwritten.definition
        pin = await self._records.get(server, tool)
        return None if pin is None else pin.definition

    def look(self) -> None:
        """Try again to write down what could not be."""
        if self._unwritten and not len(self._chores):
            self._chores.start(self._write_soon())

    async def settle(self) -> None:
        await self._chores.finish()

    def stop(self) -> None:
        self._chores.cancel()

    async def _write_soon(self) -> None:
        # What comes in the same breath is written in one go.
        await asyncio.sleep(0)
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
        while self._unwritten:
            some = dict(islice(self._unwritten.items(), AT_ONCE))
            try:
                await self._records.put(*some.values())
            except Unavailable as error:
                log.warning("accepted definitions could not be written down yet: %s", error)
                return
            except MalformedMessage as error:
                # One that no store keeps; it is seen for the first time again after a start.
                log.warning("an accepted definition cannot be written down: %s", error)
            for place, pin in some.items():
                if self._unwritten.get(place) is pin:
                    del self._unwritten[place]
