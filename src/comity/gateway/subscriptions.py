"""Subscriptions of clients to list changes and to resources."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from comity.catalog.access import CatalogAccess
from comity.catalog.listing import gateway_envelope
from comity.errors import EXHAUSTED, INVALID_PARAMS, UPSTREAM_SLOW, MalformedMessage, Unavailable
from comity.events.audit_feed import AuditFeed
from comity.events.methods import EventMethods
from comity.events.model import LISTENED
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.actors import GROUP_PREFIX, Actor
from comity.mcp.conversation import Conversation
from comity.mcp.entries import EntryKind
from comity.mcp.jsonrpc import UNSET, Frame, Id
from comity.mcp.mgp import NegotiatedTerms
from comity.mcp.protocol import Era
from comity.policy.grants import ANY_SUBJECT
from comity.servers.connection_users import ResourceSubscriber
from comity.servers.connections import ServerConnections
from comity.servers.service import ServerService
from comity.sessions.calls import Call, PendingMessage
from comity.sessions.sessions import Session
from comity.sessions.upstream import UpstreamConnection
from comity.toolkit.background import draw_delay
from comity.toolkit.resilience import RetrySchedule
from comity.views.service import ServedView

log = logging.getLogger(__name__)

MAX_FOLLOWED_RESOURCES: Final = 256
"""The most resources that one client may follow."""
AGREE_TIMEOUT_SECONDS: Final = 10.0
"""How long a modern server may take to acknowledge a subscription."""
UNSUBSCRIBE_TIMEOUT_SECONDS: Final = 10.0
"""How long the unsubscribe requests may take after a client has left."""

type Hear = Callable[[Frame], None]
type Place = tuple[str, str]
"""A resource: the name of its server, and its URI."""
type Find = Callable[[], ServerConnections | None]
"""Returns the current connections of a server, or None while no server has that name."""


async def follow_resources(find: Find, uris: Sequence[str], subscriber: ResourceSubscriber) -> None:
    """Follow resources for a modern client, in the protocol version of their server."""
    await _repeat_with_backoff(_ResourceFollower(find, uris, subscriber).follow_once)


class _ResourceFollower:
    """The resources of one server that one modern client follows."""

    def __init__(self, find: Find, uris: Sequence[str], subscriber: ResourceSubscriber) -> None:
        self._find = find
        self._uris = uris
        self._subscriber = subscriber
        self._agreement_count = 0

    async def follow_once(self) -> bool:
        """Follow until the server drops the subscription. Return whether to try again."""
        server = self._find()
        if server is None:
            raise Unavailable("this server is not available")
        if Era.MODERN in server.eras:
            return await _listen(server, self._uris, self._on_notification)
        await _subscribe(server, self._uris, self._subscriber, self._on_agreed)
        return True

    def _on_notification(self, frame: Frame) -> None:
        if frame.method == protocol.ACKNOWLEDGED:
            self._on_agreed()
        elif frame.method == protocol.RESOURCE_UPDATED:
            self._subscriber.send_notification(frame)

    def _on_agreed(self) -> None:
        self._agreement_count += 1
        if self._agreement_count > 1:
            # A second acknowledgement follows a gap, in which each resource may have changed.
            for uri in self._uris:
                self._subscriber.send_notification(_resource_updated(uri))


async def _repeat_with_backoff(once: Callable[[], Coroutine[None, None, bool]]) -> None:
    """Repeat `once` with growing delays until it returns False or the task is cancelled."""
    ended = 0
    while True:
        try:
            if not await once():
                return
        except (Unavailable, MalformedMessage) as error:
            log.info("Resource updates are not received: %s", error)
        except Exception:
            log.exception("Following resource updates failed")
            return
        ended += 1
        pause = draw_delay(RetrySchedule(), ended)
        await asyncio.sleep(pause.total_seconds())


async def _listen(server: ServerConnections, uris: Sequence[str], on_notification: Hear) -> bool:
    """Listen until the stream ends. Return whether to listen again."""
    params = {"_meta": gateway_envelope(), "notifications": {"resourceSubscriptions": list(uris)}}
    headers = ((protocol.METHOD_HEADER, protocol.LISTEN.encode()),)
    answer = await server.modern_connection().request(
        protocol.LISTEN, params, headers, on_notification
    )
    if answer.error is UNSET:
        return True
    on_notification(answer)
    return False


async def _subscribe(
    server: ServerConnections,
    uris: Sequence[str],
    subscriber: ResourceSubscriber,
    on_agreed: Callable[[], None],
) -> None:
    """Stay subscribed until the server loses the subscriptions, then unsubscribe."""
    own = server.require_own()
    anew = own.users.subscriptions_lost
    try:
        for uri in uris:
            own.users.follow(subscriber, uri)
            await own.connection.request(protocol.SUBSCRIBE, {"uri": uri})
        on_agreed()
        await anew.wait()
    finally:
        left = [uri for uri in uris if own.users.unfollow(subscriber, uri)]
        if own.connection.is_open and not anew.is_set():
            await _unsubscribe(own.connection, left)


async def _unsubscribe(connection: UpstreamConnection, uris: Sequence[str]) -> None:
    with contextlib.suppress(Unavailable, TimeoutError):
        async with asyncio.timeout(UNSUBSCRIBE_TIMEOUT_SECONDS):
            for uri in uris:
                await connection.request(protocol.UNSUBSCRIBE, {"uri": uri})


class _ResourceListener:
    """Listens for one resource of a modern server on behalf of all its legacy subscribers."""

    def __init__(self, server: ServerConnections, uri: str) -> None:
        self.server = server
        self.readers: set[ResourceSubscriber] = set()
        self.agreed: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._uri = uri
        listening = _repeat_with_backoff(lambda: _listen(server, [uri], self._on_notification))
        self.task = asyncio.ensure_future(listening)

    def _on_notification(self, frame: Frame) -> None:
        if not self.agreed.done():
            self.agreed.set_result(frame)
        elif frame.method in (protocol.RESOURCE_UPDATED, protocol.ACKNOWLEDGED):
            # A second acknowledgement follows a gap in which changes were missed, so it counts as
            # an update. An update may name a part of the followed resource.
            named = jsonrpc.decode_text(frame.parameters.get("uri"))
            for reader in list(self.readers):
                reader.send_notification(_resource_updated(named or self._uri))


class ResourceSubscriptions:
    """The resources of modern servers that legacy clients follow, with one listener for each."""

    def __init__(self) -> None:
        self._listener_by_resource: dict[Place, _ResourceListener] = {}
        self._resources_by_subscriber: dict[ResourceSubscriber, set[Place]] = {}

    def __len__(self) -> int:
        return len(self._listener_by_resource)

    async def follow(
        self, server: ServerConnections, uri: str, subscriber: ResourceSubscriber
    ) -> None:
        """Follow a resource, and return once the server has agreed.

        Raises MalformedMessage if the server refuses or the client follows too many resources.
        Raises Unavailable if the server does not agree in time.
        """
        place = (server.name, uri)
        places = self._resources_by_subscriber.get(subscriber, set())
        if len(places) >= MAX_FOLLOWED_RESOURCES and place not in places:
            raise MalformedMessage("too many resources are followed at once", EXHAUSTED)
        ear = self._listen(server, place)
        ear.readers.add(subscriber)
        self._resources_by_subscriber.setdefault(subscriber, set()).add(place)
        await asyncio.wait(
            [ear.agreed, ear.task],
            timeout=AGREE_TIMEOUT_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        error = jsonrpc.error_of(ear.agreed.result()) if ear.agreed.done() else None
        if error is None and ear.agreed.done():
            return
        self.unfollow(server, uri, subscriber)
        if error is None:
            raise Unavailable(f"server {server.name!r} did not agree in time", UPSTREAM_SLOW)
        raise MalformedMessage(f"the server would not: {error.message:.200}", INVALID_PARAMS)

    def unfollow(self, server: ServerConnections, uri: str, subscriber: ResourceSubscriber) -> None:
        self._unfollow((server.name, uri), subscriber)

    def remove_subscriber(self, subscriber: ResourceSubscriber) -> None:
        """Remove all subscriptions of a client that is gone."""
        for place in list(self._resources_by_subscriber.get(subscriber, ())):
            self._unfollow(place, subscriber)

    def _unfollow(self, place: Place, subscriber: ResourceSubscriber) -> None:
        places, ear = (
            self._resources_by_subscriber.get(subscriber, set()),
            self._listener_by_resource.get(place),
        )
        places.discard(place)
        if not places:
            self._resources_by_subscriber.pop(subscriber, None)
        if ear is not None:
            ear.readers.discard(subscriber)
            if not ear.readers:
                del self._listener_by_resource[place]
                ear.task.cancel()

    def _listen(self, server: ServerConnections, place: Place) -> _ResourceListener:
        """Return the listener of a resource.

        A listener that has ended, or that belongs to a replaced server, is replaced.
        """
        before = self._listener_by_resource.get(place)
        if before is not None and before.server is server and not before.task.done():
            return before
        ear = self._listener_by_resource[place] = _ResourceListener(server, place[1])
        if before is not None:
            ear.readers |= before.readers
            before.task.cancel()
        return ear


def _resource_updated(uri: str) -> Frame:
    return jsonrpc.make_notification(protocol.RESOURCE_UPDATED, {"uri": uri})


BATCH_SECONDS: Final = 0.05
"""Changes of several servers within this time are sent as one notification."""

METHOD_BY_KIND: Final = {
    EntryKind.TOOL: protocol.TOOLS_CHANGED,
    EntryKind.PROMPT: protocol.PROMPTS_CHANGED,
    EntryKind.RESOURCE: protocol.RESOURCES_CHANGED,
    EntryKind.TEMPLATE: protocol.RESOURCES_CHANGED,
}
METHOD_BY_FILTER: Final = {
    "toolsListChanged": protocol.TOOLS_CHANGED,
    "promptsListChanged": protocol.PROMPTS_CHANGED,
    "resourcesListChanged": protocol.RESOURCES_CHANGED,
}


class ListenScope(NamedTuple):
    """The actor that listens, and the server or the view of the endpoint; None means all."""

    actor: Actor
    server: str | None = None
    view: ServedView | None = None

    @property
    def is_for_all_servers(self) -> bool:
        return self.server is None and self.view is None


_strings = msgspec.json.Decoder(list[str])


class SubscriptionListener:
    """The listen request of one client, in the place of its call's connection.

    It holds the notifications that the client receives, and the tasks that follow resources.
    """

    def __init__(
        self, methods: frozenset[str], on_close: Callable[[], object], scope: ListenScope
    ) -> None:
        self.conversation: Conversation[PendingMessage] = Conversation()
        self.mgp: NegotiatedTerms | None = None
        self.methods = methods
        self.scope = scope
        self.follow_tasks: set[asyncio.Task[None]] = set()
        self._on_close = on_close

    def send_message(self, frame: Frame) -> None:
        """Do nothing: the client of a listen request sends no messages to a server."""

    def throttle(self, outgoing_id: int, paused: bool) -> None:
        """Do nothing: notifications are short, and the client stream limits them."""

    def cancel_request(self, outgoing_id: int, reason: Raw | None) -> None:
        """Stop following resources, because the client closed its stream."""
        self._on_close()
        for task in self.follow_tasks:
            task.cancel()

    def follow(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.follow_tasks.add(task)
        task.add_done_callback(self.follow_tasks.discard)


class ListSubscriptions:
    """All sessions and listen requests that receive notifications from the gateway itself."""

    def __init__(
        self,
        servers: ServerService,
        catalog_access: CatalogAccess,
        *,
        audit_feed: AuditFeed | None = None,
        events: EventMethods | None = None,
        has_other_list: Callable[[Actor, Session | None], bool] | None = None,
    ) -> None:
        self._servers = servers
        self._catalog_access = catalog_access
        self._sessions: dict[Session, ListenScope] = {}
        self._listeners: dict[Call, SubscriptionListener] = {}
        self._subscribers_by_principal: dict[str, dict[Session | Call, None]] = {}
        self._changed: set[tuple[str, str]] = set()
        self._regranted: set[str] = set()
        # Whether a client's short tool list has changed; None if clients see all tools.
        self._has_other_list = has_other_list
        self.audit_feed = audit_feed
        self.events = events
        catalog_access.catalog.watch(self._on_catalog_changed)

    def __len__(self) -> int:
        return len(self._listeners)

    def attach(
        self,
        session: Session,
        actor: Actor,
        server: str | None = None,
        view: ServedView | None = None,
    ) -> None:
        """Send a session the list changes of one server, of a view, or of all servers."""
        self._sessions[session] = ListenScope(actor, server, view)
        self._subscribers_by_principal.setdefault(actor.party, {})[session] = None
        session.on_close[self] = lambda: self._detach(session)

    def _detach(self, session: Session) -> None:
        place = self._sessions.pop(session, None)
        if place is not None:
            self._remove_subscriber(place.actor.party, session)

    def _remove_subscriber(self, party: str, subscriber: Session | Call) -> None:
        present = self._subscribers_by_principal.get(party, {})
        present.pop(subscriber, None)
        if not present:
            self._subscribers_by_principal.pop(party, None)

    async def listen(
        self,
        call: Call,
        frame: Frame,
        server: str | None = None,
        view: ServedView | None = None,
    ) -> None:
        """Acknowledge a listen request, then send notifications until the client closes the stream.

        Raises MalformedMessage if the request is invalid.
        """
        wanted, scope = (
            _requested_notifications(frame),
            ListenScope(call.client_stream.actor, server, view),
        )
        honoured: dict[str, object] = {
            name: True
            for name in METHOD_BY_FILTER
            if wanted.get(name) is not None and _is_true(wanted[name])
        }
        reads = self._uri_filter(scope)
        readable = [uri for uri in _uris(wanted) if reads(uri)]
        methods = frozenset(METHOD_BY_FILTER[name] for name in honoured)
        if readable:
            honoured["resourceSubscriptions"] = readable
        if self.events is not None and scope.is_for_all_servers:
            honoured |= await self.events.listen(call, frame, wanted.get(LISTENED))
            if call.client_stream.is_final:
                # The client disconnected during the await.
                self.events.forget(call)
                return
        if self.audit_feed is not None and scope.is_for_all_servers:
            honoured |= self.audit_feed.listen(call, frame)
        actor = scope.actor
        listener = SubscriptionListener(methods, lambda: self._remove_listener(call), scope)
        call.connection = self._listeners[call] = listener
        self._subscribers_by_principal.setdefault(actor.party, {})[call] = None
        call.client_stream.stream()
        call.deliver_notification(
            _with_subscription_id(
                protocol.ACKNOWLEDGED, call.client_request_id, {"notifications": honoured}
            )
        )
        by_server = self._uris_by_server(scope, readable) if server is None else {server: readable}
        for name, named in by_server.items():
            if named:
                listener.follow(
                    follow_resources(
                        partial(self._connections_of, name), named, _SubscriptionReader(call, reads)
                    )
                )

    def _remove_listener(self, call: Call) -> None:
        self._listeners.pop(call, None)
        if self.audit_feed is not None:
            self.audit_feed.forget(call)
        if self.events is not None:
            self.events.forget(call)
        self._remove_subscriber(call.client_stream.actor.party, call)

    def end_server_streams(self, server: str) -> None:
        """End the streams at the endpoint of a server that was removed."""
        for call, listener in list(self._listeners.items()):
            if listener.scope.server == server:
                call.withdraw(None)

    def _connections_of(self, name: str) -> ServerConnections | None:
        server = self._servers.get(name)
        return None if server is None else server.connections

    def on_grants_changed(self, subject: str) -> None:
        """Announce that the grants of a subject changed. An empty name means every subject."""
        self._schedule_batch()
        self._regranted.add(subject or ANY_SUBJECT)

    def _on_catalog_changed(self, server: str, kind: EntryKind) -> None:
        self._schedule_batch()
        self._changed.add((server, METHOD_BY_KIND[kind]))

    def _schedule_batch(self) -> None:
        # Only the first change starts the timer. Later changes join it.
        if not self._changed and not self._regranted:
            asyncio.get_running_loop().call_later(BATCH_SECONDS, self._send_batch)

    def _send_batch(self) -> None:
        changed, self._changed = self._changed, set()
        regranted, self._regranted = self._regranted, set()
        for who in self._affected_subscribers(bool(changed), regranted):
            listener = self._listeners.get(who) if isinstance(who, Call) else None
            place = self._sessions.get(who) if isinstance(who, Session) else None
            place = listener.scope if listener is not None else place
            if place is None:
                continue
            is_regranted = not regranted.isdisjoint((*place.actor.subjects, ANY_SUBJECT))
            for method in (
                protocol.LIST_CHANGES if is_regranted else self._methods_for(place, changed)
            ):
                if method != protocol.TOOLS_CHANGED or self._is_list_changed(who, place):
                    _notify(who, listener, method)

    def _is_list_changed(self, subscriber: Session | Call, scope: ListenScope) -> bool:
        if self._has_other_list is None or not scope.is_for_all_servers:
            return True
        return self._has_other_list(
            scope.actor, subscriber if isinstance(subscriber, Session) else None
        )

    def on_tool_list_changed(self, actor: Actor, session: Session | None) -> None:
        """Announce that the tool list of one session changed.

        Without a session, announce it to the listen requests of the actor at the endpoint of all
        servers.
        """
        if session is not None:
            _notify(session, None, protocol.TOOLS_CHANGED)
            return
        for who in list(self._subscribers_by_principal.get(actor.party, ())):
            listener = self._listeners.get(who) if isinstance(who, Call) else None
            if listener is not None and listener.scope.is_for_all_servers:
                _notify(who, listener, protocol.TOOLS_CHANGED)

    def _affected_subscribers(
        self, is_changed: bool, regranted: set[str]
    ) -> Iterable[Session | Call]:
        is_for_group = any(subject.startswith(GROUP_PREFIX) for subject in regranted)
        if is_changed or is_for_group or ANY_SUBJECT in regranted:
            return [*self._sessions, *self._listeners]
        return [who for party in regranted for who in self._subscribers_by_principal.get(party, ())]

    def _methods_for(self, scope: ListenScope, changed: set[tuple[str, str]]) -> list[str]:
        told: set[str] = set()
        view = scope.view
        if view is not None:
            # The list of a view changes with its settings too, whose changes bear its target.
            return sorted(
                {
                    method
                    for server, method in changed
                    if server == view.target or view.concerns(server)
                }
            )
        for server, method in changed:
            if method not in told and scope.server in (None, server):
                told |= (
                    {method} if self._catalog_access.may_see_state(scope.actor, server) else set()
                )
        return sorted(told)

    def on_view_changed(self, view: ServedView) -> None:
        """Announce that the settings of a view have changed."""
        self._schedule_batch()
        self._changed.update((view.target, method) for method in protocol.LIST_CHANGES)

    def end_view_streams(self, view: ServedView) -> None:
        """End the streams at the endpoint of a view that was removed."""
        for call, listener in list(self._listeners.items()):
            if listener.scope.view is view:
                call.withdraw(None)

    def _uri_filter(self, scope: ListenScope) -> Callable[[str], bool]:
        if scope.view is None:
            return self._catalog_access.uri_filter(scope.actor, scope.server)
        return lambda uri: bool(self._uris_by_server(scope, [uri]))

    def _uris_by_server(self, scope: ListenScope, uris: list[str]) -> dict[str, list[str]]:
        """Assign each resource to the first server at which the actor may read it."""
        found: dict[str, list[str]] = {}
        for uri in uris:
            for offer in self._catalog_access.catalog.find_resources(uri):
                if self._may_read(scope, offer.server, uri):
                    found.setdefault(offer.server, []).append(uri)
                    break
        return found

    def _may_read(self, scope: ListenScope, server: str, uri: str) -> bool:
        if scope.view is None:
            return self._catalog_access.may_read(scope.actor, server, uri)
        is_served = scope.view.serves_resource(server, uri)
        return is_served and self._catalog_access.may_read(
            scope.actor, server, uri, scope.view.name
        )


def _notify(subscriber: Session | Call, listener: SubscriptionListener | None, method: str) -> None:
    if isinstance(subscriber, Session):
        subscriber.send_notification(jsonrpc.make_notification(method))
    elif listener is not None and method in listener.methods:
        subscriber.deliver_notification(
            _with_subscription_id(method, subscriber.client_request_id, {})
        )


class _SubscriptionReader:
    """Sends resource updates to a listen request, each with the id of its subscription."""

    def __init__(self, call: Call, may_read: Callable[[str], bool]) -> None:
        self._call = call
        self._may_read = may_read

    def send_notification(self, frame: Frame) -> None:
        if frame.method == protocol.RESOURCE_UPDATED and frame.params is not UNSET:
            params = jsonrpc.decode_members(frame.params)
            if not self._may_read(jsonrpc.decode_text(params.get("uri")) or ""):
                return
            self._call.deliver_notification(
                _with_subscription_id(
                    protocol.RESOURCE_UPDATED, self._call.client_request_id, params
                )
            )


_TASK_NOTIFICATIONS: Final = "notifications/tasks"


def narrow_listen_request(call: Call, frame: Frame, may_read: Callable[[str], bool]) -> Frame:
    """Remove tasks, and the resources that the actor may not read, from a listen request.

    The call also drops later updates of resources that the actor may no longer read.
    """

    def retell(told: Frame) -> Frame | None:
        if str(told.method).startswith(_TASK_NOTIFICATIONS):
            return None
        if told.method != protocol.RESOURCE_UPDATED:
            return told
        uri = jsonrpc.decode_text(told.parameters.get("uri"))
        return told if may_read(uri or "") else None

    call.adapt_notification = retell
    params = frame.parameters
    wanted = jsonrpc.decode_members(params["notifications"]) if "notifications" in params else {}
    uris = _uris(wanted)
    readable = [uri for uri in uris if may_read(uri)]
    if len(readable) == len(uris) and "taskIds" not in wanted:
        return frame
    # The server knows tasks by ids of its own, which prove nothing about who began them.
    left = eras.omit_members(wanted, {"taskIds", "resourceSubscriptions"})
    if "resourceSubscriptions" in wanted:
        left["resourceSubscriptions"] = jsonrpc.to_raw(readable)
    return jsonrpc.with_params(frame, jsonrpc.to_raw({**params, "notifications": left}))


def _requested_notifications(frame: Frame) -> dict[str, Raw]:
    params = frame.parameters
    if "notifications" not in params:
        raise MalformedMessage("params.notifications is missing", INVALID_PARAMS)
    return jsonrpc.decode_members(params["notifications"])


def _uris(wanted: dict[str, Raw]) -> list[str]:
    try:
        uris = _strings.decode(wanted.get("resourceSubscriptions", b"[]"))
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise MalformedMessage("resourceSubscriptions is a list of URIs", INVALID_PARAMS) from None
    if len(uris) > MAX_FOLLOWED_RESOURCES:
        raise MalformedMessage("too many resources are followed at once", EXHAUSTED)
    return list(dict.fromkeys(uris))


def _is_true(raw: Raw) -> bool:
    return bytes(raw) == b"true"


def _with_subscription_id(method: str, listener: Id, params: Mapping[str, object]) -> Frame:
    """Return a notification with the subscription id that the client knows."""
    said = params.get("_meta")
    meta = jsonrpc.decode_members(said) if isinstance(said, Raw) and bytes(said)[:1] == b"{" else {}
    named = {**meta, protocol.SUBSCRIPTION_ID: listener}
    return jsonrpc.make_notification(method, {**params, "_meta": named})
