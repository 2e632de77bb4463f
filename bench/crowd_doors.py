"""How a member of a crowd comes in: over a WebSocket, or as a subscriber of NATS. By hand."""

import json
import socket
import struct

from bench.crowd import WITHIN_SECONDS, Lost

_GREETING = json.dumps({"verbose": False, "pedantic": False, "echo": True})


class WebSocketDoor:
    """`GET {path}` on loopback; `{member}` and `{mode}` in it are the member's own.

    Somebody has come in once `welcome` was said to it.
    """

    sign_of_life = b"\x8a\x80\0\0\0\0"
    """A pong that nobody asked for."""

    def __init__(
        self, port: int, path: str = "/", welcome: bytes = b"", receive_bytes: int = 0
    ) -> None:
        self._port = port
        self._path = path
        self._welcome = welcome
        self._receive_bytes = receive_bytes

    def join(self, order: int, *, is_directed: bool = False) -> socket.socket:
        path = self._path.format(member=f"m{order}", mode="directed" if is_directed else "all")
        joined = _connected(self._port, self._receive_bytes)
        joined.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        answer = _head(joined)
        if b" 101 " not in answer[:16]:
            raise Lost(f"no WebSocket: {answer[:200]!r}")
        while self._welcome not in answer:
            answer += _some(joined, answer)
        return joined

    def outgoing(self, text: bytes) -> bytes:
        # Masked with zeros: a client has to mask, and a server has to do the work all the same.
        return struct.pack("!BBH4x", 0x81, 0x80 | 126, len(text)) + text

    def incoming(self, length: int) -> int:
        return 4 + length


class NatsDoor:
    """A subscriber of one subject, which the first of them publishes on."""

    sign_of_life = b"PONG\r\n"
    _SUBJECT = "t"

    def __init__(self, port: int) -> None:
        self._port = port

    def join(self, order: int, *, is_directed: bool = False) -> socket.socket:
        subject = f"{self._SUBJECT}.{order}" if is_directed else self._SUBJECT
        joined = _connected(self._port)
        joined.sendall(f"CONNECT {_GREETING}\r\nSUB {subject} 1\r\nPING\r\n".encode())
        answer = b""
        while b"PONG\r\n" not in answer:
            answer += _some(joined, answer)
        return joined

    def outgoing(self, text: bytes) -> bytes:
        return b"PUB %b %d\r\n%b\r\n" % (self._SUBJECT.encode(), len(text), text)

    def incoming(self, length: int) -> int:
        return len(f"MSG {self._SUBJECT} 1 {length}\r\n\r\n") + length


def _connected(port: int, receive_bytes: int = 0) -> socket.socket:
    joined = socket.socket()
    joined.settimeout(WITHIN_SECONDS)
    if receive_bytes:
        # How much a peer may send at once is agreed upon when they connect.
        joined.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    joined.connect(("127.0.0.1", port))
    joined.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return joined


def _head(joined: socket.socket) -> bytes:
    """The answer up to its blank line, and not a byte of what comes after it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        seen = joined.recv(1 << 16, socket.MSG_PEEK)
        before, end, _ = seen.partition(b"\r\n\r\n")
        if not seen:
            raise Lost(f"was not let in: {head[-200:]!r}")
        head += joined.recv(len(before) + len(end) if end else 1)
    return head


def _some(joined: socket.socket, before: bytes) -> bytes:
    data = joined.recv(1 << 16)
    if not data:
        raise Lost(f"was not let in: {before[-200:]!r}")
    return data
