"""Calls a tool with the client of FastMCP and prints what it shows. Arguments: URL, tool."""

import asyncio
import sys

from fastmcp import Client


async def main(url: str, tool: str) -> None:
    async with Client(url) as client:
        result = await client.call_tool(tool, {"name": "draft"}, raise_on_error=False)
        print("".join(part.text for part in result.content))


asyncio.run(main(*sys.argv[1:]))
