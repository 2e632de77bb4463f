"""What a bound in seconds means on this machine now, and how long a test may be in CI."""

import os
import time
from typing import Final

_STEPS: Final = 200_000
_USUAL: Final = 0.01
"""Seconds a core that is not shared needs for them."""


def at_length[T](whole: T, short: T) -> T:
    """The whole of a test, or in CI its short form; `COMITY_WHOLE=1` plays the whole there too."""
    is_short = os.environ.get("CI") == "true" and os.environ.get("COMITY_WHOLE") != "1"
    return short if is_short else whole


def here(seconds: float) -> float:
    """So many seconds of an unshared core's work, in those of the core that runs this."""
    return seconds * max(1.0, _worked() / _USUAL)


def _worked() -> float:
    """The longest of three tries: what slows a test may have passed when it is asked about."""
    longest = 0.0
    for _ in range(3):
        before = time.thread_time()
        total = 0
        for step in range(_STEPS):
            total += step & 7
        longest = max(longest, time.thread_time() - before)
    return longest
