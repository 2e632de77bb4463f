"""Shares of limits in a store: exact counts, restarts, returns, refusals and a silent store."""

import asyncio
import math
import time
from collections.abc import Awaitable, Sequence

import pytest

from comity.app.records import RecordStores
from comity.errors import POLICY_UNKNOWN, QUOTA_EXCEEDED, RATE_LIMITED, Unavailable
from comity.mcp.actors import Actor
from comity.mcp.refusals import Refusal
from comity.policy import shared_counts
from comity.policy.call_limiter import CallLimiter
from comity.policy.limits import LimitRule, LimitShare, Quota
from comity.policy.shared_counts import REFUSED_SECONDS, SharedCounts
from comity.policy.store import SqlLimitCounts
from comity.toolkit.resilience import RateLimit
from tests.support.opened_stores import Store

pytestmark = pytest.mark.integration

ANA = Actor("agent:ana", credential="key:1")


class CountedStore(SqlLimitCounts):
    """The store of one node, which counts the statements that take a share."""

    def __init__(self, records: RecordStores) -> None:
        vars(self).update(vars(records.limit_counts))
        self.takes = 0
        self.is_silent = False

    async def take_rate(self, key: str, rate: RateLimit, least: int, most: int) -> LimitShare:
        self._count()
        return await super().take_rate(key, rate, least, most)

    async def take_quota(
        self, key: str, count: int, end: float, least: int, most: int
    ) -> LimitShare:
        self._count()
        return await super().take_quota(key, count, end, least, most)

    def _count(self) -> None:
        self.takes += 1
        if self.is_silent:
            raise Unavailable("the store does not answer: gone", POLICY_UNKNOWN)


class LimitNode:
    """One node that counts calls, with a clock that the test can advance."""

    def __init__(self, records: RecordStores, *rules: LimitRule) -> None:
        self.store = CountedStore(records)
        self.ahead = 0.0
        self.counts = SharedCounts(self.store, self.clock)
        self.limits = CallLimiter(rules, self.clock, shared=self.counts)

    def clock(self) -> float:
        return time.monotonic() + self.ahead

    async def call(self, cost: int = 1) -> Refusal | None:
        outcome = self.limits.count_call(ANA, "s", "t", cost)
        return await outcome if isinstance(outcome, Awaitable) else outcome

    async def passes(self, calls: int) -> int:
        """How many of so many calls pass, ten at a time."""
        found = 0
        for _ in range(calls // 10):
            found += (await asyncio.gather(*(self.call() for _ in range(10)))).count(None)
        return found


def rule(amount: str) -> LimitRule:
    if amount.endswith(("/d", "/mo")) and amount.startswith("quota "):
        return LimitRule(quota=Quota.parse(amount.removeprefix("quota ")))
    return LimitRule(rate=RateLimit.parse(amount))


# The limit, the calls that pass on three nodes together, and the most shares that they take.
LIMITS = [
    ("6/d", range(6, 7), 60),
    ("399/d", range(399, 400), 460),
    ("quota 10/mo", range(10, 11), 60),
    ("2000/d", range(1960, 2001), 500),
    ("quota 2000/d", range(1960, 2001), 500),
]


@pytest.mark.parametrize(("amount", "expected", "most_takes"), LIMITS)
async def test_three_nodes_together_stay_within_a_limit(
    store: Store, amount: str, expected: range, most_takes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A store that a busy machine keeps waiting still answers, so no call is refused for that.
    monkeypatch.setattr(shared_counts, "STORE_SECONDS", 60.0)
    limit = rule(amount)
    nodes = [LimitNode(await store.open(), limit) for _ in range(3)]
    clock = nodes[0].store.read_clock
    began = await clock()
    passed = [0] * len(nodes)
    for _ in range((expected.stop + 40) // 10):
        # All nodes call in each round, so none can use the whole limit before another begins.
        counts = await asyncio.gather(*(node.passes(10) for node in nodes))
        passed = [each + count for each, count in zip(passed, counts, strict=True)]
    seconds = await clock() - began
    assert expected.start <= sum(passed) < expected.stop + earned_in(seconds, limit)
    assert all(passed) or expected.stop < 100
    # A node that was refused asks again from time to time.
    asked_again = 3 * int(seconds / REFUSED_SECONDS)
    assert sum(node.store.takes for node in nodes) <= most_takes + asked_again
    # The shares that a node did not use are free again for the others.
    for node in nodes[1:]:
        await node.limits.close()
    nodes[0].ahead += REFUSED_SECONDS
    total = sum(passed) + await nodes[0].passes(100)
    most = expected.stop - 1 + earned_in(await clock() - began, limit)
    assert expected.stop - 1 <= total <= most


def earned_in(seconds: float, limit: LimitRule) -> int:
    """The units that a rate gives back in this time, which is short unless the machine is slow."""
    return 0 if limit.rate is None else math.floor(seconds / limit.rate.each)


@pytest.mark.parametrize("amount", ["5/d", "quota 5/d", "1000/d", "quota 1000/d"])
async def test_counts_survive_a_restart(store: Store, amount: str) -> None:
    limit = int(amount.removeprefix("quota ").partition("/")[0])
    first = LimitNode(await store.open(), rule(amount))
    assert [await first.call() for _ in range(limit - 2)] == [None] * (limit - 2)
    await first.limits.close()
    second = LimitNode(await store.open(), rule(amount))
    found = [await second.call() for _ in range(3)]
    assert [each is None for each in found] == [True, True, False]


async def test_a_node_that_dies_loses_at_most_its_share(store: Store) -> None:
    dead = LimitNode(await store.open(), rule("quota 1000/d"))
    assert await dead.call() is None
    other = LimitNode(await store.open(), rule("quota 1000/d"))
    assert await other.passes(1000) == 1000 - 5


async def test_an_idle_share_is_returned(store: Store) -> None:
    for amount in ("2000/d", "quota 2000/d"):
        one = LimitNode(await store.open(), rule(amount))
        other = LimitNode(await store.open(), rule(amount))
        assert await one.call() is None
        one.limits.check()
        one.ahead += 10
        one.limits.check()
        await one.counts.close()
        assert await other.passes(2010) == 1999


async def test_a_refusal_says_what_the_store_counted(store: Store) -> None:
    records = await store.open()
    for amount, fault, details in (
        ("2/m", RATE_LIMITED, {"limit": 2, "window_secs": 60, "current": 3}),
        ("quota 2/d", QUOTA_EXCEEDED, {"limit": 2, "window_secs": 86400, "current": 3}),
    ):
        node = LimitNode(records, rule(amount))
        assert [await node.call(), await node.call()] == [None, None]
        asked = node.store.takes
        refusals = [await node.call() for _ in range(50)]
        # The node refuses at once as long as no other node can have returned a share.
        assert node.store.takes <= asked + 10
        for refusal in refusals:
            assert refusal is not None
            assert refusal.fault is fault
            assert details.items() <= (refusal.details or {}).items()
            assert refusal.retry_after is not None
            assert 0 < refusal.retry_after.total_seconds() <= details["window_secs"]


async def test_a_rate_is_earned_again_and_a_costly_call_takes_more(store: Store) -> None:
    node = LimitNode(await store.open(), rule("10/h"))

    async def pass_time(seconds: float) -> None:
        earlier = "UPDATE comity_limit_counts SET ends_at = ends_at - :seconds"
        await store.run(earlier, seconds=seconds)
        node.ahead += REFUSED_SECONDS

    assert await node.call(cost=8) is None
    refusal = await node.call(cost=4)
    assert refusal is not None
    assert refusal.retry_after is not None
    # Two units are missing, and each takes six minutes.
    assert 600 < refusal.retry_after.total_seconds() <= 720
    await pass_time(720)
    assert await node.call(cost=4) is None
    await pass_time(1800)
    # A call that costs more than the burst needs the whole burst.
    assert await node.call(cost=50) is not None
    await pass_time(1800)
    assert await node.call(cost=50) is None


async def test_a_refused_call_counts_under_no_limit(store: Store) -> None:
    rules = [rule("quota 3/d"), LimitRule(per=(), quota=Quota(1, "day"))]
    node = LimitNode(await store.open(), *rules)
    assert await node.call() is None
    assert [await node.call() is None for _ in range(5)] == [False] * 5
    node.limits.replace(rules[:1])
    assert [await node.call() is None for _ in range(3)] == [True, True, False]


async def test_a_call_is_refused_while_the_store_does_not_answer(store: Store) -> None:
    node = LimitNode(await store.open(), rule("quota 1000/d"))
    assert await node.call() is None
    node.store.is_silent = True
    # The rest of the share is spent without the store.
    assert [await node.call() is None for _ in range(4)] == [True] * 4
    takes = node.store.takes
    refusals = await asyncio.gather(*(node.call() for _ in range(20)))
    assert node.store.takes == takes + 1
    assert {each.fault for each in refusals if each is not None} == {POLICY_UNKNOWN}
    assert all(each is not None and "cannot be counted" in each.reason for each in refusals)
    node.store.is_silent = False
    node.ahead += 1.0
    assert await node.call() is None


async def test_a_cancelled_call_keeps_the_share_for_others(store: Store) -> None:
    node = LimitNode(await store.open(), rule("quota 1000/d"))
    cancelled = asyncio.ensure_future(node.call())
    await asyncio.sleep(0)
    cancelled.cancel()
    assert isinstance((await asyncio.gather(cancelled, return_exceptions=True))[0], BaseException)
    assert await node.passes(1010) == 1000


async def test_ended_counts_are_removed(store: Store) -> None:
    records = await store.open()
    counts = records.limit_counts
    now = await counts.read_clock()
    await counts.take_quota("ended", 5, now - 1, 1, 1)
    await counts.take_quota("running", 5, now + 600, 1, 1)
    assert await counts.remove_ended() == 1
    assert [row[0] for row in await store.run("SELECT key FROM comity_limit_counts")] == ["running"]


# A window is replaced by a later one only: the ends of the windows, and what each grants of 5.
WINDOWS: list[tuple[Sequence[float], Sequence[int]]] = [
    ((100, 100, 100), (2, 2, 1)),
    ((100, 200, 200), (2, 2, 2)),
    ((200, 100, 200), (2, 0, 2)),
]


@pytest.mark.parametrize(("ends", "granted"), WINDOWS)
async def test_a_late_node_gets_nothing_of_an_earlier_window(
    store: Store, ends: Sequence[float], granted: Sequence[int]
) -> None:
    counts = (await store.open()).limit_counts
    found = [(await counts.take_quota("k", 5, 4e9 + end, 1, 2)).granted for end in ends]
    assert found == list(granted)
