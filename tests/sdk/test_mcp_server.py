"""Any server object of the MCP SDK is a member of a topic: it is asked there, and answers."""

import asyncio
from typing import Any

import pytest
from mcp import types
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.mcpserver import MCPServer

from comity.errors import Misconfigured, Unavailable
from comity.sdk.functions import MethodFailure
from comity.sdk.topics.mcp_server import McpServer
from comity.sdk.topics.participant import join_topic
from comity.topics.rules import FULL, RESPOND
from tests.sdk.room import room
from tests.sdk.scene import ANA, WORKER
from tests.support.cases import loop_over


def high() -> MCPServer:
    server = MCPServer("files")

    @server.tool()
    async def write(path: str, mark: str | None = "x") -> str:
        """Write a file."""
        return f"wrote {path} {mark}"

    @server.resource("file:///srv/{name}")
    def read(name: str) -> str:
        return f"text of {name}"

    return server


def low() -> Server[Any]:
    async def list_tools(
        context: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[types.Tool(name="write", input_schema={"type": "object"})]
        )

    async def call_tool(
        context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        text = f"wrote {(params.arguments or {})['path']} x"
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])

    return Server("files", on_list_tools=list_tools, on_call_tool=call_tool)


@loop_over("server", [high, low])
async def test_a_server_of_either_kind_answers_in_a_topic(server: Any) -> None:
    async with (
        room({ANA: FULL, WORKER: RESPOND}) as gateway,
        join_topic(gateway.url, "ops", token=WORKER, serves=server()),
        join_topic(gateway.url, "ops", token=ANA) as ana,
    ):
        listed: Any = await ana.request("tools/list", to=WORKER)
        assert [tool["name"] for tool in listed["tools"]] == ["write"]
        params = {"name": "write", "arguments": {"path": "/srv/a"}}
        answers = await asyncio.gather(
            *(ana.request("tools/call", params, to=WORKER) for _ in range(5))
        )
        texts: list[Any] = [answer["content"] for answer in answers]
        assert [text[0]["text"] for text in texts] == ["wrote /srv/a x"] * 5
        hello: Any = await ana.request("initialize", {}, to=WORKER)
        assert hello["serverInfo"]["name"] == "files"
        assert await ana.request("ping", to=WORKER) == {}
        with pytest.raises(Unavailable, match="agent:wk answered"):
            await ana.request("x/y", to=WORKER)


async def test_a_null_among_the_arguments_stays_one() -> None:
    async with McpServer(high()) as server:
        params = {"name": "write", "arguments": {"path": "a", "mark": None}}
        answer: Any = await server.answer("tools/call", params)
        assert answer["content"][0]["text"] == "wrote a None"


async def test_what_a_server_refuses_is_told_with_its_own_code() -> None:
    async with McpServer(high()) as server:
        refused = await server.answer("resources/read", {"uri": "file:///etc/passwd"})
        assert isinstance(refused, MethodFailure)
        assert refused.code < 0
        assert isinstance(await server.answer("tools/call", {"name": 3}), MethodFailure)
        read: Any = await server.answer("resources/read", {"uri": "file:///srv/plan"})
        assert read["contents"][0]["text"] == "text of plan"


async def test_after_its_end_it_answers_no_more() -> None:
    async with McpServer(high()) as server:
        pass
    with pytest.raises(Unavailable, match="has ended"):
        await server.answer("ping", {})


async def test_an_object_that_is_no_server_is_told_at_once() -> None:
    with pytest.raises(Misconfigured, match="a list cannot be served"):
        async with join_topic("http://127.0.0.1:9", "ops", serves=[1]):
            pass
