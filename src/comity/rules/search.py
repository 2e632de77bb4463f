"""A search for tools: what may be asked, and what several kinds of evidence make together.

Rule 1: meaning counts for more than words, each as it lies between the worst and the best of
        this search; what a server says of itself adds a little, where it says anything.
Rule 2: a tool whose very name was asked for comes first, then those whose names begin so.
Rule 3: order is by evidence within a search; a score is by evidence that other searches share:
        how much of the query was found, how near, and how far behind the best. It never rises
        further down the list.
Rule 4: ties are by key, so that the same question has the same answer.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from comity.wire.security import Risk

MOST_LETTERS: Final = 1_000
"""Of a query; what follows is not read."""

MOST_WORDS: Final = 48
MOST_FOUND: Final = 100
USUALLY_FOUND: Final = 8

WORDS_SHARE: Final = 0.3
MEANING_SHARE: Final = 0.7
"""Chosen on three of the sets of `scripts/bench search`, and tried on the others."""

SERVER_SHARE: Final = 0.2
REAL_DESCRIPTION: Final = 5
"""Words that a server has to say of itself before they count."""

EXACT_NAME: Final = 3.0
NAME_BEGINS: Final = 1.5
"""Each is more than all other evidence together."""


class Strategy(StrEnum):
    """By what tools are found. (MGP §16.4)"""

    KEYWORD = "keyword"
    SEMANTIC = "semantic"
    CATEGORY = "category"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class Query:
    """What is sought, and among which tools; an empty filter lets everything through."""

    text: str
    strategy: Strategy = Strategy.HYBRID
    most: int = USUALLY_FOUND
    categories: tuple[str, ...] = ()
    risk_level_max: Risk | None = None
    # The state of the server, as `connected`.
    status: str | None = None
    servers: tuple[str, ...] = ()


@dataclass(slots=True)
class Evidence:
    """What speaks for one tool: of its words and meaning how they compare with the best here,
    and beside it the part of the query that was found, and the cosine."""

    key: str
    words: float = 0.0
    meaning: float = 0.0
    server: float = 0.0
    name: float = 0.0
    found: float = 0.0
    near: float | None = None
    # How far it is behind the best of this search, names aside.
    behind: float = 0.0

    @property
    def told(self) -> float:
        return WORDS_SHARE * self.words + MEANING_SHARE * self.meaning + self.server

    @property
    def total(self) -> float:
        return self.told + self.name

    @property
    def parts(self) -> dict[str, float]:
        """Why it was found, for people."""
        said = {
            "words": self.words,
            "meaning": self.meaning,
            "server": self.server,
            "name": self.name,
        }
        return {part: round(value, 4) for part, value in said.items() if value}


@dataclass(frozen=True, slots=True)
class Map:
    """From evidence to how likely a tool is what was meant: a logistic curve, fitted once."""

    start: float
    found: float
    near: float
    behind: float

    def __call__(self, evidence: Evidence) -> float:
        sum_ = self.start + self.found * evidence.found + self.near * (evidence.near or 0.0)
        sum_ -= self.behind * evidence.behind
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, sum_))))


BY_WORDS: Final = Map(-2.6, 6.0, 0.0, 15.6)
BY_MEANING: Final = Map(-4.6, 0.0, 6.6, 11.8)
BY_BOTH: Final = Map(-4.3, 2.8, 5.8, 6.9)
"""Fitted on bfcl, metatool.single and seal.in, as if what is sought were there every second time;
for words alone lowered, so that what shares next to nothing counts as nothing."""


def by_share(evidence: Evidence) -> float:
    """Of what was not found by words: how well it fits."""
    return evidence.found


def ranked(evidence: Iterable[Evidence]) -> list[Evidence]:
    """The best first."""
    return sorted(evidence, key=lambda each: (-each.total, each.key))


def scored(
    evidence: Iterable[Evidence], by: Callable[[Evidence], float]
) -> Iterator[tuple[Evidence, float]]:
    """Each of what is ranked already, with its score."""
    ranking = list(evidence)
    best = max((each.told for each in ranking), default=0.0)
    least = 1.0
    for each in ranking:
        each.behind = best - each.told
        least = 1.0 if each.name >= EXACT_NAME else min(least, by(each))
        yield each, round(least, 4)


def between(value: float, least: float, most: float) -> float:
    """Where a value lies between the worst and the best: 0 to 1."""
    return min(1.0, max(0.0, (value - least) / (most - least))) if most > least else 0.0


def is_real(description: str) -> bool:
    """Whether a server says enough of itself that it can be held against a query."""
    return len(description.split(None, REAL_DESCRIPTION)) >= REAL_DESCRIPTION


def round_robin[T](lists: Sequence[Sequence[T]], most: int) -> list[T]:
    """The first of each list, then the second of each, and nothing twice."""
    found: dict[T, None] = {}
    for place in range(max(map(len, lists), default=0)):
        for each in lists:
            if place < len(each):
                found.setdefault(each[place])
    return list(found)[:most]


@dataclass(frozen=True, slots=True)
class Category:
    """One category: how many tools are in it and below it, and what is below it."""

    name: str
    count: int
    below: Mapping[str, "Category"] = field(default_factory=dict[str, "Category"])

    def told(self) -> dict[str, object]:
        """The category as clients and operators read it."""
        below = [each.told() for each in self.below.values()]
        return {"name": self.name, "tools": self.count, "categories": below}
