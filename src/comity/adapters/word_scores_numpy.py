"""The tools that fit a query's words best, by numpy: the same sums as `rules/search_scores`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from comity.rules.search_index import Posting
from comity.rules.search_scores import InSight, Scored, Sought, in_order, weights_of

type Slots = NDArray[np.uint32]
type Impacts = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Met(InSight):
    """A word's slots that are seen. Where nothing is hidden these are its own bytes, on loan."""

    slots: Slots
    impacts: Impacts


@dataclass(frozen=True, slots=True)
class _Summed:
    best: list[tuple[int, float]]
    weights: list[float]
    sums: NDArray[np.float64]

    def at(self, slots: Iterable[int]) -> list[float]:
        size = len(self.sums)
        return [float(self.sums[slot]) if slot < size else 0.0 for slot in slots]


class NumpyScoring:
    """As `PlainScoring`, which is the measure of this. What it looks at is not kept: a posting
    cannot grow while its bytes are on loan."""

    def look(self, posting: Posting, seen: bytes | None) -> Met:
        if not len(posting):
            return Met(posting, seen, 0, np.empty(0, np.uint32), np.empty(0, np.uint16))
        slots = np.frombuffer(posting.slots, dtype=np.uint32)
        impacts = np.frombuffer(posting.impacts, dtype=np.uint16)
        if seen is not None:
            kept = np.flatnonzero(np.frombuffer(seen, dtype=np.bool_).take(slots))
            slots, impacts = slots.take(kept), impacts.take(kept)
        return Met(posting, seen, len(slots), slots, impacts)

    def score(self, sought: Sequence[Sought[Met]], among: int, most: int) -> Scored:
        weights = weights_of(sought, among)
        postings = [each.word.slots for each in sought]
        size = max((int(slots[-1]) + 1 for slots in postings if len(slots)), default=0)
        sums = np.zeros(size)
        for at in in_order(weights, sought):
            word = sought[at].word
            sums[word.slots] += weights[at] * word.impacts
        return _Summed(_best(sums, postings, most), weights, sums)


def _best(
    sums: NDArray[np.float64], postings: Sequence[Slots], most: int
) -> list[tuple[int, float]]:
    """The best so many, with all that are as good as the last of them."""
    # The tools of one word say how good one has to be at least; few are left to compare then.
    enough = min((slots for slots in postings if len(slots) >= most), key=len, default=None)
    slots = np.flatnonzero(sums if enough is None else sums >= _last(sums[enough], most))
    totals = sums[slots]
    if len(totals) > most:
        kept = totals >= _last(totals, most)
        slots, totals = slots[kept], totals[kept]
    return list(zip(slots.tolist(), totals.tolist(), strict=True))


def _last(totals: NDArray[np.float64], most: int) -> float:
    """The least of the best so many."""
    place = len(totals) - most
    return float(np.partition(totals, place)[place])
