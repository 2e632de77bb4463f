"""Callbacks and elicitations of servers that a person answers."""

import asyncio
import hashlib
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final

import msgspec

from comity.approvals.answers import (
    CALLBACK_KINDS,
    CANCEL_OPTION,
    MAX_OPEN_PER_CALL,
    MAX_OPEN_PER_SERVER,
    MAX_REMEMBERED_CALLBACKS,
    RESPOND_METHOD,
    CallbackRequest,
    CallbackType,
    callback_digest,
    callback_frame,
    callback_id_in,
    callback_options,
    callback_response_params,
    decision_of_response,
    decode_callback,
    decode_callback_response,
    is_callback,
    parse_form,
    quote_text,
    response_to,
    unanswered_response,
    with_request_id,
)
from comity.approvals.model import (
    ApprovalDecision,
    ApprovalDraft,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.service import NOT_FOUND_TEXT, ApprovalService
from comity.catalog.listing import gateway_envelope
from comity.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage, Unavailable
from comity.mcp import jsonrpc, protocol
from comity.mcp.conversation import Conversation
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import MgpExtension
from comity.policy.risk import SERVER_SUBJECT_PREFIX
from comity.sessions.calls import Call, GatewayCall, PendingMessage, ServerRequest
from comity.sessions.methods import MethodRequest, method
from comity.sessions.upstream import QuestionConnection
from comity.telemetry.metrics import name_in
from comity.toolkit.background import BackgroundTasks

log = logging.getLogger(__name__)

CALL_ENDED_TEXT: Final = "the call of this question is over"

type Redact = Callable[[object], object]
type Deliver = Callable[[ApprovalRequest | None], Awaitable[None]]
"""Tells a server the result of its question; None where people could not be asked."""


@dataclass(frozen=True, slots=True)
class ServerQuestion:
    """The question of a server, in its own words, and what an answer must hold."""

    server: str
    kind: ApprovalKind
    text: str
    timeout: timedelta
    digest: Callable[[str], str]
    """Returns the digest that binds the answer, from the name of the call."""
    options: tuple[str, ...] = ()
    schema: Mapping[str, object] | None = None


@dataclass(slots=True, eq=False)
class OpenQuestion:
    """One question of a server that is open.

    `errand` is the call at the server, `call` the call of the client that it is made for.
    """

    server_call: Call
    call: Call
    server: str
    request: ApprovalRequest
    deliver: Deliver
    on_forsaken: Callable[[], None] | None = None
    """Runs where the question ends because its call has ended."""
    on_opened: Callable[[ApprovalRequest], None] | None = None
    """Called when the question can be answered."""
    is_over: bool = False


class ServerQuestions:
    """The open questions of servers, and how many each server may have."""

    def __init__(
        self,
        approvals: ApprovalService,
        background_tasks: BackgroundTasks | None = None,
        redact: Redact = lambda value: value,
    ) -> None:
        self.background_tasks = background_tasks or BackgroundTasks("questions of servers")
        self.on_message_ended: list[Callable[[PendingMessage], None]] = []
        self._approvals = approvals
        self._redact = redact
        self._questions_by_message: dict[PendingMessage, list[OpenQuestion]] = {}
        self._count_by_server: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._count_by_server.total()

    def limit_problem(self, server_call: Call, server: str) -> str | None:
        """Return why a server cannot ask another question now, or None if it can."""
        if len(self._questions_by_message.get(server_call, ())) >= MAX_OPEN_PER_CALL:
            return f"{MAX_OPEN_PER_CALL} questions of this call are open already"
        if self._count_by_server[server] >= MAX_OPEN_PER_SERVER:
            return f"{MAX_OPEN_PER_SERVER} questions of this server are open already"
        return None

    def watch_conversation(self, conversation: Conversation[PendingMessage]) -> None:
        """Watch the calls of this conversation for their end."""
        conversation.on_end = self.on_call_ended

    def make_request(self, server_question: ServerQuestion, call: Call) -> ApprovalRequest:
        """Return the request for a question, with the server's words quoted."""
        actor, tool = call.client_stream.actor, (call.tool or name_in(call.params))[:200]
        said = self._redact(server_question.text)
        words = quote_text(said if isinstance(said, str) else server_question.text)
        name = secrets.token_hex(16) if call.record is None else call.record.id
        about = {
            "tool": f"{server_question.server}/{tool}",
            "asked_by": SERVER_SUBJECT_PREFIX + server_question.server,
            "call": name,
        }
        draft = ApprovalDraft(
            kind=server_question.kind,
            asker=actor.party,
            server=server_question.server,
            tool=tool,
            digest=server_question.digest(name),
            message=(
                f"Server {server_question.server} asks during a call of {tool} by "
                f"{actor.party}: {words}"
            ),
            about=about,
            own=self._approvals.may_approve_own(actor),
            trace=call.ensure_trace_id(),
            options=server_question.options,
            schema=server_question.schema,
            open_for=server_question.timeout,
        )
        return self._approvals.create(draft)

    def ask(self, question: OpenQuestion) -> None:
        """Ask people, and deliver the result."""
        self._questions_by_message.setdefault(question.server_call, []).append(question)
        self._count_by_server[question.server] += 1
        question.call.pause_deadlines()
        self.background_tasks.start(self._ask_and_deliver(question))

    def show_notice(self, request: ApprovalRequest) -> None:
        """Show a notice that needs no answer."""
        self.background_tasks.start(self._open_notice(request))

    def on_call_ended(self, pending_message: PendingMessage) -> None:
        """End the questions that a server asked during a call that has ended."""
        for inquiry in list(self._questions_by_message.get(pending_message, ())):
            self.end(inquiry)
            if inquiry.on_forsaken is not None:
                inquiry.on_forsaken()
        for ending in self.on_message_ended:
            ending(pending_message)

    def end(self, question: OpenQuestion) -> None:
        """End a question whose server wants no answer any more."""
        question.is_over = True
        self._approvals.on_changed(question.request.id)

    async def _open_notice(self, request: ApprovalRequest) -> None:
        try:
            await self._approvals.open(request)
        except (Unavailable, MalformedMessage) as error:
            log.warning("A notification of server %r is lost: %s", request.server, error)

    async def _ask_and_deliver(self, question: OpenQuestion) -> None:
        ended: ApprovalRequest | None = None
        try:
            ended = await self._wait_for_end(question)
        except (Unavailable, MalformedMessage) as error:
            log.warning("The question of server %r could not be asked: %s", question.server, error)
        finally:
            question.call.resume_deadlines()
            self._forget(question)
        if not question.is_over:
            await question.deliver(ended)
        if ended is not None:
            await self._erase_content(ended)

    async def _wait_for_end(self, question: OpenQuestion) -> ApprovalRequest:
        approvals = self._approvals
        ask = question.request = await approvals.open(question.request)
        if question.on_opened is not None and ask.is_open:
            question.on_opened(ask)
        ask = await approvals.wait(ask, is_wanted=lambda: not question.is_over)
        if question.is_over:
            await approvals.withdraw(ask, CALL_ENDED_TEXT)
            return ask
        if ask.state is ApprovalState.APPROVED:
            return await approvals.consume(ask, str(ask.about["call"])) or ask
        return ask

    async def _erase_content(self, request: ApprovalRequest) -> None:
        try:
            await self._approvals.erase_content(request)
        except Unavailable as error:
            log.warning(
                "The answer to approval request %s could not be erased yet: %s", request.id, error
            )

    def _forget(self, question: OpenQuestion) -> None:
        amid = self._questions_by_message.get(question.server_call, [])
        if question in amid:
            amid.remove(question)
        if not amid:
            self._questions_by_message.pop(question.server_call, None)
        self._count_by_server[question.server] -= 1
        if self._count_by_server[question.server] <= 0:
            del self._count_by_server[question.server]


def client_call_of(pending_message: PendingMessage | None) -> Call | None:
    """Return the client's call that a call at a server is made for, or None if there is none."""
    if not isinstance(pending_message, Call) or isinstance(pending_message, GatewayCall):
        return None
    return pending_message.client_call


RESPOND_TIMEOUT_SECONDS: Final = 5.0
"""How long a server may take to acknowledge an answer."""

MAX_PENDING_REFUSALS: Final = 16
"""How many refusals may be on their way to a server at once."""


@dataclass(slots=True, eq=False)
class _CallbackEntry:
    callback: CallbackRequest
    server_call: Call
    response: object = UNSET


class CallbackService:
    """The callbacks of servers during open calls, with the answers that were given."""

    def __init__(self, server_questions: ServerQuestions) -> None:
        self._server_questions = server_questions
        self._entry_by_callback: dict[tuple[QuestionConnection, str], _CallbackEntry] = {}
        self._callbacks_by_message: dict[PendingMessage, list[tuple[QuestionConnection, str]]] = {}
        self._refusal_counts: Counter[QuestionConnection] = Counter()
        server_questions.on_message_ended.append(self._on_message_ended)

    def __len__(self) -> int:
        return len(self._entry_by_callback)

    def handle_callback(
        self, connection: QuestionConnection, frame: Frame, pending_message: PendingMessage | None
    ) -> bool:
        """Take a callback of a server. Returns False if it is not for Comity. Never raises."""
        if connection.mgp is None or MgpExtension.BIDIRECTIONAL not in connection.mgp.extensions:
            return False
        try:
            callback = decode_callback(frame.params)
            errand, call = _calls_of(connection, callback, pending_message)
        except MalformedMessage as error:
            self._refuse(connection, callback_id_in(frame.params), CANCEL_OPTION, str(error))
            return True
        if _client_negotiated(call):
            assert frame.params is not UNSET
            own = with_request_id(frame.params, call.client_request_id)
            call.deliver_notification(jsonrpc.with_params(frame, own))
            return True
        self._handle_checked(connection, callback, errand, call)
        return True

    def _handle_checked(
        self,
        connection: QuestionConnection,
        callback: CallbackRequest,
        server_call: Call,
        call: Call,
    ) -> None:
        known = self._entry_by_callback.get((connection, callback.id))
        if known is None:
            self._open_callback(connection, callback, server_call, call)
        elif known.callback != callback or known.server_call is not server_call:
            # The server would take an answer to this one for an answer to the other one.
            log.warning("server %r uses a callback_id for two questions", connection.server)
        elif known.response is not UNSET:
            self._repeat_response(connection, callback.id, known.response)

    def _open_callback(
        self,
        connection: QuestionConnection,
        callback: CallbackRequest,
        server_call: Call,
        call: Call,
    ) -> None:
        full = self._server_questions.limit_problem(server_call, connection.server)
        if (
            full is None
            and len(self._callbacks_by_message.get(server_call, ())) >= MAX_REMEMBERED_CALLBACKS
        ):
            full = f"{MAX_REMEMBERED_CALLBACKS} questions were asked during this call already"
        if full is not None:
            self._refuse(connection, callback.id, unanswered_response(callback.type), full)
            return
        known = self._entry_by_callback[connection, callback.id] = _CallbackEntry(
            callback, server_call
        )
        self._callbacks_by_message.setdefault(server_call, []).append((connection, callback.id))
        self._server_questions.watch_conversation(connection.conversation)
        asked = ServerQuestion(
            connection.server,
            CALLBACK_KINDS[callback.type],
            callback.message,
            callback.timeout,
            lambda name: callback_digest(connection.server, callback, name),
            callback_options(callback),
        )
        ask = self._server_questions.make_request(asked, call)
        if callback.type is CallbackType.NOTIFICATION:
            self._server_questions.show_notice(ask)
            _ask_client(callback, call, ask)
            return

        async def deliver(ended: ApprovalRequest | None) -> None:
            known.response = (
                unanswered_response(callback.type)
                if ended is None
                else response_to(callback, ended)
            )
            await _respond(connection, callback.id, known.response)

        inquiry = OpenQuestion(server_call, call, connection.server, ask, deliver)
        if ask.own and not call.client_stream.actor.lacks_token:
            inquiry.on_opened = partial(_ask_client, callback, call)
        self._server_questions.ask(inquiry)

    def _repeat_response(self, connection: QuestionConnection, name: str, response: object) -> None:
        if self._refusal_counts[connection] < MAX_PENDING_REFUSALS:
            self._refusal_counts[connection] += 1
            self._server_questions.background_tasks.start(
                self._respond_in_background(connection, name, response)
            )

    def _refuse(
        self, connection: QuestionConnection, name: str | None, response: str | None, reason: str
    ) -> None:
        log.info("The callback of server %r failed: %s", connection.server, reason)
        # A callback with a known name has an answer of its own, now or later.
        if name is not None and (connection, name) not in self._entry_by_callback:
            self._repeat_response(connection, name, response)

    async def _respond_in_background(
        self, connection: QuestionConnection, name: str, response: object
    ) -> None:
        try:
            await _respond(connection, name, response)
        finally:
            self._refusal_counts[connection] -= 1
            if self._refusal_counts[connection] <= 0:
                del self._refusal_counts[connection]

    def _on_message_ended(self, pending_message: PendingMessage) -> None:
        for key in self._callbacks_by_message.pop(pending_message, ()):
            self._entry_by_callback.pop(key, None)


def _calls_of(
    connection: QuestionConnection,
    callback: CallbackRequest,
    pending_message: PendingMessage | None,
) -> tuple[Call, Call]:
    """Return the call at the server and at the client. Raises MalformedMessage."""
    named = callback.request
    errand = connection.conversation.find_stream_owner(named) if isinstance(named, int) else None
    call = client_call_of(errand)
    if not isinstance(errand, Call) or call is None:
        raise MalformedMessage("request_id names no call that is open on this connection")
    if pending_message is not None and pending_message is not errand:
        raise MalformedMessage("request_id names another call than the one that it came with")
    return errand, call


def _client_negotiated(call: Call) -> bool:
    """Return whether the client itself negotiated callbacks with the server, at this node."""
    terms = call.terms() if call.speaks_mgp_with_server() else None
    is_agreed = terms is not None and MgpExtension.BIDIRECTIONAL in terms.extensions
    return is_agreed and not call.is_remote


def _ask_client(callback: CallbackRequest, call: Call, request: ApprovalRequest) -> None:
    """Ask the client on the stream of its call, if it negotiated callbacks with the gateway."""
    terms = call.terms() if call.is_for_all_servers else None
    if terms is not None and MgpExtension.BIDIRECTIONAL in terms.extensions:
        asked = callback_frame(
            callback, request.id, call.client_request_id, callback_options(callback)
        )
        call.client_stream.put(jsonrpc.encode_frame(asked))


async def _respond(connection: QuestionConnection, name: str, response: object) -> None:
    params: dict[str, object] = callback_response_params(name, response)
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if connection.initialize_result is None:
        params["_meta"] = gateway_envelope()
        headers = ((protocol.METHOD_HEADER, RESPOND_METHOD.encode()),)
    try:
        async with asyncio.timeout(RESPOND_TIMEOUT_SECONDS):
            answer = await connection.request(RESPOND_METHOD, params, headers)
    except (Unavailable, MalformedMessage, TimeoutError) as error:
        log.info("The callback answer could not be sent to server %r: %s", connection.server, error)
        return
    refused = jsonrpc.error_of(answer)
    if refused is not None:
        log.info(
            "server %r refused the answer to its callback: %s", connection.server, refused.message
        )


MAX_FORM_BYTES: Final = 64 * 1024
MAX_MESSAGE_LENGTH: Final = 4_000
_FORM_MODE: Final = "form"


class ElicitationInbox:
    """Turns elicitation forms of servers into approval requests."""

    def __init__(
        self, server_questions: ServerQuestions, timeout: timedelta, *, is_enabled: bool = False
    ) -> None:
        self.is_enabled = is_enabled
        self._server_questions = server_questions
        self._timeout = timeout

    def ask_people(self, server_request: ServerRequest, frame: Frame) -> bool:
        """Ask people instead of the client. Returns False if this question is not for them."""
        call = client_call_of(server_request.pending_message)
        if not self.is_enabled or server_request.method != protocol.ELICIT or call is None:
            return False
        if jsonrpc.decode_text(frame.parameters.get("mode", b'"form"')) != _FORM_MODE:
            return False
        assert isinstance(server_request.pending_message, Call)
        try:
            asked = self._parse_question(str(call.counters.server if call.counters else ""), frame)
        except MalformedMessage as error:
            server_request.refuse(INVALID_PARAMS, str(error))
            return True
        full = self._server_questions.limit_problem(server_request.pending_message, asked.server)
        if full is not None:
            server_request.refuse(EXHAUSTED, full)
            return True
        self._begin(server_request, asked, server_request.pending_message, call)
        return True

    def _begin(
        self,
        server_request: ServerRequest,
        server_question: ServerQuestion,
        server_call: Call,
        call: Call,
    ) -> None:
        async def deliver(ended: ApprovalRequest | None) -> None:
            server_request.deliver_answer(
                jsonrpc.make_result(server_request.server_request_id, _elicitation_result(ended))
            )

        def forsake() -> None:
            server_request.deliver_answer(
                jsonrpc.make_result(server_request.server_request_id, _elicitation_result(None))
            )

        ask = self._server_questions.make_request(server_question, call)
        inquiry = OpenQuestion(server_call, call, server_question.server, ask, deliver, forsake)
        before = server_request.on_settled

        def settled() -> None:
            """Handle that the question has its answer, or that its server withdrew it."""
            inquiry.on_forsaken = None
            self._server_questions.end(inquiry)
            if before is not None:
                before()

        server_request.on_settled = settled
        if server_request.connection is not None:
            self._server_questions.watch_conversation(server_request.connection.conversation)
        self._server_questions.ask(inquiry)

    def _parse_question(self, server: str, frame: Frame) -> ServerQuestion:
        params = frame.parameters
        message, schema = jsonrpc.decode_text(params.get("message")), params.get("requestedSchema")
        if frame.params is UNSET or len(frame.params) > MAX_FORM_BYTES or schema is None:
            raise MalformedMessage(f"a form has a schema, and at most {MAX_FORM_BYTES} bytes")
        if message is None or not 0 < len(message) <= MAX_MESSAGE_LENGTH:
            raise MalformedMessage(
                f"a form has a message of at most {MAX_MESSAGE_LENGTH} characters"
            )
        try:
            form = parse_form(jsonrpc.decode_value(schema))
        except ValueError as error:
            raise MalformedMessage(str(error)) from None

        def digest(name: str) -> str:
            whole = [server, name, frame.id, message, form]
            return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()

        return ServerQuestion(
            server, ApprovalKind.INPUT, message, self._timeout, digest, schema=form
        )


def _elicitation_result(ended: ApprovalRequest | None) -> dict[str, object]:
    """Return the result of a request in the form of an elicitation result."""
    if ended is None:
        return {"action": "cancel"}
    said = [each for each in ended.answers if each.verdict is ApprovalDecision.ACCEPT]
    if ended.state is ApprovalState.CONSUMED and said:
        return {"action": "accept", "content": dict(said[-1].content)}
    return {"action": "decline" if ended.state is ApprovalState.DENIED else "cancel"}


class CallbackMethods:
    """Takes the callback answers of clients that negotiated `bidirectional` with the gateway."""

    def __init__(self, approvals: ApprovalService) -> None:
        self._approvals = approvals

    @method("mgp/callback/respond", MgpExtension.BIDIRECTIONAL)
    async def _respond(self, request: MethodRequest) -> Mapping[str, object]:
        id, said = decode_callback_response(request.frame.params)
        try:
            ask = await self._approvals.get(request.actor, id)
        except MalformedMessage:
            # The fault is for HTTP paths. Here the id is a parameter, and all wrong ids look alike.
            ask = None
        if ask is None or not is_callback(ask):
            raise MalformedMessage(NOT_FOUND_TEXT, INVALID_PARAMS)
        verdict, content = decision_of_response(ask.kind, said)
        await self._approvals.answer(request.actor, id, verdict, content=content)
        return {"callback_id": id, "accepted": True}
