"""Client sessions of protocol version 2025-11-25 and before, and the store that holds them."""

import asyncio
import logging
import secrets
import sys
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping

from msgspec import Raw

from comity.errors import EXHAUSTED, Unavailable
from comity.mcp import eras, jsonrpc
from comity.mcp.actors import Actor
from comity.mcp.conversation import Conversation, PeerCancellation, PeerNotification, PeerResponse
from comity.mcp.jsonrpc import Frame
from comity.mcp.mgp import (
    NOTICE_PREFIX,
    MgpStatement,
    NegotiatedTerms,
    decode_statement,
    negotiate_terms,
)
from comity.mcp.protocol import LATEST_HANDSHAKE, LIST_CHANGES, RESOURCE_UPDATED, UNKNOWN
from comity.policy.shares import RETRY_AFTER, PrincipalShares
from comity.sessions.calls import Call, PendingMessage, ServerRequest
from comity.sessions.client_streams import ClientStream, ResumableStream
from comity.sessions.upstream import UpstreamConnection
from comity.toolkit.background import SharedOpening

log = logging.getLogger(__name__)

MAX_KNOWN_TASKS = 1000
"""The number of tasks that a session remembers."""

MAX_KEPT_STREAMS = 16
"""The number of streams of a session that a client can still resume."""


SERVER_NOTIFICATIONS = LIST_CHANGES | {RESOURCE_UPDATED}


class Session:
    """The session of a legacy client, from `initialize` to the end of its transport."""

    __slots__ = (
        "_opening",
        "_standalone",
        "actor",
        "attached_streams",
        "capabilities",
        "client_info",
        "conversation",
        "endpoint_name",
        "id",
        "initialize_params",
        "is_closed",
        "is_initialized",
        "log_level",
        "may_read",
        "mgp",
        "next_stream",
        "on_close",
        "own_connections",
        "party",
        "sees_all_servers",
        "shared_connections",
        "streams",
        "tasks",
        "used_at",
        "version",
    )

    def __init__(self, endpoint_name: str, now: float, party: str = "") -> None:
        self.id = secrets.token_hex(16)
        self.endpoint_name = endpoint_name
        self.party = party
        # The actor that began the session, with the groups that it had then.
        self.actor: Actor | None = None
        # The public ids of tasks that the client may name, by their server and the server's own id.
        self.tasks: OrderedDict[tuple[str, str], str] = OrderedDict()
        self.used_at = now
        self.version = LATEST_HANDSHAKE
        self.initialize_params: Raw = jsonrpc.to_raw({})
        self.capabilities: dict[str, Raw] = {}
        self.client_info: Raw | None = None
        self.conversation: Conversation[PendingMessage] = Conversation(limit=1024)
        self.own_connections: dict[str, UpstreamConnection] = {}
        self.shared_connections: dict[str, UpstreamConnection] = {}
        self.log_level: str | None = None
        self.mgp: NegotiatedTerms | None = None
        self.is_closed = False
        self.is_initialized = False
        self.attached_streams = 0
        self.sees_all_servers = False
        # Whether the session's principal may read a URI. The endpoint sets it at `initialize`.
        self.may_read: Callable[[str], bool] | None = None
        self.on_close: dict[object, Callable[[], None]] = {}
        self.next_stream = 0
        self.streams: OrderedDict[int, ResumableStream] | None = None
        self._standalone: ClientStream | None = None
        self._opening: SharedOpening[str, UpstreamConnection] | None = None

    @property
    def standalone(self) -> ClientStream:
        """The stream for messages outside of calls, created at its first use."""
        if self._standalone is None or self._standalone.is_final:
            self._standalone = ClientStream()
        return self._standalone

    def begin_stream(
        self, client_stream: ClientStream, number: int | None = None
    ) -> ResumableStream:
        """Keep a stream so that the client can resume it. The oldest streams are dropped.

        Stream 0 moves to the end, so that it is never the oldest.
        """
        if self.streams is None:
            self.streams = OrderedDict()
        if number is None:
            self.next_stream += 1
            number = self.next_stream
        replay = self.streams[number] = ResumableStream(number, client_stream)
        if 0 in self.streams:
            self.streams.move_to_end(0)
        while len(self.streams) > MAX_KEPT_STREAMS:
            self.streams.popitem(last=False)
        return replay

    def standalone_resumable(self) -> ResumableStream:
        """Return stream 0, which carries the messages outside of calls."""
        found = self.streams.get(0) if self.streams is not None else None
        if found is not None and not found.client_stream.is_final:
            return found
        begun = self.begin_stream(self.standalone, 0)
        if found is not None:
            # Event ids are unique within a session (MCP §3.2), so the new stream continues the
            # numbers of the ended one.
            begun.last_event_number = found.last_event_number
        return begun

    def store_client_info(self, params: Mapping[str, Raw]) -> None:
        """Store what the client declared in `initialize`. (MCP §4.1)"""
        self.initialize_params = jsonrpc.to_raw(params)
        self.client_info = params.get("clientInfo")
        declared = params.get("capabilities")
        self.capabilities = {} if declared is None else jsonrpc.decode_members(declared)

    def store_mgp_terms(self, hello: Mapping[str, Raw]) -> None:
        """Store the MGP terms that the client negotiated with one server. (MGP §2.4)"""
        said = self._mgp_statement()
        offered = frozenset[str]() if said is None else said.extensions
        self.mgp = (
            None
            if said is None
            else negotiate_terms(decode_statement(hello.get("capabilities")), offered)
        )

    @property
    def speaks_mgp_with_servers(self) -> bool:
        """Whether the client itself negotiates MGP with servers.

        At the endpoint of all servers it negotiates with the gateway instead.
        """
        return not self.sees_all_servers and self._mgp_statement() is not None

    def _mgp_statement(self) -> MgpStatement | None:
        return decode_statement(jsonrpc.to_raw(self.capabilities))

    @property
    def has_open_call(self) -> bool:
        """Whether a call of the client is open.

        Requests to the client do not count, because it may never answer them.
        """
        return len(self.conversation) > len(self.conversation.pending_requests)

    def has_capability(self, capability: str) -> bool:
        return capability in self.capabilities

    def send_notification(self, frame: Frame) -> None:
        """Send a notification on the standalone stream.

        If the client does not read the stream, notifications are lost.
        """
        if self.may_read is not None and frame.method == RESOURCE_UPDATED:
            uri = jsonrpc.decode_text(frame.parameters.get("uri"))
            if not self.may_read(uri or ""):
                return
        if not self.standalone.put(jsonrpc.encode_frame(frame)):
            log.info(
                "A session of %s does not read; a notification to it is lost", self.endpoint_name
            )

    def handle_message(self, frame: Frame) -> Frame | None:
        """Handle a message of the client that is not a request.

        Returns a notification that must go to the server, or None.
        """
        found = self.conversation.classify(frame, UNKNOWN)
        if isinstance(found, PeerResponse):
            found.errand.deliver_answer(found.frame, 200)
        elif isinstance(found, PeerCancellation):
            found.errand.withdraw(found.reason)
        elif isinstance(found, PeerNotification):
            if found.amid is None:
                return found.frame
            found.amid.deliver_notification(found.frame)
        else:
            log.debug("session of %s: a stray message", self.endpoint_name)
        return None

    def on_notification(self, connection: UpstreamConnection, frame: Frame) -> None:
        if frame.method == eras.STATUS:
            if not self.notify_task_status(connection.server, frame):
                offer_task_status(connection, frame)
            return
        call = _latest_call(connection)
        if call is not None and frame.method not in SERVER_NOTIFICATIONS:
            call.deliver_notification(frame)
            return
        if str(frame.method).startswith(NOTICE_PREFIX) and not self.speaks_mgp_with_servers:
            # A server's statements about itself are for the gateway, not for clients. (D-21)
            log.debug("server %r: no client negotiated %s", connection.server, frame.method)
        elif not self.sees_all_servers:
            self.send_notification(frame)
        elif frame.method not in LIST_CHANGES:
            # The gateway announces list changes once the merged catalog has changed.
            self.send_notification(frame)

    def note_task(self, server: str, task: str, public: str) -> None:
        """Remember a task of the client. The oldest is forgotten, and its changes are not told."""
        self.tasks[server, task] = public
        while len(self.tasks) > MAX_KNOWN_TASKS:
            self.tasks.popitem(last=False)

    def notify_task_status(self, server: str, frame: Frame) -> bool:
        """Tell the client about a change of its task. Returns False for any other task."""
        task = eras.task_named_in(frame)
        public = None if task is None else self.tasks.get((server, task))
        if public is None or frame.params is jsonrpc.UNSET:
            return False
        named = eras.rename_tasks(frame.params, lambda each: public if each == task else each)
        self.send_notification(jsonrpc.with_params(frame, named))
        return True

    def on_request(
        self, connection: UpstreamConnection, server_request: ServerRequest, frame: Frame
    ) -> None:
        call = _latest_call(connection)
        if call is not None:
            call.deliver_request(server_request, frame)
        else:
            server_request.send_to_client(self, frame, self.standalone)

    def on_session_renewed(self, connection: UpstreamConnection) -> None:
        """Announce that the server lost its state.

        A session that sees all servers learns it from the catalog.
        """
        log.info("Server %r was restarted for a session", connection.server)
        if not self.sees_all_servers:
            for change in connection.list_changes():
                self.send_notification(change)

    def on_connection_lost(self, connection: UpstreamConnection, reason: str) -> None:
        if self.own_connections.get(connection.server) is connection:
            del self.own_connections[connection.server]

    async def connection_to(
        self, server: str, open_connection: Callable[[], Coroutine[None, None, UpstreamConnection]]
    ) -> UpstreamConnection:
        """Return the session's own connection to a server, and open it at the first use.

        Concurrent callers share one attempt. Raises Unavailable if the session has ended.
        """
        connection = self.own_connections.get(server)
        if connection is not None and connection.is_open:
            return connection
        if self.is_closed:
            raise Unavailable("the session has ended")
        if self._opening is None:
            self._opening = SharedOpening()
        return await self._opening.wait_for(
            server,
            lambda: self._open_connection(server, open_connection),
            lambda: Unavailable("the session has ended"),
        )

    async def _open_connection(
        self, server: str, open_connection: Callable[[], Coroutine[None, None, UpstreamConnection]]
    ) -> UpstreamConnection:
        connection = self.own_connections[server] = await open_connection()
        return connection

    async def close(self) -> None:
        """Close all streams and connections of the session, and fail the requests to its client."""
        # Set this first, because handlers use it to tell a disconnect from an answer.
        self.is_closed = True
        asked, taken = self.conversation.close()
        for errand in asked:
            errand.fail(Unavailable("the client went away"))
        for errand in taken:
            errand.withdraw(None)
        if self._standalone is not None:
            self._standalone.end()
        for farewell in self.on_close.values():
            farewell()
        self.on_close.clear()
        opening = [] if self._opening is None else self._opening.cancel()
        connections = list(self.own_connections.values())
        self.own_connections.clear()
        ends = (connection.close() for connection in connections)
        await asyncio.gather(*ends, *opening, return_exceptions=True)


def offer_task_status(connection: UpstreamConnection, frame: Frame) -> None:
    """Offer the status of a task to the calls that may just have begun it.

    Each of them passes on only what its own answer names.
    """
    for call in connection.callers:
        call.deliver_notification(frame)


def _latest_call(connection: UpstreamConnection) -> Call | None:
    """Return the latest open call if the transport does not name streams, or None.

    It is the most likely subject of a message from such a server.
    """
    if connection.transport.has_separate_streams:
        return None
    calls = connection.callers
    return calls[-1] if calls else None


class SessionStore:
    """The sessions of this node, found by id. It ends idle sessions and limits their number.

    Rule 1: if a principal with a full share begins a session, its idlest session ends.

    Rule 2: if all places are taken, the principal with the most sessions loses its idlest one to a
    principal with fewer.
    """

    def __init__(
        self,
        now: Callable[[], float],
        max_sessions: int,
        idle_seconds: float,
        max_per_principal: int | None = None,
        *,
        max_streams_per_principal: int = sys.maxsize,
        make_session_id: Callable[[], str] | None = None,
    ) -> None:
        self.now = now
        # The event streams of clients, with or without a session.
        self.streams = PrincipalShares(
            "streams", "max_streams_per_principal", max_streams_per_principal
        )
        # Makes session ids that name their node, so that other nodes can find it.
        self._make_session_id = make_session_id
        self._max_sessions = max_sessions
        self._idle_seconds = idle_seconds
        self._session_by_id: dict[str, Session] = {}
        self._shares = PrincipalShares(
            "sessions", "max_sessions_per_principal", max_per_principal or max_sessions
        )
        # The sessions of each principal, least recently used first.
        self._sessions_by_principal: dict[str, OrderedDict[str, Session]] = {}
        self._last_nudge_at = now()
        self._closing_tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._session_by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._session_by_id.values()))

    def begin(self, endpoint_name: str, party: str = "", *, actor: Actor | None = None) -> Session:
        """Begin a session. Raises Unavailable at the limit if no other session can end for it."""
        if self._shares.is_full(party):
            self._end_idlest_session(party, self._shares.error())
        elif len(self._session_by_id) >= self._max_sessions:
            self._make_room(party)
        self._shares.acquire(party)
        session = Session(endpoint_name, self.now(), party)
        session.actor = actor
        session.id = session.id if self._make_session_id is None else self._make_session_id()
        self._session_by_id[session.id] = session
        self._sessions_by_principal.setdefault(party, OrderedDict())[session.id] = session
        return session

    def _make_room(self, party: str) -> None:
        """End a session of the principal with the most sessions, if `party` has fewer.

        Raises Unavailable otherwise.
        """
        full = Unavailable(
            "too many sessions are open on this node; close some", EXHAUSTED, RETRY_AFTER
        )
        largest = max(self._sessions_by_principal, key=self._shares.count_of)
        # After the exchange the largest holder still has at least as many sessions as `party`.
        if self._shares.count_of(largest) <= self._shares.count_of(party) + 1:
            raise full
        self._end_idlest_session(largest, full, even_busy=True)

    def _end_idlest_session(
        self, party: str, error: Unavailable, *, even_busy: bool = False
    ) -> None:
        """End the idlest session of a principal. Raise `error` if all of them are in use."""
        held = self._sessions_by_principal[party].values()
        idle = (each for each in held if not each.attached_streams and not each.has_open_call)
        found = next(idle, next(iter(held)) if even_busy else None)
        if found is None:
            raise error
        log.info("The most idle session of %s is closed: it has %d", party, len(held))
        self.end_soon(found)

    def find(self, session_id: str, endpoint_name: str, party: str = "") -> Session | None:
        """Return the session and mark it as used, or None.

        A session exists only for its own principal at its own endpoint.
        """
        session = self._session_by_id.get(session_id)
        if session is None or session.endpoint_name != endpoint_name or session.party != party:
            return None
        session.used_at = self.now()
        self._sessions_by_principal[party].move_to_end(session_id)
        return session

    async def end(self, session: Session) -> None:
        if session.id in self._session_by_id:
            self._forget(session)
            await session.close()

    def end_soon(self, session: Session) -> None:
        """End a session in the background. It cannot be found any more when this returns."""
        if session.id in self._session_by_id:
            self._forget(session)
            self._run_in_background(session.close())

    def _forget(self, session: Session) -> None:
        del self._session_by_id[session.id]
        held = self._sessions_by_principal[session.party]
        del held[session.id]
        if not held:
            del self._sessions_by_principal[session.party]
        self._shares.release(session.party)

    def _run_in_background(self, ending: Coroutine[None, None, None]) -> None:
        """Close a session in the background."""
        task = asyncio.ensure_future(ending)
        self._closing_tasks.add(task)
        task.add_done_callback(self._closing_tasks.discard)

    def check(self, keep_alive_seconds: float) -> None:
        """End sessions that are idle for too long.

        A session with an open call or stream is not idle. Each standing stream receives a comment
        once in `keep_alive_seconds` seconds, so that proxies keep it open.
        """
        now = self.now()
        horizon = now - self._idle_seconds
        nudging = now - self._last_nudge_at > keep_alive_seconds
        self._last_nudge_at = now if nudging else self._last_nudge_at
        for session in list(self._session_by_id.values()):
            if session.attached_streams:
                session.used_at = now
                if nudging:
                    session.standalone.wake_reader()
            elif session.has_open_call:
                # Idle time begins at the end of the last call, however long the call took.
                session.used_at = now
            elif session.used_at < horizon:
                self._run_in_background(self.end(session))

    def end_streams(self) -> None:
        """End the standing streams, so that they do not delay the shutdown."""
        for session in self:
            session.standalone.end()

    async def close(self) -> None:
        await asyncio.gather(*(self.end(session) for session in self), *self._closing_tasks)
