"""Counts the work in each turn of an event loop, where seconds would measure the machine."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Ticks:
    """Counts calls, or bytes, in each turn of the event loop."""

    def __init__(self) -> None:
        self.worst = self.total = self.turns = 0
        self._now = 0

    def count(self, amount: int = 1) -> None:
        self._now += amount
        self.total += amount

    def _tick(self) -> None:
        self.worst = max(self.worst, self._now)
        self._now = 0
        self.turns += 1
        self._handle = asyncio.get_running_loop().call_soon(self._tick)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        self._tick()
        try:
            yield
        finally:
            self._handle.cancel()
