"""A handshake client written by hand, over HTTP and over stdio: it drops nothing it is sent.

No SDK stands in between: frames are plain dictionaries, and every one that arrived is kept, on the
exchange it came with or, for the standalone stream, in a queue.
"""

import asyncio
import io
import itertools
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp

type Frame = dict[str, Any]
type Answer = Callable[[Frame], Frame]
type Meanwhile = Callable[[Frame], Awaitable[None]]

SECONDS = 60.0
VERSION = "2025-11-25"
NOTHING: Any = object()


@dataclass
class Exchange:
    """One request and all that came on its stream, the response last."""

    frames: list[Frame] = field(default_factory=list[Frame])

    @property
    def response(self) -> Frame:
        return self.frames[-1]

    @property
    def result(self) -> Frame:
        assert "result" in self.response, self.response
        return self.response["result"]

    def said(self, method: str) -> list[Frame]:
        return [frame for frame in self.frames if frame.get("method") == method]


class HandClient(Protocol):
    """What both transports can do. A server's requests are answered by `answer`, if it says any."""

    answer: Answer
    standalone: asyncio.Queue[Frame]

    async def listen(self) -> None: ...
    async def notify(self, method: str, params: object = NOTHING) -> None: ...
    async def request(
        self,
        method: str,
        params: object = NOTHING,
        *,
        named: object = None,
        meanwhile: Meanwhile | None = None,
    ) -> Exchange: ...


type Dial = Callable[[], AbstractAsyncContextManager[HandClient]]


def refuse(frame: Frame) -> Frame:
    return {"error": {"code": -32601, "message": f"Method not found: {frame['method']}"}}


async def initialize(client: HandClient, capabilities: Frame, **extra: object) -> Frame:
    """Shake hands, and return the whole result of `initialize`."""
    who = {"name": "hand", "version": "1"}
    params = {"protocolVersion": VERSION, "capabilities": capabilities, "clientInfo": who, **extra}
    exchange = await client.request("initialize", params)
    await client.notify("notifications/initialized")
    return exchange.result


class HttpClient:
    """Streamable HTTP: a POST for every frame, a stream for every request."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self._names = itertools.count(1)
        self._listening: asyncio.Task[None] | None = None
        self.session: dict[str, str] = {}
        self.answer: Answer = refuse
        self.standalone: asyncio.Queue[Frame] = asyncio.Queue()

    async def request(
        self,
        method: str,
        params: object = NOTHING,
        *,
        named: object = None,
        meanwhile: Meanwhile | None = None,
    ) -> Exchange:
        frame = _frame(method, params, next(self._names) if named is None else named)
        exchange = Exchange()
        async with asyncio.timeout(SECONDS), self.post(frame) as reply:
            if session := reply.headers.get("mcp-session-id"):
                self.session = {"mcp-session-id": session, "mcp-protocol-version": VERSION}
            async for said in frames_of(reply):
                exchange.frames.append(said)
                if "method" not in said:
                    return exchange
                await self._attend(said, meanwhile)
        raise ConnectionError(f"the stream of {method} ended without a response")

    def post(self, frame: Frame) -> "AbstractAsyncContextManager[aiohttp.ClientResponse]":
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }
        body = io.BytesIO(json.dumps(frame).encode())
        return self._http.post(self._url, data=body, headers={**headers, **self.session})

    async def notify(self, method: str, params: object = NOTHING) -> None:
        await self._hand_over(_frame(method, params))

    async def listen(self) -> None:
        """Open the standalone stream; returns when the server has opened it too."""
        opened = asyncio.Event()
        self._listening = asyncio.ensure_future(self._listen(opened))
        async with asyncio.timeout(SECONDS):
            await opened.wait()

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        if self.session:
            async with self._http.delete(self._url, headers=self.session):
                pass

    async def _listen(self, opened: asyncio.Event) -> None:
        headers = {"accept": "text/event-stream", **self.session}
        async with self._http.get(self._url, headers=headers) as reply:
            assert reply.status == 200, reply.status
            opened.set()
            async for said in frames_of(reply):
                self.standalone.put_nowait(said)
                await self._attend(said, None)

    async def _attend(self, said: Frame, meanwhile: Meanwhile | None) -> None:
        if "id" in said:
            if answer := self.answer(said):
                await self._hand_over({"jsonrpc": "2.0", "id": said["id"], **answer})
        elif meanwhile is not None:
            await meanwhile(said)

    async def _hand_over(self, frame: Frame) -> None:
        async with asyncio.timeout(SECONDS), self.post(frame) as reply:
            assert reply.status == 202, (reply.status, await reply.text())


class StdioClient:
    """Lines on pipes. What comes while a call is open is taken for a part of that call."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._names = itertools.count(1)
        self._open: dict[str, asyncio.Queue[Frame]] = {}
        self.answer: Answer = refuse
        self.standalone: asyncio.Queue[Frame] = asyncio.Queue()

    async def request(
        self,
        method: str,
        params: object = NOTHING,
        *,
        named: object = None,
        meanwhile: Meanwhile | None = None,
    ) -> Exchange:
        name = next(self._names) if named is None else named
        arriving = self._open[json.dumps(name)] = asyncio.Queue()
        exchange = Exchange()
        async with asyncio.timeout(SECONDS):
            self._write(_frame(method, params, name))
            while "method" in (said := await arriving.get()):
                exchange.frames.append(said)
                if "id" not in said and meanwhile is not None:
                    await meanwhile(said)
        exchange.frames.append(said)
        return exchange

    async def notify(self, method: str, params: object = NOTHING) -> None:
        self._write(_frame(method, params))

    async def listen(self) -> None:
        """There is nothing to open: a pipe is always open in both directions."""

    async def read(self) -> None:
        while line := await self._reader.readline():
            said: Frame = json.loads(line)
            if "method" not in said:
                # What follows the response is no part of this call, even while its reader is busy.
                self._open.pop(json.dumps(said["id"])).put_nowait(said)
                continue
            if "id" in said and (answer := self.answer(said)):
                self._write({"jsonrpc": "2.0", "id": said["id"], **answer})
            oldest = next(iter(self._open.values()), self.standalone)
            oldest.put_nowait(said)

    def _write(self, frame: Frame) -> None:
        self._writer.write(json.dumps(frame).encode() + b"\n")


@asynccontextmanager
async def over_http(
    url: str, headers: Mapping[str, str] | None = None
) -> AsyncGenerator[HttpClient]:
    # The standalone stream may be silent for longer than any request may last.
    forever = aiohttp.ClientTimeout(total=None, sock_connect=SECONDS)
    async with aiohttp.ClientSession(timeout=forever, headers=headers) as http:
        client = HttpClient(http, url)
        try:
            yield client
        finally:
            await client.close()


@asynccontextmanager
async def over_stdio(command: list[str]) -> AsyncGenerator[StdioClient]:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**26
    )
    assert process.stdin is not None
    assert process.stdout is not None
    client = StdioClient(process.stdout, process.stdin)
    reading = asyncio.ensure_future(client.read())
    try:
        yield client
    finally:
        reading.cancel()
        await asyncio.wait({reading})
        process.stdin.close()
        try:
            async with asyncio.timeout(SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def frames_of(reply: aiohttp.ClientResponse) -> AsyncIterator[Frame]:
    """The frames of a reply, whether it is one JSON document or a stream of events."""
    if reply.content_type != "text/event-stream":
        yield await reply.json(content_type=None)
        return
    rest = b""
    async for chunk in reply.content.iter_any():
        *events, rest = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            # An event with an id and no data only marks where to resume.
            if data := _data(event.decode()):
                yield json.loads(data)


def _data(event: str) -> str:
    lines = [line for line in event.split("\n") if line.startswith("data:")]
    return "\n".join(line.removeprefix("data:").removeprefix(" ") for line in lines)


def _frame(method: str, params: object, name: object = NOTHING) -> Frame:
    frame: Frame = {"jsonrpc": "2.0", "method": method}
    if name is not NOTHING:
        frame["id"] = name
    if params is not NOTHING:
        frame["params"] = params
    return frame
