"""What may be spent in a day: which budgets count, what it costs, when the day ends."""

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.budgets import (
    Amount,
    Budget,
    Price,
    cost,
    covering,
    day_of,
    opens_again,
    spent,
)
from comity.wire.inference import Usage


@pytest.mark.parametrize(
    ("budget", "party", "feature", "counts"),
    [
        (Budget(), "agent:a", "x.y", True),
        (Budget(), "agent:a", "", True),
        (Budget("agent:a"), "agent:a", "x.y", True),
        (Budget("agent:a"), "agent:b", "x.y", False),
        (Budget("agent:*"), "agent:b", "x.y", True),
        (Budget("agent:*"), "server:b", "x.y", False),
        (Budget("*", "x.*"), "agent:a", "x.y", True),
        (Budget("*", "x.*"), "agent:a", "y.x", False),
        (Budget("*", "x.*"), "agent:a", "", False),
        (Budget("*", "x.y"), "agent:a", "x.y", True),
        (Budget("*", "x.y"), "agent:a", "x.y.z", False),
    ],
)
def test_a_budget_counts_for_whom_it_covers(
    budget: Budget, party: str, feature: str, counts: bool
) -> None:
    assert covering([budget], party, feature) == ([budget] if counts else [])


def test_all_that_cover_count_in_one_order() -> None:
    both = [Budget("*", tokens=1), Budget("agent:*", tokens=2)]
    assert covering(both, "agent:a", "x") == covering(both[::-1], "agent:a", "x")
    assert len(covering(both, "agent:a", "x")) == 2


def test_each_party_has_its_own_account_unless_they_share() -> None:
    own, together = Budget("agent:*"), Budget("agent:*", shared=True)
    assert own.account("agent:a") != own.account("agent:b")
    assert together.account("agent:a") == together.account("agent:b")
    assert own.account("agent:a") != Budget("agent:*", "x.*").account("agent:a")


@pytest.mark.parametrize(
    ("usage", "price", "millionths"),
    [
        (Usage(1_000_000, 0), Price(3.0, 15.0), 3_000_000),
        (Usage(0, 1_000_000), Price(3.0, 15.0), 15_000_000),
        (Usage(100, 10), Price(10, 20), 1_200),
        (Usage(1, 0), Price(0.15, 0), 1),
        (Usage(0, 0), Price(3.0, 15.0), 0),
        (Usage(1_000, 1_000), Price(), 0),
    ],
)
def test_a_price_is_for_a_million_tokens(usage: Usage, price: Price, millionths: int) -> None:
    assert cost(usage, price) == millionths
    assert spent(usage, price) == Amount(usage.input + usage.output, millionths)


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.floats(0, 1000), st.floats(0, 1000))
def test_more_tokens_never_cost_less(read: int, said: int, one: float, other: float) -> None:
    price = Price(one, other)
    assert 0 <= cost(Usage(read, said), price) <= cost(Usage(read + 1, said + 1), price)


def test_amounts_are_added_and_taken_away() -> None:
    assert Amount(1, 2).plus(Amount(3, 4)).minus(Amount(1, 1)) == Amount(3, 5)


def test_a_day_is_one_of_utc() -> None:
    east = timezone(timedelta(hours=9))
    assert day_of(datetime(2026, 3, 2, 8, 59, tzinfo=east)) == date(2026, 3, 1)
    assert day_of(datetime(2026, 3, 2, 9, 0, tzinfo=east)) == date(2026, 3, 2)
    assert opens_again(date(2026, 12, 31)) == datetime(2027, 1, 1, tzinfo=UTC)
