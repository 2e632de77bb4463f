"""What people decided about proposals, and the rules that follow once a person wants them. (§9.4)

Rule 1: a rule is suggested from equal decisions and is in force only after a person said so; the
        proposer of what it covers is not that person. (D-98, D-102)
Rule 2: it covers what was approved and nothing wider: the same proposer, the same worker, the same
        method and context, and arguments within the narrowest condition that fits them all.
Rule 3: it acts so often in a minute and no more, and always says which precedents it stands on.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, cast

from comity.rules.conditions import Condition, read_or_none
from comity.rules.kinds import of_payload
from comity.rules.patterns import covers
from comity.rules.precedents import (
    Became,
    Gathered,
    Known,
    Measure,
    Precedent,
    Suggestion,
    weigh,
)
from comity.rules.proposals import Proposal
from comity.wire import mcp
from comity.wire.envelope import PROPOSAL, PROTOCOL

MOST_PRECEDENTS: Final = 1_000
MOST_RULES: Final = 100
ID_CHARACTERS: Final = 8
SHORT: Final = Measure(decisions=3, people=1)
"""In a topic a few equal decisions of one person are enough to suggest a rule."""

_MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be done by rule at all, whatever was learnt; `*` stands for any characters."""

    methods: tuple[str, ...] = (mcp.CALL_TOOL,)
    contexts: tuple[str, ...] = ("*",)
    per_minute: int = 10


@dataclass(frozen=True, slots=True)
class Rule:
    """What is fulfilled without asking, in whose name, and on what grounds."""

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
            f"always fulfil {self.operation} {self.condition.words()} for {self.proposer} "
            f"by {self.worker}: approved {len(self.precedents)} times by "
            f"{', '.join(self.decided_by)}"
        )


class Learning:
    """The decisions of a topic, the rules suggested from them, and those in force."""

    def __init__(self, bounds: Bounds, measure: Measure = SHORT) -> None:
        self._bounds = bounds
        self._measure = measure
        self._past: deque[Precedent] = deque(maxlen=MOST_PRECEDENTS)
        self._suggested: dict[str, Rule] = {}
        self._acted: deque[datetime] = deque()
        self.rules: dict[str, Rule] = {}

    def decided(
        self, proposal: Proposal, worker: str, by: str, at: datetime, *, approved: bool = True
    ) -> Rule | None:
        """Somebody said yes or no; the rule that can be suggested now and could not before."""
        arguments = arguments_of(proposal)
        if arguments is None:
            return None
        became = Became.APPROVED if approved else Became.DECLINED
        self._past.append(
            Precedent(
                *(proposal.proposer, worker, operation_of(proposal), arguments, became, at),
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
        """Put a suggested rule in force; None where there is none, or it is not for `by` to say."""
        rule = self._suggested.get(id)
        if rule is None or by == rule.proposer or len(self.rules) >= MOST_RULES:
            return None
        del self._suggested[id]
        approved = Rule(
            *(rule.id, rule.proposer, rule.worker, rule.operation, rule.condition),
            *(rule.precedents, rule.decided_by, by),
        )
        self.rules[id] = approved
        return approved

    def forget(self, id: str) -> bool:
        """A rule is in force no more."""
        return self.rules.pop(id, None) is not None

    def rule_for(self, proposal: Proposal, worker: str, now: datetime) -> Rule | None:
        """The rule by which a proposal is fulfilled now; asking counts as acting."""
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

    def _is_within(self, proposal: Proposal) -> bool:
        kind = of_payload(PROPOSAL, {"method": proposal.method, "params": proposal.params})
        return any(covers(each, kind.method) for each in self._bounds.methods) and any(
            covers(each, kind.context) for each in self._bounds.contexts
        )

    def _has_time(self, now: datetime) -> bool:
        while self._acted and now - self._acted[0] >= _MINUTE:
            self._acted.popleft()
        if len(self._acted) >= self._bounds.per_minute:
            return False
        self._acted.append(now)
        return True

    def _weighed(self) -> list[Rule]:
        gathered = Gathered()
        for each in self._past:
            gathered.take(each)
        weighed = weigh(gathered, lambda _server, _tool: Known(PROTOCOL), self._measure)
        rules = (self._rule(each) for each in weighed.suggestions)
        return [rule for rule in rules if rule is not None]

    def _rule(self, made: Suggestion) -> Rule | None:
        condition = read_or_none(made.where)
        if condition is None:
            return None
        stands_on = tuple(
            each.trace
            for each in self._past
            if (each.asker, each.server, each.tool) == (made.subject, made.server, made.tool)
            and each.became is Became.APPROVED
            and condition.covers(each.arguments)
        )
        return Rule(
            *(made.id[:ID_CHARACTERS], made.subject, made.server, made.tool, condition),
            *(stands_on, made.people),
        )


def operation_of(proposal: Proposal) -> str:
    """What is proposed, without what it is to be done with."""
    kind = of_payload(PROPOSAL, {"method": proposal.method, "params": proposal.params})
    return f"{kind.method}:{kind.context}" if kind.context else kind.method


def arguments_of(proposal: Proposal) -> Mapping[str, object] | None:
    """What a condition is about; None where there is more than that."""
    params = cast("Mapping[str, object]", proposal.params)
    if proposal.method != mcp.CALL_TOOL:
        return params
    arguments = params.get("arguments", {})
    if params.keys() - {"name", "arguments"} or not isinstance(arguments, Mapping):
        return None
    return cast("Mapping[str, object]", arguments)
