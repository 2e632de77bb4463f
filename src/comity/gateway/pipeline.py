"""The call pipeline: the checks that every tool call passes before the gateway sends it."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, Protocol

from comity.accounts.model import AccountKey
from comity.accounts.sign_in import Proceed
from comity.approvals.model import ApprovalDecision
from comity.approvals.pending_calls import CallHold, CallIntentRecorder, GoOn
from comity.approvals.prompt_messages import PromptReply
from comity.catalog.access import (
    CatalogAccess,
    ToolReviewSource,
    ToolReviewStatus,
    needs_confirmation,
    not_ready,
)
from comity.catalog.catalog import Catalog
from comity.catalog.definitions import UNLISTED_DEFINITION
from comity.errors import (
    ACCESS_DENIED,
    APPROVAL_REQUIRED,
    DECLINED,
    POLICY_UNKNOWN,
    SIGN_IN_REQUIRED,
    TOOL_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.gateway.retries import RetryService
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.protocol import CALL_TOOL, CANCELLED
from comity.mcp.refusals import Refusal
from comity.policy.call_limiter import CallLimiter, CountOutcome
from comity.policy.generation import PolicyGeneration
from comity.policy.grants import Decision, Effect, Grant
from comity.policy.risk import server_subject
from comity.policy.snapshot import RETRY_AFTER, PolicyEngine
from comity.sessions.calls import Call, CallDenial, CallSignIn
from comity.sessions.sessions import Session
from comity.views.service import ServedView
from comity.views.tools import ViewTool

type Outcome = Refusal | CallHold | None
"""The result of the checks: a refusal, a hold until a person decides, or None to continue."""


type ArgumentCheck = Callable[[object], Refusal | Awaitable[Refusal | None] | None]
"""Checks the arguments of one tool, at once or in an awaitable."""


class CallArgumentChecker(Protocol):
    """Checks the arguments of calls."""

    def check_for(self, entry: CatalogEntry) -> ArgumentCheck:
        """Return the check for a tool, which holds until its definition or its rules change."""
        ...


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
        reach: Mapping[str, object] | None = None,
    ) -> CallHold | Refusal:
        """Hold a call until a person confirms it, and with it a scope that it would reach."""
        ...

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

    def applies_to(self, entry: CatalogEntry) -> bool: ...
    def check_scope(
        self, call: Call, entry: CatalogEntry, arguments: object
    ) -> Refusal | Beyond | None: ...
    def describe(self, beyond: Beyond) -> Mapping[str, object]:
        """Return what an approver reads about a scope."""
        ...

    def hold(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        beyond: Beyond,
        frame: Frame,
    ) -> CallHold | Refusal: ...


class PipelineSignIn(Protocol):
    """Gives calls the account of their principal at a server, or holds them for a sign-in."""

    def applies_to(self, server: str) -> bool: ...
    def check(
        self, call: Call, entry: CatalogEntry
    ) -> Refusal | AccountKey | Awaitable[Refusal | AccountKey | None] | None:
        """Return None if the call has its account, or the account that must be connected."""
        ...

    def hold(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        frame: Frame,
        key: AccountKey,
        proceed: Proceed,
    ) -> CallHold: ...

    def retry_for(
        self,
        call: Call,
        entry: CatalogEntry,
        review: ToolReviewStatus,
        frame: Frame,
        proceed: Proceed,
    ) -> CallSignIn: ...


class OwnTasks(Protocol):
    """Answers requests about tasks that the gateway itself holds while they wait for approval."""

    def answer_task_request(
        self, call: Call, frame: Frame, require_tool: Callable[[Call, str, str], None]
    ) -> bool: ...


class CallPlan:
    """All that the checks of a call need and that does not depend on its arguments.

    Calls of one tool by one principal share it while `CallGate` finds that it is current.
    """

    __slots__ = (
        "check",
        "decision",
        "entry",
        "generation",
        "is_lasting",
        "review",
        "stages",
        "subjects",
        "target",
        "view",
        "view_tool",
    )

    def __init__(
        self,
        entry: CatalogEntry,
        decision: Decision | None,
        review: ToolReviewStatus | None,
        check: ArgumentCheck | None,
    ) -> None:
        self.entry = entry
        self.decision = decision
        self.review = review
        self.check = check
        self.target = (entry.server, entry.name)
        self.stages: tuple[Stage, ...] = ()
        # The number of the policy generation for which the plan is known to be right.
        self.generation = -1
        # The subjects of grants on which the decision depends, and the subject of the server.
        self.subjects: tuple[str, ...] = ()
        # Whether only a change can end what was decided, and not a point in time.
        self.is_lasting = False
        # The view at whose endpoint the call arrived, and the tool as the view shows it.
        self.view: ServedView | None = None
        self.view_tool: ViewTool | None = None


type Stage = Callable[[Call, CallPlan, Frame], Outcome | Awaitable[Outcome]]
"""One check: None lets the call continue."""

type Renew = Callable[[Call, CallPlan], CallPlan]
"""Returns a plan for the same tool that is valid now, which is the same one while nothing changed.

Raises MalformedMessage if the actor may not call the tool any more, and Unavailable if that is
unknown.
"""

MAX_WAITS: Final = 8
"""How often the stages of one call may wait. Only a policy that keeps changing needs so many."""


class CallPipeline:
    """Runs the checks of a tool call in a fixed order. The first refusal ends the run."""

    def __init__(
        self,
        tools: ToolReviewSource | None = None,
        limits: CallLimiter | None = None,
        argument_checker: CallArgumentChecker | None = None,
        standing_answers: StandingAnswerSource | None = None,
        *,
        renew: Renew,
        approvals: PipelineApprovals | None = None,
        scope_checker: CallScopeChecker[Any] | None = None,
        own_tasks: OwnTasks | None = None,
        intent_recorder: CallIntentRecorder | None = None,
        sign_in: PipelineSignIn | None = None,
    ) -> None:
        self._renew = renew
        self.sign_in = sign_in
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

    def answers_task(
        self, call: Call, frame: Frame, require_tool: Callable[[Call, str, str], None]
    ) -> bool:
        """Return whether a request is about a task of the gateway, which then answers it.

        Raises MalformedMessage if the request is invalid, or as `require_tool` does for the server
        and the tool of the task.
        """
        own_tasks = self.own_tasks
        return own_tasks is not None and own_tasks.answer_task_request(call, frame, require_tool)

    def make_plan(self, entry: CatalogEntry, decision: Decision | None) -> CallPlan:
        """Return the plan for calls of a tool that were decided in this way."""
        review = None if self.tools is None else self.tools.review_of(entry)
        checker = self.argument_checker
        plan = CallPlan(
            entry, decision, review, None if checker is None else checker.check_for(entry)
        )
        plan.stages = self._stages_of(plan, has_reply=False)
        return plan

    def has_same_checks(self, plan: CallPlan) -> bool:
        """Return whether a new plan with the same decision would have the same checks."""
        checker, tools = self.argument_checker, self.tools
        return (
            (tools is None or tools.review_of(plan.entry) is plan.review)
            and (checker is None or checker.check_for(plan.entry) is plan.check)
            and self._stages_of(plan, has_reply=False) == plan.stages
        )

    def _stages_of(self, plan: CallPlan, *, has_reply: bool) -> tuple[Stage, ...]:
        """Return the stages that apply. This is the order in which every call passes them."""
        scopes, review = self.scope_checker, plan.review
        asks = has_reply or needs_confirmation(plan.decision, review)
        stages: tuple[tuple[Stage, bool], ...] = (
            (self._review, review is not None and review.refusal is not None),
            (self._count, self.limits is not None and self.limits.has_limits),
            (self._validate, plan.check is not None),
            (self._sign_in, self.sign_in is not None and self.sign_in.applies_to(plan.target[0])),
            (self._approve, asks or (scopes is not None and scopes.applies_to(plan.entry))),
            (self._record, self.intent_recorder is not None and review is not None),
        )
        return tuple(stage for stage, applies in stages if applies)

    def run(self, call: Call, plan: CallPlan, frame: Frame) -> Outcome | Awaitable[Outcome]:
        """Check a call with the arguments in `frame`.

        Raises MalformedMessage if the arguments are not an object.
        """
        call.target = plan.target
        stages = plan.stages if call.prompt_reply is None else self._stages_for(call, plan)
        for stage in stages:
            found = stage(call, plan, frame)
            if found is not None:
                if isinstance(found, Refusal) or not isinstance(found, Awaitable):
                    return found
                return self._finish(found, stage, call, plan, frame)
        return None

    def _stages_for(self, call: Call, plan: CallPlan) -> tuple[Stage, ...]:
        if call.prompt_reply is None:
            return plan.stages
        return self._stages_of(plan, has_reply=True)

    async def _finish(
        self, waiting: Awaitable[Outcome], stage: Stage, call: Call, plan: CallPlan, frame: Frame
    ) -> Outcome:
        """Run the stages after one that had to wait."""
        try:
            outcome = await self._await_stages(waiting, stage, call, plan, frame)
        except (Unavailable, MalformedMessage):
            _mark_unsent(call)
            raise
        if outcome is not None:
            self._record_unsent(call, outcome)
        return outcome

    async def _await_stages(
        self, waiting: Awaitable[Outcome], stage: Stage, call: Call, plan: CallPlan, frame: Frame
    ) -> Outcome:
        """Await a stage, then run those that are due by what is valid then.

        A wait may last from a moment to hours, and a grant may end meanwhile. So nothing that was
        decided before a wait is used after it, and nothing is awaited between the last decision and
        the sending. A new wait belongs in a stage.
        """
        for _ in range(MAX_WAITS):
            outcome = await waiting
            if outcome is not None:
                return outcome
            # Of the stages that wait, only counting comes before the check of the arguments.
            checked = None if stage == self._count else plan.check
            before, plan = plan, self._renew(call, plan)
            due = self._stages_after(stage if plan is before else None, call, plan, checked)
            stopped = self._pass(due, call, plan, frame)
            if stopped is None:
                return None
            stage, found = stopped
            if isinstance(found, Refusal) or not isinstance(found, Awaitable):
                return found
            waiting = found
        raise Unavailable("the policy changes too often", POLICY_UNKNOWN, RETRY_AFTER)

    def judge_again(self, call: Call, plan: CallPlan, frame: Frame) -> Outcome | Awaitable[Outcome]:
        """Check a call by what is valid now, since it waited for a person or is sent once more.

        It is neither counted nor recorded twice, and needs no second approval.
        """
        renewed = self._renew(call, plan)
        due = self._stages_after(None, call, renewed, plan.check)
        stopped = self._pass(due, call, renewed, frame)
        if stopped is None:
            return None
        stage, found = stopped
        if isinstance(found, Refusal) or not isinstance(found, Awaitable):
            return found
        return self._await_stages(found, stage, call, renewed, frame)

    def _stages_after(
        self, passed: Stage | None, call: Call, plan: CallPlan, checked: ArgumentCheck | None
    ) -> Iterator[Stage]:
        """Yield the stages after one, or all, without those whose effect is there already."""
        stages = self._stages_for(call, plan)
        is_due = passed not in stages
        for stage in stages:
            if not is_due:
                is_due = stage == passed
            elif not (
                stage == self._count
                or (stage == self._validate and plan.check is checked)
                or (stage == self._record and call.record is not None)
            ):
                yield stage

    def _pass(
        self, stages: Iterable[Stage], call: Call, plan: CallPlan, frame: Frame
    ) -> tuple[Stage, Outcome | Awaitable[Outcome]] | None:
        """Run stages up to one that refuses, holds or waits, and return that one."""
        for stage in stages:
            found = stage(call, plan, frame)
            if found is not None:
                return stage, found
        return None

    async def may_repeat(self, call: Call, plan: CallPlan, frame: Frame) -> bool:
        """Return whether a call that failed may be sent once more, by what is valid now.

        No person is asked about it. A caller that wants one to be asked makes the call again.
        """
        try:
            found = self.judge_again(call, plan, frame)
            return (await found if isinstance(found, Awaitable) else found) is None
        except (Unavailable, MalformedMessage):
            return False

    async def check_again(self, call: Call, plan: CallPlan, frame: Frame) -> Outcome:
        """Check a call as `judge_again` does, and note in its record if it does not leave now."""
        try:
            found = self.judge_again(call, plan, frame)
            outcome = await found if isinstance(found, Awaitable) else found
        except (Unavailable, MalformedMessage):
            _mark_unsent(call)
            raise
        if outcome is not None:
            self._record_unsent(call, outcome)
        return outcome

    async def _proceed(self, call: Call, plan: CallPlan, frame: Frame, go_on: GoOn) -> None:
        """Send a call that waited for a sign-in, if it passes the checks now."""
        if may_be_sent(call, await self.check_again(call, plan, frame), go_on):
            await go_on()

    def _record_unsent(self, call: Call, outcome: Outcome) -> None:
        """Note that a call does not leave now, although its intent may be recorded."""
        if isinstance(outcome, Refusal):
            _mark_unsent(call)
        elif call.record is not None and self.intent_recorder is not None:
            # Its intent is recorded anew after the approval, which the intent names.
            self.intent_recorder.record_not_sent(call, "a person must decide first")

    def _review(self, call: Call, plan: CallPlan, frame: Frame) -> Refusal | None:
        """Refuse a tool that no actor can call: its definition changed, or it lacks permissions."""
        return None if plan.review is None else plan.review.refusal

    def _count(self, call: Call, plan: CallPlan, frame: Frame) -> CountOutcome:
        """Apply the rate limits and quotas. Waits only for a share of a limit from the store."""
        if self.limits is None:
            return None
        cost = 1 if plan.review is None else plan.review.cost
        return self.limits.count_call(call.client_stream.actor, *plan.target, cost)

    def _validate(
        self, call: Call, plan: CallPlan, frame: Frame
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """Check the arguments by the schema and the validators of the tool."""
        return None if plan.check is None else plan.check(frame.arguments)

    def _sign_in(self, call: Call, plan: CallPlan, frame: Frame) -> Outcome | Awaitable[Outcome]:
        """Give the call the account of its principal, or hold it until a person signs in."""
        if self.sign_in is None:
            return None
        reply = call.prompt_reply
        if isinstance(reply, PromptReply) and reply.is_sign_in:
            if reply.verdict in (ApprovalDecision.DECLINE, ApprovalDecision.CANCEL):
                return _SIGN_IN_DECLINED_REFUSAL
            # The account says whether the person has signed in. The later stages need no reply.
            call.prompt_reply = None
        if plan.review is not None and call.sign_in is None:
            proceed = partial(self._proceed, call, plan, frame)
            call.sign_in = self.sign_in.retry_for(call, plan.entry, plan.review, frame, proceed)
        found = self.sign_in.check(call, plan.entry)
        if isinstance(found, Awaitable):
            return self._await_sign_in(found, call, plan, frame)
        return self._sign_in_outcome(found, call, plan, frame)

    async def _await_sign_in(
        self,
        waiting: Awaitable[Refusal | AccountKey | None],
        call: Call,
        plan: CallPlan,
        frame: Frame,
    ) -> Outcome:
        return self._sign_in_outcome(await waiting, call, plan, frame)

    def _sign_in_outcome(
        self, found: Refusal | AccountKey | None, call: Call, plan: CallPlan, frame: Frame
    ) -> Outcome:
        if found is None or isinstance(found, Refusal):
            return found
        if self.sign_in is None or plan.review is None or call.is_bridged:
            return _NO_SIGN_IN_REFUSAL

        proceed = partial(self._proceed, call, plan, frame)
        return self.sign_in.hold(call, plan.entry, plan.review, frame, found, proceed)

    def _approve(self, call: Call, plan: CallPlan, frame: Frame) -> Outcome:
        """Check the scope, and ask a person about a call that needs it."""
        entry, review, arguments, beyond = plan.entry, plan.review, frame.arguments, None
        if self.scope_checker is not None:
            beyond = self.scope_checker.check_scope(call, entry, arguments)
        if isinstance(beyond, Refusal):
            return beyond
        if self._needs_approval(call, plan, arguments, beyond):
            if self.approvals is None or review is None:
                return _NO_APPROVER_REFUSAL
            # People may have confirmed this very call, which waited since or is sent once more.
            if call.confirmed_definition != review.digest:
                if not self.approvals.is_next_round(call, entry, review, arguments, frame):
                    # The one question is also about the scope, so it names the scope.
                    scopes = None if beyond is None else self.scope_checker
                    reach = None if scopes is None else scopes.describe(beyond)
                    return self.approvals.hold(call, entry, review, arguments, frame, reach)
                call.confirmed_definition = review.digest
        elif beyond not in (None, call.approved_scope) and self.scope_checker is not None:
            if review is None:
                return _NO_APPROVER_REFUSAL
            return self.scope_checker.hold(call, entry, review, beyond, frame)
        return None

    def _record(
        self, call: Call, plan: CallPlan, frame: Frame
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """Record the intent to run the call in the audit log. This is the last stage."""
        if self.intent_recorder is None or plan.review is None:
            return None
        return self.intent_recorder.record_intent(call, plan.entry, plan.review, frame.arguments)

    def _needs_approval(
        self, call: Call, plan: CallPlan, arguments: object, beyond: object = None
    ) -> bool:
        if call.prompt_reply is not None and beyond is None:
            # The client brought a reply to an approval request. That reply decides, even if a grant
            # was added in the meantime.
            return True
        needs_one = needs_confirmation(plan.decision, plan.review)
        return needs_one and not self._has_standing_answer(call, plan, arguments)

    def _has_standing_answer(self, call: Call, plan: CallPlan, arguments: object) -> bool:
        """Return whether a standing grant approves this call, and note its id in the call."""
        review = plan.review
        if self.standing_answers is None or review is None or review.is_always_confirmed:
            return False
        if review.repeat_approval_reason is not None:
            return False
        called = (call.client_stream.actor, *plan.target, arguments)
        found = self.standing_answers.standing_answer(*called, review.digest)
        if found is not None:
            call.permitted_by = found.id
        return found is not None


_NO_APPROVER_REFUSAL: Final = Refusal(
    APPROVAL_REQUIRED,
    "this call needs approval, which is not possible here; an operator can grant the tool itself",
)


_SIGN_IN_DECLINED_REFUSAL: Final = Refusal(
    DECLINED, "the sign-in that this call needs was declined; nothing was done"
)
_NO_SIGN_IN_REFUSAL: Final = Refusal(
    SIGN_IN_REQUIRED, "this call needs an account at its server; sign in there first"
)


def _mark_unsent(call: Call) -> None:
    if call.record is not None:
        call.record.was_sent = False


async def _refuse_later(call: Call, counting: Awaitable[Refusal | None]) -> bool:
    refusal = await counting
    if refusal is not None:
        call.refuse_with(refusal)
    return refusal is not None


def _pass_now(session: Session, frame: Frame, send: Callable[[Frame], None]) -> None:
    notice = session.handle_message(frame)
    if notice is not None:
        send(notice)


async def _pass_later(
    session: Session,
    frame: Frame,
    counting: Awaitable[Refusal | None],
    send: Callable[[Frame], None],
) -> None:
    if await counting is None:
        _pass_now(session, frame, send)


def may_be_sent(call: Call, outcome: Outcome, go_on: GoOn) -> bool:
    """Apply the outcome of the checks and return whether the call may be sent now.

    A refusal answers the call. A hold calls `go_on` after a person approves.
    """
    if isinstance(outcome, Refusal):
        call.refuse_with(outcome)
    elif outcome is not None:
        outcome.start(go_on)
    elif call.sign_in is not None:
        call.sign_in.go_on = go_on
    return outcome is None


MAX_PLANS: Final = 10_000
MAX_PLANNED_NAME_LENGTH: Final = 256

type PlanKey = tuple[
    str,
    tuple[str, ...],
    tuple[tuple[str, str], ...] | None,
    tuple[str, ...],
    str,
    str | None,
]
"""The key of a plan: the relevant fields of the actor, the server or view, and the called name."""


class PlanCache:
    """The plans of recent calls. A new plan replaces the oldest one in a full cache."""

    def __init__(
        self, generation: PolicyGeneration, is_lasting: Callable[[Actor, CatalogEntry, str], bool]
    ) -> None:
        self.generation = generation
        self.plans: OrderedDict[PlanKey, CallPlan] = OrderedDict()
        # Whether only a change can end what was decided about this tool, and not a point in time.
        self._is_lasting = is_lasting

    def put(self, key: PlanKey, actor: Actor, plan: CallPlan, view: str = "") -> None:
        """Keep a plan, unless time can change it or any caller could have invented its name."""
        entry = plan.entry
        if (
            entry.definition is UNLISTED_DEFINITION
            or len(entry.name) > MAX_PLANNED_NAME_LENGTH
            or not self._is_lasting(actor, entry, view)
        ):
            return
        plan.is_lasting = True
        if len(self.plans) >= MAX_PLANS:
            self.plans.popitem(last=False)
        self.plans[key] = plan


def _is_in_view(plan: CallPlan) -> bool:
    """Return whether a view still shows a tool as it did when the plan was made."""
    tool = plan.view_tool
    if plan.view is None or tool is None:
        return True
    shown = plan.view.find(tool.listed.key)
    return (
        shown is not None
        and (shown.entry.server, shown.entry.name) == plan.target
        and shown.override == tool.override
    )


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
        plan_cache: PlanCache | None = None,
        sign_in: PipelineSignIn | None = None,
    ) -> None:
        super().__init__(catalog, policy_engine, tools)
        self._limits = limits
        self._argument_checker = argument_checker
        self.pipeline = CallPipeline(
            tools,
            limits,
            argument_checker,
            self._policy_engine,
            renew=self.renew,
            approvals=approvals,
            scope_checker=scope_checker,
            own_tasks=own_tasks,
            intent_recorder=intent_recorder,
            sign_in=sign_in,
        )
        self.retries = RetryService(is_enabled=False) if retries is None else retries
        # Without a cache, each call gets a plan of its own.
        self.plan_cache = plan_cache

    def plan_for(self, call: Call, server: str, name: str | None) -> CallPlan:
        """Return the plan for a call, and note on the call what was decided.

        `name` is the server's own name of the tool, or its public name if `server` is empty.
        Raises MalformedMessage if the actor may not call it.
        """
        actor, cache = call.client_stream.actor, self.plan_cache
        key = (actor.party, actor.groups, actor.permissions, actor.excluded, server, name)
        if cache is not None:
            plan = cache.plans.get(key)
            if plan is not None and (
                plan.generation == cache.generation.number
                # Another server may have taken a name of the endpoint of all servers.
                or (
                    (bool(server) or self.catalog.find(EntryKind.TOOL, name or "") is plan.entry)
                    and self._renews(cache, plan)
                )
            ):
                self._policy_engine.require_fresh()
                call.decision = plan.decision
                return plan
        # A change while the plan is made voids it, so the number is read first.
        number = 0 if cache is None else cache.generation.number
        if server:
            entry = self.find_tool(call, server, name)
        else:
            entry = self.find(call, EntryKind.TOOL, name)
        plan = self._make_plan(call, entry, number)
        # A name that several servers use means another tool once a time-limited denial ends.
        if cache is not None and (
            server
            or name == entry.key
            or len(self.catalog.find_bare(EntryKind.TOOL, entry.name)) == 1
        ):
            cache.put(key, actor, plan)
        return plan

    def view_plan_for(self, call: Call, view: ServedView, name: str | None) -> CallPlan:
        """Return the plan for a call at the endpoint of a view, as `plan_for` does.

        Raises MalformedMessage if the view has no such tool for this actor.
        """
        actor, cache = call.client_stream.actor, self.plan_cache
        key = (actor.party, actor.groups, actor.permissions, actor.excluded, view.target, name)
        if cache is not None:
            plan = cache.plans.get(key)
            if plan is not None and (
                plan.generation == cache.generation.number
                or (view.find(name or "") is plan.view_tool and self._renews(cache, plan))
            ):
                self._policy_engine.require_fresh()
                call.decision = plan.decision
                return plan
        # A change while the plan is made voids it, so the number is read first.
        number = 0 if cache is None else cache.generation.number
        tool = None if name is None else view.find(name)
        entry = None if tool is None else tool.entry
        entry = self.find_in_view(call, EntryKind.TOOL, entry, name)
        plan = self._make_plan(call, entry, number)
        plan.view, plan.view_tool = view, tool
        if cache is not None:
            cache.put(key, actor, plan, view.name)
        return plan

    def _make_plan(self, call: Call, entry: CatalogEntry, number: int) -> CallPlan:
        """Return the plan for a call, from what is known at this number of the generation."""
        plan = self.pipeline.make_plan(entry, call.decision)
        plan.generation = number
        plan.subjects = *call.client_stream.actor.subjects, server_subject(entry.server)
        return plan

    def _is_current(self, cache: PlanCache, plan: CallPlan) -> bool:
        """Return whether a new plan for the same actor and entry would be equal to this one.

        A plan is never stale, because nothing in it is taken on trust once the number has grown:

        - The decision follows from the grants of the actor's subjects, the grants of all subjects
          and the static rules. The generation notes the subjects of each change of a grant. Every
          other change of these is one of everything.
        - The entry, its review, the check of its arguments and the stages are derived again, and
          must be the same objects. So a change at another server counts if it has an effect here,
          as a tool whose name looks alike has on the review.
        - A change of the server itself is noted for the subject of that server, whatever it was.
        - Every other change voids all plans, as does a source that names no subjects.
        - Time is not a change: `PlanCache.put` keeps no plan that it can end.

        The number that counts is the one from before these checks, so a change that they bring
        about is looked at by the next call.
        """
        entry = plan.entry
        return (
            cache.generation.is_unchanged_since(plan.generation, plan.subjects)
            and self.catalog.find_own(entry.server, EntryKind.TOOL, entry.name) is entry
            and self.pipeline.has_same_checks(plan)
            and _is_in_view(plan)
        )

    def _renews(self, cache: PlanCache, plan: CallPlan) -> bool:
        """Return whether a plan is current, and note that it is."""
        number = cache.generation.number
        if not self._is_current(cache, plan):
            return False
        plan.generation = number
        return True

    def renew(self, call: Call, plan: CallPlan) -> CallPlan:
        """Return a plan for the same tool that is valid now, and note on the call what was decided.

        The name of the call is not looked up again, because it may mean another tool by now. Raises
        MalformedMessage if the actor may not call the tool any more.
        """
        cache, entry = self.plan_cache, plan.entry
        # A change while the plan is made voids it, so the number is read first.
        number = -1 if cache is None else cache.generation.number
        is_unchanged = cache is not None and (
            plan.generation == number or self._is_current(cache, plan)
        )
        if is_unchanged and plan.is_lasting:
            self._policy_engine.require_fresh()
            return plan
        decision = self._policy_engine.authorize(
            call.client_stream.actor, CALL_TOOL, entry.server, entry.name, call.view
        )
        if decision.effect is Effect.DENY:
            call.denial = CallDenial(decision, entry.server, entry.name, is_listed=True)
            raise MalformedMessage("this call is no longer allowed", ACCESS_DENIED)
        call.decision = decision
        if is_unchanged and decision == plan.decision:
            return plan
        listed = self.catalog.find_own(entry.server, EntryKind.TOOL, entry.name)
        if (listed is None and entry.definition != UNLISTED_DEFINITION) or not _is_in_view(plan):
            if listed is None and entry.server in self.catalog.starting_servers:
                raise not_ready(entry.server)
            raise MalformedMessage("this tool is not available", TOOL_NOT_FOUND)
        renewed = self._make_plan(call, listed or entry, number)
        renewed.view, renewed.view_tool = plan.view, plan.view_tool
        return renewed

    def refuse_over_limit(self, call: Call) -> bool | Awaitable[bool]:
        """Refuse a request that exceeds the limits of its principal or its API key.

        Returns whether the request was refused, and so is answered. The result is an awaitable
        only if the store must be asked.
        """
        actor, refusal = call.client_stream.actor, None
        if call.exceeded_shares is not None:
            refusal = call.exceeded_shares.refusal()
        elif actor.has_rate_limit and self._limits is not None:
            refusal = self._limits.count_request(actor)
        if refusal is None:
            return False
        if not isinstance(refusal, Refusal):
            return _refuse_later(call, refusal)
        call.refuse_with(refusal)
        return True

    def pass_message(
        self, session: Session, frame: Frame, actor: Actor, send: Callable[[Frame], None]
    ) -> Awaitable[None] | None:
        """Handle a client's message that is not a request, and `send` it on if it is for servers.

        A notification counts as a request of its principal. Over the limit it is dropped, because
        it has no answer. The result is an awaitable only if the store must be asked.
        """
        is_counted = frame.method is not UNSET and frame.method != CANCELLED
        if is_counted and actor.has_rate_limit and self._limits is not None:
            refusal = self._limits.count_request(actor)
            if isinstance(refusal, Refusal):
                return None
            if refusal is not None:
                return _pass_later(session, frame, refusal, send)
        _pass_now(session, frame, send)
        return None

    async def is_over_limit(self, call: Call) -> bool:
        """Refuse a request as `refuse_over_limit` does, after the store was asked."""
        refused = self.refuse_over_limit(call)
        return refused if isinstance(refused, bool) else await refused

    async def check(self, call: Call, entry: CatalogEntry, frame: Frame) -> Refusal | None:
        """Return why a call with these arguments would be refused, or None; send nothing.

        The check counts as one call for the rate limits.
        """
        actor, outcome = call.client_stream.actor, None
        if self._limits is not None:
            outcome = self._limits.count_call(actor, entry.server, entry.name, 1)
            outcome = await outcome if isinstance(outcome, Awaitable) else outcome
        if outcome is None:
            outcome = self.check_arguments(entry, frame.arguments)
        return await outcome if isinstance(outcome, Awaitable) else outcome

    def check_arguments(
        self, entry: CatalogEntry, arguments: object
    ) -> Refusal | Awaitable[Refusal | None] | None:
        """Return why the tool does not accept these arguments, or None.

        The actor does not matter.
        """
        if self._argument_checker is None:
            return None
        return self._argument_checker.check_for(entry)(arguments)
