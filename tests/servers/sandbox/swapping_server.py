"""A server that exchanges a folder for a link again and again, and reads. Run as a program."""

import ctypes
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

AT_FDCWD, RENAME_EXCHANGE = -100, 2
LIBC = ctypes.CDLL(None, use_errno=True)


def swap(folder: str, link: str) -> str:
    def swap_forever() -> None:
        while True:
            LIBC.renameat2(
                AT_FDCWD, os.fsencode(folder), AT_FDCWD, os.fsencode(link), RENAME_EXCHANGE
            )
            time.sleep(0.005)

    threading.Thread(target=swap_forever, daemon=True).start()
    return "swapping"


def read(path: str) -> str:
    """Read a file for a while, because its folder has its name only half of the time."""
    found = set[str]()
    for _ in range(40):
        try:
            found.add(Path(path).read_text())
        except OSError as refused:
            found.add(refused.strerror or "refused")
        time.sleep(0.003)
    return " and ".join(sorted(found))


TOOLS = {"swap": swap, "read": read}


def answer(method: str, params: dict[str, Any]) -> object:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "swapping", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    if method == "tools/call":
        text = TOOLS[params["name"]](**params["arguments"])
        return {"content": [{"type": "text", "text": text}]}
    return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        result = answer(message["method"], message.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
