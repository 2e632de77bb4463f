"""The call pipeline: the checks that every tool call passes before the gateway sends it."""

from collections.abc import Awaitable
from typing import Any, Final, Protocol

from msgspec import Raw

from comity.approvals.pending_calls import CallHold, CallIntentRecorder, GoOn
from comity.catalog.access import CatalogAccess, ToolReviewSource, ToolReviewStatus
from comity.catalog.catalog import Catalog
from comity.errors import APPROVAL_REQUIRED, INVALID_TOOL_ARGS, MalformedMessage
from comity.gateway.retries import RetryService
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry
from comity.mcp.jsonrpc import Frame
from comity.mcp.protocol import CALL_TOOL
from comity.mcp.refusals import Refusal
from comity.policy.grants import Effect, Grant, TargetSpecificity
from comity.policy.limits import CallLimiter
from comity.policy.snapshot import PolicyEngine
from comity.sessions.calls import Call

type Outcome = Refusal | CallHold | None
"""The result of the checks: a refusal, a hold until a person decides, or None to continue."""


class CallArgumentChecker(Protocol):
    """Checks the arguments of a call, at once or in an awaitable."""

    def check_arguments(
        self, entry: CatalogEntry, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None: ...


class StandingAnswerSource(Protocol):
    """Finds a standing grant by which a person has already approved calls like this one."""

    def standing_answer(
        self, actor: Actor, server: str, name: str, arguments: object, definition: str = ""
    ) -> Grant | None: ...


class PipelineApprovals(Protocol):
    """Creates approval requests for calls that a person must confirm."""

    def hold(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        arguments: object,
        frame: Frame,
    ) -> CallHold | Refusal: ...

    def is_next_round(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        arguments: object,
        frame: Frame,
    ) -> bool:
        """Return whether this request is the next round of a call that was already approved."""
        ...

    def without_prompt_reply(self, call: Call, frame: Frame) -> Frame:
        """Return the request without the client's reply to an approval request.

        The call keeps that reply in `call.brought`.
        """
        ...


class CallScopeChecker[Beyond](Protocol):
    """Checks the scope of a tool call and creates approval requests for calls that exceed it."""

    def check_scope(
        self, call: Call, entry: CatalogEntry, arguments: object
    ) -> Refusal | Beyond | None: ...
    def hold(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        beyond: Beyond,
        frame: Frame,
    ) -> CallHold | Refusal: ...


class OwnTasks(Protocol):
    """Answers requests about tasks that the gateway itself holds while they wait for approval."""

    def answer_task_request(self, call: Call, frame: Frame) -> bool: ...


class CallPipeline:
    """Runs the checks of a tool call in a fixed order. The first refusal ends the run."""

    def __init__(
        self,
        tools: ToolReviewSource | None = None,
        limits: CallLimiter | None = None,
        argument_checker: CallArgumentChecker | None = None,
        standing_answers: StandingAnswerSource | None = None,
        *,
        approvals: PipelineApprovals | None = None,
        scope_checker: CallScopeChecker[Any] | None = None,
        own_tasks: OwnTasks | None = None,
        intent_recorder: CallIntentRecorder | None = None,
    ) -> None:
        self.tools = tools
        self.limits = limits
        self.argument_checker = argument_checker
        self.standing_answers = standing_answers
        self.approvals = approvals
        self.scope_checker = scope_checker
        self.own_tasks = own_tasks
        self.intent_recorder = intent_recorder

    def strip_gateway_parts(self, call: Call, frame: Frame) -> Frame:
        """Return a modern request without the parts that are meant for the gateway.

        Raises MalformedMessage if its state belongs to another principal or its reply is malformed.
        """
        if self.approvals is None or call.method != CALL_TOOL:
            return frame
        return self.approvals.without_prompt_reply(call, frame)

    def answers_task(self, call: Call, frame: Frame) -> bool:
        """Return whether a request is about a task of the gateway, which then answers it.

        Raises MalformedMessage if the request is invalid.
        """
        return self.own_tasks is not None and self.own_tasks.answer_task_request(call, frame)

    def examine(
        self, call: Call, entry: CatalogEntry, frame: Frame
    ) -> Outcome | Awaitable[Outcome]:
        """Check a call of a tool that its actor may use, with the arguments in `frame`.

        The order is: tool review, rate limits, arguments, scope, approval, audit record. Raises
        MalformedMessage if the arguments are not an object.
        """
        call.target = (entry.server, entry.name)
        standing = None if self.tools is None else self.tools.review_of(entry)
        refusal = None if standing is None else standing.refusal
        if refusal is None and self.limits is not None:
            cost = 1 if standing is None else standing.cost
            refusal = self.limits.count_call(
                call.client_stream.actor, entry.server, entry.name, cost
            )
        if refusal is not None:
            return refusal
        if (
            self._has_no_checks
            and call.prompt_reply is None
            and not _needs_confirmation(call, standing)
        ):
            return None
        arguments = arguments_in(frame)
        found = (
            None
            if self.argument_checker is None
            else self.argument_checker.check_arguments(entry, arguments)
        )
        if found is None:
            return self._check_approval(call, entry, standing, arguments, frame)
        return (
            found
            if isinstance(found, Refusal)
            else self._finish_examination(found, call, entry, frame)
        )

    @property
    def _has_no_checks(self) -> bool:
        return (
            self.argument_checker is None
            and self.intent_recorder is None
            and self.scope_checker is None
        )

    async def _finish_examination(
        self, found: Awaitable[Refusal | None], call: Call, entry: CatalogEntry, frame: Frame
    ) -> Outcome:
        refusal = await found
        if refusal is not None:
            return refusal
        # The review status of the tool may have changed during the await.
        standing = None if self.tools is None else self.tools.review_of(entry)
        if standing is not None and standing.refusal is not None:
            return standing.refusal
        outcome = self._check_approval(call, entry, standing, arguments_in(frame), frame)
        return await outcome if isinstance(outcome, Awaitable) else outcome

    def _check_approval(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus | None,
        arguments: object,
        frame: Frame,
    ) -> Outcome | Awaitable[Outcome]:
        beyond = None
        if self.scope_checker is not None:
            beyond = self.scope_checker.check_scope(call, entry, arguments)
        if isinstance(beyond, Refusal):
            return beyond
        if self._needs_approval(call, entry, review, arguments, beyond):
            if self.approvals is None or review is None:
                return _NO_APPROVER_REFUSAL
            if not self.approvals.is_next_round(call, entry, review, arguments, frame):
                return self.approvals.hold(call, entry, review, arguments, frame)
        elif beyond is not None and self.scope_checker is not None:
            if review is None:
                return _NO_APPROVER_REFUSAL
            return self.scope_checker.hold(call, entry, review, beyond, frame)
        return self.record_intent(call, entry, review, arguments)

    def _needs_approval(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus | None,
        arguments: object,
        beyond: object = None,
    ) -> bool:
        if call.prompt_reply is not None and beyond is None:
            # The client brought a reply to an approval request. That reply decides, even if a grant
            # was added in the meantime.
            return True
        needs_one = _needs_confirmation(call, review)
        return needs_one and not self._has_standing_answer(call, entry, review, arguments)

    def record_intent(
        self, call: Call, entry: CatalogEntry, review: ToolReviewStatus | None, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """Record the intent to run a call in the audit log.

        This is the last step before sending, also for a call that a person approved.
        """
        if self.intent_recorder is None or review is None:
            return None
        return self.intent_recorder.record_intent(call, entry, review, arguments)

    def _has_standing_answer(
        self, call: Call, entry: CatalogEntry, review: ToolReviewStatus | None, arguments: object
    ) -> bool:
        """Return whether a standing grant approves this call, and note its id in the call."""
        if self.standing_answers is None or review is None or review.is_always_confirmed:
            return False
        if review.repeat_approval_reason is not None:
            return False
        called = (call.client_stream.actor, entry.server, entry.name, arguments)
        found = self.standing_answers.standing_answer(*called, review.digest)
        if found is not None:
            call.permitted_by = found.id
        return found is not None


def _needs_confirmation(call: Call, review: ToolReviewStatus | None) -> bool:
    judged = call.decision
    if review is None:
        return judged is not None and judged.effect is Effect.ASK
    if judged is None or judged.effect is Effect.ASK or review.is_always_confirmed:
        return True
    return review.must_be_confirmed and judged.level is not TargetSpecificity.OFFER


_NO_APPROVER_REFUSAL: Final = Refusal(
    APPROVAL_REQUIRED,
    "this call needs a person's approval, and nobody can be asked here; an operator can grant the "
    "tool itself",
)


def arguments_in(frame: Frame) -> object:
    """Return the arguments of a tool call. Missing arguments are an empty object.

    Raises MalformedMessage if they are not an object.
    """
    raw: Raw | None = frame.parameters.get("arguments")
    if raw is None:
        return {}
    arguments = jsonrpc.decode_value(raw)
    if not isinstance(arguments, dict):
        raise MalformedMessage("arguments must be an object", INVALID_TOOL_ARGS)
    return arguments  # pyright: ignore[reportUnknownVariableType]  # JSON: any values


async def enforce_outcome(
    call: Call, outcome: Refusal | CallHold | Awaitable[Outcome], go_on: GoOn
) -> bool:
    """Apply the outcome of the checks and return whether the call may be sent now.

    A refusal answers the call. A hold calls `go_on` after a person approves.
    """
    found = await outcome if isinstance(outcome, Awaitable) else outcome
    if isinstance(found, Refusal):
        call.refuse_with(found)
    elif found is not None:
        found.start(go_on)
    return found is None


class CallGate(CatalogAccess):
    """Applies catalog access, limits and the call pipeline in the same way at every endpoint."""

    def __init__(
        self,
        catalog: Catalog,
        policy_engine: PolicyEngine | None = None,
        tools: ToolReviewSource | None = None,
        limits: CallLimiter | None = None,
        argument_checker: CallArgumentChecker | None = None,
        *,
        approvals: PipelineApprovals | None = None,
        scope_checker: CallScopeChecker[Any] | None = None,
        own_tasks: OwnTasks | None = None,
        intent_recorder: CallIntentRecorder | None = None,
        retries: RetryService | None = None,
    ) -> None:
        super().__init__(catalog, policy_engine, tools)
        self._limits = limits
        self._argument_checker = argument_checker
        self.pipeline = CallPipeline(
            tools,
            limits,
            argument_checker,
            self._policy_engine,
            approvals=approvals,
            scope_checker=scope_checker,
            own_tasks=own_tasks,
            intent_recorder=intent_recorder,
        )
        self.retries = RetryService(is_enabled=False) if retries is None else retries

    def refuse_over_limit(self, call: Call) -> bool:
        """Refuse a request that exceeds the limits of its principal or its API key.

        Returns whether the request was refused, and so is answered.
        """
        actor, refusal = call.client_stream.actor, None
        if call.exceeded_shares is not None:
            refusal = call.exceeded_shares.refusal()
        elif actor.has_rate_limit and self._limits is not None:
            refusal = self._limits.count_request(actor)
        if refusal is not None:
            call.refuse_with(refusal)
        return refusal is not None

    def check(
        self, call: Call, entry: CatalogEntry, frame: Frame
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """Return why a call with these arguments would be refused, or None; send nothing.

        The check counts as one call for the rate limits.
        """
        actor, outcome = call.client_stream.actor, None
        if self._limits is not None:
            outcome = self._limits.count_call(actor, entry.server, entry.name, 1)
        return self.check_arguments(entry, arguments_in(frame)) if outcome is None else outcome

    def check_arguments(
        self, entry: CatalogEntry, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """Return why the tool does not accept these arguments, or None.

        The actor does not matter.
        """
        return (
            None
            if self._argument_checker is None
            else self._argument_checker.check_arguments(entry, arguments)
        )
