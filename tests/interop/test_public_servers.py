"""The official SDKs as clients of public servers, all behind one endpoint.

`server-everything` and `server-filesystem` speak the handshake era only, and a client of
2026-07-28 is offered what servers of its own era have: here a small server made with the official
Python SDK, which over HTTP speaks both eras.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mcp.client.stdio import StdioServerParameters

from tests.interop.conftest import DIRECT, Entry, command_of, served
from tests.interop.peer_plans import Answers, Step, with_python, with_typescript
from tests.interop.peers import node, package
from tests.interop.processes import http_server, on_pipes

pytestmark = [
    pytest.mark.skipif(DIRECT, reason="several servers behind one endpoint are Comity's work"),
    # The first of these tests to run may have to install the JavaScript peers.
    pytest.mark.timeout(900),
]

OF_BOTH_ERAS: dict[str, Step] = {
    "tools": {"do": "tools"},
    "greet": {"do": "call", "name": "greeter__greet", "arguments": {"name": "you"}},
    "count": {"do": "call", "name": "greeter__count", "arguments": {"steps": 3}},
    "resources": {"do": "resources"},
    "card": {"do": "read", "uri": "greeter://card"},
    "prompts": {"do": "prompts"},
    "welcome": {"do": "prompt", "name": "greeter__welcome", "arguments": {"guest": "you"}},
    "unknown": {"do": "call", "name": "greeter__nothing", "arguments": {}},
}
DOCUMENT = "demo://resource/static/document/architecture.md"
LONG = "everything__trigger-long-running-operation"


@dataclass(frozen=True)
class Gateway:
    """Comity before the three servers, and the folder that one of them serves."""

    origin: str
    config: Path
    folder: Path

    @property
    def plan(self) -> dict[str, Step]:
        files = {"path": str(self.folder)}
        readme = {"path": str(self.folder / "read.me")}
        return {
            **OF_BOTH_ERAS,
            "echo": {"do": "call", "name": "everything__echo", "arguments": {"message": "hi"}},
            "sum": {"do": "call", "name": "everything__get-sum", "arguments": {"a": 19, "b": 23}},
            "image": {"do": "call", "name": "everything__get-tiny-image", "arguments": {}},
            "structured": {
                "do": "call",
                "name": "everything__get-structured-content",
                "arguments": {"location": "Chicago"},
            },
            "long": {"do": "call", "name": LONG, "arguments": {"duration": 1, "steps": 4}},
            "files": {"do": "call", "name": "filesystem__list_directory", "arguments": files},
            "file": {"do": "call", "name": "filesystem__read_text_file", "arguments": readme},
            "forbidden": {
                "do": "call",
                "name": "filesystem__list_directory",
                "arguments": {"path": "/"},
            },
            "templates": {"do": "templates"},
            "document": {"do": "read", "uri": DOCUMENT},
            "dynamic": {"do": "read", "uri": "demo://resource/dynamic/text/7"},
            "simple": {"do": "prompt", "name": "everything__simple-prompt", "arguments": {}},
            "city": {
                "do": "prompt",
                "name": "everything__args-prompt",
                "arguments": {"city": "Bergen"},
            },
        }


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "read.me").write_text("Read me.")
    with http_server(_greeter) as greeter:
        servers: dict[str, Entry] = {
            "everything": _by_node("@modelcontextprotocol/server-everything", "stdio"),
            "filesystem": _by_node("@modelcontextprotocol/server-filesystem", str(folder)),
            "greeter": {"type": "http", "url": f"{greeter}/mcp"},
        }
        home = tmp_path_factory.mktemp("gateway")
        with served(servers, home) as origin:
            yield Gateway(origin, home / "mcp.json", folder)


def _greeter(port: int) -> list[str]:
    return command_of("both_eras", str(port))


def _by_node(name: str, *arguments: str) -> Entry:
    return {"command": node(), "args": [package(name, "dist/index.js"), *arguments]}


@pytest.fixture(scope="module", params=["python", "python over stdio", "v1", "v2"])
def handshake(request: pytest.FixtureRequest, gateway: Gateway) -> Answers:
    """What a client of the handshake era was answered: Python's, or TypeScript's of both lines."""
    match request.param:
        case "python":
            done = with_python(f"{gateway.origin}/mcp", "legacy", gateway.plan)
        case "python over stdio":
            done = with_python(_comity_over_stdio(gateway.config), "legacy", gateway.plan)
        case sdk:
            done = with_typescript(f"{gateway.origin}/mcp", sdk, gateway.plan)
    return asyncio.run(done)


@pytest.fixture(scope="module", params=["python", "v2-modern"])
def modern(request: pytest.FixtureRequest, gateway: Gateway) -> Answers:
    """What a client of 2026-07-28 was answered."""
    url = f"{gateway.origin}/mcp"
    if request.param == "python":
        return asyncio.run(with_python(url, "2026-07-28", OF_BOTH_ERAS))
    return asyncio.run(with_typescript(url, request.param, OF_BOTH_ERAS))


def _comity_over_stdio(config: Path) -> StdioServerParameters:
    command, *arguments = on_pipes(config)
    return StdioServerParameters(command=command, args=arguments)


@pytest.mark.requirement("MCP-1-host", "MCP-1-route", "MCP-5.1-list", "MCP-7-flow")
def test_the_tools_of_all_servers_are_listed_under_their_servers_names(handshake: Answers) -> None:
    listed = _names(handshake["tools"])
    assert {"everything__echo", "everything__get-sum", LONG} <= listed
    assert {"filesystem__list_directory", "filesystem__read_text_file"} <= listed
    assert {"greeter__greet", "greeter__count"} <= listed
    assert all(name.split("__")[0] in ("everything", "filesystem", "greeter") for name in listed)


@pytest.mark.requirement(
    *("MCP-5.1-call", "MCP-5.1-c-text", "MCP-5.1-c-image", "MCP-5.1-result", "MCP-5.1-toolerr"),
    *("MCP-1-route", "MCP-4.4-progress"),
)
def test_tools_of_each_server_answer_with_every_kind_of_result(handshake: Answers) -> None:
    assert _text(handshake["echo"]) == "Echo: hi"
    assert _text(handshake["sum"]) == "The sum of 19 and 23 is 42."
    assert _text(handshake["files"]) == "[FILE] read.me"
    assert _text(handshake["file"]) == "Read me."
    assert handshake["greet"]["structuredContent"] == {"text": "Hello, you!", "letters": 11}
    images = [part for part in handshake["image"]["content"] if part["type"] == "image"]
    assert images[0]["mimeType"] == "image/png"
    assert images[0]["data"].startswith("iVBORw0KGgo")
    structured = handshake["structured"]
    assert json.loads(_text(structured)) == structured["structuredContent"]
    steps = [(news["progress"], news["total"]) for news in handshake["long"]["progress"]]
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert "completed" in _text(handshake["long"])
    # The failure of a tool is a result that the model sees; that of the client is not.
    assert handshake["forbidden"]["isError"] is True
    assert "Access denied" in _text(handshake["forbidden"])
    assert "failed" in handshake["unknown"] or handshake["unknown"]["isError"] is True


@pytest.mark.requirement("MCP-5.2-list", "MCP-5.2-templates", "MCP-5.2-read")
def test_resources_of_several_servers_are_listed_and_read(handshake: Answers) -> None:
    listed = {resource["uri"] for resource in handshake["resources"]}
    assert {DOCUMENT, "greeter://card"} <= listed
    templates = {template["uriTemplate"] for template in handshake["templates"]}
    assert "demo://resource/dynamic/text/{resourceId}" in templates
    (document,) = handshake["document"]["contents"]
    assert document["text"].startswith("# Everything Server")
    (dynamic,) = handshake["dynamic"]["contents"]
    assert dynamic["text"].startswith("Resource 7")
    (card,) = handshake["card"]["contents"]
    assert card["text"] == "Hello. Good morning. Good night."


@pytest.mark.requirement("MCP-5.3-list", "MCP-5.3-get")
def test_prompts_of_several_servers_are_listed_and_filled_in(handshake: Answers) -> None:
    listed = _names(handshake["prompts"])
    assert {"everything__simple-prompt", "everything__args-prompt", "greeter__welcome"} <= listed
    assert _said(handshake["simple"]) == "This is a simple prompt without arguments."
    assert "Bergen" in _said(handshake["city"])
    assert _said(handshake["welcome"]) == "Please welcome you."


@pytest.mark.requirement(
    *("MCP-1-route", "MCP-5.1-list", "MCP-5.1-call", "MCP-4.4-progress"),
    *("MCP-5.2-read", "MCP-5.3-get"),
)
def test_modern_client_uses_what_servers_of_both_eras_offer(modern: Answers) -> None:
    tools = _names(modern["tools"])
    assert {"greeter__greet", "everything__echo", "filesystem__read_text_file"} <= tools
    assert "greeter://card" in {resource["uri"] for resource in modern["resources"]}
    assert "greeter__welcome" in _names(modern["prompts"])
    assert modern["greet"]["structuredContent"] == {"text": "Hello, you!", "letters": 11}
    assert _text(modern["count"]) == "counted to 3"
    assert [news["progress"] for news in modern["count"]["progress"]] == [1, 2, 3]
    (card,) = modern["card"]["contents"]
    assert card["text"] == "Hello. Good morning. Good night."
    assert _said(modern["welcome"]) == "Please welcome you."


def _names(offers: list[Step]) -> set[str]:
    return {offer["name"] for offer in offers}


def _text(answer: Step) -> str:
    assert "failed" not in answer, answer
    return answer["content"][0]["text"]


def _said(answer: Step) -> str:
    assert "failed" not in answer, answer
    return answer["messages"][0]["content"]["text"]
