"""One member: what it is given, what it missed, and how much it may say."""

import pytest

from comity.kernel.seats import FLOOD, NO_PACE, Missed, Pace, Said, Seat, Spent
from comity.rules.rates import Rate
from comity.rules.topics import Mode
from comity.wire import envelope as wire
from comity.wire.parties import Actor
from tests.kernel.topic_house import A_MINUTE, ANA, Ear, envelope


def seat(pace: Pace = NO_PACE, spent: Spent | None = None) -> tuple[Seat, Ear]:
    ear = Ear()
    made = Seat(Actor(ANA), Mode.ALL, ear, "c-1")
    made.keep_to(pace, spent)
    return made, ear


def said(id: str) -> Said:
    data = envelope(ANA, id)
    return Said(data, wire.decode(data))


def test_what_a_member_does_not_take_is_counted_with_its_first_and_last_id() -> None:
    member, ear = seat()
    member.give(said("e-1"))
    ear.is_full = True
    for number in range(2, 6):
        member.give(said(f"e-{number}"))
    assert ear.said == ["e-1"]
    assert member.missed == Missed(4, "e-2", "e-5")


def test_a_member_that_is_away_misses_what_is_said() -> None:
    member, _ = seat()
    member.outlet = None
    member.give(said("e-1"))
    assert member.missed == Missed(1, "e-1", "e-1")


def test_of_what_nobody_knows_only_the_number_is_counted() -> None:
    missed = Missed()
    missed.add("", 3)
    missed.add("e-9")
    missed.add("", 2)
    assert (missed.count, missed.first, missed.last) == (6, "e-9", "e-9")


def test_a_member_says_a_minutes_worth_at_once_and_then_as_it_is_earned() -> None:
    member, _ = seat(A_MINUTE)
    assert all(not member.hasten("mcp/request:tools/list", 0.0) for _ in range(60))
    assert member.hasten("mcp/request:tools/list", 0.0) == pytest.approx(1.0)
    assert not member.hasten("mcp/request:tools/list", 1.0)
    assert member.hasten("mcp/request:tools/list", 1.0)


def test_chat_has_a_smaller_bound_of_its_own_and_counts_to_the_whole() -> None:
    member, _ = seat(A_MINUTE)
    assert all(not member.hasten("chat", 0.0) for _ in range(10))
    assert member.hasten("chat", 0.0) == pytest.approx(6.0)
    assert all(not member.hasten("mcp/proposal:tools/call", 0.0) for _ in range(50))
    assert member.hasten("mcp/proposal:tools/call", 0.0)


def test_without_a_pace_nothing_comes_too_early() -> None:
    member, _ = seat()
    assert not any(member.hasten("chat", 0.0) for _ in range(1_000))
    assert member.patience == FLOOD * 1_000


def test_strikes_are_counted_in_a_row() -> None:
    member, _ = seat(Pace(Rate(1, 60.0, 1), None))
    assert not member.hasten("chat", 0.0)
    assert [member.strike() for _ in range(3)] == [1, 2, 3]
    assert not member.hasten("chat", 60.0)
    assert member.strike() == 1
    assert member.patience == FLOOD


def test_what_was_used_before_still_counts() -> None:
    spent = Spent()
    member, _ = seat(Pace(Rate(1, 60.0, 1), None), spent)
    assert not member.hasten("chat", 0.0)
    assert spent.is_owing(59.0)
    again, _ = seat(Pace(Rate(1, 60.0, 1), None), spent)
    assert again.hasten("chat", 30.0) == pytest.approx(30.0)
    assert not spent.is_owing(60.0)
