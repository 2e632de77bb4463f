"""A server over stdio with a tool, a resource and a prompt, that knows what it was sent; a program.

Tools: `plain` gives back its arguments and its environment; `mild` the same, and says that it
destroys nothing; `heard` gives back every message so far; `touch` says that a resource changed;
`hang` never answers.
"""

import json
import os
import sys
from typing import Any

type Frame = dict[str, Any]

SCHEMA: Frame = {"type": "object"}
TOOLS: list[Frame] = [
    {"name": "plain", "inputSchema": SCHEMA},
    {"name": "mild", "inputSchema": SCHEMA, "annotations": {"destructiveHint": False}},
    {"name": "heard", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}},
    {"name": "touch", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": True}},
    {"name": "hang", "inputSchema": SCHEMA},
]
NOTES = "notes:///today"
heard: list[Frame] = []


def text(said: object) -> Frame:
    return {"content": [{"type": "text", "text": json.dumps(said)}]}


def called(params: Frame) -> Frame | None:
    match params["name"]:
        case "heard":
            return text(heard)
        case "hang":
            return None
        case "touch":
            write({"method": "notifications/resources/updated", "params": params["arguments"]})
            return text("touched")
        case _:
            return text({"env": dict(os.environ), "arguments": params.get("arguments")})


ABOUT: Frame = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "resources": {"subscribe": True}, "prompts": {}},
    "serverInfo": {"name": "s", "version": "1"},
}
ANSWERS: dict[str, Frame] = {
    "initialize": ABOUT,
    "tools/list": {"tools": TOOLS},
    "resources/list": {"resources": [{"uri": NOTES, "name": "today"}]},
    "resources/templates/list": {"resourceTemplates": []},
    "resources/read": {"contents": [{"uri": NOTES, "text": "water the plants"}]},
    "prompts/list": {"prompts": [{"name": "review"}]},
    "prompts/get": {"messages": []},
}


def answer(frame: Frame) -> Frame | None:
    method, params = frame["method"], frame.get("params", {})
    if method == "server/discover":
        return {"error": {"code": -32601, "message": "Method not found"}}
    result = called(params) if method == "tools/call" else ANSWERS.get(method, {})
    return None if result is None else {"result": result}


def write(frame: Frame) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
    sys.stdout.flush()


def main() -> None:
    for line in sys.stdin:
        frame = json.loads(line)
        heard.append(frame)
        said = answer(frame) if "id" in frame and "method" in frame else None
        if said is not None:
            write({"id": frame["id"], **said})


if __name__ == "__main__":
    main()
