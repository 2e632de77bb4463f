"""A tool server over stdio, of both eras, that can be asked what it was sent; run as a program.

Tools: `heard` gives back every message so far; `hang` never answers; `twice` answers two times;
`future` answers ids that were not asked yet; `flood` tells ten thousand things before it answers;
`long` writes a line without an end for a while; `garbage` prints what is no message; `die` dies.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

type Frame = dict[str, Any]

FLOOD = 10_000
heard: list[Frame] = []


def write(frame: Frame) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
    sys.stdout.flush()


def text(said: str) -> Frame:
    return {"content": [{"type": "text", "text": said}]}


def tell_heard(frame: Frame) -> None:
    write({"id": frame["id"], "result": text(json.dumps(heard))})


def hang(frame: Frame) -> None:
    """Say nothing."""


def twice(frame: Frame) -> None:
    write({"id": frame["id"], "result": text("first")})
    write({"id": frame["id"], "result": text("second")})


def future(frame: Frame) -> None:
    """Answer what comes next before it is asked, then this, under every disguise of its id."""
    for ahead in range(1, 50):
        write({"id": frame["id"] + ahead, "result": text("answered before it was asked")})
    for disguise in (str(frame["id"]), float(frame["id"]) + 0.0, [frame["id"]], None, True):
        write({"id": disguise, "result": text("not under this id")})
    write({"id": frame["id"], "result": text("honest")})


def flood(frame: Frame) -> None:
    note = {"method": "notifications/message", "params": {"level": "info", "data": "x" * 100}}
    line = json.dumps({"jsonrpc": "2.0", **note}) + "\n"
    for _ in range(FLOOD // 100):
        sys.stdout.write(line * 100)
    sys.stdout.flush()
    write({"id": frame["id"], "result": text("flooded")})


def overlong(frame: Frame) -> None:
    """Twice what a line may have, in pieces, and only then its end."""
    for _ in range(8):
        sys.stdout.write("x" * 2**20)
        sys.stdout.flush()
    sys.stdout.write("\n")
    write({"id": frame["id"], "result": text("after the long line")})


def garbage(frame: Frame) -> None:
    sys.stdout.write("Hello! Listening...\n{not json}\n[]\n\x00\xff\n")
    write({"id": frame["id"], "result": text("after the garbage")})


def die(frame: Frame) -> None:
    os._exit(3)


TOOLS: dict[str, Callable[[Frame], None]] = {
    "heard": tell_heard,
    "hang": hang,
    "twice": twice,
    "future": future,
    "flood": flood,
    "long": overlong,
    "garbage": garbage,
    "die": die,
}


def answer(frame: Frame) -> None:
    method, params = frame["method"], frame.get("params", {})
    if method == "tools/call" and params.get("name") in TOOLS:
        TOOLS[params["name"]](frame)
    elif method == "tools/call":
        told = {"pid": os.getpid(), "env": dict(os.environ), "arguments": params.get("arguments")}
        write({"id": frame["id"], "result": text(json.dumps(told))})
    elif method == "initialize":
        about: Frame = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
        write({"id": frame["id"], "result": {"protocolVersion": "2025-11-25", **about}})
    elif method == "server/discover":
        offered: Frame = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
        write({"id": frame["id"], "result": offered})
    elif method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in [*TOOLS, "plain"]]
        write({"id": frame["id"], "result": {"tools": tools}})
    else:
        write({"id": frame["id"], "error": {"code": -32601, "message": "Method not found"}})


def main() -> None:
    for line in sys.stdin:
        frame = json.loads(line)
        heard.append(frame)
        if "id" in frame and "method" in frame:
            answer(frame)


if __name__ == "__main__":
    main()
