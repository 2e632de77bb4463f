"""Prompts that a client shows: elicitation, `input_required` and tasks."""

import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from secrets import token_hex
from typing import Final

from msgspec import Raw

from comity.approvals import prompt_messages
from comity.approvals.model import ApprovalDecision, ApprovalKind, ApprovalRequest
from comity.approvals.pending_calls import ApprovedRounds, PendingCall
from comity.approvals.presentation import fits_message
from comity.approvals.prompt_messages import PromptMode
from comity.errors import INVALID_PARAMS, MISSING_CAPABILITY, MalformedMessage, Unavailable
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.eras import (
    LASTS,
    OWN_TASK_PREFIX,
    UNKNOWN_TASK_MESSAGE,
    TaskIds,
    TaskStatus,
    TaskView,
)
from comity.mcp.jsonrpc import UNSET, Frame
from comity.sessions.calls import Call, ServerRequest
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from comity.toolkit.background import BackgroundTasks


class LongWaitStream(ClientStream):
    """The client stream of a call that waits as long as its approval request is open."""

    on_held: Callable[[ApprovalRequest], None] | None = None


class LongWaitPrompt:
    """Lets a call wait for its answer, and tells the reader of its stream about the request."""

    def prompt(self, pending_call: PendingCall, request: ApprovalRequest) -> bool:
        client_stream = pending_call.call.client_stream
        if not isinstance(client_stream, LongWaitStream):
            return False
        pending_call.timeout = None
        if client_stream.on_held is not None:
            client_stream.on_held(request)
        return True


class InputRequiredPrompt:
    """Asks a modern client by an `input_required` result."""

    def prompt(self, pending_call: PendingCall, request: ApprovalRequest) -> bool:
        call = pending_call.call
        if call.client is not None or ApprovedRounds.is_round(pending_call.frame):
            # The content that the request carries for its server would be lost.
            return False
        mode = prompt_mode_for(
            pending_call, request, eras.client_declaration_in(pending_call.frame).capabilities
        )
        if mode is None:
            return False
        actor = call.client_stream.actor
        state = prompt_messages.seal_state(
            pending_call.pending_calls.key, request, actor.party, mode
        )
        answer = jsonrpc.make_result(
            call.client_request_id,
            prompt_messages.input_required_result(
                elicitation_params(pending_call, request, mode), state
            ),
        )
        pending_call.detach_client(
            lambda call: call.answer_with_action(answer, pending_call.pending_refusal(request))
        )
        return True


def elicitation_params(
    pending_call: PendingCall, request: ApprovalRequest, mode: PromptMode
) -> dict[str, object]:
    """Return the parameters of the elicitation: a form, or a page."""
    if mode is PromptMode.FORM:
        return prompt_messages.form_elicitation(request)
    url = pending_call.pending_calls.page_url(request, pending_call.call.client_stream.actor)
    return prompt_messages.page_elicitation(request, url, pending_call.instructions(request).who)


def prompt_mode_for(
    pending_call: PendingCall, request: ApprovalRequest, capabilities: Mapping[str, Raw]
) -> PromptMode | None:
    """Return the mode of the prompt. A form is only for an actor that may answer itself."""
    modes, actor = (
        prompt_messages.declared_modes(capabilities),
        pending_call.call.client_stream.actor,
    )
    if request.kind is ApprovalKind.SIGN_IN:
        # Its page asks who opens it, so that any client may show it.
        return PromptMode.URL if PromptMode.URL in modes else None
    is_form_possible = PromptMode.FORM in modes and fits_message(request)
    if is_form_possible and pending_call.approvals.refusal_reason(request, actor) is None:
        spoken = any(answer.by == actor.party for answer in request.answers)
        if not spoken:
            return PromptMode.FORM
    if actor.lacks_token:
        # Neither its answer nor its visit to the page would count.
        return None
    return PromptMode.URL if PromptMode.URL in modes else None


log = logging.getLogger(__name__)

VERSION_BY_MODE: Final = {PromptMode.FORM: "2025-06-18", PromptMode.URL: "2025-11-25"}
"""The first MCP version with each mode of elicitation."""


class ElicitationPrompt:
    """Asks a legacy client by an elicitation request."""

    def prompt(self, pending_call: PendingCall, request: ApprovalRequest) -> bool:
        client = pending_call.call.client
        if not isinstance(client, Session):
            return False
        mode = prompt_mode_for(pending_call, request, client.capabilities)
        if mode is None or client.version < VERSION_BY_MODE[mode]:
            return False
        OpenElicitation(pending_call, request, client, mode).begin()
        return True


class OpenElicitation:
    """One elicitation on the stream of a pending call."""

    def __init__(
        self,
        pending_call: PendingCall,
        request: ApprovalRequest,
        session: Session,
        mode: PromptMode,
    ) -> None:
        self._pending_call = pending_call
        self._request = request
        self._session = session
        self._mode = mode
        self._elicitation_id = secrets.token_hex(16)
        self._has_opened_page = False
        self._question: ServerRequest | None = None

    def begin(self) -> None:
        held, ask = self._pending_call, self._request
        params = elicitation_params(held, ask, self._mode)
        if self._mode is PromptMode.URL:
            params["elicitationId"] = self._elicitation_id
        if self._session.version < VERSION_BY_MODE[PromptMode.URL]:
            # Earlier versions have one mode, and no name for it.
            del params["mode"]
        frame = jsonrpc.make_request(self._elicitation_id, protocol.ELICIT, params)
        self._question = ServerRequest(frame, None, self._on_answer)
        held.on_end.append(self._end)
        self._question.send_to_client(self._session, frame, held.call.client_stream)

    def _on_answer(self, answer: Frame) -> None:
        self._question = None
        if answer.result is UNSET:
            # The client refused the elicitation; the call waits on.
            log.debug("A client did not accept a question")
            return
        try:
            verdict = prompt_messages.decision_in(self._mode, answer.result)
        except MalformedMessage as error:
            refused = error
            self._pending_call.detach_client(lambda call: call.fail(refused))
            return
        if self._mode is PromptMode.URL and verdict is ApprovalDecision.ACCEPT:
            self._has_opened_page = True
        else:
            self._pending_call.pending_calls.background_tasks.start(self._answer(verdict))

    async def _answer(self, decision: ApprovalDecision) -> None:
        try:
            await self._pending_call.take_answer(self._request, self._mode, decision)
        except (Unavailable, MalformedMessage) as error:
            refused = error
            self._pending_call.detach_client(lambda call: call.fail(refused))

    def _end(self) -> None:
        """Withdraw the elicitation and tell the page, because the call no longer waits."""
        question, self._question = self._question, None
        if question is not None:
            question.withdraw(None)
        if self._has_opened_page:
            told = jsonrpc.make_notification(
                protocol.ELICITED, {"elicitationId": self._elicitation_id}
            )
            self._pending_call.call.client_stream.put(jsonrpc.encode_frame(told))


MAX_TASKS: Final = 1000
MAX_TASKS_PER_PRINCIPAL: Final = 50
MAX_WAITING_CALLS: Final = 64
FIRST_VERSION_WITH_TASKS: Final = "2025-11-25"


class ApprovalTask:
    """A pending call that goes on as a task, and its result."""

    def __init__(
        self,
        id: str,
        pending_call: PendingCall,
        request: ApprovalRequest,
        clock: Callable[[], datetime],
    ) -> None:
        self.id = id
        self.call = pending_call.call
        self.party = pending_call.call.client_stream.actor.party
        self.is_modern = pending_call.call.client is None
        self.created_at = self.updated_at = clock()
        self.status = TaskStatus.WORKING
        self.message = prompt_messages.describe_wait(request, pending_call.instructions(request))
        self.answer: Frame | None = None
        self.reader: Call | None = None
        self._clock = clock
        self._messages: list[bytes] = []
        self._callbacks: list[Callable[[], None]] = []

    @property
    def view(self) -> TaskView:
        return TaskView(self.id, self.status, self.message, self.created_at, self.updated_at)

    async def read_stream(self, client_stream: ClientStream) -> None:
        """Read the stream of the call to its end."""
        while not client_stream.is_final or client_stream.frames:
            await client_stream.wait()
            client_stream.is_nudged = client_stream.is_suspended = False
            for data in client_stream.take():
                self._on_message(data)
        if self.status is TaskStatus.WORKING:
            self._end(TaskStatus.CANCELLED, "it was cancelled")

    def call_when_over(self, callback: Callable[[], None]) -> None:
        if self.status is TaskStatus.WORKING:
            self._callbacks.append(callback)
        else:
            callback()

    def set_reader(self, call: Call) -> None:
        """Send the notifications of the call to this stream from now on."""
        self.reader = call
        said, self._messages = self._messages, []
        for data in said:
            call.client_stream.put(data)

    def _on_message(self, data: bytes) -> None:
        frame = jsonrpc.decode_frame(data)
        if frame.method is UNSET:
            self.answer = frame
            self._end(eras.status_of(frame, modern=self.is_modern), "it has its answer")
        elif self.reader is not None and not self.reader.client_stream.is_final:
            self.reader.client_stream.put(data)
        elif len(self._messages) < MAX_WAITING_CALLS:
            self._messages.append(data)

    def _end(self, status: TaskStatus, message: str) -> None:
        self.status, self.message, self.updated_at = status, message, self._clock()
        waiting, self._callbacks = self._callbacks, []
        for tell in waiting:
            tell()


class TaskPrompt:
    """Tells clients that know tasks about pending calls, and answers task requests."""

    def __init__(self, task_ids: TaskIds, clock: Callable[[], datetime]) -> None:
        self._task_ids = task_ids
        self._clock = clock
        self._task_by_id: OrderedDict[str, ApprovalTask] = OrderedDict()
        self.background_tasks = BackgroundTasks("tasks that wait for a person")

    def __len__(self) -> int:
        return len(self._task_by_id)

    def prompt(self, pending_call: PendingCall, request: ApprovalRequest) -> bool:
        call = pending_call.call
        if not self._supports_tasks(pending_call) or not self._has_room(
            call.client_stream.actor.party
        ):
            return False
        name = token_hex(16)
        party = call.client_stream.actor.party
        id = self._task_ids.public(party, OWN_TASK_PREFIX, "", name)
        task = self._task_by_id[name] = ApprovalTask(id, pending_call, request, self._clock)
        answer = eras.task_start_result(task.view, modern=task.is_modern)
        pending_call.timeout = None
        self.background_tasks.start(
            task.read_stream(detach_call(call, jsonrpc.make_result(call.client_request_id, answer)))
        )
        return True

    def answer_task_request(
        self, call: Call, frame: Frame, require_tool: Callable[[Call, str, str], None]
    ) -> bool:
        """Answer a request about a task of the gateway. Returns False for other requests.

        Raises MalformedMessage, also as `require_tool` does for the server and the tool.
        """
        params = frame.parameters
        named = jsonrpc.decode_text(params.get("taskId")) or ""
        if not named.startswith(f"{OWN_TASK_PREFIX}:"):
            return False
        party = call.client_stream.actor.party
        task = self._task_by_id.get(self._task_ids.decode(party, named)[-1])
        if task is None or task.party != party or task.is_modern is not (call.client is None):
            raise MalformedMessage(UNKNOWN_TASK_MESSAGE, INVALID_PARAMS)
        if task.call.target is not None:
            require_tool(call, *task.call.target)
        if task.is_modern and not eras.has_task_support(frame):
            raise MalformedMessage("declare support for tasks", MISSING_CAPABILITY)
        self._answer(task, call)
        return True

    def _answer(self, task: ApprovalTask, call: Call) -> None:
        if call.method == eras.GET:
            told = eras.task_get_result(task.view, task.answer, modern=task.is_modern)
            call.deliver_answer(jsonrpc.make_result(call.client_request_id, told))
        elif call.method == eras.CANCEL:
            self._cancel(task, call)
        elif call.method == eras.RESULT and not task.is_modern:
            call.pause_deadlines()
            task.set_reader(call)
            task.call_when_over(lambda: _send_result(task, call))
        else:
            raise MalformedMessage("this task needs no input", INVALID_PARAMS)

    def _cancel(self, task: ApprovalTask, call: Call) -> None:
        if task.status is TaskStatus.WORKING:
            task.call.withdraw(None)
        elif not task.is_modern:
            raise MalformedMessage(f"this task is {task.status} already", INVALID_PARAMS)

        def tell() -> None:
            told = eras.task_get_result(task.view, None, modern=False)
            answer = {"resultType": "complete"} if task.is_modern else told
            call.deliver_answer(jsonrpc.make_result(call.client_request_id, answer))

        task.call_when_over(tell)

    def _supports_tasks(self, pending_call: PendingCall) -> bool:
        client, frame = pending_call.call.client, pending_call.frame
        if isinstance(client, Session) and client.version < FIRST_VERSION_WITH_TASKS:
            return False
        if ApprovedRounds.is_round(frame) or eras.must_be_task(pending_call.definition):
            # A task has no rounds, and a tool that is a task itself has a result of its own.
            return False
        return eras.wants_task(frame, modern=client is None)

    def _has_room(self, party: str) -> bool:
        for name, task in list(self._task_by_id.items()):
            if self._clock() - task.created_at < LASTS:
                break
            if task.status is not TaskStatus.WORKING:
                del self._task_by_id[name]
        of_one = sum(task.party == party for task in self._task_by_id.values())
        return len(self._task_by_id) < MAX_TASKS and of_one < MAX_TASKS_PER_PRINCIPAL


def detach_call(call: Call, answer: Frame) -> ClientStream:
    """Answer the client, and return the stream on which its call goes on as a task."""
    client_stream, before = ClientStream(), call.client_stream
    client_stream.actor, client_stream.trace = before.actor, before.trace
    if call.client is not None:
        call.client.conversation.settle(call.client_request_id)
    # The id is free again for the client.
    call.client_request_id = f"detached {token_hex(8)}"
    call.client_stream, call.is_detached = client_stream, True
    before.finish(jsonrpc.encode_frame(answer))
    return client_stream


def _send_result(task: ApprovalTask, call: Call) -> None:
    call.resume_deadlines()
    if task.answer is None:
        call.refuse(INVALID_PARAMS, "this task was cancelled, and has no result")
    else:
        call.deliver_answer(
            jsonrpc.with_id(eras.relate_result(task.answer, task.id), call.client_request_id)
        )
