"""Scores tools by the words of a query with numpy: the same sums as in `catalog/search/ranking`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from comity.catalog.search.index import PostingList
from comity.catalog.search.ranking import (
    QueryTerm,
    TermScores,
    TermStats,
    heaviest_first,
    term_weights,
)

type Slots = NDArray[np.uint32]
type Impacts = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class NumpyTermStats(TermStats):
    """The visible slots of a word.

    If no slot is hidden, the arrays share memory with the posting list.
    """

    slots: Slots
    impacts: Impacts


@dataclass(frozen=True, slots=True)
class _NumpyTermScores:
    best: list[tuple[int, float]]
    weights: list[float]
    sums: NDArray[np.float64]

    def scores_at(self, slots: Iterable[int]) -> list[float]:
        size = len(self.sums)
        return [float(self.sums[slot]) if slot < size else 0.0 for slot in slots]


class NumpyScorer:
    """Computes the same scores as `PythonScorer`, which is the reference.

    The results of `restrict` must not be kept: a posting list cannot grow while an array shares its
    memory.
    """

    def restrict(self, posting: PostingList, mask: bytes | None) -> NumpyTermStats:
        if not len(posting):
            return NumpyTermStats(posting, mask, 0, np.empty(0, np.uint32), np.empty(0, np.uint16))
        slots = np.frombuffer(posting.slots, dtype=np.uint32)
        impacts = np.frombuffer(posting.impacts, dtype=np.uint16)
        if mask is not None:
            kept = np.flatnonzero(np.frombuffer(mask, dtype=np.bool_).take(slots))
            slots, impacts = slots.take(kept), impacts.take(kept)
        return NumpyTermStats(posting, mask, len(slots), slots, impacts)

    def score(
        self, terms: Sequence[QueryTerm[NumpyTermStats]], visible_count: int, limit: int
    ) -> TermScores:
        weights = term_weights(terms, visible_count)
        postings = [each.word.slots for each in terms]
        size = max((int(slots[-1]) + 1 for slots in postings if len(slots)), default=0)
        sums = np.zeros(size)
        for at in heaviest_first(weights, terms):
            word = terms[at].word
            sums[word.slots] += weights[at] * word.impacts
        return _NumpyTermScores(_best_slots(sums, postings, limit), weights, sums)


def _best_slots(
    sums: NDArray[np.float64], postings: Sequence[Slots], most: int
) -> list[tuple[int, float]]:
    """Return the `most` best slots, with all that score as high as the last of them."""
    # One word's tools already give a lower bound, which leaves few slots to compare.
    enough = min((slots for slots in postings if len(slots) >= most), key=len, default=None)
    slots = np.flatnonzero(
        sums if enough is None else sums >= _lowest_best_total(sums[enough], most)
    )
    totals = sums[slots]
    if len(totals) > most:
        kept = totals >= _lowest_best_total(totals, most)
        slots, totals = slots[kept], totals[kept]
    return list(zip(slots.tolist(), totals.tolist(), strict=True))


def _lowest_best_total(totals: NDArray[np.float64], most: int) -> float:
    """Return the lowest of the `most` highest totals."""
    place = len(totals) - most
    return float(np.partition(totals, place)[place])
