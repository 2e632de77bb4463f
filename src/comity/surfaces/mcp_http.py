"""MCP over streamable HTTP, both eras, at one path. (MCP §3.2)

The version header tells the eras apart. A handshake client has a session, named by a header; a
modern request stands alone, and closing its stream withdraws it.
"""

from functools import lru_cache, partial
from typing import Final

from comity.kernel.call import Call
from comity.kernel.forwarding import Desk
from comity.kernel.outbox import Outbox
from comity.kernel.replay import place_of
from comity.kernel.sessions import Session, Sessions
from comity.kernel.tracing import named_in
from comity.rules.envelopes import Refusal, era_of, refuse_envelope
from comity.surfaces import doorway, streams
from comity.surfaces.auth_member import AuthMember
from comity.surfaces.doorway import HeaderList, Receive, Scope, Send
from comity.surfaces.express import Express
from comity.surfaces.gateway import ACTOR
from comity.surfaces.reception import UNSHOWN
from comity.surfaces.replying import Reply
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_ACCEPTABLE,
    SESSION_UNKNOWN,
    MalformedMessage,
)
from comity.wire.jsonrpc import UNSET, Frame, Limits
from comity.wire.mcp import Era
from comity.wire.parties import NOBODY, Actor
from comity.wire.traces import PARENT_HEADER

ROUTING: Final = (mcp.VERSION_HEADER, mcp.METHOD_HEADER, mcp.NAME_HEADER)
PRIMED_SINCE: Final = "2025-11-25"
_USUAL: Final = frozenset(
    b"host accept accept-encoding accept-language content-type content-length user-agent "
    b"connection cache-control authorization origin traceparent tracestate mcp-protocol-version "
    b"mcp-method mcp-name mcp-session-id".split()
)
"""Headers among which no repeated argument has to be looked for."""

_POST_ONLY: Final = ((b"allow", b"POST"),)
_SESSION_METHODS: Final = ((b"allow", b"GET, POST, DELETE"),)


class McpHttp:
    """The door at one path: to one server, or to all of them."""

    def __init__(
        self,
        name: str,
        desk: Desk,
        sessions: Sessions,
        limits: Limits,
        auth: AuthMember | None = None,
    ) -> None:
        self._name = name
        self._desk = desk
        self._sessions = sessions
        self._limits = limits
        self._auth = auth or AuthMember()

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        stated = headers.get(mcp.VERSION_HEADER)
        era = era_of(stated if stated is None else stated.strip())
        method = scope["method"]
        if method == "POST":
            await self._post(era, scope, headers, receive, send)
        elif era is Era.MODERN:
            await doorway.empty(send, 405, _POST_ONLY)
        elif method == "GET":
            await self._get(scope, headers, receive, send)
        elif method == "DELETE":
            await self._sessions.end(self._session(headers, scope.get(ACTOR, NOBODY)))
            await doorway.empty(send, 200)
        else:
            await doorway.empty(send, 405, _SESSION_METHODS)

    async def _post(
        self,
        era: Era,
        scope: Scope,
        headers: dict[bytes, bytes],
        receive: Receive,
        send: Send,
    ) -> None:
        accepted = _accepted(headers.get(b"content-type", b""), headers.get(b"accept", b"*/*"))
        body = await doorway.read_body(receive, headers, self._limits.frame_bytes)
        frame = jsonrpc.decode(body, self._limits)
        await doorway.breathe(body)
        actor: Actor = scope.get(ACTOR, NOBODY)
        if type(frame) is not Frame or actor is UNSHOWN:
            frame, actor = await self._auth.take(frame, actor, scope["path"])
            if not self._desk.opens_to(actor):
                raise doorway.nothing_here()
        outbox = _outbox(headers, actor)
        if era is Era.MODERN:
            await self._post_modern(frame, outbox, scope["headers"], headers, receive, send)
        elif frame.method is UNSET or frame.id is UNSET:
            self._desk.hear(self._session(headers, actor), frame)
            await doorway.empty(send, 202)
        elif frame.method == mcp.INITIALIZE:
            await self._initialize(frame, outbox, accepted, receive, send)
        else:
            session = self._session(headers, actor)
            call = await self._desk.ask(session, frame, outbox)
            await self._reply(session, call, accepted, receive, send)

    def serve(self, request: Express, actor: Actor) -> bool:
        """Take a call that has come as a whole; what is not in order is left to be refused."""
        headers = request.headers
        stated = headers.get(mcp.VERSION_HEADER)
        era = era_of(stated if stated is None else stated.strip())
        try:
            accept = headers.get(b"accept", b"*/*")
            accepted = _accepted(headers.get(b"content-type", b""), accept)
            frame = jsonrpc.decode(request.body, self._limits)
            if not _is_plain_call(frame):
                return False
            if era is Era.MODERN:
                return self._serve_modern(request, frame, actor)
            session = self._session(headers, actor)
        except MalformedMessage:
            return False
        if accepted.startswith(b"text/event-stream"):
            return False
        outbox = _outbox(headers, actor)
        reply = Reply(request, outbox, lambda call: partial(self._reply, session, call, accepted))
        reply.ask(self._desk.ask(session, frame, outbox))
        return True

    def _serve_modern(self, request: Express, frame: Frame, actor: Actor) -> bool:
        if _refuse(frame, request.listed, request.headers) is not None:
            return False
        outbox = _outbox(request.headers, actor)
        reply = Reply(request, outbox, lambda call: partial(self._reply_modern, call))
        passed_on = _passed_on(request.headers, request.listed)
        reply.ask(self._desk.ask_modern(frame, outbox, passed_on), ends_with_client=True)
        return True

    async def _initialize(
        self,
        frame: Frame,
        outbox: Outbox,
        accepted: bytes,
        receive: Receive,
        send: Send,
    ) -> None:
        """Begin a session; one whose handshake the server refused is forgotten again."""
        session = self._sessions.begin(self._name, outbox.actor.party)
        call = await self._desk.ask(session, frame, outbox)
        await outbox.until_final()
        if not session.greeted:
            await self._sessions.end(session)
            await doorway.answer(send, outbox.status, b"".join(outbox.take()[-1:]))
            return
        named = ((mcp.SESSION_HEADER, session.id.encode()),)
        await self._reply(session, call, accepted, receive, doorway.with_headers(send, named))

    async def _reply(
        self, session: Session, call: Call, accepted: bytes, receive: Receive, send: Send
    ) -> None:
        """One JSON body where one answer is all there is; a stream where the server streams."""
        outbox = call.outbox
        if not (outbox.final or outbox.streaming):
            await outbox.wait()
        whole = outbox.final and len(outbox.frames) == 1 and not outbox.streaming
        if whole and not accepted.startswith(b"text/event-stream"):
            await doorway.answer(send, outbox.status, outbox.frames[0])
            return
        replay = session.begin_stream(outbox)
        prime = session.version >= PRIMED_SINCE
        await streams.stream_kept(send, receive, replay, 0, prime)

    async def _post_modern(
        self,
        frame: Frame,
        outbox: Outbox,
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
            await doorway.empty(send, 202)
            return
        refusal = _refuse(frame, all_headers, headers)
        if refusal is not None:
            told = doorway.worded(frame.id, refusal.fault, refusal.because, refusal.data)
            await doorway.answer(send, refusal.fault.http_status, told)
            return
        call = await self._desk.ask_modern(frame, outbox, _passed_on(headers, all_headers))
        await self._reply_modern(call, receive, send)

    async def _reply_modern(self, call: Call, receive: Receive, send: Send) -> None:
        outbox = call.outbox
        watch: list[streams.Watch] = []
        call.on_long = lambda: watch.append(streams.Watch(receive, outbox))
        while not (outbox.frames or outbox.final or outbox.streaming or outbox.nudged):
            await outbox.wait()
        gone = bool(watch) and watch[0].gone
        for watching in watch:
            watching.stop()
        call.on_long = None
        if outbox.final and len(outbox.frames) == 1 and call.method != mcp.LISTEN:
            await doorway.answer(send, outbox.status, outbox.frames[0])
        elif gone or not await streams.stream_once(send, receive, outbox):
            call.withdraw(None)

    async def _get(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """The stream of what belongs to no call, or a broken stream taken up again."""
        if not _accepts(headers.get(b"accept", b"*/*"), b"text/event-stream"):
            raise MalformedMessage("accept text/event-stream to open a stream", NOT_ACCEPTABLE)
        session = self._session(headers, scope.get(ACTOR, NOBODY))
        last = headers.get(mcp.LAST_EVENT_HEADER, b"").decode("latin-1")
        place = place_of(last)
        replay = session.streams.get(place[0]) if place and session.streams else None
        if place is None or replay is None or place[0] == 0:
            replay = session.standing_stream()
        after = place[1] if place is not None and place[0] == replay.number else replay.sent
        with self._sessions.streams.held(session.party):
            session.attached += 1
            try:
                await streams.stream_kept(send, receive, replay, after, prime=False)
            finally:
                session.attached -= 1

    def _session(self, headers: dict[bytes, bytes], actor: Actor) -> Session:
        """The session it names, if it is its own: an id proves nothing. (attack 7)"""
        session_id = headers.get(mcp.SESSION_HEADER)
        if session_id is None:
            raise MalformedMessage(
                "the Mcp-Session-Id header is missing; begin with initialize", INVALID_REQUEST
            )
        session = self._sessions.find(session_id.strip().decode("latin-1"), self._name, actor.party)
        if session is None:
            raise MalformedMessage("no such session; begin again with initialize", SESSION_UNKNOWN)
        return session


def _refuse(frame: Frame, all_headers: HeaderList, headers: dict[bytes, bytes]) -> Refusal | None:
    """What is not in order with a modern request, its envelope or its headers."""
    if len(all_headers) != len(headers):
        given = [name for name, _ in all_headers]
        for name in ROUTING:
            if given.count(name) > 1:
                return Refusal(HEADER_MISMATCH, f"the {name.decode()} header appears twice")
    refusal = refuse_envelope(frame, headers)
    if refusal is None and frame.method == mcp.INITIALIZE:
        # A server that speaks both eras on one pipe must not be led into the other one.
        return Refusal(METHOD_NOT_FOUND, "2026-07-28 has no initialize")
    return refusal


def _is_plain_call(frame: Frame) -> bool:
    """A request with nothing to be taken out of it, that begins neither session nor stream."""
    if type(frame) is not Frame or frame.method is UNSET or frame.id is UNSET:
        return False
    return frame.method not in (mcp.INITIALIZE, mcp.LISTEN)


def _outbox(headers: dict[bytes, bytes], actor: Actor) -> Outbox:
    outbox = Outbox()
    outbox.actor = actor
    if PARENT_HEADER in headers:
        outbox.trace = named_in(headers)
    return outbox


@lru_cache(256)
def _accepted(content: bytes, accept: bytes) -> bytes:
    """What the client accepts, first things first; raises where nothing could be sent."""
    doorway.demand_json(content)
    accepted = accept.strip()
    if not (_accepts(accepted, b"application/json") and _accepts(accepted, b"text/event-stream")):
        raise MalformedMessage("accept both application/json and text/event-stream", NOT_ACCEPTABLE)
    return accepted


def _accepts(accepted: bytes, kind: bytes) -> bool:
    return kind in accepted or b"*/*" in accepted or kind.split(b"/")[0] + b"/*" in accepted


def _passed_on(
    headers: dict[bytes, bytes], all_headers: HeaderList
) -> tuple[tuple[bytes, bytes], ...]:
    """The headers a modern request repeats its body in; nothing else of the client's goes on."""
    method = (mcp.METHOD_HEADER, headers[mcp.METHOD_HEADER].strip())
    named = headers.get(mcp.NAME_HEADER)
    passed = (method,) if named is None else (method, (mcp.NAME_HEADER, named.strip()))
    if _USUAL.issuperset(headers):
        return passed
    arguments = (
        (name, value.strip())
        for name, value in all_headers
        if name.startswith(mcp.PARAM_HEADER_PREFIX)
    )
    return (*passed, *arguments)
