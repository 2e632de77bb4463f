"""Masks of what is seen."""

from hypothesis import given
from hypothesis import strategies as st

from comity.rules import search_masks

MASKS = st.lists(st.integers(0, 1), max_size=40).map(bytes)


@given(MASKS, MASKS)
def test_in_both_is_what_is_in_each(one: bytes, other: bytes) -> None:
    size = max(len(one), len(other))
    found = search_masks.both(one, other)
    padded = zip(one.ljust(size, b"\0"), other.ljust(size, b"\0"), strict=True)
    assert list(found) == [a & b for a, b in padded]
    assert search_masks.count(found) == sum(found)


def test_slots_beyond_the_end_are_not_there() -> None:
    assert search_masks.of_slots(3, [0, 2, 7]) == b"\1\0\1"


def test_levels_up_to_one_are_seen() -> None:
    assert search_masks.up_to(bytes([0, 1, 2]), 1) == b"\1\1\0"
