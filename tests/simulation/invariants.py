"""What must be true after every run, however it went."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from comity.approvals.model import ApprovalRequest, ApprovalState
from comity.audit.chain import GENESIS, OUTCOMES, AuditRecord, entry_hash
from comity.audit.events import AuditEvent, AuditResult, AuditType, event_of
from comity.toolkit.text import object_members
from tests.simulation.clients import Observations
from tests.simulation.upstream import Effect

REVOCATION_SECONDS: Final = 1.0
_RECORDED_TOOLS: Final = ("write", "wipe")
"""The tools whose intents are durable before they are sent."""


@dataclass
class Evidence:
    """Everything that is known after a run: what was stored, sent, done and told."""

    records: Sequence[AuditRecord]
    approvals: Mapping[str, ApprovalRequest]
    committed: Mapping[tuple[str, int], bytes]
    sends: Sequence["Send"]
    effects: Sequence[Effect]
    seen: Observations
    unrest: Sequence[str]
    events: list[AuditEvent] = field(default_factory=list[AuditEvent])
    intents: dict[str, str] = field(default_factory=dict[str, str])
    ends: dict[str, list[AuditEvent]] = field(
        default_factory=lambda: defaultdict[str, list[AuditEvent]](list)
    )

    def __post_init__(self) -> None:
        self.events = [event_of(record.body) for record in self.records]
        for event in self.events:
            if event.type == AuditType.CALL_INTENDED:
                self.intents[event.call] = call_name(event)
            elif event.type in OUTCOMES and event.call:
                self.ends[event.call].append(event)


@dataclass(frozen=True)
class Send:
    """A call as a node sent it: whether its intent was durable, and the newest lease then."""

    effect: Effect
    was_intended: bool
    newest_token: int


@dataclass(frozen=True)
class Violation:
    """An invariant that a run broke, with the first cases."""

    invariant: str
    cases: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.invariant}: {', '.join(self.cases)}"


def find_violations(evidence: Evidence) -> list[Violation]:
    """Return the invariants that this run broke."""
    violations: list[Violation] = []
    for invariant in INVARIANTS:
        cases = sorted(set(invariant(evidence)))
        if cases:
            violations.append(Violation(invariant.__name__, tuple(cases[:5])))
    return violations


def call_name(event: AuditEvent) -> str:
    """Return the tool and the argument of a call: the clients give each call its own argument."""
    return f"{event.tool} {object_members(event.details.get('arguments')).get('n', '')}"


def _recorded(effects: Iterable[Effect]) -> Iterator[Effect]:
    return (effect for effect in effects if effect.tool in _RECORDED_TOOLS)


def at_most_one_effect(evidence: Evidence) -> Iterator[str]:
    """A payment that is made twice is worse than one that is refused."""
    counts = Counter(f"{each.tool} {each.argument}" for each in _recorded(evidence.effects))
    return (name for name, count in counts.items() if count > 1)


def no_effect_without_intent(evidence: Evidence) -> Iterator[str]:
    """After a crash, the log is all that says what may have happened."""
    return (
        f"{send.effect.tool} {send.effect.argument}"
        for send in evidence.sends
        if send.effect.tool in _RECORDED_TOOLS and not send.was_intended
    )


def every_answer_has_an_outcome(evidence: Evidence) -> Iterator[str]:
    """Whoever got an answer can show it in the log, also after a crash a moment later."""
    succeeded = {
        evidence.intents[call]
        for call, ends in evidence.ends.items()
        if call in evidence.intents and any(end.result == AuditResult.SUCCESS for end in ends)
    }
    answered = {f"{tool} {n}" for tool, n in evidence.seen.answered if tool in _RECORDED_TOOLS}
    return iter(answered - succeeded)


def every_answer_has_an_effect(evidence: Evidence) -> Iterator[str]:
    """An answer that nobody gave is a lie."""
    ran = {(each.tool, each.argument) for each in evidence.effects}
    return (f"{tool} {n}" for tool, n in evidence.seen.answered - ran)


def every_intent_ends_once(evidence: Evidence) -> Iterator[str]:
    """An intent without an end is a call that nobody can account for, and two ends contradict."""
    for call, name in evidence.intents.items():
        ends = evidence.ends.get(call, [])
        if len(ends) != 1:
            yield f"{name} ({', '.join(end.type for end in ends) or 'no end'})"


def what_is_said_not_to_have_run_did_not(evidence: Evidence) -> Iterator[str]:
    """An operator repeats by hand what the log calls blocked."""
    ran = {f"{each.tool} {each.argument}" for each in evidence.effects}
    certain = defaultdict[str, list[bool]](list)
    for call, name in evidence.intents.items():
        for end in evidence.ends.get(call, ()):
            blocked = end.type == AuditType.TOOL_BLOCKED
            certain[name].append(blocked and end.details.get("outcome_known") is not False)
    return (name for name, blocked in certain.items() if all(blocked) and name in ran)


def no_committed_entry_is_lost(evidence: Evidence) -> Iterator[str]:
    """What the store has confirmed stays, with the same hash."""
    kept = {(record.node, record.seq): record.hash for record in evidence.records}
    return (
        f"{node} {seq}"
        for (node, seq), digest in evidence.committed.items()
        if kept.get((node, seq)) != digest
    )


def the_chain_verifies(evidence: Evidence) -> Iterator[str]:
    """Computed here anew: the product's own verification could share its mistake."""
    last: dict[str, tuple[int, bytes]] = {}
    for record in evidence.records:
        seq, previous = last.get(record.node, (0, GENESIS))
        hashed = entry_hash(previous, record.node.encode(), seq + 1, record.body)
        if record.seq != seq + 1 or record.hash != hashed:
            yield f"{record.node} {record.seq}"
        last[record.node] = record.seq, record.hash


def no_answer_of_a_person_is_lost(evidence: Evidence) -> Iterator[str]:
    """A person who was told "approved" or "declined" does not look again."""
    for id, verdicts in evidence.seen.verdicts.items():
        request = evidence.approvals.get(id)
        kept = Counter(str(each.verdict) for each in request.answers) if request else Counter[str]()
        if request is None or any(not kept[verdict] for verdict in verdicts):
            yield f"{id} {verdicts}, kept {dict(kept)}"


def an_approval_is_used_at_most_once(evidence: Evidence) -> Iterator[str]:
    """Each execution of a tool that needs approval has an approval of its own."""
    used = Counter[str]()
    for request in evidence.approvals.values():
        if request.state is ApprovalState.CONSUMED:
            used[_approved_argument(request)] += 1
    ran = Counter(each.argument for each in evidence.effects if each.tool == "wipe")
    return (
        f"wipe {name} ran {n}, approved {used[name]}" for name, n in ran.items() if n > used[name]
    )


def an_approval_is_used_by_what_was_approved(evidence: Evidence) -> Iterator[str]:
    """A yes to one thing is no yes to another."""
    for request in evidence.approvals.values():
        if request.state is not ApprovalState.CONSUMED or request.call not in evidence.intents:
            continue
        name = f"wipe {_approved_argument(request)}"
        if evidence.intents[request.call] != name:
            yield f"{name} was used by {evidence.intents[request.call]}"


def nothing_declined_runs(evidence: Evidence) -> Iterator[str]:
    """A person who was told that their no counts must be able to rely on it."""
    ran = {each.argument for each in evidence.effects if each.tool == "wipe"}
    approved = {
        _approved_argument(each)
        for each in evidence.approvals.values()
        if each.state is ApprovalState.CONSUMED
    }
    for request in evidence.approvals.values():
        argument = _approved_argument(request)
        if request.state is ApprovalState.DENIED and argument in ran and argument not in approved:
            yield f"wipe {argument}"


def nothing_runs_after_a_revocation(evidence: Evidence) -> Iterator[str]:
    """The promise is a second, on every node, or the node refuses."""
    for send in evidence.sends:
        name = f"{send.effect.tool} {send.effect.argument}"
        agent = evidence.seen.caller_of.get(name)
        for revoked, since, until in evidence.seen.revocations:
            if agent == revoked and since + REVOCATION_SECONDS < send.effect.sent_at < until:
                yield f"{name} {send.effect.sent_at - since:.2f} s later"


def lease_tokens_grow(evidence: Evidence) -> Iterator[str]:
    """Two nodes that run the same server at once are what the lease is there to prevent."""
    for send in evidence.sends:
        if 0 < send.effect.lease_token < send.newest_token:
            name = f"{send.effect.tool} {send.effect.argument}"
            yield f"{name} with lease {send.effect.lease_token} of {send.newest_token}"


def all_is_quiet_after_the_faults(evidence: Evidence) -> Iterator[str]:
    """A cluster that survived must serve again, and must not hold on to anything."""
    return iter(evidence.unrest)


def _approved_argument(request: ApprovalRequest) -> str:
    return str(object_members(request.about.get("arguments")).get("n", ""))


INVARIANTS: Final[Sequence[Callable[[Evidence], Iterator[str]]]] = (
    at_most_one_effect,
    no_effect_without_intent,
    every_answer_has_an_outcome,
    every_answer_has_an_effect,
    every_intent_ends_once,
    what_is_said_not_to_have_run_did_not,
    no_committed_entry_is_lost,
    the_chain_verifies,
    no_answer_of_a_person_is_lost,
    an_approval_is_used_at_most_once,
    an_approval_is_used_by_what_was_approved,
    nothing_declined_runs,
    nothing_runs_after_a_revocation,
    lease_tokens_grow,
    all_is_quiet_after_the_faults,
)
