"""Vectors by slot as one matrix, and which of them are near: every one is looked at, none guessed.

Rule 1: what is not seen is neither found nor counted, nor does it move what is farthest.
Rule 2: few that are seen cost little: only their rows are read.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

type Array = np.ndarray[Any, Any]
type Found = tuple[list[tuple[int, float]], list[float | None], float]

MOST_SLOTS: Final = 250_000
"""Beyond, tools are found by their words alone: the matrix would take more than 400 MB."""

_FIRST: Final = 256
# Rows by number are read at a quarter of the speed of rows in order.
_SPARSE: Final = 4


class Vectors:
    """Changed by one thread; others may search meanwhile."""

    def __init__(self, size: int) -> None:
        self._rows: Array = np.zeros((_FIRST, size), np.float32)
        self._has: Array = np.zeros(_FIRST, np.uint8)
        # Slots that were ever used: the first so many.
        self._used = 0

    def __len__(self) -> int:
        return int(np.count_nonzero(self._has))

    @property
    def reach(self) -> int:
        """How many rows a search may have to read."""
        return self._used

    def put(self, slot: int, vector: Array) -> None:
        if slot >= len(self._has):
            self._grow(slot + 1)
        self._rows[slot] = vector
        self._has[slot] = 1
        self._used = max(self._used, slot + 1)

    def drop(self, slot: int) -> None:
        if slot < len(self._has):
            self._has[slot] = 0

    def _grow(self, least: int) -> None:
        """New arrays, because somebody may be reading the old ones."""
        capacity = min(max(least, len(self._has) * 3 // 2), MOST_SLOTS)
        rows: Array = np.zeros((capacity, self._rows.shape[1]), np.float32)
        has: Array = np.zeros(capacity, np.uint8)
        rows[: self._used] = self._rows[: self._used]
        has[: self._used] = self._has[: self._used]
        self._rows, self._has = rows, has

    def near(self, sought: Array, seen: bytes | None, most: int, also: Sequence[int]) -> Found:
        """The nearest to any of the vectors in `sought`; then of some slots; then the farthest."""
        rows, mask = self._rows, self._mask(seen)
        there = np.flatnonzero(mask)
        if not len(there):
            return [], [None] * len(also), 0.0
        if len(there) * _SPARSE < len(mask):
            cosines = _nearest(rows[there], sought)
        else:
            cosines = _nearest(rows[: len(mask)], sought)
            cosines = cosines if len(there) == len(mask) else cosines[there]
        return (
            _best(there, cosines, most),
            _of_some(
                rows, [slot if slot < len(mask) and mask[slot] else -1 for slot in also], sought
            ),
            float(cosines.min()),
        )

    def _mask(self, seen: bytes | None) -> Array:
        has = self._has[: self._used]
        if seen is None:
            return has
        shown: Array = np.frombuffer(seen, np.uint8)[: len(has)]
        return has[: len(shown)] & (shown != 0)


def _nearest(rows: Array, sought: Array) -> Array:
    if len(sought) == 1:
        return rows @ sought[0]
    return (rows @ sought.T).max(axis=1)


def _of_some(rows: Array, slots: Sequence[int], sought: Array) -> list[float | None]:
    """Of each of these slots, in one go; -1 is none."""
    known = [slot for slot in slots if slot >= 0]
    cosines = iter(_nearest(rows[known], sought).tolist() if known else ())
    return [next(cosines) if slot >= 0 else None for slot in slots]


def _best(slots: Array, cosines: Array, most: int) -> list[tuple[int, float]]:
    if most <= 0:
        return []
    if most < len(slots):
        first = np.argpartition(cosines, -most)[-most:]
        # All that are as near as the last of them, so that ties are by slot and not by chance.
        first = np.flatnonzero(cosines >= cosines[first].min())
        slots, cosines = slots[first], cosines[first]
    order = np.lexsort((slots, -cosines))[:most]
    return [(int(slots[at]), float(cosines[at])) for at in order]
