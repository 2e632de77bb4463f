"""The limits in force on this node: what each caller has used, counted in memory.

Rule 1: a call pays for one look-up and a comparison for each limit that it stands under; which
        those are is found once and remembered.
Rule 2: what is remembered is bounded. A count that has been earned again says nothing any more and
        is forgotten first; only past the bound is an old one forgotten that still says something.
Rule 3: counts live in this process: each node has its own, and a restart begins anew.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from comity.rules.phrases import count_noun
from comity.rules.rates import Limit, LimitBook, Quota, Rate, Unit, of_key
from comity.rules.refusals import Refusal
from comity.wire.errors import QUOTA_EXCEEDED, RATE_LIMITED
from comity.wire.exposition import Family
from comity.wire.parties import Actor

MOST_METERS: Final = 200_000
MOST_WAYS: Final = 200_000
"""How many counts are kept, and for how many callers of how many tools it is known which those are;
some 100 MB if all of that is ever used."""

SWEPT_EVERY_SECONDS: Final = 1.0


class Meter(Protocol):
    """One count; `wait` is how many seconds a call would have to, zero if it may pass."""

    def wait(self, now: float, cost: int) -> float: ...
    def take(self, now: float, cost: int) -> None: ...
    def is_idle(self, now: float) -> bool: ...
    def refusal(self, now: float, cost: int, whose: str) -> Refusal: ...


class Pace:
    """What has been let through under one rate."""

    __slots__ = ("_due", "_rate")

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._due = 0.0

    def wait(self, now: float, cost: int) -> float:
        return self._rate.wait(self._due, now, cost)

    def take(self, now: float, cost: int) -> None:
        self._due = self._rate.after(self._due, now, cost)

    def is_idle(self, now: float) -> bool:
        return self._due <= now

    def refusal(self, now: float, cost: int, whose: str) -> Refusal:
        rate = self._rate
        details: dict[str, object] = {
            "limit": rate.count,
            "window_secs": round(rate.period),
            "current": rate.current(self._due, now, cost),
        }
        allowed = count_noun(rate.count, "call")
        because = f"rate limited: {whose} may have {allowed} in {_named(rate.period)}"
        return Refusal(RATE_LIMITED, because, _rounded_up(self.wait(now, cost)), details=details)


class Account:
    """What has been used of one quota."""

    __slots__ = ("_began", "_ends", "_quota", "_used", "_wall")

    def __init__(self, quota: Quota, wall: Callable[[], float]) -> None:
        self._quota = quota
        self._wall = wall
        self._used = 0
        self._began = self._ends = 0.0

    def wait(self, now: float, cost: int) -> float:
        at = self._wall()
        if not self._began <= at < self._ends:
            began, ends = self._quota.span(datetime.fromtimestamp(at, UTC))
            self._began, self._ends, self._used = began.timestamp(), ends.timestamp(), 0
        return self._ends - at if self._used + 1 > self._quota.count else 0.0

    def take(self, now: float, cost: int) -> None:
        self._used += 1

    def is_idle(self, now: float) -> bool:
        return self._used == 0 or self._wall() >= self._ends

    def refusal(self, now: float, cost: int, whose: str) -> Refusal:
        ends = datetime.fromtimestamp(self._ends, UTC)
        details: dict[str, object] = {
            "limit": self._quota.count,
            "window_secs": round(self._ends - self._began),
            "current": self._used + 1,
            "renews_at": ends.isoformat().replace("+00:00", "Z"),
        }
        because = (
            f"quota exceeded: {whose} may have {count_noun(self._quota.count, 'call')} "
            f"a {self._quota.window}, "
            f"and the next one begins at {details['renews_at']}"
        )
        after = _rounded_up(self.wait(now, cost))
        return Refusal(QUOTA_EXCEEDED, because, after, details=details)


class Limits:
    """Counts calls, and says which may not pass yet."""

    def __init__(
        self,
        limits: Iterable[Limit] = (),
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        most: int = MOST_METERS,
        is_listed: Callable[[str, str], bool] = lambda server, name: True,
    ) -> None:
        self._book = LimitBook(limits)
        self._now = now
        self._wall = wall
        self._most = most
        self._is_listed = is_listed
        self._meters: dict[tuple[object, ...], Meter] = {}
        self._ways: dict[tuple[str, str, str, str], tuple[tuple[Meter, str], ...]] = {}
        self._arrivals: dict[tuple[str, int | None, int | None], tuple[Pace, ...]] = {}
        self._swept = 0.0
        self._refused = {RATE_LIMITED: 0, QUOTA_EXCEEDED: 0}
        self._forgotten = 0

    def replace(self, limits: Iterable[Limit]) -> None:
        """Other limits from now on; of those that stay what they were nothing is forgotten."""
        self._book = LimitBook(limits)
        self._ways.clear()

    def take(self, actor: Actor, server: str, name: str, cost: int = 1) -> Refusal | None:
        """Count a call, or say why it has to wait; what is refused is counted nowhere."""
        if not self._book.limits:
            return None
        way = (actor.party, actor.credential, server, name)
        meters = self._ways.get(way)
        if meters is None:
            meters = self._find(way)
        if not meters:
            return None
        now = self._now()
        for meter, whose in meters:
            if meter.wait(now, cost):
                return self._refuse(meter, now, cost, whose)
        for meter, _ in meters:
            meter.take(now, cost)
        return None

    def arrive(self, actor: Actor) -> Refusal | None:
        """Count a request of a key that has limits of its own. (REG RateLimit)"""
        key = (actor.credential, actor.requests_per_minute, actor.requests_per_hour)
        paces = self._arrivals.get(key)
        if paces is None:
            paces = self._paced(key)
        now = self._now()
        for pace in paces:
            if pace.wait(now, 1):
                return self._refuse(pace, now, 1, "this key")
        for pace in paces:
            pace.take(now, 1)
        return None

    def look(self, patience: float = 0) -> None:
        """Forget what says nothing any more, when there is much of it."""
        if len(self._meters) > self._most // 2:
            now = self._now()
            self._meters = {key: m for key, m in self._meters.items() if not m.is_idle(now)}
            # A count that is forgotten here and remembered there would be two.
            self._ways.clear()

    def families(self) -> list[Family]:
        return [
            Family(
                "comity_limited_total",
                "counter",
                "Requests that were refused because of a limit.",
                [((("limit", fault.error_type),), n) for fault, n in self._refused.items()],
            ),
            Family(
                "comity_limit_counts", "gauge", "Counts that are kept.", [((), len(self._meters))]
            ),
            Family(
                "comity_limit_counts_forgotten_total",
                "counter",
                "Counts that were forgotten for want of room while they still mattered.",
                [((), self._forgotten)],
            ),
        ]

    def _find(self, way: tuple[str, str, str, str]) -> tuple[tuple[Meter, str], ...]:
        party, key, server, name = way
        # Names that a caller makes up have one count together, or there would be no end of them.
        tool = name if self._is_listed(server, name) else ""
        identity: dict[Unit, str] = {"party": party, "key": key, "server": server, "tool": tool}
        found: list[tuple[Meter, str]] = []
        for limit in self._book.covering(party, server, name):
            # A tool's name means nothing without its server.
            units: tuple[Unit, ...] = (*limit.per, "server") if "tool" in limit.per else limit.per
            counted = tuple((unit, identity[unit]) for unit in units)
            whose = " and ".join(f"this {unit}" for unit in limit.per) or "everybody together"
            if limit.rate is not None:
                made = self._meter((limit, "rate", counted), lambda r=limit.rate: Pace(r))
                found.append((made, whose))
            if limit.quota is not None:
                key_of = (limit, "quota", counted)
                made = self._meter(key_of, lambda q=limit.quota: Account(q, self._wall))
                found.append((made, whose))
        meters = tuple(found)
        if tool == name:
            if len(self._ways) >= MOST_WAYS:
                self._ways.clear()
            self._ways[way] = meters
        return meters

    def _meter(self, key: tuple[object, ...], make: Callable[[], Meter]) -> Meter:
        meter = self._meters.get(key)
        if meter is None:
            if len(self._meters) >= self._most:
                self._make_room()
            meter = self._meters[key] = make()
        return meter

    def _make_room(self) -> None:
        """Going through all is dear, and whoever calls many tools could have it done often."""
        if self._now() - self._swept >= SWEPT_EVERY_SECONDS:
            self._swept = self._now()
            self.look()
        if len(self._meters) >= self._most:
            oldest = list(itertools.islice(self._meters, self._most // 100 + 1))
            for key in oldest:
                del self._meters[key]
            self._ways.clear()
            self._forgotten += len(oldest)

    def _paced(self, key: tuple[str, int | None, int | None]) -> tuple[Pace, ...]:
        if len(self._arrivals) >= self._most:
            self._arrivals.pop(next(iter(self._arrivals)))
        paces = self._arrivals[key] = tuple(Pace(rate) for rate in of_key(key[1], key[2]))
        return paces

    def _refuse(self, meter: Meter, now: float, cost: int, whose: str) -> Refusal:
        refusal = meter.refusal(now, cost, whose)
        self._refused[refusal.fault] += 1
        return refusal


def _rounded_up(seconds: float) -> timedelta:
    """A wait in whole milliseconds, so that whoever waits exactly that long may pass."""
    return timedelta(milliseconds=math.ceil(seconds * 1000))


def _named(period: float) -> str:
    named = {1.0: "a second", 60.0: "a minute", 3600.0: "an hour", 86400.0: "a day"}
    return named[period]
