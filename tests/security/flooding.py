"""Floods a gateway for some seconds: `python -m tests.security.flooding HOST PORT KIND`.

It is a program of its own, so that its work does not lengthen what a test measures. It imports
little, so that it begins soon.
"""

import base64
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from websockets.frames import Frame, Opcode

FLOOD_SECONDS: Final = 4.0
PATIENCE_SECONDS: Final = 60.0
PEERS: Final = 30
CHUNKED: Final = (
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
CHUNKS: Final = b"1\r\na\r\n" * 20_000


def frame(opcode: Opcode, data: bytes = b"", *, is_last: bool = True) -> bytes:
    return Frame(opcode, data, fin=is_last).serialize(mask=True)


FRAMES: Final = {
    "empty fragments": frame(Opcode.CONT, is_last=False),
    "tiny fragments": frame(Opcode.CONT, b"a", is_last=False),
    "fragments of long messages": frame(Opcode.CONT, b"a" * 100, is_last=False),
    "pings": frame(Opcode.PING),
    "pongs": frame(Opcode.PONG),
    "texts": frame(Opcode.TEXT, b"{}"),
}

type Address = tuple[str, int]


def send_frames(address: Address, kind: str) -> None:
    """Join a topic and send one kind of frame, and do so again when closed, for some seconds."""
    until = time.monotonic() + FLOOD_SECONDS
    while time.monotonic() < until:
        with socket.create_connection(address, PATIENCE_SECONDS) as member, suppress(OSError):
            member.sendall(
                b"GET /ws?topic=x HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
                b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
                + base64.b64encode(os.urandom(16))
                + b"\r\n\r\n"
            )
            assert b" 101 " in member.recv(4096)
            if "fragments" in kind:
                member.sendall(frame(Opcode.TEXT, b"{", is_last=False))
            while time.monotonic() < until:
                member.settimeout(max(0.01, until - time.monotonic()))
                member.sendall(FRAMES[kind] * 20_000)


def send_chunks(address: Address) -> None:
    """Many connections with bodies that do not end, each again when it is cut."""
    until = time.monotonic() + FLOOD_SECONDS

    def send() -> None:
        while time.monotonic() < until:
            with suppress(OSError), socket.create_connection(address, PATIENCE_SECONDS) as peer:
                peer.sendall(CHUNKED)
                while time.monotonic() < until:
                    peer.settimeout(max(0.01, until - time.monotonic()))
                    peer.sendall(CHUNKS)

    peers = [threading.Thread(target=send) for _ in range(PEERS)]
    for peer in peers:
        peer.start()
    for peer in peers:
        peer.join(PATIENCE_SECONDS)


def flood(address: Address, kind: str) -> None:
    if kind == "chunks":
        send_chunks(address)
    else:
        send_frames(address, kind)


if __name__ == "__main__":
    flood((sys.argv[1], int(sys.argv[2])), sys.argv[3])
