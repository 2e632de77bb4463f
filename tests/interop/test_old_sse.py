"""The official SDK as client of `/sse`, before servers of all three transports."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest
from mcp import ClientSession, MCPError
from mcp.client import ClientRequestContext
from mcp.client.sse import sse_client
from mcp_types import (
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    InputRequiredResult,
    Result,
    TextContent,
)

from tests.interop.conftest import DIRECT, by_hand, command_of, served
from tests.interop.processes import Program, accepts, free_port, http_server

pytestmark = [
    pytest.mark.skipif(DIRECT, reason="the old transport is tried through Comity's own doors"),
    pytest.mark.timeout(180),
]

BOUND_SECONDS = 60
ABOUT = {"name": "old", "version": "1"}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("old")
    with (
        http_server(lambda port: command_of("old_sse", str(port))) as old,
        http_server(lambda port: command_of("old_sse", str(port), "--http")) as newer,
    ):
        servers = {
            "old": {"type": "sse", "url": f"{old}/sse"},
            "newer": {"type": "http", "url": f"{newer}/mcp"},
            "pipe": by_hand("old_sse"),
        }
        with served(servers, folder) as gateway:
            yield gateway


DOORS = [
    ("/sse", "old__"),
    ("/sse", "newer__"),
    ("/sse", "pipe__"),
    ("/servers/old/sse", ""),
    ("/servers/newer/sse", ""),
    ("/servers/pipe/sse", ""),
]
at_every_door = pytest.mark.parametrize(("door", "prefix"), DOORS)


async def _give_a_name(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "you"})


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[ClientSession]:
    async with (
        asyncio.timeout(BOUND_SECONDS),
        sse_client(url) as (read, write),
        ClientSession(read, write, elicitation_callback=_give_a_name) as session,
    ):
        await session.initialize()
        yield session


def _text(result: CallToolResult | InputRequiredResult | Result) -> str:
    assert isinstance(result, CallToolResult)
    content = result.content[0]
    assert isinstance(content, TextContent)
    return content.text


@at_every_door
@pytest.mark.requirement("MCP-3.3-legacy")
async def test_sse_client_lists_calls_follows_progress_and_is_asked(
    origin: str, door: str, prefix: str
) -> None:
    steps: list[float] = []

    async def stepped(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    async with connected(origin + door) as session:
        listed = {tool.name for tool in (await session.list_tools()).tools}
        assert f"{prefix}count" in listed
        counted = await session.call_tool(f"{prefix}count", {"steps": 3}, progress_callback=stepped)
        assert _text(counted) == "counted to 3"
        # The server asks its client in the middle of a call.
        assert _text(await session.call_tool(f"{prefix}ask_name", {})) == "Hello, you!"
    assert steps == [1, 2, 3]


@at_every_door
async def test_a_call_that_an_old_client_calls_off_is_called_off_at_the_server(
    origin: str, door: str, prefix: str
) -> None:
    async with connected(origin + door) as session:
        before = int(_text(await session.call_tool(f"{prefix}interrupted", {})))
        with anyio.CancelScope() as scope:

            async def begun(progress: float, total: float | None, message: str | None) -> None:
                scope.cancel()

            await session.call_tool(f"{prefix}wait_long", {}, progress_callback=begun)
        assert scope.cancelled_caught
        while int(_text(await session.call_tool(f"{prefix}interrupted", {}))) == before:
            await asyncio.sleep(0.05)


@at_every_door
async def test_the_calls_of_an_old_client_that_hangs_up_are_called_off(
    origin: str, door: str, prefix: str
) -> None:
    async with connected(origin + door) as session:
        before = await _interrupted(session, prefix)
        await _begin_and_hang_up(origin, door, f"{prefix}wait_long")
        while await _interrupted(session, prefix) == before:
            await asyncio.sleep(0.05)


async def _interrupted(session: ClientSession, prefix: str) -> int:
    """How often a call was called off; asking that again does no harm."""
    for _ in range(5):
        with contextlib.suppress(MCPError):
            return int(_text(await session.call_tool(f"{prefix}interrupted", {})))
    raise AssertionError("the server cannot be asked")


async def _begin_and_hang_up(origin: str, door: str, tool: str) -> None:
    """A client by hand, because the SDK's calls everything off before it leaves."""
    hello = {"protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": ABOUT}
    call = {"name": tool, "arguments": {}, "_meta": {"progressToken": "t"}}
    async with aiohttp.ClientSession() as http, http.get(origin + door) as stream:
        endpoint = origin + await _next(stream)
        for message in (
            {"id": 1, "method": "initialize", "params": hello},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": call},
        ):
            async with http.post(endpoint, json={"jsonrpc": "2.0", **message}) as posted:
                assert posted.status == 202
            if message.get("id") == 1:
                assert json.loads(await _next(stream))["id"] == 1
        assert json.loads(await _next(stream))["method"] == "notifications/progress"


async def _next(stream: aiohttp.ClientResponse) -> str:
    """The data of the next event."""
    while line := await stream.content.readline():
        if line.startswith(b"data: "):
            return line.removeprefix(b"data: ").decode().rstrip()
    raise AssertionError("the stream has ended")


async def test_calls_of_two_old_clients_under_the_same_ids_are_kept_apart(origin: str) -> None:
    async with (
        connected(f"{origin}/sse") as first,
        connected(f"{origin}/sse") as second,
        asyncio.TaskGroup() as tasks,
    ):
        calls = [
            tasks.create_task(session.call_tool(f"{server}__count", {"steps": steps}))
            for session, shift in ((first, 0), (second, 1))
            for server in ("old", "newer", "pipe")
            for steps in range(1 + shift, 11 + shift)
        ]
    texts = [_text(call.result()) for call in calls]
    assert texts == [
        f"counted to {steps}"
        for shift in (0, 1)
        for _ in range(3)
        for steps in range(1 + shift, 11 + shift)
    ]


async def test_an_old_client_outlives_the_old_server_behind_it(tmp_path: Path) -> None:
    port = free_port()
    command = command_of("old_sse", str(port))
    server = Program(command)
    try:
        server.wait_until(lambda: accepts(port))
        entry = {"type": "sse", "url": f"http://127.0.0.1:{port}/sse"}
        with served({"old": entry}, tmp_path) as gateway:
            async with connected(f"{gateway}/servers/old/sse") as session:
                assert _text(await session.call_tool("count", {"steps": 1})) == "counted to 1"
                server.stop()
                with pytest.raises(MCPError):
                    await session.call_tool("count", {"steps": 1})
                server = Program(command)
                while not await _counts(session):
                    await asyncio.sleep(0.1)
    finally:
        server.stop()


async def _counts(session: ClientSession) -> bool:
    try:
        return _text(await session.call_tool("count", {"steps": 2})) == "counted to 2"
    except MCPError:
        return False
