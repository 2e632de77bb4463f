"""Whether a failed call is made again: never because a server says so, and never too soon."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.retries import (
    FIRST,
    LONGEST,
    SPREAD,
    Failure,
    Plan,
    may_be_repeated,
    of_fault,
    pause,
    told_by_server,
)
from comity.wire import errors, jsonrpc
from comity.wire.errors import Fault
from comity.wire.jsonrpc import Frame

SAFE = Plan(idempotent=True, most=3)
UNMARKED = Plan(idempotent=False, most=3)
FAULTS = {name: found for name, found in vars(errors).items() if isinstance(found, Fault)}


def said(code: int = 3000, **recovery: object) -> Failure:
    error = {"code": code, "message": "m", "data": {"_mgp": recovery}}
    return told_by_server(Frame("2.0", 1, error=jsonrpc.to_raw(error)))


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)


MEMBERS = ("retryable", "retry_after_ms", "max_retries", "retry_strategy", "idempotent")


@given(st.integers(-40000, 40000), st.dictionaries(st.sampled_from(MEMBERS), anything))
def test_whatever_a_server_says_a_tool_that_nobody_marked_is_not_called_again(
    code: int, recovery: dict[str, Any]
) -> None:
    failure = said(code, **{"retryable": True, "max_retries": 9, **recovery})
    assert not may_be_repeated(UNMARKED, failure)
    assert pause(UNMARKED, failure, 0, 0.5) is None


@given(
    retry_after_ms=anything,
    max_retries=anything,
    retry_strategy=st.one_of(
        anything, st.sampled_from(["immediate", "fixed_delay", "exponential_backoff"])
    ),
    made=st.integers(0, 5),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_what_is_waited_is_never_less_than_was_asked_for_and_never_endless(
    made: int, chance: float, **recovery: Any
) -> None:
    failure = said(retryable=True, **recovery)
    wait = pause(SAFE, failure, made, chance)
    if wait is not None:
        assert made < SAFE.most
        assert failure.after <= wait <= LONGEST * (1 + SPREAD)


@pytest.mark.parametrize("retryable", [False, None, 1, "true", {}])
def test_only_a_plain_yes_is_one(retryable: object) -> None:
    assert pause(SAFE, said(retryable=retryable), 0, 0) is None


@pytest.mark.parametrize("code", [-32603, -32001, 0, 999, 6000])
def test_an_error_that_is_none_of_mgp_says_nothing_of_retries(code: int) -> None:
    assert pause(SAFE, said(code, retryable=True), 0, 0) is None


def test_an_error_without_fields_is_the_end() -> None:
    plain = Frame("2.0", 1, error=jsonrpc.to_raw({"code": 3000, "message": "m"}))
    assert pause(SAFE, told_by_server(plain), 0, 0) is None


@pytest.mark.parametrize(
    ("strategy", "after", "waits"),
    [
        ("immediate", 0, [0, 0, 0, None]),
        ("immediate", 400, [400, 400, 400, None]),
        ("fixed_delay", 400, [400, 400, 400, None]),
        ("fixed_delay", 0, [250, 250, 250, None]),
        ("exponential_backoff", 400, [400, 800, 1600, None]),
        ("exponential_backoff", 0, [250, 500, 1000, None]),
        ("of its own", 400, [400, 800, 1600, None]),
        ("exponential_backoff", 29_000, [29_000, 30_000, 30_000, None]),
        ("fixed_delay", 30_001, [None]),
    ],
)
def test_waits_follow_the_strategy(strategy: str, after: int, waits: list[int | None]) -> None:
    failure = said(retryable=True, retry_strategy=strategy, retry_after_ms=after)
    for made, wait in enumerate(waits):
        found = pause(SAFE, failure, made, 0)
        assert found == (None if wait is None else timedelta(milliseconds=wait))


@pytest.mark.parametrize(("asked", "made"), [(0, 0), (1, 1), (2, 2), (9, 3), (-1, 0), ("x", 3)])
def test_the_smaller_number_of_retries_counts(asked: object, made: int) -> None:
    failure = said(retryable=True, max_retries=asked)
    attempts = [pause(SAFE, failure, number, 0) is not None for number in range(5)]
    assert attempts.count(True) == made


def test_a_herd_is_spread() -> None:
    failure = said(retryable=True, retry_after_ms=1000, retry_strategy="fixed_delay")
    assert pause(SAFE, failure, 0, 0.5) == timedelta(milliseconds=1125)


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("sent", [True, False])
def test_a_failure_on_the_way_is_repeated_where_it_may_pass(fault: Fault, sent: bool) -> None:
    failure = of_fault(fault, None, sent=sent)
    may_pass = fault.retryable and fault is not errors.TIMEOUT
    assert (pause(SAFE, failure, 0, 0) == FIRST) is may_pass
    in_doubt = (
        *(errors.INTERRUPTED, errors.UPSTREAM_FAILED, errors.UPSTREAM_SLOW),
        errors.CUT_OFF,
    )
    never_ran = not sent or fault not in in_doubt
    assert (pause(UNMARKED, failure, 0, 0) is not None) is (may_pass and never_ran)


def test_a_server_that_says_when_it_is_back_is_waited_for() -> None:
    failure = of_fault(errors.SERVER_RESTARTING, timedelta(seconds=2), sent=False)
    assert pause(SAFE, failure, 2, 0) == timedelta(seconds=2)


def test_why_is_one_of_our_own_words() -> None:
    assert said(3000).why == "rate_limited"
    assert said(5998).why == "server_error"
