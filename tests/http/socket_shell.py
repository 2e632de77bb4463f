"""Sockets behind a listener, without topics: real clients, a clock that is moved by hand."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import websockets
from websockets.asyncio.client import ClientConnection
from websockets.frames import Frame, Opcode

from comity.http.connection import HANDED
from comity.http.websocket import (
    WebSocketConnection,
    WebSocketLimits,
    WebSocketRegistry,
    upgrade_connection,
)
from tests.support.listening import Listening, Receive, Scope, Send, answer, listening

SECONDS = 60.0
SMALL = WebSocketLimits(message_bytes=65_536, queue_bytes=65_536)


class Heard:
    """Who listens at one socket, and remembers."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.resumptions = 0
        self.ended: list[bool] = []
        self.news = asyncio.Condition()

    def received(self, data: bytes) -> int:
        self.messages.append(data)
        self._tell()
        return 0

    def resumed(self) -> None:
        self.resumptions += 1
        self._tell()

    def closed(self, *, is_clean: bool) -> None:
        self.ended.append(is_clean)
        self._tell()

    def _tell(self) -> None:
        async def tell() -> None:
            async with self.news:
                self.news.notify_all()

        self.task = asyncio.ensure_future(tell())

    async def until(self, so: Callable[["Heard"], object]) -> None:
        async with asyncio.timeout(SECONDS), self.news:
            await self.news.wait_for(lambda: so(self))


@dataclass
class Shell:
    """Sockets behind a listener, and a clock that is moved by hand."""

    limits: WebSocketLimits
    time: float = 1_000.0
    listens: bool = True
    place: Listening | None = None
    opened: list[tuple[WebSocketConnection, Heard]] = field(
        default_factory=list[tuple[WebSocketConnection, Heard]]
    )

    def __post_init__(self) -> None:
        self.sockets = WebSocketRegistry(self.limits, lambda: self.time)
        self._arrived = asyncio.Condition()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        handed = scope[HANDED]
        lines = [b"GET / HTTP/1.1", *(name + b": " + value for name, value in scope["headers"])]
        socket, said = upgrade_connection(
            handed, b"\r\n".join([*lines, b"", b""]), self.sockets, ""
        )
        if socket is None:
            await answer(send, said)
            return
        handed.hand_over(socket)
        handed.transport.write(said)
        heard = Heard()
        if self.listens:
            socket.begin(heard)
        async with self._arrived:
            self.opened.append((socket, heard))
            self._arrived.notify_all()

    async def connects(self, **more: Any) -> tuple[ClientConnection, WebSocketConnection, Heard]:
        assert self.place is not None
        more = {"proxy": None, "max_size": 2**26, "compression": None, **more}
        before = len(self.opened)
        client = await websockets.connect(self.place.address.replace("http", "ws", 1), **more)
        async with asyncio.timeout(SECONDS), self._arrived:
            await self._arrived.wait_for(lambda: len(self.opened) > before)
        return client, *self.opened[-1]

    def passes(self, seconds: float) -> None:
        self.time += seconds
        self.sockets.look()


@asynccontextmanager
async def shell(limits: WebSocketLimits = SMALL) -> AsyncGenerator[Shell]:
    made = Shell(limits)
    async with listening(made.app) as place:
        made.place = place
        yield made


async def closed(client: ClientConnection) -> tuple[int, str]:
    async with asyncio.timeout(SECONDS):
        await client.wait_closed()
    return client.close_code or 0, client.close_reason or ""


def masked(opcode: Opcode, data: bytes = b"", *, is_last: bool = True) -> bytes:
    return Frame(opcode, data, fin=is_last).serialize(mask=True)


async def raw(client: ClientConnection, *frames: bytes) -> None:
    client.transport.write(b"".join(frames))
    await asyncio.sleep(0)
