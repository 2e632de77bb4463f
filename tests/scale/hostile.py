"""One hostile principal, as a program: it floods a gateway at everything that has a limit.

`python -m tests.scale.hostile ORIGIN KEY` says `flooding` once every flood has begun, and at the
end, on SIGTERM, what it was given, as one line of JSON.
"""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tests.scale.principals import Sender

CALLS, SESSIONS, STREAMS, PARKED, WRONG, RECONNECTING = 48, 8, 12, 8, 16, 4

type Flood = Callable[[Sender], Awaitable[None]]


class Hostile:
    """All floods at once; each is a loop without a pause on a connection of its own."""

    def __init__(self, origin: str, key: str) -> None:
        self._origin, self._key = origin, key
        self.given: Counter[str] = Counter()
        self._begun = 0

    async def flood(self) -> None:
        ask, open_stream = self._ask, self._open_stream
        floods: list[Flood] = [
            *[self._call] * CALLS,
            *[self._initialize] * SESSIONS,
            *[open_stream] * STREAMS,
            *[ask] * PARKED,
            *[self._guess] * WRONG,
            *[self._reconnect] * RECONNECTING,
        ]
        async with asyncio.TaskGroup() as group:
            for flood in floods:
                group.create_task(self._repeat(flood))
            while self._begun < len(floods):
                await asyncio.sleep(0)
            print("flooding", file=sys.stderr, flush=True)

    async def _repeat(self, flood: Flood) -> None:
        key = self._key
        if flood == self._guess:
            key = key[:-8] + "00000000"
        sender, is_first = Sender(self._origin, key), True
        while True:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await flood(sender)
                self._begun += is_first
                is_first = False
                continue
            sender.close()

    async def _call(self, sender: Sender) -> None:
        status, _, body = await sender.call("plain", "hostile")
        refused = b'"exhausted"' in body
        self.given["calls refused" if refused else f"calls {status}"] += 1

    async def _initialize(self, sender: Sender) -> None:
        status, _, _ = await sender.initialize()
        self.given[f"sessions {status}"] += 1

    async def _open_stream(self, sender: Sender) -> None:
        status, headers, _ = await sender.initialize()
        named = f"mcp-session-id: {headers.get('mcp-session-id', '')}\r\n"
        status, headers, _ = await sender.send(
            "GET", "/mcp", f"accept: text/event-stream\r\n{named}"
        )
        self.given[f"streams {status}"] += 1
        if status == 200:
            self.given["streams open"] += 1
            self.given["streams at most"] = max(
                self.given["streams at most"], self.given["streams open"]
            )
            self._begun += 1
            await sender.wait_for_end()
            self._begun -= 1
            self.given["streams open"] -= 1
            sender.close()

    async def _ask(self, sender: Sender) -> None:
        status, _, body = await sender.call("asks", "hostile")
        self.given["parked" if b"input_required" in body else f"asked in vain {status}"] += 1

    async def _guess(self, sender: Sender) -> None:
        status, _, _ = await sender.call("plain", "hostile")
        self.given[f"guesses {status}"] += 1

    async def _reconnect(self, sender: Sender) -> None:
        await self._call(sender)
        sender.close()


async def main(origin: str, key: str) -> None:
    # It stands for another machine: it takes no processor from the gateway that it floods.
    os.nice(19)
    hostile = Hostile(origin, key)
    flooding = asyncio.ensure_future(hostile.flood())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, flooding.cancel)
    with suppress(asyncio.CancelledError):
        await flooding
    print(json.dumps(hostile.given), file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
