"""A client of the old transport's two doors without a socket, and a desk that waits to be told."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from comity.kernel.call import Call
from comity.kernel.outbox import Outbox
from comity.kernel.sessions import Session, Sessions
from comity.kernel.underway import Underway
from comity.ports import Headers
from comity.surfaces.doorway import Doorway, Message
from comity.surfaces.gateway import Gateway
from comity.surfaces.mcp_sse import McpSse
from comity.wire import jsonrpc
from comity.wire.jsonrpc import Frame, Limits
from comity.wire.parties import Actor
from comity.wire.sse import Event, EventParser

HOST = (b"host", b"localhost:2664")
JSON = (b"content-type", b"application/json")
LIMITS = Limits(frame_bytes=2000)
HELLO: dict[str, Any] = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}

type HeaderPair = tuple[bytes, bytes]


class WaitingDesk:
    """Answers the handshake; keeps every other call until the test does something with it."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[Call] = asyncio.Queue()
        self.heard: list[Frame] = []
        self._underway = Underway(asyncio.get_running_loop().time, 600, 600)

    async def ask(self, session: Session, frame: Frame, outbox: Outbox) -> Call:
        call = self._underway.begin(frame, outbox, session)
        if frame.method == "initialize":
            session.greeted = True
            call.answered(jsonrpc.result(call.asker_id, {"hello": True}))
        else:
            self.calls.put_nowait(call)
        return call

    def opens_to(self, actor: Actor) -> bool:
        return True

    def hear(self, session: Session, frame: Frame) -> None:
        self.heard.append(frame)
        session.hear(frame)

    async def ask_modern(self, frame: Frame, outbox: Outbox, headers: Headers) -> Call:
        raise AssertionError("the old transport knows only the handshake era")


class Stream:
    """What one GET brought, as it comes; `leave` hangs up, `stall` reads no more."""

    def __init__(self, app: Gateway, path: str, *headers: HeaderPair) -> None:
        self.status = 0
        self.raw = b""
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()
        self._parser = EventParser()
        self._reads = asyncio.Event()
        self._reads.set()
        self._left = asyncio.Event()
        scope = _scope("GET", path, (HOST, *headers))
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def event(self) -> Event:
        event = await self._events.get()
        assert event is not None
        return event

    async def message(self) -> Any:
        event = await self.event()
        assert event.event == "message"
        return json.loads(event.data)

    async def ended(self) -> None:
        while await self._events.get() is not None:
            pass

    def leave(self) -> None:
        self._left.set()

    def stall(self) -> None:
        self._reads.clear()

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self._reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.raw += message["body"]
        for event in self._parser.feed(message["body"]):
            self._events.put_nowait(event)
        if not message.get("more_body"):
            self._events.put_nowait(None)


class OldDoors:
    """The two doors of all servers, on a real gateway and real sessions."""

    def __init__(self) -> None:
        self.desk = WaitingDesk()
        self.sessions = Sessions(asyncio.get_running_loop().time, 100, 600)
        self.app = Gateway(
            Doorway(),
            {
                **McpSse("", "", self.desk, self.sessions, LIMITS).doors,
                **McpSse("a", "/servers/a", self.desk, self.sessions, LIMITS).doors,
            },
        )
        self.streams: list[Stream] = []
        self._asking: list[asyncio.Future[None]] = []

    def get(self, path: str = "/sse", *headers: HeaderPair) -> Stream:
        self.streams.append(Stream(self.app, path, *headers))
        return self.streams[-1]

    async def connect(self, path: str = "/sse") -> tuple[Stream, str]:
        """A stream after the handshake, and where to post."""
        stream = self.get(path)
        endpoint = (await stream.event()).data.decode()
        assert await self.post(endpoint, HELLO) == 202
        assert (await stream.message())["result"] == {"hello": True}
        return stream, endpoint

    async def post(self, path: str, message: object, *headers: HeaderPair) -> int:
        """The HTTP status that a message is answered with."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        return await self.request("POST", path, body, *(headers or (HOST, JSON)))

    async def request(self, method: str, path: str, body: bytes, *headers: HeaderPair) -> int:
        status: list[int] = []
        answered = asyncio.Event()

        async def receive() -> Message:
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                status.append(message["status"])
            else:
                answered.set()

        length = (b"content-length", str(len(body)).encode())
        scope = _scope(method, path, (*headers, length))
        self._asking.append(asyncio.ensure_future(self.app(scope, receive, send)))
        await answered.wait()
        assert len(status) == 1
        return status[0]


def _scope(method: str, path: str, headers: tuple[HeaderPair, ...]) -> Message:
    path, _, query = path.partition("?")
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": query.encode(),
        "headers": list(headers),
    }


@asynccontextmanager
async def old_doors() -> AsyncGenerator[OldDoors]:
    doors = OldDoors()
    try:
        async with asyncio.timeout(20):
            yield doors
    finally:
        for stream in doors.streams:
            stream.leave()
        await asyncio.gather(*(stream.task for stream in doors.streams))
