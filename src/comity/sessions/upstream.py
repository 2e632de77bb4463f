"""One connection to an upstream server, and the interface of a transport."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, Literal, Protocol, runtime_checkable

from msgspec import Raw

from comity.errors import (
    EXHAUSTED,
    METHOD_NOT_FOUND,
    UPSTREAM_DOWN,
    UPSTREAM_SLOW,
    MalformedMessage,
    Unavailable,
)
from comity.mcp import jsonrpc, protocol
from comity.mcp.conversation import (
    Conversation,
    Heard,
    PeerCancellation,
    PeerNotification,
    PeerResponse,
    UnmatchedMessage,
)
from comity.mcp.conversation import PeerRequest as Asked
from comity.mcp.jsonrpc import UNSET, Frame, FrameLimits
from comity.mcp.mcpl import STATE_MIRROR, declared_in
from comity.mcp.mgp import CALLBACK_REQUEST as CALL_BACK
from comity.mcp.mgp import SERVER_EXTENSIONS, NegotiatedTerms, decode_statement, negotiate_terms
from comity.mcp.mgp_streaming import MIRROR as MGP_MIRROR
from comity.mcp.mgp_streaming import STREAM_NOTIFICATIONS as STREAMED
from comity.mcp.protocol import LIST_CHANGES, LISTEN, UNKNOWN, Era, Stream
from comity.mcp.reserved_meta import (
    ESCAPE_HINT,
    ESCAPED_HINT,
    HINT,
    without_reserved_keys,
)
from comity.policy.risk import OPERATOR_DECIDES_TEXT, PERMISSION_PREFIX
from comity.sessions.calls import Call, CallClient, GatewayCall, PendingMessage, ServerRequest
from comity.telemetry.tracing import Headers, with_trace_id
from comity.toolkit.resilience import CircuitBreaker, CircuitEvent


class CountedConnection(Protocol):
    """The properties of a connection that ServerActivity counts."""

    @property
    def callers(self) -> Sequence[Call]: ...
    def on_session_renewed(self) -> None: ...
    async def close(self) -> None: ...


class QuestionConnection(Protocol):
    """The properties of a connection that are needed to answer a server's questions."""

    @property
    def server(self) -> str: ...
    @property
    def conversation(self) -> Conversation[PendingMessage]: ...
    @property
    def mgp(self) -> NegotiatedTerms | None: ...
    @property
    def initialize_result(self) -> Mapping[str, Raw] | None:
        """The server's initialize result; None for a modern server."""
        ...

    def send_message(self, frame: Frame) -> None: ...
    async def request(self, method: str, params: object, headers: Headers = ...) -> Frame: ...


class QuestionHandler(Protocol):
    """Passes questions of servers to people."""

    @property
    def provided_capabilities(self) -> Mapping[str, object]:
        """The capabilities that the gateway serves in place of clients that lack them."""
        ...

    def handle_callback(
        self, connection: QuestionConnection, frame: Frame, pending_message: PendingMessage | None
    ) -> bool:
        """Return whether the handler takes a callback. If not, the client receives it."""
        ...

    def ask_people(self, server_request: ServerRequest, frame: Frame) -> bool:
        """Return whether people are asked in place of the client."""
        ...


class CallStreamRelay(Protocol):
    """Passes on partial results and progress of calls. (MGP §12)"""

    def prepare_request(self, connection: QuestionConnection, call: Call, frame: Frame) -> Frame:
        """Return the request as it is sent. Raises MalformedMessage."""
        ...

    def handle_notification(
        self, server: str, frame: Frame, pending_message: PendingMessage | None
    ) -> bool:
        """Return whether a notification belongs to a call that streams."""
        ...

    def cancel_upstream(
        self,
        connection: QuestionConnection,
        pending_message: PendingMessage | None,
        cancellation: Frame,
    ) -> bool:
        """Return whether the server gets a cancellation in MGP's form.

        `told` is the same message in MCP's form.
        """
        ...

    def cancel(self, client: CallClient | None, by: Call, frame: Frame) -> dict[str, object]:
        """Cancel a call and return the answer to the cancellation. Raises MalformedMessage."""
        ...


class LiveHandler(Protocol):
    """Handles the MCPL messages of a connection on which the gateway negotiated MCPL. (MCPL §4)"""

    def send_with_state(
        self, connection: "LiveConnection", call: Call, frame: Frame, headers: Headers
    ) -> bool:
        """Return whether the handler sends the call later, by `send`, with added state."""
        ...

    def handle_answer(
        self,
        connection: "LiveConnection",
        pending_message: PendingMessage,
        frame: Frame,
        status: int,
    ) -> bool:
        """Return whether the handler answers later, by `errand.answered`."""
        ...

    def handle_request(
        self,
        connection: "LiveConnection",
        server_request: ServerRequest,
        frame: Frame,
        pending_message: PendingMessage | None,
    ) -> bool:
        """Return whether the handler answers a request of the server, as its host."""
        ...

    def handle_notification(self, connection: "LiveConnection", frame: Frame) -> bool:
        """Return whether a notification of the server is meant for its host."""
        ...

    def on_connected(self, connection: "LiveConnection", capabilities: Raw | None) -> None:
        """Handle a newly opened connection to a server with these capabilities."""
        ...


class LiveConnection(QuestionConnection, Protocol):
    """The properties of a connection that MCPL needs."""

    @property
    def is_open(self) -> bool: ...
    async def request(
        self,
        method: str,
        params: object,
        headers: Headers = ...,
        on_notification: Callable[[Frame], None] | None = ...,
    ) -> Frame: ...

    def send(self, call: Call, frame: Frame, headers: Headers) -> None:
        """Send a request unchanged. Its answer goes to the call. Raises Unavailable."""
        ...


class ServerActivity:
    """The activity of one server: messages, failures, connections and handlers."""

    __slots__ = (
        *(
            "_failed_after",
            "check_barred",
            "circuit",
            "failure_count",
            "received_messages",
            "connections",
            "on_failure",
        ),
        *(
            "asking_tools",
            "is_crowded",
            "live_handler",
            "notification_handlers",
            "question_handler",
            "stream_relay",
        ),
    )

    def __init__(self, on_falter: Callable[[str], None] | None = None) -> None:
        self.on_failure = on_falter
        # Set while no call may be sent; it raises the reason.
        self.check_barred: Callable[[], None] | None = None
        # The number of messages. Counting costs less for each call than reading a clock.
        self.received_messages = 0
        self.failure_count = 0
        self.circuit = CircuitBreaker()
        self.connections: set[CountedConnection] = set()
        # Handlers for the server's own notifications, by method, if negotiated. (MGP §6, §13)
        self.notification_handlers: dict[str, Callable[[QuestionConnection, Frame], None]] = {}
        self.question_handler: QuestionHandler | None = None
        # The MCPL host for servers that also push events.
        self.live_handler: LiveHandler | None = None
        # Passes on partial results of calls.
        self.stream_relay: CallStreamRelay | None = None
        # Tools that asked a question without naming its call, and whether the call could not be
        # told.
        self.asking_tools: set[str] = set()
        self.is_crowded = False
        self._failed_after = 0

    @property
    def calls(self) -> list[Call]:
        """The clients' open calls. Listen requests wait for nothing, so they do not count."""
        waiting = (call for connection in self.connections for call in connection.callers)
        return [call for call in waiting if call.method != LISTEN]

    def record_failure(self, reason: str, *, is_in_call: bool) -> None:
        """Record that the server closed a connection, was not reachable, or failed as a whole."""
        self.failure_count += 1
        if is_in_call:
            # Messages since the last failure count as one success for the circuit breaker.
            if self.received_messages != self._failed_after:
                self.circuit.record(CircuitEvent.ANSWERED)
                self._failed_after = self.received_messages
            self.circuit.record(CircuitEvent.FAILED)
        if self.on_failure is not None:
            self.on_failure(reason)


class TransportListener(Protocol):
    """Receives messages from a transport, on the event loop. Its methods must not block."""

    def on_message(self, data: bytes, stream: Stream, status: int) -> bool:
        """Handle one message. `status` is its HTTP status, or 200.

        Returns whether it belongs to a call. Other messages may come in any number.
        """
        ...

    def on_stream_opened(self, stream: Stream) -> None:
        """Handle that an answer arrives as a stream of messages."""
        ...

    def on_stream_ended(self, stream: Stream, because: Unavailable | None) -> None:
        """Handle that a stream has ended."""
        ...

    def on_stream_suspended(self, stream: Stream) -> None:
        """Handle that the server closed a stream which the transport will resume."""
        ...

    def is_awaited(self, stream: Stream) -> bool:
        """Return whether the request that opened this stream is still unanswered."""
        ...

    def is_for_caller(self, stream: Stream) -> bool:
        """Return whether a caller sent the request that opened this stream, not the gateway."""
        ...

    def on_session_renewed(self) -> None:
        """Handle that the server lost the session, and that the transport began a new one."""
        ...

    def on_failure(self, reason: str, is_in_call: bool) -> None:
        """Handle a closed connection, an unreachable server or a failure, in a call or outside."""
        ...

    def on_closed(self, reason: str) -> None:
        """Handle the end of the connection.

        A transport calls it once, and never from its own `close` method.
        """
        ...


class UpstreamTransport(Protocol):
    """Sends frames to one server and receives frames from it."""

    @property
    def has_separate_streams(self) -> bool:
        """Whether each message arrives on the stream of its request (HTTP) or not (stdio)."""
        ...

    async def open(self, listener: TransportListener) -> None:
        """Prepare to send. Raises Unavailable with a hint at what to check."""
        ...

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        """Send one message. A request names the stream that it opens. Raises Unavailable."""
        ...

    def set_version(self, version: str) -> None:
        """Set the negotiated protocol version."""
        ...

    def listen(self) -> None:
        """Open the stream for messages outside of requests, if the transport has one."""
        ...

    def pause(self, stream: Stream) -> None:
        """Stop reading this stream from the server, because its client reads slowly."""
        ...

    def resume(self, stream: Stream) -> None: ...

    def drop_stream(self, stream: Stream) -> None:
        """Drop a stream whose answer is no longer needed."""
        ...

    async def close(self) -> None:
        """End the connection as the transport requires. Never raises."""
        ...

    @property
    def has_exited_cleanly(self) -> bool:
        """Whether the server ended by itself with success."""
        ...

    def stderr_lines(self) -> Sequence[str]:
        """Return the last lines of the server's error output, for people."""
        ...


class TransportAccount(Protocol):
    """The account whose token the requests of one connection carry."""

    def is_needed(self) -> bool:
        """Return whether the server is known to demand a sign-in."""
        ...

    def authorization(self, *, is_for_caller: bool = False) -> bytes:
        """Return the Authorization header, or nothing without a token."""
        ...

    async def prepare(self) -> None:
        """Have a valid token in memory, if the account has one."""
        ...

    async def renew(
        self, refused: bytes, status: int, challenge: str, *, is_for_caller: bool = False
    ) -> bytes:
        """Return another header after the server refused one.

        Raises Unavailable with the challenge if a person must sign in.
        """
        ...


@runtime_checkable
class AccountTransport(Protocol):
    """A transport whose requests can carry the token of an account."""

    account: TransportAccount | None

    @property
    def has_fixed_credentials(self) -> bool:
        """Whether the operator configured an Authorization header."""
        ...

    def attach(self, listener: TransportListener) -> None:
        """Open without a wait for the token of the account."""
        ...


@runtime_checkable
class NodeTransport(Protocol):
    """A transport to another node of the gateway, which checks the messages of the server itself.

    Its messages hold what the gateway says at that node.
    """

    @property
    def connects_node(self) -> Literal[True]: ...


@runtime_checkable
class MeteredTransport(Protocol):
    """A transport that runs the server's process and so can measure it."""

    def memory(self) -> int:
        """Return the bytes of memory of its processes; 0 if unknown."""
        ...


class TransportFactory(Protocol):
    """Creates a transport to one configured server for each new connection."""

    @property
    def starts_process(self) -> bool:
        """Whether each connection starts a process, so that sharing connections saves processes."""
        ...

    def create_transport(self, era: Era) -> UpstreamTransport: ...


log = logging.getLogger(__name__)

SET_LEVEL_TIMEOUT_SECONDS: Final = 5.0
"""The longest wait for a server to set a log level."""

_VERSION_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""The allowed form of a version, because a transport may repeat it in HTTP headers."""


class ConnectionListener(Protocol):
    """Receives the messages of a server outside of calls."""

    def on_notification(self, connection: "UpstreamConnection", frame: Frame) -> None: ...
    def on_request(
        self, connection: "UpstreamConnection", server_request: ServerRequest, frame: Frame
    ) -> None: ...
    def on_session_renewed(self, connection: "UpstreamConnection") -> None: ...
    def on_connection_lost(self, connection: "UpstreamConnection", reason: str) -> None: ...


class UpstreamConnection:
    """One connection to one server, with its conversation and negotiated terms."""

    __slots__ = (
        *("_listener", "is_closed", "_limits", "send_apart", "transport", "conversation"),
        *(
            "initialize_result",
            "is_for_plain_clients",
            "log_level",
            "live_handler",
            "mgp",
            "on_list_changed",
            "on_initialized_result",
            "activity",
            "server",
        ),
    )

    def __init__(
        self,
        server: str,
        transport: UpstreamTransport,
        listener: ConnectionListener,
        limits: FrameLimits,
        activity: ServerActivity | None = None,
    ) -> None:
        self.server = server
        self.transport = transport
        self.conversation: Conversation[PendingMessage] = Conversation()
        self.initialize_result: dict[str, Raw] | None = None
        self.log_level: str | None = None
        self.mgp: NegotiatedTerms | None = None
        # Whether MGP is used here only so that calls of a plain client can stream.
        self.is_for_plain_clients = False
        # Set if the gateway itself offers MCPL, until the server turns out not to support it. (§3)
        self.live_handler: LiveHandler | None = None
        # Sends a call of a tool that asks questions to another process.
        self.send_apart: Callable[[UpstreamConnection, Call, Frame], bool] | None = None
        self.on_list_changed: Callable[[str], None] | None = None
        self.on_initialized_result: Callable[[UpstreamConnection], Awaitable[None]] | None = None
        self.activity = activity or ServerActivity()
        self._listener = listener
        self._limits = limits
        self.is_closed = False

    @property
    def is_open(self) -> bool:
        return not self.is_closed

    @property
    def callers(self) -> list[Call]:
        """The clients' open calls on this connection, without the gateway's own requests."""
        calls = [call for call in self.conversation.pending_requests if isinstance(call, Call)]
        return [call for call in calls if not isinstance(call, GatewayCall)]

    async def open(self) -> None:
        self.activity.connections.add(self)
        await self.transport.open(self)

    def open_at_once(self, transport: AccountTransport) -> None:
        """Open a connection that needs no handshake."""
        self.activity.connections.add(self)
        transport.attach(self)

    async def begin(
        self, timeout: timedelta, hello: object | None, level: str | None = None
    ) -> None:
        """Open the connection and perform the handshake, within a time limit.

        `hello` is None if the client performs the handshake. Raises Unavailable.
        """
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await self.open()
                if hello is not None:
                    await self.initialize(hello)
                    await self.set_level(level)
        except BaseException as error:
            # This also covers a cancelled caller, which must not leave the connection open.
            await self.close()
            if isinstance(error, TimeoutError):
                raise Unavailable(f"server {self.server!r} is silent", UPSTREAM_SLOW) from None
            raise

    def has_capability(self, capability: str) -> bool:
        """Return whether the server declared this capability. (MCP §4.1)"""
        try:
            return capability in jsonrpc.decode_members(
                (self.initialize_result or {}).get("capabilities", Raw(b"{}"))
            )
        except MalformedMessage:
            return False

    def list_changes(self) -> list[Frame]:
        """Return the list changes to announce after the server lost its state."""
        declared = [
            change
            for name, change in protocol.CHANGE_NOTIFICATION_OF.items()
            if self.has_capability(name)
        ]
        return [jsonrpc.make_notification(change) for change in declared]

    def send_call(self, call: Call, frame: Frame, headers: Headers = ()) -> None:
        """Send a client's request. Its answer goes to the call. Raises Unavailable."""
        if self.activity.check_barred is not None:
            self.activity.check_barred()
        if self.send_apart is not None and self.send_apart(self, call, frame):
            return
        live = self.live_handler if frame.method == protocol.CALL_TOOL else None
        if live is None or not live.send_with_state(self, call, frame, headers):
            self.send(call, frame, headers)

    def send(self, call: Call, frame: Frame, headers: Headers) -> None:
        """Send any request unchanged. Raises Unavailable."""
        if self.is_closed:
            raise Unavailable(f"the connection to server {self.server!r} is closed", UPSTREAM_DOWN)
        if call.client_stream.is_final or call.is_recorded:
            # The client withdrew the call, or its deadline passed, before a connection was found.
            return
        transport, streaming = self.transport, self.activity.stream_relay
        if streaming is not None and frame.method == protocol.CALL_TOOL:
            frame = streaming.prepare_request(self, call, frame)
        outgoing = self.conversation.register_request(
            frame, call, mint_token=not transport.has_separate_streams
        )
        call.outgoing_id = minted = outgoing.id  # type: ignore[assignment]  # minted ids are integers
        call.connection = self
        if (
            self.mgp is not None
            and not self.is_for_plain_clients
            and (call.is_for_all_servers or call.speaks_mgp_with_server())
        ):
            outgoing = with_trace_id(outgoing, call.ensure_trace_id())
        trace = call.client_stream.trace
        if trace is not None:
            in_headers = transport.has_separate_streams
            outgoing, headers = trace.onward(outgoing, headers, self.server, in_headers)
        try:
            transport.send(outgoing, minted, headers)  # type: ignore[arg-type]  # an integer
        except Unavailable:
            self.conversation.drop(call.outgoing_id)
            # The call was never sent, so its outcome must not count as unknown.
            call.connection = None
            raise

    def send_message(self, frame: Frame, headers: Headers = ()) -> None:
        """Send a message that is not a request. A closed connection drops it."""
        if self.is_closed:
            return
        try:
            self.transport.send(frame, UNKNOWN, headers)
        except Unavailable as error:
            log.info("Server %r did not accept a message: %s", self.server, error)

    def cancel_request(self, outgoing_id: int, reason: Raw | None) -> None:
        """Withdraw a request, and tell the server that its answer is no longer needed."""
        errand = self.conversation.find_stream_owner(outgoing_id)
        told = self.conversation.withdraw(outgoing_id, reason)
        streaming = self.activity.stream_relay
        if told is not None:
            if streaming is None or not streaming.cancel_upstream(self, errand, told):
                self.send_message(told)
            self.transport.drop_stream(outgoing_id)

    def throttle(self, outgoing_id: int, paused: bool) -> None:
        (self.transport.pause if paused else self.transport.resume)(outgoing_id)

    async def request(
        self,
        method: str,
        params: object = UNSET,
        headers: Headers = (),
        on_notification: Callable[[Frame], None] | None = None,
    ) -> Frame:
        """Send a request of the gateway itself and return the answer.

        Notifications during the request go to `on_notification`, or are dropped.
        Raises Unavailable.
        """
        frame = jsonrpc.make_request("comity", method, params)
        call = GatewayCall(frame, on_notification)
        try:
            self.send(call, frame, headers)
            return await call.answer_future
        except MalformedMessage as error:
            raise Unavailable(str(error), error.fault) from None
        except asyncio.CancelledError:
            call.withdraw(None)
            raise

    async def initialize(self, hello: object) -> dict[str, Raw]:
        """Perform the handshake, and send `initialized` after all checks. (MCP §4.1, D-07)

        Raises Unavailable if the server refuses or uses an unsupported version.
        """
        answer = await self.request("initialize", hello)
        error = jsonrpc.error_of(answer)
        if error is not None:
            raise Unavailable(f"server {self.server!r} refused the handshake: {error.message}")
        assert answer.result is not UNSET
        here = self.store_initialize_result(answer.result)
        said = decode_statement(jsonrpc.decode_members(jsonrpc.to_raw(hello)).get("capabilities"))
        if said is not None:
            self.store_mgp_terms(here, said.extensions)
        version = jsonrpc.decode_text(here.get("protocolVersion"))
        if version not in protocol.HANDSHAKE_VERSIONS:
            raise Unavailable(
                f"server {self.server!r} has an unsupported MCP version: {version!r:.40}"
            )
        if self.on_initialized_result is not None:
            await self.on_initialized_result(self)
        self.send_message(jsonrpc.make_notification(protocol.INITIALIZED))
        self.on_initialized()
        return here

    def on_initialized(self) -> None:
        """Let the MCPL handler continue after the handshake. (MCPL §5.3)"""
        if self.live_handler is not None:
            self.live_handler.on_connected(self, (self.initialize_result or {}).get("capabilities"))

    def store_mgp_terms(
        self, result: Mapping[str, Raw], offered: frozenset[str] = SERVER_EXTENSIONS
    ) -> None:
        """Store the MGP terms, if the gateway itself offered MGP. (MGP §2.4)"""
        self.mgp = negotiate_terms(
            decode_statement(result.get("capabilities")), SERVER_EXTENSIONS & offered
        )

    async def set_level(self, level: str | None) -> None:
        """Set the server's log level, if it declares logging. (MCP §4.1)"""
        if level is None or not self.has_capability("logging"):
            return
        self.log_level = level
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(SET_LEVEL_TIMEOUT_SECONDS):
                await self.request(protocol.SET_LEVEL, {"level": level})

    def store_initialize_result(self, result: Raw) -> dict[str, Raw]:
        """Store the server's result of `initialize`."""
        self.initialize_result = here = jsonrpc.decode_members(result)
        if self.live_handler is not None and declared_in(here.get("capabilities")) is None:
            self.live_handler = None
        version = jsonrpc.decode_text(here.get("protocolVersion"))
        if version is not None and _VERSION_PATTERN.fullmatch(version):
            self.transport.set_version(version)
        # Listen from now on, so that pushed messages are kept even if the client listens later.
        self.transport.listen()
        return here

    def on_message(self, data: bytes, stream: Stream, status: int) -> bool:
        """Handle one message from the server. The server is untrusted, so this never raises."""
        self.activity.received_messages += 1
        try:
            frame = jsonrpc.decode_frame(data, self._limits)
            # Almost no message has a hint of keys that only Comity may write.
            is_suspect = HINT in data or (
                ESCAPE_HINT in data and ESCAPED_HINT.search(data) is not None
            )
            if frame.method is UNSET:
                found = self.conversation.match_answer(frame, stream)
            else:
                if is_suspect and not isinstance(self.transport, NodeTransport):
                    frame = without_reserved_keys(frame)
                found = self.conversation.classify(frame, stream)
            if type(found) is PeerResponse:
                if is_suspect and not isinstance(self.transport, NodeTransport):
                    self._on_suspect_answer(found.errand, found.frame, status)
                    return True
                live = self.live_handler
                if live is None or not live.handle_answer(self, found.errand, found.frame, status):
                    found.errand.deliver_answer(found.frame, status)
                return True
            return self._on_other_message(found)
        except MalformedMessage as error:
            return self._on_malformed_message(data, stream, error)

    def _on_suspect_answer(
        self, pending_message: PendingMessage, frame: Frame, status: int
    ) -> None:
        """Deliver an answer without the keys that only Comity may write."""
        live = self.live_handler
        try:
            if live is not None:
                with_state = self._without_forged_keys(pending_message, frame, STATE_MIRROR)
                if live.handle_answer(self, pending_message, with_state, status):
                    return
            frame = self._without_forged_keys(pending_message, frame)
        except MalformedMessage as error:
            log.warning("server %r: %s", self.server, error)
            pending_message.fail(Unavailable(f"the server sent a broken message: {error}"))
            return
        pending_message.deliver_answer(frame, status)

    def _without_forged_keys(
        self, pending_message: PendingMessage, frame: Frame, *kept: str
    ) -> Frame:
        """Return an answer without reserved keys, except those that the gateway reads later."""
        if not isinstance(pending_message, Call):
            return without_reserved_keys(frame)
        if self.mgp is not None or pending_message.speaks_mgp_with_server():
            kept = (*kept, MGP_MIRROR)
        return without_reserved_keys(frame, pending_message.method, kept)

    def _on_other_message(self, found: Heard[PendingMessage]) -> bool:
        """Handle a message that is not an answer. Return whether it belongs to a call."""
        if type(found) is PeerNotification:
            return self._on_notification(found.frame, found.amid)
        if type(found) is Asked:
            self._on_request(found.frame, found.amid)
            # No call needs many questions, so each counts against the budget of its stream.
            return False
        if type(found) is PeerCancellation:
            found.errand.withdraw(found.reason)
        elif type(found) is UnmatchedMessage:
            log.info("server %r: %s", self.server, found.because)
        return False

    def _on_notification(self, frame: Frame, pending_message: PendingMessage | None) -> bool:
        if frame.method in STREAMED:
            streaming = self.activity.stream_relay
            return streaming is not None and streaming.handle_notification(
                self.server, frame, pending_message
            )
        if frame.method in LIST_CHANGES:
            self._on_list_changed(str(frame.method), pending_message)
        elif (hear := self.activity.notification_handlers.get(str(frame.method))) is not None:
            hear(self, frame)
        if self.live_handler is not None and self.live_handler.handle_notification(self, frame):
            return pending_message is not None
        questions = self.activity.question_handler if frame.method == CALL_BACK else None
        if questions is not None and questions.handle_callback(self, frame, pending_message):
            return pending_message is not None
        if pending_message is not None:
            pending_message.deliver_notification(frame)
            return not isinstance(pending_message, GatewayCall)
        self._listener.on_notification(self, frame)
        return False

    def _on_malformed_message(self, data: bytes, stream: Stream, error: MalformedMessage) -> bool:
        """Fail only the call that the broken message was meant to answer."""
        named = jsonrpc.answered_id(data) if stream is UNKNOWN else stream
        awaited = isinstance(named, int) and self.conversation.find_stream_owner(named) is not None
        # Broken messages outside of calls may come in any number, so they do not log warnings.
        log.log(logging.WARNING if awaited else logging.INFO, "server %r: %s", self.server, error)
        if isinstance(named, int):
            self._fail(named, Unavailable(f"the server sent a broken message: {error}"))
        return awaited

    def _on_list_changed(self, method: str, pending_message: PendingMessage | None) -> None:
        """Report a list change. Some servers send it on the stream of the call that caused it."""
        if self.on_list_changed is not None and not isinstance(pending_message, GatewayCall):
            self.on_list_changed(method)

    def _on_request(self, frame: Frame, pending_message: PendingMessage | None) -> None:
        question, questions = (
            ServerRequest(frame, self, self.send_message),
            self.activity.question_handler,
        )
        question.ask_people = None if questions is None else questions.ask_people
        try:
            self.conversation.register_peer_request(question.server_request_id, question)
        except MalformedMessage as error:
            log.warning("server %r: %s", self.server, error)
            if error.fault is EXHAUSTED:
                self.send_message(
                    jsonrpc.make_error(question.server_request_id, error.fault, str(error))
                )
            return
        if question.method == protocol.PING:
            question.deliver_answer(jsonrpc.make_result(question.server_request_id, {}))
        elif question.method.startswith(PERMISSION_PREFIX):
            log.warning("Server %r sent %s, which is ignored", self.server, question.method)
            question.deliver_answer(
                jsonrpc.make_error(
                    question.server_request_id, METHOD_NOT_FOUND, OPERATOR_DECIDES_TEXT
                )
            )
        elif self.live_handler is not None and self.live_handler.handle_request(
            self, question, frame, pending_message
        ):
            return
        elif pending_message is not None:
            pending_message.deliver_request(question, frame)
        else:
            self._listener.on_request(self, question, frame)

    def on_stream_opened(self, stream: Stream) -> None:
        if isinstance(errand := self.conversation.find_stream_owner(stream), Call):
            errand.client_stream.on_throttle = partial(self.throttle, errand.outgoing_id)
            errand.client_stream.stream()

    def on_stream_suspended(self, stream: Stream) -> None:
        if isinstance(errand := self.conversation.find_stream_owner(stream), Call):
            errand.client_stream.suspend()

    def is_awaited(self, stream: Stream) -> bool:
        return self.conversation.is_open(stream)

    def is_for_caller(self, stream: Stream) -> bool:
        owner = self.conversation.find_stream_owner(stream)
        return isinstance(owner, Call) and not isinstance(owner, GatewayCall)

    def on_session_renewed(self) -> None:
        self._listener.on_session_renewed(self)

    def on_stream_ended(self, stream: Stream, because: Unavailable | None) -> None:
        self._fail(stream, because or Unavailable("the server ended its stream with no answer"))

    def on_failure(self, reason: str, is_in_call: bool) -> None:
        self.activity.record_failure(reason, is_in_call=is_in_call)

    def on_closed(self, reason: str) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.activity.connections.discard(self)
        self._fail_all(reason)
        self._listener.on_connection_lost(self, reason)

    async def close(self) -> None:
        """Close the connection from this side, and fail all open requests."""
        if not self.is_closed:
            self.is_closed = True
            self._fail_all("the connection was closed")
        self.activity.connections.discard(self)
        await self.transport.close()

    def _fail(self, stream: Stream, error: Unavailable) -> None:
        if (errand := self.conversation.drop(stream)) is not None:
            errand.fail(error)

    def _fail_all(self, reason: str) -> None:
        asked, taken = self.conversation.close()
        for errand in asked:
            errand.fail(Unavailable(f"server {self.server!r} went away: {reason}"))
        for errand in taken:
            errand.withdraw(None)
