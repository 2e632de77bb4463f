"""The host of live servers: their messages, feature sets and call interceptors."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol

from msgspec import Raw

from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.catalog.listing import gateway_envelope
from comity.errors import (
    EXHAUSTED,
    FEATURE_NOT_ENABLED,
    FEATURE_UNKNOWN,
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    Fault,
    MalformedMessage,
    Unavailable,
)
from comity.live.audit import OK, LiveAuditEntry, record_entry
from comity.live.features import (
    DEFAULT_POLICY,
    UNDECIDED,
    UNKNOWN,
    FeatureSetStatus,
    LivePolicy,
    decide_feature_status,
    require_feature_set,
)
from comity.live.reverse_channel import ReverseChannel
from comity.mcp import jsonrpc, mcpl, protocol
from comity.mcp.actors import GATEWAY, Actor, PrincipalKind
from comity.mcp.jsonrpc import UNSET, Frame, Id
from comity.mcp.mcpl import FeatureSet, FeatureUse, McplDeclaration
from comity.policy.grants import FEATURE_VERB
from comity.policy.risk import SERVER_SUBJECT_PREFIX
from comity.policy.snapshot import PolicyEngine, WallClock
from comity.sessions.calls import Call, PendingMessage, ServerRequest
from comity.sessions.upstream import LiveConnection
from comity.telemetry.tracing import Headers
from comity.toolkit.background import BackgroundTasks
from comity.toolkit.resilience import RateLimit, RateLimiter

log = logging.getLogger(__name__)

TELL_SECONDS: Final = 10.0
MOST_TOLD: Final = 1_000
"""The number of messages that may wait for one server, which receives them one at a time."""

_EMPTY_PARAMS: Final = Raw(b"{}")
_CHUNK_SUFFIX: Final = "/chunk"
"""The end of the names of methods that carry a part of a message. Only the whole is recorded."""


@dataclass(slots=True)
class LiveServer:
    """A connected live server: its declaration, its policy and its enabled feature sets."""

    server: str
    connection: LiveConnection
    declared: McplDeclaration
    policy: LivePolicy
    enabled: frozenset[str]
    reverse_channel: ReverseChannel | None = None
    # The status of each declared set, the snapshot of grants behind it, and its earliest expiry.
    feature_statuses: Mapping[str, FeatureSetStatus] = field(
        default_factory=dict[str, FeatureSetStatus]
    )
    decision_basis: object = None
    until: datetime | None = None
    audit: AuditLog | None = None
    _send_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _waiting_notifications: int = 0

    @property
    def is_modern(self) -> bool:
        """Whether the server speaks 2026-07-28, in which servers send no requests of their own."""
        return self.connection.initialize_result is None

    def require(self, feature: str, use: FeatureUse) -> FeatureSet:
        """Return the enabled set that permits this use.

        Raises MalformedMessage if there is none.
        """
        return require_feature_set(self.declared.sets, self.enabled, feature, use)

    def feature_sets_for(self, use: FeatureUse) -> list[FeatureSet]:
        """Return the enabled sets that declare this use."""
        sets = self.declared.sets
        return [each for name, each in sets.items() if name in self.enabled and use in each.uses]

    def feature_status(self, feature: str) -> FeatureSetStatus:
        return self.feature_statuses.get(feature, UNDECIDED)

    async def request(self, method: str, params: Mapping[str, object], timeout: timedelta) -> Raw:
        """Send a request and return the result.

        Raises Unavailable if the server does not answer within `timeout`, and MalformedMessage with
        the server's own code if it answers with an error.
        """
        try:
            answer = await self._request_with_timeout(method, params, timeout)
        except (Unavailable, MalformedMessage) as error:
            self._record_audit(method, params, error.fault.error_type, AuditResult.FAILURE)
            raise
        self._record_audit(method, params, OK, AuditResult.SUCCESS)
        return answer

    async def _request_with_timeout(
        self, method: str, params: Mapping[str, object], timeout: timedelta
    ) -> Raw:
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                answer = await self._send_request(method, params)
        except TimeoutError:
            reason = f"server {self.server!r} did not answer {method}"
            raise Unavailable(reason, UPSTREAM_SLOW) from None
        error = jsonrpc.error_of(answer)
        if error is not None:
            fault = replace(UPSTREAM_FAILED, code=error.code)
            raise MalformedMessage(f"server {self.server!r}: {error.message[:500]}", fault)
        return _EMPTY_PARAMS if answer.result is UNSET else answer.result

    async def notify(self, method: str, params: Mapping[str, object]) -> None:
        """Send a notification. Delivery is not guaranteed, and failures are only logged. (D-59)"""
        if not method.endswith(_CHUNK_SUFFIX):
            self._record_audit(method, params, OK, AuditResult.SUCCESS)
        if not self.is_modern:
            self.connection.send_message(jsonrpc.make_notification(method, params))
            return
        if self._waiting_notifications >= MOST_TOLD:
            log.info("Server %r reads too slowly; %s is dropped", self.server, method)
            return
        self._waiting_notifications += 1
        try:
            # Messages go out one at a time, so that the latest one arrives last.
            async with self._send_lock, asyncio.timeout(TELL_SECONDS):
                await self._send_request(method, params)
        except (Unavailable, TimeoutError) as error:
            log.info("Server %r did not receive %s: %s", self.server, method, error)
        finally:
            self._waiting_notifications -= 1

    async def _send_request(self, method: str, params: Mapping[str, object]) -> Frame:
        """Send a request; modern servers get notifications as requests, too.

        Stock peers drop notifications that they do not expect.
        """
        if not self.is_modern:
            return await self.connection.request(method, params)
        headers = ((protocol.METHOD_HEADER, method.encode()),)
        return await self.connection.request(
            method, {**params, "_meta": gateway_envelope()}, headers
        )

    def _record_audit(
        self, method: str, params: Mapping[str, object], outcome: str, result: AuditResult
    ) -> None:
        feature, inference = (str(params.get(name, "")) for name in ("featureSet", "inferenceId"))
        deed = LiveAuditEntry(self.server, method, feature, inference, outcome, by=GATEWAY)
        record_entry(self.audit, AuditType.FEATURE_USED, deed, result, is_limited=True)


@dataclass(frozen=True, slots=True)
class LiveMessage:
    """A request or notification of a server. `feature` is the set that permits it."""

    live_server: LiveServer
    method: str
    params: Raw
    id: Id | None = None
    feature: FeatureSet | None = None
    # The client call during which the server sent it, and the connection that it came on.
    pending_message: PendingMessage | None = None
    connection: LiveConnection | None = None

    @property
    def members(self) -> dict[str, Raw]:
        return jsonrpc.decode_members(self.params)


_EMPTY_OBJECT: Final = Raw(b"{}")
_FAILURE_MESSAGE: Final = "the gateway failed; see its log"


class CallInterceptor(Protocol):
    """Adds data to tool calls before they leave, and takes it from their results."""

    def has_data_for(self, live_server: LiveServer, call: Call, frame: Frame) -> bool:
        """Whether this interceptor has anything to add to this call. If so, `add_data` adds it."""
        ...

    async def add_data(self, live_server: LiveServer, call: Call, frame: Frame) -> Frame:
        """Return the call with the data added.

        Raises Unavailable or MalformedMessage if the call must not go out.
        """
        ...

    async def take_data(self, live_server: LiveServer, call: Call, frame: Frame) -> Frame:
        """Return the result without the data, after storing it."""
        ...


async def send_call(
    interceptors: Sequence[CallInterceptor],
    live_server: LiveServer,
    connection: LiveConnection,
    call: Call,
    outgoing: tuple[Frame, Headers],
) -> None:
    """Send a call after all interceptors have added their data. Failures conclude the call."""
    frame, headers = outgoing
    try:
        for each in interceptors:
            frame = await each.add_data(live_server, call, frame)
        connection.send(call, frame, headers)
    except (Unavailable, MalformedMessage) as error:
        if not _is_call_over(call):
            call.fail(error)
    except Exception:
        log.exception("a call to server %r was not sent", live_server.server)
        if not _is_call_over(call):
            call.refuse(INTERNAL_ERROR, _FAILURE_MESSAGE)


async def answer_call(
    interceptors: Sequence[CallInterceptor],
    live_server: LiveServer,
    call: Call,
    frame: Frame,
    status: int,
) -> None:
    """Answer a call with the server's result, without the data that the gateway keeps."""
    try:
        for each in interceptors:
            frame = await each.take_data(live_server, call, frame)
        if not _is_call_over(call):
            call.deliver_answer(frame, status)
    except (Unavailable, MalformedMessage) as error:
        if not _is_call_over(call):
            call.fail(error)
    except Exception:
        log.exception("A response of server %r was not processed", live_server.server)
        if not _is_call_over(call):
            call.refuse(INTERNAL_ERROR, _FAILURE_MESSAGE)


def _is_call_over(call: Call) -> bool:
    """Whether the call was cancelled or ran into its deadline in the meantime."""
    return call.client_stream.is_final or call.is_recorded


def is_client_mcpl_host(frame: Frame) -> bool:
    """Whether the client of a modern request is an MCPL host itself."""
    return mcpl.mcpl_member_in(_capabilities(frame)) is not None


def _capabilities(frame: Frame) -> Raw | None:
    try:
        params = {} if frame.params is UNSET else jsonrpc.decode_members(frame.params)
        return jsonrpc.decode_members(params.get("_meta", _EMPTY_OBJECT)).get(
            protocol.CLIENT_CAPABILITIES
        )
    except MalformedMessage:
        return None


def announce_extension(frame: Frame) -> Frame:
    """Return a modern call that announces scopes and state to its server.

    In 2026-07-28 every request carries the capabilities of its sender.
    """
    params = {} if frame.params is UNSET else jsonrpc.decode_members(frame.params)
    meta = jsonrpc.decode_members(params.get("_meta", _EMPTY_OBJECT))
    said = jsonrpc.decode_members(meta.get(protocol.CLIENT_CAPABILITIES, _EMPTY_OBJECT))
    inside = jsonrpc.decode_members(said.get("extensions", _EMPTY_OBJECT))
    extensions = {**inside, mcpl.EXTENSION_KEY: mcpl.OFFERED_TO_CALLERS}
    meta[protocol.CLIENT_CAPABILITIES] = jsonrpc.to_raw({**said, "extensions": extensions})
    return jsonrpc.with_params(frame, jsonrpc.to_raw({**params, "_meta": meta}))


_NOT_DECIDED: Final = object()


@dataclass(slots=True)
class FeatureSetDecisions:
    """Decides which feature sets of a server are enabled."""

    policy_of: Callable[[str], LivePolicy] = lambda _: DEFAULT_POLICY
    policy_engine: PolicyEngine | None = None
    # Returns the current snapshot of grants. The object is the same until a grant changes.
    decision_basis: Callable[[], object] = lambda: None
    clock: WallClock = lambda: datetime.now(UTC)

    def is_due(self, live_server: LiveServer) -> bool:
        """Whether the decision about a server may be out of date."""
        if live_server.decision_basis is not self.decision_basis():
            return True
        return live_server.until is not None and live_server.until <= self.clock()

    def decide(self, live_server: LiveServer) -> bool:
        """Decide the status of each feature set. Return whether the enabled sets changed."""
        before = live_server.enabled
        live_server.policy = self.policy_of(live_server.server)
        live_server.decision_basis = self.decision_basis()
        try:
            standings = {
                name: self._decide_status(live_server, name) for name in live_server.declared.sets
            }
        except Unavailable:
            # It equals no snapshot, so the next look decides again.
            live_server.decision_basis = _NOT_DECIDED
            standings = dict.fromkeys(live_server.declared.sets, UNKNOWN)
        live_server.feature_statuses = standings
        live_server.until = _earliest_expiry(standings.values())
        live_server.enabled = frozenset(n for n, each in standings.items() if each.is_enabled)
        return live_server.enabled != before

    def _decide_status(self, live_server: LiveServer, name: str) -> FeatureSetStatus:
        judged = None
        if self.policy_engine is not None:
            actor = Actor(SERVER_SUBJECT_PREFIX + live_server.server, PrincipalKind.SERVER)
            judged = self.policy_engine.authorize(actor, FEATURE_VERB, name, "")
        return decide_feature_status(live_server.policy, name, judged)


def _earliest_expiry(standings: Iterable[FeatureSetStatus]) -> datetime | None:
    return min((each.until for each in standings if each.until is not None), default=None)


MAX_ACTIVE_REQUESTS: Final = 64
MAX_QUEUED_NOTIFICATIONS: Final = 256
HEAR_SECONDS: Final = 30.0

type Work = Callable[[], Coroutine[Any, Any, None]]


class ServerConcurrency:
    """Limits the requests and notifications that Comity handles for each server at a time."""

    def __init__(
        self,
        max_requests: int = MAX_ACTIVE_REQUESTS,
        max_notifications: int = MAX_QUEUED_NOTIFICATIONS,
    ) -> None:
        self._max_requests = max_requests
        self._max_notifications = max_notifications
        self._request_tasks: dict[str, set[asyncio.Task[None]]] = {}
        self._told: dict[str, deque[Work]] = {}
        self._queue_workers: dict[str, asyncio.Task[None]] = {}

    def active_requests(self, server: str) -> int:
        """Return how many requests of a server are being answered."""
        return len(self._request_tasks.get(server, ()))

    def start_answer(self, server: str, work: Work) -> asyncio.Task[None] | None:
        """Start to answer a request. Return None if the server has too many in progress."""
        mine = self._request_tasks.setdefault(server, set())
        if len(mine) >= self._max_requests:
            return None
        task = _start_eagerly(work())
        if not task.done():
            mine.add(task)
        task.add_done_callback(partial(self._on_answer_done, server))
        return task

    def queue_notification(self, server: str, work: Work) -> bool:
        """Queue a notification after the earlier ones. Return False if the queue is full."""
        waiting = self._told.setdefault(server, deque())
        if len(waiting) >= self._max_notifications:
            return False
        waiting.append(work)
        if server not in self._queue_workers:
            task = _start_eagerly(self._run_queue(server, waiting))
            if not task.done():
                self._queue_workers[server] = task
        return True

    def cancel_server(self, server: str) -> None:
        """Cancel all work for a server."""
        for task in list(self._request_tasks.pop(server, ())):
            task.cancel()
        self._told.pop(server, None)
        hearing = self._queue_workers.pop(server, None)
        # A handler may cause this itself, and must not cancel its own task.
        if hearing is not None and hearing is not asyncio.current_task():
            hearing.cancel()

    def stop(self) -> None:
        for server in {*self._request_tasks, *self._queue_workers}:
            self.cancel_server(server)

    async def _run_queue(self, server: str, waiting: deque[Work]) -> None:
        try:
            while waiting:
                await _run_notification_handler(server, waiting.popleft())
        finally:
            if self._queue_workers.get(server) is asyncio.current_task():
                del self._queue_workers[server]

    def _on_answer_done(self, server: str, task: asyncio.Task[None]) -> None:
        self._request_tasks.get(server, set()).discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Answering server %r failed", server, exc_info=error)


async def _run_notification_handler(server: str, work: Work) -> None:
    try:
        async with asyncio.timeout(HEAR_SECONDS):
            await work()
    except TimeoutError:
        log.warning("A message of server %r took too long to process", server)
    except Exception:
        log.exception("Reading from server %r failed", server)


def _start_eagerly(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task and run it up to its first await at once."""
    return asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=True)


MAX_LISTED_NAMES: Final = 100
CHANGE_RATE_LIMIT: Final = RateLimit(50, 10.0, 50)
"""How often a server may report changed feature sets."""

_NO_PARAMS: Final = Raw(b"{}")
_FEATURE_SET_FAULTS: Final = (FEATURE_NOT_ENABLED, FEATURE_UNKNOWN)
_BUSY_MESSAGE: Final = "too many requests of this server are under way already"
_ACCEPTANCE_MEMBERS: Final = ("accepted", "approved")
"""The members of a result by which a host declines without an error. (D-60)"""

type Answer = Callable[[LiveMessage], Awaitable[Mapping[str, object]]]
"""Answers one request. Unavailable and MalformedMessage become error responses to the server."""

type Hear = Callable[[LiveMessage], Awaitable[None]]
type Respond = Callable[[Frame], None]


@dataclass(frozen=True, slots=True)
class _LiveMethod:
    answer: Answer
    use: FeatureUse | None


@dataclass(slots=True)
class LiveHandlers:
    """The handlers, interceptors and watchers that the composition root registers."""

    request_handlers: dict[str, _LiveMethod] = field(default_factory=dict[str, _LiveMethod])
    notification_handlers: dict[str, Hear] = field(default_factory=dict[str, Hear])
    interceptors: list[CallInterceptor] = field(default_factory=list[CallInterceptor])
    # They are called when a server connects or its enabled feature sets change.
    watchers: list[Callable[[LiveServer], None]] = field(
        default_factory=list[Callable[[LiveServer], None]]
    )


class LiveHost:
    """Hosts all live servers of this node and dispatches their messages."""

    def __init__(
        self,
        policy_of: Callable[[str], LivePolicy] = lambda _: DEFAULT_POLICY,
        decisions: FeatureSetDecisions | None = None,
        *,
        audit: AuditLog | None = None,
        is_on_other_node: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.handlers = LiveHandlers()
        # Records every action of this host.
        self.audit = audit
        # A server that another node runs has its host on that node.
        self.is_on_other_node: Callable[[str], bool] = is_on_other_node
        self._decisions = decisions or FeatureSetDecisions(policy_of)
        self._live_servers: dict[str, LiveServer] = {}
        self._concurrency = ServerConcurrency()
        self._limiter = RateLimiter(lambda: self._decisions.clock().timestamp())
        self._background_tasks = BackgroundTasks("live servers")
        self.handlers.notification_handlers[mcpl.CHANGED] = self._on_features_changed

    # Registration.

    def add_request_handler(
        self, method: str, answer: Answer, use: FeatureUse | None = None
    ) -> None:
        """Register the handler of a method.

        With a `use`, the `featureSet` of each request must permit that use. (§6.5)
        """
        self.handlers.request_handlers[method] = _LiveMethod(answer, use)

    def add_notification_handler(self, method: str, handler: Hear) -> None:
        self.handlers.notification_handlers[method] = handler

    # Lookup.

    def get(self, server: str) -> LiveServer | None:
        found = self._live_servers.get(server)
        if found is None or not found.connection.is_open:
            return None
        self._refresh_if_due(found)
        return found

    def all(self) -> list[LiveServer]:
        """Return the connected live servers in their configured order."""
        here = [each for name in list(self._live_servers) if (each := self.get(name)) is not None]
        return sorted(here, key=lambda each: (each.policy.order, each.server))

    def servers_using(self, use: FeatureUse) -> list[LiveServer]:
        """Return the connected live servers with an enabled set for this use."""
        return [each for each in self.all() if each.feature_sets_for(use)]

    def refresh(self, server: str) -> None:
        """Decide the feature sets again after an operator's change, and notify the server."""
        found = self._live_servers.get(server)
        if found is not None and found.connection.is_open:
            self._decide_and_notify(found)

    def refresh_outdated(self) -> None:
        """Decide again for all servers whose decision is out of date.

        Grants can expire while a server sends nothing.
        """
        for server in list(self._live_servers):
            self.get(server)

    def remove(self, server: str) -> None:
        """Remove a server, cancel its work and close its reverse channel."""
        gone = self._live_servers.pop(server, None)
        self._concurrency.cancel_server(server)
        if self.audit is not None:
            self.audit.forget_rate(server)
        if gone is not None and gone.reverse_channel is not None:
            gone.reverse_channel.close()

    def stop(self) -> None:
        self._background_tasks.cancel()
        self._concurrency.stop()
        for each in self._live_servers.values():
            if each.reverse_channel is not None:
                each.reverse_channel.close()
        self._live_servers.clear()

    # Events of connections (`comity.sessions.upstream.LiveHandler`).

    def on_connected(self, connection: LiveConnection, capabilities: Raw | None) -> None:
        """Handle an open connection.

        The gateway's own connection makes the server live. Other connections only carry its calls.
        """
        declared = mcpl.declared_in(capabilities)
        known = self.get(connection.server)
        if known is not None and known.connection is not connection:
            connection.send_message(jsonrpc.make_notification(mcpl.UPDATE, _update_params(known)))
        elif declared is not None and not self.is_on_other_node(connection.server):
            self.register(connection, declared)

    def register(self, connection: LiveConnection, declared: McplDeclaration) -> LiveServer:
        """Register a live server on the gateway's own connection."""
        before = self._live_servers.get(connection.server)
        if before is not None:
            self._concurrency.cancel_server(connection.server)
            if before.reverse_channel is not None:
                before.reverse_channel.close()
        hosted = LiveServer(
            connection.server, connection, declared, DEFAULT_POLICY, frozenset(), audit=self.audit
        )
        self._live_servers[connection.server] = hosted
        self._decide_and_notify(hosted)
        if hosted.is_modern:
            hosted.reverse_channel = ReverseChannel(connection, self._on_reverse_message)
        return hosted

    def handle_request(
        self,
        connection: LiveConnection,
        server_request: ServerRequest,
        frame: Frame,
        pending_message: PendingMessage | None,
    ) -> bool:
        """Answer a server's request. Return False if the request is not for an MCPL host."""
        method = server_request.method
        if method not in self.handlers.request_handlers and method not in mcpl.HOST_REQUESTS:
            return False
        task = self._start_answer(connection, frame, server_request.deliver_answer, pending_message)
        if task is not None and not task.done():
            # The server may cancel its request or disconnect, which cancels the task.
            server_request.on_settled = lambda: asyncio.current_task() is task or task.cancel()
        return True

    def handle_notification(self, connection: LiveConnection, frame: Frame) -> bool:
        """Handle a server's notification. Return False if it is not for an MCPL host."""
        method, by = str(frame.method), self.get(connection.server)
        if method in (mcpl.REVERSE_REQUEST, mcpl.REVERSE_NOTIFICATION):
            if by is not None and by.connection is connection and by.reverse_channel is not None:
                by.reverse_channel.on_message(frame)
            return True
        hear = self.handlers.notification_handlers.get(method)
        if hear is not None and by is not None:
            told = LiveMessage(by, method, _params(frame), connection=connection)
            if not self._concurrency.queue_notification(
                connection.server, partial(self._run_notification_handler, hear, told)
            ):
                self._record_refusal(by.server, method, "", EXHAUSTED)
        return hear is not None or method in mcpl.HOST_NOTIFICATIONS

    def send_with_state(
        self, connection: LiveConnection, call: Call, frame: Frame, headers: Headers
    ) -> bool:
        """Send a call with what the interceptors add. Return False if the caller has to send it."""
        by, is_modern = self.get(connection.server), connection.initialize_result is None
        if by is None:
            return False
        if is_modern and not call.is_for_all_servers and is_client_mcpl_host(frame):
            # The client is a host itself and negotiates with the server on its own.
            return False
        bearers = [
            each for each in self.handlers.interceptors if each.has_data_for(by, call, frame)
        ]
        frame = announce_extension(frame) if is_modern else frame
        if bearers:
            outgoing = send_call(bearers, by, connection, call, (frame, headers))
            self._background_tasks.start(outgoing, at_once=True)
        elif is_modern:
            connection.send(call, frame, headers)
        return is_modern or bool(bearers)

    def handle_answer(
        self, connection: LiveConnection, pending_message: PendingMessage, frame: Frame, status: int
    ) -> bool:
        """Answer a call after the interceptors. Return False if the caller has to answer it."""
        # The data in a result is stored even if the gateway's own connection has just closed.
        by, bearers = self._live_servers.get(connection.server), self.handlers.interceptors
        if by is None or not bearers or frame.result is UNSET:
            return False
        if not isinstance(pending_message, Call) or pending_message.method != protocol.CALL_TOOL:
            return False
        self._background_tasks.start(
            answer_call(bearers, by, pending_message, frame, status), at_once=True
        )
        return True

    # Internals.

    def _refresh_if_due(self, live_server: LiveServer) -> None:
        if self._decisions.is_due(live_server) and self._decisions.decide(live_server):
            self._notify(live_server)

    def _decide_and_notify(self, live_server: LiveServer) -> None:
        self._decisions.decide(live_server)
        self._notify(live_server)

    def _notify(self, live_server: LiveServer) -> None:
        """Notify a server and all watchers of the server's enabled feature sets."""
        self._background_tasks.start(
            live_server.notify(mcpl.UPDATE, _update_params(live_server)), at_once=True
        )
        self._record_update(live_server)
        for watcher in self.handlers.watchers:
            try:
                watcher(live_server)
            except Exception:
                log.exception("A listener for live servers failed for %r", live_server.server)

    async def _on_features_changed(self, message: LiveMessage) -> None:
        """Handle changed feature sets.

        The existing policy decides whether the added sets are enabled.
        """
        by = message.live_server
        if self._limiter.take({by.server: CHANGE_RATE_LIMIT}):
            raise Unavailable("feature sets change too often", EXHAUSTED)
        added, removed = mcpl.changed_in(message.params)
        sets = {name: each for name, each in by.declared.sets.items() if name not in removed}
        sets = dict(list({**sets, **added}.items())[: mcpl.MAX_SETS])
        by.declared = replace(by.declared, sets=sets)
        details = {"added": _truncate_names(added), "removed": _truncate_names(removed)}
        record_entry(
            self.audit,
            AuditType.FEATURES_CHANGED,
            LiveAuditEntry(by.server, mcpl.CHANGED, details=details),
            is_limited=True,
        )
        self._decide_and_notify(by)

    def _on_reverse_message(
        self, connection: LiveConnection, frame: Frame, respond: Respond
    ) -> None:
        """Handle a message of a modern server on its reverse channel."""
        if frame.id is UNSET:
            self.handle_notification(connection, frame)
        else:
            self._start_answer(connection, frame, respond, None)

    def _start_answer(
        self,
        connection: LiveConnection,
        frame: Frame,
        respond: Respond,
        pending_message: PendingMessage | None,
    ) -> asyncio.Task[None] | None:
        """Start to answer a request. Refuse it at once if the server has too many in progress."""
        work = partial(self._answer, connection, frame, respond, pending_message)
        task = self._concurrency.start_answer(connection.server, work)
        if task is None:
            self._record_refusal(connection.server, str(frame.method), "", EXHAUSTED)
            respond(jsonrpc.make_error(_id(frame), EXHAUSTED, _BUSY_MESSAGE))
        return task

    async def _answer(
        self,
        connection: LiveConnection,
        frame: Frame,
        respond: Respond,
        pending_message: PendingMessage | None,
    ) -> None:
        method, feature = str(frame.method), _feature_set_in(frame)
        try:
            found = await self._result(connection, frame, pending_message)
            answer = jsonrpc.make_result(_id(frame), found)
        except (MalformedMessage, Unavailable) as error:
            self._record_refusal(connection.server, method, feature, error.fault)
            respond(self._error_response(connection.server, feature, error, _id(frame)))
        except Exception:
            log.exception("Answering %s of server %r failed", method, connection.server)
            self._record_refusal(connection.server, method, feature, INTERNAL_ERROR)
            respond(jsonrpc.make_error(_id(frame), INTERNAL_ERROR, "the host failed"))
        else:
            self._record_answer(connection.server, method, feature, found)
            respond(answer)

    async def _result(
        self, connection: LiveConnection, frame: Frame, pending_message: PendingMessage | None
    ) -> Mapping[str, object]:
        method, by = (
            self.handlers.request_handlers.get(str(frame.method)),
            self.get(connection.server),
        )
        if method is None:
            raise MalformedMessage(f"unknown method {frame.method:.80}", METHOD_NOT_FOUND)
        if by is None:
            raise MalformedMessage("Feature set not enabled", FEATURE_NOT_ENABLED)
        params, feature = _params(frame), None
        if method.use is not None:
            feature = by.require(mcpl.set_named_in(jsonrpc.decode_members(params)), method.use)
        told = LiveMessage(
            by, str(frame.method), params, _id(frame), feature, pending_message, connection
        )
        return await method.answer(told)

    async def _run_notification_handler(self, handler: Hear, message: LiveMessage) -> None:
        try:
            await handler(message)
        except (MalformedMessage, Unavailable) as error:
            log.info("server %r: %s: %s", message.live_server.server, message.method, error)
            self._record_refusal(message.live_server.server, message.method, "", error.fault)

    def _error_response(
        self, server: str, feature: str, error: MalformedMessage | Unavailable, request_id: Id
    ) -> Frame:
        """Return the error response, in the form of MCPL for errors about feature sets. (§6.6)"""
        data: dict[str, object] = {"error_type": error.fault.error_type}
        if isinstance(error, Unavailable) and error.retry_after is not None:
            data["retry_after_ms"] = error.retry_after // timedelta(milliseconds=1)
        if error.fault in _FEATURE_SET_FAULTS:
            data = {"featureSet": feature}
        if error.fault is FEATURE_NOT_ENABLED:
            by = self._live_servers.get(server)
            forbidden = by is not None and by.feature_status(feature).by == "guardrail"
            data = {"featureSet": feature, "canEnable": not forbidden}
        return jsonrpc.make_error(request_id, _with_mcpl_code(error.fault), str(error), data)

    # Audit log.

    def _record_refusal(self, server: str, method: str, feature: str, fault: Fault) -> None:
        result = AuditResult.FAILURE if fault is INTERNAL_ERROR else AuditResult.BLOCKED
        deed = LiveAuditEntry(server, method, feature, outcome=fault.error_type)
        record_entry(self.audit, AuditType.FEATURE_REFUSED, deed, result, is_limited=True)

    def _record_answer(
        self, server: str, method: str, feature: str, found: Mapping[str, object]
    ) -> None:
        said_no = any(found.get(member) is False for member in _ACCEPTANCE_MEMBERS)
        outcome = str(found.get("reason") or "declined") if said_no else OK
        inference = str(found.get("inferenceId", ""))
        result = AuditResult.BLOCKED if said_no else AuditResult.SUCCESS
        deed = LiveAuditEntry(server, method, feature, inference, outcome)
        record_entry(self.audit, AuditType.FEATURE_USED, deed, result, is_limited=True)

    def _record_update(self, live_server: LiveServer) -> None:
        enabled = sorted(live_server.enabled)
        disabled = sorted(live_server.declared.sets.keys() - live_server.enabled)
        details = {"enabled": enabled[:MAX_LISTED_NAMES], "disabled": disabled[:MAX_LISTED_NAMES]}
        deed = LiveAuditEntry(live_server.server, mcpl.UPDATE, by=GATEWAY, details=details)
        record_entry(self.audit, AuditType.FEATURES_DECLARED, deed, is_limited=True)


def _update_params(live_server: LiveServer) -> dict[str, object]:
    enabled = sorted(live_server.enabled)
    disabled = sorted(live_server.declared.sets.keys() - live_server.enabled)
    scopes = {
        name: each
        for name, each in live_server.policy.scopes.items()
        if name in live_server.enabled
    }
    return mcpl.feature_update_params(enabled, disabled, scopes)


def _truncate_names(names: Mapping[str, object] | tuple[str, ...]) -> list[str]:
    return [name[: mcpl.MAX_NAME_LENGTH] for name in list(names)[:MAX_LISTED_NAMES]]


def _feature_set_in(frame: Frame) -> str:
    """Return the feature set that a message names, truncated to the longest valid name."""
    try:
        named = jsonrpc.decode_text(jsonrpc.decode_members(_params(frame)).get("featureSet")) or ""
    except MalformedMessage:
        return ""
    return named[: mcpl.MAX_NAME_LENGTH]


def _with_mcpl_code(fault: Fault) -> Fault:
    return replace(fault, code=fault.mcpl) if isinstance(fault.mcpl, int) else fault


def _params(frame: Frame) -> Raw:
    return _NO_PARAMS if frame.params is UNSET else frame.params


def _id(frame: Frame) -> Id:
    assert frame.id is not UNSET, "only requests are answered"
    return frame.id  # type: ignore[return-value]  # nobody sends a request with no id
