"""A live server with state, pushes, a channel, a text for the model and a check of its replies.

    live_server.py FOLDER

Each node runs one. All of them share what they remember in the folder.
"""

import itertools
import json
import sys
import threading
from pathlib import Path
from typing import Any

type Message = dict[str, Any]

SECRET = "4711"
"""The check removes this from each reply of a model."""

SETS: Message = {
    "notes": {"description": "Notes", "uses": ["tools"], "rollback": True},
    "memory": {
        "description": "What it remembers, and a check of replies",
        "uses": ["contextHooks.beforeInference", "contextHooks.afterInference"],
    },
    "builds": {"description": "Builds", "uses": ["pushEvents"]},
    "chat": {"description": "A channel", "uses": ["channels.publish"], "scoped": True},
}
TOOLS: list[Message] = [
    {"name": "add_note", "inputSchema": {"type": "object"}, "_meta": {"featureSet": "notes"}},
    *({"name": name, "inputSchema": {"type": "object"}} for name in ("remember", "push", "open")),
]


class LiveServer:
    def __init__(self, folder: Path) -> None:
        self._memory = folder / "memory.json"
        self._notes = folder / "notes.names"
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)

    def serve(self) -> None:
        for line in sys.stdin:
            asked = json.loads(line)
            if "method" in asked and "id" in asked:
                self._say(
                    {"id": asked["id"], **self._answer(asked["method"], asked.get("params") or {})}
                )

    def _say(self, message: Message) -> None:
        with self._lock:
            print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

    def _ask(self, method: str, params: Message) -> None:
        self._say({"id": f"own-{next(self._numbers)}", "method": method, "params": params})

    def _answer(self, method: str, params: Message) -> Message:
        match method:
            case "initialize":
                result = _greeting()
            case "tools/list":
                result = {"tools": TOOLS}
            case "tools/call":
                result = self._call(params["name"], params.get("arguments") or {}, params)
            case "context/beforeInference":
                result = {"featureSet": "memory", "contextInjections": self._injections()}
            case "context/afterInference":
                said = params["assistantMessage"]
                changed = said.replace(SECRET, "[removed]")
                result = {"featureSet": "memory"}
                result |= {} if changed == said else {"modifiedResponse": changed}
            case "state/rollback":
                result = {"checkpoint": params["checkpoint"], "success": True}
            case "ping" | "channels/publish":
                result = {"delivered": True}
            case _:
                return {"error": {"code": -32601, "message": "Method not found"}}
        return {"result": result}

    def _call(self, name: str, arguments: Message, params: Message) -> Message:
        more: Message = {}
        match name:
            case "add_note":
                more = {"state": self._new_state(arguments["text"], params)}
            case "remember":
                self._memory.write_text(json.dumps(arguments["text"]))
            case "push":
                for id, text in arguments["events"].items():
                    self._ask("push/event", _event(id, text))
            case _:
                channels = [_channel(id, label) for id, label in arguments["rooms"].items()]
                self._ask("channels/register", {"channels": channels})
        return {"content": [{"type": "text", "text": "done"}], **more}

    def _injections(self) -> list[Message]:
        if not self._memory.exists():
            return []
        text = json.loads(self._memory.read_text())
        return [{"namespace": "facts", "position": "beforeUser", "content": text}]

    def _new_state(self, text: str, params: Message) -> Message:
        with self._notes.open("a+") as names:
            names.write("note\n")
            names.seek(0)
            name = f"note-{len(names.readlines())}"
        parent = params.get("_meta", {}).get("dev.comity/checkpoint")
        if parent is None:
            return {"checkpoint": name, "parent": None, "data": {"notes": [text]}}
        patch = [{"op": "add", "path": "/notes/-", "value": text}]
        return {"checkpoint": name, "parent": parent, "patch": patch}


def _greeting() -> Message:
    mcpl = {
        "version": "0.4",
        "pushEvents": True,
        "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
        "channels": {},
        "featureSets": SETS,
    }
    return {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}, "experimental": {"mcpl": mcpl}},
        "serverInfo": {"name": "helper", "version": "1"},
    }


def _channel(id: str, label: str) -> Message:
    return {"id": id, "type": "chat", "label": label, "direction": "bidirectional"}


def _event(id: str, text: str) -> Message:
    return {
        "featureSet": "builds",
        "eventId": id,
        "timestamp": "2026-07-28T12:00:00Z",
        "payload": {"content": [{"type": "text", "text": text}]},
    }


if __name__ == "__main__":
    LiveServer(Path(sys.argv[1])).serve()
