"""Samples of the traffic: each node takes one every five seconds and keeps those of an hour.

A sample is the difference of the counters since the one before, so a call costs nothing more.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, TypedDict

import msgspec

from comity.telemetry.metrics import BOUNDS, CallMetrics
from comity.telemetry.outcomes import OutcomeClass, class_of

log = logging.getLogger(__name__)

SAMPLE_SECONDS: Final = 5
MAX_SAMPLES: Final = 3600 // SAMPLE_SECONDS
MAX_NODES: Final = 1000
BUCKETS: Final = len(BOUNDS) + 1
CLASSES: Final = tuple(OutcomeClass)


class TrafficSample(msgspec.Struct, frozen=True, array_like=True):
    """The traffic of one node in the five seconds before `at`, which is a multiple of five."""

    node: str
    at: int
    calls: int = 0
    # How many of the calls ended in each of `CLASSES`.
    outcomes: tuple[int, ...] = (0,) * len(CLASSES)
    waiting: int = 0
    tokens: int = 0
    # In millionths of the currency.
    money: int = 0
    buckets: tuple[int, ...] = (0,) * BUCKETS


class SampleView(TypedDict):
    """The traffic of five seconds. A latency is null if no call ended.

    `waiting` counts the open approval requests at its end, and `outcomes` the calls that ended.
    """

    at: int
    calls: int
    outcomes: Mapping[OutcomeClass, int]
    waiting: int
    p50_ms: float | None
    p95_ms: float | None
    tokens: int
    cost: float


class TrafficTotals(NamedTuple):
    """The counters of this node since its start."""

    calls: int
    outcomes: tuple[int, ...]
    tokens: int
    money: int
    buckets: tuple[int, ...]


type CountUsage = Callable[[], tuple[int, int]]
"""Returns the tokens of all models and their cost in millionths."""


class TrafficSampler:
    """Takes the samples of this node, and keeps those of all nodes."""

    def __init__(
        self,
        node: str,
        metrics: Callable[[], CallMetrics],
        count_waiting: Callable[[], int],
        count_usage: CountUsage,
    ) -> None:
        self.node = node
        # Called with each sample of this node.
        self.watchers: list[Callable[[TrafficSample], None]] = []
        self._metrics = metrics
        self._count_waiting = count_waiting
        self._count_usage = count_usage
        self._before: TrafficTotals | None = None
        self._samples_by_node: dict[str, deque[TrafficSample]] = {}

    async def run(self) -> None:
        """Take a sample at each multiple of five seconds, until the task is cancelled."""
        self._before = await self._read_totals()
        while True:
            await asyncio.sleep(SAMPLE_SECONDS - time.time() % SAMPLE_SECONDS)
            try:
                await self.take(round(time.time() / SAMPLE_SECONDS) * SAMPLE_SECONDS)
            except Exception:
                # The next sample may succeed, and the console shows a gap until then.
                log.exception("A sample of the traffic failed because of an internal error")

    async def take(self, at: int) -> TrafficSample:
        """Take a sample now, and tell the watchers."""
        totals, before = await self._read_totals(), self._before
        self._before = totals
        if before is None:
            before = totals
        sample = TrafficSample(
            self.node,
            at,
            totals.calls - before.calls,
            _differences(totals.outcomes, before.outcomes),
            self._count_waiting(),
            totals.tokens - before.tokens,
            totals.money - before.money,
            _differences(totals.buckets, before.buckets),
        )
        self.keep(sample)
        for watcher in self.watchers:
            watcher(sample)
        return sample

    def keep(self, sample: TrafficSample) -> None:
        """Keep a sample of any node. A sample that is late or not whole is dropped."""
        if len(sample.buckets) != BUCKETS or len(sample.outcomes) != len(CLASSES):
            # A node with another version of Comity may count in other buckets or classes.
            return
        samples = self._samples_by_node.get(sample.node)
        if samples is None:
            self._drop_old_nodes(sample.at)
            if len(self._samples_by_node) >= MAX_NODES:
                return
            samples = self._samples_by_node[sample.node] = deque(maxlen=MAX_SAMPLES)
        if not samples or samples[-1].at < sample.at:
            samples.append(sample)

    def _drop_old_nodes(self, at: int) -> None:
        oldest = at - MAX_SAMPLES * SAMPLE_SECONDS
        for node in [name for name, kept in self._samples_by_node.items() if kept[-1].at < oldest]:
            del self._samples_by_node[node]

    def series(self, now: int) -> Sequence[SampleView]:
        """Return the sums over all nodes of the last hour, the oldest first."""
        oldest = now - MAX_SAMPLES * SAMPLE_SECONDS
        by_time: dict[int, list[TrafficSample]] = {}
        for samples in self._samples_by_node.values():
            for sample in samples:
                if sample.at > oldest:
                    by_time.setdefault(sample.at, []).append(sample)
        return [sample_view(by_time[at]) for at in sorted(by_time)]

    def latest(self) -> Mapping[str, SampleView]:
        """Return the newest sample of each node."""
        return {node: sample_view([kept[-1]]) for node, kept in self._samples_by_node.items()}

    def sum_at(self, at: int) -> SampleView:
        """Return the sum of the newest samples of all nodes that are not older than a minute."""
        newest = [kept[-1] for kept in self._samples_by_node.values() if kept[-1].at > at - 60]
        return {**sample_view(newest), "at": at}

    async def _read_totals(self) -> TrafficTotals:
        calls, by_class = 0, Counter[OutcomeClass]()
        buckets = [0] * BUCKETS
        for server in self._metrics().servers():
            for counter in list(server.tools.values()):
                for outcome, count in counter.outcomes.items():
                    calls += count
                    by_class[class_of(outcome)] += count
                buckets = [a + b for a, b in zip(buckets, counter.counts, strict=True)]
            # Other tasks run between two servers, because there may be many.
            await asyncio.sleep(0)
        tokens, money = self._count_usage()
        outcomes = tuple(by_class[each] for each in CLASSES)
        return TrafficTotals(calls, outcomes, tokens, money, tuple(buckets))


def _differences(now: Iterable[int], before: Iterable[int]) -> tuple[int, ...]:
    return tuple(one - other for one, other in zip(now, before, strict=True))


def sample_view(samples: Iterable[TrafficSample]) -> SampleView:
    """Return the sum of samples."""
    listed = list(samples)
    buckets = [sum(counts) for counts in zip(*(each.buckets for each in listed), strict=True)]
    return {
        "at": max((each.at for each in listed), default=0),
        "calls": sum(each.calls for each in listed),
        "outcomes": {
            outcome: sum(each.outcomes[place] for each in listed)
            for place, outcome in enumerate(CLASSES)
        },
        "waiting": sum(each.waiting for each in listed),
        "p50_ms": percentile_ms(buckets, 0.5),
        "p95_ms": percentile_ms(buckets, 0.95),
        "tokens": sum(each.tokens for each in listed),
        "cost": sum(each.money for each in listed) / 1_000_000,
    }


def percentile_ms(buckets: Sequence[int], part: float) -> float | None:
    """Return the duration below which this part of the calls lies, by its bucket."""
    wanted = sum(buckets) * part
    if not wanted:
        return None
    edges = list(pairwise((0.0, *BOUNDS, BOUNDS[-1])))
    for (low, high), count in zip(edges, buckets, strict=True):
        if count >= wanted:
            return round((low + (high - low) * wanted / count) * 1000, 2)
        wanted -= count
    return BOUNDS[-1] * 1000
