"""A server of the handshake era over stdio, one of whose tools asks its caller; run as a program.

`asks` repeats its argument `who` in the question, and in its result beside the answer. `plain`
answers at once, and `served` tells how many calls of `plain` each `who` has made.
"""

import json
import os
import sys
from collections import Counter
from typing import Any

type Frame = dict[str, Any]

NAMES = ("asks", "plain", "served")
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]
HELLO: Frame = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "asking", "version": "1"},
}
served: Counter[str] = Counter()
waiting: dict[str, tuple[Any, str]] = {}


def write(**frame: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **frame}) + "\n")
    sys.stdout.flush()


def call(named: Any, tool: str, arguments: Frame) -> None:
    if tool == "asks":
        ask(named, arguments["who"])
    elif tool == "plain":
        served[arguments["who"]] += 1
        answer(named, str(os.getpid()))
    else:
        answer(named, json.dumps(served))


def answer(named: Any, text: str) -> None:
    write(id=named, result={"content": [{"type": "text", "text": text}]})


def ask(call: Any, who: str) -> None:
    question = f"question-{call}"
    waiting[question] = (call, who)
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    params = {"message": f"Who are you, {who}?", "requestedSchema": schema}
    write(id=question, method="elicitation/create", params=params)


def answered(frame: Frame) -> None:
    call, who = waiting.pop(frame["id"])
    said = json.dumps(frame.get("result", frame.get("error")))
    answer(call, f"{who}: {said}")


def main() -> None:
    for line in sys.stdin:
        frame = json.loads(line)
        match frame.get("method"):
            case None:
                answered(frame)
            case "initialize":
                write(id=frame["id"], result=HELLO)
            case "tools/list":
                write(id=frame["id"], result={"tools": TOOLS})
            case "tools/call":
                call(frame["id"], frame["params"]["name"], frame["params"]["arguments"])
            case _:
                if "id" in frame:
                    write(id=frame["id"], error={"code": -32601, "message": "Method not found"})


if __name__ == "__main__":
    main()
