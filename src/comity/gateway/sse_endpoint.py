"""The older HTTP+SSE transport: an event stream at one path, POST requests at another. (MCP §3.3)

The stream is the session. Its first event names the path for POST requests. It carries all answers,
notifications and requests of the server, and the session ends with it. A client cannot resume it.
"""

from typing import Final
from urllib.parse import parse_qs

from comity.errors import (
    EXHAUSTED,
    INVALID_REQUEST,
    NOT_ACCEPTABLE,
    SESSION_UNKNOWN,
    MalformedMessage,
)
from comity.gateway import streams
from comity.gateway.one_server import McpEndpoint
from comity.gateway.streams import StreamMultiplexer, StreamSource
from comity.http import asgi
from comity.http.asgi import ACTOR, UNSHOWN, HttpEndpoint, Receive, Scope, Send
from comity.identity.http_auth import AuthMember
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import ANONYMOUS, Actor
from comity.mcp.framing import encode_event
from comity.mcp.jsonrpc import UNSET, Frame, FrameLimits
from comity.sessions.sessions import Session, SessionStore
from comity.telemetry.tracing import trace_context_in

_PRE_HANDSHAKE_METHODS: Final = frozenset({protocol.INITIALIZE, protocol.PING})


class McpSse:
    """The two HTTP paths of the older transport, for one server or for all servers."""

    def __init__(
        self,
        name: str,
        folder: str,
        endpoint: McpEndpoint,
        sessions: SessionStore,
        limits: FrameLimits,
        auth: AuthMember | None = None,
    ) -> None:
        # A server name holds no colon, so this name cannot equal that of another endpoint.
        self._endpoint_name = f"sse:{name}"
        self._folder = folder
        self._endpoint = endpoint
        self._sessions = sessions
        self._limits = limits
        self._auth = auth or AuthMember()
        self._multiplexer_by_session: dict[str, StreamMultiplexer] = {}

    @property
    def endpoints(self) -> dict[str, HttpEndpoint]:
        return {
            f"{self._folder}/sse": self.serve_stream,
            f"{self._folder}/messages": self.serve_message,
        }

    async def serve_stream(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Handle GET: begin a session that lasts as long as its stream."""
        if scope["method"] != "GET":
            # Newer clients also rely on this status: they try POST first, and GET after a 4xx.
            await asgi.send_empty(send, 405, ((b"allow", b"GET"),))
            return
        if not _accepts_streams(headers.get(b"accept", b"*/*")):
            raise MalformedMessage("accept text/event-stream to open a stream", NOT_ACCEPTABLE)
        actor: Actor = scope.get(ACTOR, ANONYMOUS)
        with self._sessions.streams.hold(actor.party):
            session = self._sessions.begin(self._endpoint_name, actor.party, actor=actor)
            await self._stream(session, receive, send)

    async def _stream(self, session: Session, receive: Receive, send: Send) -> None:
        funnel = self._multiplexer_by_session[session.id] = StreamMultiplexer(session.standalone)
        endpoint = f"{self._folder}/messages?session_id={session.id}"
        opening = encode_event(endpoint.encode(), event="endpoint")
        session.attached_streams += 1
        try:
            await streams.stream_shared(send, receive, funnel.client_stream, opening)
        finally:
            del self._multiplexer_by_session[session.id]
            await self._sessions.end(session)

    async def serve_message(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """Handle POST: take one message. Its answer arrives on the stream."""
        if scope["method"] != "POST":
            await asgi.send_empty(send, 405, ((b"allow", b"POST"),))
            return
        asgi.demand_json(headers.get(b"content-type", b""))
        session_id = _session_id(scope["query_string"])
        body = await asgi.read_body(receive, headers, self._limits.frame_bytes)
        frame, actor = jsonrpc.decode_frame(body, self._limits), scope.get(ACTOR, ANONYMOUS)
        await asgi.yield_if_long(body)
        if type(frame) is not Frame or actor is UNSHOWN:
            frame, actor = await self._auth.extract(frame, actor, scope["path"])
            if not self._endpoint.is_visible_to(actor):
                raise asgi.not_found_error()
        session = self._sessions.find(session_id, self._endpoint_name, actor.party)
        funnel = self._multiplexer_by_session.get(session_id)
        if session is None or funnel is None:
            raise MalformedMessage("no such session; open the stream again", SESSION_UNKNOWN)
        if frame.method is UNSET or frame.id is UNSET:
            waiting = self._endpoint.handle_message(session, frame, actor)
            if waiting is not None:
                await waiting
            await asgi.send_empty(send, 202)
        else:
            await asgi.send_empty(send, 202)
            inlet = funnel.add_source()
            inlet.actor, inlet.trace = actor, trace_context_in(headers)
            await self._handle_request(session, frame, inlet)

    async def _handle_request(self, session: Session, frame: Frame, source: StreamSource) -> None:
        """Process a request after the 202 response, so errors can only go to the stream."""
        assert isinstance(frame.id, int | str)
        try:
            if not session.is_initialized and frame.method not in _PRE_HANDSHAKE_METHODS:
                source.finish(asgi.encode_fault(frame.id, INVALID_REQUEST, "begin with initialize"))
                return
            await self._endpoint.handle_request(session, frame, source)
        except MalformedMessage as error:
            # An id in use belongs to the first call, so the error of the second must not name it.
            named = frame.id if error.fault is EXHAUSTED else None
            source.finish(asgi.encode_fault(named, error.fault, str(error)))


def _session_id(query: bytes) -> str:
    try:
        named = parse_qs(query.decode("latin-1"), max_num_fields=8).get("session_id", [])
    except ValueError:
        named = []
    if len(named) != 1:
        raise MalformedMessage("post to the endpoint that the stream named", INVALID_REQUEST)
    return named[0]


def _accepts_streams(accept: bytes) -> bool:
    return any(kind in accept for kind in (b"text/event-stream", b"text/*", b"*/*"))
