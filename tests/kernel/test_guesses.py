"""Wrong credentials are counted by address; too many of them are told to wait."""

from datetime import timedelta

import pytest

from comity.kernel.guesses import Guesses
from comity.rules.rates import Rate
from comity.wire.errors import RATE_LIMITED, Unavailable
from tests.kernel.carriers import Clock


def guesses(clock: Clock, most: int = 100) -> Guesses:
    return Guesses(clock, Rate(2, 60.0, 2), most)


def is_heard(found: Guesses, address: str) -> bool:
    """Whether one more failure there is an ordinary one."""
    try:
        found.failed(address)
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
            found.failed("192.0.2.7")
        assert (told.value.fault, told.value.retry_after) == (RATE_LIMITED, timedelta(seconds=30))
    assert is_heard(found, "192.0.2.8")
    clock.time += 30
    assert is_heard(found, "192.0.2.7")


@pytest.mark.parametrize(
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
        found.failed(one)
    assert is_heard(found, other) is not same


def test_what_is_remembered_of_addresses_is_bounded() -> None:
    clock = Clock()
    found = guesses(clock, most=10)
    for number in range(100):
        found.failed(f"192.0.2.{number}")
        found.failed(f"192.0.2.{number}")
    assert len(found) <= 10
    assert not is_heard(found, "192.0.2.99")
    clock.time += 1000
    found.failed("198.51.100.1")
    assert len(found) == 1
