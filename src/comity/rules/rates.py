"""How many calls are let through in a while: rates that even out, quotas of a day or a month.

Rule 1: a rate lets `burst` calls through at once, and then as many in each period as it counts; so
        in any time no more than the burst and what that time earns. (GCRA: the one number that is
        kept says when all that was let through will have been earned.)
Rule 2: a quota begins anew with each day or month of UTC.
Rule 3: what would take more than a whole burst takes a whole burst: it is slow, never impossible.
Rule 4: of the limits that cover a call all must let it through, or none of them counts it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, Self

from comity.rules.patterns import Level, covers, level_of, target_covers

type Unit = Literal["party", "key", "server", "tool"]
"""What is counted apart from others of its kind."""

type Window = Literal["day", "month"]

UNITS: Final[tuple[Unit, ...]] = ("party", "key", "server", "tool")
PERIODS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
WINDOWS: Final[Mapping[str, Window]] = {"d": "day", "mo": "month"}
RATE_FORM: Final = r"([1-9][0-9]{0,8})/(s|m|h|d)"
QUOTA_FORM: Final = r"([1-9][0-9]{0,11})/(d|mo)"
_LEAST: Final = 1e-9
"""Less than this many seconds is no wait: it is what adding up fractions leaves."""


@dataclass(frozen=True, slots=True)
class Rate:
    """So many calls in a period, and so many of them at once."""

    count: int
    period: float
    burst: int
    # How long one call takes to be earned again; every call asks.
    each: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "each", self.period / self.count)

    @classmethod
    def parse(cls, text: str, burst: int | None = None) -> Self:
        """`60/m`; without a burst a whole period's calls may come at once. Raises ValueError."""
        found = re.fullmatch(RATE_FORM, text)
        if found is None:
            raise ValueError(f"{text!r:.40} is no rate, as 60/m")
        count = int(found[1])
        return cls(count, PERIODS[found[2]], count if burst is None else burst)

    def wait(self, due: float, now: float, cost: int = 1) -> float:
        """How long a call has to wait, of which nothing is counted yet; zero: it may pass."""
        late = due - now if due > now else 0.0
        if cost < self.burst:
            late -= (self.burst - cost) * self.each
        return late if late > _LEAST else 0.0

    def after(self, due: float, now: float, cost: int = 1) -> float:
        """When all will have been earned, with a call that has passed."""
        taken = min(self.burst, cost)
        return max(due, now) + taken * self.each

    def current(self, due: float, now: float, cost: int = 1) -> int:
        """How many calls stand against the burst, with one that asks to pass."""
        return round(max(due - now, 0.0) * self.count / self.period) + cost


@dataclass(frozen=True, slots=True)
class Quota:
    """So many calls in a day or in a month."""

    count: int
    window: Window

    @classmethod
    def parse(cls, text: str) -> Self:
        """`10000/d`, `500000/mo`. Raises ValueError."""
        found = re.fullmatch(QUOTA_FORM, text)
        if found is None:
            raise ValueError(f"{text!r:.40} is no quota, as 10000/d")
        return cls(int(found[1]), WINDOWS[found[2]])

    def span(self, now: datetime) -> tuple[datetime, datetime]:
        """When the window that this moment is in begins and ends."""
        day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self.window == "day":
            return day, day + timedelta(days=1)
        first = day.replace(day=1)
        return first, (first + timedelta(days=32)).replace(day=1)


@dataclass(frozen=True, slots=True)
class Limit:
    """An operator's limit: whose calls, of what, counted by what, and how many."""

    subject: str = "*"
    target: str = "*"
    per: tuple[Unit, ...] = ("party",)
    rate: Rate | None = None
    quota: Quota | None = None


@dataclass(slots=True)
class _Targets:
    """The limits of one subject, so laid out that few are looked at for an offer."""

    offers: dict[str, list[Limit]] = field(default_factory=dict[str, list[Limit]])
    servers: dict[str, list[Limit]] = field(default_factory=dict[str, list[Limit]])
    patterns: list[Limit] = field(default_factory=list[Limit])

    def add(self, limit: Limit) -> None:
        match level_of(limit.target):
            case Level.OFFER:
                self.offers.setdefault(limit.target, []).append(limit)
            case Level.SERVER:
                self.servers.setdefault(limit.target.partition("/")[0], []).append(limit)
            case Level.EVERYTHING:
                self.patterns.append(limit)

    def covering(self, server: str, name: str) -> Iterable[Limit]:
        yield from self.offers.get(f"{server}/{name}", ())
        for limit in (*self.servers.get(server, ()), *self.patterns):
            if target_covers(limit.target, server, name):
                yield limit


class LimitBook:
    """Every limit, found by subject and target; only patterns are looked through."""

    def __init__(self, limits: Iterable[Limit] = ()) -> None:
        self.limits = tuple(limits)
        self._named: dict[str, _Targets] = {}
        self._patterns: dict[str, _Targets] = {}
        for limit in self.limits:
            shelf = self._patterns if "*" in limit.subject else self._named
            shelf.setdefault(limit.subject, _Targets()).add(limit)

    def covering(self, party: str, server: str, name: str) -> list[Limit]:
        """The limits under which a call of this party to that offer stands."""
        targets = [self._named[party]] if party in self._named else []
        targets += [each for said, each in self._patterns.items() if covers(said, party)]
        return [limit for each in targets for limit in each.covering(server, name)]


def of_key(per_minute: int | None, per_hour: int | None) -> tuple[Rate, ...]:
    """A key's own limits, in the registry's terms. (REG RateLimit)"""
    both = ((per_minute, PERIODS["m"]), (per_hour, PERIODS["h"]))
    return tuple(Rate(count, period, count) for count, period in both if count is not None)
