"""A live server that pushes what its tools are told to, and gives back what its host answered.

Tool `push` pushes an event for each of `ids`, all at once; tool `ask` sends `frames` as they are,
however wrong; one that is `raw` is written so. What it declares is in PUSHING_SETS, as JSON.
`python -m tests.live.pushing_server`
"""

import itertools
import json
import os
import queue
import sys
import threading
from typing import Any

SCHEMA = {"type": "object"}
TOOLS = [{"name": name, "inputSchema": SCHEMA} for name in ("push", "ask", "told")]
SETS = json.loads(os.environ.get("PUSHING_SETS") or "{}") or {
    "ci": {"description": "Builds", "uses": ["pushEvents"]},
    "ci.builds": {"description": "Builds", "uses": ["pushEvents"]},
    "ci.hooks": {"description": "No pushes", "uses": ["contextHooks.beforeInference"]},
    "other": {"description": "Not enabled", "uses": ["pushEvents"]},
}
LOCK = threading.Lock()
NUMBERS = itertools.count(1)
ANSWERS: dict[Any, "queue.Queue[dict[str, Any]]"] = {}
TOLD: list[dict[str, Any]] = []


def write(line: str) -> None:
    with LOCK:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def say(frame: dict[str, Any]) -> None:
    write(json.dumps({"jsonrpc": "2.0", **frame}))


def asked(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the host answers to each."""
    waiting: list[queue.Queue[dict[str, Any]]] = []
    for frame in frames:
        number = f"push-{next(NUMBERS)}"
        ANSWERS[number] = queue.Queue(1)
        waiting.append(ANSWERS[number])
        if "raw" in frame:
            grown = frame["raw"].replace("GROWN", "x" * frame.get("grown", 0))
            write(f'{{"jsonrpc":"2.0","id":"{number}","method":"push/event","params":{grown}}}')
        else:
            say({"id": number, **frame})
    return [each.get(timeout=120) for each in waiting]


def event(id: str, arguments: dict[str, Any]) -> dict[str, Any]:
    params = {
        "featureSet": arguments.get("featureSet", "ci.builds"),
        "eventId": id,
        "timestamp": "2026-07-28T12:00:00Z",
        "origin": arguments.get("origin", {"source": "test"}),
        "payload": {"content": [{"type": "text", "text": f"said of {id}"}]},
    }
    return {"method": "push/event", "params": params}


def call(number: Any, name: str, arguments: dict[str, Any]) -> None:
    if name == "push":
        found = asked([event(id, arguments) for id in arguments["ids"]])
    elif name == "ask":
        found = asked(arguments["frames"])
    else:
        found = TOLD
    text = json.dumps(found)
    say({"id": number, "result": {"content": [{"type": "text", "text": text}], "isError": False}})


def hear(frame: dict[str, Any]) -> None:
    number, method, params = frame.get("id"), frame.get("method"), frame.get("params", {})
    if method is None:
        answer = {key: frame[key] for key in ("result", "error") if key in frame}
        ANSWERS.pop(number, queue.Queue()).put(answer)
    elif method == "initialize":
        mcpl = {"version": "0.4", "pushEvents": True, "featureSets": SETS}
        hello: dict[str, Any] = {"protocolVersion": "2025-11-25"}
        hello["capabilities"] = {"tools": {}, "experimental": {"mcpl": mcpl}}
        say({"id": number, "result": {**hello, "serverInfo": {"name": "ci", "version": "1"}}})
    elif method == "tools/list":
        say({"id": number, "result": {"tools": TOOLS}})
    elif method == "ping":
        say({"id": number, "result": {}})
    elif method == "tools/call":
        given: tuple[Any, ...] = (number, params["name"], params.get("arguments") or {})
        threading.Thread(target=call, args=given, daemon=True).start()
    elif number is None:
        TOLD.append({"method": method, "params": params})
    else:
        say({"id": number, "error": {"code": -32601, "message": "no"}})


if __name__ == "__main__":
    for line in sys.stdin:
        hear(json.loads(line))
