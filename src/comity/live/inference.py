"""Answers the inference and sampling requests of servers with the inference engine. (MCPL §11)

- Rule 1: The server pays for its requests, as the principal `server:ID`. (§13.1)
- Rule 2: A server whose hook on a turn is pending may not request inference for it, nor sampling
  outside a call. (§10.7, D-69)
- Rule 3: Chunks arrive in order and before the result. A slow server gets fewer, longer chunks and
  delays no other work. (§11.4)
- Rule 4: Each question for the model's info gets an answer, with an error if there is no model.
  (D-70)
- Rule 5: The hooks of other servers run for these requests as for every turn. The server's own hook
  runs if it may rewrite replies. (§10, §13.3, D-69)
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self

from comity.approvals.answers import quote_text
from comity.approvals.model import ApprovalDraft, ApprovalKind, ApprovalState
from comity.approvals.server_questions import (
    CALL_ENDED_TEXT,
    CallbackService,
    ElicitationInbox,
    ServerQuestions,
    client_call_of,
)
from comity.approvals.service import ApprovalService
from comity.errors import (
    DECLINED,
    EXHAUSTED,
    HOOK_LOOP,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MalformedMessage,
    Unavailable,
)
from comity.inference import messages
from comity.inference.messages import (
    DEFAULT_MAX_TOKENS,
    InferenceParams,
    SamplingParams,
    text_of,
    to_text_content,
)
from comity.inference.model import (
    ConversationStep,
    InferenceRequest,
    ModelPrompt,
    ReplyChunk,
)
from comity.live.hooks.inference import HookedInference
from comity.live.hooks.service import ActiveHooks
from comity.live.host import LiveHost, LiveMessage
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mcpl import FeatureUse
from comity.mcp.protocol import CLIENT_CAPABILITY, SAMPLE
from comity.policy.risk import SERVER_SUBJECT_PREFIX
from comity.servers.connections import STAND_IN_CAPABILITIES
from comity.sessions.calls import PendingMessage, ServerRequest
from comity.sessions.upstream import QuestionConnection
from comity.telemetry.metrics import name_in

MAX_ACTIVE_INFERENCES: Final = 32
"""The number of concurrent requests per server. The limit applies regardless of budgets."""

_MAX_NAME_LENGTH: Final = 500


class InferenceMethods:
    """Answers the inference requests of live servers."""

    def __init__(self, engine: HookedInference, active_hooks: ActiveHooks) -> None:
        self._engine = engine
        self._active_hooks = active_hooks
        self._active_counts: dict[str, int] = {}

    def register_methods(self, live_host: LiveHost) -> None:
        live_host.add_request_handler(messages.REQUEST, self.request, FeatureUse.INFERENCE)
        live_host.add_request_handler(messages.MODEL, self.model)

    async def model(self, message: LiveMessage) -> Mapping[str, object]:
        return self._engine.info(message.live_server.server).on_wire()

    async def request(self, message: LiveMessage) -> Mapping[str, object]:
        wanted = messages.inference_params_in(message.params)
        server = message.live_server.server
        if self._active_hooks.is_pending(server, wanted.conversation):
            raise MalformedMessage("no model is asked from within a hook", HOOK_LOOP)
        if self._active_counts.get(server, 0) >= MAX_ACTIVE_INFERENCES:
            raise Unavailable(f"{MAX_ACTIVE_INFERENCES} requests are under way already", EXHAUSTED)
        self._active_counts[server] = self._active_counts.get(server, 0) + 1
        try:
            return await self._infer(message, wanted)
        finally:
            self._active_counts[server] -= 1
            if not self._active_counts[server]:
                del self._active_counts[server]

    async def _infer(self, message: LiveMessage, params: InferenceParams) -> Mapping[str, object]:
        asked = _inference_request(message, params)
        if not params.stream or message.id is None:
            reply = await self._engine.infer(asked)
        else:
            async with ChunkSender(message) as chunks:
                reply = await self._engine.infer(asked, chunks.add)
        return messages.build_inference_result(
            text_of(reply.content), reply.model, reply.finish, reply.usage
        )


class ChunkSender:
    """Streams chunks to one server. Leaving the context waits until all chunks are sent."""

    def __init__(self, message: LiveMessage) -> None:
        self._message = message
        self._unsent_chunks: list[str] = []
        self._wakeup = asyncio.Event()
        self._is_finished = False
        self._index = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._send_chunks())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            return
        self._is_finished = True
        self._wakeup.set()
        try:
            # At most one chunk is left, and `tell` limits the time that it takes.
            await self._task
        finally:
            self._task.cancel()

    def add(self, chunk: ReplyChunk) -> None:
        if not chunk.is_thinking:
            self._unsent_chunks.append(chunk.text)
            self._wakeup.set()

    async def _send_chunks(self) -> None:
        while not (self._is_finished and not self._unsent_chunks):
            await self._wakeup.wait()
            self._wakeup.clear()
            delta = "".join(self._unsent_chunks)
            self._unsent_chunks.clear()
            if delta:
                await self._send_chunk(delta)

    async def _send_chunk(self, delta: str) -> None:
        told = self._message
        assert told.id is not None
        chunk = messages.build_chunk(told.id, self._index, delta)
        self._index += 1
        if told.connection is not None and not told.live_server.is_modern:
            # Request ids are scoped to a connection, so the chunk goes out on the one of the
            # request.
            told.connection.send_message(jsonrpc.make_notification(messages.CHUNK, chunk))
        else:
            await told.live_server.notify(messages.CHUNK, chunk)


def _inference_request(message: LiveMessage, params: InferenceParams) -> InferenceRequest:
    steps = tuple(ConversationStep(each.role, each.content) for each in params.messages)
    limit = DEFAULT_MAX_TOKENS if params.max_tokens is None else params.max_tokens
    prompt = ModelPrompt(steps, max_tokens=limit, temperature=params.temperature)
    return InferenceRequest(
        prompt,
        SERVER_SUBJECT_PREFIX + message.live_server.server,
        f"inf_{secrets.token_hex(12)}",
        message.live_server.server,
        params.feature,
        params.conversation[:_MAX_NAME_LENGTH],
        params.hints,
    )


log = logging.getLogger(__name__)

type Choice = Literal["ask", "deny", "allow"]
type Redact = Callable[[object], object]

MOST_BYTES: Final = 1024 * 1024
MAX_ACTIVE_SAMPLINGS: Final = 16
MAX_SHOWN_CHARACTERS: Final = 2_000


@dataclass(frozen=True, slots=True)
class _ServerSamplingRequest:
    """A sampling request of a server, and the call and caller behind it."""

    server: str
    sampled: SamplingParams
    asker: str
    tool: str = ""
    trace: str = ""
    # Whether the caller may approve its own request.
    own: bool = False

    @property
    def text(self) -> str:
        return "\n".join(text_of(each.content) for each in self.sampled.messages)


class SamplingFallback:
    """Answers `sampling/createMessage` in place of clients that do not support it."""

    def __init__(
        self,
        engine: HookedInference,
        active_hooks: ActiveHooks,
        approvals: ApprovalService,
        server_questions: ServerQuestions,
        choice: Choice = "ask",
        redact: Redact = lambda value: value,
    ) -> None:
        self._engine = engine
        self._active_hooks = active_hooks
        self._approvals = approvals
        self._server_questions = server_questions
        self._choice = choice
        self._redact = redact
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._call_of_request: dict[ServerRequest, PendingMessage] = {}
        server_questions.on_message_ended.append(self._on_call_ended)

    @property
    def is_available(self) -> bool:
        """Whether the gateway can answer in place of a client."""
        if self._choice == "deny":
            return False
        try:
            self._engine.info()
        except Unavailable:
            return False
        return True

    def ask_people(self, server_request: ServerRequest, frame: Frame) -> bool:
        """Answer a sampling request. Return False if this object does not handle it."""
        if server_request.method != protocol.SAMPLE or not self.is_available:
            return False
        try:
            wish = self._read_request(server_request, frame)
        except MalformedMessage as error:
            server_request.refuse(INVALID_PARAMS, str(error))
            return True
        if not wish.tool and self._active_hooks.is_pending(wish.server):
            server_request.refuse(HOOK_LOOP, "no model is asked from within a hook")
            return True
        if list(self._tasks.values()).count(wish.server) >= MAX_ACTIVE_SAMPLINGS:
            server_request.refuse(
                EXHAUSTED, f"{MAX_ACTIVE_SAMPLINGS} samplings of this server are under way"
            )
            return True
        task = asyncio.ensure_future(self._run(server_request, wish))
        self._tasks[task] = wish.server
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        before = server_request.on_settled
        if server_request.pending_message is not None and server_request.connection is not None:
            self._call_of_request[server_request] = server_request.pending_message
            self._server_questions.watch_conversation(server_request.connection.conversation)

        def settled() -> None:
            """Clean up after the request is answered or cancelled."""
            self._call_of_request.pop(server_request, None)
            if asyncio.current_task() is not task:
                task.cancel()
            if before is not None:
                before()

        server_request.on_settled = settled
        return True

    def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _on_call_ended(self, errand: PendingMessage) -> None:
        """Refuse the requests that came up during a call that has ended."""
        for question in [each for each, amid in self._call_of_request.items() if amid is errand]:
            question.refuse(DECLINED, CALL_ENDED_TEXT)

    def _read_request(self, question: ServerRequest, frame: Frame) -> _ServerSamplingRequest:
        if frame.params is UNSET or len(frame.params) > MOST_BYTES:
            raise MalformedMessage(f"sampling has messages, of at most {MOST_BYTES} bytes")
        sampled = messages.sampling_params_in(frame.params)
        call = client_call_of(question.pending_message)
        counted = None if call is None else call.counters
        server = str(
            getattr(question.connection, "server", "") if counted is None else counted.server
        )
        if call is None:
            return _ServerSamplingRequest(server, sampled, SERVER_SUBJECT_PREFIX + server)
        tool = (call.tool or name_in(call.params))[:200]
        actor = call.client_stream.actor
        own = self._approvals.may_approve_own(actor)
        return _ServerSamplingRequest(
            server, sampled, actor.party, tool, call.ensure_trace_id(), own
        )

    async def _run(self, question: ServerRequest, request: _ServerSamplingRequest) -> None:
        try:
            answer = await self._sample(request)
        except (Unavailable, MalformedMessage) as error:
            question.refuse(error.fault, str(error))
        except Exception:
            log.exception("Sampling for server %r failed", request.server)
            question.refuse(INTERNAL_ERROR, "the gateway failed")
        else:
            question.deliver_answer(jsonrpc.make_result(question.server_request_id, answer))

    async def _sample(self, request: _ServerSamplingRequest) -> dict[str, object]:
        if self._choice == "ask":
            await self._wait_for_approval(request)
        sampled = request.sampled
        prompt = ModelPrompt(
            tuple(ConversationStep(each.role, each.content) for each in sampled.messages),
            to_text_content(sampled.system),
            max_tokens=sampled.max_tokens,
            temperature=sampled.temperature,
            stop=sampled.stop,
        )
        hints = {"model": sampled.hint} if sampled.hint else {}
        inferring = InferenceRequest(
            prompt,
            SERVER_SUBJECT_PREFIX + request.server,
            f"inf_{secrets.token_hex(12)}",
            request.server,
            hints=hints,
        )
        reply = await self._engine.infer(inferring)
        return messages.build_sampling_result(text_of(reply.content), reply.model, reply.finish)

    async def _wait_for_approval(self, request: _ServerSamplingRequest) -> None:
        """Wait for approval. Raises MalformedMessage if it is denied."""
        approvals = self._approvals
        ask = approvals.create(self._draft(request))
        try:
            ask = await approvals.wait(await approvals.open(ask))
        except asyncio.CancelledError:
            await approvals.withdraw(ask, "the server no longer waits for the answer")
            raise
        used = None
        if ask.state is ApprovalState.APPROVED:
            used = await approvals.consume(ask, ask.id)
        if used is None:
            reason = next((each.reason for each in reversed(ask.answers) if each.reason), "")
            words = "this sampling was not approved" + (f": {reason}" if reason else "")
            raise MalformedMessage(words, DECLINED)

    def _draft(self, request: _ServerSamplingRequest) -> ApprovalDraft:
        shown = str(self._redact(request.text))[:MAX_SHOWN_CHARACTERS]
        amid = f", during a call of {request.tool} by {request.asker}" if request.tool else ""
        message = f"Server {request.server} wants to ask a model{amid}: {quote_text(shown)}"
        about: dict[str, object] = {
            "tool": f"{request.server}/{request.tool}" if request.tool else request.server,
            "asked_by": SERVER_SUBJECT_PREFIX + request.server,
            "messages": shown,
            "system": str(self._redact(request.sampled.system))[:MAX_SHOWN_CHARACTERS],
            "max_tokens": request.sampled.max_tokens,
        }
        return ApprovalDraft(
            kind=ApprovalKind.SAMPLING,
            asker=request.asker,
            server=request.server,
            tool=request.tool,
            # No two questions have the same digest, so no approval is valid for another question.
            digest=secrets.token_hex(32),
            message=message,
            about=about,
            own=request.own,
            trace=request.trace,
        )


@dataclass(frozen=True, slots=True)
class ServerQuestionRouter:
    """Passes each question that a server asks during a call to the part that answers it."""

    callbacks: CallbackService
    elicitations: ElicitationInbox
    sampling: SamplingFallback

    @property
    def provided_capabilities(self) -> Mapping[str, object]:
        """The capabilities that servers see though the client lacks them."""
        found = dict(STAND_IN_CAPABILITIES) if self.elicitations.is_enabled else {}
        if self.sampling.is_available:
            found[CLIENT_CAPABILITY[SAMPLE]] = {}
        return found

    def handle_callback(
        self, connection: QuestionConnection, frame: Frame, pending_message: PendingMessage | None
    ) -> bool:
        return self.callbacks.handle_callback(connection, frame, pending_message)

    def ask_people(self, server_request: ServerRequest, frame: Frame) -> bool:
        """Whether the question is answered in place of the client."""
        return self.sampling.ask_people(server_request, frame) or self.elicitations.ask_people(
            server_request, frame
        )

    def stop(self) -> None:
        self.sampling.stop()
