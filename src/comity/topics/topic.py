"""One topic: its members, the delivery of envelopes, and its audit events."""

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, Protocol

from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.errors import MalformedMessage, Unavailable
from comity.mcp.actors import GATEWAY, Actor
from comity.toolkit.resilience import RateCounter, RateLimit
from comity.toolkit.text import format_timestamp
from comity.topics import envelope as wire
from comity.topics import rules
from comity.topics.envelope import CHAT, Envelope, EnvelopeHeader, EnvelopeLimits
from comity.topics.rules import (
    DeliveryMode,
    MessageTrail,
    TopicCapabilities,
    TopicRefusal,
    TopicViolation,
)

FLOOD_FACTOR: Final = 10
"""A member that ignores the warning for this multiple of its burst is disconnected."""


class TopicMessage:
    """One envelope on its way to members, as the original bytes and as parsed.

    `frame` caches the encoded frame, which all connections of one kind share. `is_from_here` is
    true only on the node where the envelope arrived.
    """

    __slots__ = ("envelope", "frame", "is_from_here", "text")

    def __init__(self, text: bytes, envelope: Envelope, *, is_from_here: bool = True) -> None:
        self.text = text
        self.envelope = envelope
        self.frame = b""
        self.is_from_here = is_from_here


class MemberConnection(Protocol):
    """The connection of a member. Its methods neither wait nor raise."""

    def deliver(self, message: TopicMessage) -> bool:
        """Send an envelope.

        Returns False if it was not accepted, and the topic then counts it as missed.
        """
        ...

    def end(self, code: int, reason: str) -> None: ...


@dataclass(slots=True)
class MissedMessages:
    """The envelopes that a member has missed."""

    count: int = 0
    first: str = ""
    last: str = ""

    def add(self, id: str, number: int = 1) -> None:
        self.first = self.first or id
        self.last = id or self.last
        self.count += number


@dataclass(frozen=True, slots=True)
class MemberRateLimit:
    """How much one member may send in a minute. None means no limit. (D-55)"""

    messages: RateLimit | None
    chats: RateLimit | None


NO_RATE_LIMIT: Final = MemberRateLimit(None, None)


class MemberRateState:
    """The rate state of a member. It survives when the member leaves and rejoins."""

    __slots__ = ("chats", "joins", "messages", "strikes")

    def __init__(self, limit: MemberRateLimit = NO_RATE_LIMIT) -> None:
        self.messages = _counter(limit.messages)
        self.chats = _counter(limit.chats)
        # A member may join as often in a minute as it may send envelopes.
        self.joins = _counter(limit.messages)
        self.strikes = 0

    def is_limited(self, now: float) -> bool:
        counters = (self.messages, self.chats, self.joins)
        return any(each is not None and not each.is_idle(now) for each in counters)


def _counter(rate: RateLimit | None) -> RateCounter | None:
    return None if rate is None else RateCounter(rate)


class TopicMember:
    """One member of a topic. `outlet` is None while the member is briefly disconnected."""

    __slots__ = (
        "actor",
        "away_since",
        "connection",
        "is_built_in",
        "joined_at",
        "may",
        "missed",
        "mode",
        "outlet",
        "party",
        "spent",
        "stamp",
        "until",
    )

    def __init__(
        self, actor: Actor, mode: DeliveryMode, outlet: MemberConnection, connection: str
    ) -> None:
        self.actor = actor
        self.party = actor.party
        self.mode = mode
        self.outlet: MemberConnection | None = outlet
        self.connection = connection
        self.may = TopicCapabilities(())
        self.until: datetime | None = None
        self.joined_at: datetime | None = None
        # Of two connections of one principal, the one with the greater stamp is the newer.
        self.stamp = ""
        self.missed = MissedMessages()
        self.away_since = 0.0
        # A gateway member does not count towards the limits on members and rates.
        self.is_built_in = False
        self.spent = MemberRateState()

    def deliver(self, message: TopicMessage) -> None:
        outlet = self.outlet
        if outlet is None or not outlet.deliver(message):
            self.missed.add(message.envelope.id)

    def wait_for_rate(self, kind: str, now: float) -> float:
        """Count an envelope and return zero, or return the seconds by which it is too early."""
        messages, spent = self.spent.messages, self.spent
        chats = spent.chats if kind == CHAT else None
        wait = 0.0 if messages is None else messages.wait(now)
        if chats is not None:
            wait = max(wait, chats.wait(now))
        if wait:
            return wait
        spent.strikes = 0
        if messages is not None:
            messages.take(now)
        if chats is not None:
            chats.take(now)
        return 0.0

    def came(self, now: float) -> None:
        """Count a join, since every join notifies all members."""
        if self.spent.joins is not None:
            self.spent.joins.take(now)

    def is_early(self, now: float) -> bool:
        """Whether any envelope that the member sends now is too early."""
        messages = self.spent.messages
        return messages is not None and messages.wait(now) > 0

    def strike(self) -> int:
        """Count an envelope that came too early. Returns the number of such envelopes in a row."""
        self.spent.strikes += 1
        return self.spent.strikes

    @property
    def max_strikes(self) -> int:
        """The number of consecutive early envelopes after which a member is disconnected."""
        messages = self.spent.messages
        return FLOOD_FACTOR * (messages.rate.burst if messages is not None else 1_000)


type Now = Callable[[], float]


REPLACED: Final = 4001
UNENTITLED: Final = 4003
FLOODING: Final = 1008
MAX_RECENT: Final = 500
MAX_RECENT_BYTES: Final = 256 * 1024
"""How many envelopes, and how much of them, a topic keeps for operators."""

MAX_HISTORY_BYTES: Final = 4 * 1024 * 1024
"""The maximum size of the history that a topic keeps for new members."""

type Clock = Callable[[], datetime]


class RemoteTopic(Protocol):
    """The same topic on other nodes."""

    def send(self, topic: str, message: TopicMessage) -> None:
        """Send an envelope to the other nodes. Raises Unavailable if they cannot be reached."""
        ...

    def on_joined(self, topic: str, member: TopicMember) -> None: ...
    def on_left(self, topic: str, party: str) -> None: ...


class TopicAuditLevel(StrEnum):
    """The messages whose header the audit log holds. It never holds a payload. (D-48)"""

    NONE = "none"
    MCP = "mcp"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings in force for one topic."""

    access: rules.TopicAccess = rules.TopicAccess.PUBLIC
    default_capabilities: tuple[str, ...] = ()
    max_members: int = 50
    history: int = 0
    is_strict: bool = True
    limits: EnvelopeLimits = wire.LIMITS
    audit_level: TopicAuditLevel = TopicAuditLevel.MCP


@dataclass(frozen=True, slots=True)
class RemoteMember:
    """A member on another node."""

    node: str
    capabilities: tuple[str, ...]
    stamp: str


class Topic:
    """One topic on this node: its members, its history and its delivery."""

    def __init__(
        self, name: str, settings: TopicSettings, clock: Clock = lambda: datetime.now(UTC)
    ) -> None:
        self.name = name
        self.settings = settings
        self.local_members: dict[str, TopicMember] = {}
        self.remote_members: dict[str, RemoteMember] = {}
        self.remote_topic: RemoteTopic | None = None
        self.audit: AuditLog | None = None
        # Callbacks for every envelope, which the gateway members use.
        self.listeners: list[Callable[[TopicMessage], None]] = []
        self.trail = MessageTrail()
        self._clock = clock
        self._all_mode_members: dict[str, TopicMember] = {}
        self._directed_members: dict[str, TopicMember] = {}
        # Gateway members exist on every node. They act only on the node where an envelope arrives.
        self._gateway_members: dict[str, TopicMember] = {}
        self._history: deque[TopicMessage] = deque()
        self.envelope_count = 0
        self._history_bytes = 0

    # Members

    @property
    def is_empty(self) -> bool:
        return len(self.local_members) == len(self._gateway_members)

    @property
    def member_count(self) -> int:
        return len(self.local_members) - len(self._gateway_members) + len(self.remote_members)

    def has(self, party: str) -> bool:
        """Whether a principal is a member, on any node."""
        return party in self.local_members or party in self.remote_members

    def add_member(self, member: TopicMember) -> bool:
        """Add a member, and end its older connection.

        Returns whether it was a member before. (D-50)
        """
        before, there = (
            self.local_members.get(member.party),
            self.remote_members.pop(member.party, None),
        )
        was_here = before is not None or there is not None
        member.joined_at = member.joined_at or self._clock()
        # The stamp must exceed the one it replaces, whatever the clock of the other node says.
        older = "" if there is None else f"{there.stamp}~"
        member.stamp = max(member.joined_at.isoformat(), older)
        if before is not None:
            self._drop_from_table(before)
            member.missed = before.missed
            if before.outlet is not None:
                before.outlet.end(REPLACED, "replaced by a newer connection of the same principal")
        self.local_members[member.party] = member
        self._table_of(member)[member.party] = member
        self.send_welcome(member)
        # The history may be longer, because operators read it too.
        for said in list(self._history)[max(0, len(self._history) - self.settings.history) :]:
            if rules.is_recipient(said.envelope, member.party, member.mode, frozenset()):
                member.deliver(said)
        if not was_here:
            self._announce(wire.JOIN, member.party, member.may.listed)
        if self.remote_topic is not None:
            self.remote_topic.on_joined(self.name, member)
        if not was_here:
            details = {"capabilities": list(member.may.listed), "connection": member.connection}
            self._record(AuditType.TOPIC_JOINED, member.party, details, rate_key=member.party)
        self.send_missed_notice(member, "you were away for a moment")
        return was_here

    def _table_of(self, member: TopicMember) -> dict[str, TopicMember]:
        if member.is_built_in:
            return self._gateway_members
        return self._all_mode_members if member.mode is DeliveryMode.ALL else self._directed_members

    def _drop_from_table(self, member: TopicMember) -> None:
        self._table_of(member).pop(member.party, None)

    def remove_member(self, member: TopicMember) -> None:
        """Remove a member for good."""
        if self.local_members.get(member.party) is not member:
            return
        del self.local_members[member.party]
        self._drop_from_table(member)
        self._announce(wire.LEAVE, member.party, None)
        if self.remote_topic is not None:
            self.remote_topic.on_left(self.name, member.party)
        self._record(AuditType.TOPIC_LEFT, member.party, {}, rate_key=member.party)

    # Members on other nodes

    def add_remote_member(self, party: str, remote_member: RemoteMember, *, is_newer: bool) -> None:
        """Note a member on another node. The newest connection of a principal wins. (D-50)"""
        here = self.local_members.get(party)
        if here is not None:
            if not is_newer:
                return
            del self.local_members[party]
            self._drop_from_table(here)
            if here.outlet is not None:
                here.outlet.end(REPLACED, "replaced by a newer connection of the same principal")
        was_here = here is not None or party in self.remote_members
        self.remote_members[party] = remote_member
        if not was_here:
            self._announce(wire.JOIN, party, remote_member.capabilities)

    def remove_remote_member(self, party: str, node: str) -> None:
        found = self.remote_members.get(party)
        if found is not None and found.node == node:
            del self.remote_members[party]
            self._announce(wire.LEAVE, party, None)

    # Envelopes

    def receive(self, member: TopicMember, data: bytes, now: float) -> int:
        """Deliver an envelope of a member, or tell the sender why it is refused.

        Returns the number of envelopes that result.
        """
        if member.spent.strikes and member.is_early(now):
            # After a warning, early envelopes are not parsed, since that would cost more than
            # sending them.
            self._is_within_rate(member, EnvelopeHeader("", ""), "", now)
            return 1
        try:
            envelope = wire.decode_envelope(data, self.settings.limits)
        except MalformedMessage as error:
            id, kind = wire.identify_envelope(data)
            if self._is_within_rate(member, EnvelopeHeader(id, ""), kind, now):
                self._refuse(member, TopicRefusal(TopicViolation.INVALID, str(error)), id, kind)
            return 1
        if not self._is_within_rate(member, envelope, envelope.kind, now):
            return 1
        terms = self.settings
        reason = rules.envelope_refusal(
            envelope, member.party, member.may, self.trail, is_strict=terms.is_strict
        )
        if reason is not None:
            self._refuse(member, reason, envelope.id, envelope.kind, envelope)
            return 1
        said = TopicMessage(data, envelope)
        given = self.deliver(said)
        level = self.settings.audit_level
        is_chat = envelope.kind == CHAT
        if level is TopicAuditLevel.ALL or (level is TopicAuditLevel.MCP and not is_chat):
            self._record(AuditType.TOPIC_MESSAGE, envelope.sender, _heading(envelope))
        self._send_to_other_nodes(member, said)
        return given

    def _send_to_other_nodes(self, member: TopicMember, message: TopicMessage) -> None:
        if self.remote_topic is None:
            return
        try:
            self.remote_topic.send(self.name, message)
        except Unavailable as error:
            reason = TopicRefusal(
                TopicViolation.UNREACHABLE, f"only members at this node got it: {error}"
            )
            self._refuse(member, reason, message.envelope.id, message.envelope.kind)

    def _is_within_rate(
        self, member: TopicMember, said: Envelope | EnvelopeHeader, kind: str, now: float
    ) -> bool:
        """Whether an envelope respects the rate.

        A member that ignores the warning is disconnected.
        """
        wait = 0.0 if member.is_built_in else member.wait_for_rate(kind, now)
        if not wait:
            return True
        strikes = member.strike()
        if strikes > member.max_strikes and member.outlet is not None:
            member.outlet.end(FLOODING, "too many messages, in spite of warnings")
        elif strikes == 1 or strikes % 10 == 0:
            reason = TopicRefusal(
                TopicViolation.RATE, f"too much in a minute; try again in {wait:.1f} s"
            )
            envelope = said if isinstance(said, Envelope) else None
            self._refuse(member, reason, said.id, kind, envelope)
        return False

    def deliver(self, message: TopicMessage) -> int:
        """Deliver an envelope of any origin to its recipients on this node.

        Returns their number.
        """
        envelope = message.envelope
        for member in self._all_mode_members.values():
            member.deliver(message)
        given = len(self._all_mode_members)
        if self._directed_members:
            for member in _recipients(envelope, self._directed_members, self.trail):
                member.deliver(message)
                given += 1
        self.trail.add(envelope)
        self._remember(message)
        if message.is_from_here:
            self._deliver_to_gateway(message)
        return given

    def _remember(self, message: TopicMessage) -> None:
        kept = self._history
        kept.append(message)
        self.envelope_count += 1
        self._history_bytes += len(message.text)
        while self._has_too_much_history():
            self._history_bytes -= len(kept.popleft().text)

    def _has_too_much_history(self) -> bool:
        if self._history_bytes > MAX_HISTORY_BYTES:
            return True
        is_long = len(self._history) > MAX_RECENT or self._history_bytes > MAX_RECENT_BYTES
        return is_long and len(self._history) > self.settings.history

    def recent_envelopes(self) -> list[tuple[int, Envelope]]:
        """Return the last envelopes that this node delivered, each with its number."""
        first = self.envelope_count - len(self._history) + 1
        return [(first + place, _whole_envelope(each)) for place, each in enumerate(self._history)]

    def _deliver_to_gateway(self, message: TopicMessage) -> None:
        """Pass an envelope to the gateway members, on one node only."""
        for member in _recipients(message.envelope, self._gateway_members, self.trail):
            member.deliver(message)
        for hear in self.listeners:
            hear(message)

    # Messages of the gateway

    def send_welcome(self, member: TopicMember) -> None:
        """Tell a member its id, its capabilities and the other members. (§3.5.1, D-51)"""
        others = [
            wire.encode_participant(other.party, other.may.listed)
            for other in self.local_members.values()
            if other is not member
        ]
        others += [
            wire.encode_participant(party, there.capabilities)
            for party, there in self.remote_members.items()
        ]
        you = wire.encode_participant(member.party, member.may.listed)
        self.send_to(member, wire.WELCOME, wire.build_welcome(you, others))

    def set_capabilities(self, member: TopicMember, capabilities: TopicCapabilities) -> None:
        """Apply changed capabilities, and tell the member and the other nodes."""
        if capabilities == member.may:
            return
        member.may = capabilities
        self.send_welcome(member)
        if self.remote_topic is not None:
            self.remote_topic.on_joined(self.name, member)

    def send_missed_notice(self, member: TopicMember, reason: str) -> None:
        missed = member.missed
        if missed.count and member.outlet is not None:
            payload = wire.build_missed_notice(missed.count, missed.first, missed.last, reason)
            # If the connection has no room for the notice, it is sent next time.
            if member.outlet.deliver(self.new_message(wire.MISSED, payload, (member.party,))):
                member.missed = type(missed)()

    def send_missed_to_all(self, count: int, reason: str) -> None:
        """Tell all members how many envelopes of another node were lost.

        Zero means unknown.
        """
        for member in self.local_members.values():
            self.send_to(member, wire.MISSED, wire.build_missed_notice(count, "", "", reason))

    def send_to(
        self, member: TopicMember, kind: str, payload: Mapping[str, Any], correlation_id: str = ""
    ) -> None:
        """Send a message of the gateway to one member."""
        member.deliver(self.new_message(kind, payload, (member.party,), correlation_id))

    def new_message(
        self,
        kind: str,
        payload: Mapping[str, Any],
        to: tuple[str, ...] = (),
        correlation_id: str = "",
    ) -> TopicMessage:
        heading = EnvelopeHeader(
            str(uuid.uuid4()), format_timestamp(self._clock()), to, correlation_id
        )
        envelope = wire.build_envelope(heading, GATEWAY, kind, payload)
        return TopicMessage(wire.encode_envelope(envelope), envelope)

    def _announce(self, event: str, party: str, capabilities: Iterable[str] | None) -> None:
        payload = wire.build_presence(event, wire.describe_participant(party, capabilities))
        said = self.new_message(wire.PRESENCE, payload)
        for member in self.local_members.values():
            member.deliver(said)

    def _refuse(
        self,
        member: TopicMember,
        refusal: TopicRefusal,
        id: str,
        kind: str,
        envelope: Envelope | None = None,
    ) -> None:
        payload = {
            "error": refusal.error,
            "message": refusal.message,
            "attempted_kind": kind,
            "your_capabilities": member.may.listed,
        }
        self.send_to(member, wire.ERROR, payload, id)
        self.record_refusal(member, envelope, refusal)

    def record_refusal(
        self, member: TopicMember, envelope: Envelope | None, refusal: TopicRefusal
    ) -> None:
        """Record that a message of a member was refused."""
        details = {} if envelope is None else _heading(envelope)
        details |= {"error": str(refusal.error), "message": refusal.message[:200]}
        blocked = AuditResult.BLOCKED
        self._record(AuditType.TOPIC_REFUSED, member.party, details, blocked, rate_key=member.party)

    def _record(
        self,
        type: AuditType,
        party: str,
        details: Mapping[str, object],
        result: AuditResult = AuditResult.SUCCESS,
        *,
        rate_key: str = "",
    ) -> None:
        """Record an event of this topic, unless the audit log is full."""
        if self.audit is not None:
            self.audit.record(
                type,
                party,
                result=result,
                details={"topic": self.name, **details},
                rate_key=rate_key,
                if_room=True,
            )


def _whole_envelope(message: TopicMessage) -> Envelope:
    """Return the envelope with its payload. A relayed message has it only in its text."""
    return message.envelope if message.is_from_here else wire.reread_envelope(message.text)


def _recipients(
    envelope: Envelope, seats: dict[str, TopicMember], trail: MessageTrail
) -> Iterable[TopicMember]:
    """The recipients of an envelope among these members.

    A copy, since delivery may change the table.
    """
    if not seats:
        return ()
    if envelope.is_for_all:
        return list(seats.values())
    named = set(envelope.to)
    if envelope.correlation_id:
        named |= trail.earlier_senders(envelope)
    return [seats[party] for party in named if party in seats]


_MAX_RECORDED_RECIPIENTS: Final = 20


def _heading(envelope: Envelope) -> dict[str, object]:
    told: dict[str, object] = {"envelope": envelope.id, "kind": envelope.kind[:256]}
    if envelope.to:
        told["to"] = list(envelope.to[:_MAX_RECORDED_RECIPIENTS])
    if envelope.correlation_id:
        told["correlation_id"] = envelope.correlation_id
    return told
