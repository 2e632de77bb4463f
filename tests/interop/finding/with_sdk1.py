"""The Python SDK 1 as a client that finds its tools.

It runs in an environment of its own, so that here nothing is known of the SDK's types.
"""

from importlib import import_module
from typing import Any

from tests.interop.finding.story import Said, play, tell

sdk: Any = import_module("mcp")
http_client: Any = import_module("mcp.client.streamable_http").streamable_http_client


async def work(url: str, mode: str, query: str) -> Said:
    async with (
        http_client(url) as streams,
        sdk.ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()

        async def call(name: str, arguments: Said) -> Said:
            result = await session.call_tool(name, arguments)
            assert not result.isError, result
            return {"data": result.structuredContent, "text": result.content[0].text}

        async def listed() -> list[str]:
            return [tool.name for tool in (await session.list_tools()).tools]

        return await play(call, listed, query)


if __name__ == "__main__":
    tell(work)
