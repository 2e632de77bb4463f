"""A client of `/ws` that says exactly the bytes that it is told to, and reads what comes back."""

import asyncio
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from tests.security.hostile_members.frames import CLOSE
from tests.security.hostile_members.scene import SECONDS, Scene
from tests.support.listening import Peer

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
UPGRADE = (
    ("upgrade", "websocket"),
    ("connection", "Upgrade"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", KEY),
)


def head(scene: Scene, party: str, topic: str, **changed: str | None) -> bytes:
    """The head of a request for an upgrade; None leaves a header out."""
    asked = {"host": scene.host, **dict(UPGRADE)}
    if party:
        asked["authorization"] = f"Bearer {scene.key_of(party)}"
    for name, value in changed.items():
        header = name.replace("_", "-")
        asked.pop(header, None)
        if value is not None:
            asked[header] = value
    lines = [f"GET /ws?topic={topic} HTTP/1.1", *(f"{k}: {v}" for k, v in asked.items())]
    return "\r\n".join((*lines, "", "")).encode("latin-1")


async def status_of(scene: Scene, request: bytes) -> int:
    """What a request of any kind is answered with; none at all is 0."""
    async with scene.peering() as peer:
        peer.say(request)
        try:
            async with asyncio.timeout(SECONDS):
                line = await peer.reader.readline()
        except ConnectionError:
            return 0
    return int(line.split()[1]) if line else 0


async def next_frame(peer: Peer) -> tuple[int, bytes]:
    """The kind and the content of a frame; raises where the connection ends instead."""
    async with asyncio.timeout(SECONDS):
        first, size = await peer.reader.readexactly(2)
        if size > 125:
            form, more = ("!H", 2) if size == 126 else ("!Q", 8)
            (size,) = struct.unpack(form, await peer.reader.readexactly(more))
        return first & 0x0F, await peer.reader.readexactly(size)


@asynccontextmanager
async def upgraded(
    scene: Scene, party: str, topic: str, at_once: bytes = b""
) -> AsyncGenerator[Peer]:
    """An open socket; `at_once` is sent with the head, before anybody has answered it."""
    async with scene.peering() as peer:
        peer.say(head(scene, party, topic) + at_once)
        async with asyncio.timeout(SECONDS):
            answer = await peer.reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101"), answer
        assert b"extensions" not in answer.lower()
        yield peer


async def code_of_the_end(peer: Peer) -> int:
    """With which code the gateway ends it; 0 where it cut it without a word."""
    try:
        while True:
            opcode, data = await next_frame(peer)
            if opcode == CLOSE:
                return int.from_bytes(data[:2]) if data else 1005
    except (asyncio.IncompleteReadError, ConnectionError):
        return 0
