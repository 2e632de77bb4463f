"""A small stdio server that tells how it was started; its tools are named by its arguments.

Every tool tells the same: which life of the server this is, its arguments, the variables that were
named to it. Given the names of two files, it makes the one, `begun`, and answers when the other,
`until`, is there; told to `die`, it does.
"""

import json
import os
import secrets
import sys
import threading
import time
from pathlib import Path
from typing import Any

type Frame = dict[str, Any]

# A process may not know its own number: in a namespace of its own it is always the first.
LIFE = secrets.token_hex(8)
_line = threading.Lock()


def write(frame: Frame) -> None:
    with _line:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
        sys.stdout.flush()


def tell(frame: Frame) -> None:
    given = frame["params"].get("arguments", {})
    if "die" in given:
        os._exit(1)
    if "until" in given:
        Path(given["begun"]).touch()
        while not Path(given["until"]).exists():
            time.sleep(0.02)
    started = {
        "life": LIFE,
        "args": sys.argv[1:],
        "env": {name: value for name, value in os.environ.items() if name.startswith("TELLER_")},
    }
    write({"id": frame["id"], "result": {"content": [], "structuredContent": started}})


def answer(frame: Frame) -> Frame:
    match frame["method"]:
        case "initialize":
            return {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}, "mgp": json.loads(os.environ.get("CLAIMS", "null"))},
                "serverInfo": {"name": "teller", "version": "1"},
            }
        case "tools/list":
            schema = {"type": "object"}
            return {"tools": [{"name": name, "inputSchema": schema} for name in sys.argv[1:]]}
        case _:
            return {}


def main() -> None:
    for line in sys.stdin:
        frame: Frame = json.loads(line)
        if "id" not in frame or "method" not in frame:
            continue
        if frame["method"] == "tools/call":
            threading.Thread(target=tell, args=(frame,), daemon=True).start()
        elif frame["method"] == "server/discover":
            error = {"code": -32601, "message": "Method not found"}
            write({"id": frame["id"], "error": error})
        else:
            write({"id": frame["id"], "result": answer(frame)})


if __name__ == "__main__":
    main()
