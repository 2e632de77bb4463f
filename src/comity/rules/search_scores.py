"""The tools that fit a query's words best, of those that are seen, by plain Python. (BM25F)

Rule 1: how rare a word is, is counted among the tools that are seen: what is hidden changes
        nothing, so nothing can be learnt of it.
Rule 2: the rarest word comes first. Once the rest cannot lift a new tool among the best, only what
        was met already is looked at: the result is the same, and no long posting is read.
Rule 3: every score is the same sum in the same order, here and in an accelerated twin.
"""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final, Protocol

from comity.rules.search_index import Posting
from comity.rules.search_words import MOST_IMPACT

GUESSED: Final = (0.8, 0.6, 0.4)
"""What a word counts that was only guessed, by how many letters it is off."""


_ROUNDING: Final = 1e-3
"""More than sums of this size can be off by."""


@dataclass(frozen=True, slots=True)
class InSight:
    """A word as somebody meets it: in how many of the tools that are seen it stands."""

    posting: Posting
    seen: bytes | None
    count: int


@dataclass(frozen=True, slots=True)
class Sought[Met: InSight]:
    """One word of a query, and what it counts."""

    word: Met
    factor: float = 1.0


class Scored(Protocol):
    """What became of a search for words."""

    @property
    def best(self) -> Sequence[tuple[int, float]]:
        """Slot and score, in no order: the best so many, and all that are as good as the last."""
        ...

    @property
    def weights(self) -> Sequence[float]:
        """What each word weighs by how rare it is, in the order in which they were given."""
        ...

    def at(self, slots: Iterable[int]) -> list[float]:
        """The scores of some slots."""
        ...


class Scoring[Met: InSight](Protocol):
    """Who adds up what words weigh; every one comes to the same sums."""

    def look(self, posting: Posting, seen: bytes | None) -> Met:
        """A word among the slots that are seen; None sees all."""
        ...

    def score(self, sought: Sequence[Sought[Met]], among: int, most: int) -> Scored:
        """The best so many, among that many tools that are seen."""
        ...


def rarity(count: int, among: int) -> float:
    """BM25's inverse document frequency, which is never below nothing."""
    return math.log(1 + (among - count + 0.5) / (count + 0.5))


def weights_of(sought: Sequence[Sought[Any]], among: int) -> list[float]:
    return [each.factor * rarity(each.word.count, among) for each in sought]


def in_order(weights: Sequence[float], sought: Sequence[Sought[Any]]) -> list[int]:
    """The places of words, the weightiest first: in this order they are added up everywhere."""
    return sorted(range(len(sought)), key=lambda at: (-weights[at], sought[at].word.posting.word))


@dataclass(frozen=True, slots=True)
class _Plain:
    best: list[tuple[int, float]]
    weights: list[float]
    words: list[tuple[float, Posting]]

    def at(self, slots: Iterable[int]) -> list[float]:
        return [sum_at(self.words, slot) for slot in slots]


def sum_at(words: Iterable[tuple[float, Posting]], slot: int) -> float:
    total = 0.0
    for weight, posting in words:
        total += weight * posting.at(slot)
    return total


class PlainScoring:
    """The sums in plain Python."""

    def look(self, posting: Posting, seen: bytes | None) -> InSight:
        count = len(posting) if seen is None else sum(map(seen.__getitem__, posting.slots))
        return InSight(posting, seen, count)

    def score(self, sought: Sequence[Sought[InSight]], among: int, most: int) -> Scored:
        weights = weights_of(sought, among)
        order = in_order(weights, sought)
        words = [(weights[at], sought[at].word.posting) for at in order]
        rest = sum(weight * posting.most for weight, posting in words)
        sums: dict[int, float] = {}
        for at, (weight, posting) in zip(order, words, strict=True):
            bar = _bar(sums, most)
            if bar is not None and bar > rest + _ROUNDING:
                _add_to_met(sums, weight, posting)
            else:
                _add(sums, weight, sought[at].word)
            rest -= weight * posting.most
        bar = _bar(sums, most) or 0.0
        best = [(slot, total) for slot, total in sums.items() if total >= bar]
        return _Plain(best, weights, words)


def _bar(sums: dict[int, float], most: int) -> float | None:
    """The score of the last of the best; None while there are too few."""
    return heapq.nlargest(most, sums.values())[-1] if len(sums) >= most > 0 else None


def _add(sums: dict[int, float], weight: float, word: InSight) -> None:
    slots, impacts = word.posting.slots, word.posting.impacts
    pairs = zip(slots, impacts, strict=True)
    if word.seen is not None:
        pairs = compress(pairs, map(word.seen.__getitem__, slots))
    for slot, impact in pairs:
        sums[slot] = sums.get(slot, 0.0) + weight * impact


def _add_to_met(sums: dict[int, float], weight: float, posting: Posting) -> None:
    if len(sums) * 8 > len(posting):
        for slot, impact in zip(posting.slots, posting.impacts, strict=True):
            if slot in sums:
                sums[slot] += weight * impact
        return
    for slot in sums:
        sums[slot] += weight * posting.at(slot)


def ideal(weights: Iterable[float]) -> float:
    """The score of a tool in which every word of a query stands where it weighs most."""
    return sum(weights) * MOST_IMPACT
