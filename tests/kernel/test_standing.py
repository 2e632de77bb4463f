"""Where a server stands: every step is told, and callers hear when to come back."""

from datetime import UTC, datetime, timedelta

from comity.kernel.standing import AT_LEAST, SOON, Standing, Transition
from comity.rules.lifecycle import Happened
from comity.wire.lifecycle import State


def standing() -> tuple[Standing, list[Transition]]:
    told = list[Transition]()
    return Standing("srv", told.append), told


def test_each_step_is_told_with_when_and_why() -> None:
    server, told = standing()
    before = datetime.now(UTC)
    server.happen(Happened.STARTED, "")
    server.happen(Happened.FAILED, "exit status 7")
    (begun, failed) = told
    assert (begun.previous, begun.state) == (State.REGISTERED, State.CONNECTING)
    assert (failed.previous, failed.state, failed.reason) == (
        State.CONNECTING,
        State.ERROR,
        "exit status 7",
    )
    assert before <= begun.at <= failed.at == server.since
    assert (failed.server, server.reason) == ("srv", "exit status 7")


def test_what_cannot_happen_in_a_state_is_not_told() -> None:
    server, told = standing()
    server.happen(Happened.EMPTIED, "nonsense")
    assert (server.state, server.reason, told) == (State.REGISTERED, "", [])


def test_a_first_start_is_guessed_to_take_a_second_and_the_next_one_as_long_as_the_last() -> None:
    server, _ = standing()
    assert server.wait == SOON
    server.start_takes = timedelta(seconds=4)
    assert server.wait == timedelta(seconds=4)
    server.will_start_in(timedelta(hours=1))
    assert timedelta(minutes=59) < server.wait <= timedelta(hours=1, seconds=4)
    server.will_start_in(None)
    assert server.wait == timedelta(seconds=4)


def test_nobody_is_told_to_come_back_at_once() -> None:
    server, _ = standing()
    server.start_takes = timedelta(0)
    server.will_start_in(timedelta(0))
    assert server.wait == AT_LEAST


def test_only_a_refusal_that_passes_says_when() -> None:
    server, _ = standing()
    server.happen(Happened.STARTED, "")
    assert server.refusal().retry_after is not None
    server.happen(Happened.FAILED, "exit status 7")
    refusal = server.refusal()
    assert refusal.retry_after is None
    assert str(refusal) == "server 'srv' is error: exit status 7"
