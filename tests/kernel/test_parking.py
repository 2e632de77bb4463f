"""Places in the parking: bounded, sealed, good for one return, and left in time."""

from datetime import timedelta

import pytest

from comity.kernel.call import Call
from comity.kernel.parking import MOST_BYTES, Parking
from comity.wire.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage, Unavailable
from comity.wire.jsonrpc import Frame
from tests.kernel.carriers import Clock


class Waiter:
    def __init__(self) -> None:
        self.lapsed = 0

    def resume(self, call: Call, frame: Frame) -> None: ...

    def lapse(self) -> None:
        self.lapsed += 1


def parking(most: int = 3, seconds: float = 60) -> tuple[Parking, Clock]:
    clock = Clock()
    return Parking(clock, most, timedelta(seconds=seconds)), clock


def test_a_state_leads_back_to_whoever_waits() -> None:
    place, _ = parking()
    one, other = Waiter(), Waiter()
    first, second = place.park(one, 0, b"a"), place.park(other, 0, b"b")
    assert place.find(first, b"a") is one
    assert place.find(second, b"b") is other
    assert len(place) == 2


def test_each_principal_has_a_share_of_the_places() -> None:
    place = Parking(Clock(), 100, timedelta(seconds=60), each=2)
    mine = [Waiter(), Waiter()]
    for each in mine:
        place.park(each, 1, principal="agent:a")
    with pytest.raises(Unavailable, match="max_parked_per_principal") as refused:
        place.park(Waiter(), 1, principal="agent:a")
    assert (refused.value.fault, refused.value.retry_after is None) == (EXHAUSTED, False)
    # Who waits already may wait anew, and somebody else waits undisturbed.
    place.park(mine[0], 1, principal="agent:a")
    place.park(Waiter(), 1, principal="agent:b")
    place.leave(mine[0])
    place.park(Waiter(), 1, principal="agent:a")
    assert len(place) == 3


def test_few_large_calls_of_one_principal_leave_room_for_others() -> None:
    place = Parking(Clock(), 100, timedelta(seconds=60), each=50)
    place.park(Waiter(), MOST_BYTES // 4, principal="agent:a")
    with pytest.raises(Unavailable, match="bytes"):
        place.park(Waiter(), 1, principal="agent:a")
    place.park(Waiter(), MOST_BYTES // 4, principal="agent:b")


def test_no_two_states_are_alike_even_for_the_same_waiter() -> None:
    place, _ = parking()
    waiter = Waiter()
    assert place.park(waiter, 0) != place.park(waiter, 0)


def test_a_state_that_was_changed_leads_nowhere() -> None:
    place, _ = parking()
    state = place.park(Waiter(), 0, b"a")
    for changed in ("", state[::-1], state + "A", state.lower(), state[1:]):
        with pytest.raises(MalformedMessage) as refused:
            place.find(changed, b"a")
        assert refused.value.fault is INVALID_PARAMS


def test_a_state_of_another_gateway_leads_nowhere() -> None:
    ours, _ = parking()
    theirs, _ = parking()
    with pytest.raises(MalformedMessage):
        ours.find(theirs.park(Waiter(), 0), b"")


def test_a_state_leads_nowhere_for_another_request() -> None:
    place, _ = parking()
    state = place.park(Waiter(), 0, b"a")
    with pytest.raises(MalformedMessage):
        place.find(state, b"b")
    assert len(place) == 1


def test_whoever_left_is_not_found_again() -> None:
    place, _ = parking()
    waiter = Waiter()
    state = place.park(waiter, 0)
    place.leave(waiter)
    place.leave(waiter)
    with pytest.raises(MalformedMessage):
        place.find(state, b"")
    assert len(place) == 0


def test_whoever_parks_again_has_one_place_and_a_new_name() -> None:
    place, clock = parking()
    waiter = Waiter()
    first = place.park(waiter, 0)
    clock.passes(50)
    second = place.park(waiter, 0)
    assert len(place) == 1
    with pytest.raises(MalformedMessage):
        place.find(first, b"")
    assert place.find(second, b"") is waiter
    clock.passes(50)
    place.look(0)
    assert waiter.lapsed == 0
    clock.passes(10)
    place.look(0)
    assert (waiter.lapsed, len(place)) == (1, 0)


def test_a_full_parking_takes_nobody_and_forgets_nobody() -> None:
    place, _ = parking(most=2)
    waiters = [Waiter(), Waiter()]
    states = [place.park(waiter, 0) for waiter in waiters]
    with pytest.raises(Unavailable) as refused:
        place.park(Waiter(), 0)
    assert refused.value.fault is EXHAUSTED
    assert [place.find(state, b"") for state in states] == waiters
    place.leave(waiters[0])
    place.park(Waiter(), 0)


def test_a_full_parking_still_has_room_for_who_is_in_it() -> None:
    place, _ = parking(most=1)
    waiter = Waiter()
    place.park(waiter, 0)
    assert place.find(place.park(waiter, 0), b"") is waiter


def test_a_parking_is_full_by_size_as_well() -> None:
    place, _ = parking()
    large = Waiter()
    place.park(large, MOST_BYTES - 1)
    place.park(Waiter(), 1)
    with pytest.raises(Unavailable):
        place.park(Waiter(), 1)
    place.park(large, MOST_BYTES - 2)
    place.park(Waiter(), 1)


def test_those_who_waited_too_long_lapse_and_only_those() -> None:
    place, clock = parking()
    early, late = Waiter(), Waiter()
    place.park(early, 0)
    clock.passes(30)
    place.park(late, 0)
    clock.passes(30)
    place.look(0)
    assert (early.lapsed, late.lapsed, len(place)) == (1, 0, 1)


def test_a_lapse_that_ends_others_too_ends_each_of_them_once() -> None:
    place, clock = parking()
    second = Waiter()

    class First(Waiter):
        def lapse(self) -> None:
            super().lapse()
            place.leave(second)

    first = First()
    place.park(first, 0)
    place.park(second, 0)
    clock.passes(60)
    place.look(0)
    assert (first.lapsed, second.lapsed, len(place)) == (1, 0, 0)


def test_a_lapse_that_fails_holds_up_no_other() -> None:
    place, clock = parking()

    class Broken(Waiter):
        def lapse(self) -> None:
            raise ValueError("a bug")

    place.park(Broken(), 0)
    after = Waiter()
    place.park(after, 0)
    clock.passes(60)
    with pytest.raises(ValueError, match="a bug"):
        place.look(0)
    place.look(0)
    assert (after.lapsed, len(place)) == (1, 0)
