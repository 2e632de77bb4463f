"""Fair turns of requests and of input.

Each principal begins one request per round of the event loop, and all connections together read
a limited amount of input. Without turns, a round serves every request that has arrived. A sender
with a hundred connections would have a hundred requests served before the request of another
principal. A waiting request costs only what it took to read it. Each connection has at most one.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

type Begin = Callable[[], None]

PORTION_BYTES: Final = 32 * 1024
"""How much of its input one connection reads before the next one has its turn."""
TURN_BYTES: Final = 128 * 1024
"""How much input all connections together read in one turn of the event loop."""


class FairRequestQueue:
    """Tracks which principals began a request in this round, and queues their further requests."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._waiting: dict[str, deque[Begin]] = {}

    def __len__(self) -> int:
        """Return how many requests wait."""
        return sum(len(queue) for queue in self._waiting.values())

    def begins(self, principal: str) -> bool:
        """Whether a request of this principal may begin now. If not, the caller must queue it."""
        if principal in self._begun:
            return False
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._go_round)
        self._begun.add(principal)
        return True

    def queue(self, principal: str, begin: Begin) -> None:
        """Begin the request in a later round, after earlier queued requests of this principal."""
        self._waiting.setdefault(principal, deque()).append(begin)

    async def turn(self, principal: str) -> None:
        """Wait until a request of this principal may begin."""
        if not self.begins(principal):
            begun = asyncio.get_running_loop().create_future()
            self.queue(principal, lambda: None if begun.done() else begun.set_result(None))
            await begun

    def _go_round(self) -> None:
        self._begun.clear()
        if not self._waiting:
            return
        # Scheduled first, so that the next round runs even if a request here raises.
        asyncio.get_running_loop().call_soon(self._go_round)
        for principal in list(self._waiting):
            self._begun.add(principal)
            queue = self._waiting[principal]
            begin = queue.popleft()
            if not queue:
                del self._waiting[principal]
            begin()


class InputTurns:
    """Counts the input that was read in this turn, and queues the connections that have more.

    A peer decides what its bytes cost. A megabyte of one-byte chunks or of empty frames costs
    seconds, and any number of peers may send at once. A connection that has more input than fits
    waits for a later turn, and is not read meanwhile.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._left = TURN_BYTES
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    @property
    def has_room(self) -> bool:
        """Whether a connection may read now. Connections that wait already come first."""
        return self._left > 0 and not self._waiting

    def spend(self, size: int) -> None:
        self._left -= size
        self._schedule()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` once in a later turn. It reads one portion, and waits again for the next."""
        self._waiting.append(go_on)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._left = TURN_BYTES
        self._is_scheduled = False
        if self._waiting:
            # Scheduled first, so that the next turn comes even if a connection here raises.
            self._schedule()
        while self._waiting and self._left > 0:
            self._waiting.popleft()()
