"""When people have said yes to the same so often that it can be granted, and in which words.

Rule 1: only decisions on the definition as it is now count, and none that somebody made for itself.
Rule 2: a single no to the same tool with arguments of the same names, whoever asked, and nothing is
        suggested while it is in the window.
Rule 3: never for what cannot be undone or bears secrets, nor where an operator always wants to be
        asked. That is looked at again at every call that a standing answer would let go.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, cast

import msgspec

from comity.rules import generalising
from comity.rules.asks import Happened, happened
from comity.rules.conditions import read
from comity.rules.examined import Examined
from comity.rules.names import public_name
from comity.rules.permissions import risk_of
from comity.wire.asks import Ask, Kind, Verdict
from comity.wire.security import Risk

HIDDEN: Final = b"[secret:"
"""How what redaction puts in the place of a secret begins."""

_NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_DIFFER: Final = "the arguments differ in more than a path, a host or a few values"
_DAY: Final = timedelta(days=1)


class Became(StrEnum):
    """What became of a call that people could have been asked about."""

    APPROVED = "approved"
    DECLINED = "declined"
    UNANSWERED = "unanswered"
    REFUSED = "refused"
    WENT = "went unasked"


@dataclass(frozen=True, slots=True)
class Precedent:
    """One call of the past. `arguments` are what was kept of them; `by` are those who decided."""

    asker: str
    server: str
    tool: str
    arguments: Mapping[str, object]
    became: Became
    at: datetime
    definition: str = ""
    by: tuple[str, ...] = ()
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Measure:
    """How much has to be there: so many decisions, by so many people or over so long a time."""

    decisions: int = 10
    people: int = 2
    span: timedelta = timedelta(days=3)
    window: timedelta = timedelta(days=30)


class Known(NamedTuple):
    """A tool as it is now: the digest of its definition, and why nothing is ever granted of it."""

    definition: str
    never: str | None = None


type KnownTools = Callable[[str, str], Known | None]
type _Group = tuple[str, str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A grant that could be given.

    `topic` is the same however much evidence there is for it; what people decide about it is in the
    journal under that trace.
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


class HeldBack(NamedTuple):
    """What was approved often enough, and is not suggested all the same."""

    subject: str
    server: str
    tool: str
    decisions: int
    why: str


class Weighed(NamedTuple):
    """What follows from all that was decided."""

    suggestions: tuple[Suggestion, ...]
    held_back: tuple[HeldBack, ...]


def why_never(
    risk: Risk, seen: Examined, needs: Iterable[str], *, always_asked: bool
) -> str | None:
    """Why no answer to one call of a tool may ever stand for others; None where it may."""
    label, hints = seen.label, seen.hints
    if always_asked or (label is not None and label.confirmation):
        return "each of its calls has to be confirmed"
    dangerous = sorted(name for name in needs if risk_of(name) is Risk.DANGEROUS)
    if dangerous:
        return f"it needs {dangerous[0]:.80}"
    if label is not None and label.reversible is False:
        return "what it does cannot be undone"
    is_mild = hints.reads_only is True or hints.destroys is False
    is_undone = label is not None and label.reversible is True
    if risk is Risk.DANGEROUS and not (is_mild or is_undone):
        # MCP takes a tool for destructive that does not say otherwise.
        return "it counts as dangerous, and may destroy something"
    return None


def of_ask(ask: Ask) -> Precedent | None:
    """What an ask says as a precedent; None where it is not about a call, or not yet over."""
    arguments = ask.about.get("arguments")
    if ask.kind is not Kind.CONFIRM or not isinstance(arguments, Mapping):
        return None
    came = happened(ask.answers, ask.quorum)
    if came is Happened.ACCEPTED:
        became, verdict = Became.APPROVED, Verdict.ACCEPT
    elif came in (Happened.DECLINED, Happened.CANCELLED):
        became, verdict = Became.DECLINED, None
    elif not ask.is_open:
        became, verdict = Became.UNANSWERED, None
    else:
        return None
    said = [each for each in ask.answers if verdict in (None, each.verdict)]
    return Precedent(
        ask.asker,
        ask.server,
        ask.tool,
        cast("Mapping[str, object]", arguments),
        became,
        said[-1].at if said else ask.created_at,
        str(ask.about.get("definition", "")),
        tuple(dict.fromkeys(each.by for each in said)),
        ask.trace,
    )


def weigh(past: "Gathered", tools: KnownTools, measure: Measure) -> Weighed:
    """What can be suggested, and what cannot though it was approved as often."""
    found: list[Suggestion] = []
    held: list[HeldBack] = []
    for group, approved in past.groups.items():
        asker, server, tool, _ = group
        known = tools(server, tool) or Known("")
        now = [each for each in approved if each.definition == known.definition != ""]
        if not _is_enough(now, measure):
            continue
        why = known.never or past.why_not(group)
        seen = [each.arguments for each in now]
        where = None if why else generalising.generalise(seen, known.definition)
        if where is None:
            held.append(HeldBack(asker, server, tool, len(now), why or _DIFFER))
        else:
            found.append(_suggestion(group, where, now))
    found.sort(key=lambda each: (-each.decisions, each.id))
    return Weighed(tuple(found), tuple(held))


class Gathered:
    """The calls of the past: what was approved, each with its likes, and what speaks against.

    `is_settled` is whether nobody would be asked about such a call any more.
    """

    def __init__(self, is_settled: Callable[[Precedent], bool] = lambda _: False) -> None:
        self.groups: dict[_Group, list[Precedent]] = {}
        self.calls: dict[tuple[str, str, str], list[Precedent]] = {}
        self._is_settled = is_settled
        self._declined: set[tuple[str, str, tuple[str, ...]]] = set()
        self._secretive: set[tuple[str, str]] = set()

    def take(self, one: Precedent) -> None:
        self.calls.setdefault((one.asker, one.server, one.tool), []).append(one)
        shape = generalising.shape(one.arguments)
        if bears_secrets(one.arguments):
            self._secretive.add((one.server, one.tool))
        if shape is None:
            return
        if one.became is Became.DECLINED:
            self._declined.add((one.server, one.tool, shape))
            return
        is_other = one.became is Became.APPROVED and one.asker not in one.by
        if is_other and not self._is_settled(one):
            self.groups.setdefault((one.asker, one.server, one.tool, shape), []).append(one)

    def why_not(self, group: _Group) -> str | None:
        _, server, tool, shape = group
        if (server, tool) in self._secretive:
            return "its arguments bear secrets"
        is_declined = (server, tool, shape) in self._declined
        return "a person has said no to such a call as well" if is_declined else None


def _is_enough(approved: Sequence[Precedent], measure: Measure) -> bool:
    if len(approved) < max(measure.decisions, 1):
        return False
    times = [each.at for each in approved]
    people = {person for each in approved for person in each.by}
    return len(people) >= measure.people or max(times) - min(times) >= measure.span


def bears_secrets(arguments: Mapping[str, object]) -> bool:
    """Whether redaction has hidden something in them."""
    return HIDDEN in msgspec.json.encode(arguments)


def _suggestion(
    group: _Group, where: Mapping[str, object], approved: Sequence[Precedent]
) -> Suggestion:
    asker, server, tool, shape = group
    people = tuple(sorted({person for each in approved for person in each.by}))
    first, last = min(each.at for each in approved), max(each.at for each in approved)
    count = len(approved)
    named, covered = public_name(server, tool), read(where).words()
    by = _people(len(people))
    words = (
        f"always allow `{named}` {covered} for {asker}: {count} of {count} approved by {by} "
        f"{_span(last - first)}"
    )
    return Suggestion(
        _digest(asker, server, tool, where)[:16],
        _digest(asker, server, tool, shape),
        *(asker, server, tool, where, count, people, first, last, words),
    )


def _people(count: int) -> str:
    told = _NUMBERS[count] if count < len(_NUMBERS) else str(count)
    return f"{told} {'person' if count == 1 else 'people'}"


def _span(length: timedelta) -> str:
    days = -(-length // _DAY)
    return "within a day" if days <= 1 else f"in {days} days"


def _digest(*said: object) -> str:
    return hashlib.sha256(msgspec.json.encode(said, order="deterministic")).hexdigest()[:32]
