"""How sure it is that what is kept in memory is still what the store holds.

Rule 1: it counts from the moment at which the store was asked, not from when it answered: so a
        judgement is never by something that was revoked longer ago than the age that is allowed.
Rule 2: what is not sure is not judged by; whoever asks is told to come again.
Rule 3: a process that stood still (stopped, starved, or in a machine that slept) has missed what
        was told meanwhile. It knows nothing for sure before it has asked again.
"""

import math
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Final

from comity.wire.errors import POLICY_UNKNOWN, Unavailable

AGAIN: Final = timedelta(seconds=1)
STANDSTILL_SECONDS: Final = 0.6
"""How long a process may show no sign of life before it counts as having stood still."""

type Clock = Callable[[], float]


def sleepless_clock() -> Clock:
    """One that goes on while the machine sleeps, where there is such a one."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boottime is None else partial(time.clock_gettime, boottime)


class Certainty:
    """Until when what is known can be gone by; without an age, for ever once it is known."""

    __slots__ = (
        "_age",
        "_asked",
        "_awake_until",
        "_known_until",
        "_stood_still",
        "_until",
        "clock",
    )

    def __init__(self, age: timedelta | None = None, clock: Clock | None = None) -> None:
        self.clock: Clock = sleepless_clock() if clock is None else clock
        self._age = math.inf if age is None else age.total_seconds()
        self._asked = -math.inf
        self._known_until = -math.inf
        self._awake_until = math.inf
        self._stood_still = -math.inf
        # The earlier of both, so that a call costs one comparison.
        self._until = -math.inf

    @property
    def grows_old(self) -> bool:
        return self._age < math.inf

    @property
    def holds(self) -> bool:
        return self.clock() <= self._until

    @property
    def age(self) -> float:
        """How many seconds ago the store was asked for what is known; infinite before that."""
        return self.clock() - self._asked

    def confirm(self, asked: float) -> None:
        """The store was asked at that moment, and all that it said since then is known here."""
        self._notice(self.clock())
        if asked < self._stood_still:
            return
        self._asked = asked
        self._known_until = asked + self._age
        self._until = min(self._known_until, self._awake_until)

    def stay_awake(self) -> bool:
        """A sign of life; whoever gives the first has to go on giving them.

        Whether there was none for too long, so that the store had better be asked at once.
        """
        now = self.clock()
        stood_still = self._notice(now)
        self._awake_until = now + STANDSTILL_SECONDS
        self._until = min(self._known_until, self._awake_until)
        return stood_still

    def _notice(self, now: float) -> bool:
        if now <= self._awake_until:
            return False
        self._stood_still = now
        self._known_until = self._until = -math.inf
        return True

    def demand(self) -> None:
        """Raises Unavailable where nothing can be judged just now."""
        if self.clock() > self._until:
            raise self._doubt()

    def _doubt(self) -> Unavailable:
        because = "what is allowed here is not known yet; try again in a moment"
        if self._asked > -math.inf:
            because = (
                f"what is allowed here was last known for sure {self.age:.0f} s ago, which is too "
                "long; nothing is allowed before the store answers again"
            )
        return Unavailable(because, POLICY_UNKNOWN, AGAIN)
