"""A stdio server that says the bytes of a file, whatever they are; run as a program.

Tool `play` writes the file that it is given, with its own id for every `@id@`, and then answers;
`list` has the file be the answer to the next `tools/list`, and says that the list has changed, now
and once more when it was asked for; `listed` tells how often the list was asked for.
"""

import json
import sys
from pathlib import Path
from typing import Any

type Frame = dict[str, Any]

TOOLS = ("play", "list", "listed", "plain")
listing = ""
listed = 0


def write(frame: Frame) -> None:
    say(json.dumps({"jsonrpc": "2.0", **frame}).encode())


def say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def played(file: str, id: int) -> bytes:
    return Path(file).read_bytes().replace(b"@id@", b"%d" % id)


def call(frame: Frame) -> None:
    global listing  # noqa: PLW0603  # one process, one list
    name, arguments = frame["params"]["name"], frame["params"].get("arguments", {})
    if name == "play":
        say(played(arguments["file"], frame["id"]))
    if name == "list":
        listing = arguments["file"]
        write({"method": "notifications/tools/list_changed"})
    said = {"content": [{"type": "text", "text": str(listed)}]}
    write({"id": frame["id"], "result": said})


def answer(frame: Frame) -> None:
    global listed, listing  # noqa: PLW0603
    method = frame["method"]
    if method == "tools/call":
        call(frame)
    elif method == "initialize":
        about: Frame = {"capabilities": {"tools": {"listChanged": True}, "logging": {}}}
        about["serverInfo"] = {"name": "hostile", "version": "1"}
        write({"id": frame["id"], "result": {"protocolVersion": "2025-11-25", **about}})
    elif method == "tools/list" and listing:
        listed += 1
        said, listing = listing, ""
        say(played(said, frame["id"]))
        # Where that was no answer, this is.
        write({"id": frame["id"], "result": {"tools": []}})
        write({"method": "notifications/tools/list_changed"})
    elif method == "tools/list":
        listed += 1
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
        write({"id": frame["id"], "result": {"tools": tools}})
    else:
        write({"id": frame["id"], "error": {"code": -32601, "message": "Method not found"}})


def main() -> None:
    for line in sys.stdin.buffer:
        frame = json.loads(line)
        if "id" in frame and "method" in frame:
            answer(frame)


if __name__ == "__main__":
    main()
