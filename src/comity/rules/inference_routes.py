"""Which model is asked: by server and feature set, by length, by conversation. (MCPL §11.5)

Rule 1: the route that says most wins: a conversation, then the feature set (exactly, else the
        longest family), then the server, then the greatest length.
Rule 2: a model that cannot read all of it is passed over where another route leads to one that can.
Rule 3: a hint decides only between routes that say equally much; it never leads beyond them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from comity.rules.live_policy import covers

_EXACT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Route:
    """What is asked of whom; what is empty is any."""

    model: str
    server: str = ""
    feature: str = ""
    conversation: str = ""
    at_least_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Sought:
    """What a model is wanted for, and about how long it is with what it may say."""

    server: str = ""
    feature: str = ""
    conversation: str = ""
    tokens: int = 0
    hint: str = ""


class Choice(NamedTuple):
    model: str
    because: str


def choices(
    routes: Sequence[Route], default: str, sought: Sought, windows: Mapping[str, int]
) -> list[Choice]:
    """Models in the order in which they fit; `windows` says how much each can read."""
    fitting = [each for each in routes if _fits(each, sought) and each.model in windows]
    # Where two say equally much, the hint and then the one that was written first decide.
    fitting.sort(key=lambda each: (_weight(each), each.model == sought.hint), reverse=True)
    found = [Choice(each.model, _because(each, sought)) for each in fitting]
    if default in windows:
        found.append(Choice(default, "default"))
    found.sort(key=lambda each: windows[each.model] < sought.tokens)
    return each_once(found)


def each_once(found: Iterable[Choice]) -> list[Choice]:
    """Each model where it comes first."""
    first: dict[str, Choice] = {}
    for each in found:
        first.setdefault(each.model, each)
    return list(first.values())


def _fits(route: Route, sought: Sought) -> bool:
    if route.conversation and route.conversation != sought.conversation:
        return False
    if route.server and route.server != sought.server:
        return False
    if route.feature and not covers(route.feature, sought.feature):
        return False
    return route.at_least_tokens <= sought.tokens


def _weight(route: Route) -> tuple[bool, int, bool, int]:
    named = len(route.feature)
    if route.feature and not route.feature.endswith("*"):
        named = _EXACT
    return bool(route.conversation), named, bool(route.server), route.at_least_tokens


def _because(route: Route, sought: Sought) -> str:
    said = {
        "conversation": route.conversation,
        "server": route.server,
        "feature": route.feature,
        "at_least_tokens": str(route.at_least_tokens or ""),
    }
    parts = [f"{name} {value}" for name, value in said.items() if value]
    if sought.hint == route.model:
        parts.append("hint")
    return "route: " + (", ".join(parts) or "any")
