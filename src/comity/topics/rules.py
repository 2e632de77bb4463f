"""Rules for sending to a topic: capabilities, entitlement, message trails and proposals."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from comity.mcp.actors import Actor, PrincipalKind
from comity.policy.grants import (
    ANY,
    Effect,
    Grant,
    GrantSet,
    is_in_force,
    is_pattern_match,
    split_target,
    target_covers,
    verb_covers,
)
from comity.topics.envelope import (
    PROTOCOL,
    REJECT,
    REQUEST,
    RESPONSE,
    WITHDRAW,
    Envelope,
    EnvelopeKind,
    is_reserved,
    parse_kind,
)

MAX_CACHED_KINDS: Final = 256
ALIAS_PREFIX: Final = "local:"
"""The beginning of the id that a participant of local mode gives itself."""
MAX_CAPABILITY_LENGTH: Final = 256
FULL: Final = ("mcp/*", "chat")
PROPOSE: Final = ("mcp/proposal:*", "mcp/response:*", "chat")
RESPOND: Final = ("mcp/response:*", "chat")
READ_ONLY: Final = ("mcp/request:resources/read", "mcp/request:*/list", "mcp/response:*", "chat")
TOOLS: Final = ("mcp/request:tools/*", "mcp/response:tools/*", "chat")
PROFILES: Final = {
    "full": FULL,
    "propose": PROPOSE,
    "respond": RESPOND,
    "read-only": READ_ONLY,
    "tools": TOOLS,
}
"""The capability sets of the document's examples, by the names that settings use."""


def is_capability(text: str) -> bool:
    """Whether a text can be a capability: printable ASCII, no white space, and a bounded length."""
    return (
        0 < len(text) <= MAX_CAPABILITY_LENGTH
        and text.isascii()
        and text.isprintable()
        and " " not in text
    )


def can_send_kind(capability: str, kind: str) -> bool:
    """Whether a capability allows a kind."""
    if is_reserved(kind) or not (kind.isascii() and kind.isprintable()):
        return False
    wanted, given = capability.split(":"), kind.split(":")
    if capability.endswith(ANY):
        return _begins(wanted, given)
    if len(wanted) == 2 and len(given) > 2:
        given = given[:2]
    return len(wanted) == len(given) and all(map(is_pattern_match, wanted, given))


def _begins(wanted: list[str], given: list[str]) -> bool:
    """Match a capability with a trailing star. Parts after the starred one are ignored."""
    return len(given) >= len(wanted) and all(map(is_pattern_match, wanted, given))


def _may_be_within(denial: str, kind: str) -> bool:
    """Whether a kind without a context may include a denied context."""
    wanted, given = denial.split(":"), kind.rstrip(":").split(":")
    return len(wanted) > len(given) == 2 and all(map(is_pattern_match, wanted, given))


class TopicCapabilities:
    """The kinds that one member may send. Answers are cached."""

    __slots__ = ("_known", "denied", "listed")

    def __init__(self, allowed: Iterable[str], denied: Iterable[str] = ()) -> None:
        self.denied = tuple(dict.fromkeys(denied))
        # A star counts as a plain character here. A denial that covers the written capability
        # covers it for any value of the star. Such a capability is not listed for the member.
        self.listed = tuple(
            each
            for each in dict.fromkeys(allowed)
            if not any(denial == each or can_send_kind(denial, each) for denial in self.denied)
        )
        self._known: dict[str, bool] = {}

    def allows(self, kind: str) -> bool:
        known = self._known.get(kind)
        if known is None:
            known = any(can_send_kind(each, kind) for each in self.listed) and not any(
                can_send_kind(each, kind) or _may_be_within(each, kind) for each in self.denied
            )
            if len(self._known) >= MAX_CACHED_KINDS:
                self._known.clear()
            self._known[kind] = known
        return known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicCapabilities) and (self.listed, self.denied) == (
            other.listed,
            other.denied,
        )

    def __hash__(self) -> int:
        return hash((self.listed, self.denied))


MAX_REMEMBERED_TRAILS: Final = 2_000
MAX_NAMES: Final = 4_000
MAX_CHAIN_LENGTH: Final = 8


class TrailEntry(NamedTuple):
    """The remembered parts of one envelope."""

    sender: str
    to: tuple[str, ...]
    kind: str
    follows: str


class MessageTrail:
    """The last envelopes of one topic."""

    __slots__ = ("_most", "_names", "_steps")

    def __init__(self, maximum: int = MAX_REMEMBERED_TRAILS) -> None:
        self._most = maximum
        self._steps: dict[str, TrailEntry] = {}
        # The number of recipients in all entries, because one envelope may name many.
        self._names = 0

    def __contains__(self, id: str) -> bool:
        return id in self._steps

    def get(self, id: str) -> TrailEntry | None:
        return self._steps.get(id)

    def add(self, envelope: Envelope) -> None:
        """Remember an envelope. A known id keeps standing for its first envelope."""
        if envelope.id in self._steps:
            return
        self._names += len(envelope.to)
        while len(self._steps) >= self._most or (self._names > MAX_NAMES and self._steps):
            self._names -= len(self._steps.pop(next(iter(self._steps))).to)
        self._steps[envelope.id] = TrailEntry(
            envelope.sender, envelope.to, envelope.kind, envelope.correlation_id
        )

    def response_refusal(self, response: Envelope) -> str:
        """Return why the sender may not send this response, or an empty text."""
        asked = self._steps.get(response.correlation_id)
        if asked is None or parse_kind(asked.kind).family != REQUEST:
            return "no request with the id in correlation_id was seen here"
        if asked.to and response.sender not in asked.to:
            return "the request was not addressed to you"
        return ""

    def earlier_senders(self, envelope: Envelope) -> frozenset[str]:
        """Return the senders of the envelopes that led to this one, for any recipients. (D-39)"""
        return frozenset(step.sender for step in self._predecessors(envelope.correlation_id))

    def kind_of(self, id: str) -> EnvelopeKind | None:
        """Return the kind of a remembered envelope, or None."""
        step = self._steps.get(id)
        return None if step is None else parse_kind(step.kind)

    def _predecessors(self, id: str) -> Iterable[TrailEntry]:
        for _ in range(MAX_CHAIN_LENGTH):
            step = self._steps.get(id)
            if step is None:
                return
            yield step
            id = step.follows


_TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
LATER_KINDS: Final = frozenset({REJECT, WITHDRAW})


class DeliveryMode(StrEnum):
    """Which envelopes a member receives."""

    ALL = "all"
    DIRECTED = "directed"


class TopicAccess(StrEnum):
    """The access to a topic: for all authenticated principals, or only for those with a grant.

    A private topic is hidden from all others.
    """

    PUBLIC = "public"
    RESTRICTED = "restricted"
    PRIVATE = "private"


class TopicViolation(StrEnum):
    """The reasons of a `system/error`."""

    CAPABILITY = "capability_violation"
    RESERVED = "reserved_kind"
    IDENTITY = "auth_violation"
    INVALID = "invalid_envelope"
    DUPLICATE = "duplicate_id"
    UNASKED = "unasked_response"
    STRICT = "unknown_kind"
    RATE = "rate_limited"
    UNREACHABLE = "unreachable"
    MISMATCH = "kind_mismatch"


class TopicRefusal(NamedTuple):
    """Why an envelope is refused."""

    error: TopicViolation
    message: str


def is_topic(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None


def envelope_refusal(
    envelope: Envelope,
    sender: str,
    capabilities: TopicCapabilities,
    trail: MessageTrail,
    *,
    is_strict: bool = True,
) -> TopicRefusal | None:
    """Return why an envelope of a member is refused, or None."""
    if envelope.sender != sender:
        return TopicRefusal(
            TopicViolation.IDENTITY, f"'from' must be {sender!r}, which is who you are here"
        )
    refusal = _kind_refusal(envelope.kind, capabilities, is_strict=is_strict)
    if refusal is not None:
        return refusal
    if envelope.id in trail:
        return TopicRefusal(
            TopicViolation.DUPLICATE, "this id was used before; give each envelope its own"
        )
    is_answer = envelope.kind.partition(":")[0] == RESPONSE
    if is_answer and (reason := trail.response_refusal(envelope)):
        return TopicRefusal(TopicViolation.UNASKED, reason)
    return None


def _kind_refusal(
    kind: str, capabilities: TopicCapabilities, *, is_strict: bool
) -> TopicRefusal | None:
    is_later = is_strict and kind.partition(":")[0] in LATER_KINDS
    # The usual case comes first: no capability covers the gateway's own kinds.
    if capabilities.allows(kind) and not is_later:
        return None
    if is_reserved(kind):
        return TopicRefusal(TopicViolation.RESERVED, "only the gateway may send 'system/' messages")
    if is_later:
        return TopicRefusal(
            TopicViolation.STRICT, f"{kind!r} is no kind of {PROTOCOL}, and off in this topic"
        )
    return TopicRefusal(TopicViolation.CAPABILITY, f"None of your capabilities covers '{kind}'")


def is_recipient(
    envelope: Envelope, member: str, mode: DeliveryMode, concerned: frozenset[str]
) -> bool:
    """Whether a member receives an envelope of its topic."""
    if mode is DeliveryMode.ALL or not envelope.to:
        return True
    return member in envelope.to or member in concerned


SEND: Final = "topic/send"


class TopicEntitlement(NamedTuple):
    """The capabilities of a principal in a topic, whether it may join, and until when."""

    capabilities: TopicCapabilities
    is_admitted: bool
    until: datetime | None = None


def decide_topic_entitlement(
    access: GrantSet,
    actor: Actor,
    topic: str,
    now: datetime,
    terms: tuple[TopicAccess, Sequence[str]],
) -> TopicEntitlement:
    """Decide what an actor may do in a topic.

    `terms` holds who may join, and what a principal without grants may send.
    """
    entrance, usual = terms
    found = [
        grant
        for entries in access.indexes_of(actor)
        for grant in entries.grants
        if _is_about(grant, topic) and (grant.expires_at is None or grant.expires_at > now)
    ]
    ends = min((grant.expires_at for grant in found if grant.expires_at), default=None)
    granted = [grant.target for grant in found if grant.effect is Effect.ALLOW]
    denied = [grant.target for grant in found if grant.effect is Effect.DENY]
    denied += [each.target for each in access.guardrails.applying_to_server(actor, SEND, topic)]
    # With one local person behind several members, each of them may join every topic.
    is_open = entrance is TopicAccess.PUBLIC or actor.is_local
    allowed = [*(usual if is_open else ()), *_named(granted)]
    is_kept_out = any(split_target(target)[1] == ANY for target in denied)
    if actor.permissions is not None:
        bounds = _bounds(actor.permissions, topic)
        allowed = _within(allowed, bounds)
        is_kept_out = is_kept_out or not bounds
    is_admitted = (is_open or bool(granted)) and not is_kept_out
    may = TopicCapabilities(allowed if is_admitted else (), _named(denied))
    return TopicEntitlement(may, is_admitted, ends)


def _is_about(grant: Grant, topic: str) -> bool:
    return (
        grant.where is None
        and verb_covers(grant.verb, SEND)
        and is_pattern_match(split_target(grant.target)[0], topic)
    )


def _named(targets: Iterable[str]) -> list[str]:
    """Return the capabilities that targets name. A star means the full set."""
    found: list[str] = []
    for target in targets:
        name = split_target(target)[1]
        found += FULL if name == ANY else (name,) if is_capability(name) else ()
    return found


def _bounds(permissions: Iterable[tuple[str, str]], topic: str) -> list[str]:
    """Return the capabilities that the bounds of a credential leave in a topic."""
    return _named(
        target
        for verb, target in permissions
        if verb_covers(verb, SEND) and is_pattern_match(split_target(target)[0], topic)
    )


def _within(allowed: Iterable[str], bounds: Sequence[str]) -> list[str]:
    """Intersect capabilities with bounds. Of two that overlap, the narrower one remains."""
    return [
        narrower
        for each in allowed
        for bound in bounds
        if (narrower := _narrower(each, bound)) is not None
    ]


def _narrower(one: str, other: str) -> str | None:
    if one == other or can_send_kind(other, one):
        return one
    return other if can_send_kind(one, other) else None


JOIN: Final = "topic/join"
_PREFIX: Final = f"{PrincipalKind.SERVER}:"


class MembershipDecision(NamedTuple):
    """Whether a server is a member of a topic, and until when that holds."""

    is_member: bool
    until: datetime | None = None


def party_of(server: str) -> str:
    """Return the principal id of a server in a topic."""
    return _PREFIX + server


def decide_membership(
    access: GrantSet, server: str, topic: str, now: datetime, *, is_written: bool
) -> MembershipDecision:
    """Decide whether a server is a member of a topic. `is_written` tells if the settings say so."""
    actor = Actor(party_of(server), PrincipalKind.SERVER)
    if access.guardrails.find_denying(actor, JOIN, topic, server) is not None:
        return MembershipDecision(is_member=False)
    found = [
        grant
        for entries in access.indexes_of(actor)
        for grant in entries.grants
        if _mounting_is_about(grant, topic, server) and is_in_force(grant, JOIN, now)
    ]
    until = min((grant.expires_at for grant in found if grant.expires_at), default=None)
    if any(grant.effect is not Effect.ALLOW for grant in found):
        return MembershipDecision(False, until)
    is_named = any(grant.subject == actor.party and grant.verb != ANY for grant in found)
    return MembershipDecision(is_written or is_named, until)


def _mounting_is_about(grant: Grant, topic: str, server: str) -> bool:
    return grant.where is None and target_covers(grant.target, topic, server)


LIFETIME: Final = timedelta(minutes=5)


class ProposalState(StrEnum):
    PENDING = "pending"
    FULFILLED = "fulfilled"
    ANSWERED = "answered"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"


class ProposalEvent(StrEnum):
    FULFILMENT = "fulfilment"
    RESPONSE = "response"
    REJECTION = "rejection"
    WITHDRAWAL = "withdrawal"
    TIMEOUT = "timeout"


TRANSITIONS: Final[dict[tuple[ProposalState, ProposalEvent], ProposalState]] = {
    (ProposalState.PENDING, ProposalEvent.FULFILMENT): ProposalState.FULFILLED,
    (ProposalState.PENDING, ProposalEvent.REJECTION): ProposalState.REJECTED,
    (ProposalState.PENDING, ProposalEvent.WITHDRAWAL): ProposalState.WITHDRAWN,
    (ProposalState.PENDING, ProposalEvent.TIMEOUT): ProposalState.EXPIRED,
    (ProposalState.FULFILLED, ProposalEvent.RESPONSE): ProposalState.ANSWERED,
}


@dataclass(frozen=True, slots=True)
class TrackedProposal:
    """A proposed request and its state. (MCPx §10.2)"""

    id: str
    proposer: str
    target: tuple[str, ...]
    method: str
    params: object
    created_at: datetime
    expires_at: datetime
    status: ProposalState = ProposalState.PENDING
    fulfilled_by: str = ""
    fulfilment: str = ""
    """The id of the envelope that fulfilled the proposal first."""

    @property
    def is_open(self) -> bool:
        return self.status is ProposalState.PENDING


def apply_event(
    proposal: TrackedProposal, event: ProposalEvent, by: str = "", envelope: str = ""
) -> TrackedProposal:
    """Return the proposal after an event. An event without a transition changes nothing."""
    state = TRANSITIONS.get((proposal.status, event))
    if state is None:
        return proposal
    if event is ProposalEvent.FULFILMENT:
        return replace(proposal, status=state, fulfilled_by=by, fulfilment=envelope)
    return replace(proposal, status=state)


def may_end(proposal: TrackedProposal, event: ProposalEvent, by: str) -> bool:
    """Whether this principal may reject or withdraw a proposal.

    Only the proposer may withdraw it, and only others may reject it.
    """
    if event is ProposalEvent.WITHDRAWAL:
        return by == proposal.proposer
    return not (event is ProposalEvent.REJECTION and by == proposal.proposer)
