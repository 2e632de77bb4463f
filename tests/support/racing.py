"""A process that tries to use an ask, as often as it is told to, many times at once.

It reads ids of asks, one to a line, and says for each by which of its calls it could be used.
"""

import asyncio
import json
import sys
from datetime import UTC, datetime

from comity.app.records import open_store
from comity.approvals.model import ApprovalStore
from comity.errors import Unavailable


async def race(asks: list[ApprovalStore], id: str, name: str, at_once: int) -> list[str]:
    now = datetime.now(UTC)
    calls = [f"{name}-{number}" for number in range(at_once)]
    tries = (used(asks[n % len(asks)], id, call, now) for n, call in enumerate(calls))
    won = await asyncio.wait_for(asyncio.gather(*tries), 60)
    return [call for call, has_won in zip(calls, won, strict=True) if has_won]


async def used(asks: ApprovalStore, id: str, call: str, now: datetime) -> bool:
    """Whoever waits too long for its turn at a busy file tries again."""
    while True:
        try:
            return await asks.consume(id, call, now) is not None
        except Unavailable:
            continue


async def main(url: str, name: str, stores: int, at_once: int) -> None:
    make = open_store
    records = [make(url) for _ in range(stores)]
    asks: list[ApprovalStore] = [each.approval_requests for each in records]
    # Each has its connection before the first race.
    await asyncio.gather(*(used(each, "none", name, datetime.now(UTC)) for each in asks))
    print("ready", flush=True)
    while id := (await asyncio.to_thread(sys.stdin.readline)).strip():
        print(json.dumps(await race(asks, id, name, at_once)), flush=True)
    for each in records:
        await each.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
