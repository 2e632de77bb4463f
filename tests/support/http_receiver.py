"""A real HTTP server that keeps each request and answers as it is told."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, override

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Heard(NamedTuple):
    """One request. The names of its headers are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


def status(code: int, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d Whatever\r\n%bcontent-length: 0\r\n\r\n" % (code, more)


def answer(value: object) -> bytes:
    """A response with this value as JSON."""
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class Receiver:
    """The server. It gives its answers in order, and then the usual one."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self.answers: list[bytes] = []
        self.usual = OK
        self.gate: threading.Event | None = None
        self.arrived = threading.Condition()
        receiver = self

        class Visits(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with receiver.arrived:
                    said = {name.lower(): value for name, value in self.headers.items()}
                    receiver.heard.append(Heard(self.path, said, body))
                    reply = receiver.answers.pop(0) if receiver.answers else receiver.usual
                    receiver.arrived.notify_all()
                if receiver.gate is not None:
                    receiver.gate.wait(60)
                self.wfile.write(reply)
                self.close_connection = True

            @override
            def log_message(self, format: str, *args: object) -> None:
                """Nothing: pytest shows what failed."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Visits)
        self.origin = f"http://127.0.0.1:{self.server.server_port}"
        self.url = f"{self.origin}/hook?team=a"
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    def wait_for(self, count: int, seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        with self.arrived:
            while len(self.heard) < count:
                assert time.monotonic() < deadline, len(self.heard)
                self.arrived.wait(0.5)

    def close(self) -> None:
        if self.gate is not None:
            self.gate.set()
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(10)
