"""An HTTP proxy that notes what passes, and the origins behind it: every name is this machine."""

import json
import select
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

SECONDS = 30.0


class LoggingProxy:
    """`seen` holds a line for each request: its method and what it is for."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.credentials: set[str] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _requests_of(self))
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://me:pass@127.0.0.1:{self._server.server_address[1]}"

    @contextmanager
    def running(self) -> Generator["LoggingProxy"]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(SECONDS)

    def has_seen(self, words: str) -> bool:
        return any(words in line for line in self.seen)


def _requests_of(proxy: LoggingProxy) -> type[BaseHTTPRequestHandler]:
    class ProxyRequest(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_CONNECT(self) -> None:
            self._note()
            port = int(self.path.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), SECONDS) as origin:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                _relay(self.connection, origin)
            self.close_connection = True

        def _pass_on(self) -> None:
            self._note()
            parts = urlsplit(self.path)
            with socket.create_connection(("127.0.0.1", parts.port or 80), SECONDS) as origin:
                path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
                kept = (
                    f"{name}: {value}"
                    for name, value in self.headers.items()
                    if not name.lower().startswith(("proxy-", "connection"))
                )
                lines = [f"{self.command} {path} HTTP/1.1", *kept, "connection: close", "", ""]
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                origin.sendall("\r\n".join(lines).encode() + body)
                while data := origin.recv(65536):
                    self.wfile.write(data)
            self.close_connection = True

        do_GET = do_POST = do_DELETE = _pass_on  # noqa: N815  # the library's names

        def _note(self) -> None:
            proxy.seen.append(f"{self.command} {self.path}")
            proxy.credentials.add(self.headers.get("proxy-authorization") or "")

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002  # its name

    return ProxyRequest


def _relay(one: socket.socket, other: socket.socket) -> None:
    while True:
        ready, _, _ = select.select([one, other], [], [], SECONDS)
        if not ready:
            return
        for each in ready:
            data = each.recv(65536)
            if not data:
                return
            (other if each is one else one).sendall(data)


@contextmanager
def origin_answering(answers: dict[str, object]) -> Generator[tuple[int, list[str]]]:
    """A server that answers each path with a JSON document; its port, and the paths asked for."""
    asked: list[str] = []

    class OriginRequest(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            asked.append(self.path)
            body = json.dumps(answers.get(self.path, {})).encode()
            self.send_response(200 if self.path in answers else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer  # noqa: N815  # the library's names

        def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002  # its name

    server = ThreadingHTTPServer(("127.0.0.1", 0), OriginRequest)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1], asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join(SECONDS)
