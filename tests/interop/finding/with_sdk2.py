"""The Python SDK 2 as a client that finds its tools, in either era."""

import mcp_types
from mcp import Client

from tests.interop.finding.story import Said, play, tell


async def work(url: str, mode: str, query: str) -> Said:
    async with Client(url, mode=mode) as client:

        async def call(name: str, arguments: Said) -> Said:
            result = await client.call_tool(name, arguments)
            assert not result.is_error, result
            (part,) = result.content
            assert isinstance(part, mcp_types.TextContent)
            return {"data": result.structured_content, "text": part.text}

        async def listed() -> list[str]:
            return [tool.name for tool in (await client.list_tools()).tools]

        return await play(call, listed, query)


if __name__ == "__main__":
    tell(work)
