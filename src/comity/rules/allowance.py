"""How much a server may say that nobody asked for, before it is listened to more slowly.

A store that fills again with time. What turns out to belong to a call is given back, so that no
answer is ever held up for its size; what belongs to none costs its bytes and a fee, because small
messages are the dear ones.
"""

from typing import Final

BURST: Final = 8 * 1024 * 1024
EACH_SECOND: Final = 4 * 1024 * 1024
FEE: Final = 1024
"""So some 4,000 notices a second can be heard for ever, and 8,000 at once."""

SHORTEST_REST: Final = 0.05


class Allowance:
    """What is left for one stream of one server. The clock is only looked at when nothing is."""

    __slots__ = ("_burst", "_each_second", "_filled_at", "_left")

    def __init__(self, burst: int = BURST, each_second: int = EACH_SECOND) -> None:
        self._burst = self._left = burst
        self._each_second = each_second
        self._filled_at: float | None = None

    def spend(self, amount: int) -> None:
        self._left -= amount

    def spend_on_noise(self, size: int) -> None:
        """A message that belongs to nobody's call."""
        self._left -= size + FEE

    def give_back(self, amount: int) -> None:
        self._left = min(self._left + amount, self._burst)

    @property
    def is_spent(self) -> bool:
        return self._left < 0

    def rest(self, now: float) -> float:
        """How many seconds to read no more; zero if the time that has passed is enough."""
        if self._filled_at is None:
            # Nobody looked at the clock before: the store was full then.
            self._filled_at = now
        earned = int((now - self._filled_at) * self._each_second)
        self._filled_at = now
        self._left = min(self._left + earned, self._burst)
        if self._left >= 0:
            return 0.0
        return max(-self._left / self._each_second, SHORTEST_REST)
