"""The limiter of calls: it counts a call under every limit that covers it, or refuses it.

A gateway with a store counts there, together with the other nodes (`shared_counts`). Without one it
counts in its own memory.
"""

import time
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Final

from comity.errors import QUOTA_EXCEEDED, RATE_LIMITED, Unavailable
from comity.mcp.actors import Actor
from comity.mcp.refusals import Refusal
from comity.policy.limits import (
    LimitIndex,
    LimitRule,
    Quota,
    Unit,
    key_rate_limits,
    quota_refusal,
    rate_refusal,
)
from comity.policy.shared_counts import ASK_STORE, SharedCounter, SharedCounts
from comity.telemetry.metrics import MetricFamily
from comity.toolkit.resilience import RateCounter, RateLimit, RateLimiter

MAX_COUNTERS: Final = 200_000
MAX_ROUTES: Final = 200_000
"""How many counters are kept, and for how many pairs of caller and tool Comity remembers the
counters. Full tables take some 100 MB.
"""


class QuotaCounter:
    """The used part of one quota in this process. It counts calls, regardless of their cost."""

    __slots__ = ("_quota", "_used", "_wall_clock", "_window")

    def __init__(self, quota: Quota, wall_clock: Callable[[], float]) -> None:
        self._quota = quota
        self._wall_clock = wall_clock
        self._used = 0
        self._window = (0.0, 0.0)

    def wait(self, now: float, cost: int = 1) -> float:
        at = self._wall_clock()
        if not self._window[0] <= at < self._window[1]:
            self._window, self._used = self._quota.window_at(at), 0
        return self._window[1] - at if self._used >= self._quota.count else 0.0

    def take(self, now: float, cost: int = 1) -> None:
        self._used += 1

    def is_idle(self, now: float) -> bool:
        return self._used == 0 or self._wall_clock() >= self._window[1]

    def refusal(self, cost: int, wait: float, owner: str) -> Refusal:
        return quota_refusal(self._quota, self._window, self._used + 1, wait, owner)


type CallCounter = RateCounter | QuotaCounter | SharedCounter
type CallCounters = tuple[tuple[CallCounter, str], ...]
"""The counters that apply to a call, each with a description of what it counts."""

type CountOutcome = Refusal | Awaitable[Refusal | None] | None
"""Whether a call was counted. An awaitable has to ask the store first."""


class CallLimiter:
    """Counts calls, and refuses those that exceed a limit."""

    def __init__(
        self,
        limits: Iterable[LimitRule] = (),
        now: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
        max_counters: int = MAX_COUNTERS,
        is_listed: Callable[[str, str], bool] = lambda server, name: True,
        shared: SharedCounts | None = None,
    ) -> None:
        self._limit_index = LimitIndex(limits)
        self._wall_clock = wall_clock
        self._is_listed = is_listed
        self._shared = shared
        self._limiter = RateLimiter(now, max_counters)
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

    def count_call(self, actor: Actor, server: str, name: str, cost: int = 1) -> CountOutcome:
        """Count a call, or return a refusal. A refused call is not counted."""
        if not self._limit_index.limits:
            return None
        route = (actor.party, actor.credential, server, name)
        counters = self._counters_by_route.get(route)
        if counters is None:
            counters = self._counters_of_route(route)
        return self._count_or_refuse(counters, cost) if counters else None

    def count_request(self, actor: Actor) -> CountOutcome:
        """Count a request of an API key with its own limits. (REG RateLimit)"""
        key = (actor.credential, actor.requests_per_minute, actor.requests_per_hour)
        counters = self._counters_by_key.get(key)
        if counters is None:
            counters = self._counters_of_key(key)
        return self._count_or_refuse(counters, 1) if counters else None

    def check(self, keep_alive_seconds: float = 0) -> None:
        """Drop idle counters when there are many, and return idle shares. Runs periodically."""
        if self._shared is not None:
            self._shared.return_idle()
        before = self._limiter.generation
        self._limiter.sweep()
        self._forget_routes(before)

    async def close(self) -> None:
        """Return the shares of this node to the store."""
        if self._shared is not None:
            await self._shared.close()

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

    def _count_or_refuse(self, counters: CallCounters, cost: int) -> CountOutcome:
        now = self._limiter.clock()
        for counter, whose in counters:
            wait = counter.wait(now, cost)
            if wait:
                if wait == ASK_STORE:
                    return self._count_in_store(counters, cost)
                return self._refusal(counter, cost, wait, whose)
        for counter, _ in counters:
            counter.take(now, cost)
        return None

    async def _count_in_store(self, counters: CallCounters, cost: int) -> Refusal | None:
        """Count a call for which a share of this node is used up."""
        reserved: list[SharedCounter] = []
        try:
            for counter, whose in counters:
                assert isinstance(counter, SharedCounter), "only these ask the store"
                wait = await counter.acquire(cost)
                if wait:
                    return self._refusal(counter, cost, wait, whose)
                reserved.append(counter)
            reserved.clear()
            return None
        except Unavailable as problem:
            # Fails closed: a call that cannot be counted could be one too many.
            reason = f"this call cannot be counted against its limits: {problem}"
            return Refusal(problem.fault, reason, problem.retry_after)
        finally:
            # A refused call does not count, nor does one whose client is gone.
            for counter in reserved:
                counter.give_back(cost)

    def _refusal(self, counter: CallCounter, cost: int, wait: float, owner: str) -> Refusal:
        if isinstance(counter, RateCounter):
            current = counter.current(self._limiter.clock(), cost)
            refusal = rate_refusal(counter.rate, current, wait, owner)
        else:
            refusal = counter.refusal(cost, wait, owner)
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
            found += [
                (self._counter(counted, each), whose)
                for each in (limit.rate, limit.quota)
                if each is not None
            ]
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
        counters = tuple((self._counter(credential, rate), "this key") for rate in rates)
        if not self._forget_routes(before):
            if len(self._counters_by_key) >= MAX_ROUTES:
                self._counters_by_key.clear()
            self._counters_by_key[key] = counters
        return counters

    def _counter(self, counted: Hashable, limit: RateLimit | Quota) -> CallCounter:
        key, shared = (counted, limit), self._shared
        if shared is not None:
            return self._limiter.counter(key, lambda: shared.make_counter(key, limit))
        if isinstance(limit, Quota):
            return self._limiter.counter(key, lambda: QuotaCounter(limit, self._wall_clock))
        return self._limiter.rate_counter(counted, limit)

    def _forget_routes(self, before: int) -> bool:
        """Clear the remembered counters if the limiter has dropped some.

        Otherwise a call would count in a counter that no other call uses.
        """
        if self._limiter.generation == before:
            return False
        self._counters_by_route.clear()
        self._counters_by_key.clear()
        return True
