"""A tool server over HTTP whose every byte is scripted, and which remembers what it was sent.

By itself it is a plain server of the handshake era with one session and an empty list of tools. A
test gives it acts, by the name of a tool or a method, and each act plays its own response.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.support.visitor import SECONDS, Frame

JSON = "application/json"
STREAM = "text/event-stream"


@dataclass
class Exchange:
    """One request that arrived, and the way to answer it byte by byte."""

    verb: str
    path: str
    pairs: list[tuple[str, str]]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    kept: bool = True

    @property
    def headers(self) -> dict[str, str]:
        return dict(self.pairs)

    @property
    def frame(self) -> Frame:
        return json.loads(self.body) if self.body else {}

    @property
    def id(self) -> Any:
        return self.frame.get("id")

    async def respond(
        self, status: int = 200, body: bytes = b"", kind: str = JSON, **headers: str
    ) -> None:
        """One whole response."""
        lines = [f"HTTP/1.1 {status} Told", f"content-length: {len(body)}"]
        lines += [f"content-type: {kind}"] if body else []
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.say("\r\n".join([*lines, "", ""]).encode() + body)

    async def result(self, result: object, **headers: str) -> None:
        await self.respond(200, encode({"id": self.id, "result": result}), **headers)

    async def text(self, text: str) -> None:
        await self.result({"content": [{"type": "text", "text": text}]})

    async def stream(self, **headers: str) -> None:
        """Begin a stream that lasts as long as the connection."""
        self.kept = False
        lines = [f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items()]
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {STREAM}\r\n{''.join(lines)}\r\n"
        await self.say(head.encode())

    async def event(self, frame: Frame | None, named: str = "", retry: int | None = None) -> None:
        lines = [f"id: {named}"] if named else []
        lines += [f"retry: {retry}"] if retry is not None else []
        lines += ["data: " + ("" if frame is None else encode(frame).decode()), "", ""]
        await self.say("\n".join(lines).encode())

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def hang_up(self) -> None:
        self.kept = False
        self.writer.close()

    async def left(self) -> None:
        """Until the gateway has hung up."""
        self.kept = False
        async with asyncio.timeout(SECONDS):
            with suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass


type Act = Callable[[Exchange], Awaitable[None]]


def encode(frame: Frame) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **frame}, separators=(",", ":")).encode()


@dataclass
class Upstream:
    """The scripted server: what to play, and what was heard."""

    url: str = ""
    modern: bool = False
    acts: dict[str, Act] = field(default_factory=dict[str, Act])
    heard: list[Exchange] = field(default_factory=list[Exchange])
    sessions: set[str] = field(default_factory=set[str])
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    def act(self, name: str) -> Callable[[Act], Act]:
        """Play this for a tool, a method, or a verb of HTTP."""

        def remember(act: Act) -> Act:
            self.acts[name] = act
            return act

        return remember

    def of(self, method: str) -> list[Exchange]:
        return [each for each in self.heard if each.frame.get("method") == method]

    async def arrival(self, method: str, count: int = 1) -> Exchange:
        """The request of that method or verb, once there were so many of them."""

        def arrived() -> list[Exchange]:
            return [e for e in self.heard if method in (e.frame.get("method"), e.verb)]

        async with asyncio.timeout(SECONDS), self._arrived:
            await self._arrived.wait_for(lambda: len(arrived()) >= count)
        return arrived()[count - 1]

    async def play(self, exchange: Exchange) -> None:
        self.heard.append(exchange)
        async with self._arrived:
            self._arrived.notify_all()
        frame = exchange.frame
        method = frame.get("method", exchange.verb)
        name = frame.get("params", {}).get("name") if method == "tools/call" else None
        act = self.acts.get(name) if name else None
        await (act or self.acts.get(method) or self._usual)(exchange)

    async def _usual(self, exchange: Exchange) -> None:
        method = exchange.frame.get("method")
        if exchange.verb != "POST":
            await exchange.respond(200 if exchange.verb == "DELETE" else 405)
        elif method == "initialize":
            session = f"session-{next(self._numbers)}"
            self.sessions.add(session)
            wanted = exchange.frame["params"]["protocolVersion"]
            await exchange.result(hello(wanted), mcp_session_id=session)
        elif exchange.id is None:
            await exchange.respond(202)
        elif method == "server/discover" and self.modern:
            versions: Frame = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            await exchange.result({**versions, "resultType": "complete"})
        elif method == "tools/list":
            await exchange.result({"tools": []})
        elif method == "tools/call":
            await exchange.text("done")
        else:
            unknown = {"code": -32601, "message": "Method not found"}
            await exchange.respond(200, encode({"id": exchange.id, "error": unknown}))


def hello(version: str) -> Frame:
    return {
        "protocolVersion": version,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "scripted", "version": "1"},
    }


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Exchange | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        verb, path, _ = first.split(" ")
        found = [line.partition(":") for line in lines if line]
        pairs = [(name.lower(), value.strip()) for name, _, value in found]
        body = await reader.readexactly(int(dict(pairs).get("content-length", "0")))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return Exchange(verb, path, pairs, body, reader, writer)


@asynccontextmanager
async def scripted(*, modern: bool = False, path: str = "/mcp") -> AsyncGenerator[Upstream]:
    """Run a scripted server on loopback."""
    upstream = Upstream(modern=modern)
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                while exchange := await _read(reader, writer):
                    await upstream.play(exchange)
                    if not exchange.kept:
                        break
            writer.close()
        finally:
            if not writer.is_closing():
                writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        task = asyncio.ensure_future(converse(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1 << 24)
    upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{path}"
    try:
        yield upstream
    finally:
        server.close()
        # A connection that was accepted just now has its writer in a later turn of the loop.
        await asyncio.sleep(0)
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A task that is cancelled before its first step closes nothing, and a closed connection
        # whose peer does not read stays open until everything is sent.
        for writer in writers:
            # asyncio's own transport trips over an abort after it has flushed and closed.
            with suppress(AttributeError):
                writer.transport.abort()
        async with asyncio.timeout(10):
            await server.wait_closed()
