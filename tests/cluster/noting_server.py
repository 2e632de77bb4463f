"""A tool server that notes in a file who calls it, and by which fence: `noting_server FILE`.

Each call is one line of the file: the tool, what it was given, the fence, the node. What it was
given at its start and what comes with a call have to agree, or the fence is `WRONG`.
"""

import json
import os
import sys
from typing import Any

type Message = dict[str, Any]

FENCE = "dev.comity/fence"
SCHEMA: Message = {"type": "object", "properties": {"n": {"type": "string"}}}


def answer(asked: Message, effects: int) -> Message:
    match asked["method"]:
        case "initialize":
            about = {"name": "noting", "version": "1"}
            can: Message = {"tools": {}}
            return {"protocolVersion": "2025-11-25", "capabilities": can, "serverInfo": about}
        case "tools/list":
            return {"tools": [{"name": each, "inputSchema": SCHEMA} for each in ("write", "wipe")]}
        case "tools/call":
            params = asked["params"]
            told, own = params.get("_meta", {}).get(FENCE), os.environ.get("COMITY_FENCE", "0")
            fence = own if told is None or str(told) == own else "WRONG"
            n = params.get("arguments", {}).get("n", "")
            node = os.environ.get("COMITY_NODE", "nobody")
            os.write(effects, f"{params['name']} {n} {fence} {node}\n".encode())
            return {"content": [{"type": "text", "text": "done"}]}
        case _:
            return {}


def serve(effects: int) -> None:
    for line in sys.stdin:
        asked: Message = json.loads(line)
        if "id" in asked and "method" in asked:
            said = {"jsonrpc": "2.0", "id": asked["id"], "result": answer(asked, effects)}
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    serve(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
