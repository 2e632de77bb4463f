"""MCP Apps: the user interface of a tool is readable at the endpoint that lists the tool."""

from collections.abc import Mapping

import pytest

from comity.views.model import ToolOverride, View
from tests.support.planned_gateway import PLAIN_SCHEMA, ToolServer
from tests.support.upstream import Exchange, hello
from tests.support.visitor import LATEST, MODERN, Frame
from tests.views.scene import viewing

CHART = "ui://charts/chart.html"
OTHER = "ui://charts/other.html"
PLAIN = "file:///notes"
UI = "io.modelcontextprotocol/ui"
PAGE = {"mimeType": "text/html;profile=mcp-app", "text": "<p>chart</p>"}
DRAW: Frame = {"inputSchema": PLAIN_SCHEMA, "_meta": {"ui": {"resourceUri": CHART}}}
# The older form of the same member.
PLOT: Frame = {"inputSchema": PLAIN_SCHEMA, "_meta": {"ui/resourceUri": OTHER}}
VIEWS = (
    View("whole", select=("charts/*",)),
    View("one", overrides=(ToolOverride("charts", "draw", name="chart", title="Chart"),)),
    View("old", select=("charts/plot",)),
)


def play_resources(servers: Mapping[str, ToolServer]) -> None:
    server = servers["charts"]
    server.capabilities = {**server.capabilities, "resources": {}}

    @server.upstream.act("initialize")
    async def initialize(exchange: Exchange) -> None:
        said = hello(exchange.frame["params"]["protocolVersion"])
        await exchange.result({**said, "capabilities": server.capabilities}, mcp_session_id="s")

    @server.upstream.act("resources/list")
    async def list_resources(exchange: Exchange) -> None:
        listed = [{"uri": uri, "name": uri} for uri in (CHART, OTHER, PLAIN)]
        told = {"resources": listed, "ttlMs": 3_600_000, "cacheScope": "public"}
        await exchange.result({**told, "resultType": "complete"})

    @server.upstream.act("resources/templates/list")
    async def list_templates(exchange: Exchange) -> None:
        told: Frame = {"resourceTemplates": [], "ttlMs": 3_600_000, "cacheScope": "public"}
        await exchange.result({**told, "resultType": "complete"})

    @server.upstream.act("resources/read")
    async def read(exchange: Exchange) -> None:
        said = {"contents": [{**PAGE, "uri": exchange.frame["params"]["uri"]}]}
        told = {**said, "ttlMs": 0, "cacheScope": "public"}
        await exchange.result({**told, "resultType": "complete"})


@pytest.mark.parametrize("version", [LATEST, MODERN])
@pytest.mark.parametrize(
    ("path", "tool", "target", "readable"),
    [
        ("/mcp", "charts__draw", "*", {CHART, OTHER, PLAIN}),
        ("/servers/charts/mcp", "draw", "charts/*", {CHART, OTHER, PLAIN}),
        ("/views/whole/mcp", "draw", "view:whole", {CHART, OTHER, PLAIN}),
        # A part of a server brings only the interfaces of the chosen tools.
        ("/views/one/mcp", "chart", "view:one", {CHART}),
        ("/views/old/mcp", "plot", "view:old", {OTHER}),
    ],
)
async def test_the_interface_of_a_tool_is_readable_where_the_tool_is_listed(
    path: str, tool: str, target: str, readable: set[str], version: str
) -> None:
    tools = {"charts": {"draw": DRAW, "plot": PLOT}}
    async with viewing(*VIEWS, tools=tools, prepare=play_resources) as scene:
        await scene.gateway.grant(target, verb="*")
        client = await scene.client(path, version)
        meta = (await client.definition(tool))["_meta"]
        uri = meta["ui"]["resourceUri"] if "ui" in meta else meta["ui/resourceUri"]
        assert uri in readable
        assert set(await client.names("resources/list", "resources")) == readable
        for each in (CHART, OTHER, PLAIN):
            answer = await client.ask("resources/read", {"uri": each})
            assert ("result" in answer) == (each in readable), each
            if each in readable:
                (content,) = answer["result"]["contents"]
                assert (content["uri"], content["text"]) == (each, PAGE["text"])
        # A server lists interfaces only to clients that declare the extension.
        discovery = scene.gateway.servers["charts"].upstream.of("server/discover")[0]
        declared = discovery.frame["params"]["_meta"]
        assert UI in declared["io.modelcontextprotocol/clientCapabilities"]["extensions"]
        handshake = scene.gateway.servers["charts"].upstream.of("initialize")[0]
        assert UI in handshake.frame["params"]["capabilities"]["extensions"]


async def test_reading_an_interface_needs_a_grant_for_resources() -> None:
    tools = {"charts": {"draw": DRAW}}
    async with viewing(*VIEWS, tools=tools, prepare=play_resources, grants=("view:one",)) as scene:
        client = await scene.client("/views/one/mcp")
        assert await client.names() == ["chart"]
        assert await client.names("resources/list", "resources") == []
        assert "error" in await client.ask("resources/read", {"uri": CHART})
