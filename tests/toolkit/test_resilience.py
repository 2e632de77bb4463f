"""Retry schedules, circuit breaker, rate limiter and byte budget."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from comity.toolkit.background import draw_delay
from comity.toolkit.resilience import (
    FEE,
    MAX_FAILURES,
    MIN_REST,
    ByteBudget,
    CircuitBreaker,
    CircuitEvent,
    CircuitState,
    Jitter,
    RateLimit,
    RateLimiter,
    RetrySchedule,
)
from tests.support.carriers import Clock
from tests.support.cases import loop_over

SCHEDULE = RetrySchedule(first=timedelta(seconds=1), max_delay=timedelta(seconds=10))


@loop_over(("failures", "seconds"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 8), (5, 10), (5000, 10)])
def test_the_wait_doubles_up_to_the_longest(failures: int, seconds: float) -> None:
    assert SCHEDULE.delay(failures, 1.0) == timedelta(seconds=seconds)


@given(st.integers(-5, 10**6), st.floats(0, 1, exclude_max=True))
def test_chance_takes_away_at_most_half_of_the_wait(failures: int, chance: float) -> None:
    whole = SCHEDULE.delay(failures, 1.0)
    assert whole / 2 <= SCHEDULE.delay(failures, chance) <= whole


def test_without_a_given_chance_the_wait_is_random_within_its_jitter() -> None:
    waits = {draw_delay(SCHEDULE, 1) for _ in range(50)}
    assert len(waits) > 1
    assert all(timedelta(seconds=0.5) <= wait <= timedelta(seconds=1) for wait in waits)


def test_a_jitter_above_one_never_shortens_a_wait() -> None:
    schedule = RetrySchedule(timedelta(seconds=1), jitter=Jitter(1.0, 1.25))
    assert schedule.delay(1, 0.0) == timedelta(seconds=1)
    assert schedule.delay(1, 1.0) == timedelta(seconds=1.25)


@loop_over(
    ("schedule", "attempts", "seconds", "is_exhausted"),
    [
        (RetrySchedule(), 1_000, 10**6, False),
        (RetrySchedule(max_attempts=3), 2, 10**6, False),
        (RetrySchedule(max_attempts=3), 3, 0, True),
        (RetrySchedule(give_up_after=timedelta(seconds=9)), 99, 8, False),
        (RetrySchedule(give_up_after=timedelta(seconds=9)), 1, 9, True),
    ],
)
def test_a_schedule_ends_by_attempts_or_by_time(
    schedule: RetrySchedule, attempts: int, seconds: int, is_exhausted: bool
) -> None:
    assert schedule.is_exhausted(attempts, timedelta(seconds=seconds)) is is_exhausted


ROWS = """
closed    | answered | closed
closed    | failed   | closed
closed    | waited   | closed
open      | answered | open
open      | failed   | open
open      | waited   | half open
half open | answered | closed
half open | failed   | open
half open | waited   | half open
"""


def circuit_in(state: CircuitState) -> CircuitBreaker:
    circuit = CircuitBreaker()
    circuit.state = state
    return circuit


@loop_over("row", [line for line in ROWS.splitlines() if line])
def test_a_state_follows_as_its_row_says(row: str) -> None:
    state, event, following = (cell.strip() for cell in row.split("|"))
    circuit = circuit_in(CircuitState(state))
    circuit.record(CircuitEvent(event))
    assert circuit.state == following


def test_it_opens_at_the_last_failure_in_a_row_that_is_borne() -> None:
    circuit = CircuitBreaker()
    for number in range(1, MAX_FAILURES + 1):
        assert circuit.state is CircuitState.CLOSED
        circuit.record(CircuitEvent.FAILED)
        assert circuit.failures == number
    assert circuit.state is CircuitState.OPEN


def test_an_answer_between_failures_begins_the_count_anew() -> None:
    circuit = CircuitBreaker()
    for _ in range(20):
        for _ in range(MAX_FAILURES - 1):
            circuit.record(CircuitEvent.FAILED)
        circuit.record(CircuitEvent.ANSWERED)
    assert (circuit.state, circuit.failures) == (CircuitState.CLOSED, 0)


@given(st.lists(st.sampled_from(CircuitEvent)), st.integers(1, 8))
def test_it_is_never_closed_but_by_an_answer_to_a_probe(
    happened: list[CircuitEvent], most: int
) -> None:
    circuit = CircuitBreaker(max_failures=most)
    for event in happened:
        before = circuit.state
        circuit.record(event)
        if circuit.state is CircuitState.CLOSED and before is not CircuitState.CLOSED:
            assert (before, event) == (CircuitState.HALF_OPEN, CircuitEvent.ANSWERED)
        if circuit.state is CircuitState.OPEN and before is CircuitState.CLOSED:
            assert (event, circuit.failures) == (CircuitEvent.FAILED, most)


def test_after_the_rest_one_call_probes_and_the_others_wait_for_its_outcome() -> None:
    circuit = CircuitBreaker(max_failures=1, rest=30.0)
    assert (circuit.seconds_until_retry(100.0), circuit.take_probe(100.0)) == (None, None)
    circuit.record(CircuitEvent.FAILED, 100.0)
    assert (circuit.seconds_until_retry(110.0), circuit.take_probe(110.0)) == (20.0, 20.0)
    assert circuit.take_probe(130.0) is None
    assert circuit.take_probe(130.0) == 30.0
    circuit.record(CircuitEvent.ANSWERED, 131.0)
    assert circuit.take_probe(131.0) is None
    assert circuit.state is CircuitState.CLOSED


ONCE, TWICE = RateLimit(1, 60.0, 1), RateLimit(2, 60.0, 2)


def test_a_call_is_counted_under_every_key_or_under_none() -> None:
    limiter = RateLimiter(Clock())
    assert limiter.take({"server": TWICE, "tool": ONCE}) == 0.0
    assert limiter.take({"server": TWICE, "tool": ONCE}) == 60.0
    assert limiter.take({"server": TWICE}) == 0.0
    assert limiter.take({"server": TWICE}) == 30.0


def test_without_a_rate_every_call_passes() -> None:
    limiter = RateLimiter(Clock())
    assert [limiter.take({}) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert len(limiter) == 0


def test_another_rate_of_the_same_key_has_a_count_of_its_own() -> None:
    limiter = RateLimiter(Clock())
    assert limiter.take({"server": ONCE}) == 0.0
    assert limiter.take({"server": TWICE}) == 0.0
    assert limiter.take({"server": ONCE}) == 60.0


def test_idle_keys_are_dropped_before_busy_ones() -> None:
    clock = Clock()
    limiter = RateLimiter(clock, max_keys=10)
    for number in range(9):
        limiter.take({number: ONCE})
    clock.time += 59
    limiter.take({"busy": ONCE})
    clock.time += 2
    limiter.take({"new": ONCE})
    assert (len(limiter), limiter.dropped_keys, limiter.generation) == (2, 0, 1)
    assert limiter.take({"busy": ONCE}) == 58.0


def test_the_oldest_keys_go_when_all_are_busy() -> None:
    limiter = RateLimiter(Clock(), max_keys=10)
    for number in range(100):
        limiter.take({number: ONCE})
    assert (len(limiter), limiter.dropped_keys) == (10, 90)
    assert limiter.take({99: ONCE}) == 60.0


def test_a_few_keys_are_not_swept() -> None:
    clock = Clock()
    limiter = RateLimiter(clock, max_keys=10)
    limiter.take({"one": ONCE})
    clock.time += 100
    limiter.sweep()
    assert (len(limiter), limiter.generation) == (1, 0)


def test_a_burst_is_heard_without_a_look_at_the_clock() -> None:
    allowance = ByteBudget(burst=10 * FEE)
    for _ in range(9):
        allowance.spend_on_noise(1)
        assert not allowance.is_exhausted
    allowance.spend_on_noise(FEE)
    assert allowance.is_exhausted


def test_who_has_spent_all_rests_until_it_is_earned_again() -> None:
    allowance = ByteBudget(burst=1000, each_second=100)
    allowance.spend(1200)
    assert allowance.pause_seconds(50.0) == 2.0
    assert allowance.is_exhausted
    assert allowance.pause_seconds(52.0) == 0.0
    assert not allowance.is_exhausted


def test_time_without_noise_fills_the_store_and_no_more_than_that() -> None:
    allowance = ByteBudget(burst=1000, each_second=100)
    allowance.spend(1001)
    assert allowance.pause_seconds(0.0) == MIN_REST
    allowance.spend(500)
    assert allowance.pause_seconds(1_000_000.0) == 0.0
    allowance.spend(1000)
    assert not allowance.is_exhausted
    allowance.spend(1)
    assert allowance.is_exhausted


def test_an_answer_of_any_size_costs_nothing_once_it_is_whole() -> None:
    allowance = ByteBudget(burst=1000)
    for _ in range(100):
        allowance.spend(900)
        assert not allowance.is_exhausted
        allowance.give_back(900)


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0.001, 10)), max_size=60))
def test_in_the_long_run_no_more_is_heard_than_was_earned(said: list[tuple[int, float]]) -> None:
    allowance, now, heard, largest = ByteBudget(burst=10_000, each_second=1000), 0.0, 0, 0
    allowance.pause_seconds(now)
    for size, pause in said:
        allowance.spend(size)
        heard, largest = heard + size, max(largest, size)
        now += pause
        if allowance.is_exhausted:
            now += allowance.pause_seconds(now)
    assert heard <= 10_000 + now * 1000 + largest
