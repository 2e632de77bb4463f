"""A journal over a store that can be made to fail."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from comity.audit.chain import AuditRecord, ChainHead
from comity.audit.events import AuditEvent, event_of
from comity.audit.log import AuditLog, CommitSettings
from comity.audit.store import SqlAuditLog
from comity.errors import Unavailable
from comity.storage.sqlite import BUSY_SECONDS
from tests.support.inline_store import InlineChain, inline_parts


class FailingStore(SqlAuditLog):
    """Raises as often as it is told to: before it has written, or after."""

    def __init__(self) -> None:
        database, product = inline_parts()
        super().__init__(database, InlineChain(product.path, BUSY_SECONDS))
        self.failures = 0
        self.lies = 0
        self.commits: list[int] = []
        self.opened = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def open(self, node: str) -> ChainHead:
        self.opened += 1
        return await super().open(node)

    async def append(self, records: Sequence[AuditRecord]) -> None:
        await self.gate.wait()
        if self.failures > 0:
            self.failures -= 1
            raise Unavailable("the store is away")
        await super().append(records)
        self.commits.append(len(records))
        if self.lies > 0:
            self.lies -= 1
            raise Unavailable("the connection broke after the commit")


QUICK = CommitSettings(timedelta(milliseconds=5), timedelta(milliseconds=50))


@asynccontextmanager
async def kept(store: FailingStore, pace: CommitSettings = QUICK) -> AsyncGenerator[AuditLog]:
    journal = AuditLog(store, "n-1", pace)
    async with journal.run():
        yield journal


async def events(store: SqlAuditLog, node: str = "n-1") -> list[AuditEvent]:
    return [event_of(line.body) for line in await store.page(node, 0, 10_000)]
