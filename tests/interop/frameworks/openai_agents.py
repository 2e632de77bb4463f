"""Calls a tool with the OpenAI Agents SDK and prints what it shows. Arguments: URL, tool."""

import asyncio
import sys

from agents.mcp import MCPServerStreamableHttp


async def main(url: str, tool: str) -> None:
    async with MCPServerStreamableHttp(params={"url": url}) as server:
        result = await server.call_tool(tool, {"name": "draft"})
        print("".join(part.text for part in result.content))


asyncio.run(main(*sys.argv[1:]))
