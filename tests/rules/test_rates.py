"""Rates and quotas: against a count of what passed in every stretch of time."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.rates import Limit, LimitBook, Quota, Rate, of_key

SLACK = 1e-6
rates = st.builds(
    Rate,
    count=st.integers(1, 50),
    period=st.sampled_from([1.0, 60.0, 3600.0]),
    burst=st.integers(1, 50),
)
requests = st.lists(
    st.tuples(st.floats(0, 30, allow_nan=False), st.integers(1, 8)), min_size=1, max_size=60
)


def passed(rate: Rate, asked: list[tuple[float, int]]) -> list[tuple[float, int, bool]]:
    """Each request, its cost, and whether it was let through."""
    due, now, told = 0.0, 0.0, list[tuple[float, int, bool]]()
    for pause, cost in asked:
        now += pause
        free = rate.wait(due, now, cost) == 0
        due = rate.after(due, now, cost) if free else due
        told.append((now, min(cost, rate.burst), free))
    return told


@given(rates, requests)
def test_in_no_stretch_of_time_more_passes_than_the_burst_and_what_it_earns(
    rate: Rate, asked: list[tuple[float, int]]
) -> None:
    taken = [(at, cost) for at, cost, free in passed(rate, asked) if free]
    for first, (begin, _) in enumerate(taken):
        total = 0
        for at, cost in taken[first:]:
            total += cost
            assert total <= rate.burst + (at - begin) * rate.count / rate.period + SLACK


@given(rates, requests)
def test_what_is_let_through_is_what_a_bucket_that_fills_again_would_let(
    rate: Rate, asked: list[tuple[float, int]]
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
    rate: Rate, asked: list[tuple[float, int]], cost: int
) -> None:
    due, now = 0.0, 0.0
    for pause, each in asked:
        now += pause
        if rate.wait(due, now, each) == 0:
            due = rate.after(due, now, each)
    wait = rate.wait(due, now, cost)
    assert rate.wait(due, now + wait + SLACK, cost) == 0
    if wait > SLACK:
        assert rate.wait(due, now + wait - SLACK, cost) > 0


def test_a_call_that_costs_more_than_a_burst_takes_the_whole_of_it() -> None:
    rate = Rate(60, 60.0, 5)
    assert rate.wait(0.0, 100.0, cost=50) == 0
    assert rate.wait(rate.after(0.0, 100.0, cost=50), 100.0) == pytest.approx(1.0)


def test_what_stands_against_the_burst_is_told() -> None:
    rate = Rate.parse("10/m")
    due = 0.0
    for _ in range(10):
        due = rate.after(due, 50.0)
    assert rate.current(due, 50.0) == 11


@pytest.mark.parametrize(
    ("text", "burst", "rate"),
    [
        ("60/m", None, Rate(60, 60.0, 60)),
        ("60/m", 5, Rate(60, 60.0, 5)),
        ("1/s", None, Rate(1, 1.0, 1)),
        ("7/h", None, Rate(7, 3600.0, 7)),
        ("9/d", None, Rate(9, 86400.0, 9)),
    ],
)
def test_a_rate_is_written_as_a_number_and_a_period(
    text: str, burst: int | None, rate: Rate
) -> None:
    assert Rate.parse(text, burst) == rate


@pytest.mark.parametrize("text", ["", "60", "0/m", "-1/m", "60/y", "60/m ", "1.5/s", "\u0663/m"])
def test_anything_else_is_no_rate_and_no_quota(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        Rate.parse(text)
    with pytest.raises(ValueError, match="is no"):
        Quota.parse(text)


@pytest.mark.parametrize(
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
limits = st.builds(
    Limit,
    subject=texts,
    target=st.one_of(st.just("*"), st.builds("{}/{}".format, texts, texts)),
    per=st.just(("party",)),
)


def _covers(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == text


@given(st.lists(limits, max_size=20), st.sampled_from("abc"), st.sampled_from("abc"))
def test_the_limits_that_cover_a_call_are_found_without_looking_at_all(
    written: list[Limit], party: str, server: str
) -> None:
    def stands_under(limit: Limit) -> bool:
        of_server, _, of_name = (limit.target if limit.target != "*" else "*/*").partition("/")
        return (
            _covers(limit.subject, party) and _covers(of_server, server) and _covers(of_name, "aa")
        )

    found = LimitBook(written).covering(party, server, "aa")
    assert sorted(map(repr, found)) == sorted(repr(each) for each in written if stands_under(each))


def test_a_key_has_the_limits_that_the_registry_writes() -> None:
    assert of_key(None, None) == ()
    assert of_key(60, 1000) == (Rate(60, 60.0, 60), Rate(1000, 3600.0, 1000))
