"""Calls in flight, requests of servers to clients, and deadlines."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from msgspec import Raw, UnsetType

from comity.errors import (
    ACCESS_DENIED,
    HTTP_STATUS_OF_CODE,
    INTERRUPTED,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    TIMEOUT,
    TOOL_NOT_FOUND,
    UPSTREAM_FAILED,
    Fault,
    MalformedMessage,
    Unavailable,
)
from comity.mcp import eras, jsonrpc, mgp, refusals
from comity.mcp.conversation import Conversation
from comity.mcp.jsonrpc import ExtendedFrame, Frame, Id
from comity.mcp.mgp import METHOD_PREFIX, NOTICE_PREFIX, NegotiatedTerms
from comity.mcp.protocol import CLIENT_CAPABILITY, LATEST_MODERN, LISTEN
from comity.mcp.refusals import Refusal, RefusedRequest, trace_beside
from comity.policy.grants import Decision
from comity.policy.shares import PrincipalShares
from comity.sessions.client_streams import ClientStream
from comity.telemetry.metrics import (
    NO_ERROR,
    CallMetrics,
    ServerCounters,
    name_in,
    outcome_of,
)
from comity.telemetry.outcomes import CANCELLED, OK
from comity.telemetry.tracing import CallTraceOutcome, Tracer, new_trace_id

log = logging.getLogger(__name__)

UNANSWERED_TEXT: Final = "the client did not answer in time"


class PendingMessage(Protocol):
    """A request that waits for the answer of a peer."""

    def deliver_answer(self, frame: Frame, status: int) -> None: ...
    def deliver_notification(self, frame: Frame) -> None: ...
    def deliver_request(self, server_request: "ServerRequest", frame: Frame) -> None: ...
    def fail(self, error: Unavailable | MalformedMessage) -> None: ...
    def withdraw(self, reason: Raw | None) -> None: ...


class CallConnection(Protocol):
    """The connection on which a call is sent."""

    @property
    def conversation(self) -> Conversation[PendingMessage]: ...
    @property
    def mgp(self) -> NegotiatedTerms | None: ...
    def send_message(self, frame: Frame) -> None: ...
    def cancel_request(self, outgoing_id: int, reason: Raw | None) -> None: ...
    def throttle(self, outgoing_id: int, paused: bool) -> None: ...


class CallClient(Protocol):
    """The properties of a session that calls and server requests need."""

    @property
    def id(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def conversation(self) -> Conversation[PendingMessage]: ...
    @property
    def client_info(self) -> Raw | None: ...
    @property
    def mgp(self) -> NegotiatedTerms | None: ...
    @property
    def speaks_mgp_with_servers(self) -> bool: ...
    def has_capability(self, capability: str) -> bool: ...


class ServerRequest:
    """A request of a server to a client."""

    client: CallClient | None = None
    client_stream: ClientStream | None = None
    on_settled: Callable[[], object] | None = None
    # The call during which the server sent it, and the fallback that asks people if the client
    # cannot be asked.
    pending_message: PendingMessage | None = None
    ask_people: "Callable[[ServerRequest, Frame], bool] | None" = None
    outgoing_id = 0

    def __init__(
        self, frame: Frame, connection: CallConnection | None, respond: Callable[[Frame], None]
    ) -> None:
        """Take a request. `connection` is None for a request of the gateway itself."""
        self.server_request_id: Id = frame.id  # type: ignore[assignment]  # the conversation heard a request
        self.method: str = frame.method  # type: ignore[assignment]  # likewise
        self.connection = connection
        self.respond = respond

    def send_to_client(self, client: CallClient, frame: Frame, client_stream: ClientStream) -> None:
        """Send the request to the client on that stream.

        The request is declined if the client did not declare the capability. (MCP §5.4)
        """
        capability = CLIENT_CAPABILITY.get(self.method)
        if capability is not None and not client.has_capability(capability):
            self.decline(frame, f"this client did not declare {capability}")
            return
        if self.method.startswith(METHOD_PREFIX) and not client.speaks_mgp_with_servers:
            self.refuse(METHOD_NOT_FOUND, "this client did not negotiate MGP with this server")
            return
        try:
            outgoing = client.conversation.register_request(frame, self, mint_token=True)
        except MalformedMessage as error:
            self.refuse(error.fault, str(error))
            return
        self.client, self.client_stream, self.outgoing_id = (
            client,
            client_stream,
            int(str(outgoing.id)),
        )
        if not client_stream.put(jsonrpc.encode_frame(outgoing)):
            client.conversation.drop(self.outgoing_id)
            self.refuse(METHOD_NOT_FOUND, "this client is not listening")

    def decline(self, frame: Frame, reason: str) -> None:
        """Ask people in place of the client if the operator configured that. Refuse otherwise."""
        if self.ask_people is None or not self.ask_people(self, frame):
            self.refuse(METHOD_NOT_FOUND, reason)

    def deliver_answer(self, frame: Frame, status: int = 200) -> None:
        self._settle()
        self.respond(frame)

    def deliver_notification(self, frame: Frame) -> None:
        if self.connection is not None:
            self.connection.send_message(frame)

    def deliver_request(self, server_request: "ServerRequest", frame: Frame) -> None:
        server_request.refuse(METHOD_NOT_FOUND, "a client cannot send a request inside a response")

    def fail(self, error: Unavailable | MalformedMessage) -> None:
        self.refuse(error.fault, str(error))

    def refuse(self, fault: Fault, reason: str) -> None:
        self.deliver_answer(jsonrpc.make_error(self.server_request_id, fault, reason))

    def expire(self) -> None:
        """Withdraw the request from the client, and tell the server that no answer came."""
        self.withdraw(jsonrpc.to_raw(UNANSWERED_TEXT))
        self.respond(jsonrpc.make_error(self.server_request_id, TIMEOUT, UNANSWERED_TEXT))

    def withdraw(self, reason: Raw | None) -> None:
        """Withdraw the request, and notify the client if it was asked."""
        self._settle()
        if self.client is not None and self.client_stream is not None:
            told = self.client.conversation.withdraw(self.outgoing_id, reason)
            if told is not None:
                self.client_stream.put(jsonrpc.encode_frame(told))

    def _settle(self) -> None:
        if self.connection is not None:
            self.connection.conversation.settle(self.server_request_id)
        settled, self.on_settled = self.on_settled, None
        if settled is not None:
            settled()


class CallOverseer(Protocol):
    """Keeps track of all active calls."""

    @property
    def now(self) -> Callable[[], float]: ...
    @property
    def outcome_recorder(self) -> "CallOutcomeRecorder | None": ...
    def end(self, call: "Call", outcome: str, answer: Frame | None) -> None: ...
    def seconds_left(self, call: "Call") -> float: ...


class CallOutcomeRecorder(Protocol):
    """Records how calls end, and sends their answers when the record permits it."""

    def record_outcome(
        self, call: "Call", outcome: str, refusal: Refusal | None, reply: Callable[[], None]
    ) -> None: ...


class CallIntentRecord(Protocol):
    """The audit record of a call before it is sent, and whether the call was sent."""

    id: str
    was_sent: bool


class PartialResultStream(Protocol):
    """Converts what a client receives of a call before the result."""

    def handle_notification(self, call: "Call", frame: Frame) -> bool:
        """Return whether the stream has handled a notification of the server."""
        ...

    def add_summary(self, call: "Call", frame: Frame) -> Frame:
        """Return the answer with a summary of what came before it."""
        ...

    def summary(self) -> dict[str, object]:
        """Return the details for the audit log."""
        ...


class CallRetrier(Protocol):
    """Retries a failed call if the operator allows it."""

    # Runs if the call ends and none of its attempts was sent.
    on_never_sent: Callable[[], object] | None

    @property
    def idempotent(self) -> bool: ...
    @property
    def was_sent(self) -> bool: ...
    @property
    def fallback_tool(self) -> str: ...
    def survives_error(self, call: "Call", frame: Frame) -> bool: ...
    def survives_failure(self, call: "Call", error: Unavailable | MalformedMessage) -> bool: ...


class CallSignIn(Protocol):
    """Lets a call wait for a sign-in that its server demanded."""

    go_on: Callable[[], Coroutine[Any, Any, None]] | None
    # Run when the call begins to wait, and how long its client waits at most.
    on_hold: Callable[[], None] | None
    client_wait: timedelta | None

    def survives_refusal(self, call: "Call", error: Unavailable | MalformedMessage) -> bool: ...


class CallDenial(NamedTuple):
    """The decision that denied a call, and the catalog entry that it was about.

    Only operators may learn it: an answer that depended on it would tell the caller which entries
    exist.
    """

    decision: Decision
    server: str
    name: str
    is_listed: bool

    @property
    def outcome(self) -> str:
        """The outcome for the metrics: a name that nothing has is no denial by a rule."""
        is_unknown = not self.is_listed and self.decision.is_default
        return (TOOL_NOT_FOUND if is_unknown else ACCESS_DENIED).error_type


HIDING_FAULTS: Final = frozenset({ACCESS_DENIED, TOOL_NOT_FOUND, RESOURCE_NOT_FOUND})
"""The faults behind which a denial and an unknown name look the same to the caller."""


class Call:
    """One request of a client, from its arrival to its answer."""

    # Defaults are class attributes, because every request creates an instance and most stay
    # unchanged.
    connection: CallConnection | None = None
    outgoing_id = 0
    # Runs if the call is cancelled while it waits for an approval, before it has a connection.
    on_cancel: Callable[[], None] | None = None
    # Withholds parts of the result that the actor may not see. It is set before the request is
    # sent, because the answer may be there when sending returns. `adapt_answer` is the sender's.
    filter_result: Callable[[Frame], Frame] | None = None
    adapt_answer: Callable[[Frame], Frame] | None = None
    adapt_notification: Callable[[Frame], Frame | None] | None = None
    on_first_check: Callable[[], None] | None = None
    active_calls: CallOverseer | None = None
    counters: ServerCounters | None = None
    tool: str | None = None
    target: tuple[str, str] | None = None
    decision: Decision | None = None
    denial: CallDenial | None = None
    # The id of the standing grant or of the approval request that permitted the call.
    permitted_by = ""
    # The digest of the definition with which people have confirmed this very call.
    confirmed_definition = ""
    # What people allowed this very call to reach beyond its bounds.
    approved_scope: object | None = None
    record: CallIntentRecord | None = None
    is_recorded = False
    # The share that counts the call, and its principal; or the full share, which causes a refusal.
    request_share: tuple[PrincipalShares, str] | None = None
    exceeded_shares: PrincipalShares | None = None
    # The client's reply to an approval request, and a listener for questions of the server to the
    # client.
    prompt_reply: object | None = None
    on_input_required: Callable[[Frame], None] | None = None
    # Told once how an approved call ended, and its answer if it has one.
    on_end: Callable[[str, Frame | None], None] | None = None
    # Whether the call continues without its client, which polls for the result.
    is_detached = False
    trace = ""
    # The metadata of a plain tool call.
    meta: Raw | UnsetType | None = None
    retrier: CallRetrier | None = None
    # Holds a call whose server demands a sign-in, and the owner of the account that it uses.
    sign_in: CallSignIn | None = None
    account_owner: str | None = None
    is_for_all_servers = False
    # The view at whose endpoint it arrived.
    view = ""
    # Whether it came from another node, or goes to a server of the other protocol version.
    is_remote = False
    is_bridged = False
    held_since: float | None = None
    open_questions = 0
    # The questions of the server to the client, and when each was asked.
    client_questions: tuple[tuple[ServerRequest, float], ...] = ()
    # The partial results, if the client can receive them, and whether the server was asked to send
    # them.
    stream: PartialResultStream | None = None
    is_streamed = False

    def __init__(
        self, frame: Frame, client_stream: ClientStream, client: CallClient | None, now: float
    ) -> None:
        self.client_request_id: Id = frame.id  # type: ignore[assignment]  # the door let only requests in
        self.method: str = frame.method  # type: ignore[assignment]  # likewise
        params, tool = frame.params, frame.tool
        # Large parameters are trimmed, so the name of the tool is read before.
        if tool is not None:
            self.tool, self.meta = tool.name, tool.meta
            if len(params) > refusals.MAX_KEPT_BYTES:  # type: ignore[arg-type]  # a call has them
                params = refusals.trim_tool_params(tool)
        elif params is not jsonrpc.UNSET and len(params) > refusals.MAX_KEPT_BYTES:
            self.tool = name_in(params)
            params = refusals.trim_params(params)
        self.params = params
        self.client = client
        self.client_stream = client_stream
        self.started_at = self.last_activity_at = now

    def deliver_answer(self, frame: Frame, status: int = 200) -> None:
        """Send the one answer to the client. `adapt_answer` may decode only what it needs."""
        adapt, withhold = self.adapt_answer, self.filter_result
        if (adapt is not None or withhold is not None) and frame.error is jsonrpc.UNSET:
            try:
                frame = frame if withhold is None else withhold(frame)
                frame = frame if adapt is None else adapt(frame)
            except MalformedMessage as error:
                self.refuse(UPSTREAM_FAILED, f"the server sent a broken answer: {error}")
                return
            except Unavailable as error:
                # What the actor may see of the result is not known now.
                self.refuse(error.fault, str(error), error.retry_after)
                return
        if frame.error is not jsonrpc.UNSET:
            worded = self._adapt_error(frame)
            if worded is None:
                return
            frame, status = worded, self._http_status(worded, status)
        elif self.stream is not None:
            frame = self.stream.add_summary(self, frame)
        encoded = frame.encoded or jsonrpc.encode_frame(frame)
        if self.on_input_required is not None:
            self.on_input_required(frame)
        outcome = OK if encoded.endswith(NO_ERROR) else outcome_of(self.method, frame, encoded)
        if self.client is not None:
            self.client.conversation.settle(self.client_request_id)
        if self.active_calls is not None:
            self.active_calls.end(self, outcome, frame)
        self._reply(encoded, status, outcome)

    def _adapt_error(self, frame: Frame) -> Frame | None:
        """Return the server's error in the form for the client.

        Returns None if the call is retried or already answered.
        """
        if self.retrier is not None and self.retrier.survives_error(self, frame):
            return None
        if self.client_stream.registry is not None:
            self.refuse_with(refusals.of_server(frame))
            return None
        if self.connection is not None and self.connection.mgp is not None and self.terms() is None:
            return refusals.to_plain_mcp_error(self._refused_request(), frame)
        return frame

    def deliver_notification(self, frame: Frame) -> None:
        if self.active_calls is not None:
            self.last_activity_at = self.active_calls.now()
        if self.stream is not None and self.stream.handle_notification(self, frame):
            return
        if str(frame.method).startswith(NOTICE_PREFIX) and not self.speaks_mgp_with_server():
            log.debug("No client negotiated %s with a server", frame.method)
            return
        if frame.method == eras.STATUS and self.adapt_notification is None and not self.is_remote:
            # The call began no task, so this task is of another call, perhaps of another client.
            return
        retold = frame if self.adapt_notification is None else self.adapt_notification(frame)
        if retold is None:
            return
        if (
            not self.client_stream.put(jsonrpc.encode_frame(retold))
            and self.client_stream.is_overrun
        ):
            told = {"trace_id": self.trace_id()}
            log.warning(
                "A client reads %s too slowly; the stream is closed", self.method, extra=told
            )
            self.withdraw(None)

    def deliver_request(self, server_request: ServerRequest, frame: Frame) -> None:
        server_request.pending_message = self
        server_request.on_settled = partial(self._on_question_settled, server_request)
        self.pause_deadlines()
        if self.client is None:
            server_request.decline(frame, "this client cannot be asked by a request")
        else:
            if self.active_calls is not None:
                asked = (server_request, self.active_calls.now())
                self.client_questions = (*self.client_questions, asked)
            retold = frame if self.adapt_notification is None else self.adapt_notification(frame)
            server_request.send_to_client(self.client, retold or frame, self.client_stream)

    def _on_question_settled(self, question: ServerRequest) -> None:
        self.client_questions = tuple(
            each for each in self.client_questions if each[0] is not question
        )
        self.resume_deadlines()

    def fail(self, error: Unavailable | MalformedMessage) -> None:
        if self.sign_in is not None and self.sign_in.survives_refusal(self, error):
            return
        if self.retrier is not None and self.retrier.survives_failure(self, error):
            return
        after = error.retry_after if isinstance(error, Unavailable) else None
        fallback = self.retrier.fallback_tool if self.retrier and error.fault.retryable else ""
        self.refuse_with(Refusal(error.fault, str(error), after, fallback_tool=fallback))

    def refuse(self, fault: Fault, reason: str, retry_after: timedelta | None = None) -> None:
        """Answer with an error in place of the server."""
        self.refuse_with(Refusal(fault, reason, retry_after))

    def refuse_with(self, refusal: Refusal) -> None:
        """Answer with an error, with all known details of the refusal."""
        asked = self._refused_request()
        trace = self.ensure_trace_id()
        told = {"trace_id": trace}
        log.debug("%s is refused: %s (trace %s)", self.method, refusal.reason, trace, extra=told)
        worded = refusals.refusal_response(asked, refusal, trace)
        is_hidden = self.denial is not None and refusal.fault in HIDING_FAULTS
        counted = self.denial.outcome if self.denial and is_hidden else refusal.fault.error_type
        self._end_call(counted, worded)
        at_registry = asked.registry is not None
        status = refusal.fault.reg_status if at_registry else self._http_status(worded, 200)
        self._reply(jsonrpc.encode_frame(worded), status, refusal.fault.error_type, refusal)

    def answer_with_action(self, answer: Frame, refusal: Refusal) -> None:
        """Answer with an action that the client must take first.

        The refusal is recorded, because nothing was done yet.
        """
        self._end_call(refusal.fault.error_type, answer)
        self._reply(jsonrpc.encode_frame(answer), 200, refusal.fault.error_type, refusal)

    def answer_partially(self, answer: Frame, reason: Raw | None) -> None:
        """Answer with the partial result, and tell the server to stop."""
        self._end_call(CANCELLED, answer)
        self.cancel_work(reason)
        self._reply(jsonrpc.encode_frame(answer), 200, CANCELLED)

    def withdraw(self, reason: Raw | None) -> None:
        """Cancel the call: tell the server, and end the stream without an answer."""
        self._end_call(CANCELLED, None)
        self.cancel_work(reason)
        if self.active_calls is not None and self.active_calls.outcome_recorder is not None:
            self.active_calls.outcome_recorder.record_outcome(
                self, CANCELLED, None, self.client_stream.end
            )
        else:
            self.client_stream.end()

    def expire(self, waited: float = 0) -> None:
        """End the call after its deadline: tell the server to stop, and answer with an error."""
        self.cancel_work(jsonrpc.to_raw("deadline exceeded"))
        details: dict[str, object] = {"timeout_ms": round(waited * 1000)} if waited else {}
        if self.tool is not None:
            details["tool_name"] = self.tool
        reason = "the server did not answer before the call's deadline"
        self.refuse_with(Refusal(TIMEOUT, reason, details=details))

    def cancel_work(self, reason: Raw | None) -> None:
        """Tell the server, or what waits in its place, that the call is cancelled."""
        if self.on_cancel is not None:
            self.on_cancel()
        elif self.connection is not None:
            self.connection.cancel_request(self.outgoing_id, reason)

    def pause_deadlines(self) -> None:
        """Stop the deadlines while a person or the client is asked. (D-94)"""
        if self.active_calls is not None:
            self.held_since = (
                self.active_calls.now() if self.held_since is None else self.held_since
            )
            self.open_questions += 1

    def resume_deadlines(self) -> None:
        """Resume the deadlines once the last open question is answered."""
        self.open_questions -= 1
        if (
            self.active_calls is not None
            and self.held_since is not None
            and self.open_questions <= 0
        ):
            self.open_questions = 0
            self.started_at += self.active_calls.now() - self.held_since
            self.last_activity_at = self.active_calls.now()
            self.held_since = None

    def _refused_request(self) -> RefusedRequest:
        modern, sent, tries = self.client is None, self.connection is not None, self.retrier
        return RefusedRequest(
            self.client_request_id,
            self.method,
            self.terms(),
            modern,
            sent or (tries is not None and tries.was_sent),
            tries is not None and tries.idempotent,
            self.client_stream.registry,
        )

    def terms(self) -> NegotiatedTerms | None:
        """Return the MGP terms of the client. A modern request declares them each time."""
        return mgp.of_request(self.params) if self.client is None else self.client.mgp

    def speaks_mgp_with_server(self) -> bool:
        """Return whether the client negotiated MGP with the server itself.

        At the endpoint of all servers it cannot.
        """
        if self.client is not None:
            return self.client.speaks_mgp_with_servers
        return not self.is_for_all_servers and self.terms() is not None

    def _http_status(self, frame: Frame, status: int) -> int:
        """Return the HTTP status of an answer. For modern clients the error code decides it."""
        if self.client is not None or status != 200:
            return status
        error = jsonrpc.error_of(frame)
        return 200 if error is None else HTTP_STATUS_OF_CODE.get(error.code, 200)

    def trace_id(self) -> str | None:
        """Return the trace id as 32 hexadecimal digits, or None. Most calls have no trace."""
        if self.trace:
            return self.trace
        found = refusals.trace_of(self.params)
        trace = self.client_stream.trace
        named = None if found is not None or trace is None else trace.context
        return found if named is None else named.trace_id

    @property
    def client_call(self) -> "Call | None":
        """The client's call that this one serves; None while its client answers a question."""
        return self

    def ensure_trace_id(self) -> str:
        """Return the trace id, and create one if the call has none."""
        if self.trace:
            return self.trace
        # The parameters of a plain tool call name a trace in their metadata only.
        said = self.params if self.meta is None else self.meta
        if self.client_stream.trace is not None or (
            said is not jsonrpc.UNSET and refusals.may_name_trace(said)
        ):
            self.trace = self.trace_id() or ""
        self.trace = self.trace or new_trace_id()
        return self.trace

    def _reply(
        self, data: bytes, status: int, outcome: str, refusal: Refusal | None = None
    ) -> None:
        """Send the last message, after the audit log has recorded the outcome if it must."""
        if self.active_calls is None or self.active_calls.outcome_recorder is None:
            self.client_stream.finish(data, status)
        else:
            reply = partial(self.client_stream.finish, data, status)
            self.active_calls.outcome_recorder.record_outcome(self, outcome, refusal, reply)

    def _end_call(self, outcome: str, answer: Frame | None) -> None:
        if self.client is not None:
            self.client.conversation.settle(self.client_request_id)
        if self.active_calls is not None:
            self.active_calls.end(self, outcome, answer)


class GatewayCall(Call):
    """A request of the gateway itself, without a client."""

    __slots__ = ("answer_future", "on_notification")
    is_for_all_servers = True

    def __init__(self, frame: Frame, on_notification: Callable[[Frame], None] | None) -> None:
        super().__init__(frame, ClientStream(), None, 0)
        self.answer_future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.on_notification = on_notification

    def deliver_answer(self, frame: Frame, status: int = 200) -> None:
        if not self.answer_future.done():
            self.answer_future.set_result(frame)

    def deliver_notification(self, frame: Frame) -> None:
        if self.on_notification is not None:
            self.on_notification(frame)

    def fail(self, error: Unavailable | MalformedMessage) -> None:
        if not self.answer_future.done():
            self.answer_future.set_exception(error)


METRICS_BATCH_SIZE: Final = 100
RETRY_AFTER: Final = timedelta(seconds=5)
"""The delay after which a gateway that shuts down, or another one, may be available again."""

type Ended = tuple[ServerCounters | None, str, Raw | UnsetType, str | None, str, float]
"""The metrics of an ended call: counters, method, parameters, tool, outcome and seconds."""


class ActiveCalls:
    """All open calls, kept so that one check a second finds those past their deadline."""

    def __init__(
        self,
        now: Callable[[], float],
        deadline: float,
        cap: float,
        question_timeout: float,
        metrics: CallMetrics | None = None,
        *,
        request_shares: PrincipalShares | None = None,
        stream_shares: PrincipalShares | None = None,
        tracer: Tracer | None = None,
        outcome_recorder: CallOutcomeRecorder | None = None,
    ) -> None:
        self.now = now
        self._request_shares = request_shares or PrincipalShares(
            "requests in flight", "", sys.maxsize
        )
        self._stream_shares = stream_shares or PrincipalShares("streams", "", sys.maxsize)
        self.metrics = CallMetrics() if metrics is None else metrics
        self.tracer = tracer
        self.outcome_recorder = outcome_recorder
        self._gateway_counters = self.metrics.at("")
        self._ended_calls: list[Ended] = []
        self._deadline = deadline
        self._cap = cap
        self._question_timeout = question_timeout
        # In the order in which they began, so that calls that end together end in that order.
        self._calls: dict[Call, None] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(list(self._calls))

    def begin(
        self,
        frame: Frame,
        client_stream: ClientStream,
        client: CallClient | None,
        counted: ServerCounters | None = None,
    ) -> Call:
        """Create the call of a client's request.

        Raises MalformedMessage if the id is already in use.
        """
        call = Call(frame, client_stream, client, self.now())
        if client is not None:
            client.conversation.register_peer_request(call.client_request_id, call)
        call.counters = counted
        if type(frame) is ExtendedFrame:
            call.trace = trace_beside(frame) or ""
        if self.tracer is not None:
            session, version = (client.id, client.version) if client else ("", LATEST_MODERN)
            client_stream.trace = self.tracer.begin(frame, client_stream.trace, session, version)
        call.active_calls = self
        share, principal = self._request_shares, client_stream.actor.party
        if call.method == LISTEN:
            share = self._stream_shares
        if share.acquire(principal):
            call.request_share = (share, principal)
        else:
            call.exceeded_shares = share
        self._calls[call] = None
        return call

    def end(self, call: Call, outcome: str, answer: Frame | None) -> None:
        """Count a call as ended. A later end of the same call has no effect."""
        if call in self._calls:
            del self._calls[call]
            if call.on_end is not None:
                call.on_end(outcome, answer)
            if call.request_share is not None:
                share, principal = call.request_share
                share.release(principal)
            seconds = self.now() - call.started_at
            ended = (call.counters, call.method, call.params, call.tool, outcome, seconds)
            self._ended_calls.append(ended)
            if len(self._ended_calls) >= METRICS_BATCH_SIZE:
                self.update_metrics()
            if self.tracer is not None:
                self._end_trace(call, outcome, answer)

    def update_metrics(self) -> CallMetrics:
        """Add the calls that ended since the last time to the metrics."""
        ended, self._ended_calls = self._ended_calls, []
        for counted, method, params, tool, outcome, seconds in ended:
            (counted or self._gateway_counters).add(method, params, tool, outcome, seconds)
        return self.metrics

    def _end_trace(self, call: Call, outcome: str, answer: Frame | None) -> None:
        if call.client_stream.trace is not None:
            tally = (call.counters or self._gateway_counters).of(
                call.method, call.params, call.tool
            )
            ending = CallTraceOutcome(tally.server, tally.method, tally.tool, outcome, answer)
            call.client_stream.trace.ended(ending)

    def check(self, keep_alive_seconds: float) -> None:
        """End calls past their deadline. Progress extends the deadline, up to the cap.

        No deadline runs while a person or a client is asked, because every question has one of its
        own. Here the questions of servers to clients end.

        Listen requests have no deadline. A silent stream gets a comment every
        `keep_alive_seconds`, so that proxies keep it open.
        """
        now = self.now()
        for call in list(self._calls):
            self._expire_questions(call, now)
            if self._is_late(call, now):
                silent = now - call.last_activity_at > self._deadline
                call.expire(self._deadline if silent else self._cap)
                continue
            if call.on_first_check is not None:
                watch, call.on_first_check = call.on_first_check, None
                watch()
            if now - call.started_at > keep_alive_seconds:
                call.client_stream.wake_reader()

    def interrupt(self) -> None:
        """Answer every open call with an error, because the gateway shuts down.

        Listen requests expect no answer; they end elsewhere.
        """
        for call in list(self._calls):
            if call.method == LISTEN:
                continue
            call.cancel_work(jsonrpc.to_raw("the gateway is shutting down"))
            call.refuse(INTERRUPTED, "the gateway is shutting down", RETRY_AFTER)

    def seconds_left(self, call: Call) -> float:
        """Return the seconds that a call may still take without further progress."""
        return min(call.last_activity_at + self._deadline, call.started_at + self._cap) - self.now()

    def _expire_questions(self, call: Call, now: float) -> None:
        for question, asked_at in call.client_questions:
            # A question that people answer in place of the client ends with their request.
            if question.client is not None and now - asked_at > self._question_timeout:
                question.expire()

    def _is_late(self, call: Call, now: float) -> bool:
        if call.method == LISTEN or call.held_since is not None:
            return False
        return now - call.last_activity_at > self._deadline or now - call.started_at > self._cap


async def run_periodically(
    checks: Iterable[Callable[[float], None]], interval: float, keep_alive_seconds: float
) -> None:
    """Run the checks periodically until cancelled. A failed check does not stop the others."""
    while True:
        await asyncio.sleep(interval)
        for look in checks:
            try:
                look(keep_alive_seconds)
            except Exception:
                log.exception("Cleaning up waiting calls failed")
