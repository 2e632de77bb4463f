"""Attack 18: floods of tiny frames and chunks, against a real gateway that others use meanwhile.

`tests/http` bounds the work in one turn of the event loop. Here the longest wait of another client
is measured, with `COMITY_WHOLE=1` and where nothing else is measured on the machine.
"""

import base64
import os
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from websockets.frames import Frame, Opcode

from tests.interop.processes import answers, running
from tests.pace import here
from tests.support.piped import COMITY

pytestmark = pytest.mark.skipif(
    os.environ.get("COMITY_WHOLE") != "1", reason="measures seconds: COMITY_WHOLE=1"
)

WORST_SECONDS: Final = 0.25
FLOOD_SECONDS: Final = 4.0
PEERS: Final = 30
HEALTH: Final = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
CHUNKED: Final = (
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
CHUNKS: Final = b"1\r\na\r\n" * 690_000


def frame(opcode: Opcode, data: bytes = b"", *, is_last: bool = True) -> bytes:
    return Frame(opcode, data, fin=is_last).serialize(mask=True)


FRAMES: Final = {
    "empty fragments": frame(Opcode.CONT, is_last=False),
    "tiny fragments": frame(Opcode.CONT, b"a", is_last=False),
    "pings": frame(Opcode.PING),
    "pongs": frame(Opcode.PONG),
    "texts": frame(Opcode.TEXT, b"{}"),
}

type Address = tuple[str, int]


@contextmanager
def gateway(folder: Path, **topics: object) -> Generator[Address]:
    config = folder / "comity.toml"
    said = "".join(f"{name} = {value}\n" for name, value in topics.items())
    config.write_text(f"[topics]\n{said}")
    with running([COMITY, "serve", "-c", str(config), "--port", "0"]) as program:
        origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
        program.wait_until(lambda: answers(f"{origin}/ready"))
        parts = urlsplit(origin)
        yield str(parts.hostname), int(parts.port or 0)


def waits_of_another(address: Address, flood: Callable[[], None]) -> list[float]:
    """How long each GET /health of another connection took, before, amid and after the flood."""
    waits: list[float] = []
    ended = threading.Event()

    def ask() -> None:
        with socket.create_connection(address, 60) as another:
            while not ended.wait(0.005):
                begun = time.monotonic()
                another.sendall(HEALTH)
                answer = b""
                while b"\r\n\r\n" not in answer:
                    answer += another.recv(4096)
                waits.append(time.monotonic() - begun)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        flood()
    finally:
        ended.set()
        asking.join(120)
    return waits


def send_frames(address: Address, kind: str) -> None:
    """Join a topic, and send one kind of frame for some seconds or until it is closed."""
    key = base64.b64encode(os.urandom(16))
    with socket.create_connection(address, 60) as member, suppress(OSError):
        member.sendall(
            b"GET /ws?topic=x HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
            + key
            + b"\r\n\r\n"
        )
        assert b" 101 " in member.recv(4096)
        if "fragments" in kind:
            member.sendall(frame(Opcode.TEXT, b"{", is_last=False))
        deadline = time.monotonic() + FLOOD_SECONDS
        member.settimeout(FLOOD_SECONDS)
        while time.monotonic() < deadline:
            member.sendall(FRAMES[kind] * 20_000)


def send_chunks(address: Address) -> None:
    """A body of 4 MB behind its early answer."""
    with socket.create_connection(address, 60) as peer, suppress(OSError):
        peer.sendall(CHUNKED)
        peer.recv(4096)
        peer.settimeout(FLOOD_SECONDS)
        peer.sendall(CHUNKS)


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("rate", [0, 600])
def test_a_flood_of_frames_keeps_nobody_else_waiting(tmp_path: Path, kind: str, rate: int) -> None:
    with gateway(tmp_path, message_rate=rate) as address:
        waits = waits_of_another(address, lambda: send_frames(address, kind))
    print(f"{kind}: {len(waits)} answers, the slowest after {max(waits) * 1000:.0f} ms")
    assert max(waits) < here(WORST_SECONDS)


def test_thirty_bodies_in_tiny_chunks_keep_nobody_else_waiting(tmp_path: Path) -> None:
    with gateway(tmp_path) as address:

        def flood() -> None:
            peers = [threading.Thread(target=send_chunks, args=(address,)) for _ in range(PEERS)]
            for peer in peers:
                peer.start()
            for peer in peers:
                peer.join(60)

        waits = waits_of_another(address, flood)
    print(f"chunks: {len(waits)} answers, the slowest after {max(waits) * 1000:.0f} ms")
    assert max(waits) < here(WORST_SECONDS)
