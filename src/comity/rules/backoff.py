"""How long to wait before trying again: doubling, bounded, spread by a given chance."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    first: timedelta = timedelta(milliseconds=500)
    longest: timedelta = timedelta(seconds=30)

    def delay(self, failures: int, chance: float) -> timedelta:
        """The wait after so many failures in a row; `chance` in [0, 1) spreads a herd over it."""
        doubled = self.first * 2 ** min(max(failures - 1, 0), 30)
        return min(doubled, self.longest) * (0.5 + chance / 2)
