"""How much of one thing each principal holds at once, so that none holds the share of others.

A count is one entry of a dictionary, and one of zero is forgotten. Everybody at a gateway in local
mode is one principal: only the totals bound it.
"""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from comity.rules.refusals import Refusal
from comity.wire.errors import EXHAUSTED, Unavailable
from comity.wire.parties import LOCAL, NOBODY

AGAIN_AFTER: Final = timedelta(seconds=1)
_UNBOUNDED: Final = frozenset({LOCAL.party, NOBODY.party})


class Shares:
    """The counts of one thing: its name in the plural, and the setting that bounds it."""

    __slots__ = ("_held", "each", "setting", "what")

    def __init__(self, what: str, setting: str, each: int) -> None:
        self.what = what
        self.setting = setting
        self.each = each
        self._held: dict[str, int] = {}

    @property
    def holders(self) -> int:
        """How many principals hold any."""
        return len(self._held)

    def of(self, principal: str) -> int:
        return self._held.get(principal, 0)

    def take(self, principal: str, amount: int = 1) -> bool:
        """Count so many more; False, and nothing is counted, where that is beyond the share."""
        if self.is_full(principal, amount):
            return False
        self._held[principal] = self._held.get(principal, 0) + amount
        return True

    def is_full(self, principal: str, amount: int = 1) -> bool:
        """Whether so many more are too many; never so where everybody is one principal."""
        held = self._held.get(principal, 0)
        return held + amount > self.each and principal not in _UNBOUNDED

    def give(self, principal: str, amount: int = 1) -> None:
        """Count so many less; only for what was taken."""
        held = self._held.get(principal, 0) - amount
        if held > 0:
            self._held[principal] = held
        else:
            self._held.pop(principal, None)

    @contextmanager
    def held(self, principal: str) -> Generator[None]:
        """One more for as long as it lasts; raises Unavailable where that is too many."""
        if not self.take(principal):
            raise self.problem()
        try:
            yield
        finally:
            self.give(principal)

    def problem(self) -> Unavailable:
        return Unavailable(self._because, EXHAUSTED, AGAIN_AFTER)

    def refusal(self) -> Refusal:
        """The same, as it is told of a call."""
        details: dict[str, object] = {"limit": self.each}
        return Refusal(EXHAUSTED, self._because, AGAIN_AFTER, details=details)

    @property
    def _because(self) -> str:
        more = f", or ask the operator for a larger {self.setting} in [limits]"
        end = "end one of them and try again"
        return f"you have {self.each} {self.what} already; {end}{more if self.setting else ''}"
