"""Which vectors are near: all that are seen are looked at, and nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.adapters.meanings_vectors import Vectors

SIZE = 8


def unit(seed: int) -> np.ndarray:
    row = np.random.default_rng(seed).normal(size=SIZE).astype(np.float32)
    return row / np.linalg.norm(row)


def filled(slots: set[int]) -> Vectors:
    vectors = Vectors(SIZE)
    for slot in slots:
        vectors.put(slot, unit(slot))
    return vectors


@given(
    slots=st.sets(st.integers(0, 600), max_size=40),
    hidden=st.sets(st.integers(0, 600), max_size=40),
    most=st.integers(0, 20),
    count=st.integers(1, 3),
)
def test_the_nearest_of_those_that_are_seen_are_found(
    slots: set[int], hidden: set[int], most: int, count: int
) -> None:
    vectors = filled(slots)
    sought = np.stack([unit(10_000 + each) for each in range(count)])
    seen = bytes(slot not in hidden for slot in range(601))
    cosines = {slot: max(float(unit(slot) @ each) for each in sought) for slot in slots - hidden}
    expected = sorted(cosines, key=lambda slot: (-cosines[slot], slot))[:most]
    best, also, least = vectors.near(sought, seen, most, range(601))
    assert [slot for slot, _ in best] == expected
    assert {slot for slot, near in enumerate(also) if near is not None} == cosines.keys()
    assert least == pytest.approx(min(cosines.values(), default=0.0), abs=1e-5)
    if not hidden:
        assert vectors.near(sought, None, most, ())[0] == best


def test_a_slot_that_was_dropped_is_gone_until_it_is_used_again() -> None:
    vectors = filled({0, 1, 2})
    vectors.drop(1)
    vectors.drop(5_000)
    assert len(vectors) == 2
    assert {slot for slot, _ in vectors.near(unit(1)[np.newaxis], None, 9, ())[0]} == {0, 2}
    vectors.put(1, unit(7))
    assert vectors.near(unit(7)[np.newaxis], None, 1, ())[0][0][0] == 1


def test_a_mask_that_is_older_than_the_newest_slots_shows_none_of_them() -> None:
    vectors = filled({0, 1, 400})
    best, also, _ = vectors.near(unit(400)[np.newaxis], b"\1\1", 9, (400, 9_999))
    assert {slot for slot, _ in best} == {0, 1}
    assert also == [None, None]


def test_what_is_as_near_as_another_comes_by_its_slot() -> None:
    vectors = Vectors(SIZE)
    for slot in (9, 3, 5):
        vectors.put(slot, unit(1))
    assert [slot for slot, _ in vectors.near(unit(1)[np.newaxis], None, 2, ())[0]] == [3, 5]
