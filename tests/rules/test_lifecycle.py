"""The states of a server: every row of the table by hand, and nothing beside them."""

import itertools

import pytest

from comity.rules.lifecycle import TRANSITIONS, Happened, after
from comity.wire.lifecycle import State

ROWS = """
registered   | started          | connecting
registered   | asked to stop    | disconnected
connecting   | shook hands      | connected
connecting   | failed           | error
connecting   | asked to stop    | disconnected
connected    | failed           | error
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
