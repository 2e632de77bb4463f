"""Adds entries to a journal without an end, and says on stdout of each batch when it is kept.

What it does when the store is away is what any writer has to do: open the chain again, see whether
its last batch is there, and go on.
"""

import asyncio
import random
import sys
from datetime import UTC, datetime

from comity.app.records import open_store
from comity.audit import chain
from comity.audit.chain import AuditRecord, AuditStore, ChainHead, line_of
from comity.audit.events import AuditEvent, AuditType, body_of
from comity.errors import Misconfigured, Unavailable

NODE = "node"


def chained(head: ChainHead, count: int) -> list[AuditRecord]:
    lines, previous = list[AuditRecord](), head.hash
    for seq in range(head.seq + 1, head.seq + 1 + count):
        event = AuditEvent(
            AuditType.SERVER_CONNECTED, "gateway", datetime.now(UTC), details={"pad": "x" * 300}
        )
        body = body_of(event)
        previous = chain.entry_hash(previous, head.node.encode(), seq, body)
        lines.append(line_of(event, head.node, seq, body, previous))
    return lines


async def reopened(store: AuditStore, node: str = NODE) -> ChainHead:
    while True:
        try:
            return await store.open(node)
        except (Unavailable, Misconfigured):
            await asyncio.sleep(0.05)


async def write(url: str) -> None:
    store = open_store(url).audit_log
    head = await reopened(store)
    print("opened", head.node, head.seq, head.hash.hex(), flush=True)
    while True:
        lines = chained(head, random.choice((1, 2, 9, 10, 50)))  # noqa: S311
        wanted = ChainHead(head.node, lines[-1].seq, lines[-1].hash)
        try:
            await store.append(lines)
            head = wanted
        except (Unavailable, Misconfigured):
            head = (await reopened(store))._replace(doubtful=())
            print("opened", head.node, head.seq, head.hash.hex(), flush=True)
        if head == wanted:
            print("kept", head.node, head.seq, head.hash.hex(), flush=True)


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1]))
