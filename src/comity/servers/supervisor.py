"""The supervisor of one server: start, watch, restart, drain and health checks."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from comity.catalog.listing import CatalogReader, gateway_envelope
from comity.errors import MalformedMessage, Unavailable
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import (
    HEALTH_PING,
    SHUTDOWN,
    MgpExtension,
    RestartPolicy,
    ServerLifecycleState,
    ShutdownReason,
)
from comity.mcp.protocol import Era
from comity.servers.connections import ConnectionOptions, ServerConnections
from comity.servers.lifecycle import (
    ExitReason,
    Health,
    HealthCheckSettings,
    LifecycleEvent,
    RestartAction,
    RestartRules,
    next_state,
    refusal_in,
)
from comity.servers.process.stderr import find_fault
from comity.sessions.upstream import (
    ServerActivity,
    TransportFactory,
    UpstreamConnection,
    UpstreamTransport,
)
from comity.toolkit.background import PausableTimeout, draw_delay
from comity.toolkit.resilience import CircuitEvent, CircuitState
from comity.toolkit.text import count_noun

log = logging.getLogger(__name__)

DISCOVER_HEADERS: Final = ((protocol.METHOD_HEADER, protocol.DISCOVER.encode()),)


class HealthChecker:
    """Probes the health of one server and keeps the last result."""

    def __init__(
        self,
        connections: ServerConnections,
        activity: ServerActivity,
        settings: HealthCheckSettings,
    ) -> None:
        self.health = Health()
        self._connections = connections
        self._activity = activity
        self._settings = settings
        self._probe_requested = asyncio.Event()
        self._message_count = 0
        self._last_message_at = 0.0

    def probe_soon(self) -> None:
        """Schedule a probe soon after a failed call, even if the server was heard from lately."""
        self._probe_requested.set()

    async def run_until_lost(self) -> str:
        """Probe until the server counts as lost. Return the reason."""
        self.health = Health()
        self._has_new_messages()
        while True:
            await self._wait_for_next_probe()
            doubted = self._probe_requested.is_set()
            self._probe_requested.clear()
            if self._has_new_messages() and not doubted:
                self.health = self.health.after_sign_of_life()
                continue
            await self._probe()
            self._has_new_messages()
            silent = timedelta(seconds=asyncio.get_running_loop().time() - self._last_message_at)
            if self._settings.is_lost(self.health, bool(self._activity.calls), silent):
                missed = count_noun(self.health.missed, "time")
                return f"it did not answer {missed} when asked how it is"

    async def _wait_for_next_probe(self) -> None:
        """Wait for the next probe. A doubt shortens the wait to `when_in_doubt`, not to zero."""
        whole = self._settings.delay_after(self.health)
        least = min(whole, self._settings.doubt_interval)
        await asyncio.sleep(least.total_seconds())
        try:
            async with asyncio.timeout((whole - least).total_seconds()):
                await self._probe_requested.wait()
        except TimeoutError:
            return

    def _has_new_messages(self) -> bool:
        """Whether the server sent anything since the last call of this method."""
        if self._activity.received_messages == self._message_count:
            return False
        self._message_count = self._activity.received_messages
        self._last_message_at = asyncio.get_running_loop().time()
        return True

    async def _probe(self) -> None:
        shared = self._connections.own_connection or self._connections.own_modern_connection
        if shared is None:
            return
        falters = self._activity.failure_count
        try:
            async with asyncio.timeout(self._settings.timeout.total_seconds()):
                answer = await self._send_probe(shared.connection)
            self.health = self.health.after_answer(_reported_status(answer))
        except TimeoutError:
            self._record_miss("in time")
        except Unavailable as error:
            if self._connections.starts_process or self._activity.failure_count != falters:
                self._record_miss(f"well: {error}")
            else:
                # Some remote servers know no ping and answer only an HTTP error. They are alive.
                self.health = self.health.after_sign_of_life()

    def _record_miss(self, reason: str) -> None:
        self.health = self.health.after_miss()
        log.info("server %r did not answer a probe %s", self._connections.name, reason)

    async def _send_probe(self, connection: UpstreamConnection) -> Frame:
        """Send a probe and return the answer. An error also shows that the server lives."""
        modern = self._connections.own_connection is None
        if manages_lifecycle(connection):
            now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            return await send_mgp_request(
                connection, HEALTH_PING, {"timestamp": now}, modern=modern
            )
        if modern:
            return await connection.request(
                protocol.DISCOVER, {"_meta": gateway_envelope()}, DISCOVER_HEADERS
            )
        return await connection.request(protocol.PING)


def manages_lifecycle(connection: UpstreamConnection) -> bool:
    """Whether the server negotiated health requests and shutdown requests. (MGP §2.4)"""
    return connection.mgp is not None and MgpExtension.LIFECYCLE in connection.mgp.extensions


async def send_mgp_request(
    connection: UpstreamConnection, method: str, params: Mapping[str, object], *, modern: bool
) -> Frame:
    """Send an MGP request, in the envelope of the connection's era."""
    if not modern:
        return await connection.request(method, params)
    headers = ((protocol.METHOD_HEADER, method.encode()),)
    return await connection.request(method, {**params, "_meta": gateway_envelope()}, headers)


def _reported_status(answer: Frame) -> str | None:
    """Return the status that the server reports, or None. Only MGP defines such a status."""
    try:
        found = {} if answer.result is UNSET else jsonrpc.decode_members(answer.result)
        return jsonrpc.decode_text(found.get("status"))
    except MalformedMessage:
        return None


DEFAULT_START_TIME: Final = timedelta(seconds=1)
"""The assumed duration of a start before one was measured."""

MIN_WAIT: Final = timedelta(milliseconds=100)
"""The shortest wait before a retry that a caller gets."""


@dataclass(frozen=True, slots=True)
class ServerTransition:
    """One transition of a server's state, and the reason for it."""

    server: str
    previous: ServerLifecycleState
    state: ServerLifecycleState
    reason: str
    at: datetime
    # The principal that ordered the transition, if any, and whether no restart will follow.
    by: str = ""
    is_given_up: bool = False


class ServerState:
    """The state of one server. Only lifecycle events change it. (MGP §11.2)"""

    def __init__(self, name: str, on_transition: Callable[[ServerTransition], None]) -> None:
        self.name = name
        self.state = ServerLifecycleState.REGISTERED
        self.reason = ""
        self.since = datetime.now(UTC)
        self.was_connected = False
        # Whether the next call starts the server, and how long its last start took.
        self.starts_on_use = False
        self.start_duration = DEFAULT_START_TIME
        self._starts_at: float | None = None
        self._on_transition = on_transition

    def set_next_start(self, wait: timedelta | None) -> None:
        """Note the monotonic time until the next start. None means at the next call."""
        self._starts_at = None if wait is None else time.monotonic() + wait.total_seconds()

    @property
    def wait(self) -> timedelta:
        """How long until the server can be used, if its start takes as long as the last one did."""
        now = time.monotonic()
        away = timedelta(seconds=(now if self._starts_at is None else self._starts_at) - now)
        return max(away + self.start_duration, MIN_WAIT)

    def apply_event(self, event: LifecycleEvent, reason: str, *, is_given_up: bool = False) -> None:
        """Apply an event and report the transition. Some events have no effect in a state."""
        following = next_state(self.state, event)
        if following is None:
            return
        previous, self.state = self.state, following
        self.reason, self.since = reason, datetime.now(UTC)
        self.was_connected = self.was_connected or following is ServerLifecycleState.CONNECTED
        step = ServerTransition(self.name, previous, following, reason, self.since)
        self._on_transition(replace(step, is_given_up=is_given_up))

    def refusal(self) -> Unavailable:
        """Return why no call can be made now, and when to retry, as far as that is known."""
        fault = refusal_in(self.state, self.was_connected, self.starts_on_use)
        why = f": {self.reason}" if self.reason else ""
        reason = f"server {self.name!r} is {self.state}{why}"
        return Unavailable(reason, fault, self.wait if fault.retryable else None)


REMOTE_RETRY_DELAY: Final = timedelta(seconds=2)
"""How soon to retry a server that another node runs. A retry starts no process."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options for the supervision of one server."""

    connections: ConnectionOptions = field(default_factory=ConnectionOptions)
    restart_rules: RestartRules = field(default_factory=RestartRules)
    health_checks: HealthCheckSettings = field(default_factory=HealthCheckSettings)
    drain_timeout: timedelta = timedelta(seconds=30)
    # The limits for idle time and for memory in bytes. Zero means no limit.
    stop_when_idle: timedelta = timedelta(0)
    max_memory: int = 0
    # The restart rules while another node runs the server, so that it costs no process here.
    remote_restart_rules: RestartRules | None = None

    def restart_rules_for(self, transport_factory: TransportFactory) -> RestartRules:
        elsewhere = None if transport_factory.starts_process else self.remote_restart_rules
        return self.restart_rules if elsewhere is None else elsewhere


class _StartTransportFactory:
    """A transport factory that keeps the last stderr lines of a failed start."""

    def __init__(self, transport_factory: TransportFactory) -> None:
        self._transport_factory = transport_factory
        self._last_transport: UpstreamTransport | None = None
        self._is_starting = False

    @property
    def starts_process(self) -> bool:
        return self._transport_factory.starts_process

    def create_transport(self, era: Era) -> UpstreamTransport:
        made = self._transport_factory.create_transport(era)
        if self._is_starting:
            self._last_transport = made
        return made

    def begin_start(self) -> None:
        self._is_starting = True

    def end_start(self) -> Sequence[str]:
        """Return the hints of the last transport, and release it."""
        said = () if self._last_transport is None else tuple(self._last_transport.stderr_lines())
        self._is_starting, self._last_transport = False, None
        return said


class ServerSupervisor:
    """Starts one server, watches it, and decides what follows when it ends."""

    def __init__(
        self,
        name: str,
        transport_factory: TransportFactory,
        catalog_reader: CatalogReader,
        options: ServerOptions,
        on_transition: Callable[[ServerTransition], None],
    ) -> None:
        self.name = name
        self.first_start_tried = asyncio.Event()
        self.restarts = 0
        self.activity = ServerActivity(self._on_failure)
        self.server_state = ServerState(name, on_transition)
        self._transport_factory = _StartTransportFactory(transport_factory)
        self.connections = ServerConnections(
            name,
            self._transport_factory,
            catalog_reader,
            options.connections,
            self.require_usable,
            self.activity,
        )
        self.health_checker = HealthChecker(self.connections, self.activity, options.health_checks)
        self.use_requested = asyncio.Event()
        self._options = options
        self._last_stderr_lines: Sequence[str] = ()
        self._restart_times: list[datetime] = []
        self._failures = 0
        self._last_warning = ""

    def require_usable(self) -> None:
        """Raise Unavailable, at once and with the reason, unless calls can be made."""
        if self.server_state.state is not ServerLifecycleState.CONNECTED:
            self.use_requested.set()
            raise self.server_state.refusal()

    def stderr_lines(self) -> Sequence[str]:
        """Return the last lines that the process wrote to stderr."""
        shared = self.connections.own_connection or self.connections.own_modern_connection
        return (
            self._last_stderr_lines
            if shared is None
            else shared.connection.transport.stderr_lines()
        )

    def reset_failures(self) -> None:
        """Forget earlier failures and restarts."""
        self._restart_times.clear()
        self._failures, self._last_warning = 0, ""

    def apply_event(self, event: LifecycleEvent, reason: str, *, is_given_up: bool = False) -> None:
        """Apply an event, and update whether calls may be sent."""
        self.server_state.apply_event(event, reason, is_given_up=is_given_up)
        self.activity.check_barred = self.require_usable if self._is_barred() else None

    def _is_barred(self) -> bool:
        """Whether no call may be sent on any connection, including those of single sessions.

        Such a connection outlives the gateway's own. A process of a session runs independently,
        but a remote server that is away is away for all.
        """
        if (
            self.server_state.state is ServerLifecycleState.CONNECTED
            or self.server_state.starts_on_use
        ):
            return False
        ending = self.server_state.state in (
            ServerLifecycleState.DRAINING,
            ServerLifecycleState.DISCONNECTED,
        )
        return ending or not self.connections.starts_process

    async def run(self) -> None:
        """Run the server until no restart follows. A bug here is logged and ends only this."""
        try:
            while await self._run_and_wait():
                pass
        except Exception:
            log.exception("Supervision of server %r failed", self.name)
            self.apply_event(
                LifecycleEvent.FAILED, "the gateway failed in caring for it; see its log"
            )
            self.first_start_tried.set()

    def action_after(self, reason: ShutdownReason) -> RestartAction:
        """Return what would follow if the server ended for this reason now."""
        restarts = self._options.restart_rules_for(self._transport_factory)
        return restarts.action_after(reason, self._restart_times, datetime.now(UTC))

    async def continue_with(self, action: RestartAction) -> None:
        """Continue after the server was retired: at its next use, or after a delay."""
        if action is RestartAction.ON_USE:
            self.use_requested.clear()
            await self.use_requested.wait()
            self.server_state.starts_on_use = False
        elif action is RestartAction.AGAIN:
            self._failures += 1
            pause = self._restart_delay()
            self.server_state.set_next_start(pause)
            await asyncio.sleep(pause.total_seconds())
            self._restart_times.append(datetime.now(UTC))
        else:
            self._warn(f"{self.server_state.reason}; it is not started again")
            return
        self.restarts += 1
        await self.run()

    async def _run_and_wait(self) -> bool:
        """Run the server once and wait for what follows. Return whether it starts again."""
        ended, reason = await self._run_once()
        loop, pause = asyncio.get_running_loop(), self._restart_delay()
        resume_at = loop.time() + pause.total_seconds()
        following = self._decide_action(ended, reason, pause)
        self.first_start_tried.set()
        self.use_requested.clear()
        await self.connections.close_shared()
        if following is RestartAction.AGAIN:
            await asyncio.sleep(resume_at - loop.time())
        elif following is RestartAction.ON_USE:
            await self.use_requested.wait()
        else:
            return False
        self.server_state.starts_on_use = False
        self.restarts += 1
        now = datetime.now(UTC)
        window = self._options.restart_rules_for(self._transport_factory)
        self._restart_times = [*window.recent_restarts(self._restart_times, now), now]
        return True

    def _restart_delay(self) -> timedelta:
        wait = draw_delay(self._options.connections.backoff, self._failures)
        is_elsewhere = (
            self._options.restart_rules_for(self._transport_factory)
            is self._options.remote_restart_rules
        )
        return min(wait, REMOTE_RETRY_DELAY) if is_elsewhere else wait

    def _decide_action(self, ended: ExitReason, reason: str, pause: timedelta) -> RestartAction:
        """Decide what follows this end, and set the state that callers see from now on."""
        restarts, now = self._options.restart_rules_for(self._transport_factory), datetime.now(UTC)
        following = restarts.action_after(ended, self._restart_times, now)
        self._last_stderr_lines = tuple(self.stderr_lines())
        fault = find_fault(self._last_stderr_lines)
        if fault not in reason and "; its last output: " not in reason:
            reason = f"{reason}; its last output: {fault}"
        is_given_up = (
            following is RestartAction.GIVE_UP and restarts.policy is not RestartPolicy.NEVER
        )
        if following is RestartAction.GIVE_UP:
            remedy = f"start it with `comity servers restart {self.name}`"
            reason = f"{reason} ({restarts.give_up_reason(self._restart_times, now)}; {remedy})"
        self._warn(reason)
        self.server_state.starts_on_use = following is RestartAction.ON_USE
        left = ended is ExitReason.LEFT and following is not RestartAction.GIVE_UP
        happened = LifecycleEvent.LEFT if left else LifecycleEvent.FAILED
        self.apply_event(happened, reason, is_given_up=is_given_up)
        self.server_state.set_next_start(pause if following is RestartAction.AGAIN else None)
        if following is RestartAction.AGAIN:
            self.apply_event(LifecycleEvent.ASKED_TO_RESTART, reason)
        return following

    async def _run_once(self) -> tuple[ExitReason, str]:
        """Start the server and watch it until it ends. Return how and why it ended."""
        loop, longest = asyncio.get_running_loop(), self._options.connections.backoff.max_delay
        failure = await self._connect()
        if failure is not None:
            self._failures += 1
            self.activity.circuit.record(CircuitEvent.FAILED)
            return ExitReason.FAILED, failure
        began = loop.time()
        await self._wait_for_end()
        # A server that dies right after its start has not recovered.
        steady = loop.time() - began > longest.total_seconds()
        self._failures = 1 if steady else self._failures + 1
        return (
            ExitReason.LEFT if self.connections.has_exited_cleanly else ExitReason.FAILED
        ), self.connections.disconnect_reason

    async def _connect(self) -> str | None:
        """Connect to the server. Return the reason if that fails, or None."""
        within, loop = self._options.connections.start_timeout, asyncio.get_running_loop()
        began, kept = loop.time(), list(self.activity.connections)
        self.server_state.set_next_start(timedelta(0))
        self.apply_event(LifecycleEvent.STARTED, self.server_state.reason)
        self.activity.circuit.record(CircuitEvent.WAITED)
        self._transport_factory.begin_start()
        try:
            async with asyncio.timeout(within.total_seconds()) as limit:
                await self.connections.start(PausableTimeout(limit))
        except (Unavailable, MalformedMessage) as error:
            # The reader of the reason already sees the name of the server.
            return str(error).removeprefix(f"server {self.name!r} ")
        except TimeoutError:
            return f"not ready within {within}"
        finally:
            self._last_stderr_lines = self._transport_factory.end_start()
        # One era may have failed during the start. The success of the whole start counts.
        self.activity.circuit.record(CircuitEvent.WAITED)
        self.activity.circuit.record(CircuitEvent.ANSWERED)
        self.server_state.start_duration = timedelta(seconds=loop.time() - began)
        self.apply_event(LifecycleEvent.SHOOK_HANDS, "")
        self.first_start_tried.set()
        self._last_warning = ""
        for connection in kept:
            # Connections of single sessions learn that the server is available again.
            connection.on_session_renewed()
        return None

    async def _wait_for_end(self) -> None:
        """Wait until the server has ended, or a health check finds it lost."""
        if not self._options.health_checks.is_enabled:
            await self.connections.disconnected.wait()
            return
        probing = asyncio.ensure_future(self.health_checker.run_until_lost())
        probing.add_done_callback(lambda _: self.connections.disconnected.set())
        try:
            await self.connections.disconnected.wait()
            if probing.done():
                self._close_own_connection(probing.result())
        finally:
            probing.cancel()

    def _on_failure(self, reason: str) -> None:
        """Handle a failed call: end the server if the circuit is open, or probe it soon."""
        if self.server_state.state is not ServerLifecycleState.CONNECTED:
            return
        if self.activity.circuit.state is CircuitState.OPEN:
            self._close_own_connection(f"calls to it fail: {reason}")
        else:
            self.health_checker.probe_soon()

    def _close_own_connection(self, reason: str) -> None:
        """Close the gateway's own connection, which ends the server."""
        shared = self.connections.own_connection or self.connections.own_modern_connection
        if shared is not None:
            shared.connection.on_closed(reason)

    def _warn(self, reason: str) -> None:
        """Log a warning, unless the last one was the same."""
        if reason != self._last_warning:
            log.warning("server %r: %s", self.name, reason)
        self._last_warning = reason


POLL_SECONDS: Final = 0.02
SHUTDOWN_REQUEST_TIMEOUT: Final = timedelta(seconds=5)
"""How long a server may take to shut down after its last call, before it is ended by force."""


async def drain_calls(name: str, activity: ServerActivity, is_over: Callable[[], bool]) -> None:
    """Wait for active calls. When `is_over` returns true, fail those that are left.

    It is unknown whether such a call ran, so the error does not suggest a retry.
    """
    while activity.calls:
        if is_over():
            break
        await asyncio.sleep(POLL_SECONDS)
    fail_calls(activity, f"server {name!r} was stopped before it had answered")


def fail_calls(activity: ServerActivity, reason: str) -> None:
    """Fail the active calls of a server now."""
    for call in activity.calls:
        call.cancel_work(jsonrpc.to_raw("the server is being stopped"))
        call.fail(Unavailable(reason))


async def request_shutdown(
    connections: ServerConnections,
    reason: ShutdownReason,
    timeout: timedelta = SHUTDOWN_REQUEST_TIMEOUT,
) -> None:
    """Request a shutdown of a server that negotiated it, and wait for its end. (MGP §11.4)"""
    shared = connections.own_connection or connections.own_modern_connection
    if shared is None or not shared.connection.is_open or not manages_lifecycle(shared.connection):
        return
    wish = {"reason": reason, "timeout_ms": timeout // timedelta(milliseconds=1)}
    with contextlib.suppress(TimeoutError, Unavailable):
        async with asyncio.timeout(timeout.total_seconds()):
            answer = await send_mgp_request(
                shared.connection, SHUTDOWN, wish, modern=connections.own_connection is None
            )
            if answer.error is UNSET:
                await connections.disconnected.wait()
            else:
                log.info("Server %r did not shut down on request", connections.name)


async def close_all(connections: ServerConnections, activity: ServerActivity) -> None:
    """Close every connection, those of sessions too, as MCP says for its transport. (MCP §4.3)"""
    await connections.close_shared()
    await asyncio.gather(*(connection.close() for connection in list(activity.connections)))


FIRST_START_SECONDS: Final = 10.0
"""How long a call may wait for the first start of a server."""


class UpstreamServer:
    """One server: its state, its connections, and the task that supervises it."""

    def __init__(
        self,
        name: str,
        transport_factory: TransportFactory,
        catalog_reader: CatalogReader,
        options: ServerOptions,
        on_transition: Callable[[ServerTransition], None],
    ) -> None:
        self.name = name
        self._supervisor = ServerSupervisor(
            name, transport_factory, catalog_reader, options, on_transition
        )
        self.connections = self._supervisor.connections
        self.activity = self._supervisor.activity
        self.first_start_tried = self._supervisor.first_start_tried
        self._options = options
        self._supervision_task: asyncio.Task[None] | None = None
        # Orders run one after the other: two of them at once would each end and start the server.
        self._order_lock = asyncio.Lock()
        self._drain_deadline = 0.0

    @property
    def options(self) -> ServerOptions:
        return self._options

    @property
    def state(self) -> ServerLifecycleState:
        return self._supervisor.server_state.state

    @property
    def reason(self) -> str:
        """Why the server is in this state."""
        return self._supervisor.server_state.reason

    @property
    def is_halted(self) -> bool:
        """Whether an operator stopped the server, so that only an operator starts it again."""
        ended = self._supervision_task is None or self._supervision_task.done()
        return ended and self.state is ServerLifecycleState.DISCONNECTED

    @property
    def since(self) -> datetime:
        return self._supervisor.server_state.since

    @property
    def health(self) -> Health:
        """The status that the server last reported, and the number of unanswered probes."""
        return self._supervisor.health_checker.health

    @property
    def restarts(self) -> int:
        """How often the server was restarted, by the supervisor or by order."""
        return self._supervisor.restarts

    def probe_soon(self) -> None:
        """Schedule a probe of the server soon."""
        self._supervisor.health_checker.probe_soon()

    def stderr_lines(self) -> Sequence[str]:
        """Return the last lines that the process wrote to stderr."""
        return self._supervisor.stderr_lines()

    def require_usable(self) -> None:
        """Raise Unavailable, at once and with the reason, unless calls can be made."""
        self._supervisor.require_usable()

    async def wait_for_first_start(self) -> None:
        """Wait for the first start of the server, for a limited time."""
        if not self.first_start_tried.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_START_SECONDS):
                    await self.first_start_tried.wait()

    @property
    def awaits_first_start(self) -> bool:
        """Whether the server was neither started nor ordered to stop so far."""
        return self._supervision_task is None and not self.first_start_tried.is_set()

    def start(self) -> None:
        """Start supervision, with earlier failures forgotten."""
        self._supervisor.reset_failures()
        self._supervision_task = asyncio.ensure_future(self._supervisor.run())

    async def resume(self) -> None:
        """Start a server that has no supervision task, or that waits for its next use."""
        async with self._order_lock:
            if self._supervision_task is not None and not self._supervision_task.done():
                self._supervisor.use_requested.set()
                return
            if self.state is ServerLifecycleState.ERROR:
                self._supervisor.apply_event(
                    LifecycleEvent.ASKED_TO_RESTART, ShutdownReason.OPERATOR_REQUEST
                )
            self.start()

    async def stop(self, reason: ShutdownReason, timeout: timedelta | None = None) -> None:
        """Let active calls finish, then end the server. Only an order starts it again. (D-22)"""
        async with self._order_lock:
            await self._end(
                reason, LifecycleEvent.ASKED_TO_STOP, timeout or self._options.drain_timeout
            )
            self._supervisor.apply_event(LifecycleEvent.EMPTIED, reason)
            self.first_start_tried.set()

    async def restart(self, reason: ShutdownReason) -> None:
        """Let active calls finish, end the server and start it again. Do not wait for the start."""
        async with self._order_lock:
            await self._end(reason, LifecycleEvent.ASKED_TO_RESTART, self._options.drain_timeout)
            self._supervisor.apply_event(LifecycleEvent.ASKED_TO_RESTART, reason)
            self._supervisor.restarts += 1
            self.start()

    async def retire(self, reason: ShutdownReason) -> None:
        """Let active calls finish and end a server for its resource use. (D-22)

        The restart rules decide what follows. A server that is in use again by then is left alone.
        """
        async with self._order_lock:
            is_idle = reason is ShutdownReason.IDLE_TIMEOUT
            if self.state is not ServerLifecycleState.CONNECTED or (
                is_idle and self.activity.calls
            ):
                return
            following = self._supervisor.action_after(reason)
            await self._end(reason, LifecycleEvent.ASKED_TO_STOP, self._options.drain_timeout)
            self._supervisor.server_state.starts_on_use = following is RestartAction.ON_USE
            self._supervisor.apply_event(LifecycleEvent.EMPTIED, reason)
            self._supervision_task = asyncio.ensure_future(
                self._supervisor.continue_with(following)
            )

    def shorten_drain(self, timeout: timedelta) -> None:
        """Shorten the time of a drain in progress to this limit."""
        limit = asyncio.get_running_loop().time() + timeout.total_seconds()
        self._drain_deadline = min(self._drain_deadline, limit)

    def fail_calls(self, reason: str) -> None:
        """Fail the active calls now, for which a drain in progress no longer waits."""
        self.shorten_drain(timedelta(0))
        fail_calls(
            self.activity, f"server {self.name!r} was ended before it had answered: {reason}"
        )

    async def _end(self, reason: ShutdownReason, asked: LifecycleEvent, timeout: timedelta) -> None:
        was_connected = self.state is ServerLifecycleState.CONNECTED
        if was_connected:
            self._supervisor.apply_event(asked, reason)
        if self._supervision_task is not None:
            self._supervision_task.cancel()
            await asyncio.wait([self._supervision_task])
        self._supervisor.server_state.starts_on_use = False
        try:
            if was_connected:
                await self._drain(timeout)
                await request_shutdown(
                    self.connections, reason, min(SHUTDOWN_REQUEST_TIMEOUT, timeout)
                )
        finally:
            await close_all(self.connections, self.activity)
        if not was_connected:
            self._supervisor.apply_event(asked, reason)

    async def _drain(self, timeout: timedelta) -> None:
        loop = asyncio.get_running_loop()
        self._drain_deadline = loop.time() + timeout.total_seconds()
        await drain_calls(self.name, self.activity, lambda: loop.time() >= self._drain_deadline)
