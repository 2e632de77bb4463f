"""A live server that plays what it is told to, however wrong: over stdio, or HTTP with `--http`.

What it plays is JSON in HOOK_PLAY: `sets`, `hooks` (what it declares), `tools` (name to text), and
for `before` and `after` a list of deeds that are done when it is asked: {"do": ...}. All that it
hears is written to the file HOOK_HEARD, line by line. `python -m tests.live.hook_server`
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, cast

type Frame = dict[str, Any]
type Say = Callable[[Any], None]

PLAY: Final[Frame] = json.loads(os.environ.get("HOOK_PLAY") or "{}")
HEARD: Final = os.environ.get("HOOK_HEARD", "")
KEPT: Final = {"context/beforeInference": "before", "context/afterInference": "after"}
LOCK: Final = threading.Lock()
ANSWERS: Final[dict[Any, "queue.Queue[Frame]"]] = {}


def note(frame: Frame) -> None:
    if HEARD:
        with LOCK, Path(HEARD).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**frame, "_at": time.monotonic()}) + "\n")


def greeting() -> Frame:
    mcpl = {"version": "0.4", "contextHooks": PLAY.get("hooks", {}), **PLAY.get("declares", {})}
    capabilities = {
        "tools": {},
        "experimental": {"mcpl": {**mcpl, "featureSets": PLAY.get("sets", {})}},
    }
    return {
        "protocolVersion": "2025-11-25",
        "capabilities": capabilities,
        "serverInfo": {"name": "hooks", "version": "1"},
    }


def answered(frame: Frame, say: Say) -> None:
    method, id = frame.get("method"), frame.get("id")
    params: Frame = frame.get("params") or {}
    if method == "initialize":
        say({"id": id, "result": greeting()})
    elif method == "tools/list":
        tools = [
            {"name": name, "description": f"gives {name}", "inputSchema": {"type": "object"}}
            for name in PLAY.get("tools", {})
        ]
        say({"id": id, "result": {"tools": tools}})
    elif method == "tools/call":
        deeds: Any = PLAY["tools"][params["name"]]
        said = json.dumps(params.get("arguments")) if deeds is None else deeds
        if isinstance(deeds, list):
            perform(cast("list[Frame]", deeds), frame, say)
            return
        say({"id": id, "result": {"content": [{"type": "text", "text": said}]}})
    elif method in KEPT:
        perform(PLAY.get(KEPT[method], []), frame, say)
    elif id is not None:
        say({"id": id, "result": {}})


def perform(deeds: list[Frame], frame: Frame, say: Say) -> None:
    for deed in deeds:
        DEEDS[deed["do"]](deed, frame, say)


def answer(deed: Frame, frame: Frame, say: Say) -> None:
    result = filled(deed["result"], frame.get("params") or {})
    say({"id": frame.get("id"), "result": result})


def fail(deed: Frame, frame: Frame, say: Say) -> None:
    error = {"code": deed.get("code", -32000), "message": "not today"}
    say({"id": frame.get("id"), "error": error})


def sleep(deed: Frame, _: Frame, __: Say) -> None:
    time.sleep(deed["seconds"])


def leave(_: Frame, __: Frame, ___: Say) -> None:
    os._exit(3)


def rawly(deed: Frame, frame: Frame, say: Say) -> None:
    say(deed["text"].replace("$ID", json.dumps(frame.get("id"))).encode())


def literally(deed: Frame, frame: Frame, say: Say) -> None:
    id = frame.get("id")
    said = {name: (id if each == "$ID" else each) for name, each in deed["frame"].items()}
    for _ in range(deed.get("times", 1)):
        say(said)


def bulk(deed: Frame, frame: Frame, say: Say) -> None:
    written = json.dumps(deed["result"]).replace("$BULK", "x" * deed["bytes"])
    say({"id": frame.get("id"), "result": json.loads(written)})


def ask(deed: Frame, _: Frame, say: Say) -> None:
    """Ask the host something amid a hook, and note what it answers."""
    number = f"own-{time.monotonic_ns()}"
    ANSWERS[number] = queue.Queue(1)
    say({"id": number, "method": deed["method"], "params": deed["params"]})
    try:
        note({"answered": deed["method"], "frame": ANSWERS[number].get(timeout=60)})
    except queue.Empty:
        note({"answered": deed["method"], "frame": None})


def filled(result: Any, params: Frame) -> Any:
    """The result, with what was asked where it says so."""
    said = params.get("assistantMessage") or ""
    text = json.dumps(result)
    for name, each in (("$SAID", said), ("$CONVERSATION", params.get("conversationId", ""))):
        text = text.replace(name, json.dumps(each)[1:-1])
    return json.loads(text)


DEEDS: Final[dict[str, Callable[[Frame, Frame, Say], None]]] = {
    "answer": answer,
    "error": fail,
    "sleep": sleep,
    "exit": leave,
    "raw": rawly,
    "say": literally,
    "ask": ask,
    "bulk": bulk,
}


def over_stdio() -> None:
    def say(frame: Any) -> None:
        line = (
            frame if isinstance(frame, bytes) else json.dumps({"jsonrpc": "2.0", **frame}).encode()
        )
        with LOCK:
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()

    for line in sys.stdin.buffer:
        frame = json.loads(line)
        note(frame)
        if "method" not in frame:
            if frame.get("id") in ANSWERS:
                ANSWERS[frame["id"]].put(frame)
            continue
        threading.Thread(target=answered, args=(frame, say), daemon=True).start()


class Door(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        frame = json.loads(self.rfile.read(int(self.headers["content-length"])))
        note(frame)
        said: list[Any] = []
        if "id" in frame and "method" in frame:
            if frame["method"] == "server/discover":
                said.append({"id": frame["id"], "error": {"code": -32601, "message": "no"}})
            else:
                answered(frame, said.append)
        if not said:
            self._reply(202, b"")
            return
        first = said[0]
        body = (
            first if isinstance(first, bytes) else json.dumps({"jsonrpc": "2.0", **first}).encode()
        )
        self._reply(200, body)

    def do_GET(self) -> None:
        self._reply(405, b"")

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        if body:
            self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (its name elsewhere)
        """Nobody reads it."""


def over_http() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    server.daemon_threads = True
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}/mcp\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    if "--http" in sys.argv:
        over_http()
    else:
        over_stdio()
