"""Which model is asked: the route that says most, one that can read it, hints between equals."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.inference_routes import Choice, Route, Sought, choices, each_once

WINDOWS = {"a": 1_000, "b": 10_000, "c": 100_000}


def first(*routes: Route, default: str = "", **sought: Any) -> str:
    found = choices(routes, default, Sought(**sought), WINDOWS)
    return found[0].model if found else ""


@pytest.mark.parametrize(
    ("routes", "sought", "model"),
    [
        ((), {}, ""),
        ((Route("a"),), {}, "a"),
        ((Route("a", feature="x.*"),), {"feature": "y.z"}, ""),
        ((Route("a", feature="x.*"),), {"feature": "x.z"}, "a"),
        ((Route("a", feature="x.*"),), {"feature": "x"}, ""),
        ((Route("a", feature="*"), Route("b", feature="x.*")), {"feature": "x.z"}, "b"),
        ((Route("a", feature="x.*"), Route("b", feature="x.y.*")), {"feature": "x.y.z"}, "b"),
        ((Route("a", feature="x.y.*"), Route("b", feature="x.y.z")), {"feature": "x.y.z"}, "b"),
        (
            (Route("a", feature="x.y"), Route("b", server="s", feature="x.y")),
            {"server": "s", "feature": "x.y"},
            "b",
        ),
        (
            (Route("a", feature="x.y"), Route("b", server="s", feature="x.*")),
            {"server": "s", "feature": "x.y"},
            "a",
        ),
        ((Route("a", server="s"),), {"server": "t"}, ""),
        ((Route("a", server="s"), Route("b")), {"server": "s"}, "a"),
        ((Route("b", at_least_tokens=500), Route("a")), {"tokens": 499}, "a"),
        ((Route("b", at_least_tokens=500), Route("a")), {"tokens": 500}, "b"),
        (
            (Route("b", at_least_tokens=500), Route("c", at_least_tokens=5_000)),
            {"tokens": 6_000},
            "c",
        ),
        (
            (Route("a", feature="x.y"), Route("b", conversation="c1")),
            {"feature": "x.y", "conversation": "c1"},
            "b",
        ),
        ((Route("b", conversation="c1"),), {"conversation": "c2"}, ""),
        ((Route("nobody"), Route("a")), {}, "a"),
    ],
)
def test_the_route_that_says_most_is_taken(
    routes: tuple[Route, ...], sought: dict[str, Any], model: str
) -> None:
    assert first(*routes, **sought) == model
    assert first(*reversed(routes), **sought) == model


def test_what_has_no_route_goes_to_the_default() -> None:
    assert first(Route("a", feature="x.*"), default="c", feature="y.z") == "c"
    assert first(default="nobody") == ""


def test_a_model_that_cannot_read_it_all_is_passed_over() -> None:
    route = Route("a", feature="x.*")
    assert first(route, default="c", feature="x.y", tokens=1_000) == "a"
    assert first(route, default="c", feature="x.y", tokens=1_001) == "c"
    # Where none can, the one that was meant is asked, and says so itself.
    assert first(route, default="c", feature="x.y", tokens=1_000_000) == "a"


def test_a_hint_decides_between_equals_alone() -> None:
    equals = (Route("a", feature="x.*"), Route("b", feature="x.*"))
    assert first(*equals, feature="x.y") == "a"
    assert first(*equals, feature="x.y", hint="b") == "b"
    assert first(*equals, Route("c"), feature="x.y", hint="c") == "a"
    assert first(Route("a", feature="x.*"), default="c", feature="x.y", hint="c") == "a"


def test_why_a_model_was_chosen_is_said() -> None:
    routes = (
        Route("a", "s", "x.*", "", 5),
        Route("b", conversation="c1"),
        Route("c"),
    )

    def because(**sought: Any) -> str:
        return choices(routes, "c", Sought(**sought), WINDOWS)[0].because

    assert because(server="s", feature="x.y", tokens=9) == (
        "route: server s, feature x.*, at_least_tokens 5"
    )
    assert because(conversation="c1", hint="b") == "route: conversation c1, hint"
    assert because() == "route: any"


def test_each_model_stands_where_it_comes_first() -> None:
    found = [Choice("a", "1"), Choice("b", "2"), Choice("a", "3")]
    assert each_once(found) == [Choice("a", "1"), Choice("b", "2")]


ROUTES = st.builds(
    Route,
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
        Sought,
        st.sampled_from(["", "s", "t"]),
        st.sampled_from(["", "x.y", "z"]),
        st.sampled_from(["", "c1"]),
        st.integers(0, 200_000),
        st.sampled_from(["", "b"]),
    ),
)
def test_nobody_is_asked_twice_and_nobody_who_was_not_named(
    routes: list[Route], default: str, sought: Sought
) -> None:
    found = [each.model for each in choices(routes, default, sought, WINDOWS)]
    assert len(found) == len(set(found))
    assert set(found) <= {each.model for each in routes} | {default}
    assert not default or default in found
