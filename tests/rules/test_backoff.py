"""The wait before another try: doubling, bounded, and spread."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.backoff import Backoff

BACKOFF = Backoff(first=timedelta(seconds=1), longest=timedelta(seconds=10))


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (5000, 10)]
)
def test_the_wait_doubles_up_to_the_longest(failures: int, seconds: float) -> None:
    assert BACKOFF.delay(failures, 1.0) == timedelta(seconds=seconds)


@given(st.integers(-5, 10**6), st.floats(0, 1, exclude_max=True))
def test_chance_takes_away_at_most_half_of_the_wait(failures: int, chance: float) -> None:
    whole = BACKOFF.delay(failures, 1.0)
    assert whole / 2 <= BACKOFF.delay(failures, chance) <= whole
