"""The life of a proposal, as a table; kept by those who care for it, not by the router. (D-47)

Rule 1: the first fulfilment counts; a later one is told as what it is. (D-56)
Rule 2: nothing brings back what was rejected, withdrawn or is past its time.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

LIFETIME: Final = timedelta(minutes=5)


class State(StrEnum):
    PENDING = "pending"
    FULFILLED = "fulfilled"
    ANSWERED = "answered"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


class Happened(StrEnum):
    FULFILMENT = "fulfilment"
    RESPONSE = "response"
    REJECTION = "rejection"
    WITHDRAWAL = "withdrawal"
    TIMEOUT = "timeout"


TRANSITIONS: Final[dict[tuple[State, Happened], State]] = {
    (State.PENDING, Happened.FULFILMENT): State.FULFILLED,
    (State.PENDING, Happened.REJECTION): State.REJECTED,
    (State.PENDING, Happened.WITHDRAWAL): State.WITHDRAWN,
    (State.PENDING, Happened.TIMEOUT): State.EXPIRED,
    (State.FULFILLED, Happened.RESPONSE): State.ANSWERED,
}


@dataclass(frozen=True, slots=True)
class Proposal:
    """What somebody would have done, as its keepers know it. (MCPx §10.2)"""

    id: str
    proposer: str
    target: tuple[str, ...]
    method: str
    params: object
    created_at: datetime
    expires_at: datetime
    status: State = State.PENDING
    fulfilled_by: str = ""
    fulfilment: str = ""
    """The envelope by which it was fulfilled first."""

    @property
    def is_open(self) -> bool:
        return self.status is State.PENDING


def after(proposal: Proposal, happened: Happened, by: str = "", envelope: str = "") -> Proposal:
    """The same after something happened; as it was where that changes nothing."""
    state = TRANSITIONS.get((proposal.status, happened))
    if state is None:
        return proposal
    if happened is Happened.FULFILMENT:
        return replace(proposal, status=state, fulfilled_by=by, fulfilment=envelope)
    return replace(proposal, status=state)


def may_end(proposal: Proposal, happened: Happened, by: str) -> bool:
    """Whether this party's word about a proposal counts: its proposer's alone for a withdrawal."""
    if happened is Happened.WITHDRAWAL:
        return by == proposal.proposer
    return not (happened is Happened.REJECTION and by == proposal.proposer)
