"""A listener on a free port and plain sockets that speak to it, for the tests beside this file."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from comity.http.connection import ListenerLimits
from comity.http.server import ShutdownHooks, event_loop, run_http_server

type Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
type Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
type Scope = MutableMapping[str, Any]
type Application = Callable[[Scope, Receive, Send], Awaitable[None]]

PATIENCE_SECONDS = 60
GET = b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n"
GET_AND_CLOSE = b"GET /hello HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def on_both_loops(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The same test on asyncio's loop and on uvloop: transports differ where it matters here."""

    @pytest.mark.parametrize("loop", [asyncio.new_event_loop, event_loop], ids=["asyncio", "uv"])
    def run(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(asyncio.wait_for(test(), PATIENCE_SECONDS))

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


async def answer(send: Send, body: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the names of the headers, seen after the body was read, and the body."""
    body, more = b"", True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        body += event["body"]
        more = event["more_body"]
    names = b",".join(name for name, _ in scope["headers"])
    await answer(send, names + b"|" + body)


class Peer:
    """A client that says exactly the bytes it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def ask(self, data: bytes) -> bytes:
        """Send a whole request; the chunked body of the response."""
        self.say(data)
        return await self.answer()

    async def answer(self) -> bytes:
        head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        rest = await self.reader.readuntil(b"0\r\n\r\n")
        return rest.split(b"\r\n")[1]

    async def until_closed(self) -> bytes:
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""

    def close(self) -> None:
        self.writer.close()


@dataclass
class Listening:
    """A listener that runs, and the peers that were connected to it."""

    address: str
    task: asyncio.Task[None]
    peers: list[Peer] = field(default_factory=list[Peer])

    async def connect(self, source: str = "127.0.0.1") -> Peer:
        port = int(self.address.rpartition(":")[2])
        streams = await asyncio.open_connection(
            "127.0.0.1", port, local_addr=(source, 0), limit=1_000_000
        )
        self.peers.append(Peer(*streams))
        return self.peers[-1]

    async def answer_to_a_stranger(self) -> bytes:
        """All that a new connection is told before it is closed."""
        peer = await self.connect()
        peer.say(GET_AND_CLOSE)
        return await peer.until_closed()


@asynccontextmanager
async def listening(
    app: Application = echo,
    limits: ListenerLimits | None = None,
    stopping: Callable[[], None] = lambda: None,
) -> AsyncGenerator[Listening]:
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(
        run_http_server(
            app,
            "127.0.0.1",
            0,
            limits=limits,
            started=address.set_result,
            shutdown=ShutdownHooks(stopping),
        )
    )
    await asyncio.wait((task, address), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    running = Listening(address.result(), task)
    try:
        yield running
    finally:
        for peer in running.peers:
            peer.writer.transport.abort()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
