"""The short form of a soak of a day: eighty seconds, or as long as `COMITY_SOAK` says (10m)."""

import os
from pathlib import Path

import pytest

from tests.interop.soak import seconds_of, soak, summary
from tests.support.figures import Tell

SECONDS = seconds_of(os.environ.get("COMITY_SOAK", "45s"))
MOST_BYTES = (256 if SECONDS >= 600 else 768) * 1024
"""Memory is taken in pieces, so a short soak sees steps; a long one must be flat."""
MOST_OBJECTS = 25 if SECONDS >= 600 else 250
"""A short soak still fills its caches; an object lost with each call would be thousands."""

pytestmark = pytest.mark.timeout(SECONDS * 3 + 300)


async def test_nothing_grows_and_no_answer_is_wrong_whatever_befalls_the_servers(
    tmp_path: Path, tell: Tell
) -> None:
    soaked = await soak(tmp_path, SECONDS, tell)
    tell(summary(soaked))
    assert soaked.tally.wrong == []
    assert soaked.tally.answered > 100
    assert all(soaked.faults.values())
    assert len(soaked.faults) == 7, "a short soak meets every kind of fault too"
    later = soaked.later
    assert later[-1].processes == later[0].processes
    assert soaked.object_growth < MOST_OBJECTS
    assert soaked.memory_growth < MOST_BYTES
    # Connections to servers come and go; what is never closed only grows.
    half = len(later) // 2
    assert min(one.files for one in later[half:]) <= max(one.files for one in later[:half])
