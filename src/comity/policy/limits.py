"""Rate limits and quotas of calls, which the call pipeline enforces."""

import math
import re
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, Self

from comity.errors import (
    QUOTA_EXCEEDED,
    RATE_LIMITED,
)
from comity.mcp.actors import Actor
from comity.mcp.refusals import Refusal
from comity.policy.grants import TargetSpecificity, is_pattern_match, level_of, target_covers
from comity.telemetry.metrics import MetricFamily
from comity.toolkit.resilience import (
    PERIODS,
    CounterState,
    LocalCounterState,
    RateCounter,
    RateLimit,
    RateLimiter,
    SharedCounters,
)
from comity.toolkit.text import count_noun

type Unit = Literal["principal", "key", "server", "tool"]
"""The unit for which a limit counts separately."""

type Window = Literal["day", "month"]

UNITS: Final[tuple[Unit, ...]] = ("principal", "key", "server", "tool")
WINDOWS: Final[Mapping[str, Window]] = {"d": "day", "mo": "month"}
QUOTA_FORM: Final = r"([1-9][0-9]{0,11})/(d|mo)"


@dataclass(frozen=True, slots=True)
class Quota:
    """A number of calls for each day or month."""

    count: int
    window: Window

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a quota such as `10000/d` or `500000/mo`. Raises ValueError."""
        found = re.fullmatch(QUOTA_FORM, text)
        if found is None:
            raise ValueError(f"{text!r:.40} is no quota, as 10000/d")
        return cls(int(found[1]), WINDOWS[found[2]])

    def span(self, now: datetime) -> tuple[datetime, datetime]:
        """Return the start and the end of the window that contains `now`."""
        day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        if self.window == "day":
            return day, day + timedelta(days=1)
        first = day.replace(day=1)
        return first, (first + timedelta(days=32)).replace(day=1)


@dataclass(frozen=True, slots=True)
class LimitRule:
    """A limit of the operator: the subject, the target, the unit of counting and the amounts."""

    subject: str = "*"
    target: str = "*"
    per: tuple[Unit, ...] = ("principal",)
    rate: RateLimit | None = None
    quota: Quota | None = None


@dataclass(slots=True)
class _SubjectLimits:
    """The limits of one subject, indexed so that a call examines only a few of them."""

    limits_by_entry: dict[str, list[LimitRule]] = field(default_factory=dict[str, list[LimitRule]])
    limits_by_server: dict[str, list[LimitRule]] = field(default_factory=dict[str, list[LimitRule]])
    pattern_limits: list[LimitRule] = field(default_factory=list[LimitRule])

    def add(self, limit: LimitRule) -> None:
        match level_of(limit.target):
            case TargetSpecificity.OFFER:
                self.limits_by_entry.setdefault(limit.target, []).append(limit)
            case TargetSpecificity.SERVER:
                self.limits_by_server.setdefault(limit.target.partition("/")[0], []).append(limit)
            case TargetSpecificity.EVERYTHING:
                self.pattern_limits.append(limit)

    def limits_for(self, server: str, name: str) -> Iterable[LimitRule]:
        yield from self.limits_by_entry.get(f"{server}/{name}", ())
        for limit in (*self.limits_by_server.get(server, ()), *self.pattern_limits):
            if target_covers(limit.target, server, name):
                yield limit


class LimitIndex:
    """All limits, indexed by subject and target. Only patterns need a scan."""

    def __init__(self, limits: Iterable[LimitRule] = ()) -> None:
        self.limits = tuple(limits)
        self._limits_by_subject: dict[str, _SubjectLimits] = {}
        self._limits_by_pattern: dict[str, _SubjectLimits] = {}
        for limit in self.limits:
            shelf = self._limits_by_pattern if "*" in limit.subject else self._limits_by_subject
            shelf.setdefault(limit.subject, _SubjectLimits()).add(limit)

    def limits_for(self, party: str, server: str, name: str) -> list[LimitRule]:
        """The limits that apply to a call of a catalog entry by this principal."""
        targets = [self._limits_by_subject[party]] if party in self._limits_by_subject else []
        targets += [
            each for said, each in self._limits_by_pattern.items() if is_pattern_match(said, party)
        ]
        return [limit for each in targets for limit in each.limits_for(server, name)]


def key_rate_limits(per_minute: int | None, per_hour: int | None) -> tuple[RateLimit, ...]:
    """The limits of an API key, in the terms of the registry. (REG RateLimit)"""
    both = ((per_minute, PERIODS["m"]), (per_hour, PERIODS["h"]))
    return tuple(RateLimit(count, period, count) for count, period in both if count is not None)


MAX_COUNTERS: Final = 200_000
MAX_ROUTES: Final = 200_000
"""How many counters are kept, and for how many pairs of caller and tool Comity remembers the
counters. Full tables take some 100 MB.
"""


class QuotaCounter:
    """The used part of one quota. A quota counts calls, regardless of their cost."""

    __slots__ = ("_quota", "_state", "_wall_clock", "_window_end", "_window_start")

    def __init__(
        self, quota: Quota, wall_clock: Callable[[], float], state: CounterState | None = None
    ) -> None:
        self._quota = quota
        self._wall_clock = wall_clock
        # The number of calls, and the end of the window in which they were counted.
        self._state = state or LocalCounterState()
        self._window_start = self._window_end = 0.0

    def wait(self, now: float, cost: int = 1) -> float:
        at = self._wall_clock()
        if not self._window_start <= at < self._window_end:
            began, ends = self._quota.span(datetime.fromtimestamp(at, UTC))
            self._window_start, self._window_end = began.timestamp(), ends.timestamp()
        return self._window_end - at if self._used + 1 > self._quota.count else 0.0

    def take(self, now: float, cost: int = 1) -> None:
        self._state.value, self._state.until = self._used + 1, self._window_end

    def is_idle(self, now: float) -> bool:
        return self._used == 0 or self._wall_clock() >= self._window_end

    @property
    def _used(self) -> int:
        return int(self._state.value) if self._state.until == self._window_end else 0

    def refusal(self, wait: float, owner: str) -> Refusal:
        ends = datetime.fromtimestamp(self._window_end, UTC)
        details: dict[str, object] = {
            "limit": self._quota.count,
            "window_secs": round(self._window_end - self._window_start),
            "current": self._used + 1,
            "renews_at": ends.isoformat().replace("+00:00", "Z"),
        }
        reason = (
            f"quota exceeded: {owner} may have {count_noun(self._quota.count, 'call')} "
            f"a {self._quota.window}, "
            f"and the next one begins at {details['renews_at']}"
        )
        return Refusal(QUOTA_EXCEEDED, reason, _rounded_up(wait), details=details)


type CallCounter = RateCounter | QuotaCounter
type CallCounters = tuple[tuple[CallCounter, str], ...]
"""The counters that apply to a call, each with a description of what it counts."""


class CallLimiter:
    """Counts calls, and refuses those that exceed a limit."""

    def __init__(
        self,
        limits: Iterable[LimitRule] = (),
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        max_counters: int = MAX_COUNTERS,
        is_listed: Callable[[str, str], bool] = lambda server, name: True,
        shared: SharedCounters | None = None,
    ) -> None:
        self._limit_index = LimitIndex(limits)
        self._wall_clock = wall_clock
        self._is_listed = is_listed
        self._limiter = RateLimiter(now, max_counters, shared)
        # The counters by caller and tool, and by key for the limits of a key. This saves a call the
        # search through the rules.
        self._counters_by_route: dict[tuple[str, str, str, str], CallCounters] = {}
        self._counters_by_key: dict[tuple[str, int | None, int | None], CallCounters] = {}
        self._refusal_counts = {RATE_LIMITED: 0, QUOTA_EXCEEDED: 0}

    def replace(self, limits: Iterable[LimitRule]) -> None:
        """Replace the limits. The counts of unchanged limits remain."""
        self._limit_index = LimitIndex(limits)
        self._counters_by_route.clear()

    @property
    def has_limits(self) -> bool:
        """Whether any call is counted."""
        return bool(self._limit_index.limits)

    def count_call(self, actor: Actor, server: str, name: str, cost: int = 1) -> Refusal | None:
        """Count a call, or return a refusal. A refused call is not counted."""
        if not self._limit_index.limits:
            return None
        route = (actor.party, actor.credential, server, name)
        counters = self._counters_by_route.get(route)
        if counters is None:
            counters = self._counters_of_route(route)
        return self._count_or_refuse(counters, cost) if counters else None

    def count_request(self, actor: Actor) -> Refusal | None:
        """Count a request of an API key with its own limits. (REG RateLimit)"""
        key = (actor.credential, actor.requests_per_minute, actor.requests_per_hour)
        counters = self._counters_by_key.get(key)
        if counters is None:
            counters = self._counters_of_key(key)
        return self._count_or_refuse(counters, 1) if counters else None

    def drop_idle_counters(self, keep_alive_seconds: float = 0) -> None:
        """Drop idle counters when there are many."""
        before = self._limiter.generation
        self._limiter.sweep()
        self._forget_routes(before)

    def metric_families(self) -> list[MetricFamily]:
        return [
            MetricFamily(
                "comity_rate_limited_total",
                "counter",
                "Requests that were refused because of a limit.",
                [((("limit", fault.error_type),), n) for fault, n in self._refusal_counts.items()],
            ),
            MetricFamily(
                "comity_limit_counters", "gauge", "Stored counters.", [((), len(self._limiter))]
            ),
            MetricFamily(
                "comity_limit_counters_dropped_total",
                "counter",
                "Counters that were dropped because of a limit while still in use.",
                [((), self._limiter.dropped_keys)],
            ),
        ]

    def _count_or_refuse(self, counters: CallCounters, cost: int) -> Refusal | None:
        now, shared = self._limiter.clock(), self._limiter.shared
        if shared is not None:
            shared.acquire()
        try:
            for counter, whose in counters:
                wait = counter.wait(now, cost)
                if wait:
                    return self._refusal(counter, now, cost, wait, whose)
            for counter, _ in counters:
                counter.take(now, cost)
            return None
        finally:
            if shared is not None:
                shared.release()

    def _refusal(
        self, counter: CallCounter, now: float, cost: int, wait: float, owner: str
    ) -> Refusal:
        if isinstance(counter, QuotaCounter):
            refusal = counter.refusal(wait, owner)
        else:
            refusal = _rate_refusal(counter.rate, counter.current(now, cost), wait, owner)
        self._refusal_counts[refusal.fault] += 1
        return refusal

    def _counters_of_route(self, route: tuple[str, str, str, str]) -> CallCounters:
        party, key, server, name = route
        before = self._limiter.generation
        # Unknown tool names share one counter. Otherwise a caller could create counters without
        # end.
        tool = name if self._is_listed(server, name) else ""
        identity: dict[Unit, str] = {"principal": party, "key": key, "server": server, "tool": tool}
        found: list[tuple[CallCounter, str]] = []
        for limit in self._limit_index.limits_for(party, server, name):
            # A tool name identifies a tool only together with its server.
            units: tuple[Unit, ...] = (*limit.per, "server") if "tool" in limit.per else limit.per
            counted = limit, tuple((unit, identity[unit]) for unit in units)
            whose = " and ".join(f"this {unit}" for unit in limit.per) or "all principals together"
            if limit.rate is not None:
                found.append((self._limiter.rate_counter(counted, limit.rate), whose))
            if limit.quota is not None:
                made = self._limiter.counter(
                    counted, lambda q=limit.quota, key=counted: self._make_quota_counter(q, key)
                )
                found.append((made, whose))
        counters = tuple(found)
        if not self._forget_routes(before) and tool == name:
            if len(self._counters_by_route) >= MAX_ROUTES:
                self._counters_by_route.clear()
            self._counters_by_route[route] = counters
        return counters

    def _counters_of_key(self, key: tuple[str, int | None, int | None]) -> CallCounters:
        credential, per_minute, per_hour = key
        before = self._limiter.generation
        rates = key_rate_limits(per_minute, per_hour)
        counters = tuple(
            (self._limiter.rate_counter(credential, rate), "this key") for rate in rates
        )
        if not self._forget_routes(before):
            if len(self._counters_by_key) >= MAX_ROUTES:
                self._counters_by_key.clear()
            self._counters_by_key[key] = counters
        return counters

    def _make_quota_counter(self, quota: Quota, key: Hashable) -> QuotaCounter:
        return QuotaCounter(quota, self._wall_clock, self._limiter.shared_state(key))

    def _forget_routes(self, before: int) -> bool:
        """Clear the remembered counters if the limiter has dropped some.

        Otherwise a call would count in a counter that no other call uses.
        """
        if self._limiter.generation == before:
            return False
        self._counters_by_route.clear()
        self._counters_by_key.clear()
        return True


def _rate_refusal(rate: RateLimit, current: int, wait: float, owner: str) -> Refusal:
    details: dict[str, object] = {
        "limit": rate.count,
        "window_secs": round(rate.period),
        "current": current,
    }
    allowed = count_noun(rate.count, "call")
    reason = f"rate limited: {owner} may have {allowed} in {_period_name(rate.period)}"
    return Refusal(RATE_LIMITED, reason, _rounded_up(wait), details=details)


def _rounded_up(seconds: float) -> timedelta:
    """Round a wait up to milliseconds, so that a client that waits exactly that long passes."""
    return timedelta(milliseconds=math.ceil(seconds * 1000))


def _period_name(period: float) -> str:
    named = {1.0: "a second", 60.0: "a minute", 3600.0: "an hour", 86400.0: "a day"}
    return named[period]
