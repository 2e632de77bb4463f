"""The official Python SDK before servers of the other era: everything crosses, at both doors.

The server is `servers/inquirer.py`, which speaks both eras; Comity is told to speak only one with
it, and its client speaks only the other.
"""

import asyncio
import json
import secrets
import sys
from collections.abc import Generator
from dataclasses import dataclass, field

import anyio
import mcp_types
import pytest
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp.client.session import IncomingMessage
from mcp.client.subscriptions import ResourceUpdated, ToolsListChanged
from mcp_types import CallToolResult, TextContent
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import FileUrl

from tests.interop.conftest import DIRECT, command_of
from tests.interop.peers import ROOT
from tests.interop.processes import comity, http_server
from tests.interop.servers.inquirer import NOTE

pytestmark = [
    pytest.mark.skipif(DIRECT, reason="without Comity there is no bridge"),
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

SECONDS = 60.0
MODERN, LEGACY = LATEST_MODERN_VERSION, "legacy"


@dataclass
class Person:
    """Whoever sits at the client: what they are asked, what they decide, what they hear."""

    decision: str = "accept"
    asked: list[str] = field(default_factory=list[str])
    logged: list[str] = field(default_factory=list[str])
    heard: asyncio.Queue[IncomingMessage] = field(default_factory=asyncio.Queue[IncomingMessage])

    async def decide(
        self, context: ClientRequestContext, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult | mcp_types.ErrorData:
        self.asked.append(params.message)
        if self.decision == "accept":
            return mcp_types.ElicitResult(action="accept", content={"name": "Ada"})
        return mcp_types.ElicitResult(action="decline" if self.decision == "decline" else "cancel")

    async def sample(
        self, context: ClientRequestContext, params: mcp_types.CreateMessageRequestParams
    ) -> mcp_types.CreateMessageResult:
        self.asked.append(f"sample {params.max_tokens}")
        said = TextContent(type="text", text="An old silent pond.")
        return mcp_types.CreateMessageResult(role="assistant", content=said, model="poet-1")

    async def roots(self, context: ClientRequestContext) -> mcp_types.ListRootsResult:
        root = mcp_types.Root(uri=FileUrl("file:///srv/you"), name="yours")
        return mcp_types.ListRootsResult(roots=[root])

    async def log(self, params: mcp_types.LoggingMessageNotificationParams) -> None:
        self.logged.append(f"{params.level}: {params.data}")

    async def hear(self, message: IncomingMessage) -> None:
        self.heard.put_nowait(message)


@dataclass(frozen=True)
class Door:
    """Where a client meets a server of the other era."""

    url: str
    prefix: str
    mode: str
    note: str

    def open(self, person: Person | None = None, **how: str) -> Client:
        someone = person or Person()
        return Client(
            self.url,
            mode=self.mode,
            read_timeout_seconds=SECONDS,
            elicitation_callback=someone.decide,
            sampling_callback=someone.sample,
            list_roots_callback=someone.roots,
            logging_callback=someone.log,
            message_handler=someone.hear,
            log_level="warning" if how else None,
        )

    async def call(self, client: Client, tool: str, **arguments: str) -> str:
        result = await client.call_tool(f"{self.prefix}{tool}", arguments)
        assert isinstance(result, CallToolResult)
        assert not result.is_error, result
        return text_in(result)


def text_in(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Comity before the same server four times: over both transports, each pinned to each era."""
    with http_server(lambda port: command_of("inquirer", str(port))) as upstream:
        stdio = {"command": sys.executable, "args": ["-m", "tests.interop.servers.inquirer"]}
        reached = {
            "stdio": {**stdio, "cwd": str(ROOT), "transport": "stdio"},
            "http": {"url": f"{upstream}/mcp", "transport": "http"},
        }
        lines: list[str] = []
        for over, how in reached.items():
            for era, version in (("handshake", "2025-11-25"), ("modern", "2026-07-28")):
                settings = {"id": f"{over}-{era}", "protocol": version, **how}
                lines += ["[[servers]]"]
                lines += [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
                if over == "stdio":
                    lines += [f'env = {{ INQUIRER_NOTE = "{_note(f"{over}-{era}")}" }}']
        config = tmp_path_factory.mktemp("bridge") / "comity.toml"
        config.write_text("\n".join([*lines, ""]))
        with comity(config) as origin:
            yield origin


@pytest.fixture(params=["one server", "all servers"])
def is_one(request: pytest.FixtureRequest) -> bool:
    return request.param == "one server"


@pytest.fixture(params=["stdio-handshake", "http-handshake", "stdio-modern", "http-modern"])
def door(request: pytest.FixtureRequest, gateway: str, is_one: bool) -> Door:
    server: str = request.param
    mode = MODERN if server.endswith("handshake") else LEGACY
    if is_one:
        return Door(f"{gateway}/servers/{server}/mcp", "", mode, _note(server))
    return Door(f"{gateway}/mcp", f"{server}__", mode, _note(server))


def _note(server: str) -> str:
    """The resource of a server, at the door of all told apart by its URI; HTTP has one process."""
    return f"inquirer://{server}" if server.startswith("stdio") else NOTE


async def test_tools_are_listed_and_a_structured_result_crosses(door: Door) -> None:
    async with asyncio.timeout(SECONDS), door.open() as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        greet = listed[f"{door.prefix}greet"]
        assert greet.output_schema is not None
        result = await client.call_tool(greet.name, {"name": "Ada"})
        read = await client.read_resource(door.note)
    assert isinstance(result, CallToolResult)
    assert text_in(result) == "Hello, Ada!"
    assert result.structured_content == {"letters": 3}
    (note,) = read.contents
    assert isinstance(note, mcp_types.TextResourceContents)
    assert note.text == "a note"


async def test_progress_comes_in_order(door: Door) -> None:
    steps: list[tuple[float, str | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, message))

    async with asyncio.timeout(SECONDS), door.open() as client:
        name = f"{door.prefix}count"
        await client.call_tool(name, {}, progress_callback=note)
    assert steps == [(1, "step 1"), (2, "step 2"), (3, "step 3")]


async def test_server_is_answered_by_the_person_the_model_and_the_roots_of_its_client(
    door: Door,
) -> None:
    person = Person()
    async with asyncio.timeout(SECONDS), door.open(person) as client:
        for decision, outcome in (
            ("accept", "accept Ada"),
            ("decline", "decline"),
            ("cancel", "cancel"),
        ):
            person.decision = decision
            assert await door.call(client, "ask") == outcome
        assert await door.call(client, "sample") == "poet-1: An old silent pond."
        assert await door.call(client, "roots") == "file:///srv/you"
    assert person.asked == [*["Who are you?"] * 3, "sample 17"]


async def test_a_client_that_declared_nothing_is_asked_nothing(door: Door) -> None:
    async with asyncio.timeout(SECONDS), Client(door.url, mode=door.mode) as client:
        try:
            result = await client.call_tool(f"{door.prefix}ask", {})
        except MCPError as error:
            refused = error.error.message
        else:
            assert isinstance(result, CallToolResult)
            assert result.is_error
            refused = text_in(result)
        assert await door.call(client, "greet", name="Ada") == "Hello, Ada!"
    assert "elicitation" in refused.lower()


async def test_a_cancelled_call_is_cancelled_at_the_server(door: Door) -> None:
    began, scope, name = asyncio.Event(), anyio.CancelScope(), secrets.token_hex(4)

    async def note(progress: float, total: float | None, message: str | None) -> None:
        began.set()

    async with asyncio.timeout(SECONDS), door.open() as client:

        async def wait() -> None:
            with scope:
                tool = f"{door.prefix}wait"
                await client.call_tool(tool, {"name": name}, progress_callback=note)

        waiting = asyncio.create_task(wait())
        await began.wait()
        scope.cancel()
        await waiting
        while name not in (await door.call(client, "cancelled")).split():
            await asyncio.sleep(0.05)


async def test_log_messages_come_from_the_level_that_the_client_named(door: Door) -> None:
    person = Person()
    async with asyncio.timeout(SECONDS), door.open(person, level="warning") as client:
        if door.mode == LEGACY:
            await client.set_logging_level("warning")  # pyright: ignore[reportDeprecated]
        await door.call(client, "log")
        while not person.logged:
            await asyncio.sleep(0.05)
    assert person.logged == ["warning: a warning"]


async def test_a_changed_list_is_told(door: Door) -> None:
    person, name = Person(), f"grown-{secrets.token_hex(4)}"
    async with asyncio.timeout(SECONDS), door.open(person) as client:
        await client.list_tools()
        if door.mode == LEGACY:
            await door.call(client, "grow", name=name)
            await _heard(person, mcp_types.ToolListChangedNotification)
        else:
            async with client.listen(tools_list_changed=True) as changes:
                await door.call(client, "grow", name=name)
                async for event in changes:
                    if isinstance(event, ToolsListChanged):
                        break
        listed = await client.list_tools(cache_mode="refresh")
    assert f"{door.prefix}{name}" in [tool.name for tool in listed.tools]


async def test_an_updated_resource_is_told_to_who_follows_it(gateway: str, door: Door) -> None:
    person = Person()
    async with asyncio.timeout(SECONDS), door.open(person) as client:
        if door.mode == LEGACY:
            await client.subscribe_resource(door.note)  # pyright: ignore[reportDeprecated]
            await door.call(client, "touch")
            told = await _heard(person, mcp_types.ResourceUpdatedNotification)
            assert str(told.params.uri) == door.note
            await client.unsubscribe_resource(door.note)  # pyright: ignore[reportDeprecated]
        else:
            async with client.listen(resource_subscriptions=[door.note]) as changes:
                touching = asyncio.create_task(_touch_again_and_again(door, client))
                async for event in changes:
                    if isinstance(event, ResourceUpdated):
                        assert event.uri == door.note
                        break
                touching.cancel()
                await asyncio.wait([touching])


async def _touch_again_and_again(door: Door, client: Client) -> None:
    """A listener is acknowledged before its server was asked, so the first touch may be early."""
    while True:
        await door.call(client, "touch")
        await asyncio.sleep(0.1)


async def _heard[Told](person: Person, kind: type[Told]) -> Told:
    while True:
        message = await person.heard.get()
        if isinstance(message, kind):
            return message
