"""Limits of calls: what is counted for whom, and what a refusal says."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.errors import QUOTA_EXCEEDED, RATE_LIMITED
from comity.mcp.actors import Actor
from comity.mcp.refusals import Refusal
from comity.policy.call_limiter import CallLimiter
from comity.policy.limits import LimitIndex, LimitRule, Quota, Unit
from comity.toolkit.resilience import RateCounter, RateLimit
from tests.support.carriers import Clock
from tests.support.cases import loop_over

ANA, BEN = Actor("agent:ana", credential="key:1"), Actor("agent:ben", credential="key:2")
NOON = 1_790_000_000.0


def limit(rate: str = "2/m", *per: Unit, subject: str = "*", target: str = "*") -> LimitRule:
    return LimitRule(subject, target, per or ("principal",), RateLimit.parse(rate))


class Counted:
    """Limits with a hand-driven clock."""

    def __init__(self, *written: LimitRule, most: int = 1000) -> None:
        self.clock, self.wall = Clock(), Clock()
        self.wall.time = NOON
        self.limits = CallLimiter(written, self.clock, self.wall, most)

    def take(self, actor: Actor = ANA, server: str = "s", name: str = "t", cost: int = 1) -> bool:
        """Whether a call may pass."""
        return self.limits.count_call(actor, server, name, cost) is None

    def refused(self, actor: Actor = ANA, server: str = "s", name: str = "t") -> Refusal:
        refusal = self.limits.count_call(actor, server, name)
        assert isinstance(refusal, Refusal)
        return refusal


def test_refusal_says_when_a_call_may_pass() -> None:
    counted = Counted(limit("2/m"))
    assert counted.take()
    assert counted.take()
    refusal = counted.refused()
    assert refusal.fault is RATE_LIMITED
    assert refusal.details == {"limit": 2, "window_secs": 60, "current": 3}
    assert refusal.retry_after is not None
    assert refusal.retry_after.total_seconds() == 30
    assert refusal.reason == "rate limited: this principal may have 2 calls in a minute"
    assert figure(counted, "comity_rate_limited_total") == 1
    counted.clock.time += 29.9
    assert not counted.take()
    counted.clock.time += 0.1
    assert counted.take()
    single = Counted(limit("1/m"))
    assert single.take()
    assert single.refused().reason == "rate limited: this principal may have 1 call in a minute"


def test_risky_call_takes_more_of_a_rate() -> None:
    counted = Counted(limit("10/h"))
    assert counted.take(cost=8)
    assert not counted.take(cost=3)
    assert counted.take(cost=2)


# By what it is counted, and whether another party, key, tool and server has a count of its own.
APART: list[tuple[tuple[Unit, ...], list[bool]]] = [
    (("principal",), [True, False, False, False]),
    (("key",), [True, True, False, False]),
    (("tool",), [False, False, True, True]),
    (("server",), [False, False, False, True]),
    (("principal", "tool"), [True, False, True, True]),
]


@loop_over(("per", "apart"), APART)
def test_who_has_a_count_of_its_own_follows_from_what_is_counted(
    per: tuple[Unit, ...], apart: list[bool]
) -> None:
    counted = Counted(limit("1/h", *per))
    assert counted.take()
    assert not counted.take()
    others = [
        counted.take(BEN),
        counted.take(Actor(ANA.party, credential="key:3")),
        counted.take(name="u"),
        counted.take(server="z"),
    ]
    assert others == apart


def test_a_limit_that_is_counted_by_nothing_is_for_everybody_together() -> None:
    counted = Counted(LimitRule(per=(), rate=RateLimit.parse("1/h")))
    assert counted.take(ANA)
    assert not counted.take(BEN, "other", "tool")
    assert "all principals together" in counted.refused(BEN).reason


def test_only_those_whom_a_limit_names_stand_under_it() -> None:
    counted = Counted(limit("1/h", subject="agent:ana", target="s/*"))
    assert counted.take()
    assert not counted.take()
    assert counted.take(BEN)
    assert counted.take(server="z")


def test_what_one_limit_refuses_is_not_counted_by_the_others() -> None:
    for limits in (
        [limit("3/h", "server", target="s/*"), limit("1/h", "principal")],
        [limit("1/h", "principal"), limit("3/h", "server", target="s/*")],
        [limit("3/h", "server"), limit("1/h", "principal", subject="agent:*")],
        [limit("1/h", "principal", subject="agent:*"), limit("3/h", "server")],
    ):
        counted = Counted(*limits)
        assert counted.take()
        assert not any(counted.take() for _ in range(50))
        others = [Actor(f"agent:{number}") for number in range(3)]
        assert [counted.take(other) for other in others] == [True, True, False]


def test_a_quota_says_when_it_renews_and_does() -> None:
    counted = Counted(LimitRule(quota=Quota.parse("2/d")))
    assert counted.take(cost=5)
    assert counted.take()
    refusal = counted.refused()
    assert refusal.fault is QUOTA_EXCEEDED
    assert refusal.details == {
        "limit": 2,
        "window_secs": 86400,
        "current": 3,
        "renews_at": "2026-09-22T00:00:00Z",
    }
    assert refusal.retry_after is not None
    counted.wall.time += refusal.retry_after.total_seconds()
    assert counted.take()


def test_a_clock_that_is_set_back_makes_nobody_wait_for_days() -> None:
    counted = Counted(LimitRule(quota=Quota.parse("1/d")))
    assert counted.take()
    counted.wall.time -= 3 * 86400
    assert counted.take()
    assert not counted.take()


def test_a_key_may_have_limits_of_its_own_for_every_request() -> None:
    counted = Counted()
    key = Actor("agent:ana", credential="key:1", requests_per_minute=2, requests_per_hour=3)
    arrive = counted.limits.count_request
    assert [arrive(key) is None for _ in range(3)] == [True, True, False]
    counted.clock.time += 60
    assert [arrive(key) is None for _ in range(2)] == [True, False]
    refusal = arrive(key)
    assert isinstance(refusal, Refusal)
    assert refusal.details["window_secs"] == 3600
    other = Actor("agent:ana", credential="key:2", requests_per_minute=1)
    assert arrive(other) is None
    raised = Actor("agent:ana", credential="key:1", requests_per_minute=5)
    assert arrive(raised) is None


def test_what_has_been_earned_again_is_forgotten_when_there_is_much_of_it() -> None:
    counted = Counted(limit("1/m", "tool"), most=10)
    for number in range(10):
        assert counted.take(name=f"t{number}")
    counted.clock.time += 30
    counted.take(name="late")
    counted.clock.time += 31
    counted.limits.check()
    assert figure(counted, "comity_limit_counters") == 1
    assert not counted.take(name="late")
    assert counted.take(name="t1")


def test_counts_never_grow_past_their_bound() -> None:
    counted = Counted(limit("1/h", "tool"), most=100)
    for number in range(1000):
        assert counted.take(name=f"t{number}")
    assert figure(counted, "comity_limit_counters") <= 100
    assert figure(counted, "comity_limit_counters_dropped_total") >= 900
    assert not counted.take(name="t999")


def test_names_that_a_caller_makes_up_have_one_count_together() -> None:
    limits = CallLimiter(
        [limit("2/h", "tool")], Clock(), is_listed=lambda server, name: name == "t"
    )
    made_up = [limits.count_call(ANA, "s", f"no{number}") is None for number in range(4)]
    assert made_up == [True, True, False, False]
    assert limits.count_call(ANA, "s", "t") is None
    assert [family.samples[0][1] for family in limits.metric_families()][1] == 2


def test_limits_can_be_replaced_while_calls_go_on() -> None:
    stays, goes = limit("1/h", "principal"), limit("1/h", "tool")
    counted = Counted(stays, goes)
    assert counted.take()
    counted.limits.replace([stays])
    assert not counted.take()
    counted.limits.replace([])
    assert counted.take()


def figure(counted: Counted, name: str) -> float:
    family = next(each for each in counted.limits.metric_families() if each.name == name)
    value = family.samples[0][1]
    assert isinstance(value, int | float)
    return value


SLACK = 1e-6
rates = st.builds(
    RateLimit,
    count=st.integers(1, 50),
    period=st.sampled_from([1.0, 60.0, 3600.0]),
    burst=st.integers(1, 50),
)
requests = st.lists(
    st.tuples(st.floats(0, 30, allow_nan=False), st.integers(1, 8)), min_size=1, max_size=60
)


def passed(rate: RateLimit, asked: list[tuple[float, int]]) -> list[tuple[float, int, bool]]:
    """Each request, its cost, and whether it was let through."""
    counter, now, told = RateCounter(rate), 0.0, list[tuple[float, int, bool]]()
    for pause, cost in asked:
        now += pause
        free = counter.wait(now, cost) == 0
        if free:
            counter.take(now, cost)
        told.append((now, min(cost, rate.burst), free))
    return told


@given(rates, requests)
def test_in_no_stretch_of_time_more_passes_than_the_burst_and_what_it_earns(
    rate: RateLimit, asked: list[tuple[float, int]]
) -> None:
    taken = [(at, cost) for at, cost, free in passed(rate, asked) if free]
    for first, (begin, _) in enumerate(taken):
        total = 0
        for at, cost in taken[first:]:
            total += cost
            assert total <= rate.burst + (at - begin) * rate.count / rate.period + SLACK


@given(rates, requests)
def test_what_is_let_through_is_what_a_bucket_that_fills_again_would_let(
    rate: RateLimit, asked: list[tuple[float, int]]
) -> None:
    """The same counted the other way: tokens that are earned, in exact fractions."""
    tokens, before = Fraction(rate.burst), Fraction(0)
    for at, cost, free in passed(rate, asked):
        now = Fraction(at)
        earned = (now - before) * rate.count / Fraction(rate.period)
        tokens, before = min(Fraction(rate.burst), tokens + earned), now
        if abs(tokens - cost) > SLACK:
            assert free is (tokens >= cost)
        if free:
            tokens -= cost


@given(rates, requests, st.integers(1, 8))
def test_who_waits_as_long_as_told_may_pass_and_not_before(
    rate: RateLimit, asked: list[tuple[float, int]], cost: int
) -> None:
    counter, now = RateCounter(rate), 0.0
    for pause, each in asked:
        now += pause
        if counter.wait(now, each) == 0:
            counter.take(now, each)
    wait = counter.wait(now, cost)
    assert counter.wait(now + wait + SLACK, cost) == 0
    if wait > SLACK:
        assert counter.wait(now + wait - SLACK, cost) > 0


def test_a_call_that_costs_more_than_a_burst_takes_the_whole_of_it() -> None:
    counter = RateCounter(RateLimit(60, 60.0, 5))
    assert counter.wait(100.0, cost=50) == 0
    counter.take(100.0, cost=50)
    assert counter.wait(100.0) == pytest.approx(1.0)


@loop_over(
    ("text", "burst", "rate"),
    [
        ("60/m", None, RateLimit(60, 60.0, 60)),
        ("60/m", 5, RateLimit(60, 60.0, 5)),
        ("1/s", None, RateLimit(1, 1.0, 1)),
        ("7/h", None, RateLimit(7, 3600.0, 7)),
        ("9/d", None, RateLimit(9, 86400.0, 9)),
    ],
)
def test_a_rate_is_written_as_a_number_and_a_period(
    text: str, burst: int | None, rate: RateLimit
) -> None:
    assert RateLimit.parse(text, burst) == rate


@loop_over("text", ["", "60", "0/m", "-1/m", "60/y", "60/m ", "1.5/s", "\u0663/m"])
def test_anything_else_is_no_rate_and_no_quota(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        RateLimit.parse(text)
    with pytest.raises(ValueError, match="is no"):
        Quota.parse(text)


@loop_over(
    ("text", "now", "begins", "ends"),
    [
        ("5/d", "2026-03-01T23:59:59", "2026-03-01", "2026-03-02"),
        ("5/mo", "2026-12-31T23:59:59", "2026-12-01", "2027-01-01"),
        ("5/mo", "2028-02-29T12:00:00", "2028-02-01", "2028-03-01"),
        ("5/mo", "2026-01-01T00:00:00", "2026-01-01", "2026-02-01"),
    ],
)
def test_a_quota_is_for_a_day_or_a_month_of_utc(
    text: str, now: str, begins: str, ends: str
) -> None:
    at = datetime.fromisoformat(now).replace(tzinfo=UTC)
    span = Quota.parse(text).span(at)
    assert span == tuple(datetime.fromisoformat(day).replace(tzinfo=UTC) for day in (begins, ends))


@given(st.datetimes(timezones=st.just(UTC)).filter(lambda at: 1 < at.year < 9999))
def test_every_moment_is_in_exactly_one_window(now: datetime) -> None:
    for quota in (Quota(1, "day"), Quota(1, "month")):
        begins, ends = quota.span(now)
        assert begins <= now < ends
        assert quota.span(ends)[0] == ends
        assert quota.span(begins - timedelta(microseconds=1))[1] == begins


NAMES = ("a", "b", "*", "a*")
texts = st.sampled_from(NAMES)
limit_rules = st.builds(
    LimitRule,
    subject=texts,
    target=st.one_of(st.just("*"), st.builds("{}/{}".format, texts, texts)),
    per=st.just(("principal",)),
)


def _covers(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == text


@given(st.lists(limit_rules, max_size=20), st.sampled_from("abc"), st.sampled_from("abc"))
def test_the_limits_that_cover_a_call_are_found_without_looking_at_all(
    written: list[LimitRule], party: str, server: str
) -> None:
    def stands_under(limit: LimitRule) -> bool:
        of_server, _, of_name = (limit.target if limit.target != "*" else "*/*").partition("/")
        return (
            _covers(limit.subject, party) and _covers(of_server, server) and _covers(of_name, "aa")
        )

    found = LimitIndex(written).limits_for(party, server, "aa")
    assert sorted(map(repr, found)) == sorted(repr(each) for each in written if stands_under(each))
