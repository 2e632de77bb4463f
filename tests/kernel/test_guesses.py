"""Wrong credentials are counted by address, and whoever has shown good ones is never held up."""

from datetime import timedelta

import pytest

from comity.kernel.guesses import Guesses
from comity.rules.rates import Rate
from comity.wire.errors import RATE_LIMITED, Unavailable
from tests.kernel.carriers import Clock


def guesses(clock: Clock, most: int = 100) -> Guesses:
    return Guesses(clock, Rate(2, 60.0, 2), most)


def is_heard(found: Guesses, address: str, shown: bytes = b"guess") -> bool:
    try:
        found.check(address, shown)
    except Unavailable:
        return False
    return True


def test_an_address_that_failed_too_often_waits() -> None:
    clock = Clock()
    found = guesses(clock)
    for _ in range(2):
        assert is_heard(found, "192.0.2.7")
        found.failed("192.0.2.7")
    with pytest.raises(Unavailable) as told:
        found.check("192.0.2.7", b"guess")
    assert (told.value.fault, told.value.retry_after) == (RATE_LIMITED, timedelta(seconds=30))
    assert is_heard(found, "192.0.2.8")
    clock.time += 30
    assert is_heard(found, "192.0.2.7")


def test_whoever_has_shown_good_credentials_is_heard_behind_the_same_proxy() -> None:
    found = guesses(Clock())
    found.proved(b"good")
    for _ in range(5):
        found.failed("127.0.0.1")
    assert is_heard(found, "127.0.0.1", b"good")
    assert not is_heard(found, "127.0.0.1", b"another")


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
    for _ in range(3):
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


def test_what_is_remembered_of_good_credentials_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("comity.kernel.guesses.MOST_PROVED", 2)
    found = guesses(Clock())
    for number in range(3):
        found.proved(b"%d" % number)
    for _ in range(3):
        found.failed("127.0.0.1")
    assert [is_heard(found, "127.0.0.1", b"%d" % n) for n in range(3)] == [False, True, True]
