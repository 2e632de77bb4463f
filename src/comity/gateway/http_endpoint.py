"""The Streamable HTTP endpoint of both protocol versions."""

import asyncio
import logging
import re
from collections.abc import Coroutine
from functools import lru_cache, partial
from typing import Any, Final

from comity.errors import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_ACCEPTABLE,
    SESSION_UNKNOWN,
    MalformedMessage,
    Unavailable,
)
from comity.gateway import streams
from comity.gateway.one_server import McpEndpoint
from comity.http import asgi
from comity.http.asgi import ACTOR, UNSHOWN, HeaderList, Receive, Scope, Send
from comity.http.fast_path import Continuation, FastPathRequest, RequestHead
from comity.identity.http_auth import AuthMember
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import ANONYMOUS, Actor
from comity.mcp.jsonrpc import UNSET, Frame, FrameLimits
from comity.mcp.modern_requests import HeaderRefusal, era_of, refuse_envelope
from comity.mcp.protocol import Era
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream, parse_event_id
from comity.sessions.sessions import Session, SessionStore
from comity.telemetry.tracing import PARENT_HEADER, Headers, trace_context_in

log = logging.getLogger(__name__)


class McpHttpReply:
    """The reply to one HTTP request on the fast path, and the call that the request became."""

    __slots__ = ("_call", "_client_stream", "_endpoint", "_request", "_session")

    def __init__(
        self,
        endpoint: "McpHttp",
        request: FastPathRequest,
        client_stream: ClientStream,
        session: Session | None,
    ) -> None:
        self._endpoint = endpoint
        self._request = request
        self._client_stream = client_stream
        self._session = session
        self._call: Call | None = None

    def wait_for(self, starting: Coroutine[Any, Any, Call]) -> None:
        """Reply to a call that waits for something before it is sent."""
        task = asyncio.Task(starting, loop=asyncio.get_running_loop(), eager_start=True)
        if task.done():
            self._on_task_done(task)
        else:
            _starting_calls.add(task)
            task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: "asyncio.Task[Call]") -> None:
        _starting_calls.discard(task)
        try:
            call = task.result()
        except (MalformedMessage, Unavailable) as error:
            self._request.answer(*asgi.encode_refusal(error))
        except (Exception, asyncio.CancelledError):
            log.exception("A request failed because of an internal error")
            self._request.answer(500, asgi.encode_internal_error())
        else:
            self.on_started(call)
            # The client may have disconnected while the call was in the pipeline.
            if self._request.on_lost is not None and self._request.is_over:
                self._on_disconnect()

    def on_started(self, call: Call) -> None:
        """Reply to a call that is on its way, or already answered."""
        self._call, client_stream = call, self._client_stream
        if client_stream.is_final or client_stream.is_streaming or client_stream.frames:
            self._on_ready()
            return
        client_stream.on_ready = self._on_ready
        if self._session is None:
            # Closing the stream of a modern request cancels it.
            call.on_first_check = self._go_on
            self._request.on_lost = self._on_disconnect

    def _on_ready(self) -> None:
        client_stream, call = self._client_stream, self._call
        if (
            client_stream.is_final
            and len(client_stream.frames) == 1
            and not client_stream.is_streaming
        ):
            if call is not None:
                call.on_first_check = None
            self._request.answer(client_stream.status, client_stream.frames[0])
        else:
            self._go_on()

    def _go_on(self) -> None:
        call = self._call
        assert call is not None
        self._client_stream.on_ready = call.on_first_check = None
        self._request.on_lost = None
        self._request.hand_over(self._endpoint.continuation_of(call, self._session))

    def _on_disconnect(self) -> None:
        """Withdraw the call, because closing the stream cancels it. (2026-07-28)"""
        self._client_stream.on_ready = None
        if self._call is not None:
            self._call.on_first_check = None
            self._call.withdraw(None)


_starting_calls: set["asyncio.Task[Call]"] = set()
"""Holds references to running tasks, because the event loop keeps only weak ones."""


ROUTING_HEADERS: Final = (protocol.VERSION_HEADER, protocol.METHOD_HEADER, protocol.NAME_HEADER)
PRIMING_VERSION: Final = "2025-11-25"
"""The first protocol version whose streams begin with an empty event that carries an id."""
_COMMON_HEADERS: Final = frozenset(
    b"host accept accept-encoding accept-language content-type content-length user-agent "
    b"connection cache-control authorization x-api-key origin traceparent tracestate "
    b"mcp-protocol-version mcp-method mcp-name mcp-session-id".split()
)
"""Common headers. If a request has no others, it has no Mcp-Param headers to search for."""

_ALLOW_POST: Final = ((b"allow", b"POST"),)
_ALLOW_SESSION_METHODS: Final = ((b"allow", b"GET, POST, DELETE"),)


_PROGRESS_TOKEN: Final = re.compile(rb'(?<="progressToken":)(?:-?\d{1,15}|"[\w.-]{1,64}")(?=[,}])')
"""A progress token. A quote within a string has a backslash, so this is a member's value."""


class HeadFacts:
    """The facts in the head of a request, which hold for all requests with the same head."""

    __slots__ = ("_checked", "_head", "era", "has_trace", "passed_on", "wants_stream")

    def __init__(self, head: RequestHead) -> None:
        """Read a head. Raises MalformedMessage if its media types are not supported."""
        headers = head.headers
        stated = headers.get(protocol.VERSION_HEADER)
        accepted = _checked_accept(
            headers.get(b"content-type", b""), headers.get(b"accept", b"*/*")
        )
        self._head = head
        # The name and the metadata of the last request that the headers repeat as they must.
        self._checked: tuple[str, bytes] | None = None
        self.era = era_of(stated if stated is None else stated.strip())
        self.wants_stream = accepted.startswith(b"text/event-stream")
        self.has_trace = PARENT_HEADER in headers
        self.passed_on: Headers = ()

    def fits(self, frame: Frame) -> bool:
        """Return whether a frame is a plain request that the headers repeat as they must."""
        tool = frame.tool
        said = None
        if tool is not None and tool.meta is not UNSET:
            meta = bytes(tool.meta)
            if b"progressToken" in meta:
                # The headers do not repeat the token, and most requests have another one.
                meta = _PROGRESS_TOKEN.sub(b"", meta)
            said = (tool.name, meta)
            if said == self._checked:
                return True
        head = self._head
        if not _is_plain_call(frame) or _header_refusal(frame, head.listed, head.headers):
            return False
        self.passed_on = _repeated_headers(head.headers, head.listed)
        self._checked = said
        return True


class McpHttp:
    """The HTTP endpoint at one path, for one server or for all servers."""

    def __init__(
        self,
        name: str,
        endpoint: McpEndpoint,
        sessions: SessionStore,
        limits: FrameLimits,
        auth: AuthMember | None = None,
    ) -> None:
        self._name = name
        self._endpoint = endpoint
        self._sessions = sessions
        self._limits = limits
        self._auth = auth or AuthMember()

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        stated = headers.get(protocol.VERSION_HEADER)
        era = era_of(stated if stated is None else stated.strip())
        method = scope["method"]
        if method == "POST":
            await self._post(era, scope, headers, receive, send)
        elif era is Era.MODERN:
            await asgi.send_empty(send, 405, _ALLOW_POST)
        elif method == "GET":
            await self._get(scope, headers, receive, send)
        elif method == "DELETE":
            await self._sessions.end(self._find_session(headers, scope.get(ACTOR, ANONYMOUS)))
            await asgi.send_empty(send, 200)
        else:
            await asgi.send_empty(send, 405, _ALLOW_SESSION_METHODS)

    async def _post(
        self,
        era: Era,
        scope: Scope,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
    ) -> None:
        accepted = _checked_accept(
            headers.get(b"content-type", b""), headers.get(b"accept", b"*/*")
        )
        body = await asgi.read_body(receive, headers, self._limits.frame_bytes)
        frame = jsonrpc.decode_frame(body, self._limits)
        await asgi.yield_if_long(body)
        actor: Actor = scope.get(ACTOR, ANONYMOUS)
        if type(frame) is not Frame or actor is UNSHOWN:
            frame, actor = await self._auth.extract(frame, actor, scope["path"])
            if not self._endpoint.is_visible_to(actor):
                raise asgi.not_found_error()
        client_stream = _make_client_stream(headers, actor)
        if era is Era.MODERN:
            await self._post_modern(frame, client_stream, scope["headers"], headers, receive, send)
        elif frame.method is UNSET or frame.id is UNSET:
            session = self._find_session(headers, actor)
            waiting = self._endpoint.handle_message(session, frame, actor)
            if waiting is not None:
                await waiting
            await asgi.send_empty(send, 202)
        elif frame.method == protocol.INITIALIZE:
            await self._initialize(frame, client_stream, accepted, receive, send)
        else:
            session = self._find_session(headers, actor)
            call = await self._endpoint.handle_request(session, frame, client_stream)
            await self._reply(session, call, accepted, receive, send)

    def serve(self, request: FastPathRequest, actor: Actor) -> bool:
        """Serve a request whose body has arrived completely, and return whether it was taken.

        The method leaves an invalid request to the slower path, which sends the refusal.
        """
        head, session = request.head, None
        facts = head.facts
        try:
            if type(facts) is not HeadFacts:
                facts = head.facts = HeadFacts(head)
            frame = jsonrpc.decode_frame(request.body, self._limits)
            if facts.era is Era.MODERN:
                if not facts.fits(frame):
                    return False
            elif not _is_plain_call(frame) or facts.wants_stream:
                return False
            else:
                session = self._find_session(head.headers, actor)
        except MalformedMessage:
            return False
        client_stream = ClientStream()
        client_stream.actor = actor
        if facts.has_trace:
            client_stream.trace = trace_context_in(head.headers)
        reply = McpHttpReply(self, request, client_stream, session)
        try:
            if session is None:
                started = self._endpoint.start_modern_request(frame, client_stream, facts.passed_on)
            else:
                started = self._endpoint.start_request(session, frame, client_stream)
        except (MalformedMessage, Unavailable) as error:
            request.answer(*asgi.encode_refusal(error))
            return True
        if isinstance(started, Call):
            reply.on_started(started)
        else:
            reply.wait_for(started)
        return True

    def continuation_of(self, call: Call, session: Session | None) -> Continuation:
        """Return what replies to a call on the ordinary path, with more than one message."""
        if session is None:
            return partial(self._reply_modern, call)
        return partial(self._reply, session, call, b"")

    async def _initialize(
        self,
        frame: Frame,
        client_stream: ClientStream,
        accepted: bytes,
        receive: Receive,
        send: Send,
    ) -> None:
        """Begin a session, and end it again if the server refuses the handshake."""
        actor = client_stream.actor
        session = self._sessions.begin(self._name, actor.party, actor=actor)
        call = await self._endpoint.handle_request(session, frame, client_stream)
        await client_stream.wait_until_final()
        if not session.is_initialized:
            await self._sessions.end(session)
            await asgi.send_json(send, client_stream.status, b"".join(client_stream.take()[-1:]))
            return
        named = ((protocol.SESSION_HEADER, session.id.encode()),)
        await self._reply(session, call, accepted, receive, asgi.with_headers(send, named))

    async def _reply(
        self, session: Session, call: Call, accepted: bytes, receive: Receive, send: Send
    ) -> None:
        """Send one JSON body for a single answer, or an event stream if the server streams."""
        client_stream = call.client_stream
        if not (client_stream.is_final or client_stream.is_streaming):
            await client_stream.wait()
        whole = (
            client_stream.is_final
            and len(client_stream.frames) == 1
            and not client_stream.is_streaming
        )
        if whole and not accepted.startswith(b"text/event-stream"):
            await asgi.send_json(send, client_stream.status, client_stream.frames[0])
            return
        replay = session.begin_stream(client_stream)
        prime = session.version >= PRIMING_VERSION
        await streams.stream_resumable(send, receive, replay, 0, prime)

    async def _post_modern(
        self,
        frame: Frame,
        client_stream: ClientStream,
        all_headers: HeaderList,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
    ) -> None:
        if frame.method is UNSET:
            raise MalformedMessage(
                "a client sends requests and notifications, no answers", INVALID_REQUEST
            )
        if frame.id is UNSET:
            await asgi.send_empty(send, 202)
            return
        refusal = _header_refusal(frame, all_headers, headers)
        if refusal is not None:
            told = asgi.encode_fault(frame.id, refusal.fault, refusal.reason, refusal.data)
            await asgi.send_json(send, refusal.fault.http_status, told)
            return
        call = await self._endpoint.handle_modern_request(
            frame, client_stream, _repeated_headers(headers, all_headers)
        )
        await self._reply_modern(call, receive, send)

    async def _reply_modern(self, call: Call, receive: Receive, send: Send) -> None:
        client_stream = call.client_stream
        watch: list[streams.DisconnectWatcher] = []
        call.on_first_check = lambda: watch.append(
            streams.DisconnectWatcher(receive, client_stream)
        )
        while not (
            client_stream.frames
            or client_stream.is_final
            or client_stream.is_streaming
            or client_stream.is_nudged
        ):
            await client_stream.wait()
        gone = bool(watch) and watch[0].is_disconnected
        for watching in watch:
            watching.stop()
        call.on_first_check = None
        if (
            client_stream.is_final
            and len(client_stream.frames) == 1
            and call.method != protocol.LISTEN
        ):
            await asgi.send_json(send, client_stream.status, client_stream.frames[0])
        elif gone or not await streams.stream_once(send, receive, client_stream):
            call.withdraw(None)

    async def _get(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Open the stream for messages outside of calls, or resume a broken stream."""
        if not _accepts(headers.get(b"accept", b"*/*"), b"text/event-stream"):
            raise MalformedMessage("accept text/event-stream to open a stream", NOT_ACCEPTABLE)
        session = self._find_session(headers, scope.get(ACTOR, ANONYMOUS))
        last = headers.get(protocol.LAST_EVENT_HEADER, b"").decode("latin-1")
        place = parse_event_id(last)
        replay = session.streams.get(place[0]) if place and session.streams else None
        if place is None or replay is None or place[0] == 0:
            replay = session.standalone_resumable()
        after = (
            place[1]
            if place is not None and place[0] == replay.number
            else replay.last_event_number
        )
        with self._sessions.streams.hold(session.party):
            session.attached_streams += 1
            try:
                await streams.stream_resumable(send, receive, replay, after, prime=False)
            finally:
                session.attached_streams -= 1

    def _find_session(self, headers: dict[bytes, bytes], actor: Actor) -> Session:
        """Return the session that the request names, if it belongs to the actor.

        A session id alone proves nothing (attack 7). Raises MalformedMessage if the header is
        missing or the session is unknown.
        """
        session_id = headers.get(protocol.SESSION_HEADER)
        if session_id is None:
            raise MalformedMessage(
                "the Mcp-Session-Id header is missing; begin with initialize", INVALID_REQUEST
            )
        session = self._sessions.find(session_id.strip().decode("latin-1"), self._name, actor.party)
        if session is None:
            raise MalformedMessage("no such session; begin again with initialize", SESSION_UNKNOWN)
        return session


def _header_refusal(
    frame: Frame, all_headers: HeaderList, headers: dict[bytes, bytes]
) -> HeaderRefusal | None:
    """Return why the envelope or the headers of a modern request are invalid, or None."""
    # The dict keeps one value for each name, so different lengths mean a repeated header.
    if len(all_headers) != len(headers):
        given = [name for name, _ in all_headers]
        for name in ROUTING_HEADERS:
            if given.count(name) > 1:
                return HeaderRefusal(HEADER_MISMATCH, f"the {name.decode()} header appears twice")
    refusal = refuse_envelope(frame, headers)
    if refusal is None and frame.method == protocol.INITIALIZE:
        # A server that supports both protocol versions on one pipe must not start the legacy
        # handshake here.
        return HeaderRefusal(METHOD_NOT_FOUND, "2026-07-28 has no initialize")
    return refusal


def _is_plain_call(frame: Frame) -> bool:
    """Return whether a frame is a request that starts neither a session nor a stream."""
    if type(frame) is not Frame or frame.method is UNSET or frame.id is UNSET:
        return False
    return frame.method not in (protocol.INITIALIZE, protocol.LISTEN)


def _make_client_stream(headers: dict[bytes, bytes], actor: Actor) -> ClientStream:
    client_stream = ClientStream()
    client_stream.actor = actor
    if PARENT_HEADER in headers:
        client_stream.trace = trace_context_in(headers)
    return client_stream


@lru_cache(256)
def _checked_accept(content: bytes, accept: bytes) -> bytes:
    """Return the Accept header if the request's media types are supported.

    Raises MalformedMessage if the client does not accept both JSON and event streams.
    """
    asgi.demand_json(content)
    accepted = accept.strip()
    if not (_accepts(accepted, b"application/json") and _accepts(accepted, b"text/event-stream")):
        raise MalformedMessage("accept both application/json and text/event-stream", NOT_ACCEPTABLE)
    return accepted


def _accepts(accepted: bytes, kind: bytes) -> bool:
    return kind in accepted or b"*/*" in accepted or kind.split(b"/")[0] + b"/*" in accepted


def _repeated_headers(
    headers: dict[bytes, bytes], all_headers: HeaderList
) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers in which a modern request repeats its body.

    The gateway passes on no other header of the client.
    """
    method = (protocol.METHOD_HEADER, headers[protocol.METHOD_HEADER].strip())
    named = headers.get(protocol.NAME_HEADER)
    passed = (method,) if named is None else (method, (protocol.NAME_HEADER, named.strip()))
    if _COMMON_HEADERS.issuperset(headers):
        return passed
    arguments = (
        (name, value.strip())
        for name, value in all_headers
        if name.startswith(protocol.PARAM_HEADER_PREFIX)
    )
    return (*passed, *arguments)
