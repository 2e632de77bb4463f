"""Which model is asked, and what may be spent in a day."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from comity.inference.messages import TokenUsage
from comity.inference.model import (
    Amount,
    Budget,
    ModelRoute,
    Price,
    RouteQuery,
    amount_of_usage,
    compute_cost,
    day_of,
    find_budgets,
    next_day_start,
    rank_models,
)
from tests.support.cases import loop_over

WINDOWS = {"a": 1_000, "b": 10_000, "c": 100_000}


def first(*routes: ModelRoute, default: str = "", **sought: Any) -> str:
    found = rank_models(routes, default, RouteQuery(**sought), WINDOWS)
    return found[0].model if found else ""


@loop_over(
    ("routes", "sought", "model"),
    [
        ((), {}, ""),
        ((ModelRoute("a"),), {}, "a"),
        ((ModelRoute("a", feature="x.*"),), {"feature": "y.z"}, ""),
        ((ModelRoute("a", feature="x.*"),), {"feature": "x.z"}, "a"),
        ((ModelRoute("a", feature="x.*"),), {"feature": "x"}, ""),
        ((ModelRoute("a", feature="*"), ModelRoute("b", feature="x.*")), {"feature": "x.z"}, "b"),
        (
            (ModelRoute("a", feature="x.*"), ModelRoute("b", feature="x.y.*")),
            {"feature": "x.y.z"},
            "b",
        ),
        (
            (ModelRoute("a", feature="x.y.*"), ModelRoute("b", feature="x.y.z")),
            {"feature": "x.y.z"},
            "b",
        ),
        (
            (ModelRoute("a", feature="x.y"), ModelRoute("b", server="s", feature="x.y")),
            {"server": "s", "feature": "x.y"},
            "b",
        ),
        (
            (ModelRoute("a", feature="x.y"), ModelRoute("b", server="s", feature="x.*")),
            {"server": "s", "feature": "x.y"},
            "a",
        ),
        ((ModelRoute("a", server="s"),), {"server": "t"}, ""),
        ((ModelRoute("a", server="s"), ModelRoute("b")), {"server": "s"}, "a"),
        ((ModelRoute("b", min_tokens=500), ModelRoute("a")), {"tokens": 499}, "a"),
        ((ModelRoute("b", min_tokens=500), ModelRoute("a")), {"tokens": 500}, "b"),
        (
            (ModelRoute("b", min_tokens=500), ModelRoute("c", min_tokens=5_000)),
            {"tokens": 6_000},
            "c",
        ),
        (
            (ModelRoute("a", feature="x.y"), ModelRoute("b", conversation="c1")),
            {"feature": "x.y", "conversation": "c1"},
            "b",
        ),
        ((ModelRoute("b", conversation="c1"),), {"conversation": "c2"}, ""),
        ((ModelRoute("nobody"), ModelRoute("a")), {}, "a"),
    ],
)
def test_the_route_that_says_most_is_taken(
    routes: tuple[ModelRoute, ...], sought: dict[str, Any], model: str
) -> None:
    assert first(*routes, **sought) == model
    assert first(*reversed(routes), **sought) == model


def test_what_has_no_route_goes_to_the_default() -> None:
    assert first(ModelRoute("a", feature="x.*"), default="c", feature="y.z") == "c"
    assert first(default="nobody") == ""


def test_a_model_that_cannot_read_it_all_is_passed_over() -> None:
    route = ModelRoute("a", feature="x.*")
    assert first(route, default="c", feature="x.y", tokens=1_000) == "a"
    assert first(route, default="c", feature="x.y", tokens=1_001) == "c"
    # Where none can, the one that was meant is asked, and says so itself.
    assert first(route, default="c", feature="x.y", tokens=1_000_000) == "a"


def test_a_hint_decides_between_equals_alone() -> None:
    equals = (ModelRoute("a", feature="x.*"), ModelRoute("b", feature="x.*"))
    assert first(*equals, feature="x.y") == "a"
    assert first(*equals, feature="x.y", hint="b") == "b"
    assert first(*equals, ModelRoute("c"), feature="x.y", hint="c") == "a"
    assert first(ModelRoute("a", feature="x.*"), default="c", feature="x.y", hint="c") == "a"


def test_why_a_model_was_chosen_is_said() -> None:
    routes = (
        ModelRoute("a", "s", "x.*", "", 5),
        ModelRoute("b", conversation="c1"),
        ModelRoute("c"),
    )

    def because(**sought: Any) -> str:
        return rank_models(routes, "c", RouteQuery(**sought), WINDOWS)[0].reason

    assert because(server="s", feature="x.y", tokens=9) == (
        "route: server s, feature x.*, at_least_tokens 5"
    )
    assert because(conversation="c1", hint="b") == "route: conversation c1, hint"
    assert because() == "route: any"


ROUTES = st.builds(
    ModelRoute,
    st.sampled_from("abc"),
    st.sampled_from(["", "s"]),
    st.sampled_from(["", "*", "x.*", "x.y", "x.y.*"]),
    st.sampled_from(["", "c1"]),
    st.sampled_from([0, 10, 2_000]),
)


@given(
    st.lists(ROUTES, max_size=6),
    st.sampled_from(["", "a", "c"]),
    st.builds(
        RouteQuery,
        st.sampled_from(["", "s", "t"]),
        st.sampled_from(["", "x.y", "z"]),
        st.sampled_from(["", "c1"]),
        st.integers(0, 200_000),
        st.sampled_from(["", "b"]),
    ),
)
def test_nobody_is_asked_twice_and_nobody_who_was_not_named(
    routes: list[ModelRoute], default: str, sought: RouteQuery
) -> None:
    found = [each.model for each in rank_models(routes, default, sought, WINDOWS)]
    assert len(found) == len(set(found))
    assert set(found) <= {each.model for each in routes} | {default}
    assert not default or default in found


@loop_over(
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
    assert find_budgets([budget], party, feature) == ([budget] if counts else [])


def test_all_that_cover_count_in_one_order() -> None:
    both = [Budget("*", tokens=1), Budget("agent:*", tokens=2)]
    assert find_budgets(both, "agent:a", "x") == find_budgets(both[::-1], "agent:a", "x")
    assert len(find_budgets(both, "agent:a", "x")) == 2


def test_each_party_has_its_own_account_unless_they_share() -> None:
    own, together = Budget("agent:*"), Budget("agent:*", shared=True)
    assert own.account("agent:a") != own.account("agent:b")
    assert together.account("agent:a") == together.account("agent:b")
    assert own.account("agent:a") != Budget("agent:*", "x.*").account("agent:a")


@loop_over(
    ("usage", "price", "millionths"),
    [
        (TokenUsage(1_000_000, 0), Price(3.0, 15.0), 3_000_000),
        (TokenUsage(0, 1_000_000), Price(3.0, 15.0), 15_000_000),
        (TokenUsage(100, 10), Price(10, 20), 1_200),
        (TokenUsage(1, 0), Price(0.15, 0), 1),
        (TokenUsage(0, 0), Price(3.0, 15.0), 0),
        (TokenUsage(1_000, 1_000), Price(), 0),
    ],
)
def test_a_price_is_for_a_million_tokens(usage: TokenUsage, price: Price, millionths: int) -> None:
    assert compute_cost(usage, price) == millionths
    assert amount_of_usage(usage, price) == Amount(usage.input + usage.output, millionths)


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.floats(0, 1000), st.floats(0, 1000))
def test_more_tokens_never_cost_less(read: int, said: int, one: float, other: float) -> None:
    price = Price(one, other)
    assert (
        0
        <= compute_cost(TokenUsage(read, said), price)
        <= compute_cost(TokenUsage(read + 1, said + 1), price)
    )


def test_a_day_is_one_of_utc() -> None:
    east = timezone(timedelta(hours=9))
    assert day_of(datetime(2026, 3, 2, 8, 59, tzinfo=east)) == date(2026, 3, 1)
    assert day_of(datetime(2026, 3, 2, 9, 0, tzinfo=east)) == date(2026, 3, 2)
    assert next_day_start(date(2026, 12, 31)) == datetime(2027, 1, 1, tzinfo=UTC)
