"""Fair turns of requests: each principal begins one request per round of the event loop.

Without turns, a round serves every request that has arrived. A sender with a hundred connections
would have a hundred requests served before the request of another principal. A waiting request
costs only what it took to read it. Each connection has at most one.
"""

import asyncio
from collections import deque
from collections.abc import Callable

type Begin = Callable[[], None]


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
