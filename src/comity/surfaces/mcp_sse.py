"""MCP over the old two-endpoint transport: a stream at one path, POSTs at another. (MCP §3.3)

The stream is the session: it names where to post, carries every answer, notice and question, and
ends the session with itself. Nothing on it can be taken up again; that is why it is old.
"""

from typing import Final
from urllib.parse import parse_qs

from comity.kernel.forwarding import Desk
from comity.kernel.sessions import Session, Sessions
from comity.kernel.tracing import named_in
from comity.surfaces import doorway, streams
from comity.surfaces.auth_member import AuthMember
from comity.surfaces.doorway import Receive, Scope, Send
from comity.surfaces.funnel import Funnel, Inlet
from comity.surfaces.gateway import ACTOR, Door
from comity.surfaces.reception import UNSHOWN
from comity.wire import jsonrpc, mcp
from comity.wire.errors import (
    EXHAUSTED,
    INVALID_REQUEST,
    NOT_ACCEPTABLE,
    SESSION_UNKNOWN,
    MalformedMessage,
)
from comity.wire.jsonrpc import UNSET, Frame, Limits
from comity.wire.parties import NOBODY
from comity.wire.sse import encode_event

_BEFORE_THE_HANDSHAKE: Final = frozenset({mcp.INITIALIZE, mcp.PING})


class McpSse:
    """The two doors of the old transport: to one server, or to all of them."""

    def __init__(
        self,
        name: str,
        folder: str,
        desk: Desk,
        sessions: Sessions,
        limits: Limits,
        auth: AuthMember | None = None,
    ) -> None:
        # No server's name holds a colon, so no session of another door has this name.
        self._door = f"sse:{name}"
        self._folder = folder
        self._desk = desk
        self._sessions = sessions
        self._limits = limits
        self._auth = auth or AuthMember()
        self._funnels: dict[str, Funnel] = {}

    @property
    def doors(self) -> dict[str, Door]:
        return {f"{self._folder}/sse": self.stream, f"{self._folder}/messages": self.messages}

    async def stream(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """GET: begin a session that lasts as long as its stream."""
        if scope["method"] != "GET":
            # Also what a newer client needs to hear: it tries POST first, and GET after a 4xx.
            await doorway.empty(send, 405, ((b"allow", b"GET"),))
            return
        if not _accepts_streams(headers.get(b"accept", b"*/*")):
            raise MalformedMessage("accept text/event-stream to open a stream", NOT_ACCEPTABLE)
        party = scope.get(ACTOR, NOBODY).party
        with self._sessions.streams.held(party):
            await self._stream(self._sessions.begin(self._door, party), receive, send)

    async def _stream(self, session: Session, receive: Receive, send: Send) -> None:
        funnel = self._funnels[session.id] = Funnel(session.standalone)
        endpoint = f"{self._folder}/messages?session_id={session.id}"
        opening = encode_event(endpoint.encode(), event="endpoint")
        session.attached += 1
        try:
            await streams.stream_shared(send, receive, funnel.outbox, opening)
        finally:
            del self._funnels[session.id]
            await self._sessions.end(session)

    async def messages(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        """POST: take one message; what follows from it comes on the stream."""
        if scope["method"] != "POST":
            await doorway.empty(send, 405, ((b"allow", b"POST"),))
            return
        doorway.demand_json(headers.get(b"content-type", b""))
        session_id = _session_id(scope["query_string"])
        body = await doorway.read_body(receive, headers, self._limits.frame_bytes)
        frame, actor = jsonrpc.decode(body, self._limits), scope.get(ACTOR, NOBODY)
        await doorway.breathe(body)
        if type(frame) is not Frame or actor is UNSHOWN:
            frame, actor = await self._auth.take(frame, actor, scope["path"])
            if not self._desk.opens_to(actor):
                raise doorway.nothing_here()
        session = self._sessions.find(session_id, self._door, actor.party)
        funnel = self._funnels.get(session_id)
        if session is None or funnel is None:
            raise MalformedMessage("no such session; open the stream again", SESSION_UNKNOWN)
        if frame.method is UNSET or frame.id is UNSET:
            self._desk.hear(session, frame)
            await doorway.empty(send, 202)
        else:
            await doorway.empty(send, 202)
            inlet = funnel.inlet()
            inlet.actor, inlet.trace = actor, named_in(headers)
            await self._ask(session, frame, inlet)

    async def _ask(self, session: Session, frame: Frame, inlet: Inlet) -> None:
        """From here on the stream is the only place to answer."""
        assert isinstance(frame.id, int | str)
        try:
            if not session.greeted and frame.method not in _BEFORE_THE_HANDSHAKE:
                inlet.finish(doorway.worded(frame.id, INVALID_REQUEST, "begin with initialize"))
                return
            await self._desk.ask(session, frame, inlet)
        except MalformedMessage as error:
            # An id in use belongs to the call that has it: the second must not answer the first.
            named = frame.id if error.fault is EXHAUSTED else None
            inlet.finish(doorway.worded(named, error.fault, str(error)))


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
