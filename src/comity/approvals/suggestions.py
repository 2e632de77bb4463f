"""Suggested grants: Comity finds them, and operators accept or dismiss them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from comity.approvals.model import ANSWER_OWN_VERB, ApprovalState, ApprovalStore, new_request_id
from comity.approvals.suggestion_rules import (
    END_EVENTS,
    CurrentTool,
    DryRun,
    GrantSuggestion,
    KnownTools,
    PastCall,
    PastCalls,
    SuggestionThreshold,
    WithheldSuggestion,
    dry_run_condition,
    past_call_of_event,
    past_call_of_request,
    weigh_suggestions,
)
from comity.audit.chain import AuditFilter, AuditStore
from comity.audit.events import AuditType, event_of
from comity.audit.log import AuditLog
from comity.errors import ACCESS_DENIED, EXHAUSTED, NOTHING_HERE, MalformedMessage, Unavailable
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, CALL, Actor, PrincipalKind
from comity.policy.grants import Effect, Grant, GrantSet, GrantSource, TargetSpecificity
from comity.policy.snapshot import WallClock

MAX_EVENTS_READ: Final = 200_000
MAX_REQUESTS_READ: Final = 2_000
READ_TIMEOUT: Final = timedelta(seconds=10)
ENDED_STATES: Final = tuple(
    state for state in ApprovalState if state not in (ApprovalState.PENDING, ApprovalState.DEFERRED)
)


class SuggestionGrantWriter(Protocol):
    """Writes grants in the name of an actor, after it checks that the actor may do so."""

    def actor_named(self, principal: str) -> Actor: ...

    @property
    def access(self) -> GrantSet: ...
    def require_grant(self, actor: Actor, verb: str, target: str) -> None: ...
    async def put(self, actor: Actor, grant: Grant) -> Grant: ...


@dataclass(frozen=True, slots=True)
class ApprovalHistory:
    """The sources of evidence: approval requests, the audit log, and the current tools."""

    approval_store: ApprovalStore
    audit_store: AuditStore
    tools: KnownTools


@dataclass(frozen=True, slots=True)
class SuggestionPreview:
    """One suggestion with its dry run. `is_complete` is False if the audit log did not answer."""

    suggestion: GrantSuggestion
    dry_run: DryRun
    is_complete: bool


@dataclass(frozen=True, slots=True)
class SuggestionList:
    """The suggestions, and the withheld ones with as many approvals."""

    previews: tuple[SuggestionPreview, ...]
    withheld: tuple[WithheldSuggestion, ...]


class SuggestionService:
    """Finds suggested grants and applies the decisions of the operators who administer grants."""

    def __init__(
        self,
        history: ApprovalHistory,
        administration: SuggestionGrantWriter,
        audit_log: AuditLog | None = None,
        threshold: SuggestionThreshold | None = None,
        clock: WallClock = lambda: datetime.now(UTC),
    ) -> None:
        self._history = history
        self._administration = administration
        self._audit_log = audit_log
        self._threshold = threshold or SuggestionThreshold()
        self._clock = clock
        # Suggestions dismissed on this node that the audit log may not show yet.
        self._dismissed: dict[str, int] = {}

    async def list_suggestions(self, actor: Actor) -> SuggestionList:
        """Return all current suggestions, each with a dry run."""
        self._administration.require_grant(actor, ADMIN_READ, "*")
        gathered = await self._read_past_calls()
        suggestions, held_back = await self._current_suggestions(gathered)
        deadline = asyncio.get_running_loop().time() + READ_TIMEOUT.total_seconds()
        shown = [await self._preview(each, gathered, deadline) for each in suggestions]
        return SuggestionList(tuple(shown), held_back)

    async def accept(self, actor: Actor, id: str, reason: str = "") -> Grant:
        """Create the suggested grant in the name of the actor."""
        chosen = await self._require_suggestion(actor, id)
        if chosen.subject == actor.party and not self._may_answer_own(actor, chosen):
            raise MalformedMessage("you cannot accept a grant for yourself", ACCESS_DENIED)
        grant = Grant(
            chosen.subject,
            CALL,
            f"{chosen.server}/{chosen.tool}",
            Effect.ALLOW,
            justification=f"{chosen.words} ({reason})" if reason else chosen.words,
            where=chosen.where,
        )
        kept = await self._administration.put(actor, grant)
        await self._record(AuditType.SUGGESTION_ACCEPTED, actor, chosen, reason, grant=kept.id)
        return kept

    async def dismiss(self, actor: Actor, id: str, reason: str = "") -> GrantSuggestion:
        """Dismiss a suggestion until there is twice the evidence."""
        chosen = await self._require_suggestion(actor, id)
        self._dismissed[chosen.topic] = chosen.decisions
        await self._record(AuditType.SUGGESTION_DISMISSED, actor, chosen, reason)
        return chosen

    async def _require_suggestion(self, actor: Actor, id: str) -> GrantSuggestion:
        """Return the suggestion with this id. Raises if the actor may not decide about it."""
        if actor.kind is not PrincipalKind.PERSON:
            raise MalformedMessage("only people decide about suggestions", ACCESS_DENIED)
        self._administration.require_grant(actor, ADMIN_READ, "*")
        suggestions, _ = await self._current_suggestions(await self._read_past_calls())
        for each in suggestions:
            if each.id == id:
                self._administration.require_grant(actor, ADMIN_WRITE, f"{each.server}/{each.tool}")
                return each
        raise MalformedMessage(
            "this grant is not suggested; `comity grants suggestions` lists the suggested grants",
            NOTHING_HERE,
        )

    def _may_answer_own(self, actor: Actor, chosen: GrantSuggestion) -> bool:
        """Return whether a grant explicitly allows the actor to answer its own requests."""
        place = (chosen.server, chosen.tool)
        judged = self._administration.access.authorize(
            actor, ANSWER_OWN_VERB, *place, self._clock()
        )
        grant = judged.grant
        if grant is None or judged.effect is not Effect.ALLOW:
            return False
        return grant.verb == ANSWER_OWN_VERB or grant.source is GrantSource.BUILT_IN

    async def _read_past_calls(self) -> PastCalls:
        """Return all calls of the time window whose approval request has ended."""
        gathered = PastCalls(self._decided_by_grants())
        after, read = new_request_id(self._since, b""), 0
        while page := await self._history.approval_store.page(ENDED_STATES, after):
            for ask in page:
                precedent = past_call_of_request(ask)
                if precedent is not None:
                    gathered.add(precedent)
            after, read = page[-1].id, read + len(page)
            if read > MAX_EVENTS_READ:
                # A partial read may miss a denial.
                raise Unavailable(
                    "there are too many decisions to look at; make suggestions.window shorter",
                    EXHAUSTED,
                )
            await asyncio.sleep(0)
        return gathered

    @property
    def _since(self) -> datetime:
        return self._clock() - self._threshold.window

    def _decided_by_grants(self) -> Callable[[PastCall], bool]:
        """Return a predicate: whether the current grants decide such a call without an approval."""
        access, now = self._administration.access, self._clock()

        def is_settled(one: PastCall) -> bool:
            actor = self._administration.actor_named(one.asker)
            place = (one.server, one.tool)
            judged = access.authorize(actor, CALL, *place, now)
            is_granted = judged.effect is Effect.ALLOW and judged.level is TargetSpecificity.OFFER
            if is_granted or access.denies_call(actor, *place, now):
                return True
            answer = access.standing_answer(actor, place, one.arguments, one.definition, now)
            return answer is not None

        return is_settled

    async def _current_suggestions(
        self, gathered: PastCalls
    ) -> tuple[Sequence[GrantSuggestion], tuple[WithheldSuggestion, ...]]:
        known = {group[1:3]: self._history.tools(*group[1:3]) for group in gathered.groups}

        def tools(server: str, tool: str) -> CurrentTool | None:
            return known.get((server, tool))

        # Runs in a thread: ten thousand decisions take half a second, which would delay every call.
        suggestions, held_back = await asyncio.to_thread(
            weigh_suggestions, gathered, tools, self._threshold
        )
        wanted = [
            each
            for each in suggestions
            if each.decisions >= 2 * await self._dismissed_decisions(each)
        ]
        return wanted, held_back

    async def _dismissed_decisions(self, suggestion: GrantSuggestion) -> int:
        """Return on how many decisions the last dismissal was based, or 0 without a dismissal."""
        sought = AuditFilter(
            trace=suggestion.topic, types=(AuditType.SUGGESTION_DISMISSED,), newest_first=True
        )
        counts = [self._dismissed.get(suggestion.topic, 0)]
        for line in await self._history.audit_store.find(sought, 1):
            count = event_of(line.body).details.get("decisions")
            counts.append(count if isinstance(count, int) else 0)
        return max(counts)

    async def _preview(
        self, suggestion: GrantSuggestion, gathered: PastCalls, deadline: float
    ) -> SuggestionPreview:
        of_it = (suggestion.subject, suggestion.server, suggestion.tool)
        past = [*gathered.calls.get(of_it, ())]
        is_whole = True
        try:
            async with asyncio.timeout_at(deadline):
                past += await self._unasked_calls(suggestion, {each.trace for each in past})
        except TimeoutError:
            is_whole = False
        rehearsed = await asyncio.to_thread(dry_run_condition, suggestion.where, past)
        return SuggestionPreview(suggestion, rehearsed, is_whole)

    async def _unasked_calls(self, suggestion: GrantSuggestion, asked: set[str]) -> list[PastCall]:
        """Return the calls in the audit log that had no approval request, refused or forwarded."""
        sought = AuditFilter(
            actor=suggestion.subject,
            server=suggestion.server,
            tool=suggestion.tool,
            types=END_EVENTS,
            since=self._since,
            newest_first=True,
        )
        found: list[PastCall] = []
        for line in await self._history.audit_store.find(sought, MAX_REQUESTS_READ):
            precedent = past_call_of_event(event_of(line.body))
            if precedent is not None and precedent.trace not in asked:
                found.append(precedent)
        return found

    async def _record(
        self, type: AuditType, actor: Actor, chosen: GrantSuggestion, reason: str, **more: object
    ) -> None:
        if self._audit_log is None:
            return
        details: dict[str, object] = {
            "suggestion": chosen.id,
            "subject": chosen.subject,
            "description": chosen.words,
            "where": chosen.where,
            "decisions": chosen.decisions,
            "people": list(chosen.people),
            **({"reason": reason} if reason else {}),
            **more,
        }
        await self._audit_log.write(
            self._audit_log.event(
                type,
                actor,
                server=chosen.server,
                tool=chosen.tool,
                trace=chosen.topic,
                details=details,
            )
        )
