"""Scores of search results, the evidence behind them, and the reference scorer."""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import compress
from typing import Any, Final, Protocol, TypedDict

from comity.catalog.search.index import PostingList
from comity.catalog.search.words import MAX_IMPACT
from comity.policy.risk import Risk

MAX_QUERY_LETTERS: Final = 1_000
"""Characters of a query that are read."""

MAX_QUERY_WORDS: Final = 48
MAX_RESULTS: Final = 100
DEFAULT_RESULTS: Final = 8

WORDS_WEIGHT: Final = 0.3
MEANING_WEIGHT: Final = 0.7
"""Chosen on three of the sets of `scripts/bench search`, and tested on the others."""

SERVER_WEIGHT: Final = 0.2
MIN_DESCRIPTION_WORDS: Final = 5
"""The number of words a server description needs before it counts."""

EXACT_NAME_SCORE: Final = 3.0
NAME_PREFIX_SCORE: Final = 1.5
"""Each exceeds the sum of all other evidence."""


class SearchStrategy(StrEnum):
    """The ways to search for tools. (MGP §16.4)"""

    KEYWORD = "keyword"
    SEMANTIC = "semantic"
    CATEGORY = "category"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """The text of a search and its filters; an empty filter matches every tool."""

    text: str
    strategy: SearchStrategy = SearchStrategy.HYBRID
    most: int = DEFAULT_RESULTS
    categories: tuple[str, ...] = ()
    risk_level_max: Risk | None = None
    # The state of the server, such as `connected`.
    status: str | None = None
    servers: tuple[str, ...] = ()


@dataclass(slots=True)
class Evidence:
    """The evidence for one tool.

    `words` and `meaning` compare the tool with the best one of this search. `found` is the matched
    share of the query, and `near` is the cosine.
    """

    key: str
    words: float = 0.0
    meaning: float = 0.0
    server: float = 0.0
    name: float = 0.0
    found: float = 0.0
    near: float | None = None
    # The distance to the best tool of this search, without the evidence of names.
    behind: float = 0.0

    @property
    def told(self) -> float:
        return WORDS_WEIGHT * self.words + MEANING_WEIGHT * self.meaning + self.server

    @property
    def total(self) -> float:
        return self.told + self.name

    @property
    def parts(self) -> dict[str, float]:
        """The parts of the score, as people read them."""
        said = {
            "words": self.words,
            "meaning": self.meaning,
            "server": self.server,
            "name": self.name,
        }
        return {part: round(value, 4) for part, value in said.items() if value}


@dataclass(frozen=True, slots=True)
class ScoreCalibration:
    """Maps evidence to the likelihood that a tool was meant, by a fitted logistic curve."""

    start: float
    found: float
    near: float
    behind: float

    def __call__(self, evidence: Evidence) -> float:
        sum_ = self.start + self.found * evidence.found + self.near * (evidence.near or 0.0)
        sum_ -= self.behind * evidence.behind
        return 1 / (1 + math.exp(-max(-30.0, min(30.0, sum_))))


WORDS_CALIBRATION: Final = ScoreCalibration(-2.6, 6.0, 0.0, 15.6)
MEANING_CALIBRATION: Final = ScoreCalibration(-4.6, 0.0, 6.6, 11.8)
HYBRID_CALIBRATION: Final = ScoreCalibration(-4.3, 2.8, 5.8, 6.9)
"""Fitted on bfcl, metatool.single and seal.in.

The fit assumes that the wanted tool exists in every second search. The curve for words alone is
lowered, so that tools with almost no match score near 0.
"""


def score_by_share(evidence: Evidence) -> float:
    """Return the share of the query that matched, for tools not found by words."""
    return evidence.found


def rank_evidence(evidence: Iterable[Evidence]) -> list[Evidence]:
    """Return the evidence sorted, best first."""
    return sorted(evidence, key=lambda each: (-each.total, each.key))


def score_evidence(
    evidence: Iterable[Evidence], by: Callable[[Evidence], float]
) -> Iterator[tuple[Evidence, float]]:
    """Yield each ranked tool with its score; scores never rise, except for exact names."""
    ranking = list(evidence)
    best = max((each.told for each in ranking), default=0.0)
    least = 1.0
    for each in ranking:
        each.behind = best - each.told
        least = 1.0 if each.name >= EXACT_NAME_SCORE else min(least, by(each))
        yield each, round(least, 4)


def scale_value(value: float, least: float, most: float) -> float:
    """Return the position of a value between the least and the most: 0 to 1."""
    return min(1.0, max(0.0, (value - least) / (most - least))) if most > least else 0.0


def is_real_description(description: str) -> bool:
    """Return whether a server description is long enough to compare with a query."""
    return len(description.split(None, MIN_DESCRIPTION_WORDS)) >= MIN_DESCRIPTION_WORDS


def round_robin[T](lists: Sequence[Sequence[T]], most: int) -> list[T]:
    """Return the first of each list, then the second of each, without duplicates."""
    found: dict[T, None] = {}
    for place in range(max(map(len, lists), default=0)):
        for each in lists:
            if place < len(each):
                found.setdefault(each[place])
    return list(found)[:most]


class CategoryView(TypedDict):
    """A category in the form of the API."""

    name: str
    tools: int
    categories: "list[CategoryView]"


@dataclass(frozen=True, slots=True)
class Category:
    """A category, its number of tools with those of its subcategories, and the subcategories."""

    name: str
    count: int
    below: Mapping[str, "Category"] = field(default_factory=dict[str, "Category"])

    def to_json(self) -> CategoryView:
        """Return the category in the form of the API."""
        below = [each.to_json() for each in self.below.values()]
        return {"name": self.name, "tools": self.count, "categories": below}


GUESS_FACTORS: Final = (0.8, 0.6, 0.4)
"""The weight of a similar word that replaces an unknown one, by edit distance."""


_ROUNDING_TOLERANCE: Final = 1e-3
"""Larger than the rounding error of sums of this size."""


@dataclass(frozen=True, slots=True)
class TermStats:
    """A word and the number of visible tools that contain it."""

    posting: PostingList
    seen: bytes | None
    count: int


@dataclass(frozen=True, slots=True)
class QueryTerm[Met: TermStats]:
    """One word of a query and its weight."""

    word: Met
    factor: float = 1.0


class TermScores(Protocol):
    """The result of scoring by words."""

    @property
    def best(self) -> Sequence[tuple[int, float]]:
        """Slots and scores in no order: the best ones, with all that equal the last of them."""
        ...

    @property
    def weights(self) -> Sequence[float]:
        """The weight of each word by its rarity, in the given order."""
        ...

    def scores_at(self, slots: Iterable[int]) -> list[float]:
        """Return the scores of these slots."""
        ...


class TermScorer[Met: TermStats](Protocol):
    """Adds up the weights of words; every implementation gives the same sums."""

    def restrict(self, posting: PostingList, mask: bytes | None) -> Met:
        """Return a word restricted to the visible slots; None means that all are visible."""
        ...

    def score(self, terms: Sequence[QueryTerm[Met]], visible_count: int, limit: int) -> TermScores:
        """Return the `limit` best tools among `visible_count` visible ones."""
        ...


def inverse_document_frequency(count: int, visible_count: int) -> float:
    """Return BM25's inverse document frequency, which is never negative."""
    return math.log(1 + (visible_count - count + 0.5) / (count + 0.5))


def term_weights(terms: Sequence[QueryTerm[Any]], visible_count: int) -> list[float]:
    return [
        each.factor * inverse_document_frequency(each.word.count, visible_count) for each in terms
    ]


def heaviest_first(weights: Sequence[float], terms: Sequence[QueryTerm[Any]]) -> list[int]:
    """Return the positions of words, heaviest first.

    Every scorer adds in this order, so that rounding gives the same sums.
    """
    return sorted(range(len(terms)), key=lambda at: (-weights[at], terms[at].word.posting.word))


@dataclass(frozen=True, slots=True)
class _PythonTermScores:
    best: list[tuple[int, float]]
    weights: list[float]
    words: list[tuple[float, PostingList]]

    def scores_at(self, slots: Iterable[int]) -> list[float]:
        return [sum_at(self.words, slot) for slot in slots]


def sum_at(words: Iterable[tuple[float, PostingList]], slot: int) -> float:
    total = 0.0
    for weight, posting in words:
        total += weight * posting.impact_at(slot)
    return total


class PythonScorer:
    """The scorer in plain Python, and the reference for other scorers."""

    def restrict(self, posting: PostingList, mask: bytes | None) -> TermStats:
        count = len(posting) if mask is None else sum(map(mask.__getitem__, posting.slots))
        return TermStats(posting, mask, count)

    def score(
        self, terms: Sequence[QueryTerm[TermStats]], visible_count: int, limit: int
    ) -> TermScores:
        weights = term_weights(terms, visible_count)
        order = heaviest_first(weights, terms)
        words = [(weights[at], terms[at].word.posting) for at in order]
        rest = sum(weight * posting.max_impact for weight, posting in words)
        sums: dict[int, float] = {}
        for at, (weight, posting) in zip(order, words, strict=True):
            bar = _lowest_best_score(sums, limit)
            # The remaining words cannot lift a new tool above the bar, so only known ones are
            # updated.
            if bar is not None and bar > rest + _ROUNDING_TOLERANCE:
                _add_to_known(sums, weight, posting)
            else:
                _add(sums, weight, terms[at].word)
            rest -= weight * posting.max_impact
        bar = _lowest_best_score(sums, limit) or 0.0
        best = [(slot, total) for slot, total in sums.items() if total >= bar]
        return _PythonTermScores(best, weights, words)


def _lowest_best_score(sums: dict[int, float], most: int) -> float | None:
    """Return the score of the last of the best; None while there are too few."""
    return heapq.nlargest(most, sums.values())[-1] if len(sums) >= most > 0 else None


def _add(sums: dict[int, float], weight: float, word: TermStats) -> None:
    slots, impacts = word.posting.slots, word.posting.impacts
    pairs = zip(slots, impacts, strict=True)
    if word.seen is not None:
        pairs = compress(pairs, map(word.seen.__getitem__, slots))
    for slot, impact in pairs:
        sums[slot] = sums.get(slot, 0.0) + weight * impact


def _add_to_known(sums: dict[int, float], weight: float, posting: PostingList) -> None:
    if len(sums) * 8 > len(posting):
        for slot, impact in zip(posting.slots, posting.impacts, strict=True):
            if slot in sums:
                sums[slot] += weight * impact
        return
    for slot in sums:
        sums[slot] += weight * posting.impact_at(slot)


def ideal_score(weights: Iterable[float]) -> float:
    """Return the score of a tool that has every word of a query with the greatest impact."""
    return sum(weights) * MAX_IMPACT
