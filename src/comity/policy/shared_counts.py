"""Shares of the limits that several nodes count together in their store.

A node takes a share of a limit ahead, by one statement, and spends it without the store. It returns
the rest of a share that it does not use. A node that dies loses at most the shares that it holds:
about 1/200 of a limit, and the units of calls that wait.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Hashable
from hashlib import blake2b
from typing import Final

from comity.errors import POLICY_UNKNOWN, Unavailable
from comity.mcp.refusals import Refusal
from comity.policy.limits import Quota, quota_refusal, rate_refusal
from comity.policy.store import SqlLimitCounts
from comity.storage.database import AGAIN
from comity.toolkit.background import BackgroundTasks, finish_before_cancel
from comity.toolkit.resilience import RateLimit

log = logging.getLogger(__name__)

SHARES_PER_LIMIT: Final = 200
IDLE_SECONDS: Final = 2.0
"""How long a node keeps a share that no call uses."""

REFUSED_SECONDS: Final = 0.1
"""How long a node refuses calls beyond a limit by itself. Another node may return a share."""

STORE_SECONDS: Final = 5.0
PRUNE_SECONDS: Final = 600.0
ASK_STORE: Final = math.inf
"""The wait of a call that this node can neither count nor refuse by itself."""

_MIN_WAIT: Final = 1e-9


class SharedCounter:
    """One count of one limit: the units that this node may still spend, or why it may not."""

    __slots__ = (
        "_ask_at",
        "_capacity",
        "_counts",
        "_ends_at",
        "_free_at",
        "_held",
        "_key",
        "_limit",
        "_lock",
        "_pending",
        "_refused",
        "_refused_wait",
        "_used",
        "_used_at",
        "_window",
    )

    def __init__(self, counts: "SharedCounts", key: str, limit: RateLimit | Quota) -> None:
        self._counts = counts
        self._key = key
        self._limit = limit
        # The most units that one call can need. A quota counts calls, regardless of their cost.
        self._capacity = 1 if isinstance(limit, Quota) else limit.burst
        self._held = 0
        # The end of the units that are held, and the last use of them.
        self._ends_at = math.inf
        self._used_at = 0.0
        # The units for which calls of this node wait.
        self._pending = 0
        # After a refusal: how many units were refused, when they are free, and when to ask again.
        self._refused = 0
        self._free_at = self._ask_at = self._refused_wait = 0.0
        self._used = 0
        self._window = (0.0, 0.0)
        self._lock = asyncio.Lock()

    def wait(self, now: float, cost: int = 1) -> float:
        """Return how many seconds a call has to wait, zero, or `ASK_STORE`. Counts nothing."""
        units = min(self._capacity, cost)
        if self._held >= units and now < self._ends_at:
            return 0.0
        if now < self._ask_at and units >= self._refused:
            return max(self._free_at - now, _MIN_WAIT)
        return ASK_STORE

    def take(self, now: float, cost: int = 1) -> None:
        self._held -= min(self._capacity, cost)
        self._used_at = now

    def give_back(self, cost: int) -> None:
        """Undo `take` for a call that does not count."""
        self._held += min(cost, self._capacity)
        self._counts.holders.add(self)

    def is_idle(self, now: float) -> bool:
        return not self._pending and (self._held == 0 or now >= self._ends_at)

    async def acquire(self, cost: int) -> float:
        """Take the units of a call, from the store if this node holds too few.

        Returns how many seconds the call has to wait, or zero. Raises Unavailable.
        """
        units = min(cost, self._capacity)
        self._pending += units
        try:
            async with self._lock:
                wait = self.wait(self._counts.clock(), cost)
                while wait == ASK_STORE:
                    self._refused_wait = 0.0
                    await self._counts.run(self._fetch(units))
                    # Other calls may spend what was fetched before this task runs again.
                    wait = self.wait(self._counts.clock(), cost)
                    if wait == ASK_STORE and self._refused_wait:
                        # The wait is over already. A call is refused all the same, not delayed.
                        return self._refused_wait
                if not wait:
                    self.take(self._counts.clock(), cost)
                return wait
        finally:
            self._pending -= units

    def surrender(self, now: float, idle_seconds: float) -> int:
        """Return the units that no call has used for so long. This node no longer holds them."""
        if self._pending or now - self._used_at < idle_seconds:
            return 0
        units = self._held if now < self._ends_at else 0
        self._held = 0
        return units

    async def return_units(self, store: SqlLimitCounts, units: int) -> None:
        """Return surrendered units to the store. Raises Unavailable."""
        if isinstance(self._limit, Quota):
            await store.give_back_quota(self._key, self._window[1], units)
        else:
            await store.give_back_rate(self._key, self._limit, units)

    def refusal(self, cost: int, wait: float, owner: str) -> Refusal:
        if isinstance(self._limit, Quota):
            return quota_refusal(self._limit, self._window, self._used + 1, wait, owner)
        return rate_refusal(self._limit, self._used + cost, wait, owner)

    async def _fetch(self, units: int) -> None:
        """Take a share that is enough for the calls that wait now."""
        store, limit = self._counts.store, self._limit
        if isinstance(limit, RateLimit):
            most = min(max(limit.burst // SHARES_PER_LIMIT, self._pending), limit.burst)
            share = await store.take_rate(self._key, limit, units, max(most, units))
            self._receive(share.granted, math.inf)
            if not share.granted:
                late = share.ends_at - share.now
                self._used = round(late / limit.each)
                self._refuse(units, late - (limit.burst - units) * limit.each)
            return
        window = limit.window_at(await self._counts.store_time())
        most = min(max(limit.count // SHARES_PER_LIMIT, self._pending), limit.count)
        share = await store.take_quota(self._key, limit.count, window[1], units, most)
        if self._counts.note_store_time(share.now, window):
            left = window[1] - share.now
            self._receive(share.granted, self._counts.clock() + left)
            self._window, self._used = window, share.used
            if not share.granted:
                self._refuse(units, left)

    def _receive(self, units: int, ends_at: float) -> None:
        now = self._counts.clock()
        if now >= self._ends_at:
            self._held = 0
        self._held += units
        self._ends_at, self._used_at = ends_at, now
        self._counts.holders.add(self)

    def _refuse(self, units: int, wait: float) -> None:
        now, wait = self._counts.clock(), max(wait, _MIN_WAIT)
        self._refused, self._refused_wait, self._free_at = units, wait, now + wait
        self._ask_at = now + min(wait, REFUSED_SECONDS)


class SharedCounts:
    """The shares of this node. Without an answer of the store, no share can be taken."""

    def __init__(self, store: SqlLimitCounts, clock: Callable[[], float]) -> None:
        self.store = store
        self.clock = clock
        # The counters that may hold units.
        self.holders: set[SharedCounter] = set()
        self._tasks = BackgroundTasks("the limits of calls")
        # The time of the store is the clock of this node and this difference.
        self._difference: float | None = None
        self._failed_until = -math.inf
        self._pruned_at = clock()

    def make_counter(self, key: Hashable, limit: RateLimit | Quota) -> SharedCounter:
        """Return a counter for a key, whose `repr` must be the same on every node."""
        digest = blake2b(repr(key).encode(), digest_size=16).hexdigest()
        return SharedCounter(self, digest, limit)

    async def run(self, work: Coroutine[None, None, None]) -> None:
        """Ask the store. Raises Unavailable, and at once if it has just failed to answer."""
        if self.clock() < self._failed_until:
            work.close()
            raise Unavailable("the store does not answer", POLICY_UNKNOWN, AGAIN)
        try:
            # Also for a call whose client is gone, so that no granted share is lost.
            await finish_before_cancel(_within_limit(work))
        except Unavailable:
            self._failed_until = self.clock() + AGAIN.total_seconds()
            raise

    async def store_time(self) -> float:
        if self._difference is None:
            self._difference = await self.store.read_clock() - self.clock()
        return self.clock() + self._difference

    def note_store_time(self, time: float, window: tuple[float, float]) -> bool:
        """Follow the clock of the store. Returns whether this time is in the window."""
        self._difference = time - self.clock()
        return window[0] <= time < window[1]

    def return_idle(self, idle_seconds: float = IDLE_SECONDS) -> None:
        """Return the shares that no call uses, and remove ended rows from time to time."""
        now = self.clock()
        returned: list[tuple[SharedCounter, int]] = []
        for counter in list(self.holders):
            units = counter.surrender(now, idle_seconds)
            if units:
                returned.append((counter, units))
            if counter.is_idle(now):
                self.holders.discard(counter)
        if returned:
            self._tasks.start(self._return(returned))
        if now - self._pruned_at >= PRUNE_SECONDS:
            self._pruned_at = now
            self._tasks.start(self._prune())

    async def close(self) -> None:
        """Return all shares, if the store answers."""
        self.return_idle(0.0)
        await self._tasks.finish()

    async def _return(self, returned: list[tuple[SharedCounter, int]]) -> None:
        try:
            for counter, units in returned:
                await self.run(counter.return_units(self.store, units))
        except Unavailable as problem:
            log.warning("Unused shares of limits stay counted as used: %s", problem)

    async def _prune(self) -> None:
        try:
            await self.store.remove_ended()
        except Unavailable as problem:
            log.warning("Old counts of limits stay in the store: %s", problem)


async def _within_limit(work: Coroutine[None, None, None]) -> None:
    try:
        async with asyncio.timeout(STORE_SECONDS):
            await work
    except TimeoutError:
        raise Unavailable("the store does not answer", POLICY_UNKNOWN, AGAIN) from None
