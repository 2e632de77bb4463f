"""What a server asks of its client crosses: sampling, elicitation, roots; and what it tells later.

The client is the official Python SDK's, the server `@modelcontextprotocol/server-everything`, and
each is tried at the server's own door and at the door of all servers.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

import mcp_types
import pytest
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.client.session import IncomingMessage
from pydantic import FileUrl

from tests.interop.conftest import DIRECT, served
from tests.interop.peers import node, package

pytestmark = [
    pytest.mark.skipif(DIRECT, reason="the server speaks stdio, and its doors are Comity's"),
    # The first of these tests to run may have to install the JavaScript peers.
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

SECONDS = 30.0
RESOURCE = "demo://resource/dynamic/text/1"


@dataclass
class Person:
    """Whoever sits at the client, and what was asked of them."""

    decision: str = "accept"
    asked: list[str] = field(default_factory=list[str])
    heard: asyncio.Queue[IncomingMessage] = field(default_factory=asyncio.Queue[IncomingMessage])

    @property
    def asked_in_calls(self) -> list[str]:
        """The server asks for roots by itself, some time after the handshake."""
        return [question for question in self.asked if question != "roots"]

    async def sample(
        self, context: ClientRequestContext, params: mcp_types.CreateMessageRequestParams
    ) -> mcp_types.CreateMessageResult:
        self.asked.append(f"sample {params.max_tokens}")
        said = mcp_types.TextContent(type="text", text="An old silent pond.")
        return mcp_types.CreateMessageResult(
            role="assistant", content=said, model="poet-1", stop_reason="endTurn"
        )

    async def decide(
        self, context: ClientRequestContext, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult:
        self.asked.append(f"decide {params.mode}")
        if self.decision == "accept":
            return mcp_types.ElicitResult(action="accept", content={"name": "you"})
        return mcp_types.ElicitResult(action="decline" if self.decision == "decline" else "cancel")

    async def roots(self, context: ClientRequestContext) -> mcp_types.ListRootsResult:
        self.asked.append("roots")
        root = mcp_types.Root(uri=FileUrl("file:///srv/you"), name="yours")
        return mcp_types.ListRootsResult(roots=[root])

    async def hear(self, message: IncomingMessage) -> None:
        self.heard.put_nowait(message)

    def at(self, url: str) -> Client:
        return Client(
            url,
            mode="legacy",
            read_timeout_seconds=SECONDS,
            sampling_callback=self.sample,
            elicitation_callback=self.decide,
            list_roots_callback=self.roots,
            message_handler=self.hear,
        )


@dataclass(frozen=True)
class Door:
    url: str
    prefix: str


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    everything = package("@modelcontextprotocol/server-everything", "dist/index.js")
    servers = {"everything": {"command": node(), "args": [everything, "stdio"]}}
    with served(servers, tmp_path_factory.mktemp("features")) as origin:
        yield origin


@pytest.fixture(params=["one server", "all servers"])
def door(request: pytest.FixtureRequest, gateway: str) -> Door:
    if request.param == "one server":
        return Door(f"{gateway}/servers/everything/mcp", "")
    return Door(f"{gateway}/mcp", "everything__")


async def _call(client: Client, name: str, **arguments: object) -> str:
    result = await client.call_tool(name, arguments)
    assert isinstance(result, mcp_types.CallToolResult)
    assert isinstance(result.content[0], mcp_types.TextContent)
    return result.content[0].text


@pytest.mark.requirement("MCP-5.4-create", "MCP-5.4-result", "MCP-5.4-choice")
async def test_a_server_samples_from_the_clients_model(door: Door) -> None:
    person = Person()
    async with person.at(door.url) as client:
        name = f"{door.prefix}trigger-sampling-request"
        said = await _call(client, name, prompt="A haiku, please.", maxTokens=17)
    assert person.asked_in_calls == ["sample 17"]
    assert "An old silent pond." in said
    assert "poet-1" in said


@pytest.mark.requirement(
    "MCP-5.6-elicitation", "MCP-5.6-accept", "MCP-5.6-decline", "MCP-5.6-cancel"
)
@pytest.mark.parametrize(
    ("decision", "outcome"),
    [("accept", "User provided"), ("decline", "User declined"), ("cancel", "User cancelled")],
)
async def test_a_server_hears_what_the_person_decided(
    door: Door, decision: str, outcome: str
) -> None:
    person = Person(decision)
    async with person.at(door.url) as client:
        said = await _call(client, f"{door.prefix}trigger-elicitation-request")
    assert person.asked_in_calls == ["decide form"]
    assert outcome in said


@pytest.mark.requirement("MCP-5.5-list")
async def test_a_server_is_told_the_clients_roots(door: Door) -> None:
    async with Person().at(door.url) as client:
        said = await _call(client, f"{door.prefix}get-roots-list")
    assert "file:///srv/you" in said


@pytest.mark.requirement("MCP-5.4-capability", "MCP-5.6-capability")
async def test_a_client_that_declared_nothing_is_asked_nothing(door: Door) -> None:
    prompt = {"prompt": "A haiku, please.", "maxTokens": 17}
    async with Client(door.url, mode="legacy", read_timeout_seconds=SECONDS) as client:
        for name, arguments in (
            ("trigger-sampling-request", prompt),
            ("trigger-elicitation-request", {}),
        ):
            # The server may refuse to have such a tool, or be refused when it asks.
            refused = await client.call_tool(f"{door.prefix}{name}", arguments)
            assert isinstance(refused, mcp_types.CallToolResult)
            assert refused.is_error


@pytest.mark.requirement("MCP-4.1-cap-completions")
async def test_an_argument_of_a_prompt_is_completed(door: Door) -> None:
    prompt = f"{door.prefix}completable-prompt"
    async with Person().at(door.url) as client:
        reference = mcp_types.PromptReference(type="ref/prompt", name=prompt)
        argument = {"name": "department", "value": "E"}
        found = await client.complete(reference, argument)
    assert found.completion.values == ["Engineering"]


@pytest.mark.requirement("MCP-5.2-subscribe", "MCP-4.1-cap-resources")
async def test_a_subscriber_hears_that_a_resource_was_updated(door: Door) -> None:
    person = Person()
    async with asyncio.timeout(SECONDS), person.at(door.url) as client:
        await client.subscribe_resource(RESOURCE)  # pyright: ignore[reportDeprecated]
        await _call(client, f"{door.prefix}toggle-subscriber-updates")
        while True:
            message = await person.heard.get()
            if isinstance(message, mcp_types.ResourceUpdatedNotification):
                break
        await _call(client, f"{door.prefix}toggle-subscriber-updates")
    assert str(message.params.uri) == RESOURCE
