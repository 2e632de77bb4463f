"""The states of a server: every row of the table by hand, and nothing beside them."""

import itertools

import pytest

from comity.rules.lifecycle import TRANSITIONS, Happened, after, refusal_in
from comity.wire import errors
from comity.wire.lifecycle import State

ROWS = """
registered   | started          | connecting
registered   | asked to stop    | disconnected
connecting   | shook hands      | connected
connecting   | failed           | error
connecting   | asked to stop    | disconnected
connecting   | asked to restart | restarting
connected    | failed           | error
connected    | left             | disconnected
connected    | asked to stop    | draining
connected    | asked to restart | draining
draining     | emptied          | disconnected
draining     | failed           | disconnected
draining     | asked to restart | restarting
error        | asked to restart | restarting
error        | asked to stop    | disconnected
restarting   | started          | connecting
restarting   | asked to stop    | disconnected
disconnected | started          | connecting
disconnected | asked to restart | restarting
"""
WRITTEN = {
    (State(state), Happened(happened)): State(following)
    for state, happened, following in (
        (part.strip() for part in line.split("|")) for line in ROWS.strip().splitlines()
    )
}


@pytest.mark.parametrize(("state", "happened"), [*itertools.product(State, Happened)], ids=str)
def test_a_state_follows_only_where_a_row_says_so(state: State, happened: Happened) -> None:
    assert after(state, happened) is WRITTEN.get((state, happened))


def test_there_is_no_row_beside_those_written_here() -> None:
    assert TRANSITIONS == WRITTEN


def test_every_state_can_be_left_for_good() -> None:
    """Whatever a server is doing, it can be stopped."""
    for state in State:
        stopping = after(state, Happened.ASKED_TO_STOP) or state
        assert (after(stopping, Happened.EMPTIED) or stopping) is State.DISCONNECTED


def test_restarting_leads_through_connecting_and_nowhere_else_that_is_up() -> None:
    following = {after(State.RESTARTING, happened) for happened in Happened} - {None}
    assert following == {State.CONNECTING, State.DISCONNECTED}


def test_no_way_leads_to_connected_but_a_handshake() -> None:
    ways = {how for how, following in TRANSITIONS.items() if following is State.CONNECTED}
    assert ways == {(State.CONNECTING, Happened.SHOOK_HANDS)}


@pytest.mark.parametrize(
    ("state", "was_connected", "starts_on_use", "error_type"),
    [
        (State.REGISTERED, False, False, "server_not_ready"),
        (State.CONNECTING, False, False, "server_not_ready"),
        (State.CONNECTING, True, False, "server_restarting"),
        (State.RESTARTING, False, False, "server_not_ready"),
        (State.RESTARTING, True, False, "server_restarting"),
        (State.DRAINING, True, False, "server_draining"),
        (State.DISCONNECTED, True, False, "server_stopped"),
        (State.DISCONNECTED, True, True, "server_not_ready"),
        (State.ERROR, False, False, "server_stopped"),
        (State.ERROR, True, False, "server_stopped"),
    ],
)
def test_each_state_has_its_refusal(
    state: State, was_connected: bool, starts_on_use: bool, error_type: str
) -> None:
    assert refusal_in(state, was_connected, starts_on_use).error_type == error_type


def test_only_what_passes_by_itself_is_worth_another_try() -> None:
    stopped = {refusal_in(state, True, False) for state in (State.ERROR, State.DISCONNECTED)}
    assert stopped == {errors.SERVER_STOPPED}
    others = set(State) - {State.ERROR, State.DISCONNECTED}
    assert all(refusal_in(state, True, False).retryable for state in others)
    assert not errors.SERVER_STOPPED.retryable
