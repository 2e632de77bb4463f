"""Calls between a client and a server of different protocol versions."""

import asyncio
import itertools
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from msgspec import Raw

from comity.catalog.catalog import Catalog
from comity.errors import (
    EXHAUSTED,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    TIMEOUT,
    UPSTREAM_FAILED,
    MalformedMessage,
    Unavailable,
)
from comity.gateway.subscriptions import ResourceSubscriptions
from comity.mcp import eras, jsonrpc, modern_requests, protocol
from comity.mcp.conversation import Conversation
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.eras import ClientInfo, InputRequiredResult
from comity.mcp.jsonrpc import LIMITS, UNSET, Frame
from comity.mcp.mgp import NegotiatedTerms
from comity.mcp.protocol import encode_header_value
from comity.policy.shares import RETRY_AFTER, PrincipalShares
from comity.servers.connections import ServerConnections
from comity.sessions.calls import Call, PendingMessage, ServerRequest
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from comity.sessions.upstream import UpstreamConnection
from comity.telemetry.tracing import Headers
from comity.toolkit.resilience import RetrySchedule
from comity.toolkit.sealed_tokens import seal_token, unseal_token

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BridgeRoute:
    """The server of a bridged call, and the function that sends the call each time."""

    server: str
    send: Callable[[Call, Frame], None]


class BridgedCall(Call):
    """A call that the gateway makes at a server on behalf of a client's call.

    The client's call is `front`. It is None while the client is between two requests.
    """

    is_bridged = True

    def __init__(self, frame: Frame, client_call: Call, route: BridgeRoute) -> None:
        super().__init__(frame, client_call.client_stream, client_call.client, 0)
        self.current_call: Call | None = None
        self.is_for_all_servers = client_call.is_for_all_servers
        self.conversation: Conversation[PendingMessage] = Conversation()
        self.frame = frame
        self._route = route
        self._round = 0
        self.attach_client_call(client_call)

    @property
    def client_call(self) -> Call | None:
        return self.current_call

    @property
    def mgp(self) -> NegotiatedTerms | None:
        return None if self.connection is None else self.connection.mgp

    @property
    def size(self) -> int:
        """The number of bytes that the call holds for its client."""
        return 0 if self.frame.params is UNSET else len(self.frame.params)

    def ensure_trace_id(self) -> str:
        """Return the trace of the client's first call."""
        if not self.trace and self.current_call is not None:
            self.trace = self.current_call.ensure_trace_id()
        return super().ensure_trace_id()

    def attach_client_call(self, client_call: Call) -> None:
        """Make `front` the client's current call, in the place of the one before."""
        self._round += 1
        self.current_call, self.client_stream = client_call, client_call.client_stream
        client_call.connection, client_call.outgoing_id = self, self._round

    def start(self) -> None:
        """Send the call for the first time.

        Raises Unavailable or MalformedMessage if it cannot be sent.
        """
        front = self.current_call
        if front is None or front.client_stream.is_final:
            # The client withdrew the call, or its deadline passed, while the connection was opened.
            return
        try:
            self._route.send(self, self.frame)
        except (Unavailable, MalformedMessage):
            # The call was never sent, so the outcome must not count as unknown.
            front.connection = None
            raise

    def deliver_answer(self, frame: Frame, status: int = 200) -> None:
        """Answer the client's call.

        The HTTP status is dropped, because it means something else in the other protocol version.
        """
        if self.current_call is not None:
            self.current_call.deliver_answer(
                jsonrpc.with_id(frame, self.current_call.client_request_id)
            )

    def deliver_notification(self, frame: Frame) -> None:
        if self.current_call is not None:
            try:
                self.current_call.deliver_notification(frame)
            except MalformedMessage as error:
                log.info("server %r: a notification is lost: %s", self._route.server, error)

    def deliver_request(self, server_request: ServerRequest, frame: Frame) -> None:
        server_request.refuse(METHOD_NOT_FOUND, "this MCP version has no requests to clients")

    def fail(self, error: Unavailable | MalformedMessage) -> None:
        if self.current_call is not None:
            self.current_call.fail(error)

    def withdraw(self, reason: Raw | None) -> None:
        self.cancel_request(self._round, reason)

    def send_again(self, frame: Frame) -> None:
        """Send the call again, or request its next part. If that is impossible, the call fails."""
        try:
            self._route.send(self, frame)
        except (Unavailable, MalformedMessage) as error:
            self.fail(error)

    # The methods of a connection, which this object is for the client's call.

    def send_message(self, frame: Frame) -> None:
        """Do nothing: no message during a call exists in both protocol versions."""

    def cancel_request(self, outgoing_id: int, reason: Raw | None) -> None:
        """End the call at the server, because the client's call ended without an answer.

        A client's call that was replaced by a later one has no effect.
        """
        if outgoing_id == self._round:
            self.detach_and_cancel(reason)

    def detach_and_cancel(self, reason: Raw | None) -> None:
        """Detach the client's call, and tell the server that the call is cancelled."""
        self.current_call = None
        if self.connection is not None:
            self.connection.cancel_request(self.outgoing_id, reason)

    def throttle(self, outgoing_id: int, paused: bool) -> None:
        if self.connection is not None:
            self.connection.throttle(self.outgoing_id, paused)


MAX_TOTAL_PARKED_BYTES: Final = 256 * 1024 * 1024
"""The most bytes that all parked calls may hold together."""
UNKNOWN_STATE_TEXT: Final = (
    "requestState names nothing that waits here; make the call again without it"
)


class ParkedContinuation(Protocol):
    """A call that waits for an answer and then continues."""

    def resume(self, call: Call, frame: Frame) -> None:
        """Continue with the client's new request `call` and its message `frame`.

        Raises MalformedMessage, and keeps waiting, if the message cannot be understood.
        """
        ...

    def expire_parked(self) -> None:
        """End the call, because no answer came in time. It has already left the parked calls."""
        ...


@dataclass(frozen=True, slots=True)
class _ParkedEntry:
    continuation: ParkedContinuation
    digest: bytes
    size: int
    expires_at: float
    principal: str


class ParkedCalls:
    """The parked calls, each with a name that is valid for one return."""

    def __init__(
        self,
        now: Callable[[], float],
        max_calls: int = 1000,
        timeout: timedelta = timedelta(minutes=10),
        max_per_principal: int | None = None,
    ) -> None:
        self._now = now
        self._max_calls = max_calls
        setting = "max_parked_per_principal"
        self._call_shares = PrincipalShares(
            "calls that wait for an answer", setting, max_per_principal or max_calls
        )
        # A few large calls must not use up the room of many small ones.
        self._byte_shares = PrincipalShares(
            "bytes of calls that wait", setting, MAX_TOTAL_PARKED_BYTES // 4
        )
        self._timeout_seconds = timeout.total_seconds()
        # The key lives in memory only, like the parked calls that it names.
        self._key = secrets.token_bytes(32)
        self._entry_by_name: OrderedDict[str, _ParkedEntry] = OrderedDict()
        self._name_by_continuation: dict[ParkedContinuation, str] = {}
        self._total_bytes = 0

    def __len__(self) -> int:
        return len(self._entry_by_name)

    def park(
        self, continuation: ParkedContinuation, size: int, digest: bytes = b"", principal: str = ""
    ) -> str:
        """Park a call and return the sealed state with which its client comes back.

        Only a request with the same digest can resume the call. If the call is already parked, its
        earlier state becomes void. `size` is the number of bytes that it holds. Raises Unavailable
        if too many calls or bytes are parked.
        """
        self.remove(continuation)
        if (
            len(self._entry_by_name) >= self._max_calls
            or self._total_bytes + size > MAX_TOTAL_PARKED_BYTES
        ):
            raise Unavailable("too many calls wait for an answer already", EXHAUSTED, RETRY_AFTER)
        if self._byte_shares.is_full(principal, size):
            raise self._byte_shares.error()
        if not self._call_shares.acquire(principal):
            raise self._call_shares.error()
        self._byte_shares.acquire(principal, size)
        name = secrets.token_hex(16)
        self._entry_by_name[name] = _ParkedEntry(
            continuation, digest, size, self._now() + self._timeout_seconds, principal
        )
        self._name_by_continuation[continuation] = name
        self._total_bytes += size
        return seal_token(self._key, name)

    def find(self, state: str, digest: bytes) -> ParkedContinuation:
        """Return the parked call of a state; it leaves once it continues.

        Raises MalformedMessage if the state is unknown or the digest differs.
        """
        words = unseal_token(self._key, state)
        place = self._entry_by_name.get(words[0]) if words else None
        if place is None or place.digest != digest:
            raise MalformedMessage(UNKNOWN_STATE_TEXT, INVALID_PARAMS)
        return place.continuation

    def remove(self, continuation: ParkedContinuation) -> None:
        """Remove a call that no longer waits."""
        name = self._name_by_continuation.pop(continuation, None)
        if name is not None:
            place = self._entry_by_name.pop(name)
            self._total_bytes -= place.size
            self._call_shares.release(place.principal)
            self._byte_shares.release(place.principal, place.size)

    def check(self, keep_alive_seconds: float) -> None:
        """End the calls whose time is over. The oldest come first, so the loop can stop early."""
        now = self._now()
        while self._entry_by_name:
            place = next(iter(self._entry_by_name.values()))
            if place.expires_at > now:
                return
            self.remove(place.continuation)
            place.continuation.expire_parked()


NO_ANSWER_TEXT: Final = "it was not answered in time"
MAX_PARKED_BYTES: Final = LIMITS.frame_bytes
"""The limit for open questions, because one answer to the client holds all of them."""


class ModernToLegacyCall(BridgedCall):
    """A modern client's call at a legacy server.

    The call at the server continues while the requests of the client come and go.
    """

    def __init__(
        self,
        frame: Frame,
        client_call: Call,
        route: BridgeRoute,
        client_info: ClientInfo,
        parked_calls: ParkedCalls,
    ) -> None:
        super().__init__(frame, client_call, route)
        self._client_info = client_info
        self._party = client_call.client_stream.actor.party
        self._parked_calls = parked_calls
        self._open_questions: dict[str, tuple[ServerRequest, Raw]] = {}
        self._question_count = 0
        self._pending_outcome: Callable[[Call], None] | None = None
        self._task: str | None = None
        self._page_demand: Frame | None = None

    def attach_client_call(self, client_call: Call) -> None:
        super().attach_client_call(client_call)
        # A stream of the server does not become a stream to the client: an error has its HTTP
        # status only if the answer is the whole response.
        self.client_stream = ClientStream()
        self.client_stream.trace, self.client_stream.actor = (
            client_call.client_stream.trace,
            client_call.client_stream.actor,
        )
        client_call.client_stream.on_throttle = lambda paused: self.throttle(0, paused)

    def deliver_answer(self, frame: Frame, status: int = 200) -> None:
        """Answer the client's current request, or keep the answer for its next one."""
        self._refuse_open_questions("the call was answered already")
        task = eras.task_in(frame) if self._task is None else None
        if task is not None:
            self._task = task
            self.send_again(
                jsonrpc.make_request(self.client_request_id, eras.RESULT, {"taskId": task})
            )
        elif not self._ask_for_pages(frame):
            said = eras.modern_error(frame, self.method)
            self._deliver_outcome(
                lambda call: call.deliver_answer(jsonrpc.with_id(said, call.client_request_id))
            )

    def fail(self, error: Unavailable | MalformedMessage) -> None:
        self._refuse_open_questions("the call has failed")
        self._deliver_outcome(lambda call: call.fail(error))

    def deliver_request(self, server_request: ServerRequest, frame: Frame) -> None:
        params = jsonrpc.to_raw({}) if frame.params is UNSET else frame.params
        try:
            reason = eras.unaskable_reason(
                self._client_info.capabilities, server_request.method, params
            )
            asked = jsonrpc.to_raw(eras.embed_request(frame))
        except MalformedMessage as error:
            server_request.refuse(INVALID_PARAMS, str(error))
            return
        held = self._held_bytes()
        if reason is not None:
            server_request.pending_message = self
            server_request.decline(frame, reason)
        elif len(self._open_questions) >= eras.MAX_REQUESTS or held + len(asked) > MAX_PARKED_BYTES:
            server_request.refuse(EXHAUSTED, "too much is asked at once")
        else:
            self._add_question(server_request, asked)
            self._park()

    def resume(self, call: Call, frame: Frame) -> None:
        """Send the client's answers to the server, and continue the call."""
        said, (responses, _) = eras.client_declaration_in(frame), eras.input_responses_in(frame)
        answers = [
            (key, eras.answer_to(self._open_questions[key][0].server_request_id, response))
            for key, response in responses.items()
            if key in self._open_questions
        ]
        if call.client_stream.is_final:
            # The client withdrew the request on its way here, so the call keeps waiting.
            return
        self._parked_calls.remove(self)
        self._client_info = said
        self.attach_client_call(call)
        # The stream before this one may have been paused and not read to its end.
        self.throttle(0, False)
        if self._pending_outcome is not None:
            self._pending_outcome(call)
            return
        for key, answer in answers:
            # The previous answer may have settled this question too.
            question, _ = self._open_questions.pop(key, (None, None))
            if question is not None:
                question.deliver_answer(answer)
        if self._open_questions:
            self._park()
        elif self._page_demand is not None:
            self._page_demand = None
            self.send_again(self.frame)

    def expire_parked(self) -> None:
        self._refuse_open_questions(NO_ANSWER_TEXT)
        self.detach_and_cancel(jsonrpc.to_raw(NO_ANSWER_TEXT))

    def detach_and_cancel(self, reason: Raw | None) -> None:
        self._parked_calls.remove(self)
        self._refuse_open_questions("the client withdrew its call")
        if self._task is not None and self.connection is not None:
            self._cancel_task(self._task)
        super().detach_and_cancel(reason)

    def _deliver_outcome(self, deliver: Callable[[Call], None]) -> None:
        if self.current_call is not None:
            deliver(self.current_call)
        else:
            self._pending_outcome = deliver

    def _add_question(self, server_request: ServerRequest, asked: Raw) -> None:
        self._question_count += 1
        key = str(self._question_count)
        server_request.on_settled = lambda: self._open_questions.pop(key, None)
        self._open_questions[key] = (server_request, asked)

    def _park(self) -> None:
        """End the client's request with the server's questions. The call at the server waits."""
        front = self.current_call
        if front is None:
            return
        try:
            digest = eras.request_digest(self._route.server, self.frame, self._party)
            state = self._parked_calls.park(
                self, self.size + self._held_bytes(), digest, self._party
            )
        except (Unavailable, MalformedMessage) as error:
            self._refuse_open_questions(str(error))
            return
        self.current_call = None
        body = eras.input_required(
            {key: asked for key, (_, asked) in self._open_questions.items()}, state
        )
        front.adapt_answer = None
        front.deliver_answer(jsonrpc.make_result(front.client_request_id, body))

    def _held_bytes(self) -> int:
        return sum(len(asked) for _, asked in self._open_questions.values())

    def _refuse_open_questions(self, reason: str) -> None:
        questions, self._open_questions = self._open_questions, {}
        for question, _ in questions.values():
            question.refuse(EXHAUSTED, reason)

    # What a legacy server may send in place of a result.

    def _ask_for_pages(self, frame: Frame) -> bool:
        """Ask the client to visit the pages that the server requires, then repeat the call.

        Returns False if there are no pages or the client does not support them.
        """
        pages = eras.pages_in(frame)
        terms = self._client_info.capabilities
        if not pages or any(eras.unaskable_reason(terms, protocol.ELICIT, page) for page in pages):
            return False
        self._page_demand = frame
        for page in pages:
            asked = jsonrpc.make_request("page", protocol.ELICIT, page)
            question = ServerRequest(asked, self, self._on_page_answer)
            self._add_question(question, jsonrpc.to_raw(eras.embed_request(asked)))
        self._park()
        return True

    def _on_page_answer(self, answer: Frame) -> None:
        demand = self._page_demand
        if demand is not None and not eras.is_accepted(answer):
            self._page_demand = None
            self._refuse_open_questions("another page was not visited")
            self._deliver_outcome(
                lambda call: call.deliver_answer(jsonrpc.with_id(demand, call.client_request_id))
            )

    def _cancel_task(self, task: str) -> None:
        frame = jsonrpc.make_request(self.client_request_id, eras.CANCEL, {"taskId": task})
        try:
            self._route.send(Call(frame, ClientStream(), None, 0), frame)
        except (Unavailable, MalformedMessage):
            # The server is gone, and the task with it.
            return


MAX_ROUNDS: Final = 64
"""The most rounds of one call, so that a server cannot ask without end."""
ROUND_DELAYS: Final = RetrySchedule(timedelta(milliseconds=100), timedelta(seconds=5))
"""Delays between rounds without a question, in which the server only needs time."""


class LegacyToModernCall(BridgedCall):
    """A legacy client's call at a modern server.

    The client's call stays open. The call at the server is sent anew in every round.
    """

    def __init__(
        self,
        frame: Frame,
        client_call: Call,
        route: BridgeRoute,
        session: Session,
        parked_calls: ParkedCalls,
    ) -> None:
        super().__init__(frame, client_call, route)
        self._session = session
        self._parked_calls = parked_calls
        self._rounds = 0
        self._open_questions: dict[str, ServerRequest] = {}
        self._responses: dict[str, object] = {}
        self._timer: asyncio.TimerHandle | None = None

    def deliver_answer(self, frame: Frame, status: int = 200) -> None:
        try:
            wanted = eras.required_input_in(frame)
            if wanted is None:
                super().deliver_answer(frame)
            elif self.current_call is not None:
                self._begin_round(wanted, self.current_call)
        except MalformedMessage as error:
            self.fail(Unavailable(f"the server sent a broken answer: {error}", UPSTREAM_FAILED))
        except Unavailable as error:
            self.fail(error)

    def resume(self, call: Call, frame: Frame) -> None:
        """Do nothing: the client's call stays open, so the client never comes back."""

    def expire_parked(self) -> None:
        front = self.current_call
        self.detach_and_cancel(None)
        if front is not None:
            front.refuse(TIMEOUT, NO_ANSWER_TEXT)

    def detach_and_cancel(self, reason: Raw | None) -> None:
        self._parked_calls.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        questions, self._open_questions = self._open_questions, {}
        for question in questions.values():
            question.withdraw(None)
        super().detach_and_cancel(reason)

    def _begin_round(self, input_required: InputRequiredResult, client_call: Call) -> None:
        self._rounds += 1
        if self._rounds > MAX_ROUNDS:
            raise Unavailable("the server asks for input too often")
        lacking = eras.missing_capability_reason(self._session.capabilities, input_required)
        if lacking is not None:
            client_call.refuse(
                MISSING_CAPABILITY, f"the client cannot answer the server: {lacking}"
            )
        elif input_required.requests:
            self._ask_client(input_required, client_call)
        else:
            pause = ROUND_DELAYS.delay(self._rounds, 0.5).total_seconds()
            self._timer = asyncio.get_running_loop().call_later(
                pause, self._send_next_round, input_required
            )

    def _ask_client(self, input_required: InputRequiredResult, client_call: Call) -> None:
        """Send the server's questions to the client on the stream of its call."""
        self._parked_calls.park(self, self.size, principal=client_call.client_stream.actor.party)
        client_call.pause_deadlines()
        self._responses = {}
        asked: dict[str, Frame] = {}
        for key, (method, params) in input_required.requests.items():
            named = secrets.token_hex(16)
            frame = asked[key] = eras.handshake_question(key, method, params, named)
            self._open_questions[key] = ServerRequest(
                frame, self, lambda answer: self._on_client_answer(input_required, answer)
            )
        for key, frame in asked.items():
            # A question that was refused at once may have ended the call.
            question = self._open_questions.get(key)
            if question is not None:
                question.send_to_client(self._session, frame, client_call.client_stream)

    def _on_client_answer(self, input_required: InputRequiredResult, answer: Frame) -> None:
        """Take one answer of the client. After the last answer, repeat the call."""
        key, front = str(answer.id), self.current_call
        if self._session.is_closed or self._open_questions.pop(key, None) is None or front is None:
            # The client disconnected without an answer, and its call ends at the same time.
            return
        response = eras.response_to(input_required.requests[key][0], answer)
        if response is None:
            self.detach_and_cancel(None)
            error = jsonrpc.error_of(answer)
            said = "" if error is None else f": {error.message:.200}"
            front.refuse(MISSING_CAPABILITY, f"the client did not answer the server{said}")
            return
        self._responses[key] = response
        if not self._open_questions:
            self._parked_calls.remove(self)
            front.resume_deadlines()
            self._send_next_round(input_required)

    def _send_next_round(self, input_required: InputRequiredResult) -> None:
        responses, self._responses = self._responses, {}
        self.send_again(eras.repeat_request(self.frame, responses, input_required.state))


class EraBridge:
    """Sends calls whose client and server use different protocol versions."""

    def __init__(self, catalog: Catalog, parked_calls: ParkedCalls) -> None:
        self._catalog = catalog
        self._parked_calls = parked_calls
        self._resource_subscriptions = ResourceSubscriptions()
        self._progress_tokens = itertools.count(1)

    def __len__(self) -> int:
        """Return the number of resources that are followed for legacy clients."""
        return len(self._resource_subscriptions)

    async def send_to_legacy(
        self, server: ServerConnections, call: Call, frame: Frame, headers: Headers
    ) -> None:
        """Send a modern client's request to a legacy server.

        Raises MalformedMessage if the method does not exist there or the request is invalid. Raises
        Unavailable if the server is not available.
        """
        if call.method not in eras.CROSSING:
            raise MalformedMessage(f"{call.method:.80} does not exist here", METHOD_NOT_FOUND)
        offer = self._entry_of(server, frame) if call.method == protocol.CALL_TOOL else None
        if offer is not None:
            _check_headers(offer, frame, headers)
        said = eras.client_declaration_in(frame)
        about = server.initialize_result.get("serverInfo")
        call.adapt_answer = lambda answer: eras.modern_result(answer, call.method, about)
        call.adapt_notification = lambda notice: eras.translate_notification(notice, said)
        _, state = eras.input_responses_in(frame)
        if state is not None:
            # The digest includes the principal, so the state of another principal finds nothing.
            # (attack 7)
            digest = eras.request_digest(server.name, frame, call.client_stream.actor.party)
            self._parked_calls.find(state, digest).resume(call, frame)
            return
        plain = eras.handshake_request(frame, f"comity-{next(self._progress_tokens)}")
        if offer is not None and eras.must_be_task(offer.definition):
            plain = eras.as_task(plain)
        capabilities = {
            name: jsonrpc.decode_value(terms) for name, terms in said.capabilities.items()
        }
        connection = await server.bridge_connection(capabilities, call.client_stream.actor)
        await _lower_level(connection, said.level)
        ModernToLegacyCall(
            plain, call, BridgeRoute(server.name, connection.send_call), said, self._parked_calls
        ).start()

    async def send_to_modern(
        self, server: ServerConnections, session: Session, call: Call, frame: Frame
    ) -> None:
        """Send a legacy client's request to a modern server.

        Raises MalformedMessage if the method does not exist there or the request is invalid. Raises
        Unavailable if the server is not available.
        """
        if call.method in eras.CROSSING:
            self._start_bridged_call(server, session, call, frame)
            return
        if call.method in (protocol.SUBSCRIBE, protocol.UNSUBSCRIBE):
            await self._follow_resource(server, session, call.method, frame)
        elif call.method == protocol.SET_LEVEL:
            session.log_level = eras.log_level_in(frame)
        elif call.method != protocol.PING:
            raise MalformedMessage(f"{call.method:.80} does not exist here", METHOD_NOT_FOUND)
        call.deliver_answer(jsonrpc.make_result(call.client_request_id, {}))

    def headers_for(self, server: ServerConnections, frame: Frame) -> Headers:
        """Return the headers that repeat parts of a modern request for proxies on its way."""
        method, params = str(frame.method), frame.parameters
        named = jsonrpc.decode_text(params.get(protocol.NAME_PARAM_OF.get(method, "")))
        headers = ((protocol.METHOD_HEADER, method.encode()),)
        if named is None:
            return headers
        headers = (*headers, (protocol.NAME_HEADER, encode_header_value(named)))
        marks = self._header_arguments(server, named) if method == protocol.CALL_TOOL else ()
        return (
            (*headers, *modern_requests.headers_for(marks, _arguments(params)))
            if marks
            else headers
        )

    async def _follow_resource(
        self, server: ServerConnections, session: Session, method: str, frame: Frame
    ) -> None:
        uri = jsonrpc.decode_text(frame.parameters.get("uri"))
        if uri is None:
            raise MalformedMessage("uri is missing", INVALID_PARAMS)
        if session.is_closed:
            raise Unavailable("the session has ended")
        session.on_close[self] = lambda: self._resource_subscriptions.remove_subscriber(session)
        if method == protocol.SUBSCRIBE:
            await self._resource_subscriptions.follow(server, uri, session)
        else:
            self._resource_subscriptions.unfollow(server, uri, session)

    def _start_bridged_call(
        self, server: ServerConnections, session: Session, call: Call, frame: Frame
    ) -> None:
        said = ClientInfo(session.capabilities, session.client_info, session.log_level)
        call.adapt_answer = lambda answer: eras.handshake_result(answer, call.method)
        call.adapt_notification = eras.retold_plainly
        plain, headers = eras.modern_request(frame, said), self.headers_for(server, frame)

        def send(across: Call, asked: Frame) -> None:
            server.modern_connection(call.client_stream.actor).send_call(across, asked, headers)

        LegacyToModernCall(
            plain, call, BridgeRoute(server.name, send), session, self._parked_calls
        ).start()

    def _entry_of(self, server: ServerConnections, frame: Frame) -> CatalogEntry | None:
        if frame.tool is not None:
            return self._catalog.find_own(server.name, EntryKind.TOOL, frame.tool.name)
        name = jsonrpc.decode_text(frame.parameters.get("name"))
        return self._catalog.find_own(server.name, EntryKind.TOOL, name or "")

    def _header_arguments(
        self, server: ServerConnections, tool: str
    ) -> tuple[modern_requests.HeaderArgument, ...]:
        offer = self._catalog.find_own(server.name, EntryKind.TOOL, tool)
        return modern_requests.marks_in(offer.definition) if offer is not None else ()


def _check_headers(entry: CatalogEntry, frame: Frame, headers: Headers) -> None:
    """Refuse a request whose headers differ from its arguments. Raises MalformedMessage."""
    marks = modern_requests.marks_in(entry.definition)
    # Only at HTTP can a proxy have routed by the headers.
    if marks and any(name == protocol.NAME_HEADER for name, _ in headers):
        arguments = _arguments(frame.parameters)
        wrong = modern_requests.header_mismatch_reason(marks, arguments, headers)
        if wrong is not None:
            raise MalformedMessage(wrong, HEADER_MISMATCH)


def _arguments(params: Mapping[str, Raw]) -> object:
    return jsonrpc.decode_value(params["arguments"]) if "arguments" in params else None


async def _lower_level(connection: UpstreamConnection, level: str | None) -> None:
    """Lower the server's log level to `level`. Never raise it, since other clients may need it."""
    if level not in protocol.LOG_LEVELS:
        return
    known = protocol.LOG_LEVELS.index
    if connection.log_level is None or known(level) < known(connection.log_level):
        await connection.set_level(level)
