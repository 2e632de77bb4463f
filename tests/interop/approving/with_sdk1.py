"""The Python SDK 1 as a client whose calls wait for a person.

It runs in an environment of its own, so that here nothing is known of the SDK's types.
"""

import asyncio
from importlib import import_module
from typing import Any

from tests.interop.approving.lines import Ask, Order, Said, drive, worded

sdk: Any = import_module("mcp")
httpx: Any = import_module("httpx")
http_client: Any = import_module("mcp.client.streamable_http").streamable_http_client


async def call(order: Order, ask: Ask) -> Said:
    async def note(progress: float, total: float | None, message: str | None) -> None:
        """It is enough that news came."""

    headers = {"authorization": f"Bearer {order['key']}"}
    heard: dict[str, Any] = {"progress_callback": note} if order["progress"] else {}
    async with (
        httpx.AsyncClient(headers=headers, timeout=None) as http,
        http_client(order["url"], http_client=http) as streams,
        sdk.ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        async with asyncio.timeout(order["patience"]):
            result = await session.call_tool(order["tool"], {}, **heard)
    texts = [part.text for part in result.content if part.type == "text"]
    return worded("\n".join(texts), bool(result.isError), result.meta)


if __name__ == "__main__":
    drive(call)
