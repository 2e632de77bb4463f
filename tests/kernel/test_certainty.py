"""What is known is gone by for as long as it is sure, and not a moment longer."""

import math
from datetime import timedelta

import pytest

from comity.kernel.books import Book
from comity.kernel.certainty import Certainty
from comity.kernel.grants import Grants
from comity.rules.access import Access
from comity.wire.errors import POLICY_UNKNOWN, Unavailable
from comity.wire.grants import CALL, Effect, Grant
from comity.wire.parties import Actor


class Hands:
    """A clock that is moved by hand."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


ACTOR = Actor("agent:ci")
ACCESS = Access.of([Grant("agent:ci", CALL, "files/*", Effect.ALLOW)])


def test_before_anything_is_known_nothing_is_judged() -> None:
    certainty = Certainty(timedelta(seconds=30), Hands())
    assert not certainty.holds
    assert certainty.age == math.inf
    with pytest.raises(Unavailable, match="not known yet") as refused:
        certainty.demand()
    assert refused.value.fault is POLICY_UNKNOWN
    assert refused.value.fault.retryable
    assert refused.value.retry_after == timedelta(seconds=1)


def test_it_counts_from_when_the_store_was_asked() -> None:
    clock = Hands()
    certainty = Certainty(timedelta(seconds=1), clock)
    asked, clock.now = clock.now, clock.now + 0.75
    certainty.confirm(asked)
    clock.now = asked + 1
    assert certainty.holds
    certainty.demand()
    clock.now = asked + 1.5
    assert not certainty.holds
    with pytest.raises(Unavailable, match="last known for sure 2 s ago"):
        certainty.demand()


def test_without_an_age_it_holds_for_ever_once_it_is_known() -> None:
    clock = Hands()
    certainty = Certainty(clock=clock)
    assert not certainty.holds
    certainty.confirm(clock.now)
    clock.now += 1e9
    assert certainty.holds


def test_a_process_that_stood_still_knows_nothing_before_it_has_asked_again() -> None:
    clock = Hands()
    certainty = Certainty(timedelta(seconds=30), clock)
    certainty.confirm(clock.now)
    certainty.stay_awake()
    clock.now += 0.5
    assert not certainty.stay_awake()
    assert certainty.holds
    asked, clock.now = clock.now, clock.now + 0.7
    assert not certainty.holds
    # It was asked before, and what it answered then is of that time.
    certainty.confirm(asked)
    assert not certainty.holds
    certainty.stay_awake()
    assert not certainty.holds
    certainty.confirm(clock.now)
    assert certainty.holds
    clock.now += 5
    assert certainty.stay_awake()
    with pytest.raises(Unavailable):
        certainty.demand()


def test_signs_of_life_do_not_make_old_knowledge_young() -> None:
    clock = Hands()
    certainty = Certainty(timedelta(seconds=2), clock)
    certainty.confirm(clock.now)
    for _ in range(19):
        certainty.stay_awake()
        clock.now += 0.1
        assert certainty.holds
    for _ in range(3):
        certainty.stay_awake()
        clock.now += 0.1
    assert not certainty.holds


def test_the_clock_goes_on_by_itself() -> None:
    certainty = Certainty(timedelta(seconds=30))
    certainty.confirm(certainty.clock())
    assert certainty.holds
    assert certainty.grows_old
    assert 0 <= certainty.age < 30
    assert not Certainty().grows_old


def test_grants_that_were_given_are_judged_by_at_once() -> None:
    assert Grants(ACCESS).judge(ACTOR, CALL, "files", "read").effect is Effect.ALLOW


def test_grants_are_not_judged_by_before_they_are_known_nor_when_they_are_too_old() -> None:
    clock = Hands()
    certainty = Certainty(timedelta(seconds=30), clock)
    grants = Grants(certainty=certainty)
    grants.replace(ACCESS)
    questions = (
        lambda: grants.judge(ACTOR, CALL, "files", "read"),
        lambda: grants.knows(ACTOR, "files"),
        lambda: grants.outlook(ACTOR, CALL, "files"),
        lambda: grants.servers_in_sight(ACTOR),
    )
    for question in questions:
        with pytest.raises(Unavailable):
            question()
    certainty.confirm(clock.now)
    assert grants.judge(ACTOR, CALL, "files", "read").effect is Effect.ALLOW
    clock.now += 31
    for question in questions:
        with pytest.raises(Unavailable):
            question()


def test_nobody_is_unknown_by_a_book_that_cannot_be_relied_on() -> None:
    clock = Hands()
    certainty = Certainty(timedelta(seconds=30), clock)
    book = Book[str](certainty)
    book.replace({"a": "A", "b": "B"})
    with pytest.raises(Unavailable):
        book.get("a")
    certainty.confirm(clock.now)
    book.put("c", "C")
    book.put("b", None)
    book.put("never", None)
    assert [book.get(id) for id in "abc"] == ["A", None, "C"]
    assert len(book) == 2
