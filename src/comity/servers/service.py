"""All servers of this gateway, their resource limits and status reports."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from msgspec import Raw

from comity.audit.events import AuditType
from comity.audit.log import AuditLog
from comity.catalog.catalog import Catalog
from comity.catalog.listing import CatalogReader, ToolReviewer
from comity.errors import MalformedMessage, Misconfigured, Unavailable
from comity.mcp import jsonrpc, mgp
from comity.mcp.actors import GATEWAY
from comity.mcp.entries import EntryKind
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import HealthStatus, ServerLifecycleState, ShutdownReason
from comity.policy.risk import SERVER_SUBJECT_PREFIX
from comity.servers.supervisor import (
    ServerOptions,
    ServerTransition,
    UpstreamServer,
    manages_lifecycle,
    send_mgp_request,
)
from comity.sessions.calls import ActiveCalls
from comity.sessions.upstream import MeteredTransport, QuestionConnection, TransportFactory
from comity.toolkit.background import BackgroundTasks
from comity.validation.service import SchemaChecker

__all__ = ["ServerOptions", "ServerService", "ServerTransition", "UpstreamServer"]

log = logging.getLogger(__name__)

STARTS_AT_ONCE: Final = 32
START_TURN: Final = timedelta(seconds=10)
"""How long the next server waits for one before it, which may hang."""

FINAL_CALLS_TIMEOUT: Final = timedelta(seconds=2)
"""How long active calls may go on when the gateway ends. Their clients are already gone by then."""

SHUTDOWN_TIMEOUT: Final = timedelta(seconds=10)
"""How long all servers together may take to end when the gateway ends."""

_SETTLED_STATES: Final = frozenset(
    {ServerLifecycleState.CONNECTED, ServerLifecycleState.DISCONNECTED, ServerLifecycleState.ERROR}
)

_ENDED_STATES: Final = frozenset(
    {ServerLifecycleState.ERROR, ServerLifecycleState.DISCONNECTED, ServerLifecycleState.RESTARTING}
)
_SHUTDOWN_REASONS: Final[frozenset[str]] = frozenset(ShutdownReason)

type Watcher = Callable[[ServerTransition], None]


async def _wait_for_tries(servers: Iterable[UpstreamServer], timeout: timedelta) -> None:
    """Wait up to `timeout` until each of these has connected or failed its first start."""
    tries = [asyncio.ensure_future(server.first_start_tried.wait()) for server in servers]
    if tries:
        _, late = await asyncio.wait(tries, timeout=timeout.total_seconds())
        for task in late:
            task.cancel()


class ServerService:
    """The servers of this gateway by name. Starts and stops them, and reports transitions."""

    def __init__(
        self,
        catalog: Catalog,
        schema_checker: SchemaChecker,
        tools: ToolReviewer | None = None,
        describe: Callable[[str], Mapping[str, str] | None] = lambda _: None,
    ) -> None:
        """`describe` returns how a server is reached and confined, if that is known."""
        self._catalog = catalog
        self._describe_server = describe
        self._catalog_reader = CatalogReader(catalog, schema_checker, tools)
        self._server_by_name: dict[str, UpstreamServer] = {}
        self._connected_before: set[str] = set()
        self._watchers: list[Watcher] = []
        self._actor_by_server: dict[str, str] = {}
        # The servers that the audit log knows as connected.
        self._recorded: set[str] = set()
        self._is_started = False
        self._background_tasks = BackgroundTasks("the starts of servers")

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` for every transition of every server."""
        self._watchers.append(watcher)

    def record_transition(self, audit_log: AuditLog, transition: ServerTransition) -> None:
        """Record that a server connected, disconnected or was given up."""
        if transition.state is ServerLifecycleState.CONNECTED:
            self._recorded.add(transition.server)
            actor, details = transition.by or GATEWAY, self._describe(transition.server)
            audit_log.record(
                AuditType.SERVER_CONNECTED, actor, server=transition.server, details=details
            )
        elif transition.state in _ENDED_STATES and (
            transition.server in self._recorded or transition.is_given_up
        ):
            self._record_disconnect(audit_log, transition)

    def _record_disconnect(self, audit_log: AuditLog, transition: ServerTransition) -> None:
        was_connected = transition.server in self._recorded
        self._recorded.discard(transition.server)
        left_by_itself = (
            was_connected and transition.reason not in _SHUTDOWN_REASONS and not transition.by
        )
        actor = (
            f"{SERVER_SUBJECT_PREFIX}{transition.server}"
            if left_by_itself
            else transition.by or GATEWAY
        )
        # MGP §11.5 names this detail.
        details = {"restart_limit_exceeded": True} if transition.is_given_up else {}
        said = {"reason": transition.reason}
        audit_log.record(
            AuditType.SERVER_DISCONNECTED,
            actor,
            server=transition.server,
            details=details,
            untrusted=said,
        )
        if transition.is_given_up:
            type = AuditType.RESTART_LIMIT_EXCEEDED
            audit_log.record(
                type, GATEWAY, server=transition.server, details=details, untrusted=said
            )

    def _describe(self, name: str) -> dict[str, object]:
        """Return how a connected server is reached, and what was negotiated with it."""
        server = self._server_by_name.get(name)
        if server is None:
            return {}
        shared = server.connections.own_connection or server.connections.own_modern_connection
        terms = None if shared is None else shared.connection.mgp
        said: dict[str, object] = {
            "protocol_versions": server.connections.protocol_versions,
            "restarts": server.restarts,
        }
        sandbox = self.sandbox_level(name)
        if sandbox is not None:
            said["sandbox"] = sandbox
        if terms is not None:
            said["mgp"] = {"version": terms.version, "extensions": sorted(terms.extensions)}
        return said

    def sandbox_level(self, name: str) -> str | None:
        """Return the level at which a server was last started. None if it is not a process."""
        return (self._describe_server(name) or {}).get("sandbox")

    def add(
        self, name: str, transport_factory: TransportFactory, options: ServerOptions
    ) -> UpstreamServer:
        """Add a server. It starts with the others, or now if they have already started."""
        if name in self._server_by_name:
            raise Misconfigured(f"there is a server {name!r} already")
        server = self._server_by_name[name] = UpstreamServer(
            name, transport_factory, self._catalog_reader, options, self._notify_watchers
        )
        self._catalog.add_server(name)
        self._catalog.expect(name)
        if self._is_started:
            server.start()
        return server

    async def remove(
        self, name: str, reason: ShutdownReason = ShutdownReason.CONFIGURATION_CHANGE
    ) -> None:
        """Let active calls finish, end the server, and remove it with its catalog entries."""
        await self.require(name).stop(reason)
        self._catalog.clear(name)
        self._catalog.starting_servers.discard(name)
        self._catalog.failed_servers.pop(name, None)
        self._server_by_name.pop(name, None)
        self._connected_before.discard(name)

    def release_name(self, name: str) -> None:
        """Note that a removed server gets no successor, so that its id may be used for others."""
        self._catalog.remove_server(name)

    async def restart(self, name: str, by: str = "") -> None:
        """Let active calls finish and restart the server. Earlier failures are forgotten."""
        await self._note_order(name, by).restart(ShutdownReason.OPERATOR_REQUEST)

    async def stop_server(self, name: str, by: str = "") -> None:
        """Let active calls finish and end the server. A later start restores its entries."""
        try:
            await self._note_order(name, by).stop(ShutdownReason.OPERATOR_REQUEST)
        finally:
            self._actor_by_server.pop(name, None)
        self._catalog.clear(name)

    async def start_server(self, name: str, by: str = "") -> None:
        """Start a server that was halted or given up."""
        is_there = self.require(name).state is ServerLifecycleState.CONNECTED
        if not is_there:
            self._catalog.expect(name)
        await self._note_order(name, "" if is_there else by).resume()

    def _note_order(self, name: str, by: str) -> UpstreamServer:
        """Return the server, and note `by` as the author of its transitions until it settles."""
        server = self.require(name)
        if by:
            self._actor_by_server[name] = by
        return server

    def __iter__(self) -> Iterator[UpstreamServer]:
        return iter(list(self._server_by_name.values()))

    def names(self) -> list[str]:
        return list(self._server_by_name)

    def __len__(self) -> int:
        return len(self._server_by_name)

    def get(self, name: str) -> UpstreamServer | None:
        return self._server_by_name.get(name)

    def require(self, name: str) -> UpstreamServer:
        """Return the server of that name. Raise Misconfigured if there is none."""
        server = self._server_by_name.get(name)
        if server is None:
            raise Misconfigured(f"there is no server {name!r:.200}")
        return server

    @property
    def is_started(self) -> bool:
        """Whether the servers were started and are not being stopped."""
        return self._is_started

    @property
    def is_every_server_tried(self) -> bool:
        """Whether every server has either connected or failed its first start."""
        return all(server.first_start_tried.is_set() for server in self._server_by_name.values())

    async def wait_for_first_starts(self, timeout: timedelta) -> None:
        """Wait up to `timeout` until every server has connected or failed its first start."""
        await _wait_for_tries(self, timeout)

    def start(self) -> None:
        """Start all servers, so many at a time.

        Servers that start together also do each of their steps in one turn of the event loop. A
        thousand of them hold it up so long that the store seems silent, and requests are refused.
        """
        self._is_started = True
        first, later = (servers := list(self))[:STARTS_AT_ONCE], servers[STARTS_AT_ONCE:]
        for server in first:
            server.start()
        if later:
            self._background_tasks.start(self._start_in_turn(first, later))

    async def _start_in_turn(
        self, first: Iterable[UpstreamServer], later: Iterable[UpstreamServer]
    ) -> None:
        """Start each server once one of those before it is ready, or has had its time."""
        starts = {asyncio.ensure_future(_wait_for_tries([each], START_TURN)) for each in first}
        try:
            for server in later:
                while len(starts) >= STARTS_AT_ONCE:
                    _, starts = await asyncio.wait(starts, return_when=asyncio.FIRST_COMPLETED)
                # Somebody may have ordered otherwise meanwhile.
                if server.awaits_first_start and self.get(server.name) is server:
                    server.start()
                    starts.add(asyncio.ensure_future(_wait_for_tries([server], START_TURN)))
        finally:
            for each in starts:
                each.cancel()

    async def stop(self, timeout: timedelta = SHUTDOWN_TIMEOUT) -> None:
        """End all servers at once, and kill those that have not ended within the time limit."""
        self._is_started = False
        self._background_tasks.cancel()
        ending = [asyncio.ensure_future(self._stop(server)) for server in self]
        if ending:
            _, late = await asyncio.wait(ending, timeout=timeout.total_seconds())
            for task in late:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def _stop(self, server: UpstreamServer) -> None:
        server.shorten_drain(FINAL_CALLS_TIMEOUT)
        await server.stop(ShutdownReason.KERNEL_SHUTDOWN, FINAL_CALLS_TIMEOUT)

    def _notify_watchers(self, transition: ServerTransition) -> None:
        server = self._server_by_name.get(transition.server)
        if (
            server is not None
            and not server.first_start_tried.is_set()
            and transition.state is ServerLifecycleState.CONNECTING
        ):
            self._catalog.expect(transition.server)
        elif transition.state in _SETTLED_STATES:
            self._catalog.starting_servers.discard(transition.server)
        self._note_failure(transition)
        if transition.state is ServerLifecycleState.CONNECTED:
            self._announce_lists(transition.server)
        step = replace(transition, by=self._actor_by_server.get(transition.server, ""))
        if step.state in _SETTLED_STATES:
            self._actor_by_server.pop(step.server, None)
        for watcher in self._watchers:
            try:
                watcher(step)
            except Exception:
                log.exception("A listener for servers failed")

    def _note_failure(self, transition: ServerTransition) -> None:
        """Keep why a server has no entries. A caller would take them for names that never were."""
        name = transition.server
        if transition.state is ServerLifecycleState.CONNECTED or self._catalog.has_server(name):
            self._catalog.failed_servers.pop(name, None)
        elif transition.state is ServerLifecycleState.ERROR:
            self._catalog.failed_servers[name] = transition.reason

    def _announce_lists(self, name: str) -> None:
        """Announce the lists of a server that reconnects: clients may have dropped its tools."""
        for kind in EntryKind if name in self._connected_before else ():
            if self._catalog.count(name, kind):
                self._catalog.announce(name, kind)
        self._connected_before.add(name)


class ResourceLimits:
    """Ends servers that are idle for too long or hold too much memory, by the operator's limits."""

    def __init__(
        self,
        servers: ServerService,
        active_calls: ActiveCalls,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = servers
        self._active_calls = active_calls
        self._now = now
        # By server: its number of calls at the last check, and the time at which it last changed.
        self._last_use_by_server: dict[str, tuple[int, float]] = {}
        self._retiring_servers: set[str] = set()
        self._background_tasks = BackgroundTasks("servers that use too little or too much")

    def check(self, keep_alive_seconds: float) -> None:
        for server in self._servers:
            if (
                server.state is not ServerLifecycleState.CONNECTED
                or server.name in self._retiring_servers
            ):
                self._last_use_by_server.pop(server.name, None)
                continue
            reason = self._retirement_reason(server)
            if reason is not None:
                self._retiring_servers.add(server.name)
                self._background_tasks.start(self._retire(server, reason))

    async def wait_until_retired(self) -> None:
        """Wait until the servers being retired have ended."""
        await self._background_tasks.finish()

    def _retirement_reason(self, server: UpstreamServer) -> ShutdownReason | None:
        options = server.options
        if options.max_memory and self._memory(server) > options.max_memory:
            return ShutdownReason.RESOURCE_LIMIT
        # This node does not count the calls of other nodes, so a shared server is never idle here.
        is_alone = options.remote_restart_rules is None
        idle = options.stop_when_idle.total_seconds() if is_alone else 0
        return ShutdownReason.IDLE_TIMEOUT if idle and self._unused_for(server) >= idle else None

    def _unused_for(self, server: UpstreamServer) -> float:
        now, used = self._now(), self._count_uses(server)
        before, since = self._last_use_by_server.get(server.name, (-1, now))
        if server.activity.calls or used != before:
            since = now
        self._last_use_by_server[server.name] = (used, since)
        return now - since

    def _count_uses(self, server: UpstreamServer) -> int:
        found = self._active_calls.update_metrics().at(server.name).by_method()
        return sum(sum(tally.outcomes.values()) for tally in found)

    def _memory(self, server: UpstreamServer) -> int:
        """Return the bytes held by the shared process. Those of a session end with the session."""
        shared = server.connections.own_connection or server.connections.own_modern_connection
        transport = None if shared is None else shared.connection.transport
        return transport.memory() if isinstance(transport, MeteredTransport) else 0

    async def _retire(self, server: UpstreamServer, reason: ShutdownReason) -> None:
        try:
            log.info("Server %r is stopped: %s", server.name, reason)
            await server.retire(reason)
        finally:
            self._retiring_servers.discard(server.name)


HEALTH_TIMEOUT_SECONDS: Final = 5.0
"""How long a server may take to answer a request for its health."""
MAX_REPORT_BYTES: Final = 64 * 1024
MAX_REPORT_MEMBERS: Final = 64
MAX_TEXT_LENGTH: Final = 200
_NUMBER_MEMBERS: Final = ("uptime_secs", "tools_available", "tools_total", "pending_requests")
_LEAVING_STATES: Final = frozenset(
    {
        ServerLifecycleState.DRAINING,
        ServerLifecycleState.DISCONNECTED,
        ServerLifecycleState.ERROR,
        ServerLifecycleState.RESTARTING,
    }
)

type Account = dict[str, object]


@dataclass(frozen=True, slots=True)
class ReportedTransition:
    """The last transition that a server reported about itself."""

    state: ServerLifecycleState
    reason: str
    at: datetime

    def to_json(self) -> Account:
        return {"new_state": self.state, "reason": self.reason, "at": mgp.format_timestamp(self.at)}


class ServerStatusReports:
    """Receives the lifecycle notifications of servers, and asks servers for their health."""

    def __init__(self, servers: ServerService) -> None:
        self._servers = servers
        self._transition_by_server: dict[str, ReportedTransition] = {}
        servers.watch(self._on_transition)

    async def report_of(self, server: UpstreamServer) -> Account | None:
        """Return the health that the server reports now, or None if it did not negotiate health."""
        shared = server.connections.own_connection or server.connections.own_modern_connection
        if shared is None or not manages_lifecycle(shared.connection):
            return None
        claim = self._transition_by_server.get(server.name)
        told = {} if claim is None else {"reported": claim.to_json()}
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_SECONDS):
                answer = await send_mgp_request(
                    shared.connection,
                    mgp.HEALTH_STATUS,
                    {},
                    modern=server.connections.own_connection is None,
                )
            return {**decode_health(answer), **told}
        except TimeoutError:
            return {"problem": "it did not answer in time", **told}
        except (Unavailable, MalformedMessage) as error:
            return {"problem": str(error)[:MAX_TEXT_LENGTH], **told}

    def _on_transition(self, transition: ServerTransition) -> None:
        server = self._servers.get(transition.server)
        if server is None:
            self._transition_by_server.pop(transition.server, None)
        elif transition.state is ServerLifecycleState.CONNECTED:
            self._transition_by_server.pop(transition.server, None)
            shared = server.connections.own_connection or server.connections.own_modern_connection
            if shared is not None and manages_lifecycle(shared.connection):
                server.activity.notification_handlers[mgp.CHANGED] = self._on_notification

    def _on_notification(self, connection: QuestionConnection, frame: Frame) -> None:
        server = self._servers.get(connection.server)
        claim = None if server is None else _parse_transition(frame)
        if server is None or claim is None:
            log.info("Server %r sent an invalid lifecycle message", connection.server)
            return
        self._transition_by_server[server.name] = claim
        if claim.state in _LEAVING_STATES:
            server.probe_soon()


def decode_health(answer: Frame) -> Account:
    """Return the health in an answer, reduced to what can be shown. Raises MalformedMessage."""
    if (error := jsonrpc.error_of(answer)) is not None:
        return {"problem": error.message[:MAX_TEXT_LENGTH]}
    if answer.result is UNSET or len(answer.result) > MAX_REPORT_BYTES:
        raise MalformedMessage(f"its answer is an object of at most {MAX_REPORT_BYTES} bytes")
    found = jsonrpc.decode_members(answer.result)
    said = jsonrpc.decode_text(found.get("status"))
    numbers = {name: _number(found.get(name)) for name in _NUMBER_MEMBERS}
    return {
        "status": said if said in set(HealthStatus) else None,
        **{name: value for name, value in numbers.items() if value is not None},
        "resources": _shallow_members(found.get("resources")),
        "checks": _shallow_members(found.get("checks")),
    }


def _shallow_members(raw: Raw | None) -> dict[str, object]:
    """Return the members of an object. A nested value is replaced by an ellipsis."""
    try:
        found = None if raw is None else jsonrpc.decode_value(raw)
    except MalformedMessage:
        return {}
    if not isinstance(found, dict):
        return {}
    members = list(cast("Mapping[str, Any]", found).items())[:MAX_REPORT_MEMBERS]
    return {name[:MAX_TEXT_LENGTH]: _shorten(value) for name, value in members}


def _shorten(value: object) -> object:
    if isinstance(value, bool | int | float) or value is None:
        return value
    return value[:MAX_TEXT_LENGTH] if isinstance(value, str) else "…"


def _number(raw: Raw | None) -> float | None:
    try:
        found = jsonrpc.decode_scalar(raw)
    except MalformedMessage:
        return None
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    return cast("float", found) if is_number else None


def _parse_transition(frame: Frame) -> ReportedTransition | None:
    try:
        if frame.params is UNSET or len(frame.params) > MAX_REPORT_BYTES:
            return None
        said = frame.parameters
        state, reason = (
            jsonrpc.decode_text(said.get("new_state")),
            jsonrpc.decode_text(said.get("reason")),
        )
    except MalformedMessage:
        return None
    if state not in set(ServerLifecycleState):
        return None
    return ReportedTransition(
        ServerLifecycleState(str(state)), (reason or "")[:MAX_TEXT_LENGTH], datetime.now(UTC)
    )
