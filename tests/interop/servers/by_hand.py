"""A server's two transports, written by hand: lines on stdio, and streamable HTTP.

No SDK stands in between, so what a test sends is exactly what is on the wire. Like the SDK's, this
HTTP transport loses what is pushed while no GET stream is open, without a word.
"""

import asyncio
import json
import sys
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

type Frame = dict[str, Any]
type Send = Callable[[Frame, object], None]
type Received = Callable[["Conversation", Frame], Awaitable[None]]
type Message = dict[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Reply = Callable[[Message], Awaitable[None]]

STANDALONE = object()
HELD_OPEN = "mcpl/listen"
"""The one request of the modern era that is never answered here: its stream is the way back."""

LINE_LIMIT = 64 * 1024 * 1024


class Conversation:
    """What one client says, and the ways to say something back."""

    def __init__(self, send: Send, received: Received) -> None:
        self._send = send
        self._received = received
        self._asked: dict[str, asyncio.Future[Frame]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.memory: dict[str, Any] = {}

    def take(self, frame: Frame) -> None:
        if "method" not in frame:
            waiting = self._asked.get(_key(frame.get("id")))
            if waiting is not None and not waiting.done():
                waiting.set_result(frame)
            return
        task = asyncio.ensure_future(self._received(self, frame))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def send(self, frame: Frame, during: object = STANDALONE) -> None:
        self._send({"jsonrpc": "2.0", **frame}, during)

    def reply(self, request: Frame, result: object) -> None:
        self.send({"id": request["id"], "result": result}, request["id"])

    def fail(self, request: Frame, error: object) -> None:
        self.send({"id": request["id"], "error": error}, request["id"])

    def tell(self, method: str, params: object, during: object = STANDALONE) -> None:
        self.send({"method": method, "params": params}, during)

    async def ask(
        self, method: str, params: object, during: object = STANDALONE, asked_as: object = None
    ) -> Frame:
        """Send a request and wait for its response, which is returned as it came."""
        name = uuid.uuid4().hex if asked_as is None else asked_as
        waiting = asyncio.get_running_loop().create_future()
        self._asked[_key(name)] = waiting
        self.send({"id": name, "method": method, "params": params}, during)
        return await waiting


def serve(received: Received) -> None:
    """Serve stdio, or HTTP when a port is given; `--json` answers without streams."""
    if len(sys.argv) == 1:
        asyncio.run(_serve_stdio(received))
        return
    app = HttpDoor(received, plain_json="--json" in sys.argv)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), lifespan="off", log_level="warning")


async def _serve_stdio(received: Received) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=LINE_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    def send(frame: Frame, _during: object) -> None:
        sys.stdout.buffer.write(json.dumps(frame).encode() + b"\n")
        sys.stdout.buffer.flush()

    conversation = Conversation(send, received)
    while line := await reader.readline():
        conversation.take(json.loads(line))


class HttpSession:
    """The streams of one session: one for each open call, and the standalone one."""

    def __init__(self, received: Received) -> None:
        self.conversation = Conversation(self._send, received)
        self.calls: dict[str, asyncio.Queue[Frame]] = {}
        self.standalone: asyncio.Queue[Frame] | None = None

    def _send(self, frame: Frame, during: object) -> None:
        stream = self.standalone if during is STANDALONE else self.calls.get(_key(during))
        if stream is not None:
            stream.put_nowait(frame)


class HttpDoor:
    """Streamable HTTP as a raw ASGI application, for both eras."""

    def __init__(self, received: Received, *, plain_json: bool) -> None:
        self._received = received
        self._plain_json = plain_json
        self._sessions: dict[str, HttpSession] = {}

    async def __call__(self, scope: Message, receive: Receive, send: Reply) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if headers.get("mcp-protocol-version", "").startswith("2026"):
            await self._post(HttpSession(self._received), {}, receive, send, as_json=True)
            return
        name = headers.get("mcp-session-id") or uuid.uuid4().hex
        if "mcp-session-id" not in headers and scope["method"] == "POST":
            self._sessions[name] = HttpSession(self._received)
        session = self._sessions.get(name)
        if session is None:
            await _answer(send, 404, {}, b"")
        elif scope["method"] == "POST":
            known = {"mcp-session-id": name}
            await self._post(session, known, receive, send, as_json=self._plain_json)
        elif scope["method"] == "GET":
            await _stream_standalone(session, receive, send)
        else:
            del self._sessions[name]
            await _answer(send, 200, {}, b"")

    async def _post(
        self,
        session: HttpSession,
        headers: dict[str, str],
        receive: Receive,
        send: Reply,
        *,
        as_json: bool,
    ) -> None:
        frame = json.loads(await _body(receive))
        if "id" not in frame or "method" not in frame:
            session.conversation.take(frame)
            await _answer(send, 202, headers, b"")
            return
        stream = session.calls[_key(frame["id"])] = asyncio.Queue()
        session.conversation.take(frame)
        if as_json and frame["method"] != HELD_OPEN:
            said = await _until_response(stream)
            await _answer(send, 200, headers, json.dumps(said).encode(), "application/json")
            return
        await _start(send, 200, {**headers, "content-type": "text/event-stream"})
        while True:
            said = await stream.get()
            await _event(send, said)
            if "method" not in said:
                break
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _stream_standalone(session: HttpSession, receive: Receive, send: Reply) -> None:
    stream = session.standalone = asyncio.Queue()
    await _start(send, 200, {"content-type": "text/event-stream"})
    # Headers alone may wait in a buffer; the client has to know that the stream is open.
    await send({"type": "http.response.body", "body": b": open\n\n", "more_body": True})
    await receive()
    gone = asyncio.ensure_future(receive())
    while not gone.done():
        said = asyncio.ensure_future(stream.get())
        await asyncio.wait({gone, said}, return_when=asyncio.FIRST_COMPLETED)
        if said.done():
            await _event(send, said.result())
        else:
            said.cancel()
    if session.standalone is stream:
        session.standalone = None


async def _until_response(stream: asyncio.Queue[Frame]) -> Frame:
    while "method" in (said := await stream.get()):
        pass
    return said


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _event(send: Reply, frame: Frame) -> None:
    body = b"event: message\ndata: " + json.dumps(frame).encode() + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _start(send: Reply, status: int, headers: dict[str, str]) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def _answer(
    send: Reply, status: int, headers: dict[str, str], body: bytes, kind: str = "text/plain"
) -> None:
    length = {"content-length": str(len(body)), "content-type": kind}
    await _start(send, status, {**headers, **length})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _key(name: object) -> str:
    # The ids "7" and 7 are different names.
    return json.dumps(name)
