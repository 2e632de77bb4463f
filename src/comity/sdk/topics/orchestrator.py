"""A participant that fulfils proposals for people, by rules that they approved. (MCPx §9.4)"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, cast

import msgspec

from comity.approvals.suggestion_rules import (
    CallOutcome,
    CurrentTool,
    GrantSuggestion,
    PastCall,
    PastCalls,
    SuggestionThreshold,
    weigh_suggestions,
)
from comity.errors import MalformedMessage, Unavailable
from comity.mcp import protocol
from comity.policy.conditions import Condition, parse_or_none
from comity.policy.grants import is_pattern_match
from comity.sdk.topics.events import Chat, MemberFulfilment, MissedEnvelopes, Proposal, Response
from comity.sdk.topics.participant import Participant
from comity.topics import rules
from comity.topics.envelope import PROPOSAL, PROTOCOL, of_payload
from comity.topics.rules import TrackedProposal

MOST_PRECEDENTS: Final = 1_000
MOST_RULES: Final = 100
ID_CHARACTERS: Final = 8
SHORT: Final = SuggestionThreshold(decisions=3, people=1)
"""In a topic a few equal decisions of one person are enough to suggest a rule."""

_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class OrchestratorLimits:
    """The limits of all rules: methods, contexts and rate; `*` matches any characters."""

    methods: tuple[str, ...] = (protocol.CALL_TOOL,)
    contexts: tuple[str, ...] = ("*",)
    per_minute: int = 10


@dataclass(frozen=True, slots=True)
class Rule:
    """The proposals that need no question, and the decisions that led to the rule."""

    id: str
    proposer: str
    worker: str
    operation: str
    condition: Condition
    precedents: tuple[str, ...]
    decided_by: tuple[str, ...]
    approved_by: str = ""

    def words(self) -> str:
        return (
            f"always fulfil {self.operation} {self.condition.describe()} for {self.proposer} "
            f"by {self.worker}: approved {len(self.precedents)} times by "
            f"{', '.join(self.decided_by)}"
        )


class RuleLearner:
    """The decisions of a topic, the rules suggested from them, and the rules in force."""

    def __init__(self, bounds: OrchestratorLimits, measure: SuggestionThreshold = SHORT) -> None:
        self._limits = bounds
        self._measure = measure
        self._past: deque[PastCall] = deque(maxlen=MOST_PRECEDENTS)
        self._suggested: dict[str, Rule] = {}
        self._acted: deque[datetime] = deque()
        self.rules: dict[str, Rule] = {}

    def decided(
        self,
        proposal: TrackedProposal,
        worker: str,
        by: str,
        at: datetime,
        *,
        approved: bool = True,
    ) -> Rule | None:
        """Record a decision of a person; return a rule that can be suggested since then."""
        arguments = arguments_of(proposal)
        if arguments is None:
            return None
        became = CallOutcome.APPROVED if approved else CallOutcome.DECLINED
        self._past.append(
            PastCall(
                proposal.proposer,
                worker,
                operation_of(proposal),
                arguments,
                became,
                at,
                definition=PROTOCOL,
                by=(by,),
                trace=proposal.id,
            )
        )
        found = [rule for rule in self._weighed() if rule.id not in self._suggested | self.rules]
        for rule in found:
            if len(self._suggested) >= MOST_RULES:
                del self._suggested[next(iter(self._suggested))]
            self._suggested[rule.id] = rule
        return found[0] if found else None

    def approve(self, id: str, by: str) -> Rule | None:
        """Put a suggested rule in force. Returns None if it is unknown or `by` may not approve."""
        rule = self._suggested.get(id)
        if rule is None or by == rule.proposer or len(self.rules) >= MOST_RULES:
            return None
        del self._suggested[id]
        approved = Rule(
            rule.id,
            rule.proposer,
            rule.worker,
            rule.operation,
            rule.condition,
            rule.precedents,
            rule.decided_by,
            by,
        )
        self.rules[id] = approved
        return approved

    def forget(self, id: str) -> bool:
        """Remove a rule; return whether it was in force."""
        return self.rules.pop(id, None) is not None

    def rule_for(self, proposal: TrackedProposal, worker: str, now: datetime) -> Rule | None:
        """The rule that fulfils a proposal now; the query counts against the rate limit."""
        arguments = arguments_of(proposal)
        if arguments is None or not self._is_within(proposal):
            return None
        wanted = (proposal.proposer, worker, operation_of(proposal))
        meant = (
            rule
            for rule in self.rules.values()
            if (rule.proposer, rule.worker, rule.operation) == wanted
            and rule.condition.covers(arguments)
        )
        rule = next(meant, None)
        return rule if rule is not None and self._has_time(now) else None

    def _is_within(self, proposal: TrackedProposal) -> bool:
        kind = of_payload(PROPOSAL, {"method": proposal.method, "params": proposal.params})
        return any(is_pattern_match(each, kind.method) for each in self._limits.methods) and any(
            is_pattern_match(each, kind.context) for each in self._limits.contexts
        )

    def _has_time(self, now: datetime) -> bool:
        while self._acted and now - self._acted[0] >= _MINUTE:
            self._acted.popleft()
        if len(self._acted) >= self._limits.per_minute:
            return False
        self._acted.append(now)
        return True

    def _weighed(self) -> list[Rule]:
        gathered = PastCalls()
        for each in self._past:
            gathered.add(each)
        weighed = weigh_suggestions(
            gathered, lambda _server, _tool: CurrentTool(PROTOCOL), self._measure
        )
        rules = (self._rule(each) for each in weighed.suggestions)
        return [rule for rule in rules if rule is not None]

    def _rule(self, made: GrantSuggestion) -> Rule | None:
        condition = parse_or_none(made.where)
        if condition is None:
            return None
        stands_on = tuple(
            each.trace
            for each in self._past
            if (each.asker, each.server, each.tool) == (made.subject, made.server, made.tool)
            and each.became is CallOutcome.APPROVED
            and condition.covers(each.arguments)
        )
        return Rule(
            made.id[:ID_CHARACTERS],
            made.subject,
            made.server,
            made.tool,
            condition,
            stands_on,
            made.people,
        )


def operation_of(proposal: TrackedProposal) -> str:
    """The operation of a proposal, without its arguments."""
    kind = of_payload(PROPOSAL, {"method": proposal.method, "params": proposal.params})
    return f"{kind.method}:{kind.context}" if kind.context else kind.method


def arguments_of(proposal: TrackedProposal) -> Mapping[str, object] | None:
    """The arguments for a condition; None if the call has further parameters."""
    params = cast("Mapping[str, object]", proposal.params)
    if proposal.method != protocol.CALL_TOOL:
        return params
    arguments = params.get("arguments", {})
    if params.keys() - {"name", "arguments"} or not isinstance(arguments, Mapping):
        return None
    return cast("Mapping[str, object]", arguments)


log = logging.getLogger(__name__)

SHORT_ID_LENGTH: Final = 8
SHORTEST: Final = 4
MOST_AT_ONCE: Final = 16
_SHOWN: Final = 200

type AskApproval = Callable[[Rule], Awaitable[str]]
"""Asks about a suggested rule; returns its approver, or an empty text."""


class Orchestrator:
    """Fulfils proposals by `worker`, for `people`."""

    def __init__(
        self,
        me: Participant,
        worker: str,
        people: Iterable[str],
        *,
        learning: RuleLearner | None = None,
        approve: AskApproval | None = None,
    ) -> None:
        self._me = me
        self._worker = worker
        self._people = frozenset(people)
        self.learning = learning or RuleLearner(OrchestratorLimits())
        self._approve = approve
        # The stream starts here, so that no event is lost before `run`.
        self._events = me.events(Proposal, MemberFulfilment, Chat)
        self._doing: set[asyncio.Task[None]] = set()
        self._commands: dict[str, Callable[[str, str], Awaitable[None]]] = {
            "approve": self._approved,
            "decline": self._declined,
            "always": self._taught,
            "forget": self._forgot,
        }

    async def run(self) -> None:
        """Work for as long as the membership lasts."""
        try:
            async for event in self._events:
                self._hear(event)
        finally:
            self._events.close()
            for task in tuple(self._doing):
                task.cancel()

    def _hear(self, event: Proposal | MemberFulfilment | Chat | MissedEnvelopes) -> None:
        if isinstance(event, Proposal):
            self._begin(self._proposed(event))
        elif isinstance(event, MemberFulfilment):
            by = event.request.sender
            if by in self._people and event.is_first and event.is_as_proposed:
                self._begin(self._learn(event.proposal, by))
        elif isinstance(event, Chat) and event.sender in self._people:
            verb, _, rest = event.text.strip().partition(" ")
            command = self._commands.get(verb.lower())
            if command is not None and rest.strip():
                self._begin(command(rest.split()[0], event.sender))

    def _begin(self, action: Awaitable[None]) -> None:
        """Run an action in its own task, so that a slow worker delays no other action."""
        task = asyncio.ensure_future(self._contained(action))
        self._doing.add(task)
        task.add_done_callback(self._doing.discard)

    async def _contained(self, action: Awaitable[None]) -> None:
        try:
            await action
        except (Unavailable, MalformedMessage, PermissionError, TimeoutError) as problem:
            log.warning("an orchestrator could not act: %s", problem)

    async def _proposed(self, event: Proposal) -> None:
        known = self._me.proposal(event.id)
        if known is None or known.proposer == self._me.id:
            return
        worker = self._worker_of(known)
        rule = self.learning.rule_for(known, worker, datetime.now(UTC))
        if rule is None or len(self._doing) > MOST_AT_ONCE:
            id = known.id[:SHORT_ID_LENGTH]
            await self._tell(
                f"{known.proposer} proposes {_shown(known)}: say `approve {id}` or `decline {id}`"
            )
            return
        answer = await self._me.fulfil(known, to=worker)
        precedents = ", ".join(id[:SHORT_ID_LENGTH] for id in rule.precedents)
        await self._tell(
            f"{_outcome(answer)} {known.id[:SHORT_ID_LENGTH]} by rule {rule.id} (approved by "
            f"{rule.approved_by}; earlier approvals: {precedents})",
        )

    async def _approved(self, text: str, by: str) -> None:
        known = await self._meant(text, by)
        if known is None:
            return
        answer = await self._me.fulfil(known, to=self._worker_of(known))
        await self._tell(f"{_outcome(answer)} {known.id[:SHORT_ID_LENGTH]} (approved by {by})")
        await self._learn(known, by)

    async def _declined(self, text: str, by: str) -> None:
        known = await self._meant(text, by)
        if known is None:
            return
        self.learning.decided(known, self._worker_of(known), by, datetime.now(UTC), approved=False)
        await self._me.chat(f"{by} declined {known.id[:SHORT_ID_LENGTH]}", to=(known.proposer, by))

    async def _learn(self, proposal: rules.TrackedProposal, by: str) -> None:
        """Record an approval, and suggest a rule if there are enough of them."""
        rule = self.learning.decided(proposal, self._worker_of(proposal), by, datetime.now(UTC))
        if rule is None:
            return
        await self._tell(f"I could {rule.words()}; say `always {rule.id}` if I should")
        approver = "" if self._approve is None else await self._approve(rule)
        if approver:
            await self._taught(rule.id, approver)

    async def _taught(self, text: str, by: str) -> None:
        rule = self.learning.approve(text, by)
        known = "there is no such rule to approve, or it is about what you propose yourself"
        await self._tell(known if rule is None else f"rule {rule.id} is in force: {rule.words()}")

    async def _forgot(self, text: str, by: str) -> None:
        is_gone = self.learning.forget(text)
        await self._tell(f"rule {text:.40} is {'forgotten' if is_gone else 'not known'}")

    async def _meant(self, text: str, by: str) -> rules.TrackedProposal | None:
        """The open proposal whose id begins with a text; None if the speaker made it."""
        found = [each for each in self._me.proposals if each.id.startswith(text)]
        if len(text) < SHORTEST or len(found) != 1:
            await self._tell(f"{text:.40} is no open proposal, or more than one")
            return None
        if found[0].proposer == by:
            await self._tell(f"{by} cannot approve what {by} proposed")
            return None
        return found[0]

    def _worker_of(self, proposal: rules.TrackedProposal) -> str:
        return proposal.target[0] if proposal.target else self._worker

    async def _tell(self, text: str) -> None:
        """Send a chat to all members."""
        await self._me.chat(text)


def _shown(proposal: rules.TrackedProposal) -> str:
    """The operation and the arguments of a proposal, on one line of limited length."""
    arguments = arguments_of(proposal)
    said = proposal.params if arguments is None else arguments
    text = msgspec.json.encode(said).decode(errors="replace")
    return f"{operation_of(proposal)} {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}"


def _outcome(answer: Response) -> str:
    return "ran" if answer.error is None else "failed to run"
