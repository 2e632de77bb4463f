"""The retry schedule, circuit breaker, rate limiter (GCRA) and byte budget of the program.

Every module that limits a rate, repeats an attempt or stops calling a failing peer uses these. The
module is pure: callers pass the clock and the random number. `background.draw_delay` draws one.
"""

import itertools
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple, Protocol, Self, cast


class Jitter(NamedTuple):
    """Bounds of the random factor of a delay, which prevents many clients from retrying at once."""

    least: float
    most: float


HALF: Final = Jitter(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """The delays after failures, the number of attempts, and the total time.

    The first delay doubles after each failure up to the longest.
    """

    first: timedelta = timedelta(milliseconds=500)
    max_delay: timedelta = timedelta(seconds=30)
    max_attempts: int | None = None
    give_up_after: timedelta | None = None
    jitter: Jitter = HALF

    def delay(self, failures: int, chance: float) -> timedelta:
        """Return the wait after that many failures in a row. `chance` in [0, 1) sets the jitter."""
        doubled = self.first * 2 ** min(max(failures - 1, 0), 30)
        least, most = self.jitter
        return min(doubled, self.max_delay) * (least + (most - least) * chance)

    def is_exhausted(self, attempts: int, age: timedelta = timedelta(0)) -> bool:
        """Return whether no further attempt follows after these attempts in this time."""
        if self.max_attempts is not None and attempts >= self.max_attempts:
            return True
        return self.give_up_after is not None and age >= self.give_up_after


class CircuitState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half open"


class CircuitEvent(StrEnum):
    """The outcome of a call or of a probe, or the end of a wait."""

    ANSWERED = "answered"
    FAILED = "failed"
    WAITED = "waited"


MAX_FAILURES: Final = 5
"""The number of failed calls in a row that opens the circuit. One bad tool does not open it while
the

other tools answer.
"""

_FOLLOWING: Final[dict[tuple[CircuitState, CircuitEvent], CircuitState]] = {
    (CircuitState.CLOSED, CircuitEvent.ANSWERED): CircuitState.CLOSED,
    (CircuitState.CLOSED, CircuitEvent.WAITED): CircuitState.CLOSED,
    # A call that was in progress when the circuit opened may still get a response. Only the
    # response to a probe closes the circuit.
    (CircuitState.OPEN, CircuitEvent.ANSWERED): CircuitState.OPEN,
    (CircuitState.OPEN, CircuitEvent.FAILED): CircuitState.OPEN,
    (CircuitState.OPEN, CircuitEvent.WAITED): CircuitState.HALF_OPEN,
    (CircuitState.HALF_OPEN, CircuitEvent.ANSWERED): CircuitState.CLOSED,
    (CircuitState.HALF_OPEN, CircuitEvent.FAILED): CircuitState.OPEN,
    (CircuitState.HALF_OPEN, CircuitEvent.WAITED): CircuitState.HALF_OPEN,
}


class CircuitBreaker:
    """Stops calls to a failing peer until a probe succeeds.

    Callers report outcomes to `record`. A caller without its own probe asks `take_probe` before
    each call: after a rest period, one call passes as the probe. A caller that probes by itself
    needs no times.
    """

    __slots__ = ("_max_failures", "_opened_at", "_rest", "failures", "state")

    def __init__(self, *, max_failures: int = MAX_FAILURES, rest: float = 0.0) -> None:
        self.state = CircuitState.CLOSED
        self.failures = 0
        self._max_failures = max_failures
        self._rest = rest
        self._opened_at = 0.0

    def record(self, event: CircuitEvent, now: float = 0.0) -> None:
        if event is CircuitEvent.ANSWERED:
            self.failures = 0
        elif event is CircuitEvent.FAILED:
            self.failures += 1
        if self.state is CircuitState.CLOSED and event is CircuitEvent.FAILED:
            if self.failures >= self._max_failures:
                self._open(now)
            return
        self.state = _FOLLOWING[self.state, event]
        if self.state is CircuitState.OPEN:
            self._open(now)

    def seconds_until_retry(self, now: float) -> float | None:
        """Return how many seconds no call passes, or None while the circuit is closed."""
        if self.state is CircuitState.CLOSED:
            return None
        return max(self._opened_at + self._rest - now, 0.0)

    def take_probe(self, now: float) -> float | None:
        """Return how many seconds a call has to wait, or None if it passes or is the probe."""
        left = self.seconds_until_retry(now)
        if not left and self.state is not CircuitState.CLOSED:
            self.record(CircuitEvent.WAITED, now)
            # Other calls wait for the outcome of this probe.
            self._opened_at = now
            return None
        return left

    def _open(self, now: float) -> None:
        self.state = CircuitState.OPEN
        self._opened_at = now


BURST: Final = 8 * 1024 * 1024
EACH_SECOND: Final = 4 * 1024 * 1024
FEE: Final = 1024
"""The cost of a notification beside its bytes: some 4,000 a second pass forever, 8,000 at once."""

MIN_REST: Final = 0.05


class ByteBudget:
    """The number of bytes that one stream of a server may send before reading pauses.

    This is not a `RateLimiter`: bytes have arrived when they are counted, so the budget goes into
    debt. Bytes that belong to a call are given back. The budget reads the clock only when it is
    spent, because every message counts.
    """

    __slots__ = ("_burst", "_each_second", "_filled_at", "_left")

    def __init__(self, burst: int = BURST, each_second: int = EACH_SECOND) -> None:
        self._burst = self._left = burst
        self._each_second = each_second
        self._filled_at: float | None = None

    def spend(self, amount: int) -> None:
        self._left -= amount

    def spend_on_noise(self, size: int) -> None:
        """Count a message that belongs to no call."""
        self._left -= size + FEE

    def give_back(self, amount: int) -> None:
        self._left = min(self._left + amount, self._burst)

    @property
    def is_exhausted(self) -> bool:
        return self._left < 0

    def pause_seconds(self, now: float) -> float:
        """Return how many seconds reading pauses, or zero if enough time has passed."""
        if self._filled_at is None:
            # This is the first reading of the clock, so the budget was full until now.
            self._filled_at = now
        earned = int((now - self._filled_at) * self._each_second)
        self._filled_at = now
        self._left = min(self._left + earned, self._burst)
        if self._left >= 0:
            return 0.0
        return max(-self._left / self._each_second, MIN_REST)


PERIODS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

RATE_FORM: Final = r"([1-9][0-9]{0,8})/(s|m|h|d)"

_MIN_WAIT: Final = 1e-9
"""A shorter wait in seconds is a rounding error of the sums."""


@dataclass(frozen=True, slots=True)
class RateLimit:
    """A number of calls per period, and the number of them that may come at once."""

    count: int
    period: float
    burst: int
    # The seconds until one more call is allowed, computed once because every call needs it.
    each: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "each", self.period / self.count)

    @classmethod
    def parse(cls, text: str, burst: int | None = None) -> Self:
        """Parse a rate such as `60/m`. The burst defaults to its calls. Raises ValueError."""
        found = re.fullmatch(RATE_FORM, text)
        if found is None:
            raise ValueError(f"{text!r:.40} is no rate, as 60/m")
        count = int(found[1])
        return cls(count, PERIODS[found[2]], count if burst is None else burst)

    @classmethod
    def per_minute(cls, count: int) -> Self:
        return cls(count, 60.0, count)

    @classmethod
    def setting_per_minute(cls, count: int) -> Self | None:
        """The rate that a setting gives; 0 means no limit."""
        return cls.per_minute(count) if count else None


class UsageCounter(Protocol):
    """One counter of a `RateLimiter`."""

    def wait(self, now: float, cost: int = 1) -> float:
        """Return how many seconds a call has to wait, or zero. Counts nothing."""
        ...

    def take(self, now: float, cost: int = 1) -> None:
        """Count a call that passes."""
        ...

    def is_idle(self, now: float) -> bool:
        """Return whether the counter equals a new one."""
        ...


class RateCounter:
    """The usage under one rate, as the time at which all of it is earned again (GCRA)."""

    __slots__ = ("_due", "rate")

    def __init__(self, rate: RateLimit) -> None:
        self.rate = rate
        self._due = 0.0

    def wait(self, now: float, cost: int = 1) -> float:
        due, rate = self._due, self.rate
        late = due - now if due > now else 0.0
        if cost < rate.burst:
            late -= (rate.burst - cost) * rate.each
        return late if late > _MIN_WAIT else 0.0

    def take(self, now: float, cost: int = 1) -> None:
        self._due = max(self._due, now) + min(self.rate.burst, cost) * self.rate.each

    def is_idle(self, now: float) -> bool:
        return self._due <= now

    def current(self, now: float, cost: int = 1) -> int:
        """Return how many calls count against the burst, including a call that wants to pass."""
        return round(max(self._due - now, 0.0) * self.rate.count / self.rate.period) + cost


MAX_KEYS: Final = 50_000

SWEEP_INTERVAL_SECONDS: Final = 1.0
"""The minimum time between sweeps, which visit every key.

A caller that invents keys could otherwise cause one sweep per call.
"""


class RateLimiter:
    """Counts calls by key. The number of keys is bounded: idle keys go first, then the oldest."""

    def __init__(self, clock: Callable[[], float], max_keys: int = MAX_KEYS) -> None:
        self.clock = clock
        # The number of dropped counters that were not idle.
        self.dropped_keys = 0
        # Changes when counters are dropped. A caller that keeps a counter must then request it
        # again.
        self.generation = 0
        self._max_keys = max_keys
        self._counters: dict[Hashable, UsageCounter] = {}
        self._swept_at = float("-inf")

    def __len__(self) -> int:
        return len(self._counters)

    def take[Key: Hashable](self, rates: Mapping[Key, RateLimit], cost: int = 1) -> float:
        """Count a call under every key and return 0.0.

        If one key is at its limit, count nothing and return the seconds to wait.
        """
        now = self.clock()
        counters = [self.rate_counter(key, rate) for key, rate in rates.items()]
        wait = max((each.wait(now, cost) for each in counters), default=0.0)
        if not wait:
            for each in counters:
                each.take(now, cost)
        return wait

    def rate_counter(self, key: Hashable, rate: RateLimit) -> RateCounter:
        """Return the counter of a key under one rate. Another rate has its own counter."""
        return self.counter((key, rate), lambda: RateCounter(rate))

    def counter[C: UsageCounter](self, key: Hashable, make: Callable[[], C]) -> C:
        """Return the counter of a key, created if it is missing."""
        found = self._counters.get(key)
        if found is None:
            if len(self._counters) >= self._max_keys:
                self._make_space()
            found = self._counters[key] = make()
        return cast("C", found)

    def sweep(self) -> None:
        """Drop the idle counters if more than half of the allowed keys are in use."""
        if len(self._counters) <= self._max_keys // 2:
            return
        now = self.clock()
        self._counters = {k: each for k, each in self._counters.items() if not each.is_idle(now)}
        self.generation += 1

    def _make_space(self) -> None:
        now = self.clock()
        if now - self._swept_at >= SWEEP_INTERVAL_SECONDS:
            self._swept_at = now
            self.sweep()
        if len(self._counters) >= self._max_keys:
            oldest = list(itertools.islice(self._counters, self._max_keys // 100 + 1))
            for key in oldest:
                del self._counters[key]
            self.dropped_keys += len(oldest)
            self.generation += 1
