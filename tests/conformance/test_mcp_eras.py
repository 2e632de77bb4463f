"""Both eras of MCP beside each other, with the official SDK as server and as client."""

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged
from mcp_types import (
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    PromptReference,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)

from tests.conformance.conftest import standing
from tests.conformance.ways import Entry, Frame, House, on_pipes, on_port
from tests.interop.hand_client import SECONDS, frames_of
from tests.interop.processes import http_server

MODERN = "2026-07-28"
MODES = ("legacy", MODERN)
WAYS = ("own near", "own far", "merged near", "merged far")
META: Frame = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with http_server(on_port("official"), {"OFFICIAL_NAME": "far"}) as far:
        servers: dict[str, Entry] = {
            # In the handshake era its SDK tells nobody of what has changed.
            "near": {**on_pipes("official", OFFICIAL_NAME="near"), "era": "modern"},
            "far": {"type": "http", "url": f"{far}/mcp"},
        }
        with standing(tmp_path_factory.mktemp("both"), servers) as house:
            yield house


@pytest.fixture(params=WAYS)
def place(both: House, request: pytest.FixtureRequest) -> tuple[str, str, str]:
    return place_of(both, request.param)


def place_of(house: House, label: str) -> tuple[str, str, str]:
    """Where to go, what is before names there, and the server's name."""
    door, server = label.split(" ")
    own = door == "own"
    return house.door(server) if own else house.merged, "" if own else f"{server}__", server


async def modern(url: str, method: str, params: Frame, **headers: str) -> tuple[int, Frame]:
    """One request of the modern era by hand: its HTTP status and its answer."""
    frame = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
    known = {"accept": "application/json, text/event-stream", "mcp-protocol-version": MODERN}
    known |= {"mcp-method": method, **headers}
    async with (
        aiohttp.ClientSession() as http,
        asyncio.timeout(SECONDS),
        http.post(url, json=frame, headers=known) as reply,
    ):
        return reply.status, [said async for said in frames_of(reply)][-1]


@pytest.mark.requirement("MCP-7-flow", "MCP-5.1-list", "MCP-5.1-call", "MCP-5.1-result")
@pytest.mark.requirement("MCP-5.2-read", "MCP-5.2-templates", "MCP-5.3-get", "MCP-4.4-progress")
@pytest.mark.parametrize("mode", MODES)
async def test_a_whole_conversation_from_connecting_to_a_changed_list(
    place: tuple[str, str, str], mode: str
) -> None:
    url, prefix, server = place
    steps: list[float] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async with asyncio.timeout(SECONDS), Client(url, mode=mode) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert listed[f"{prefix}add"].title == "Add up"
        added = await client.call_tool(f"{prefix}add", {"a": 2, "b": 3})
        await client.call_tool(f"{prefix}count", {"steps": 3}, progress_callback=on_progress)
        read = await client.read_resource(f"{server}://cards/you")
        prompt = await client.get_prompt(f"{prefix}welcome", {"guest": "you"})
        name = f"grown_{len(prefix)}_{MODES.index(mode)}"
        await client.call_tool(f"{prefix}grow", {"name": name})
    assert added.structured_content == {"total": 5}
    assert steps == [1, 2, 3]
    assert isinstance(read.contents[0], TextResourceContents)
    assert read.contents[0].text == "Hello, you."
    assert isinstance(prompt.messages[0].content, TextContent)
    assert prompt.messages[0].content.text == "Please welcome you."


@pytest.mark.requirement("MCP-4.1-cap-completions")
@pytest.mark.parametrize("mode", MODES)
async def test_both_kinds_of_reference_are_completed(
    place: tuple[str, str, str], mode: str
) -> None:
    url, prefix, server = place
    async with asyncio.timeout(SECONDS), Client(url, mode=mode) as client:
        prompt = PromptReference(type="ref/prompt", name=f"{prefix}welcome")
        template = ResourceTemplateReference(type="ref/resource", uri=f"{server}://cards/{{name}}")
        argument = {"name": "guest", "value": "A"}
        of_prompt = await client.complete(prompt, argument)
        of_template = await client.complete(template, argument)
    assert of_prompt.completion.values == ["welcome A…"]
    assert of_template.completion.values == [f"{server}://cards/{{name}} A…"]


@pytest.mark.requirement("MCP-5.6-elicitation", "MCP-5.6-accept")
@pytest.mark.parametrize("mode", MODES)
async def test_a_person_is_asked_in_the_way_of_each_era(
    place: tuple[str, str, str], mode: str
) -> None:
    asked: list[str] = []

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        asked.append(params.message)
        return ElicitResult(action="accept", content={"colour": "red"})

    url, prefix, _ = place
    async with (
        asyncio.timeout(SECONDS),
        Client(url, mode=mode, elicitation_callback=answer) as client,
    ):
        painted = await client.call_tool(f"{prefix}paint", {})
    assert asked == ["Which colour?"]
    assert isinstance(painted.content[0], TextContent)
    assert "red" in painted.content[0].text


@pytest.mark.requirement("MCP-5.1-listchanged", "MCP-10.7-dynamic", "MCP-7-flow")
@pytest.mark.parametrize("label", WAYS)
async def test_a_listener_of_the_modern_era_hears_of_a_changed_list(
    both: House, label: str
) -> None:
    url, prefix, server = place_of(both, label)
    name = f"heard_{len(prefix)}"
    async with asyncio.timeout(SECONDS), Client(url, mode=MODERN) as client:
        async with client.listen(tools_list_changed=True) as listening:
            await client.call_tool(f"{prefix}grow", {"name": name})
            assert isinstance(await anext(listening), ToolsListChanged)
        called = await client.call_tool(f"{prefix}{name}", {})
    assert isinstance(called.content[0], TextContent)
    assert called.content[0].text == f"{server}: {name}"


@pytest.mark.requirement("MCP-5.2-subscribe")
async def test_a_listener_hears_of_its_own_resources_and_of_no_others(
    place: tuple[str, str, str],
) -> None:
    url, prefix, server = place
    own, other = f"{server}://cards/you", f"{server}://card"
    async with (
        asyncio.timeout(SECONDS),
        Client(url, mode=MODERN) as client,
        client.listen(resource_subscriptions=[own]) as listening,
    ):
        heard = asyncio.ensure_future(anext(listening))
        while not heard.done():
            # The server's own listening may begin after the gateway acknowledged ours.
            await client.call_tool(f"{prefix}touch", {"uri": other})
            await client.call_tool(f"{prefix}touch", {"uri": own})
            await asyncio.wait({heard}, timeout=0.1)
        assert heard.result() == ResourceUpdated(uri=own)


@pytest.mark.requirement("MCP-4.1-result")
@pytest.mark.parametrize("path", ["/mcp", "/servers/near/mcp", "/servers/far/mcp"])
async def test_what_a_server_is_can_be_discovered_without_a_handshake(
    both: House, path: str
) -> None:
    status, answer = await modern(both.origin + path, "server/discover", {})
    assert status == 200
    known = answer["result"]
    assert known["supportedVersions"] == [MODERN]
    assert {"tools", "resources", "prompts", "completions"} <= known["capabilities"].keys()
    expected = {"/mcp": "comity", "/servers/near/mcp": "near", "/servers/far/mcp": "far"}
    assert known["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == expected[path]


@pytest.mark.requirement("MCP-2.2-32601", "MCP-2.2-32602", "MCP-5.1-protoerr")
@pytest.mark.parametrize(
    ("method", "params", "name", "code", "status"),
    [
        ("no/such/method", {}, "", -32601, 404),
        ("initialize", {}, "", -32601, 404),
        ("tools/call", {"name": "far__nothing", "arguments": {}}, "far__nothing", -32602, 400),
        ("tools/call", {"name": "far__add", "arguments": {}}, "other", -32020, 400),
    ],
)
async def test_a_refusal_of_the_modern_era_has_its_code_and_status(
    both: House, method: str, params: Frame, name: str, code: int, status: int
) -> None:
    named: dict[str, Any] = {"mcp-name": name} if name else {}
    found, answer = await modern(both.merged, method, params, **named)
    assert (found, answer["error"]["code"], answer["id"]) == (status, code, 1)


@pytest.mark.requirement("MCP-5.1-list")
async def test_each_era_is_offered_the_servers_that_speak_it(both: House) -> None:
    async with asyncio.timeout(SECONDS):
        async with Client(both.merged, mode="legacy") as client:
            old = {tool.name for tool in (await client.list_tools()).tools}
        async with Client(both.merged, mode=MODERN) as client:
            new = {tool.name for tool in (await client.list_tools()).tools}
    assert {"near__add", "far__add"} <= old & new
