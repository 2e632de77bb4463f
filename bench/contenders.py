"""The relays that are compared, and how each is started in front of an upstream."""

import json
import os
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.eras import VERSION_BY_ERA, Era
from bench.processes import ROOT, DidNotStart

STUB = [sys.executable, "-m", "bench.stub"]
OTHER = os.environ.get("COMITY_BENCH_OTHER", "")
"""The interpreter of another checkout, whose Comity is measured beside this one."""

CONNECTS = "a connection"
_READY_WITHIN_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Way:
    """One way of a call: its era, and the URL or the command that a relay has to reach."""

    era: Era
    upstream: list[str]
    workplace: Path

    @property
    def is_http(self) -> bool:
        return "://" in self.upstream[0]


@dataclass(frozen=True, slots=True)
class Contender:
    """One relay: the command that starts it, its door, and where it says that it is ready."""

    command: Callable[[Way], list[str]]
    door: str = "/mcp"
    readiness: str | None = None
    tool: str = "echo"

    def wait_until_ready(self, port: int) -> None:
        until = time.monotonic() + _READY_WITHIN_SECONDS
        while self.readiness is not None and not _is_ready(port, self.readiness):
            if time.monotonic() > until:
                raise DidNotStart(f"{self.readiness} did not answer in time")
            time.sleep(0.05)


def _is_ready(port: int, path: str) -> bool:
    """Whether a path is answered with 200, or with CONNECTS whether the port takes connections."""
    try:
        if path == CONNECTS:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return True
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5):
            return True
    except (OSError, TimeoutError):
        return False


def _module(*words: str) -> Callable[[Way], list[str]]:
    def command(way: Way) -> list[str]:
        said = [way.era if word == "ERA" else word for word in words]
        return [sys.executable, "-m", *said, *way.upstream]

    return command


def _comity(way: Way) -> list[str]:
    return _comity_speaking(way.era, way)


def _comity_bridging(way: Way) -> list[str]:
    """Comity pinned to the era that the client does not speak."""
    return _comity_speaking("handshake" if way.era == "modern" else "modern", way)


def _comity_speaking(era: Era, way: Way) -> list[str]:
    server: dict[str, object] = {"type": "http", "url": way.upstream[0]}
    if not way.is_http:
        server = {"command": way.upstream[0], "args": way.upstream[1:], "cwd": str(ROOT)}
    with tempfile.NamedTemporaryFile(
        "w", dir=way.workplace, suffix=".json", delete=False
    ) as configuration:
        json.dump(
            {"mcpServers": {"stub": {**server, "protocol": VERSION_BY_ERA[era]}}}, configuration
        )
    return [sys.executable, "-m", "comity.cli", "serve", "-c", configuration.name, "--port", "0"]


def _of_other_checkout(command: Callable[[Way], list[str]]) -> Callable[[Way], list[str]]:
    return lambda way: [OTHER, *command(way)[1:]]


CONTENDERS = {
    "bare": Contender(_module("bench.bare")),
    "comity": Contender(_comity, door="/servers/stub/mcp", readiness="/ready"),
    "comity-bridge": Contender(_comity_bridging, door="/servers/stub/mcp", readiness="/ready"),
    "comity-all": Contender(_comity, readiness="/ready", tool="stub__echo"),
    "sdk": Contender(_module("bench.sdk_relay", "ERA")),
    "fastmcp": Contender(_module("bench.fastmcp_relay", "shipped", "ERA")),
    "fastmcp-reused": Contender(_module("bench.fastmcp_relay", "reused", "ERA")),
}
PEERS = {
    "nginx": Contender(_module("bench.peers", "nginx"), readiness=CONNECTS),
    "supergateway": Contender(_module("bench.peers", "supergateway"), readiness=CONNECTS),
    "litellm": Contender(
        _module("bench.peers", "litellm"), door="/mcp/", readiness=CONNECTS, tool="stub-echo"
    ),
}
"""Programs of others. They take part only where they are named: see `bench.peers`."""

CONTENDERS.update(PEERS)
if OTHER:
    CONTENDERS["other"] = Contender(
        _of_other_checkout(_comity), door="/servers/stub/mcp", readiness="/ready"
    )
    CONTENDERS["other-bridge"] = Contender(
        _of_other_checkout(_comity_bridging), door="/servers/stub/mcp", readiness="/ready"
    )
