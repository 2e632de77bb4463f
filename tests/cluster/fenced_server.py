"""A tool server that must run once: it notes in a file who runs it, and by which fence.

It writes a line when it starts, a line every 50 ms while it lives, and a line for each call, all
into one file that every copy of it appends to. `python -m tests.cluster.fenced_server FILE`
"""

import json
import os
import sys
import threading
import time
from typing import Any

FILE = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
FENCE, NODE = int(os.environ.get("COMITY_FENCE", "0")), os.environ.get("COMITY_NODE", "")
SCHEMA = {"type": "object", "properties": {"n": {"type": "string"}}}
NAMES = ("write", "steps", "wait", "learn", "redefine")
TOOLS: list[dict[str, Any]] = [{"name": name, "inputSchema": SCHEMA} for name in NAMES]
LOCK = threading.Lock()
WITHDRAWN: dict[Any, threading.Event] = {}


def note(kind: str, **more: object) -> None:
    told = {"kind": kind, "at": time.monotonic(), "node": NODE, "fence": FENCE, **more}
    os.write(FILE, json.dumps(told).encode() + b"\n")


def say(**frame: object) -> None:
    with LOCK:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
        sys.stdout.flush()


def answer(number: Any, text: str) -> None:
    say(id=number, result={"content": [{"type": "text", "text": text}], "isError": False})


def live() -> None:
    while True:
        note("alive")
        time.sleep(0.05)


def call(number: Any, params: dict[str, Any]) -> None:
    meta, n = params.get("_meta", {}), params.get("arguments", {}).get("n", "")
    name = params["name"]
    note("call", tool=name, n=n, told=meta.get("dev.comity/fence"))
    if name == "steps":
        for step in range(5):
            token = meta.get("progressToken")
            about = {"progressToken": token, "progress": step, "total": 5}
            say(method="notifications/progress", params=about)
            time.sleep(0.02)
    elif name == "wait":
        WITHDRAWN[number].wait(60)
        note("withdrawn", n=n)
        return
    elif name == "learn":
        TOOLS.append({"name": f"learnt-{n}", "inputSchema": SCHEMA})
        say(method="notifications/tools/list_changed")
    elif name == "redefine":
        TOOLS[0]["description"] = n
        say(method="notifications/tools/list_changed")
    answer(number, f"{NODE} {FENCE} did {n}")


def hear(frame: dict[str, Any]) -> None:
    number, method, params = frame.get("id"), frame.get("method"), frame.get("params", {})
    if method == "initialize":
        hello: dict[str, Any] = {"protocolVersion": "2025-11-25"}
        hello["capabilities"] = {"tools": {"listChanged": True}}
        say(id=number, result={**hello, "serverInfo": {"name": "fenced", "version": "1"}})
    elif method == "tools/list":
        say(id=number, result={"tools": TOOLS})
    elif method == "ping":
        say(id=number, result={})
    elif method == "tools/call":
        WITHDRAWN[number] = threading.Event()
        threading.Thread(target=call, args=(number, params), daemon=True).start()
    elif method == "notifications/cancelled":
        WITHDRAWN.setdefault(params.get("requestId"), threading.Event()).set()


if __name__ == "__main__":
    note("start", pid=os.getpid())
    threading.Thread(target=live, daemon=True).start()
    for line in sys.stdin:
        hear(json.loads(line))
    note("end")
