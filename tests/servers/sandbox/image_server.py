"""An MCP server of the standard library alone, which tries what its arguments name."""

import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def connect(address: str) -> str:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5):
        return "connected"


ATTEMPTS: dict[str, Callable[[str], str]] = {
    "read": lambda path: Path(path).read_text(),
    "write": lambda path: str(Path(path).write_text("x")),
    "connect": connect,
    "variable": lambda name: os.environ.get(name, "not set"),
    "status": lambda _: Path("/proc/self/status").read_text(),
    "processes": lambda _: " ".join(each.name for each in Path("/proc").glob("[0-9]*")),
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "image", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        schema = {"type": "object", "properties": {"value": {"type": "string"}}}
        return {"tools": [{"name": name, "inputSchema": schema} for name in ATTEMPTS]}
    try:
        text = ATTEMPTS[params["name"]](params["arguments"].get("value", ""))
    except OSError as refused:
        text = f"refused: {refused}"
    return {"content": [{"type": "text", "text": text}]}


for line in sys.stdin:
    frame = json.loads(line)
    if "id" not in frame:
        continue
    said: dict[str, Any] = {"jsonrpc": "2.0", "id": frame["id"]}
    if frame["method"] in ("initialize", "tools/list", "tools/call"):
        said["result"] = answer(frame["method"], frame.get("params", {}))
    else:
        said["error"] = {"code": -32601, "message": "there is no such method"}
    print(json.dumps(said), flush=True)
# The end of its input does not end it, so that somebody has to.
while "--stays" in sys.argv:
    socket.socketpair()[0].recv(1)
