"""Credentials that were shown in vain, counted by address, so that nobody tries many quickly.

Rule 1: an address from which too many were wrong is heard again after a while.
Rule 2: who has shown good ones before is heard all the same: behind a proxy everybody has one
        address, and a stranger there must not lock the others out.
"""

import ipaddress
import math
import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Final

from comity.rules.rates import Rate
from comity.wire.errors import RATE_LIMITED, Unavailable

RATE: Final = Rate(count=30, period=60.0, burst=30)
MOST_ADDRESSES: Final = 50_000
MOST_PROVED: Final = 50_000


class Guesses:
    """Who has failed how often of late, and who never need fear that."""

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        rate: Rate = RATE,
        most: int = MOST_ADDRESSES,
    ) -> None:
        self._now = now
        self._rate = rate
        self._most = most
        self._due: dict[str, float] = {}
        # Not the credentials themselves: a number that only this process could have made of them.
        self._proved: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._due)

    def wait(self, address: str, shown: bytes) -> float:
        """How many seconds an address has to wait before it shows this; as a rule none."""
        due = self._due.get(_place(address)) if self._due else None
        if due is None or hash(shown) in self._proved:
            return 0.0
        return self._rate.wait(due, self._now())

    def check(self, address: str, shown: bytes) -> None:
        """Raise Unavailable for an address that has to wait."""
        wait = self.wait(address, shown)
        if wait:
            raise Unavailable(
                "too many wrong credentials came from this address",
                RATE_LIMITED,
                timedelta(milliseconds=math.ceil(wait * 1000)),
            )

    def proved(self, shown: bytes) -> None:
        """These were good: whatever else comes from the same address, they may be shown again."""
        number = hash(shown)
        if number not in self._proved:
            if len(self._proved) >= MOST_PROVED:
                del self._proved[next(iter(self._proved))]
            self._proved[number] = None

    def failed(self, address: str) -> None:
        place, now = _place(address), self._now()
        if place not in self._due and len(self._due) >= self._most:
            self._forget(now)
        self._due[place] = self._rate.after(self._due.get(place, 0.0), now)

    def _forget(self, now: float) -> None:
        """What has passed says nothing; of the rest the oldest makes room."""
        self._due = {place: due for place, due in self._due.items() if due > now}
        while len(self._due) >= self._most:
            del self._due[next(iter(self._due))]


@lru_cache(4096)
def _place(address: str) -> str:
    """Where somebody is: of IPv6 whoever has one address has 2^64 of them."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    mapped = found.ipv4_mapped
    return str(mapped or ipaddress.ip_network((found, 64), strict=False))
