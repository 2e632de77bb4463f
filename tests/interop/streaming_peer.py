"""A client of the official Python SDK, of either line, that calls tools as it is told on its stdin.

    python streaming_peer.py URL MODE

MODE is `sdk1`, `legacy`, or the version to speak without a handshake. Orders and news are lines of
JSON, as in `js/streaming.mjs`. Nothing of Comity is imported: this runs where only an SDK is, and
of whose types nothing is known here.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

URL, MODE = sys.argv[1:3]
sdk: Any = import_module("mcp")


def tell(key: str, **news: object) -> None:
    print(json.dumps({"key": key, **news}), flush=True)


@asynccontextmanager
async def connected() -> AsyncGenerator[Any]:
    if MODE != "sdk1":
        async with sdk.Client(URL, mode=MODE) as client:
            yield client
        return
    dial: Any = import_module("mcp.client.streamable_http").streamablehttp_client
    async with dial(URL) as (read, write, _), sdk.ClientSession(read, write) as session:
        await session.initialize()
        yield session


async def call(client: Any, order: dict[str, Any]) -> None:
    key = order["key"]

    async def note(progress: float, total: float | None, message: str | None) -> None:
        tell(key, progress=progress, message=message)

    try:
        result = await client.call_tool(order["name"], order["arguments"], progress_callback=note)
        tell(key, result=[block.text for block in result.content])
    except asyncio.CancelledError:
        tell(key, failed="cancelled")
        raise
    except Exception as problem:
        tell(key, failed=str(problem))


async def cancel(client: Any, task: "asyncio.Task[None]", number: int) -> None:
    """Give a call up; the line before this one says nothing of that, so it is said by hand."""
    if MODE == "sdk1":
        words: Any = import_module("mcp.types")
        params = words.CancelledNotificationParams(requestId=number, reason="no longer needed")
        note = words.CancelledNotification(method="notifications/cancelled", params=params)
        await client.send_notification(words.ClientNotification(note))
    task.cancel()


async def main() -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    calls: dict[str, tuple[asyncio.Task[None], int]] = {}
    async with connected() as client:
        tell("", ready=True)
        async for line in reader:
            order = json.loads(line)
            if order.get("cancel"):
                await cancel(client, *calls[order["key"]])
            else:
                # The id that the line before this one will give to its next request.
                number = getattr(client, "_request_id", 0)
                calls[order["key"]] = (asyncio.create_task(call(client, order)), number)
                await asyncio.sleep(0)


asyncio.run(main())
