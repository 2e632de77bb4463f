"""The time and the randomness of a simulated world, in place of those of the machine.

It must be installed before Comity is imported, because default arguments hold the functions of
the module `time`. A process that has it serves no other purpose: `tests/simulation/run.py` starts
one of its own.
"""

import ctypes
import gc
import os
import random
import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from random import Random
from typing import Any, Final

from tests.simulation.replacing import replace_member

MONOTONIC_START: Final = 10_000.0
WALL_START: Final = 1_795_000_000.0
"""A moment in November 2026, so that no certificate or date of the tests is near."""


class VirtualClock:
    """Moves when the loop has nothing left to do at a moment. The wall clock can also jump."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.wall_offset = 0.0

    def monotonic(self) -> float:
        return MONOTONIC_START + self.elapsed

    def wall(self) -> float:
        return WALL_START + self.elapsed + self.wall_offset

    def jump(self, by: timedelta) -> None:
        self.wall_offset += by.total_seconds()


CLOCK: Final = VirtualClock()
_RANDOM: Final = Random(0)  # noqa: S311  # a world must be the same each time


def install() -> None:
    """Replace the clocks and the randomness of this process."""
    replacements: dict[str, Callable[..., object]] = {
        "monotonic": CLOCK.monotonic,
        "monotonic_ns": lambda: int(CLOCK.monotonic() * 1e9),
        "perf_counter": CLOCK.monotonic,
        "perf_counter_ns": lambda: int(CLOCK.monotonic() * 1e9),
        "time": CLOCK.wall,
        "time_ns": lambda: int(CLOCK.wall() * 1e9),
        "clock_gettime": _clock_gettime,
    }
    for name, function in replacements.items():
        setattr(time, name, function)
    _set_method(datetime, "now", staticmethod(_now))
    replace_member(os, "urandom", _RANDOM.randbytes)
    # The generator of the module `secrets` reads this name; `uuid` reads the one above.
    replace_member(random, "_urandom", _RANDOM.randbytes)


def restart(seed: int) -> None:
    """Begin the time and the randomness of one seed."""
    CLOCK.elapsed = CLOCK.wall_offset = 0.0
    _RANDOM.seed(f"machine {seed}")
    random.seed(f"global {seed}")


def _clock_gettime(clock: int) -> float:
    return CLOCK.wall() if clock == time.CLOCK_REALTIME else CLOCK.monotonic()


def _now(tz: tzinfo | None = None) -> datetime:
    return datetime.fromtimestamp(CLOCK.wall(), tz)


def _set_method(owner: type, name: str, method: object) -> None:
    """Set a method of a type that is written in C. Its namespace refuses an assignment."""
    namespace: Any = next(each for each in gc.get_referents(owner.__dict__) if name in each)
    namespace[name] = method
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
