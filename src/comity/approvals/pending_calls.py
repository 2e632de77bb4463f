"""Calls that wait for an approval, and what runs once it is given."""

import asyncio
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol

from msgspec import Raw

from comity.approvals import call_results, model, presentation, prompt_messages
from comity.approvals.kinds import RULES_BY_KIND
from comity.approvals.model import (
    ApprovalDecision,
    ApprovalDraft,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.prompt_messages import ApprovalInstructions, PromptMode, PromptReply
from comity.approvals.service import ApprovalService
from comity.catalog.access import ToolReviewSource, ToolReviewStatus, not_ready
from comity.catalog.catalog import Catalog
from comity.catalog.definitions import UNLISTED_DEFINITION, tool_description
from comity.errors import (
    ACCESS_DENIED,
    APPROVAL_REQUIRED,
    INVALID_PARAMS,
    TOOL_DISABLED,
    TOOL_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.mcp import eras, jsonrpc, protocol
from comity.mcp.actors import ANONYMOUS, Actor, PrincipalKind
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.eras import ROUND
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.refusals import Refusal
from comity.policy.grants import Effect
from comity.policy.snapshot import RETRY_AFTER, PolicyEngine
from comity.sessions.calls import Call, CallDenial
from comity.toolkit.background import BackgroundTasks

type GoOn = Callable[[], Coroutine[Any, Any, None]]
"""Sends a call that has passed all checks. Raises Unavailable, MalformedMessage."""


class CallHold(Protocol):
    """A call that waits for an approval."""

    def start(self, go_on: GoOn, timeout: timedelta | None = None) -> None:
        """Wait, and send or refuse the call. `timeout` is the limit of the endpoint."""
        ...


class CallIntentRecorder(Protocol):
    """Records calls before they leave."""

    def record_intent(
        self, call: Call, entry: CatalogEntry, review: ToolReviewStatus, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """Record that a call is about to leave. For a risky call, wait until that is durable."""
        ...

    def record_not_sent(self, call: Call, reason: str) -> None:
        """Record that a call has not left after all."""
        ...


class LastSteps(Protocol):
    """The part of the call pipeline that an approved call still has before it."""

    @property
    def tools(self) -> ToolReviewSource | None: ...
    @property
    def intent_recorder(self) -> CallIntentRecorder | None: ...

    def record_intent(
        self, call: Call, entry: CatalogEntry, review: ToolReviewStatus | None, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """Record that the call is about to leave."""
        ...


MAX_POLICY_CHECKS: Final = 5
MAX_CLIENT_LABEL: Final = 200
"""How often the policy is read before an approved call fails because it is unknown."""


class ApprovedAction(Protocol):
    """An action that runs once a request is approved: a call, or a method of the gateway."""

    @property
    def audit_id(self) -> str:
        """The name under which the audit log knows the action, or empty without one."""
        ...

    def refusal_reason(self) -> Refusal | None:
        """Return why the action cannot run any more. It does not wait."""
        ...

    async def record_intent(self, request: ApprovalRequest) -> Refusal | None:
        """Record what is about to run, and by which approval, before the approval is consumed."""
        ...

    def record_not_run(self) -> None:
        """Record that this call does not run, because another one consumed the approval."""
        ...

    async def run(self, request: ApprovalRequest, go_on: GoOn) -> None:
        """Run the action, which has consumed the approval."""
        ...


@dataclass(frozen=True, slots=True)
class ApprovedCall:
    """A call of a tool that runs once it is approved."""

    pending_calls: "PendingCalls"
    call: Call
    entry: CatalogEntry
    review: ToolReviewStatus
    arguments: object
    # What is approved if it is not the call as a whole: how far it may reach.
    scope: object | None

    def refusal_reason(self) -> Refusal | None:
        judged = self.pending_calls.policy_engine.authorize(
            self.call.client_stream.actor,
            protocol.CALL_TOOL,
            self.entry.server,
            self.entry.name,
            self.call.view,
        )
        if judged.effect is Effect.DENY:
            entry = self.entry
            self.call.denial = CallDenial(judged, entry.server, entry.name, is_listed=True)
            return Refusal(ACCESS_DENIED, "this call is no longer allowed")
        if judged.effect is Effect.ASK and self.scope is not None and not self._has_answer():
            reason = "this call needs an approval of its own now; make it again"
            return Refusal(APPROVAL_REQUIRED, reason)
        return self._tool_refusal()

    def _tool_refusal(self) -> Refusal | None:
        """Return why the tool is not the one that people saw, or cannot be called."""
        offer, holding = self.entry, self.pending_calls
        now = holding.catalog.find_own(offer.server, EntryKind.TOOL, offer.name)
        if now is None and offer.definition != UNLISTED_DEFINITION:
            if offer.server in holding.catalog.starting_servers:
                # The call waits for a while, and keeps its approval if that is not enough.
                raise not_ready(offer.server)
            return Refusal(TOOL_NOT_FOUND, "this tool is not available")
        tools = holding.last_steps.tools
        standing = None if tools is None else tools.review_of(now or offer)
        if standing is None:
            return None
        if standing.refusal is not None:
            return standing.refusal
        if standing.digest != self.review.digest:
            return Refusal(
                TOOL_DISABLED, "the definition of the tool changed after the approval request"
            )
        return None

    def _has_answer(self) -> bool:
        """Return whether a standing grant approves the call."""
        actor, place = self.call.client_stream.actor, (self.entry.server, self.entry.name)
        engine, digest = self.pending_calls.policy_engine, self.review.digest
        return engine.standing_answer(actor, *place, self.arguments, digest) is not None

    async def record_intent(self, request: ApprovalRequest) -> Refusal | None:
        self.call.permitted_by = request.id
        steps = self.pending_calls.last_steps
        kept = steps.record_intent(self.call, self.entry, self.review, self.arguments)
        refusal = kept if kept is None or isinstance(kept, Refusal) else await kept
        self._set_was_sent(False)
        return refusal

    @property
    def audit_id(self) -> str:
        record = self.call.record
        return "" if record is None else record.id

    def record_not_run(self) -> None:
        self.call.permitted_by = ""
        recording = self.pending_calls.last_steps.intent_recorder
        if recording is not None:
            recording.record_not_sent(self.call, "another call used the approval")

    async def run(self, request: ApprovalRequest, go_on: GoOn) -> None:
        call, failure = self.call, None
        if self.scope is None:
            call.confirmed_definition = self.review.digest
        else:
            call.approved_scope = self.scope
        self._set_was_sent(True)
        try:
            await go_on()
        except (Unavailable, MalformedMessage) as error:
            failure = error
        is_over = failure is not None or call.is_recorded or call.client_stream.is_final
        if is_over and call.connection is None:
            if call.retrier is None:
                await self._give_back(request)
            else:
                # It may still be sent by another attempt.
                call.retrier.on_never_sent = partial(self._on_never_sent, request)
        if failure is not None:
            call.fail(failure)

    def _on_never_sent(self, request: ApprovalRequest) -> None:
        self._set_was_sent(False)
        self.pending_calls.background_tasks.start(self._give_back(request))

    async def _give_back(self, request: ApprovalRequest) -> None:
        """Make the approval valid again, since the call was never sent. The same call finds it."""
        self._set_was_sent(False)
        with suppress(Unavailable):
            await self.pending_calls.approvals.release(request, request.call)

    def _set_was_sent(self, has_left: bool) -> None:
        if self.call.record is not None:
            self.call.record.was_sent = has_left


async def check_with_retries(check: Callable[[], Refusal | None]) -> Refusal | None:
    """Return the result of `check`. If the policy is unknown now, look again later."""
    for _ in range(MAX_POLICY_CHECKS - 1):
        try:
            return check()
        except Unavailable as error:
            await asyncio.sleep((error.retry_after or RETRY_AFTER).total_seconds())
    return check()


MAX_OPEN_ROUNDS: Final = 10_000
ROUND_TIMEOUT: Final = timedelta(minutes=10)

type Key = tuple[str, bytes]
"""The digest of the approved call, and the state that the server gave for the next round."""


class ApprovedRounds:
    """Approved executions that need another round. A forgotten execution needs a new approval."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        max_rounds: int = MAX_OPEN_ROUNDS,
        timeout: timedelta = ROUND_TIMEOUT,
    ) -> None:
        self._clock = clock
        self._max_rounds = max_rounds
        self._timeout = timeout
        self._open_rounds: OrderedDict[Key, tuple[str, datetime]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open_rounds)

    def watch(self, call: Call, digest: str) -> None:
        """Remember the next round of this execution, if its tool asks for one."""
        call.on_input_required = partial(self._on_next_round, call.permitted_by, digest)

    @staticmethod
    def is_round(frame: Frame) -> bool:
        """Return whether a request continues an earlier one."""
        params = frame.params
        return params is not UNSET and any(name.encode() in bytes(params) for name in ROUND)

    def is_next_round(self, call: Call, digest: str, frame: Frame) -> bool:
        """Return whether this is the next round of an approved call. Each round counts once."""
        params = frame.parameters
        if ROUND.isdisjoint(params):
            return False
        found = self._open_rounds.pop(_round_key(digest, params.get("requestState")), None)
        if found is None or found[1] <= self._clock():
            return False
        call.permitted_by = found[0]
        self.watch(call, digest)
        return True

    def _on_next_round(self, call_id: str, digest: str, frame: Frame) -> None:
        try:
            wanted = eras.required_input_in(frame)
        except MalformedMessage:
            return
        if wanted is None:
            return
        while len(self._open_rounds) >= self._max_rounds:
            self._open_rounds.popitem(last=False)
        self._open_rounds[_round_key(digest, wanted.state)] = (
            call_id,
            self._clock() + self._timeout,
        )


def _round_key(digest: str, state: Raw | None) -> Key:
    said = "" if state is None else jsonrpc.decode_text(state) or ""
    return digest, hashlib.sha256(said.encode(errors="surrogatepass")).digest()


_UNKNOWN_REPLY_TEXT: Final = "this answer is to nothing that waits; make the call again without it"
_FALLBACK_REFUSAL: Final = Refusal(
    APPROVAL_REQUIRED, "a tool that needs approval cannot be a fallback"
)


@dataclass(frozen=True, slots=True)
class ApprovedCallSteps:
    """The steps after an approval: the tool is reviewed again, and the call is recorded."""

    tools: ToolReviewSource | None
    intent_recorder: CallIntentRecorder | None

    def record_intent(
        self, call: Call, entry: CatalogEntry, review: ToolReviewStatus | None, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None:
        if self.intent_recorder is None or review is None:
            return None
        return self.intent_recorder.record_intent(call, entry, review, arguments)


class ClientPrompt(Protocol):
    """One way to tell a client that its call waits: a form, a page, a task, a topic."""

    def prompt(self, pending_call: "PendingCall", request: ApprovalRequest) -> bool:
        """Tell the client. Returns False if it cannot be told in this way.

        A prompt may answer the client's call (`held.let_go`) or change `held.patience`.
        """
        ...


def client_names(call: Call, frame: Frame) -> tuple[str, str]:
    """Return the name and version that the client of a call gives itself. They may be untrue.

    A legacy client says them once, and a modern one in each request.
    """
    session = call.client
    info = session.client_info if session is not None else eras.client_declaration_in(frame).info
    if info is None:
        return "", ""
    try:
        members = jsonrpc.decode_members(info)
        name, version = (jsonrpc.decode_text(members.get(key)) for key in ("name", "version"))
    except MalformedMessage:
        return "", ""
    return (name or "")[:MAX_CLIENT_LABEL], (version or "")[:MAX_CLIENT_LABEL]


class PendingCalls:
    """The calls that wait for an approval, and what they share."""

    def __init__(
        self,
        approvals: ApprovalService,
        last_steps: LastSteps,
        policy_engine: PolicyEngine,
        catalog: Catalog,
        *,
        client_prompts: Iterable[ClientPrompt] = (),
        redact: Callable[[object], object] = lambda value: value,
        key: bytes = b"",
        token_for: Callable[[ApprovalRequest, Actor], str] = lambda ask, actor: "",
    ) -> None:
        self.approvals = approvals
        self.last_steps = last_steps
        self.policy_engine = policy_engine
        self.catalog = catalog
        self.client_prompts: list[ClientPrompt] = list(client_prompts)
        self.redact: Callable[[object], object] = redact
        # Seals the state that a client carries for us. It is the same on every node.
        self.key = key or secrets.token_bytes(32)
        self.token_for: Callable[[ApprovalRequest, Actor], str] = token_for
        self.approved_rounds = ApprovedRounds(approvals.clock)
        self.waiting_calls: set[PendingCall] = set()
        self.background_tasks = BackgroundTasks("pending calls")

    def hold(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        arguments: object,
        frame: Frame,
        reach: Mapping[str, object] | None = None,
    ) -> CallHold | Refusal:
        if call.is_bridged:
            return _FALLBACK_REFUSAL
        action = ApprovedCall(self, call, entry, review, arguments, None)
        return PendingCall(
            self,
            call,
            frame,
            self._draft(action, frame, reach),
            action,
            definition=entry.definition,
        )

    def _draft(
        self, approved_call: ApprovedCall, frame: Frame, reach: Mapping[str, object] | None
    ) -> ApprovalDraft:
        offer, standing, arguments = (
            approved_call.entry,
            approved_call.review,
            approved_call.arguments,
        )
        actor = approved_call.call.client_stream.actor
        about: Mapping[str, object] = {
            "tool": offer.key,
            "risk": standing.risk,
            "definition": standing.digest,
            "arguments": self.redact(arguments),
            "arguments_digest": model.arguments_digest(arguments, self.key),
        }
        if client := " ".join(client_names(approved_call.call, frame)).strip():
            about = {**about, "client": client[:MAX_CLIENT_LABEL]}
        # Approvers read these also while the server is down, and its tools are not known.
        description = tool_description(offer.definition)
        about = {**about, model.DESCRIPTION: self.redact(description or "")}
        if (tools := self.last_steps.tools) is not None:
            about = {**about, model.RISK_REASONS: tools.risk_reasons_of(offer)}
        beyond = ""
        if reach is not None:
            about, beyond = {**about, model.SCOPE: reach}, presentation.BEYOND_SCOPE_TEXT
        return ApprovalDraft(
            kind=ApprovalKind.CONFIRM,
            asker=actor.party,
            server=offer.server,
            tool=offer.name,
            digest=self._digest(actor.party, offer, standing, arguments),
            message=f"{actor.party} wants to call {offer.key}{beyond}",
            about=about,
            quorum=standing.quorum,
            # Whether this person may answer is checked when it answers, because that may change.
            own=actor.kind is PrincipalKind.PERSON,
            trace=approved_call.call.ensure_trace_id(),
        )

    def _digest(
        self, party: str, entry: CatalogEntry, review: ToolReviewStatus, arguments: object
    ) -> str:
        return model.call_digest(
            party, entry.server, entry.name, review.digest, arguments, self.key
        )

    def is_next_round(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        arguments: object,
        frame: Frame,
    ) -> bool:
        """Return whether this is the next round of an execution that was approved when it began."""
        if not self.approved_rounds.is_round(frame):
            return False
        digest = self._digest(call.client_stream.actor.party, entry, review, arguments)
        return self.approved_rounds.is_next_round(call, digest, frame)

    def without_prompt_reply(self, call: Call, frame: Frame) -> Frame:
        plain, call.prompt_reply = prompt_messages.extract_reply(
            self.key, call.client_stream.actor.party, frame
        )
        return plain

    def page_url(self, request: ApprovalRequest, actor: Actor) -> str:
        """Return the page of a request, where the approver signs in.

        An actor that may answer the request gets a link that signs it in.
        """
        if request.kind is ApprovalKind.SIGN_IN:
            return f"{self.approvals.public_url}{model.SIGN_IN_PATH}{request.id}"
        url = f"{self.approvals.public_url}/approvals/{request.id}"
        may_answer = (
            actor is not ANONYMOUS and self.approvals.refusal_reason(request, actor) is None
        )
        token = self.token_for(request, actor) if may_answer else ""
        return f"{url}?t={token}" if token else url

    def instructions_for(self, request: ApprovalRequest, actor: Actor) -> ApprovalInstructions:
        """Return who can approve a pending call, and how. The link contains no credential."""
        page = self.page_url(request, ANONYMOUS)
        origin = self.approvals.public_url
        if request.kind is ApprovalKind.SIGN_IN:
            owner = str(request.about.get(model.OWNER, ""))
            who = "you" if owner == actor.party else owner or "an administrator"
            command = f"`comity accounts connect {request.server}`"
            return ApprovalInstructions(who, page, command, action="sign in")
        return ApprovalInstructions(
            self.approvals.describe_approvers(request, actor),
            page,
            presentation.approval_command(request.id, origin),
            self.approvals.own_refusal_reason(request, actor),
        )

    def keep_result(
        self, approval: str, began_at: datetime, outcome: str, answer: Frame | None
    ) -> None:
        """Keep for a short time what an approved call returned, for those who approved it."""
        results, now = self.approvals.results, self.approvals.clock()
        results.add(call_results.read_result(approval, outcome, answer, began_at, now, self.redact))

    def end(self) -> None:
        """Tell the waiting clients to repeat the call, because the gateway shuts down."""
        for held in list(self.waiting_calls):
            held.end()

    def stop(self) -> None:
        self.background_tasks.cancel()


class PendingCall:
    """One call that waits for an approval."""

    def __init__(
        self,
        pending_calls: PendingCalls,
        call: Call,
        frame: Frame,
        draft: ApprovalDraft,
        action: ApprovedAction,
        *,
        definition: bytes = b"{}",
    ) -> None:
        self.call = call
        self.frame = frame
        self.pending_calls = pending_calls
        # The definition of the tool, for prompts that depend on it.
        self.definition = definition
        name, _ = client_names(call, frame)
        self.timeout: timedelta | None = pending_calls.approvals.settings.wait_for_client(name)
        # Run when the call waits no longer, whatever the result.
        self.on_end: list[Callable[[], None]] = []
        self._draft = draft
        self._rules = RULES_BY_KIND[draft.kind]
        self._action = action
        self._is_over = False
        self._progress = 0
        self._request: ApprovalRequest | None = None

    @property
    def approvals(self) -> ApprovalService:
        return self.pending_calls.approvals

    def start(self, go_on: GoOn, timeout: timedelta | None = None) -> None:
        """Open the request, and run the action once it is approved. The shorter patience counts."""
        if timeout is not None and self.timeout is not None:
            self.timeout = min(self.timeout, timeout)
        self.call.pause_deadlines()
        self.pending_calls.waiting_calls.add(self)
        self.call.on_cancel = self._cancel
        self.pending_calls.background_tasks.start(self._run(go_on))

    def detach_client(self, answer: Callable[[Call], None]) -> None:
        """Answer the client's call. The request stays open."""
        if not self._is_over:
            self._is_over = True
            self._stop_waiting()
            answer(self.call)
            if self._request is not None:
                self.approvals.wake_waiters(self._request.id)

    def end(self) -> None:
        if self._request is not None and self._request.is_open:
            self._refuse(self.pending_refusal(self._request))

    async def _run(self, go_on: GoOn) -> None:
        try:
            await self._wait(go_on)
        except (Unavailable, MalformedMessage) as error:
            self.detach_client(lambda call, because=error: call.fail(because))

    async def _wait(self, go_on: GoOn) -> None:
        brought = self.call.prompt_reply
        is_reply = isinstance(brought, prompt_messages.PromptReply)
        ask = await (self._take_prompt_reply(brought) if is_reply else self._open_request())
        self._prompt_client(ask)
        while not self._is_over:
            if ask.state is ApprovalState.CONSUMED:
                ask = await self._reopen_request()
            elif ask.state is not ApprovalState.APPROVED:
                ask = await self._wait_for_change(ask)
            elif await self._consume_and_run(ask, go_on):
                return
            else:
                ask = await self._reopen_request()

    async def _reopen_request(self) -> ApprovalRequest:
        """Ask again, because another call consumed the approval."""
        if self.call.prompt_reply is not None:
            raise MalformedMessage(_UNKNOWN_REPLY_TEXT, INVALID_PARAMS)
        self._end_prompts()
        ask = await self._open_request()
        self._prompt_client(ask)
        return ask

    async def _wait_for_change(self, request: ApprovalRequest) -> ApprovalRequest:
        """Return the request once it has changed. Tells a client that must not wait longer."""
        request = await self.approvals.wait(
            request,
            self.timeout,
            is_wanted=lambda: not self._is_over,
            on_poll=self._send_progress,
        )
        if request.is_open:
            self._refuse(self.pending_refusal(request))
        elif request.state not in (ApprovalState.APPROVED, ApprovalState.CONSUMED):
            self._refuse(prompt_messages.ended_refusal(request))
        return request

    async def _open_request(self) -> ApprovalRequest:
        ask = self._request = await self.approvals.request(self._draft)
        return ask

    async def _take_prompt_reply(self, reply: PromptReply) -> ApprovalRequest:
        """Return the request after the answer of the client to its prompt."""
        ask = await self.approvals.store.get(reply.ask)
        if ask is None or ask.digest != self._draft.digest:
            # It is of another principal, or was asked with other arguments.
            raise MalformedMessage(_UNKNOWN_REPLY_TEXT, INVALID_PARAMS)
        self._request = ask
        if reply.verdict is not None and ask.is_open and ask.expires_at > self.approvals.clock():
            ask = await self.take_answer(ask, reply.mode, reply.verdict)
        if reply.verdict is not None:
            ask = await self._withdraw_declined(ask, reply.verdict)
        if ask.state is ApprovalState.CONSUMED:
            raise MalformedMessage(_UNKNOWN_REPLY_TEXT, INVALID_PARAMS)
        return ask

    async def take_answer(
        self, request: ApprovalRequest, mode: PromptMode, decision: ApprovalDecision
    ) -> ApprovalRequest:
        """Take the client's answer to a prompt, and return the request after it.

        Only an actor that may answer its own requests answers so, and that is checked again. An
        actor that may not, and refuses to visit the page, only stops waiting.
        """
        actor = self.call.client_stream.actor
        if mode is PromptMode.URL:
            if decision is ApprovalDecision.ACCEPT:
                return request
            if request.kind is ApprovalKind.SIGN_IN:
                # Other calls of this person may still wait for the same account.
                self._refuse(self.pending_refusal(request))
                return request
            if self.approvals.refusal_reason(request, actor) is not None:
                self._refuse(self.pending_refusal(request))
                return request
        try:
            return await self.approvals.answer(actor, request.id, decision)
        except MalformedMessage as error:
            if error.fault is ACCESS_DENIED:
                raise
            # Another approver was quicker.
            current = await self.approvals.store.get(request.id) or request
            return await self._withdraw_declined(current, decision)

    async def _withdraw_declined(
        self, request: ApprovalRequest, decision: ApprovalDecision
    ) -> ApprovalRequest:
        """Withdraw an approval that another person gave, if the client does not want the call.

        A person who declines a call must not see it run afterwards, unless it runs already.
        """
        if (
            decision not in (ApprovalDecision.DECLINE, ApprovalDecision.CANCEL)
            or request.state is not ApprovalState.APPROVED
        ):
            return request
        await self.approvals.withdraw(request, "the requester cancelled it")
        return await self.approvals.store.get(request.id) or request

    def _prompt_client(self, request: ApprovalRequest) -> None:
        if self._is_over or not request.is_open:
            return
        if prompt_messages.progress_token_in(self.frame) is not None:
            # The client receives progress, so it can wait until there is an answer.
            self.timeout = None
            self._send_progress(request)
        is_promptable = (
            self._rules.has_client_prompts
            and self.call.client_stream.registry is None
            # The client of a task has its answer, and asks after the task.
            and not self.call.is_detached
        )
        if is_promptable and self.call.prompt_reply is None:
            any(form.prompt(self, request) for form in self.pending_calls.client_prompts)

    async def _consume_and_run(self, request: ApprovalRequest, go_on: GoOn) -> bool:
        """Consume the approval and run the action. Returns False if another call was first."""
        action = self._action
        refusal = await check_with_retries(action.refusal_reason)
        if refusal is not None:
            # An approval that is not consumed is valid for other calls too.
            if self._rules.is_consumed and refusal.fault is not TOOL_NOT_FOUND:
                await self.approvals.withdraw(request, refusal.reason)
            self._refuse(refusal)
            return True
        refusal = await action.record_intent(request)
        if refusal is not None:
            # The approval stays valid, so the same call finds it later.
            self._refuse(refusal)
            return True
        used = await self.approvals.consume(request, action.audit_id or request.id)
        if used is None:
            action.record_not_run()
            return False
        await self._run_action(used, go_on)
        return True

    async def _run_action(self, request: ApprovalRequest, go_on: GoOn) -> None:
        try:
            refusal = self._action.refusal_reason()
        except Unavailable:
            await self.approvals.release(request, request.call)
            raise
        if refusal is not None:
            self._refuse(refusal)
        elif self._is_over:
            # The client left in the last moment, and nothing was done.
            await self.approvals.release(request, request.call)
        else:
            self._is_over = True
            self._stop_waiting()
            if self._rules.is_consumed:
                self.pending_calls.approved_rounds.watch(self.call, request.digest)
                self.call.on_end = partial(
                    self.pending_calls.keep_result, request.id, self.approvals.clock()
                )
            await self._action.run(request, go_on)

    def pending_refusal(self, request: ApprovalRequest) -> Refusal:
        """Return the refusal for a client that must not wait any longer."""
        return prompt_messages.pending_refusal(request, self.instructions(request))

    def instructions(self, request: ApprovalRequest) -> ApprovalInstructions:
        """Return who can approve this call, and how, for its client."""
        return self.pending_calls.instructions_for(request, self.call.client_stream.actor)

    def _refuse(self, refusal: Refusal) -> None:
        self.detach_client(lambda call: call.refuse_with(refusal))

    def _stop_waiting(self) -> None:
        self.call.on_cancel = None
        self.call.resume_deadlines()
        self.pending_calls.waiting_calls.discard(self)
        self._end_prompts()

    def _end_prompts(self) -> None:
        while self.on_end:
            self.on_end.pop(0)()

    def _send_progress(self, request: ApprovalRequest) -> None:
        token = prompt_messages.progress_token_in(self.frame)
        if token is not None and not self._is_over:
            self._progress += 1
            notice = prompt_messages.waiting_progress(
                token, self._progress, request, self.instructions(request)
            )
            self.call.client_stream.put(jsonrpc.encode_frame(notice))

    def _cancel(self) -> None:
        """Stop waiting after the client left or its deadline passed. The request stays open."""
        if not self._is_over:
            self._is_over = True
            self._stop_waiting()
            if self._request is not None:
                self.approvals.on_changed(self._request.id)
