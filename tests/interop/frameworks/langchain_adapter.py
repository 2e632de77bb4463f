"""Calls a tool with langchain-mcp-adapters and prints what it shows. Arguments: URL, tool."""

import asyncio
import sys

from langchain_mcp_adapters.client import MultiServerMCPClient


async def main(url: str, tool: str) -> None:
    client = MultiServerMCPClient({"comity": {"transport": "streamable_http", "url": url}})
    (found,) = [each for each in await client.get_tools() if each.name == tool]
    print(await found.ainvoke({"name": "draft"}))


asyncio.run(main(*sys.argv[1:]))
