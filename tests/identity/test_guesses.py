"""Wrong credentials are counted by address; too many of them are told to wait."""

from datetime import timedelta

import pytest

from comity.errors import RATE_LIMITED, Unavailable
from comity.identity.authentication import LoginThrottle
from comity.toolkit.resilience import RateLimit
from tests.support.carriers import Clock
from tests.support.cases import loop_over


def guesses(clock: Clock, most: int = 100) -> LoginThrottle:
    return LoginThrottle(clock, RateLimit(2, 60.0, 2), most)


def is_heard(found: LoginThrottle, address: str) -> bool:
    """Whether one more failure there is an ordinary one."""
    try:
        found.count_failure(address)
    except Unavailable:
        return False
    return True


def test_an_address_that_failed_too_often_waits() -> None:
    clock = Clock()
    found = guesses(clock)
    assert is_heard(found, "192.0.2.7")
    assert is_heard(found, "192.0.2.7")
    for _ in range(3):
        # A failure that is refused is not counted, so nobody is shut out for longer by it.
        with pytest.raises(Unavailable) as told:
            found.count_failure("192.0.2.7")
        assert (told.value.fault, told.value.retry_after) == (RATE_LIMITED, timedelta(seconds=30))
    assert is_heard(found, "192.0.2.8")
    clock.time += 30
    assert is_heard(found, "192.0.2.7")


@loop_over(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("192.0.2.7", "::ffff:192.0.2.7", True),
        ("", "", True),
        ("unix:", "192.0.2.7", False),
    ],
)
def test_whoever_has_many_addresses_is_one_all_the_same(one: str, other: str, same: bool) -> None:
    found = guesses(Clock())
    for _ in range(2):
        found.count_failure(one)
    assert is_heard(found, other) is not same


def test_what_is_remembered_of_addresses_is_bounded() -> None:
    clock = Clock()
    found = guesses(clock, most=10)
    for number in range(100):
        found.count_failure(f"192.0.2.{number}")
        found.count_failure(f"192.0.2.{number}")
    assert len(found) <= 10
    assert not is_heard(found, "192.0.2.99")
    clock.time += 1000
    found.count_failure("198.51.100.1")
    assert len(found) == 1
