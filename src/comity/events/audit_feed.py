"""Audit events for clients and audit servers, and the audit reports of servers."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from comity.audit.deciders import without_decider
from comity.audit.events import NOTICE, AuditEvent, AuditResult, AuditType, params_of
from comity.audit.log import LEFT_OUT, AuditLog
from comity.catalog.listing import gateway_envelope
from comity.errors import MalformedMessage, Unavailable
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import ADMIN_READ, Actor
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import MgpExtension, NegotiatedTerms, ServerLifecycleState, of_request
from comity.mcp.refusals import normalize_trace_id
from comity.policy.grants import Effect
from comity.policy.risk import SERVER_SUBJECT_PREFIX
from comity.policy.snapshot import PolicyEngine
from comity.servers.service import ServerService
from comity.servers.supervisor import ServerTransition, UpstreamServer
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from comity.sessions.upstream import QuestionConnection, ServerActivity, UpstreamConnection
from comity.toolkit.background import BackgroundTasks

MISSED: Final = "dev.comity/missed"
"""The member of `details` that holds the number of notices lost before this one."""

FILTER: Final = "mgp.audit"
"""The filter that acknowledges audit notices on a stream of the modern protocol."""

MOST_WAITING: Final = 256
MOST_BYTES: Final = 1024 * 1024
"""The limit of waiting notices for one client. Further notices are lost, but no other messages."""


def is_published(event: AuditEvent) -> bool:
    """Whether others receive an event. The claims of servers are only in the audit log."""
    return event.type != AuditType.SERVER_REPORT


def notice_params(event: AuditEvent, missed: int = 0) -> dict[str, object]:
    """Return the params of a notice. `missed` is the number of notices lost before it."""
    said = params_of(event)
    return {**said, "details": {**event.details, MISSED: missed}} if missed else said


def notice_of(event: AuditEvent, missed: int = 0) -> Frame:
    return jsonrpc.make_notification(NOTICE, notice_params(event, missed))


def agreed_on(terms: NegotiatedTerms | None) -> bool:
    return terms is not None and MgpExtension.AUDIT in terms.extensions


@dataclass(slots=True)
class _AuditSubscriber:
    """A client that receives audit events, and the number of notices it has lost."""

    who: Session | Call
    actor: Actor
    missed_count: int = 0

    def has_room(self) -> bool:
        """Whether one more notice may wait. If not, the notice counts as lost."""
        client_stream = self._outbox
        has_room = len(client_stream.frames) < MOST_WAITING and client_stream.size < MOST_BYTES
        self.missed_count += not has_room
        return has_room

    def send(self, event: AuditEvent, written: bytes) -> None:
        """Send an event. `written` is the encoded notice for clients that have lost nothing."""
        if isinstance(self.who, Call):
            # In the modern protocol, each notice names its subscription.
            params = notice_params(event, self.missed_count)
            meta = {protocol.SUBSCRIPTION_ID: self.who.client_request_id}
            written = jsonrpc.encode_frame(
                jsonrpc.make_notification(NOTICE, {**params, "_meta": meta})
            )
        elif self.missed_count:
            written = jsonrpc.encode_frame(notice_of(event, self.missed_count))
        self.missed_count = 0 if self._outbox.put(written) else self.missed_count + 1

    @property
    def _outbox(self) -> ClientStream:
        return self.who.standalone if isinstance(self.who, Session) else self.who.client_stream


class AuditFeed:
    """Sends audit events to the clients of the endpoint for all servers."""

    def __init__(
        self, policy_engine: PolicyEngine, is_counted: Callable[[Actor], bool] = lambda _: True
    ) -> None:
        self._policy_engine = policy_engine
        self._is_counted = is_counted
        self._readers: dict[Session | Call, _AuditSubscriber] = {}

    def __len__(self) -> int:
        return len(self._readers)

    def attach(self, session: Session, actor: Actor) -> None:
        """Send events to a session from now on, if it negotiated `audit`."""
        if agreed_on(session.mgp):
            self._readers[session] = _AuditSubscriber(session, actor)
            session.on_close[self] = lambda: self.forget(session)

    def listen(self, call: Call, frame: Frame) -> dict[str, object]:
        """Send events to a stream of the modern protocol, if its request asked for them.

        Returns the acknowledged filter.
        """
        if not agreed_on(of_request(frame.params)):
            return {}
        self._readers[call] = _AuditSubscriber(call, call.client_stream.actor)
        return {FILTER: True}

    def forget(self, who: Session | Call) -> None:
        self._readers.pop(who, None)

    def on_event(self, event: AuditEvent) -> None:
        """Send a stored event to the clients that may see it."""
        if not self._readers or not is_published(event):
            return
        auditors: list[_AuditSubscriber] = []
        callers: list[_AuditSubscriber] = []
        for each in self._readers.values():
            if not self._is_counted(each.actor):
                continue
            if self._is_auditor(each.actor, event):
                auditors.append(each)
            elif each.actor.party == event.actor:
                callers.append(each)
        # The caller itself does not learn by which rule its call was denied.
        for readers, seen in ((auditors, event), (callers, without_decider(event))):
            ready = [each for each in readers if each.has_room()]
            if ready:
                _send_to_all(ready, seen)

    def _is_auditor(self, actor: Actor, event: AuditEvent) -> bool:
        try:
            judged = self._policy_engine.authorize(actor, ADMIN_READ, event.server, event.tool)
        except Unavailable:
            # While the grants are not known, no client receives events about others.
            return False
        return judged.effect is Effect.ALLOW


def _send_to_all(readers: Iterable[_AuditSubscriber], event: AuditEvent) -> None:
    written = jsonrpc.encode_frame(notice_of(event))
    for reader in readers:
        reader.send(event, written)


log = logging.getLogger(__name__)

MAX_QUEUED: Final = 1000
AT_ONCE: Final = 64
ANSWER_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 1.0


def connection_of(server: UpstreamServer) -> UpstreamConnection | None:
    """Return the gateway's own connection to a server that negotiated `audit`, or None."""
    shared = server.connections.own_connection or server.connections.own_modern_connection
    return shared.connection if shared is not None and agreed_on(shared.connection.mgp) else None


class AuditServerFeed:
    """Sends audit events to the connected servers that want them."""

    def __init__(self, servers: ServerService, is_wanted: Callable[[str], bool]) -> None:
        self._servers = servers
        self._is_wanted = is_wanted
        self._queues_by_server: dict[str, _ServerAuditQueue] = {}
        # The number of events that each server has missed while it was disconnected.
        self._missed_counts: dict[str, int] = {}
        self._background_tasks = BackgroundTasks("the audit servers")
        servers.watch(self._on_server_state)

    def __len__(self) -> int:
        return len(self._queues_by_server)

    def on_event(self, event: AuditEvent) -> None:
        """Send a stored event."""
        if not is_published(event):
            return
        for told in self._queues_by_server.values():
            told.put(event)
        for name in self._missed_counts:
            self._missed_counts[name] += 1

    def _on_server_state(self, step: ServerTransition) -> None:
        server = self._servers.get(step.server)
        if step.state is ServerLifecycleState.CONNECTED and server is not None:
            self._start_queue(server)
        elif step.state is not ServerLifecycleState.DRAINING:
            self._end(step.server)

    def _start_queue(self, server: UpstreamServer) -> None:
        if not self._is_wanted(server.name):
            return
        connection = connection_of(server)
        if connection is None:
            log.warning(
                "Server %r is an audit server, but did not negotiate the MGP extension audit. "
                "It receives no events.",
                server.name,
            )
            return
        is_modern = server.connections.own_connection is None
        told = self._queues_by_server[server.name] = _ServerAuditQueue(
            connection, self._missed_counts.pop(server.name, 0), is_modern
        )
        self._background_tasks.start(told.run())

    def _end(self, name: str) -> None:
        told = self._queues_by_server.pop(name, None)
        if told is not None:
            told.stop()
            self._missed_counts[name] = told.missed_count + len(told.queue)
        elif not self._is_wanted(name):
            self._missed_counts.pop(name, None)


class _ServerAuditQueue:
    """One server, and the events that wait for it."""

    def __init__(self, connection: UpstreamConnection, missed: int, is_modern: bool) -> None:
        self.queue: deque[AuditEvent] = deque()
        self.missed_count = missed
        self._connection = connection
        self._is_modern = is_modern
        self._wakeup = asyncio.Event()
        self._is_over = False

    def put(self, event: AuditEvent) -> None:
        if len(self.queue) >= MAX_QUEUED:
            self.queue.popleft()
            self.missed_count += 1
        self.queue.append(event)
        self._wakeup.set()

    def stop(self) -> None:
        self._is_over = True
        self._wakeup.set()

    async def run(self) -> None:
        while not self._is_over and self._connection.is_open:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self.queue and not self._is_over and self._connection.is_open:
                for _ in range(min(AT_ONCE, len(self.queue))):
                    self._send(self.queue.popleft())
                await self._wait_for_answer()

    def _send(self, event: AuditEvent) -> None:
        params = notice_params(event, self.missed_count)
        self.missed_count = 0
        if self._is_modern:
            headers = ((protocol.METHOD_HEADER, NOTICE.encode()),)
            notice = jsonrpc.make_notification(NOTICE, {**params, "_meta": gateway_envelope()})
            self._connection.send_message(notice, headers)
        else:
            self._connection.send_message(jsonrpc.make_notification(NOTICE, params))

    async def _wait_for_answer(self) -> None:
        """Wait for an answer of the server, which shows that it could read the earlier notices."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if self._is_modern:
                    headers = ((protocol.METHOD_HEADER, protocol.DISCOVER.encode()),)
                    await self._connection.request(
                        protocol.DISCOVER, {"_meta": gateway_envelope()}, headers
                    )
                else:
                    await self._connection.request(protocol.PING)
        except (Unavailable, TimeoutError) as error:
            log.info("Server %r reads audit events too slowly: %s", self._connection.server, error)
            await asyncio.sleep(PAUSE_SECONDS)


MAX_REPORT_BYTES: Final = 16 * 1024
MAX_DEPTH: Final = 12
MAX_WORD_LENGTH: Final = 200
ENDED_CALL_RETENTION: Final = timedelta(seconds=60)
MAX_REMEMBERED: Final = 10_000
CLAIMED: Final = "claimed_trace_id"
_ENDINGS: Final = frozenset({AuditType.TOOL_EXECUTED, AuditType.CATALOG_ENTRY_USED})

type Redact = Callable[[object], object]


class _ReportActor(Struct, forbid_unknown_fields=True):
    type: str
    id: str


class _ReportTarget(Struct, forbid_unknown_fields=True, omit_defaults=True):
    server_id: str = ""
    tool_name: str = ""


class _AuditReport(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The form of MGP §6.3, without any other member."""

    timestamp: str
    event_type: str
    actor: _ReportActor
    target: _ReportTarget
    result: str
    details: dict[str, Any] = {}
    trace_id: str = ""
    # In the modern protocol, this names the stream of the notice.
    meta: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="_meta")


def decode_report(frame: Frame) -> _AuditReport:
    """Decode the report of a server. Raises MalformedMessage."""
    raw = frame.params
    if raw is UNSET or len(raw) > MAX_REPORT_BYTES or jsonrpc.excess_reason(bytes(raw), MAX_DEPTH):
        raise MalformedMessage(f"an audit event is an object of at most {MAX_REPORT_BYTES} bytes")
    try:
        said = msgspec.convert(jsonrpc.decode_value(raw), _AuditReport)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"no audit event: {error}") from None
    words = (
        *(said.timestamp, said.event_type, said.result, said.trace_id),
        *(said.actor.type, said.actor.id, said.target.server_id, said.target.tool_name),
    )
    if any(len(word) > MAX_WORD_LENGTH for word in words) or not said.event_type:
        raise MalformedMessage("no audit event: its words are too long")
    return said


class ServerAuditReports:
    """Records the reports of every server that negotiated `audit`."""

    def __init__(self, audit_log: AuditLog, servers: ServerService) -> None:
        self._audit_log = audit_log
        self._servers = servers
        # The traces of recently ended calls of each such server, oldest first.
        self._ended_calls: dict[str, dict[str, datetime]] = {}
        servers.watch(self._on_server_state)

    def _on_server_state(self, step: ServerTransition) -> None:
        server = self._servers.get(step.server)
        if server is None or step.state is not ServerLifecycleState.CONNECTED:
            return
        is_heard = connection_of(server) is not None
        if is_heard:
            server.activity.notification_handlers[NOTICE] = partial(
                self._on_notification, server.activity
            )
            self._ended_calls.setdefault(server.name, {})
        else:
            server.activity.notification_handlers.pop(NOTICE, None)
            self._ended_calls.pop(server.name, None)
        if bool(self._ended_calls) is not (self.on_call_ended in self._audit_log.event_listeners):
            # Without such a server, the traces are not needed.
            change = (
                self._audit_log.event_listeners.append
                if self._ended_calls
                else self._audit_log.event_listeners.remove
            )
            change(self.on_call_ended)

    def on_call_ended(self, event: AuditEvent) -> None:
        """Remember for a while which calls a server had."""
        traces = self._ended_calls.get(event.server)
        if traces is None or event.type not in _ENDINGS:
            return
        traces.pop(event.trace, None)
        traces[event.trace] = event.at
        while len(traces) > MAX_REMEMBERED or _is_old(next(iter(traces.values())), event.at):
            del traces[next(iter(traces))]

    def _on_notification(
        self, activity: ServerActivity, connection: QuestionConnection, frame: Frame
    ) -> None:
        self.record_report(connection.server, activity, frame)

    def record_report(self, server: str, activity: ServerActivity, frame: Frame) -> None:
        """Record the report of a server as its claim. Never raises.

        The rate limit comes first, so that a flood of reports is not even decoded.
        """
        limit, rate_name = self._audit_log.rate_limit, f"reports {server}"
        left_out = limit.admit(rate_name) if self._audit_log.has_room else None
        if left_out is None:
            return
        try:
            said = decode_report(frame)
        except MalformedMessage as error:
            limit.count_omitted(rate_name, left_out + 1)
            log.info("server %r: %s", server, error)
            return
        trace = normalize_trace_id(said.trace_id)
        is_known = trace is not None and self._has(server, activity, trace)
        asserted = cast("dict[str, object]", msgspec.to_builtins(said))
        for beside in ("trace_id", "_meta"):
            asserted.pop(beside, None)
        untrusted: dict[str, object] = {"asserted": asserted}
        if said.trace_id and not is_known:
            untrusted[CLAIMED] = said.trace_id
        self._audit_log.record(
            AuditType.SERVER_REPORT,
            f"{SERVER_SUBJECT_PREFIX}{server}",
            server=server,
            result=AuditResult.UNKNOWN,
            trace=trace if is_known and trace is not None else "",
            details={LEFT_OUT: left_out} if left_out else {},
            untrusted=untrusted,
        )

    def _has(self, server: str, activity: ServerActivity, trace: str) -> bool:
        ended = self._ended_calls.get(server, {}).get(trace)
        if ended is not None and not _is_old(ended, self._audit_log.clock()):
            return True
        return any(call.trace == trace for call in activity.calls)


def _is_old(ended: datetime, now: datetime) -> bool:
    return now - ended > ENDED_CALL_RETENTION
