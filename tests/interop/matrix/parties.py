"""Who meets whom in the matrix: the clients, the servers, and what each server has to show."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop.peers import ROOT, javascript, node, package, python_sdk_1

MODERN = "2026-07-28"
FEATURES = (
    *("list", "call", "structured", "progress"),
    *("cancellation", "elicitation", "sampling", "list_changed"),
)

type Plan = dict[str, dict[str, Any]]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Client:
    """A client in one of its modes, and the era that it then speaks with Comity."""

    id: str
    title: str
    mode: str
    era: str
    command: Callable[[], list[str]]


@dataclass(frozen=True)
class Server:
    """A server over one transport; `command` is given its port, or nothing over stdio."""

    id: str
    title: str
    over: str
    command: Callable[[str], list[str]]
    plan: Callable[[Path], Plan]
    path: str = "/mcp"
    env: Callable[[str], dict[str, str]] = field(default=lambda port: {})


def _python(driver: str) -> Callable[[], list[str]]:
    return lambda: [sys.executable, "-m", f"tests.interop.matrix.clients.{driver}"]


def _sdk1_client() -> list[str]:
    return [python_sdk_1(), "-m", "tests.interop.matrix.clients.with_sdk1"]


def _typescript() -> list[str]:
    return [node(), str(ROOT / "tests" / "interop" / "js" / "matrix.mjs"), str(javascript())]


CLIENTS = (
    Client("python1", "Python SDK 1", "legacy", "handshake", _sdk1_client),
    Client("python2", "Python SDK 2", "legacy", "handshake", _python("with_sdk2")),
    Client("python2-modern", "Python SDK 2, modern", MODERN, "modern", _python("with_sdk2")),
    Client("typescript1", "TypeScript SDK 1", "v1", "handshake", _typescript),
    Client("typescript2", "TypeScript SDK 2", "v2", "handshake", _typescript),
    Client("typescript2-modern", "TypeScript SDK 2, modern", "v2-modern", "modern", _typescript),
    Client("fastmcp", "FastMCP 4", "legacy", "handshake", _python("with_fastmcp")),
    Client("fastmcp-auto", "FastMCP 4, auto", "auto", "modern", _python("with_fastmcp")),
)


def _ours(_: Path) -> Plan:
    """What every server of `servers/` can show, whatever it is made with."""
    return {
        "list": {"tool": "add"},
        "call": {"tool": "echo", "arguments": {"text": "hi"}, "text": "Echo: hi"},
        "structured": {"tool": "add", "arguments": {"a": 19, "b": 23}, "expect": {"total": 42}},
        "progress": {
            "tool": "count",
            "arguments": {"steps": 3, "until": "NEW"},
            "expect": [1, 2, 3],
            "then": {"tool": "go_on", "arguments": {"until": "NEW"}},
        },
        "cancellation": {
            "tool": "wait_long",
            "arguments": {},
            "witness": "interrupted",
            "still": {"tool": "echo", "arguments": {"text": "hi"}},
        },
        "elicitation": {"tool": "ask", "arguments": {}, "text": "Hello, you!"},
        "sampling": {
            "tool": "sample",
            "arguments": {},
            "text": "poet-1 said: An old silent pond.",
        },
        "list_changed": {
            "of": "tools",
            "tool": "grow",
            "arguments": {"name": "NEW"},
            "appears": "NEW",
        },
    }


def _everything(_: Path) -> Plan:
    """It has no tool that notices that it was called off, so that nobody witnesses it there."""
    long = "trigger-long-running-operation"
    weather = {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}
    haiku = {"prompt": "A haiku, please.", "maxTokens": 17}
    return {
        "list": {"tool": "get-sum"},
        "call": {"tool": "echo", "arguments": {"message": "hi"}, "text": "Echo: hi"},
        "structured": {
            "tool": "get-structured-content",
            "arguments": {"location": "Chicago"},
            "expect": weather,
        },
        "progress": {
            "tool": long,
            "arguments": {"duration": 1, "steps": 4},
            "expect": [1, 2],
        },
        "cancellation": {
            "tool": long,
            "arguments": {"duration": 30, "steps": 60},
            "still": {"tool": "echo", "arguments": {"message": "hi"}},
        },
        "elicitation": {
            "tool": "trigger-elicitation-request",
            "arguments": {},
            "text": "User provided the requested information",
        },
        "sampling": {
            "tool": "trigger-sampling-request",
            "arguments": haiku,
            "text": "An old silent pond.",
        },
        "list_changed": {
            "of": "resources",
            "tool": "gzip-file-as-resource",
            "arguments": {"name": "NEW", "data": "data:text/plain,hi"},
            "appears": "demo://resource/session/NEW",
        },
    }


def _filesystem(folder: Path) -> Plan:
    """It answers at once, asks nobody and never changes: four features are not to be had."""
    path = str(folder)
    return {
        "list": {"tool": "read_text_file"},
        "call": {
            "tool": "read_text_file",
            "arguments": {"path": f"{path}/read.me"},
            "text": "Read me.",
        },
        "structured": {
            "tool": "list_directory",
            "arguments": {"path": path},
            "expect": {"content": "[FILE] read.me"},
        },
    }


def _by_node(name: str, *arguments: str) -> Callable[[str], list[str]]:
    official = f"@modelcontextprotocol/{name}"
    return lambda port: [node(), package(official, "dist/index.js"), *arguments]


def _by_python(script: str, *arguments: str) -> Callable[[str], list[str]]:
    path = str(_HERE / "servers" / f"{script}.py")

    def command(port: str) -> list[str]:
        python = python_sdk_1() if script == "with_sdk1" else sys.executable
        return [python, path, *([port] if port else []), *arguments]

    return command


def servers(folder: Path) -> tuple[Server, ...]:
    """Every server over each of its transports; `folder` is what one of them serves."""
    files = _by_node("server-filesystem", str(folder))
    everything = (_by_node("server-everything", "stdio"), _everything)
    everything_http = _by_node("server-everything", "streamableHttp")
    sdk1, sdk2, fast = _by_python("with_sdk1"), _by_python("with_sdk2"), _by_python("with_fastmcp")
    return (
        Server("everything-stdio", "everything, stdio", "stdio", *everything),
        Server(
            "everything-http",
            "everything, HTTP",
            "http",
            everything_http,
            _everything,
            env=lambda port: {"PORT": port},
        ),
        Server("filesystem-stdio", "filesystem, stdio", "stdio", files, _filesystem),
        Server("fastmcp-stdio", "FastMCP 4, stdio", "stdio", fast, _ours),
        Server("fastmcp-http", "FastMCP 4, HTTP", "http", fast, _ours),
        Server("python1-stdio", "Python SDK 1, stdio", "stdio", sdk1, _ours),
        Server("python1-http", "Python SDK 1, HTTP", "http", sdk1, _ours),
        Server("python2-stdio", "Python SDK 2, stdio", "stdio", sdk2, _ours),
        Server("python2-http", "Python SDK 2, HTTP", "http", sdk2, _ours),
        Server(
            "python1-sse",
            "Python SDK 1, old SSE",
            "sse",
            _by_python("with_sdk1", "sse"),
            _ours,
            path="/sse",
        ),
    )
