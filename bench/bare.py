"""The yardstick: the fastest straightforward relay in Python, without any feature of a gateway.

uvicorn (httptools, uvloop) with raw ASGI at the door; msgspec reads the frame and leaves `params`
and `result` raw; ids are minted upstream and restored downstream; upstream is a pool of raw
keep-alive connections, or the pipes of one child. Nothing is limited, timed, retried or checked.
"""

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec

from bench import doorstep

type Headers = list[tuple[bytes, bytes]]
type Reply = tuple[int, Headers, bytes]
_MCP = {b"mcp-session-id", b"mcp-protocol-version", b"mcp-method", b"mcp-name"}
_PASSED_UP = {b"content-type", b"accept", *_MCP}
_JSON = (b"content-type", b"application/json")


class Frame(msgspec.Struct):
    jsonrpc: str
    id: int | str | msgspec.UnsetType | None = msgspec.UNSET
    method: str | msgspec.UnsetType = msgspec.UNSET
    params: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    error: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


decode = msgspec.json.Decoder(Frame).decode
encode = msgspec.json.Encoder().encode
mint = itertools.count(1).__next__


class Connection(asyncio.Protocol):
    """One keep-alive connection, which carries one request at a time."""

    closed = False

    def connection_made(self, transport: Any) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True

    def request(self, data: bytes) -> asyncio.Future[Reply]:
        self.headers: Headers = []
        self.body = b""
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self.reply

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body = self.body + body if self.body else body

    def on_message_complete(self) -> None:
        self.reply.set_result((self.parser.get_status_code(), self.headers, self.body))


class HttpUpstream:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.address = str(parts.hostname), parts.port or 80
        self.start = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\n".encode()
        self.idle: list[Connection] = []

    async def relay(self, frame: Frame, headers: Headers) -> Reply:
        client_id = frame.id
        if client_id is not msgspec.UNSET:
            frame.id = mint()
        passed = [b"%b: %b\r\n" % header for header in headers if header[0] in _PASSED_UP]
        body = encode(frame)
        connection = self.idle.pop() if self.idle else await self.connect()
        if connection.closed:
            connection = await self.connect()
        parts = (self.start, *passed, b"content-length: %d\r\n\r\n" % len(body), body)
        status, received, content = await connection.request(b"".join(parts))
        self.idle.append(connection)
        kept = [header for header in received if header[0] == b"mcp-session-id"]
        if not content:
            return status, kept, b""
        answer = decode(content)
        answer.id = client_id
        return status, [_JSON, *kept], encode(answer)

    async def connect(self) -> Connection:
        return (await asyncio.get_running_loop().create_connection(Connection, *self.address))[1]


class StdioUpstream(asyncio.SubprocessProtocol):
    def __init__(self, command: list[str]) -> None:
        self.open: dict[Any, asyncio.Future[Frame]] = {}
        self.rest = b""
        loop = asyncio.get_running_loop()
        self.child = loop.create_task(loop.subprocess_exec(lambda: self, *command, stderr=None))

    async def relay(self, frame: Frame, headers: Headers) -> Reply:
        pipe: Any = (await self.child)[0].get_pipe_transport(0)
        client_id = frame.id
        if client_id is msgspec.UNSET:
            pipe.write(encode(frame) + b"\n")
            return 202, [], b""
        frame.id = mint()
        future = self.open[frame.id] = asyncio.get_running_loop().create_future()
        pipe.write(encode(frame) + b"\n")
        answer = await future
        answer.id = client_id
        session = [(b"mcp-session-id", b"bare")] if frame.method == "initialize" else []
        return 200, [_JSON, *session], encode(answer)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for answer in map(decode, lines):
            if (future := self.open.pop(answer.id, None)) is not None:
                future.set_result(answer)


def application(target: list[str]) -> Callable[..., Awaitable[None]]:
    upstream = HttpUpstream(target[0]) if "://" in target[0] else StdioUpstream(target)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        event = await receive()
        body = event["body"]
        while event["more_body"]:
            event = await receive()
            body += event["body"]
        status, headers, content = await upstream.relay(decode(body), scope["headers"])
        headers.append((b"content-length", b"%d" % len(content)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    return app


if __name__ == "__main__":
    doorstep.run(lambda: application(sys.argv[1:]), "bare")
