"""Attack 18: a remote server that asks without end amid a call, and takes none of the replies."""

import asyncio
import json
from pathlib import Path

import psutil

from tests.interop.processes import answers, running
from tests.support.piped import COMITY
from tests.support.upstream import Exchange, encode, scripted
from tests.support.visitor import SECONDS, visiting_at

PINGS = 40_000
MOST_DESCRIPTORS = 80
"""A few connections for replies, and those of the test's own clients."""


async def test_unanswered_replies_hold_few_descriptors_and_none_in_the_end(tmp_path: Path) -> None:
    seen: list[int] = []
    process = psutil.Process()

    async def ping(exchange: Exchange) -> None:
        await exchange.stream()
        for first in range(0, PINGS, 100):
            asked = (encode({"id": first + number, "method": "ping"}) for number in range(100))
            try:
                await exchange.say(b"".join(b"data: %b\n\n" % each for each in asked))
            except ConnectionError:
                return
            seen.append(process.num_fds())
        await exchange.event({"id": exchange.id, "result": {"content": []}})
        exchange.hang_up()

    async def is_free(origin: str) -> bool:
        return await asyncio.to_thread(answers, f"{origin}/health")

    async with scripted() as hostile:
        hostile.act("ping_without_end")(ping)
        # A reply has no method, so it is played as its verb.
        hostile.act("POST")(Exchange.left)
        hostile.act("tools/list")(listed)
        config = tmp_path / "mcp.json"
        entry = {"type": "http", "url": hostile.url}
        config.write_text(json.dumps({"mcpServers": {"up": entry}}))
        with running([COMITY, "serve", "-c", str(config), "--port", "0"]) as program:
            line = await asyncio.to_thread(program.wait_for_line, r"listening on (http://\S+)")
            origin = line.group(1)
            await asyncio.to_thread(program.wait_until, lambda: answers(f"{origin}/ready"))
            process = psutil.Process(program.pid)
            async with visiting_at(origin) as visitor, asyncio.timeout(SECONDS * 2):
                await visitor.greet()
                baseline = process.num_fds()
                (frame,) = await (await visitor.call("ping_without_end")).frames()
                assert seen, frame
                assert await is_free(origin)
                assert max(seen) < baseline + MOST_DESCRIPTORS
                # A reply has 10 seconds. The sessions with the server may be opened anew.
                while process.num_fds() > baseline + 2:
                    await asyncio.sleep(0.1)
                assert await is_free(origin)


async def listed(exchange: Exchange) -> None:
    await exchange.result(
        {"tools": [{"name": "ping_without_end", "inputSchema": {"type": "object"}}]}
    )
