"""Whose request begins when: in each round of the event loop one of each principal.

Without turns, a round serves whatever has arrived. A sender with a hundred connections would have
a hundred requests served before the one of somebody else. A request that has to wait costs what it
took to read it; each connection has at most one.
"""

import asyncio
from collections import deque
from collections.abc import Callable

type Begin = Callable[[], None]


class Turns:
    """Who has begun a request in this round, and whose requests wait for the next ones."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._waiting: dict[str, deque[Begin]] = {}

    def __len__(self) -> int:
        """How many requests wait."""
        return sum(len(queue) for queue in self._waiting.values())

    def begins(self, principal: str) -> bool:
        """Whether a request of this principal begins now; otherwise it has to be queued."""
        if principal in self._begun:
            return False
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._go_round)
        self._begun.add(principal)
        return True

    def queue(self, principal: str, begin: Begin) -> None:
        """Begin it in a later round, after those of this principal that wait already."""
        self._waiting.setdefault(principal, deque()).append(begin)

    async def turn(self, principal: str) -> None:
        """Until a request of this principal may begin."""
        if not self.begins(principal):
            begun = asyncio.get_running_loop().create_future()
            self.queue(principal, lambda: None if begun.done() else begun.set_result(None))
            await begun

    def _go_round(self) -> None:
        self._begun.clear()
        if not self._waiting:
            return
        # The next round comes even if one of these fails.
        asyncio.get_running_loop().call_soon(self._go_round)
        for principal in list(self._waiting):
            self._begun.add(principal)
            queue = self._waiting[principal]
            begin = queue.popleft()
            if not queue:
                del self._waiting[principal]
            begin()
