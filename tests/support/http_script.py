"""A scripted HTTP server on loopback, a reader that remembers, and both event loops to run on."""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any

import pytest
import uvloop

from comity.errors import Unavailable
from comity.http.client.dial import HttpOrigin, HttpProxy, request_head
from comity.http.client.pool import HttpConnectionPool, PoolLimits

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
BOUND_SECONDS = 20

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def on_both_loops(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a scenario: on each loop, bounded in time, with no error left unseen."""

    def test(loop_name: str, **given: Any) -> None:
        unseen: list[dict[str, Any]] = []

        async def bounded() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, seen: unseen.append(seen))
            async with asyncio.timeout(BOUND_SECONDS):
                await scenario(**given)

        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            runner.run(bounded())
        assert unseen == []

    signature = inspect.signature(scenario)
    loop_name = inspect.Parameter("loop_name", inspect.Parameter.KEYWORD_ONLY)
    parameters = [*signature.parameters.values(), loop_name]
    vars(test).update(vars(scenario))
    test.__name__, test.__doc__ = scenario.__name__, scenario.__doc__
    vars(test)["__signature__"] = signature.replace(parameters=parameters, return_annotation=None)
    return pytest.mark.parametrize("loop_name", LOOPS)(test)


class Recorder:
    """A reader that keeps everything it hears, and whether it heard too much."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""
        self.chunks = 0
        self.endings: list[str] = []
        self.error: Unavailable | None = None
        self.over = asyncio.Event()
        self._heard = asyncio.Event()

    def started(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert not self.status
        assert not self.endings
        self.status, self.headers = status, headers
        self._heard.set()

    def data(self, chunk: bytes) -> None:
        assert self.status
        assert not self.endings
        self.body += chunk
        self.chunks += 1

    def ended(self) -> None:
        self.endings.append("ended")
        self.over.set()

    def failed(self, error: Unavailable) -> None:
        self.endings.append("failed")
        self.error = error
        self.over.set()

    async def start(self) -> None:
        await self._heard.wait()

    async def response(self) -> tuple[int, bytes]:
        await self.over.wait()
        assert self.endings == ["ended"], self.error
        return self.status, self.body

    async def failure(self) -> str:
        await self.over.wait()
        assert self.endings == ["failed"]
        return str(self.error)


@dataclass
class Visit:
    """One connection that the server accepted."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int

    async def request(self) -> bytes:
        """The next request whole, or nothing if the client hung up instead."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return head + await self.reader.readexactly(length)

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def left(self) -> None:
        """Wait until the client has hung up."""
        with suppress(ConnectionError):
            while await self.reader.read(65536):
                pass


type Script = Callable[[Visit], Awaitable[None]]


@dataclass
class Server:
    origin: HttpOrigin
    visits: list[Visit] = field(default_factory=list[Visit])


@asynccontextmanager
async def serving(script: Script, tls: SSLContext | None = None) -> AsyncGenerator[Server]:
    """Run `script` once for each connection."""
    server = Server(HttpOrigin("http", "127.0.0.1", 0))
    scripts: set[asyncio.Task[None]] = set()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visit = Visit(reader, writer, len(server.visits) + 1)
        server.visits.append(visit)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await script(visit)
        writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(play(reader, writer))
        scripts.add(task)
        task.add_done_callback(scripts.discard)

    listening = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls, limit=1 << 20)
    port = listening.sockets[0].getsockname()[1]
    server.origin = (
        HttpOrigin("https", "localhost", port) if tls else HttpOrigin("http", "127.0.0.1", port)
    )
    try:
        yield server
    finally:
        listening.close()
        for task in scripts:
            task.cancel()
        for visit in server.visits:
            # asyncio's own transport trips over an abort after it has flushed and closed.
            with suppress(AttributeError):
                visit.writer.transport.abort()
        await asyncio.gather(*scripts, return_exceptions=True)


@asynccontextmanager
async def pooled(
    limits: PoolLimits | None = None, tls: SSLContext | None = None, proxy: HttpProxy | None = None
) -> AsyncGenerator[HttpConnectionPool]:
    pool = HttpConnectionPool(
        tls, limits or PoolLimits(), None if proxy is None else lambda _: proxy
    )
    try:
        yield pool
    finally:
        await pool.close()


def post(
    pool: HttpConnectionPool, origin: HttpOrigin, body: bytes = b"{}", may_repeat: bool = False
) -> Recorder:
    recorder = Recorder()
    pool.send(
        origin, request_head("POST", "/mcp", origin, []), body, recorder, may_repeat=may_repeat
    )
    return recorder


async def answer_always(visit: Visit) -> None:
    """The script of a server in good order: it echoes every body."""
    while request := await visit.request():
        body = request.partition(b"\r\n\r\n")[2]
        await visit.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
