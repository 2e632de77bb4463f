"""Forwards the requests of sessions at other nodes, and answers requests from other nodes.

Rule 1: only this node sees the client's credentials. The other node receives the proven actor and
checks whether that actor is still valid there.

Rule 2: only this node handles the Origin rules of the answer for the client.

Rule 3: a client's disconnect takes effect at the other node too, with the same meaning. It ends no
call of the session.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, Self
from urllib.parse import parse_qs, urlencode

from comity.cluster import streams
from comity.cluster.streams import ForwardedRequest, ForwardedResponse
from comity.errors import MalformedMessage, Unavailable
from comity.http import asgi
from comity.http.api import MAX_BODY_BYTES, refuse_other_sites
from comity.http.asgi import ACTOR, PROVED, UNSHOWN, Message, Receive, Scope, Send
from comity.identity.http_auth import AuthMember
from comity.mcp import jsonrpc
from comity.mcp.actors import ANONYMOUS, Actor
from comity.mcp.jsonrpc import Frame, FrameLimits
from comity.mcp.protocol import PARAM_HEADER_PREFIX, SESSION_HEADER

_FORWARDED_HEADERS: Final = frozenset(
    b"host accept accept-language content-type user-agent last-event-id traceparent tracestate "
    b"mcp-protocol-version mcp-session-id mcp-method mcp-name".split()
)
"""The headers that an MCP endpoint reads, apart from those that repeat arguments."""
_ENDPOINT_PATTERN: Final = re.compile(r"(?:/(?:servers|views)/[^/]+)?/(mcp|messages)")
"""The paths that have sessions."""
_JOB_PATTERN: Final = re.compile(r"/api/calls/([^/]+)(?:/cancel)?")
"""The paths of calls from the console. The id of a job names its node as that of a session does."""
_SESSION_QUERY_FIELD: Final = "session_id"
_EVENT_STREAM_TYPE: Final = b"text/event-stream"

type App = Callable[[Scope, Receive, Send], Awaitable[None]]


class NodeAnswerStream(Protocol):
    """The answer of another node: the head, then the parts of the body."""

    def __aiter__(self) -> Self: ...
    async def __anext__(self) -> bytes: ...
    def close(self) -> None: ...


class NodeReplyWriter(Protocol):
    """Sends the parts of an answer to the node that forwarded the request."""

    async def send(self, data: bytes) -> None: ...


class SessionLocator(Protocol):
    """Finds the node of a session and sends requests to it."""

    def node_of(self, session_id: str) -> str | None: ...
    async def forward_request(self, node: str, head: bytes, body: bytes) -> NodeAnswerStream: ...


class NodeRequestForwarder:
    """Forwards a request whose session is at another node, before the local endpoints see it."""

    def __init__(
        self, session_locator: SessionLocator, limits: FrameLimits, auth: AuthMember | None = None
    ) -> None:
        self._session_locator = session_locator
        self._limits = limits
        self._auth = auth or AuthMember()

    async def forward(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> bool:
        named = _session_id(scope, headers)
        node = None if named is None else self._session_locator.node_of(named)
        if named is None or node is None:
            return False
        body, actor = b"", scope.get(ACTOR, ANONYMOUS)
        if _JOB_PATTERN.fullmatch(scope["path"]):
            if scope["method"] != "GET":
                refuse_other_sites(headers)
            body = await asgi.read_body(receive, headers, MAX_BODY_BYTES)
        elif scope["method"] == "POST":
            body = await asgi.read_body(receive, headers, self._limits.frame_bytes)
            body, actor = await self._without_credentials(body, actor, scope["path"])
        answers = await self._session_locator.forward_request(
            node, _encode_head(scope, actor, named), body
        )
        gone = asyncio.ensure_future(_wait_for_disconnect(receive))
        gone.add_done_callback(lambda _: answers.close())
        try:
            await _send_answer(answers, send)
        finally:
            gone.cancel()
            answers.close()
        return True

    async def _without_credentials(
        self, body: bytes, actor: Actor, path: str
    ) -> tuple[bytes, Actor]:
        """Return the message without its `auth` member, and the actor that it proves.

        Raises the same errors as the endpoint.
        """
        frame = jsonrpc.decode_frame(body, self._limits)
        if type(frame) is Frame and actor is not UNSHOWN:
            return body, actor
        frame, actor = await self._auth.extract(frame, actor, path)
        return jsonrpc.encode_frame(frame), actor


async def _send_answer(answers: NodeAnswerStream, send: Send) -> None:
    """Pass on the answer of another node.

    A failure before the head is raised. A later failure ends the response.
    """
    try:
        head = streams.response_head(await anext(answers))
    except StopAsyncIteration:
        raise Unavailable("the other node gave no answer") from None
    start = {"type": "http.response.start", "status": head.status, "headers": head.headers}
    await send(start)
    is_stream = dict(head.headers).get(b"content-type", b"").startswith(_EVENT_STREAM_TYPE)
    if is_stream:
        # This sends the head of the response before the first event exists.
        await send({"type": "http.response.body", "body": b"", "more_body": True})
    try:
        async for piece in answers:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    except Unavailable:
        if not is_stream:
            return
    await send({"type": "http.response.body", "body": b""})


class FromElsewhere:
    """Answers requests from other nodes with the HTTP app of this node."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._running: set[asyncio.Future[None]] = set()

    async def answer(self, head: bytes, body: bytes, reply: NodeReplyWriter) -> None:
        """Answer a forwarded request.

        After a disconnect of the client the request continues, as it does for a direct connection.
        """
        request = _ForwardedExchange(streams.request_head(head), body, reply)
        running = asyncio.ensure_future(self._app(request.scope, request.receive, request.send))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            await asyncio.shield(running)
        finally:
            request.disconnected.set()


class _ForwardedExchange:
    """A forwarded request in the form of an ASGI exchange."""

    def __init__(self, head: ForwardedRequest, body: bytes, reply: NodeReplyWriter) -> None:
        self.disconnected = asyncio.Event()
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
            await self.disconnected.wait()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Send a part of the answer.

        After a disconnect it is dropped, as on a direct connection.
        """
        if self.disconnected.is_set():
            return
        with contextlib.suppress(Unavailable):
            if message["type"] == "http.response.start":
                head = ForwardedResponse(message["status"], list(message["headers"]))
                await self._reply.send(streams.encode_message(head))
            elif message.get("body"):
                await self._reply.send(message["body"])


def _session_id(scope: Scope, headers: dict[bytes, bytes]) -> str | None:
    endpoint = _ENDPOINT_PATTERN.fullmatch(scope["path"])
    if endpoint is None:
        job = _JOB_PATTERN.fullmatch(scope["path"])
        return None if job is None else job[1]
    if endpoint[1] == "mcp":
        named = headers.get(SESSION_HEADER)
        return None if named is None else named.strip().decode("latin-1")
    try:
        asked = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=8)
    except ValueError:
        raise MalformedMessage("too much is asked at once") from None
    found = asked.get(_SESSION_QUERY_FIELD, [])
    return found[0] if len(found) == 1 else None


def _encode_head(scope: Scope, actor: Actor, session_id: str) -> bytes:
    """Return the head for the other node.

    It leaves out all other headers and query fields, because they may hold credentials.
    """
    kept = [
        (name, value)
        for name, value in scope["headers"]
        if name in _FORWARDED_HEADERS or name.startswith(PARAM_HEADER_PREFIX)
    ]
    client = scope.get("client")
    is_named = scope["path"].endswith("/mcp")
    query = b"" if is_named else urlencode({_SESSION_QUERY_FIELD: session_id}).encode()
    if _JOB_PATTERN.fullmatch(scope["path"]):
        query = scope["query_string"]
    return streams.encode_message(
        ForwardedRequest(
            scope["method"],
            scope["path"],
            query,
            kept,
            None if client is None else (client[0], client[1]),
            actor,
            scope.get("scheme", "http"),
        )
    )


async def _wait_for_disconnect(receive: Receive) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
