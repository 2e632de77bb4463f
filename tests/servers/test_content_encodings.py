"""Answers with a content encoding are refused: the transports offer none and decode none."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from comity.errors import Unavailable
from comity.http.client.pool import HttpConnectionPool
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import FrameLimits
from comity.mcp.protocol import Era
from comity.servers.transports.http import HttpTransportFactory
from comity.servers.transports.sse import SseTransportFactory
from tests.servers.hearer import Hearer
from tests.servers.old_server import ENDPOINT, Listener

pytestmark = pytest.mark.integration
ANSWER: Final = b'{"jsonrpc":"2.0","id":1,"result":{"content":[]}}'
CODINGS: Final = (b"br", b"zstd", b"gzip", b"deflate", b"BR", b"gzip, br", b"x-other", b"")
BODIES: Final = {
    "plain": ANSWER,
    "gzip": gzip.compress(ANSWER),
    "deflate": zlib.compress(ANSWER),
    "zstd frame": b"\x28\xb5\x2f\xfd\x20\x30" + ANSWER,
    "brotli stream": b"\x0b\x18\x80" + ANSWER + b"\x03",
}


@asynccontextmanager
async def answering(reply: bytes) -> AsyncGenerator[str]:
    """A server that gives this answer to every request."""
    tasks: set[asyncio.Task[object]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                _, _, rest = head.lower().partition(b"content-length:")
                await reader.readexactly(int(rest.split(b"\r\n")[0] or 0) if rest else 0)
                writer.write(reply)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def response(kind: bytes, body: bytes, *encodings: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"Content-Type: " + kind, b"Content-Length: %d" % len(body)]
    lines += [b"Content-Encoding: " + each for each in encodings]
    return b"\r\n".join((*lines, b"", body))


async def ask(reply: bytes) -> Hearer:
    async with answering(reply) as url, HttpConnectionPool() as pool:
        carrier = HttpTransportFactory(pool, url, {}, FrameLimits()).create_transport(Era.MODERN)
        hearer = Hearer()
        await carrier.open(hearer)
        try:
            frame = jsonrpc.make_request(1, "tools/call", {"name": "t"})
            carrier.send(frame, 1)
            await hearer.until(lambda: hearer.messages or hearer.endings)
        finally:
            await carrier.close()
        return hearer


@pytest.mark.parametrize("kind", [b"application/json", b"text/event-stream"])
async def test_an_encoded_answer_is_refused(kind: bytes) -> None:
    stream = kind == b"text/event-stream"
    for coding in CODINGS:
        for name, body in BODIES.items():
            sent = b"data: " + body + b"\n\n" if stream and name == "plain" else body
            hearer = await ask(response(kind, sent, coding))
            assert hearer.messages == [], (coding, name)
            assert "encoded" in hearer.endings[1], (coding, name)
    twice = await ask(response(kind, ANSWER, b"identity", b"br"))
    assert twice.messages == []


async def test_an_answer_that_says_it_is_not_encoded_is_read() -> None:
    for encodings in ((), (b"identity",), (b"Identity",)):
        hearer = await ask(response(b"application/json", ANSWER, *encodings))
        assert [stream for _, stream, _ in hearer.messages] == [1]


async def test_an_encoded_event_stream_of_an_old_server_is_not_opened() -> None:
    for coding in CODINGS:
        reply = response(b"text/event-stream", ENDPOINT, coding)
        async with answering(reply) as url, HttpConnectionPool() as pool:
            carrier = SseTransportFactory(pool, url, {}).create_transport(Era.HANDSHAKE)
            with pytest.raises(Unavailable, match="encoded"):
                await carrier.open(Listener())
            await carrier.close()
