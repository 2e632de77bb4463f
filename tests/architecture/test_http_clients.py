"""Outgoing HTTP goes through `http/client`, and MCP sessions through the client of the SDK."""

import ast
from pathlib import Path

from tests.architecture.sources import MODULES, SOURCE, classes_of, each_module, nodes_of

PACKAGES = {"http.client", "urllib.request", "aiohttp", "httpx", "httpx2", "requests", "httptools"}
CONNECTS = {"open_connection", "create_connection"}
ALLOWED = {
    # The packages of the two vendors take no other HTTP client.
    "inference/providers/base.py",
    "inference/providers/openai.py",
    "inference/providers/anthropic.py",
    # `comity doctor` looks whether a port answers in TLS at all, before anyone speaks HTTP.
    "app/checks/configuration.py",
    # The egress proxy reads the requests of servers. It connects through http/client.
    "servers/sandbox/egress.py",
}


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({node.module, *(f"{node.module}.{each.name}" for each in node.names)})
    return names


def _connects(path: Path) -> list[int]:
    calls = (node for node in nodes_of(path) if isinstance(node, ast.Call))
    return [
        node.lineno
        for node in calls
        if isinstance(node.func, ast.Attribute) and node.func.attr in CONNECTS
    ]


@each_module
def test_no_module_has_an_http_client_of_its_own(path: Path) -> None:
    name = path.relative_to(SOURCE).as_posix()
    if name in ALLOWED or name.startswith("http/"):
        return
    assert _imported(path) & PACKAGES == set(), "use http/client/client.py"
    assert _connects(path) == []


def test_every_exception_still_needs_to_be_one() -> None:
    idle = {
        name
        for name in ALLOWED
        if not _imported(SOURCE / name) & PACKAGES and not _connects(SOURCE / name)
    }
    assert idle == set()


def test_there_is_one_mcp_client() -> None:
    """A class that says `initialize` to a gateway is a client; the transports are for servers."""
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in MODULES
        for each in classes_of(path)
        if each.name.endswith(("McpSession", "McpClient", "McpClientSession", "AgentLine"))
    }
    assert found == {"cli/mcp_client.py", "sdk/mcp_client.py"}
    text = (SOURCE / "cli" / "mcp_client.py").read_text(encoding="utf-8")
    assert "McpClientSession(" in text
    assert "SseParser" not in text
