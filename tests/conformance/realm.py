"""Comity before servers of plain MCP and of MGP, on pipes and over HTTP, unconfigured."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.conftest import standing
from tests.conformance.ways import Entry, Frame, House, on_pipes, on_port
from tests.interop.processes import http_server

GATEWAY = "system:gateway"
SPOKEN: Frame = {
    "version": "0.2.0",
    "extensions": ["security", "lifecycle", "streaming"],
    "permissions_required": ["network.outbound"],
    "trust_level": "sandboxed",
}
"""What the servers of MGP say of themselves, to whoever asks."""

PLAIN: Frame = {}
EXTENSIONS = ["discovery", "lifecycle", "security", "streaming"]
OFFER: Frame = {"mgp": {"version": "0.3.0", "extensions": EXTENSIONS}}
"""What the tests' clients of MGP declare."""


def offer(*extensions: str, version: str = "0.3.0") -> Frame:
    return {"mgp": {"version": version, "extensions": list(extensions)}}


@contextmanager
def realm(folder: Path, settings: str = "") -> Generator[House]:
    spoken = json.dumps(SPOKEN)
    with (
        http_server(on_port("talker"), {"TALKER_NAME": "far"}) as far,
        http_server(on_port("talker"), {"TALKER_NAME": "mgpfar", "TALKER_MGP": spoken}) as mgpfar,
    ):
        servers: dict[str, Entry] = {
            "near": on_pipes("talker", TALKER_NAME="near"),
            "mgpnear": on_pipes("talker", TALKER_NAME="mgpnear", TALKER_MGP=spoken),
            "far": {"type": "http", "url": f"{far}/mcp"},
            "mgpfar": {"type": "http", "url": f"{mgpfar}/mcp"},
        }
        with standing(folder, servers, settings) as house:
            yield house
