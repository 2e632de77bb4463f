"""Counts of what each principal holds: bounded apart from each other, and forgotten at zero."""

import pytest

from comity.kernel.shares import AGAIN_AFTER, Shares
from comity.wire.errors import EXHAUSTED, Unavailable
from comity.wire.parties import LOCAL


def test_each_principal_has_its_own_share() -> None:
    shares = Shares("streams", "max_streams_per_principal", 2)
    assert [shares.take("agent:a") for _ in range(3)] == [True, True, False]
    assert shares.take("agent:b")
    shares.give("agent:a")
    assert shares.take("agent:a")


def test_nothing_is_kept_of_a_principal_that_holds_nothing() -> None:
    shares = Shares("streams", "", 2)
    for number in range(100):
        assert shares.take(f"agent:{number}")
        shares.give(f"agent:{number}")
    assert shares.holders == 0


def test_a_refusal_says_what_is_full_and_when_to_come_back() -> None:
    shares = Shares("streams", "max_streams_per_principal", 1)
    with (
        shares.held("agent:a"),
        pytest.raises(Unavailable, match="1 streams already") as refused,
        shares.held("agent:a"),
    ):
        pass
    assert (refused.value.fault, refused.value.retry_after) == (EXHAUSTED, AGAIN_AFTER)
    assert "max_streams_per_principal" in str(refused.value)
    told = shares.refusal()
    assert (told.fault, told.retry_after, told.details) == (EXHAUSTED, AGAIN_AFTER, {"limit": 1})
    assert shares.holders == 0


def test_amounts_are_counted_whole() -> None:
    shares = Shares("bytes", "", 10)
    assert shares.take("agent:a", 8)
    assert not shares.take("agent:a", 3)
    assert shares.take("agent:a", 2)
    shares.give("agent:a", 8)
    assert shares.of("agent:a") == 2


def test_where_everybody_is_one_principal_only_the_totals_count() -> None:
    shares = Shares("streams", "", 1)
    assert all(shares.take(LOCAL.party) for _ in range(100))
