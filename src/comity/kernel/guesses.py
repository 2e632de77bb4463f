"""Wrong credentials, counted by address: too many of them are told to wait.

Only a failure is counted, and only a failure is refused. Behind a proxy everybody has one address,
so the wrong credentials of one sender must not stop the right ones of another.
"""

import ipaddress
import logging
import math
import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from typing import Final

from comity.rules.rates import Rate
from comity.wire.errors import RATE_LIMITED, Unavailable

log = logging.getLogger(__name__)

RATE: Final = Rate(count=30, period=60.0, burst=30)
MOST_ADDRESSES: Final = 50_000


class Guesses:
    """How often each address has shown wrong credentials of late."""

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

    def __len__(self) -> int:
        return len(self._due)

    def failed(self, address: str) -> None:
        """Count wrong credentials; raise Unavailable for an address that has shown too many."""
        place, now = _place(address), self._now()
        wait = self._rate.wait(self._due.get(place, 0.0), now)
        if wait:
            raise Unavailable(
                "too many wrong credentials came from this address",
                RATE_LIMITED,
                timedelta(milliseconds=math.ceil(wait * 1000)),
            )
        if place not in self._due and len(self._due) >= self._most:
            self._forget(now)
        due = self._due[place] = self._rate.after(self._due.get(place, 0.0), now)
        if self._rate.wait(due, now):
            log.info("too many wrong credentials came from %s; more are refused", address)

    def _forget(self, now: float) -> None:
        """What has passed says nothing; of the rest the oldest makes room."""
        self._due = {place: due for place, due in self._due.items() if due > now}
        while len(self._due) >= self._most:
            del self._due[next(iter(self._due))]


@lru_cache(4096)
def _place(address: str) -> str:
    """What an address is counted as: of IPv6 the whole /64, for its holder has all of them."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    mapped = found.ipv4_mapped
    return str(mapped or ipaddress.ip_network((found, 64), strict=False))
