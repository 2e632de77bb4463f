"""A tool server over stdio that tells everybody all its secrets; run as a program.

Tools: `keep` takes anything, and gives a token; `fail` reports an error with all that it was sent;
`break` answers with an error of the protocol; `shout` says its secrets on its standard error; `die`
does so, and dies; `asked` is one that a person has to say yes to.
"""

import json
import os
import sys
from typing import Any

type Frame = dict[str, Any]

NAMES = ("keep", "fail", "break", "shout", "die", "asked")
TYPED = {"type": "object", "properties": {"pin": {"type": "integer"}}}


def write(frame: Frame) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
    sys.stdout.flush()


def text(said: str, *, is_error: bool = False) -> Frame:
    return {"content": [{"type": "text", "text": said}], "isError": is_error}


def shout(said: str) -> None:
    sys.stderr.write(f"{said} TOKEN={os.environ['TOKEN']} {sys.argv}\n")
    sys.stderr.flush()
    note = {"level": "error", "data": {"password": os.environ["TOKEN"]}}
    write({"method": "notifications/message", "params": note})


def called(named: object, tool: str, arguments: Frame) -> None:
    said = json.dumps(arguments)
    if tool in ("shout", "die"):
        shout(said)
    if tool == "die":
        os._exit(3)
    if tool == "break":
        error = {"code": -32000, "message": f"no: {os.environ['TOKEN']}", "data": arguments}
        write({"id": named, "error": error})
    elif tool == "fail":
        write({"id": named, "result": text(f"{said} {os.environ['TOKEN']}", is_error=True)})
    else:
        write({"id": named, "result": text(f"{os.environ['RESULT']} {said}")})


def answer(frame: Frame) -> None:
    named, params = frame.get("id"), frame.get("params", {})
    match frame.get("method"):
        case "initialize":
            can: Frame = {"tools": {}, "resources": {}, "logging": {}}
            info = {"name": "careless", "version": "1"}
            said = {"protocolVersion": "2025-06-18", "capabilities": can, "serverInfo": info}
            write({"id": named, "result": said})
        case "tools/list":
            tools: list[Frame] = [
                {"name": name, "inputSchema": {"type": "object"}} for name in NAMES
            ]
            tools.append({"name": "typed", "inputSchema": TYPED})
            write({"id": named, "result": {"tools": tools}})
        case "tools/call":
            called(named, params["name"], params.get("arguments", {}))
        case "resources/list" | "resources/templates/list":
            write({"id": named, "result": {"resources": [], "resourceTemplates": []}})
        case _ if named is not None:
            write({"id": named, "error": {"code": -32601, "message": f"no: {params}"}})
        case _:
            pass


if __name__ == "__main__":
    for line in sys.stdin:
        answer(json.loads(line))
