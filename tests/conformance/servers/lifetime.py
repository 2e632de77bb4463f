"""A server of MGP's lifecycle on pipes, which writes down when it began and what it was asked.

`LIFETIME_LOG` names the file; `LIFETIME_HEALTH` is what it answers to a ping, as JSON. Its tool
`exit` ends it with a status.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

type Frame = dict[str, Any]

LOG = Path(os.environ["LIFETIME_LOG"])
HEALTH: Frame = json.loads(os.environ.get("LIFETIME_HEALTH", '{"status": "healthy"}'))
HELLO: Frame = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "mgp": {"version": "0.3.0", "extensions": ["lifecycle"]}},
    "serverInfo": {"name": "lifetime", "version": "1"},
}
TOOL: Frame = {"name": "exit", "inputSchema": {"type": "object"}}


def note(**entry: object) -> None:
    with LOG.open("a") as log:
        log.write(json.dumps({"at": time.time(), "pid": os.getpid(), **entry}) + "\n")


def say(request: Frame, result: object) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}) + "\n")
    sys.stdout.flush()


def take(request: Frame) -> None:
    method, params = request["method"], request.get("params", {})
    if method == "initialize":
        say(request, HELLO)
    elif method == "tools/list":
        say(request, {"tools": [TOOL]})
    elif method == "mgp/health/ping":
        say(request, HEALTH)
    elif method == "mgp/lifecycle/shutdown":
        say(request, {"accepted": True, "pending_requests": 0, "estimated_drain_ms": 0})
        sys.exit(0)
    elif method == "tools/call":
        say(request, {"content": []})
        sys.exit(params["arguments"]["status"])


if __name__ == "__main__":
    note(began=True)
    if os.environ.get("LIFETIME_BROKEN"):
        sys.exit(7)
    for line in sys.stdin:
        heard: Frame = json.loads(line)
        if "method" in heard:
            note(method=heard["method"], params=heard.get("params"))
        if "id" in heard and "method" in heard:
            take(heard)
    note(ended="its input")
