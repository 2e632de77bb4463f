"""What a condition would have done to the calls of the past, had it stood then: a dry run."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from comity.rules.conditions import read_or_none
from comity.rules.precedents import Became, Precedent
from comity.wire.audit import Event, Type

MOST_LISTED: Final = 20


class Left(NamedTuple):
    """A call that the condition would not have covered, and what became of it."""

    arguments: Mapping[str, object]
    became: Became
    times: int = 1


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """How many would have gone without an ask, by what became of them; and what would not."""

    covered: Mapping[Became, int]
    left: int
    listed: tuple[Left, ...]

    def count(self, *became: Became) -> int:
        return sum(self.covered.get(each, 0) for each in became)

    @property
    def sentence(self) -> str:
        """In one line, for whoever decides."""
        told = [f"would have allowed {self.count(Became.APPROVED)}"]
        for kinds, words in _ALSO.items():
            if count := self.count(*kinds):
                told.append(f"would also have allowed {count} {words[count != 1]}")
        told.append(f"would not have covered {self.left}")
        return "; ".join(told)


NEVER_ASKED: Final = (Became.REFUSED, Became.WENT)
_ALSO: Final = {
    NEVER_ASKED: ("that was never asked", "that were never asked"),
    (Became.UNANSWERED,): ("that nobody answered", "that nobody answered"),
    (Became.DECLINED,): ("that was declined", "that were declined"),
}
_BECAME: Final[Mapping[str, Became]] = {
    Type.TOOL_BLOCKED: Became.REFUSED,
    Type.TOOL_EXECUTED: Became.WENT,
}
ENDINGS: Final = tuple(_BECAME)
"""The entries of a journal that tell how calls ended."""

_ASKED: Final = ("ask", "answered_by")
_PENDING: Final = "pending_approval"


def of_event(event: Event) -> Precedent | None:
    """A call that nobody was asked about, as the journal has it."""
    arguments, outcome = event.details.get("arguments"), event.details.get("outcome")
    became = _BECAME.get(event.type)
    is_asked = outcome == _PENDING or any(event.details.get(name) for name in _ASKED)
    if became is None or is_asked or not isinstance(arguments, Mapping):
        return None
    said = cast("Mapping[str, object]", arguments)
    whose = (event.actor, event.server, event.tool)
    return Precedent(*whose, said, became, event.at, trace=event.trace)


def rehearse(where: Mapping[str, object], past: Iterable[Precedent]) -> Rehearsal:
    """Hold a condition against calls of one tool by one party."""
    condition = read_or_none(where)
    covered: dict[Became, int] = {}
    left: list[Precedent] = []
    for each in past:
        if condition is not None and condition.covers(each.arguments):
            covered[each.became] = covered.get(each.became, 0) + 1
        else:
            left.append(each)
    return Rehearsal(covered, len(left), _listed(left))


def _listed(left: Iterable[Precedent]) -> tuple[Left, ...]:
    """Each once, however often it came; the latest first."""
    found: list[Left] = []
    for each in sorted(left, key=lambda one: one.at, reverse=True):
        for place, known in enumerate(found):
            if known.became is each.became and known.arguments == each.arguments:
                found[place] = known._replace(times=known.times + 1)
                break
        else:
            if len(found) < MOST_LISTED:
                found.append(Left(each.arguments, each.became))
    return tuple(found)
