"""Calls a tool with the official Python SDK and prints what it shows. Arguments: URL, tool."""

import asyncio
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def main(url: str, tool: str) -> None:
    async with streamable_http_client(url) as streams, ClientSession(*streams[:2]) as session:
        await session.initialize()
        result = await session.call_tool(tool, {"name": "draft"})
        print("".join(part.text for part in result.content))


asyncio.run(main(*sys.argv[1:]))
