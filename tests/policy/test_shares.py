"""Counts of what each principal holds: bounded apart from each other, and forgotten at zero."""

import pytest

from comity.errors import EXHAUSTED, Unavailable
from comity.mcp.actors import LOCAL
from comity.policy.shares import RETRY_AFTER, PrincipalShares


def test_each_principal_has_its_own_share() -> None:
    shares = PrincipalShares("streams", "max_streams_per_principal", 2)
    assert [shares.acquire("agent:a") for _ in range(3)] == [True, True, False]
    assert shares.acquire("agent:b")
    shares.release("agent:a")
    assert shares.acquire("agent:a")


def test_nothing_is_kept_of_a_principal_that_holds_nothing() -> None:
    shares = PrincipalShares("streams", "", 2)
    for number in range(100):
        assert shares.acquire(f"agent:{number}")
        shares.release(f"agent:{number}")
    assert shares.holders == 0


def test_a_refusal_says_what_is_full_and_when_to_come_back() -> None:
    shares = PrincipalShares("streams", "max_streams_per_principal", 1)
    with (
        shares.hold("agent:a"),
        pytest.raises(Unavailable, match="1 streams already") as refused,
        shares.hold("agent:a"),
    ):
        pass
    assert (refused.value.fault, refused.value.retry_after) == (EXHAUSTED, RETRY_AFTER)
    assert "max_streams_per_principal" in str(refused.value)
    told = shares.refusal()
    assert (told.fault, told.retry_after, told.details) == (EXHAUSTED, RETRY_AFTER, {"limit": 1})
    assert shares.holders == 0


def test_amounts_are_counted_whole() -> None:
    shares = PrincipalShares("bytes", "", 10)
    assert shares.acquire("agent:a", 8)
    assert not shares.acquire("agent:a", 3)
    assert shares.acquire("agent:a", 2)
    shares.release("agent:a", 8)
    assert shares.count_of("agent:a") == 2


def test_where_everybody_is_one_principal_only_the_totals_count() -> None:
    shares = PrincipalShares("streams", "", 1)
    assert all(shares.acquire(LOCAL.party) for _ in range(100))
