"""What the tests beside real peers stand on: servers by hand, and the way to them.

`COMITY_DIRECT=1` leaves Comity out and talks to each server itself. That is how the tests were
tried: what a test expects of Comity has to be true of the server alone.
"""

import json
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from comity.config.toml_writer import toml_value
from tests.interop.hand_client import Dial, over_http, over_stdio
from tests.interop.peers import ROOT
from tests.interop.processes import comity, http_server

DIRECT = os.environ.get("COMITY_DIRECT") == "1"

type Entry = dict[str, Any]


def by_hand(server: str) -> Entry:
    """How a configuration names a server of `servers/` that speaks stdio."""
    module = f"tests.interop.servers.{server}"
    return {"command": sys.executable, "args": ["-m", module], "cwd": str(ROOT)}


def command_of(server: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"tests.interop.servers.{server}", *arguments]


@contextmanager
def served(servers: Mapping[str, Entry], folder: Path, **env: str) -> Generator[str]:
    """Comity in front of `servers`, as its origin."""
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": servers}))
    with comity(config, env) as origin:
        yield origin


@contextmanager
def served_alone(server: str, entry: Entry, folder: Path, **env: str) -> Generator[str]:
    """Comity before one stdio server of which every session has a process of its own."""
    config = folder / "comity.toml"
    settings = {"id": server, "transport": "stdio", "process_per": "session", **entry}
    lines = [f"{name} = {toml_value(value)}" for name, value in settings.items()]
    config.write_text("\n".join(["[[servers]]", *lines, ""]))
    with comity(config, env) as origin:
        yield f"{origin}/servers/{server}/mcp"


SHOWN: Entry = {"policy": {"on_suspicious_definition": "show"}}
"""What these servers say holds every character there is, to see it cross."""


@contextmanager
def reached(server: str, transport: str, folder: Path, *options: str) -> Generator[Dial]:
    """A way to dial one server by hand: through its own door of Comity, or directly."""
    if transport == "http":
        with http_server(lambda port: command_of(server, str(port), *options)) as upstream:
            if DIRECT:
                yield partial(over_http, f"{upstream}/mcp")
                return
            entry = {"type": "http", "url": f"{upstream}/mcp", **SHOWN}
            with served({server: entry}, folder) as origin:
                yield partial(over_http, f"{origin}/servers/{server}/mcp")
    elif DIRECT:
        yield partial(over_stdio, command_of(server))
    elif transport == "stdio":
        with served({server: {**by_hand(server), **SHOWN}}, folder) as origin:
            yield partial(over_http, f"{origin}/servers/{server}/mcp")
    else:
        with served_alone(server, {**by_hand(server), **SHOWN}, folder) as url:
            yield partial(over_http, url)


@pytest.fixture(scope="module", params=["stdio", "own stdio", "http"])
def transport(request: pytest.FixtureRequest) -> str:
    """How a server is reached; "own stdio" is a process for each session, "stdio" a shared one."""
    return request.param
