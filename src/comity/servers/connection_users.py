"""The clients of one connection to a server: who gets its notifications and its questions."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from comity.errors import EXHAUSTED, MalformedMessage
from comity.mcp import eras, jsonrpc, mgp
from comity.mcp.jsonrpc import Frame
from comity.mcp.protocol import LIST_CHANGES, LOG_LEVELS, MESSAGE, RESOURCE_UPDATED
from comity.sessions.calls import Call, CallClient, ServerRequest
from comity.sessions.sessions import Session, offer_task_status
from comity.sessions.upstream import UpstreamConnection
from comity.telemetry.metrics import name_in

log = logging.getLogger(__name__)

MAX_FOLLOWED_RESOURCES = 4096
"""How many resources one subscriber may subscribe to on a connection."""


MAX_PARENT_LEVELS = 32
"""How many parent levels of a resource URI are searched for subscribers."""


MAX_ASKING_TOOLS = 256
"""How many tools of a server are remembered as tools that ask their client questions."""


AMBIGUOUS_CALLER_TEXT = (
    "calls of several clients are open on this process, and the question names none of them. "
    'Make the call again, or set process_per = "session" for this server'
)


class ResourceSubscriber(Protocol):
    """A client that receives the updates of resources to which it subscribed."""

    def send_notification(self, frame: Frame) -> None: ...


class ConnectionUsers:
    """The sessions that share one connection, and their resource subscriptions."""

    def __init__(
        self,
        on_list_changed: Callable[[str], None] | None,
        on_lost: Callable[[UpstreamConnection, str], None],
    ) -> None:
        self.subscriptions_lost = asyncio.Event()
        self._on_list_changed = on_list_changed
        self._on_lost = on_lost
        self._sessions: set[Session] = set()
        self._subscribers_by_uri: dict[str, set[ResourceSubscriber]] = {}
        self._uris_by_subscriber: dict[ResourceSubscriber, set[str]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session: object) -> bool:
        return session in self._sessions

    @property
    def sessions(self) -> frozenset[Session]:
        return frozenset(self._sessions)

    def attach(self, session: Session) -> None:
        self._sessions.add(session)

    def detach(self, session: Session) -> list[str]:
        """Remove a session. Return the resources that no session subscribes to any more."""
        self._sessions.discard(session)
        followed = sorted(self._uris_by_subscriber.get(session, ()))
        return [uri for uri in followed if self.unfollow(session, uri)]

    def follow(self, subscriber: ResourceSubscriber, uri: str) -> None:
        followed = self._uris_by_subscriber.setdefault(subscriber, set())
        if len(followed) >= MAX_FOLLOWED_RESOURCES and uri not in followed:
            raise MalformedMessage("too many resources are followed at once", EXHAUSTED)
        followed.add(uri)
        self._subscribers_by_uri.setdefault(uri, set()).add(subscriber)

    def unfollow(self, subscriber: ResourceSubscriber, uri: str) -> bool:
        """Remove a subscription. Return whether it was the last one for the resource."""
        readers = self._subscribers_by_uri.get(uri)
        if readers is None or subscriber not in readers:
            return False
        readers.discard(subscriber)
        self._uris_by_subscriber[subscriber].discard(uri)
        if not self._uris_by_subscriber[subscriber]:
            del self._uris_by_subscriber[subscriber]
        if not readers:
            del self._subscribers_by_uri[uri]
        return not readers

    def _subscribers_of(self, uri: str) -> set[ResourceSubscriber]:
        """Return the subscribers of a resource, or of one that contains it. (MCP §5.2)"""
        found = set(self._subscribers_by_uri.get(uri, ()))
        for _ in range(MAX_PARENT_LEVELS):
            cut = max(uri.rfind("/"), uri.rfind("#"), uri.rfind("?"))
            if cut < 0:
                break
            found.update(
                self._subscribers_by_uri.get(uri[: cut + 1], ()),
                self._subscribers_by_uri.get(uri[:cut], ()),
            )
            uri = uri[:cut]
        return found

    def lowest_level(self) -> str | None:
        """Return the most verbose log level that any session requested."""
        asked = [session.log_level for session in self._sessions if session.log_level in LOG_LEVELS]
        return min(asked, key=LOG_LEVELS.index, default=None)

    def on_notification(self, connection: UpstreamConnection, frame: Frame) -> None:
        if frame.method in LIST_CHANGES:
            self._notify_all(frame)
        elif frame.method == RESOURCE_UPDATED:
            for reader in self._subscribers_of(_uri(frame)):
                reader.send_notification(frame)
        elif frame.method == eras.STATUS:
            # The tasks of all clients run here, and each is told only about its own.
            told = [each.notify_task_status(connection.server, frame) for each in self._sessions]
            if not any(told):
                offer_task_status(connection, frame)
        elif frame.method == mgp.CHANGED:
            # Lifecycle notifications go to every session that negotiated them with the server.
            for session in self._sessions:
                if session.speaks_mgp_with_servers:
                    session.send_notification(frame)
        else:
            self._notify_caller(connection, frame)

    def on_request(
        self, connection: UpstreamConnection, server_request: ServerRequest, frame: Frame
    ) -> None:
        call = _asking_call(connection)
        if call is not None:
            if len(connection.activity.asking_tools) < MAX_ASKING_TOOLS:
                connection.activity.asking_tools.add(name_in(call.params))
            call.deliver_request(server_request, frame)
        elif len(self._sessions) == 1 and not connection.callers:
            session = next(iter(self._sessions))
            server_request.send_to_client(session, frame, session.standalone)
        else:
            connection.activity.is_crowded = connection.activity.is_crowded or bool(
                connection.callers
            )
            several = connection.callers or self._sessions
            server_request.decline(frame, AMBIGUOUS_CALLER_TEXT if several else "no client is here")

    def on_session_renewed(self, connection: UpstreamConnection) -> None:
        """Handle a new start of the server: all of its lists may have changed."""
        self.on_subscriptions_lost()
        if self._on_list_changed is not None:
            for method in LIST_CHANGES:
                self._on_list_changed(method)

    def on_connection_lost(self, connection: UpstreamConnection, reason: str) -> None:
        self.on_subscriptions_lost()
        self._on_lost(connection, reason)

    def on_subscriptions_lost(self) -> None:
        """Note that the server no longer knows the subscriptions of this connection."""
        forgotten, self.subscriptions_lost = self.subscriptions_lost, asyncio.Event()
        forgotten.set()

    def _notify_all(self, frame: Frame) -> None:
        for session in self._sessions:
            if not session.sees_all_servers:
                session.send_notification(frame)

    def _notify_caller(self, connection: UpstreamConnection, frame: Frame) -> None:
        call = _sole_caller(connection)
        if call is not None:
            if _reaches_log_level(frame, call.client):
                call.deliver_notification(frame)
        elif len(self._sessions) == 1 and not connection.callers:
            session = next(iter(self._sessions))
            if _reaches_log_level(frame, session):
                session.on_notification(connection, frame)
        else:
            log.info("server %r: %s belongs to no one caller", connection.server, frame.method)


def client_key(call: Call) -> str:
    """Return a key for the client of a call: its session, or otherwise its principal."""
    return f"{'' if call.client is None else call.client.id} {call.client_stream.actor.party}"


def _asking_call(connection: UpstreamConnection) -> Call | None:
    """Return the call that a server's question belongs to, or None if that is ambiguous.

    Modern clients have no session. Theirs is the principal's only call that does not already wait
    for its client.
    """
    calls = connection.callers
    if len({client_key(call) for call in calls}) != 1:
        return None
    if calls[-1].client is not None:
        return calls[-1]
    going_on = [call for call in calls if not _awaits_client(call)] or calls
    return going_on[-1] if len(going_on) == 1 else None


def _awaits_client(call: Call) -> bool:
    return call.client_call is None


def _sole_caller(connection: UpstreamConnection) -> Call | None:
    """Return the last call of the only client with calls on this connection, or None."""
    calls = connection.callers
    return calls[-1] if len({id(call.client or call) for call in calls}) == 1 else None


def _reaches_log_level(frame: Frame, client: CallClient | None) -> bool:
    """Whether a log message reaches the level that this client requested."""
    if frame.method != MESSAGE or not isinstance(client, Session) or client.log_level is None:
        return True
    params = frame.parameters
    level = jsonrpc.decode_text(params.get("level"))
    if level not in LOG_LEVELS or client.log_level not in LOG_LEVELS:
        return True
    return LOG_LEVELS.index(level) >= LOG_LEVELS.index(client.log_level)


def _uri(frame: Frame) -> str:
    params = frame.parameters
    return jsonrpc.decode_text(params.get("uri")) or ""
