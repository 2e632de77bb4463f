"""The official SDK's own way to relay: its typed Server in front, its ClientSession behind.

It holds one upstream session and answers `get_tool_input_schema`, without which every modern call
would list the tools first. That is the SDK at its best.
"""

import sys
from collections.abc import Mapping
from typing import Any

import mcp_types as types
import uvloop
from mcp import Client
from mcp.client.session import ClientSession
from mcp.client.stdio import StdioServerParameters
from mcp.server import Server
from mcp.server.context import ServerRequestContext

from bench import doorstep
from bench.eras import MODERN


async def relay(era: str, target: list[str]) -> None:
    upstream = (
        target[0]
        if "://" in target[0]
        else StdioServerParameters(command=target[0], args=target[1:])
    )
    async with Client(upstream, mode=MODERN if era == "modern" else "legacy") as client:
        listed = await client.session.list_tools()
        schemas = {tool.name: tool.input_schema for tool in listed.tools}
        server = typed_server(client.session, schemas)
        await doorstep.serve(server.streamable_http_app, "sdk", lifespan=True)


def typed_server(
    session: ClientSession, schemas: Mapping[str, Mapping[str, Any]]
) -> Server[dict[str, Any]]:
    async def list_tools(
        ctx: ServerRequestContext[dict[str, Any]], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return await session.list_tools(params=params)

    async def call_tool(
        ctx: ServerRequestContext[dict[str, Any]], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        return await session.call_tool(params.name, params.arguments)

    return Server(
        "sdk-relay",
        get_tool_input_schema=schemas.get,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


if __name__ == "__main__":
    uvloop.run(relay(sys.argv[1], sys.argv[2:]))
