"""The server state machine. (MGP §11.2, D-20)

Rule 1: every transition is a row of TRANSITIONS; nothing else changes a state.
Rule 2: no clocks and no processes here; `comity.kernel.servers` owns both.
"""

from enum import StrEnum
from typing import Final

from comity.wire.lifecycle import State


class Happened(StrEnum):
    STARTED = "started"
    SHOOK_HANDS = "shook hands"
    FAILED = "failed"
    ASKED_TO_STOP = "asked to stop"
    EMPTIED = "emptied"
    ASKED_TO_RESTART = "asked to restart"


TRANSITIONS: Final[dict[tuple[State, Happened], State]] = {
    (State.REGISTERED, Happened.STARTED): State.CONNECTING,
    (State.REGISTERED, Happened.ASKED_TO_STOP): State.DISCONNECTED,
    (State.CONNECTING, Happened.SHOOK_HANDS): State.CONNECTED,
    (State.CONNECTING, Happened.FAILED): State.ERROR,
    (State.CONNECTING, Happened.ASKED_TO_STOP): State.DISCONNECTED,
    (State.CONNECTED, Happened.FAILED): State.ERROR,
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
}


def after(state: State, happened: Happened) -> State | None:
    """The state that follows, or None where that cannot happen in this state."""
    return TRANSITIONS.get((state, happened))
