"""A journal over a store in memory that can be made to fail, as a database does."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from comity.adapters.memory.journal import MemoryJournal
from comity.kernel.journal import Journal, Pace
from comity.ports.journaling import Head
from comity.wire.audit import Event, event_of
from comity.wire.errors import Unavailable
from comity.wire.journal import Line


class FailingStore(MemoryJournal):
    """Raises as often as it is told to: before it has written, or after."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.lies = 0
        self.commits: list[int] = []
        self.opened = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def open(self, node: str) -> Head:
        self.opened += 1
        return await super().open(node)

    async def append(self, lines: Sequence[Line]) -> None:
        await self.gate.wait()
        if self.failures > 0:
            self.failures -= 1
            raise Unavailable("the store is away")
        await super().append(lines)
        self.commits.append(len(lines))
        if self.lies > 0:
            self.lies -= 1
            raise Unavailable("the connection broke after the commit")


QUICK = Pace(timedelta(milliseconds=5), timedelta(milliseconds=50))


@asynccontextmanager
async def kept(store: FailingStore, pace: Pace = QUICK) -> AsyncGenerator[Journal]:
    journal = Journal(store, "n-1", pace)
    async with journal.kept():
        yield journal


async def events(store: MemoryJournal, node: str = "n-1") -> list[Event]:
    return [event_of(line.body) for line in await store.page(node, 0, 10_000)]
