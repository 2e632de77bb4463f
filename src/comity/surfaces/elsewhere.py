"""Requests of sessions that are at another node: carried there whole, and answered from there.

Rule 1: a client shows its credentials to this node alone, and they go no further. The other node
        is told which actor they proved, and looks whether that still counts there.
Rule 2: how the answer is to be read (Origin) is between the client and this node alone.
Rule 3: a client that goes away is gone there as well, and as it would be there: no call of its
        session ends by that.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, Self
from urllib.parse import parse_qs, urlencode

from comity.surfaces import doorway
from comity.surfaces.auth_member import AuthMember
from comity.surfaces.doorway import Message, Receive, Scope, Send
from comity.surfaces.gateway import ACTOR, PROVED
from comity.surfaces.reception import UNSHOWN
from comity.wire import carried, jsonrpc
from comity.wire.carried import RequestHead, ResponseHead
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.jsonrpc import Frame, Limits
from comity.wire.mcp import PARAM_HEADER_PREFIX, SESSION_HEADER
from comity.wire.parties import NOBODY, Actor

_CARRIED: Final = frozenset(
    b"host accept accept-language content-type user-agent last-event-id traceparent tracestate "
    b"mcp-protocol-version mcp-session-id mcp-method mcp-name".split()
)
"""All that an MCP endpoint reads, beside arguments that are repeated in headers."""
_ENDPOINTS: Final = re.compile(r"(?:/servers/[^/]+)?/(mcp|messages)")
"""Where there are sessions."""
_IN_QUERY: Final = "session_id"
_STREAM: Final = b"text/event-stream"

type App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Answers(Protocol):
    """What another node answers: the head, then the pieces of the body."""

    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> bytes: ...
    def close(self) -> None: ...


class Reply(Protocol):
    async def send(self, data: bytes) -> None: ...


class Homes(Protocol):
    """Who knows where sessions are."""

    def home_of(self, session_id: str) -> str | None: ...
    async def ask(self, node: str, head: bytes, body: bytes) -> Answers: ...


class Elsewhere:
    """Takes what is for another node out of the way of the doors."""

    def __init__(self, homes: Homes, limits: Limits, auth: AuthMember | None = None) -> None:
        self._homes = homes
        self._limits = limits
        self._auth = auth or AuthMember()

    async def take(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> bool:
        named = _session_id(scope, headers)
        node = None if named is None else self._homes.home_of(named)
        if named is None or node is None:
            return False
        body, actor = b"", scope.get(ACTOR, NOBODY)
        if scope["method"] == "POST":
            body = await doorway.read_body(receive, headers, self._limits.frame_bytes)
            body, actor = await self._without_credentials(body, actor, scope["path"])
        answers = await self._homes.ask(node, _head_of(scope, actor, named), body)
        gone = asyncio.ensure_future(_until_gone(receive))
        gone.add_done_callback(lambda _: answers.close())
        try:
            await _pass_on(answers, send)
        finally:
            gone.cancel()
            answers.close()
        return True

    async def _without_credentials(
        self, body: bytes, actor: Actor, path: str
    ) -> tuple[bytes, Actor]:
        """The message without its `auth`, and who it came from. Raises as its endpoint would."""
        frame = jsonrpc.decode(body, self._limits)
        if type(frame) is Frame and actor is not UNSHOWN:
            return body, actor
        frame, actor = await self._auth.take(frame, actor, path)
        return jsonrpc.encode(frame), actor


async def _pass_on(answers: Answers, send: Send) -> None:
    """Whatever goes wrong before the answer has begun is raised; later, it ends."""
    try:
        head = carried.response_head(await anext(answers))
    except StopAsyncIteration:
        raise Unavailable("the other node gave no answer") from None
    start = {"type": "http.response.start", "status": head.status, "headers": head.headers}
    await send(start)
    is_stream = dict(head.headers).get(b"content-type", b"").startswith(_STREAM)
    if is_stream:
        # So that its head goes out before there is anything to say.
        await send({"type": "http.response.body", "body": b"", "more_body": True})
    try:
        async for piece in answers:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except Unavailable:
        if not is_stream:
            return
    await send({"type": "http.response.body", "body": b""})


class FromElsewhere:
    """Answers what came to other nodes, at the doors of this one."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._running: set[asyncio.Future[None]] = set()

    async def answer(self, head: bytes, body: bytes, reply: Reply) -> None:
        """Whoever has gone is gone as from a connection: what it began goes on."""
        request = _Carried(carried.request_head(head), body, reply)
        running = asyncio.ensure_future(self._app(request.scope, request.receive, request.send))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            await asyncio.shield(running)
        finally:
            request.gone.set()


class _Carried:
    """A request from another node, as an application sees one."""

    def __init__(self, head: RequestHead, body: bytes, reply: Reply) -> None:
        self.gone = asyncio.Event()
        self.scope: Scope = {
            "type": "http",
            "http_version": "1.1",
            "method": head.method,
            "scheme": head.scheme,
            "path": head.path,
            "query_string": head.query,
            "headers": head.headers,
            "client": head.client,
            PROVED: head.actor,
        }
        self._body: bytes | None = body
        self._reply = reply

    async def receive(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """What is said to one who has gone is said to nobody, as on a connection."""
        if self.gone.is_set():
            return
        with contextlib.suppress(Unavailable):
            if message["type"] == "http.response.start":
                head = ResponseHead(message["status"], list(message["headers"]))
                await self._reply.send(carried.encode(head))
            elif message.get("body"):
                await self._reply.send(message["body"])


def _session_id(scope: Scope, headers: dict[bytes, bytes]) -> str | None:
    endpoint = _ENDPOINTS.fullmatch(scope["path"])
    if endpoint is None:
        return None
    if endpoint[1] == "mcp":
        named = headers.get(SESSION_HEADER)
        return None if named is None else named.strip().decode("latin-1")
    try:
        asked = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=8)
    except ValueError:
        raise MalformedMessage("too much is asked at once") from None
    found = asked.get(_IN_QUERY, [])
    return found[0] if len(found) == 1 else None


def _head_of(scope: Scope, actor: Actor, session_id: str) -> bytes:
    """All that the other node needs. A client may put credentials in any other header or query."""
    kept = [
        (name, value)
        for name, value in scope["headers"]
        if name in _CARRIED or name.startswith(PARAM_HEADER_PREFIX)
    ]
    client = scope.get("client")
    is_named = scope["path"].endswith("/mcp")
    query = b"" if is_named else urlencode({_IN_QUERY: session_id}).encode()
    return carried.encode(
        RequestHead(
            scope["method"],
            scope["path"],
            query,
            kept,
            None if client is None else (client[0], client[1]),
            actor,
            scope.get("scheme", "http"),
        )
    )


async def _until_gone(receive: Receive) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
