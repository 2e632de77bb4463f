"""The proposals that a participant has seen, each followed to its end. (MCPx §10.2, D-56)

Rule 1: only what asks the same of those whom it was proposed to fulfils a proposal.
Rule 2: time passes when somebody looks: nothing here waits.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, cast

from comity.rules import proposals
from comity.rules.conditions import same
from comity.rules.kinds import of_payload
from comity.rules.proposals import Happened
from comity.sdk.bounded import Bounded
from comity.sdk.events import Fulfilment, Proposal, Request, Response
from comity.wire.envelope import PROPOSAL

MOST: Final = 1_000
MOST_OF_ONE: Final = 100
MOST_BYTES: Final = 16 * 1024 * 1024

type Clock = Callable[[], datetime]


class Following:
    """What became of each proposal; the oldest are forgotten first."""

    def __init__(self, clock: Clock, lifetime: timedelta = proposals.LIFETIME) -> None:
        self._clock = clock
        self._lifetime = lifetime
        self._each: Bounded[proposals.Proposal] = Bounded(MOST, MOST_BYTES, MOST_OF_ONE)
        self._proposal_of: Bounded[str] = Bounded(MOST, MOST_BYTES)

    def __len__(self) -> int:
        return len(self._each)

    def begin(self, made: Proposal) -> proposals.Proposal:
        """Somebody proposes something, we perhaps."""
        now = self._clock()
        known = proposals.Proposal(
            *(made.id, made.sender, made.to, made.method, dict(made.params)),
            created_at=now,
            expires_at=now + self._lifetime,
        )
        weight = len(bytes(made.envelope.payload)) + sum(map(len, made.to))
        self._each.put(made.id, known, weight, made.sender)
        return known

    def get(self, id: str) -> proposals.Proposal | None:
        """As it is now."""
        known = self._each.get(id)
        if known is None or not known.is_open or self._clock() < known.expires_at:
            return known
        return self._become(known, Happened.TIMEOUT)

    def open(self) -> tuple[proposals.Proposal, ...]:
        """Those that wait for somebody, the oldest first."""
        each = (self.get(id) for id in self._each)
        return tuple(one for one in each if one is not None and one.is_open)

    def fulfilled_by(self, request: Request) -> Fulfilment | None:
        """The request as the fulfilment that it is; None where it is none of a known proposal."""
        known = self.get(request.correlation_id)
        if known is None or not _does(request, known):
            return None
        is_first = known.is_open
        as_proposed = same(_plain(request.params), _plain(known.params))
        if is_first:
            known = self._become(known, Happened.FULFILMENT, request.sender, request.id)
            self._proposal_of.put(request.id, known.id, len(known.id))
        return Fulfilment(request, known, is_first, as_proposed)

    def proposal_of(self, fulfilment: str) -> str:
        """The id of the proposal that a request was the first to fulfil; empty where it did not."""
        return self._proposal_of.get(fulfilment) or ""

    def answered_by(self, response: Response) -> proposals.Proposal | None:
        """The proposal whose first fulfilment a response answers."""
        known = self._each.get(self.proposal_of(response.correlation_id))
        return None if known is None else self._become(known, Happened.RESPONSE)

    def ended(self, id: str, happened: Happened, by: str) -> proposals.Proposal | None:
        """It was rejected or withdrawn; None where that is not this party's to say, or too late."""
        known = self.get(id)
        if known is None or not known.is_open or not proposals.may_end(known, happened, by):
            return None
        return self._become(known, happened)

    def _become(
        self, known: proposals.Proposal, happened: Happened, by: str = "", envelope: str = ""
    ) -> proposals.Proposal:
        then = proposals.after(known, happened, by, envelope)
        self._each.change(known.id, then)
        return then


def _plain(params: object) -> object:
    """Without what is said about a request, which whoever fulfils may add to. (MCP `_meta`)"""
    if not isinstance(params, Mapping):
        return params
    said = cast("Mapping[str, object]", params)
    return {name: value for name, value in said.items() if name != "_meta"}


def _does(request: Request, known: proposals.Proposal) -> bool:
    """Whether a request asks for what was proposed, of those whom it was proposed to."""
    if known.target and not (request.to and set(request.to) <= set(known.target)):
        return False
    asked = {"method": request.method, "params": dict(request.params)}
    proposed = {"method": known.method, "params": known.params}
    return of_payload(PROPOSAL, asked) == of_payload(PROPOSAL, proposed)
