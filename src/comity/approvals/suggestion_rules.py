"""Rules that derive a suggested grant from past approvals, with a dry run."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, cast

import msgspec

from comity.approvals.model import (
    ApprovalDecision,
    ApprovalEvent,
    ApprovalKind,
    ApprovalRequest,
    event_of_answers,
)
from comity.audit.events import AuditEvent, AuditType
from comity.errors import MalformedMessage
from comity.mcp.protocol import public_name
from comity.policy.conditions import (
    canonical_condition,
    flatten_arguments,
    host_of,
    is_same_json,
    is_too_wide,
    parse_condition,
    parse_or_none,
)
from comity.policy.grants import TOPIC_SERVER
from comity.validation import network, paths
from comity.validation.arguments import ArgumentKind, argument_kind_of

MAX_CHOICES: Final = 5
MAX_VALUE_LENGTH: Final = 1_000
_MIN_OCCURRENCES: Final = 2
_FORBIDDEN_TREES: Final = (
    "/etc",
    "/root",
    "/proc",
    "/sys",
    "/dev",
    "/boot",
    "/run",
    "/private/etc",
)
_PATH_KINDS: Final = (ArgumentKind.PATH, ArgumentKind.UNKNOWN)
_URL_KINDS: Final = (ArgumentKind.URL, ArgumentKind.UNKNOWN)

type Written = dict[str, object]


def infer_condition(calls: Sequence[Mapping[str, object]], definition: str = "") -> Written | None:
    """Return a condition that covers these calls, or None. All have the same argument names."""
    found = [flatten_arguments(each) for each in calls]
    first = found[0] if found else None
    if first is None:
        return None
    tests: Written = {}
    for pointer in sorted(first):
        values = [each[pointer] for each in found if each is not None and pointer in each]
        test = (
            _infer_test(pointer.rpartition("/")[2], values) if len(values) == len(calls) else None
        )
        if test is None:
            return None
        tests[pointer] = test
    where: Written = {"paths": tests, "only": sorted(calls[0])}
    if definition:
        where["definition"] = definition
    condition = parse_or_none(where)
    covers_all = condition is not None and all(map(condition.covers, calls))
    return where if covers_all else None


def argument_shape(arguments: Mapping[str, object]) -> tuple[str, ...] | None:
    """Return the paths of all values in the arguments, or None if there are too many."""
    found = flatten_arguments(arguments)
    return None if found is None else tuple(sorted(found))


def common_tree(texts: Sequence[str]) -> str | None:
    """Return the deepest directory tree that contains all paths, if a grant may cover it."""
    if any(paths.path_problem(each) is not None for each in texts):
        return None
    split = [paths.collapse_slashes(each).split("/") for each in texts]
    common: list[str] = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        common.append(parts[0])
    tree = "/".join(common)
    folded = tree.casefold()
    is_kept = any(folded == each or folded.startswith(f"{each}/") for each in _FORBIDDEN_TREES)
    is_hidden = any(part.startswith(".") for part in common)
    return None if not tree or is_kept or is_hidden or is_too_wide(tree) else tree


def _infer_test(name: str, values: Sequence[object]) -> Written | None:
    distinct: list[object] = []
    for value in values:
        if not any(is_same_json(value, each) for each in distinct):
            distinct.append(value)
        if len(distinct) > MAX_CHOICES:
            break
    if any(_is_long(each) for each in distinct):
        return None
    if len(distinct) == 1:
        return {"is": distinct[0]}
    is_few = len(distinct) <= MAX_CHOICES
    # Values that all occur twice are a closed set of choices. Other values suggest more to come.
    settled = is_few and all(
        sum(is_same_json(v, d) for v in values) >= _MIN_OCCURRENCES for d in distinct
    )
    few: Written | None = {"in": distinct} if is_few else None
    return (few if settled else None) or _infer_wider_test(name, values) or few


def _infer_wider_test(name: str, values: Sequence[object]) -> Written | None:
    texts = [each for each in values if isinstance(each, str)]
    if len(texts) != len(values):
        return None
    meaning = argument_kind_of("", name, {})
    tree = common_tree(texts) if meaning in _PATH_KINDS else None
    if tree is not None:
        return {"under": tree}
    return _infer_host(texts) if meaning in _URL_KINDS else None


def _infer_host(texts: Sequence[str]) -> Written | None:
    hosts = {host_of(each) for each in texts}
    place = hosts.pop() if len(hosts) == 1 else None
    # A host that is not a public name may be another machine tomorrow.
    if place is None or network.host_problem(place[1])[0] is not None:
        return None
    scheme, host = place
    return {"host": host} if scheme == "https" else {"host": host, "scheme": scheme}


def _is_long(value: object) -> bool:
    try:
        return len(canonical_condition({"value": value})) > MAX_VALUE_LENGTH
    except MalformedMessage:
        return True


REDACTION_MARK: Final = b"[secret:"
"""The beginning of the text that replaces a redacted secret."""

_NUMBER_WORDS: Final = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
)
_TOO_DIFFERENT_TEXT: Final = "the arguments differ in more than a path, a host or a few values"
_DAY: Final = timedelta(days=1)


class CallOutcome(StrEnum):
    """The outcome of a call that could have needed an approval."""

    APPROVED = "approved"
    DECLINED = "declined"
    UNANSWERED = "unanswered"
    REFUSED = "refused"
    WENT = "went unasked"


@dataclass(frozen=True, slots=True)
class PastCall:
    """One past call. `arguments` are the recorded arguments, and `by` holds the approvers."""

    asker: str
    server: str
    tool: str
    arguments: Mapping[str, object]
    became: CallOutcome
    at: datetime
    definition: str = ""
    by: tuple[str, ...] = ()
    trace: str = ""


@dataclass(frozen=True, slots=True)
class SuggestionThreshold:
    """The required evidence: a number of decisions, and enough people or a long enough time."""

    decisions: int = 10
    people: int = 2
    span: timedelta = timedelta(days=3)
    window: timedelta = timedelta(days=30)


class CurrentTool(NamedTuple):
    """The current tool: the digest of its definition, and why it may never have a grant."""

    definition: str
    never: str | None = None


type KnownTools = Callable[[str, str], CurrentTool | None]
type _Group = tuple[str, str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class GrantSuggestion:
    """A grant that an operator could create.

    `topic` does not depend on the amount of evidence. The audit log records decisions about the
    suggestion under that trace.
    """

    id: str
    topic: str
    subject: str
    server: str
    tool: str
    where: Mapping[str, object]
    decisions: int
    people: tuple[str, ...]
    first: datetime
    last: datetime
    words: str


class WithheldSuggestion(NamedTuple):
    """A call that was approved often enough, and the reason why Comity suggests no grant."""

    subject: str
    server: str
    tool: str
    decisions: int
    why: str


class SuggestionResult(NamedTuple):
    """The suggestions and the withheld suggestions that follow from all decisions."""

    suggestions: tuple[GrantSuggestion, ...]
    withheld: tuple[WithheldSuggestion, ...]


def past_call_of_request(request: ApprovalRequest) -> PastCall | None:
    """Return the past call of an approval request.

    Returns None if the request is not about a call, or is still open.
    """
    arguments = request.about.get("arguments")
    if request.kind is not ApprovalKind.CONFIRM or not isinstance(arguments, Mapping):
        return None
    came = event_of_answers(request.answers, request.quorum)
    if came is ApprovalEvent.APPROVED:
        became, verdict = CallOutcome.APPROVED, ApprovalDecision.ACCEPT
    elif came in (ApprovalEvent.DENIED, ApprovalEvent.CANCELLED):
        became, verdict = CallOutcome.DECLINED, None
    elif not request.is_open:
        became, verdict = CallOutcome.UNANSWERED, None
    else:
        return None
    said = [each for each in request.answers if verdict in (None, each.verdict)]
    return PastCall(
        request.asker,
        request.server,
        request.tool,
        cast("Mapping[str, object]", arguments),
        became,
        said[-1].at if said else request.created_at,
        str(request.about.get("definition", "")),
        tuple(dict.fromkeys(each.by for each in said)),
        request.trace,
    )


def weigh_suggestions(
    past_calls: "PastCalls", tools: KnownTools, threshold: SuggestionThreshold
) -> SuggestionResult:
    """Return the suggestions, and those withheld although they have enough approvals."""
    found: list[GrantSuggestion] = []
    held: list[WithheldSuggestion] = []
    for group, approved in past_calls.groups.items():
        asker, server, tool, _ = group
        known = tools(server, tool) or CurrentTool("")
        now = [each for each in approved if each.definition == known.definition != ""]
        if not _is_enough(now, threshold):
            continue
        why = known.never or past_calls.refusal_reason(group)
        seen = [each.arguments for each in now]
        where = None if why else infer_condition(seen, known.definition)
        if where is None:
            held.append(
                WithheldSuggestion(asker, server, tool, len(now), why or _TOO_DIFFERENT_TEXT)
            )
        else:
            found.append(_make_suggestion(group, where, now))
    found.sort(key=lambda each: (-each.decisions, each.id))
    return SuggestionResult(tuple(found), tuple(held))


class PastCalls:
    """The past calls: approved calls in groups of the same shape, and evidence against a grant.

    `is_settled` returns whether such a call no longer needs an approval.
    """

    def __init__(self, is_settled: Callable[[PastCall], bool] = lambda _: False) -> None:
        self.groups: dict[_Group, list[PastCall]] = {}
        self.calls: dict[tuple[str, str, str], list[PastCall]] = {}
        self._is_settled = is_settled
        self._declined: set[tuple[str, str, tuple[str, ...]]] = set()
        self._tools_with_secrets: set[tuple[str, str]] = set()

    def add(self, call: PastCall) -> None:
        self.calls.setdefault((call.asker, call.server, call.tool), []).append(call)
        shape = argument_shape(call.arguments)
        if has_secrets(call.arguments):
            self._tools_with_secrets.add((call.server, call.tool))
        if shape is None:
            return
        if call.became is CallOutcome.DECLINED:
            self._declined.add((call.server, call.tool, shape))
            return
        is_other = call.became is CallOutcome.APPROVED and call.asker not in call.by
        if is_other and not self._is_settled(call):
            self.groups.setdefault((call.asker, call.server, call.tool, shape), []).append(call)

    def refusal_reason(self, group: _Group) -> str | None:
        _, server, tool, shape = group
        if (server, tool) in self._tools_with_secrets:
            return "its arguments bear secrets"
        is_declined = (server, tool, shape) in self._declined
        return "a person denied such a call, too" if is_declined else None


def _is_enough(approved: Sequence[PastCall], threshold: SuggestionThreshold) -> bool:
    if len(approved) < max(threshold.decisions, 1):
        return False
    times = [each.at for each in approved]
    people = {person for each in approved for person in each.by}
    return len(people) >= threshold.people or max(times) - min(times) >= threshold.span


def has_secrets(arguments: Mapping[str, object]) -> bool:
    """Return whether redaction replaced a secret in the arguments."""
    return REDACTION_MARK in msgspec.json.encode(arguments)


def _make_suggestion(
    group: _Group, where: Mapping[str, object], approved: Sequence[PastCall]
) -> GrantSuggestion:
    asker, server, tool, shape = group
    people = tuple(sorted({person for each in approved for person in each.by}))
    first, last = min(each.at for each in approved), max(each.at for each in approved)
    count = len(approved)
    is_of_member = server.startswith(TOPIC_SERVER)
    named = f"{tool} in {server}" if is_of_member else public_name(server, tool)
    covered = parse_condition(where).describe()
    by = _people_text(len(people))
    words = (
        f"always allow `{named}` {covered} for {asker}: {count} of {count} approved by {by} "
        f"{_span_text(last - first)}"
    )
    return GrantSuggestion(
        _digest(asker, server, tool, where)[:16],
        _digest(asker, server, tool, shape),
        asker,
        server,
        tool,
        where,
        count,
        people,
        first,
        last,
        words,
    )


def _people_text(count: int) -> str:
    told = _NUMBER_WORDS[count] if count < len(_NUMBER_WORDS) else str(count)
    return f"{told} {'person' if count == 1 else 'people'}"


def _span_text(length: timedelta) -> str:
    days = -(-length // _DAY)
    return "within a day" if days <= 1 else f"in {days} days"


def _digest(*said: object) -> str:
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:32]


MAX_LISTED_CALLS: Final = 20


class UncoveredCall(NamedTuple):
    """A past call that the condition does not cover, and its outcome."""

    arguments: Mapping[str, object]
    became: CallOutcome
    times: int = 1


@dataclass(frozen=True, slots=True)
class DryRun:
    """The number of past calls that the condition covers, by outcome, and the calls it does not."""

    covered: Mapping[CallOutcome, int]
    left: int
    listed: tuple[UncoveredCall, ...]

    def count(self, *became: CallOutcome) -> int:
        return sum(self.covered.get(each, 0) for each in became)

    @property
    def sentence(self) -> str:
        """Return the result in one line, for the person who decides."""
        told = [f"would have allowed {self.count(CallOutcome.APPROVED)}"]
        for kinds, words in _TEXT_BY_OUTCOMES.items():
            if count := self.count(*kinds):
                told.append(f"would also have allowed {count} {words[count != 1]}")
        told.append(f"would not have covered {self.left}")
        return "; ".join(told)


UNASKED_OUTCOMES: Final = (CallOutcome.REFUSED, CallOutcome.WENT)
_TEXT_BY_OUTCOMES: Final = {
    UNASKED_OUTCOMES: ("that was never asked", "that were never asked"),
    (CallOutcome.UNANSWERED,): ("without an answer", "without an answer"),
    (CallOutcome.DECLINED,): ("that was declined", "that were declined"),
}
_OUTCOME_BY_EVENT: Final[Mapping[str, CallOutcome]] = {
    AuditType.TOOL_BLOCKED: CallOutcome.REFUSED,
    AuditType.TOOL_EXECUTED: CallOutcome.WENT,
}
END_EVENTS: Final = tuple(_OUTCOME_BY_EVENT)
"""The audit event types that record how a call ended."""

_APPROVAL_DETAILS: Final = ("approval", "answered_by")
_PENDING_OUTCOME: Final = "pending_approval"


def past_call_of_event(event: AuditEvent) -> PastCall | None:
    """Return the past call of an audit event, for a call without an approval request."""
    arguments, outcome = event.details.get("arguments"), event.details.get("outcome")
    became = _OUTCOME_BY_EVENT.get(event.type)
    is_asked = outcome == _PENDING_OUTCOME or any(
        event.details.get(name) for name in _APPROVAL_DETAILS
    )
    if became is None or is_asked or not isinstance(arguments, Mapping):
        return None
    said = cast("Mapping[str, object]", arguments)
    whose = (event.actor, event.server, event.tool)
    return PastCall(*whose, said, became, event.at, trace=event.trace)


def dry_run_condition(where: Mapping[str, object], past: Iterable[PastCall]) -> DryRun:
    """Test a condition against the past calls of one tool by one principal."""
    condition = parse_or_none(where)
    covered: dict[CallOutcome, int] = {}
    left: list[PastCall] = []
    for each in past:
        if condition is not None and condition.covers(each.arguments):
            covered[each.became] = covered.get(each.became, 0) + 1
        else:
            left.append(each)
    return DryRun(covered, len(left), _distinct_calls(left))


def _distinct_calls(left: Iterable[PastCall]) -> tuple[UncoveredCall, ...]:
    """Return each distinct call once, the latest first."""
    found: list[UncoveredCall] = []
    for each in sorted(left, key=lambda one: one.at, reverse=True):
        for place, known in enumerate(found):
            if known.became is each.became and known.arguments == each.arguments:
                found[place] = known._replace(times=known.times + 1)
                break
        else:
            if len(found) < MAX_LISTED_CALLS:
                found.append(UncoveredCall(each.arguments, each.became))
    return tuple(found)
