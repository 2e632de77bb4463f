"""Bounded tables of the messages and proposals that a participant has seen."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple, cast

from comity.policy.conditions import is_same_json
from comity.sdk.topics.events import MemberFulfilment, Proposal, Request, Response
from comity.topics import rules
from comity.topics.envelope import PROPOSAL, Envelope, EnvelopeKind, of_payload, parse_kind
from comity.topics.rules import ProposalEvent


class BoundedOwnerCache[V]:
    """A table with a limit of values and of their total weight; each value has an owner.

    One owner has at most `share` of the values, and the same part of the weight. An owner that
    adds too much evicts its own oldest values, and none of another owner.
    """

    __slots__ = (
        "_each",
        "_most",
        "_most_weight",
        "_of",
        "_share",
        "_share_weight",
        "_weight",
        "_weight_of",
    )

    def __init__(self, most: int, most_weight: int, share: int | None = None) -> None:
        self._most = most
        self._most_weight = most_weight
        self._share = share or most
        self._share_weight = most_weight * self._share // most
        self._each: dict[str, tuple[V, str, int]] = {}
        # The keys of each owner, the oldest first, and what they weigh together.
        self._of: dict[str, dict[str, None]] = {}
        self._weight_of: dict[str, int] = {}
        self._weight = 0

    def __len__(self) -> int:
        return len(self._each)

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._each))

    def __contains__(self, key: object) -> bool:
        return key in self._each

    @property
    def weight(self) -> int:
        return self._weight

    def get(self, key: str) -> V | None:
        found = self._each.get(key)
        return None if found is None else found[0]

    def put(self, key: str, value: V, weight: int = 0, owner: str = "") -> None:
        """Keep a value as the newest one, unless it is heavier than the share of an owner."""
        self.pop(key)
        whole = weight + len(key) + len(owner)
        if whole > self._share_weight:
            return
        self._make_room(owner, whole)
        self._each[key] = (value, owner, whole)
        self._of.setdefault(owner, {})[key] = None
        self._weight_of[owner] = self._weight_of.get(owner, 0) + whole
        self._weight += whole

    def change(self, key: str, value: V) -> None:
        """Replace the value of an entry, which keeps its age."""
        found = self._each.get(key)
        if found is not None:
            self._each[key] = (value, *found[1:])

    def pop(self, key: str) -> V | None:
        found = self._each.pop(key, None)
        if found is None:
            return None
        value, owner, whole = found
        self._weight -= whole
        self._weight_of[owner] -= whole
        del self._of[owner][key]
        if not self._of[owner]:
            del self._of[owner], self._weight_of[owner]
        return value

    def _make_room(self, owner: str, whole: int) -> None:
        while (theirs := self._of.get(owner)) and (
            len(theirs) >= self._share or self._weight_of[owner] + whole > self._share_weight
        ):
            self.pop(next(iter(theirs)))
        while self._each and (
            len(self._each) >= self._most or self._weight + whole > self._most_weight
        ):
            self.pop(next(iter(self._each)))


MAX_PROPOSALS: Final = 1_000
MAX_PROPOSALS_OF_ONE_MEMBER: Final = 100
MOST_BYTES: Final = 16 * 1024 * 1024

type Clock = Callable[[], datetime]


class MemberProposalTracker:
    """The status of each proposal; the oldest are forgotten first."""

    def __init__(self, clock: Clock, lifetime: timedelta = rules.LIFETIME) -> None:
        self._clock = clock
        self._lifetime = lifetime
        self._each: BoundedOwnerCache[rules.TrackedProposal] = BoundedOwnerCache(
            MAX_PROPOSALS, MOST_BYTES, MAX_PROPOSALS_OF_ONE_MEMBER
        )
        self._proposal_of: BoundedOwnerCache[str] = BoundedOwnerCache(MAX_PROPOSALS, MOST_BYTES)

    def __len__(self) -> int:
        return len(self._each)

    def begin(self, made: Proposal) -> rules.TrackedProposal:
        """Track a new proposal of any member."""
        now = self._clock()
        known = rules.TrackedProposal(
            made.id,
            made.sender,
            made.to,
            made.method,
            dict(made.params),
            created_at=now,
            expires_at=now + self._lifetime,
        )
        weight = len(bytes(made.envelope.payload)) + sum(map(len, made.to))
        self._each.put(made.id, known, weight, made.sender)
        return known

    def get(self, id: str) -> rules.TrackedProposal | None:
        """A proposal with its current status."""
        known = self._each.get(id)
        if known is None or not known.is_open or self._clock() < known.expires_at:
            return known
        return self._become(known, ProposalEvent.TIMEOUT)

    def open(self) -> tuple[rules.TrackedProposal, ...]:
        """The open proposals, the oldest first."""
        each = (self.get(id) for id in self._each)
        return tuple(one for one in each if one is not None and one.is_open)

    def fulfilled_by(self, request: Request) -> MemberFulfilment | None:
        """The fulfilment in a request; None if it fulfils no known proposal."""
        known = self.get(request.correlation_id)
        if known is None or not _does(request, known):
            return None
        is_first = known.is_open
        as_proposed = is_same_json(_plain(request.params), _plain(known.params))
        if is_first:
            known = self._become(known, ProposalEvent.FULFILMENT, request.sender, request.id)
            self._proposal_of.put(request.id, known.id, len(known.id))
        return MemberFulfilment(request, known, is_first, as_proposed)

    def proposal_of(self, fulfilment: str) -> str:
        """The id of the proposal that a request was the first to fulfil, or empty."""
        return self._proposal_of.get(fulfilment) or ""

    def answered_by(self, response: Response) -> rules.TrackedProposal | None:
        """Mark the proposal whose first fulfilment a response answers; return it."""
        known = self._each.get(self.proposal_of(response.correlation_id))
        return None if known is None else self._become(known, ProposalEvent.RESPONSE)

    def ended(self, id: str, happened: ProposalEvent, by: str) -> rules.TrackedProposal | None:
        """End a rejected or withdrawn proposal; None if `by` may not end it, or it has ended."""
        known = self.get(id)
        if known is None or not known.is_open or not rules.may_end(known, happened, by):
            return None
        return self._become(known, happened)

    def _become(
        self,
        proposal: rules.TrackedProposal,
        event: ProposalEvent,
        by: str = "",
        envelope: str = "",
    ) -> rules.TrackedProposal:
        then = rules.apply_event(proposal, event, by, envelope)
        self._each.change(proposal.id, then)
        return then


def _plain(params: object) -> object:
    """Parameters without `_meta`, which a fulfiller may change."""
    if not isinstance(params, Mapping):
        return params
    said = cast("Mapping[str, object]", params)
    return {name: value for name, value in said.items() if name != "_meta"}


def _does(request: Request, proposal: rules.TrackedProposal) -> bool:
    """Whether a request has the operation and the recipients of a proposal."""
    if proposal.target and not (request.to and set(request.to) <= set(proposal.target)):
        return False
    asked = {"method": request.method, "params": dict(request.params)}
    proposed = {"method": proposal.method, "params": proposal.params}
    return of_payload(PROPOSAL, asked) == of_payload(PROPOSAL, proposed)


MAX_STEPS: Final = 4_000
MAX_STEPS_OF_ONE_MEMBER: Final = 1_000
MOST_CHARACTERS: Final = 4_000_000


class EnvelopeSummary(NamedTuple):
    """The remembered part of one envelope."""

    sender: str
    to: tuple[str, ...]
    kind: EnvelopeKind
    follows: str

    def may_be_answered_by(self, member: str) -> bool:
        """Whether a member is a recipient; an envelope to all has all members. (D-54)"""
        return not self.to or member in self.to


class EnvelopeHistory:
    """The last envelopes, including those of this participant."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: BoundedOwnerCache[EnvelopeSummary] = BoundedOwnerCache(
            MAX_STEPS, MOST_CHARACTERS, MAX_STEPS_OF_ONE_MEMBER
        )

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def weight(self) -> int:
        return self._steps.weight

    def get(self, id: str) -> EnvelopeSummary | None:
        return self._steps.get(id)

    def add(self, envelope: Envelope) -> None:
        step = EnvelopeSummary(
            envelope.sender, envelope.to, parse_kind(envelope.kind), envelope.correlation_id
        )
        weight = sum(map(len, envelope.to)) + len(envelope.kind) + len(envelope.correlation_id)
        self._steps.put(envelope.id, step, weight, envelope.sender)
