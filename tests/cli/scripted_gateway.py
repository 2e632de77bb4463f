"""A gateway that says exactly what a test tells it to, for what a real one hardly ever does."""

import json
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, override

type Frame = dict[str, Any]
type Said = tuple[int, str, bytes]
type Script = Callable[["Heard"], Said]

JSON = "application/json"
STREAM = "text/event-stream"


class Heard:
    """One request: its verb, its path, its headers, its message."""

    def __init__(self, verb: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.verb = verb
        self.path = path
        self.headers = headers
        self.frame: Frame = json.loads(body) if body else {}

    @property
    def method(self) -> str:
        return str(self.frame.get("method", ""))

    def result(self, result: object) -> Said:
        answer = {"jsonrpc": "2.0", "id": self.frame.get("id"), "result": result}
        return 200, JSON, json.dumps(answer).encode()


class Scripted:
    """Where it is, and all that it heard."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.heard: list[Heard] = []

    def of(self, method: str) -> list[Heard]:
        return [each for each in self.heard if method in (each.method, each.verb)]


def event(frame: object, name: str = "") -> bytes:
    data = json.dumps(frame) if frame is not None else ""
    return (f"id: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


@contextmanager
def scripted_gateway(script: Script) -> Generator[Scripted]:
    scripted = Scripted("")

    class Visits(BaseHTTPRequestHandler):
        def _visit(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            heard = Heard(self.command, self.path, dict(self.headers), body)
            scripted.heard.append(heard)
            status, kind, said = script(heard)
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("mcp-session-id", "session")
            if kind != STREAM:
                self.send_header("content-length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST = do_DELETE = _visit  # noqa: N815  # the names that the library calls

        @override
        def log_message(self, format: str, *args: object) -> None:
            """Nothing: pytest shows what failed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Visits)
    scripted.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield scripted
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
