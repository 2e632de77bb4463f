"""All that an approver needs to decide about one request."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypedDict, cast

from comity.approvals.model import (
    DESCRIPTION,
    RISK_REASONS,
    ApprovalDecision,
    ApprovalFilter,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
    ApprovalStore,
)
from comity.approvals.presentation import AnswerView, ApprovalView, request_fields
from comity.approvals.service import ApprovalInbox
from comity.approvals.suggestion_rules import has_secrets, infer_condition
from comity.audit.chain import AuditFilter, AuditRecord
from comity.audit.events import AuditType
from comity.catalog.definitions import tool_description
from comity.catalog.review_api import DefinitionChange, change_view
from comity.catalog.tool_reviews import ToolReviewService
from comity.errors import MalformedMessage, Unavailable
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, CALL, Actor
from comity.mcp.entries import CatalogEntry
from comity.policy.administration import GrantAdmin
from comity.policy.conditions import parse_or_none
from comity.policy.grants import Effect, Grant
from comity.policy.risk import Risk
from comity.telemetry.outcomes import OutcomeClass

MAX_RECENT_CALLS: Final = 5
MAX_EARLIER_REQUESTS: Final = 5
_CALL_TYPES: Final = (
    AuditType.TOOL_EXECUTED,
    AuditType.TOOL_BLOCKED,
    AuditType.VALIDATION_FAILED,
    AuditType.CODE_REJECTED,
)
_DECIDED_STATES: Final = (ApprovalState.APPROVED, ApprovalState.CONSUMED, ApprovalState.DENIED)

type FindEntries = Callable[[AuditFilter, int], Awaitable[Sequence[AuditRecord]]]
type FindApprovers = Callable[[ApprovalRequest], Awaitable[Sequence[str]]]


class RecentCallView(TypedDict):
    """A call that the requester made lately."""

    at: datetime
    server: str
    tool: str
    type: str
    result: str
    trace: str


class EarlierRequestView(TypedDict):
    """A request of the same principal for the same tool that people have decided."""

    id: str
    state: ApprovalState
    created_at: datetime
    answers: list[AnswerView]


class RuleView(TypedDict):
    """The grant that approving with a rule makes. `where_text` says its condition in words."""

    subject: str
    verb: str
    target: str
    effect: Effect
    where: Mapping[str, object] | None
    where_text: str | None


class CallResultView(TypedDict):
    """How an approved call ended. Only its agent and the people who answered read the text."""

    outcome: OutcomeClass
    text: str | None
    is_cut: bool
    ended_at: datetime
    duration_ms: float


class BriefingView(ApprovalView):
    """A request with all that an approver needs. Nothing in it is trusted text."""

    # Empty if the server gives none; null if Comity does not know it.
    tool_description: str | None
    # Whether the server of the tool lists it now. Otherwise the facts are those of the request.
    is_tool_listed: bool
    risk_reasons: list[str]
    # The arguments with secrets masked; null if Comity did not store them.
    arguments: object
    # How the definition of the tool differs from the accepted one.
    changes: list[DefinitionChange]
    reason: str | None
    client: str | None
    model: str | None
    recent_calls: list[RecentCallView]
    earlier_requests: list[EarlierRequestView]
    # The people who can answer. Only readers with `admin/read` see their names.
    approver_names: Sequence[str] | None
    accepted_count: int
    rule: RuleView | None
    # Why no rule is offered.
    rule_refusal: str | None
    # How the approved call ended, for some minutes after it.
    result: CallResultView | None


@dataclass(frozen=True, slots=True)
class ApprovalBriefing:
    """Collects what an approver needs from the catalog, the audit log and earlier requests."""

    inbox: ApprovalInbox
    administration: GrantAdmin
    find_entries: FindEntries | None = None
    tool_reviews: ToolReviewService | None = None
    find_approvers: FindApprovers | None = None

    @property
    def _store(self) -> ApprovalStore:
        return self.inbox.approvals.store

    async def view(self, actor: Actor, request: ApprovalRequest) -> BriefingView:
        """Return a request that the actor may see, with all that it needs to decide."""
        refusal = self.rule_refusal(actor, request)
        return {
            **await self.inbox.view(actor, request),
            "tool_description": self._describe_tool(request),
            "is_tool_listed": self._find_tool(request) is not None,
            "risk_reasons": self._risk_reasons(request),
            "arguments": request.about.get("arguments"),
            "changes": await self._changes(request),
            "reason": _text_in(request.about, "reason"),
            "client": _text_in(request.about, "client"),
            "model": _text_in(request.about, "model"),
            "recent_calls": await self._recent_calls(request),
            "earlier_requests": await self._earlier_requests(request),
            "approver_names": await self._approver_names(actor, request),
            "accepted_count": sum(
                each.verdict is ApprovalDecision.ACCEPT for each in request.answers
            ),
            "rule": None if refusal else _rule_view(self.rule_of(request)),
            "rule_refusal": refusal,
            "result": self._result(actor, request),
        }

    def rule_of(self, request: ApprovalRequest, where: Mapping[str, object] | None = None) -> Grant:
        """Return the grant that approving with a rule makes: these arguments, unless others."""
        if where is None:
            arguments = cast("Mapping[str, object]", request.about.get("arguments") or {})
            where = infer_condition([arguments], str(request.about.get("definition") or ""))
        target = f"{request.server}/{request.tool}"
        return Grant(request.asker, CALL, target, Effect.ALLOW, where=where)

    def rule_refusal(self, actor: Actor, request: ApprovalRequest) -> str | None:
        """Return why no rule can be made from a request, or None if one can."""
        if request.kind is not ApprovalKind.CONFIRM or request.options or not request.is_open:
            return "only the approval of a call can become a rule"
        if request.about.get("risk") == Risk.DANGEROUS:
            return "the tool is dangerous; each of its calls is approved on its own"
        because = self._repeat_refusal(request) or self._condition_refusal(request)
        if because is not None:
            return because
        try:
            self.administration.require_grant(
                actor, ADMIN_WRITE, f"{request.server}/{request.tool}"
            )
        except MalformedMessage as refused:
            return str(refused)
        return None

    def _condition_refusal(self, request: ApprovalRequest) -> str | None:
        arguments = request.about.get("arguments")
        if not isinstance(arguments, Mapping):
            return "its arguments are not stored"
        if has_secrets(cast("Mapping[str, object]", arguments)):
            return "its arguments hold a secret"
        is_possible = self.rule_of(request).where is not None
        return None if is_possible else "its arguments are too long or too many for a rule"

    def _repeat_refusal(self, request: ApprovalRequest) -> str | None:
        if self.tool_reviews is None:
            return "no gateway runs that could say how risky the tool is"
        entry = self.tool_reviews.find_entry(request.server, request.tool)
        if entry is None:
            return "the tool is not there now"
        review = self.tool_reviews.review_of(entry)
        if review.risk is Risk.DANGEROUS:
            return "the tool is dangerous; each of its calls is approved on its own"
        return review.repeat_approval_reason

    def _find_tool(self, request: ApprovalRequest) -> CatalogEntry | None:
        """Return the tool of a request if its server lists it now."""
        if self.tool_reviews is None:
            return None
        return self.tool_reviews.find_entry(request.server, request.tool)

    def _describe_tool(self, request: ApprovalRequest) -> str | None:
        """Return what the server said of the tool when it was called, or what it says now."""
        stored = request.about.get(DESCRIPTION)
        if isinstance(stored, str):
            return stored
        entry = self._find_tool(request)
        return None if entry is None else tool_description(entry.definition) or ""

    def _risk_reasons(self, request: ApprovalRequest) -> list[str]:
        stored = request.about.get(RISK_REASONS)
        if isinstance(stored, list):
            return [str(each) for each in cast("list[object]", stored)]
        entry = self._find_tool(request)
        if entry is None or self.tool_reviews is None:
            return []
        return self.tool_reviews.risk_reasons_of(entry)

    def _result(self, actor: Actor, request: ApprovalRequest) -> CallResultView | None:
        """Return how the approved call ended, with its text only for those who took part."""
        found = self.inbox.approvals.results.get(request.id)
        if found is None:
            return None
        people = {request.asker, *(each.by for each in request.answers)}
        return {
            "outcome": found.outcome,
            "text": found.text if actor.party in people else None,
            "is_cut": found.is_cut,
            "ended_at": found.ended_at,
            "duration_ms": found.duration_ms,
        }

    async def _changes(self, request: ApprovalRequest) -> list[DefinitionChange]:
        if self.tool_reviews is None:
            return []
        entry = self._find_tool(request)
        if entry is None:
            return []
        return [change_view(each) for each in await self.tool_reviews.differences_of(entry)]

    async def _recent_calls(self, request: ApprovalRequest) -> list[RecentCallView]:
        if self.find_entries is None:
            return []
        wanted = AuditFilter(actor=request.asker, types=_CALL_TYPES, newest_first=True)
        try:
            found = await self.find_entries(wanted, MAX_RECENT_CALLS)
        except Unavailable:
            return []
        return [
            {
                "at": each.at,
                "server": each.server,
                "tool": each.tool,
                "type": each.type,
                "result": each.result,
                "trace": each.trace,
            }
            for each in found
        ]

    async def _earlier_requests(self, request: ApprovalRequest) -> list[EarlierRequestView]:
        wanted = ApprovalFilter(
            states=_DECIDED_STATES,
            asker=request.asker,
            server=request.server,
            tool=request.tool,
            newest_first=True,
            after=request.id,
        )
        found = await self._store.find(wanted, MAX_EARLIER_REQUESTS)
        return [
            {
                "id": each.id,
                "state": each.state,
                "created_at": each.created_at,
                "answers": request_fields(each)["answers"],
            }
            for each in found
        ]

    async def _approver_names(self, actor: Actor, request: ApprovalRequest) -> Sequence[str] | None:
        try:
            self.administration.require_grant(actor, ADMIN_READ, "*")
        except MalformedMessage:
            return None
        if self.find_approvers is None or not request.is_open:
            return None
        return await self.find_approvers(request)


def _rule_view(rule: Grant) -> RuleView:
    condition = None if rule.where is None else parse_or_none(rule.where)
    return {
        "subject": rule.subject,
        "verb": rule.verb,
        "target": rule.target,
        "effect": rule.effect,
        "where": rule.where,
        "where_text": None if condition is None else condition.describe(),
    }


def _text_in(about: Mapping[str, object], name: str) -> str | None:
    said = about.get(name)
    return said if isinstance(said, str) and said else None
