"""When a server that is asked how it is can be taken for lost."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.health import Health, Probing
from comity.wire.lifecycle import Status

PROBING = Probing()
NOT_LONG = timedelta(seconds=20)
TOO_LONG = timedelta(minutes=5)


def missing(times: int) -> Health:
    health = Health()
    for _ in range(times):
        health = health.after_miss()
    return health


@pytest.mark.parametrize(
    ("missed", "busy", "silent", "lost"),
    [
        (0, False, NOT_LONG, False),
        (1, False, NOT_LONG, False),
        (2, False, TOO_LONG, False),
        (3, False, NOT_LONG, True),
        (3, True, NOT_LONG, False),
        (40, True, NOT_LONG, False),
        (3, True, TOO_LONG, True),
        (2, True, TOO_LONG, False),
    ],
)
def test_a_server_is_lost_after_three_misses_and_a_busy_one_only_when_no_call_could_last_so_long(
    missed: int, busy: bool, silent: timedelta, lost: bool
) -> None:
    assert PROBING.finds_lost(missing(missed), busy, silent) is lost


def test_one_in_doubt_is_asked_again_soon() -> None:
    assert PROBING.next_after(Health()) == timedelta(seconds=30)
    assert PROBING.next_after(missing(1)) == timedelta(seconds=1)
    often = Probing(every=timedelta(milliseconds=10))
    assert often.next_after(missing(1)) == timedelta(milliseconds=10)


def test_an_interval_of_zero_asks_never() -> None:
    assert PROBING.is_wanted
    assert not Probing(every=timedelta(0)).is_wanted


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("healthy", Status.HEALTHY),
        ("degraded", Status.DEGRADED),
        ("unhealthy", Status.UNHEALTHY),
        ("splendid", None),
        (None, None),
    ],
)
def test_what_a_server_says_of_itself_is_kept_where_it_is_a_word_of_the_document(
    said: str | None, status: Status | None
) -> None:
    assert missing(2).after_answer(said) == Health(status)


def test_whatever_it_says_a_server_that_answers_lives() -> None:
    assert not PROBING.finds_lost(missing(9).after_answer("unhealthy"), False, TOO_LONG)


@given(st.lists(st.sampled_from(["miss", "answer", "sign"])))
def test_only_misses_in_a_row_are_counted(happened: list[str]) -> None:
    health, row = Health(), 0
    for each in happened:
        if each == "miss":
            health, row = health.after_miss(), row + 1
        else:
            alive = each == "sign"
            health = health.after_sign_of_life() if alive else health.after_answer("healthy")
            row = 0
        assert health.missed == row
