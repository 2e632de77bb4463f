"""The server state machine. (MGP §11.2, D-20)

Rule 1: every transition is a row of TRANSITIONS; nothing else changes a state.
Rule 2: no clocks and no processes here; `comity.kernel.life` owns both.
Rule 3: `error` is for a server that nobody starts again by himself; while one waits for its next
        start it is `restarting`, so that whoever calls it can be told when to come back.
"""

from enum import StrEnum
from typing import Final

from comity.wire.errors import (
    SERVER_DRAINING,
    SERVER_NOT_READY,
    SERVER_RESTARTING,
    SERVER_STOPPED,
    Fault,
)
from comity.wire.lifecycle import State


class Happened(StrEnum):
    STARTED = "started"
    SHOOK_HANDS = "shook hands"
    FAILED = "failed"
    LEFT = "left"
    ASKED_TO_STOP = "asked to stop"
    EMPTIED = "emptied"
    ASKED_TO_RESTART = "asked to restart"


TRANSITIONS: Final[dict[tuple[State, Happened], State]] = {
    (State.REGISTERED, Happened.STARTED): State.CONNECTING,
    (State.REGISTERED, Happened.ASKED_TO_STOP): State.DISCONNECTED,
    (State.CONNECTING, Happened.SHOOK_HANDS): State.CONNECTED,
    (State.CONNECTING, Happened.FAILED): State.ERROR,
    (State.CONNECTING, Happened.ASKED_TO_STOP): State.DISCONNECTED,
    (State.CONNECTING, Happened.ASKED_TO_RESTART): State.RESTARTING,
    (State.CONNECTED, Happened.FAILED): State.ERROR,
    (State.CONNECTED, Happened.LEFT): State.DISCONNECTED,
    (State.CONNECTED, Happened.ASKED_TO_STOP): State.DRAINING,
    (State.CONNECTED, Happened.ASKED_TO_RESTART): State.DRAINING,
    (State.DRAINING, Happened.EMPTIED): State.DISCONNECTED,
    (State.DRAINING, Happened.FAILED): State.DISCONNECTED,
    (State.DRAINING, Happened.ASKED_TO_RESTART): State.RESTARTING,
    (State.ERROR, Happened.ASKED_TO_RESTART): State.RESTARTING,
    (State.ERROR, Happened.ASKED_TO_STOP): State.DISCONNECTED,
    (State.RESTARTING, Happened.STARTED): State.CONNECTING,
    (State.RESTARTING, Happened.ASKED_TO_STOP): State.DISCONNECTED,
    (State.DISCONNECTED, Happened.STARTED): State.CONNECTING,
    (State.DISCONNECTED, Happened.ASKED_TO_RESTART): State.RESTARTING,
}


def after(state: State, happened: Happened) -> State | None:
    """The state that follows, or None where that cannot happen in this state."""
    return TRANSITIONS.get((state, happened))


def refusal_in(state: State, was_connected: bool, starts_on_use: bool) -> Fault:
    """Why a call cannot be made in this state; only what may pass by itself is worth a retry."""
    if state is State.DRAINING:
        return SERVER_DRAINING
    if state is State.ERROR or (state is State.DISCONNECTED and not starts_on_use):
        return SERVER_STOPPED
    # Nobody has met a server that never was ready, so for nobody does it start again.
    again = was_connected and state in (State.RESTARTING, State.CONNECTING)
    return SERVER_RESTARTING if again else SERVER_NOT_READY
