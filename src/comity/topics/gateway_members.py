"""The members that the gateway itself adds to a topic: servers and the approvals member."""

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from comity.errors import Unavailable
from comity.mcp import protocol
from comity.mcp.actors import LOCAL, LOCAL_OPERATOR, Actor, PrincipalKind
from comity.policy.grants import GrantSet
from comity.policy.snapshot import WallClock
from comity.toolkit.text import format_timestamp
from comity.topics import envelope as wire
from comity.topics.envelope import PROPOSAL, REJECT, REQUEST, WITHDRAW, Envelope, EnvelopeHeader
from comity.topics.rules import (
    DeliveryMode,
    TopicCapabilities,
    TopicRefusal,
    TopicViolation,
    decide_membership,
    party_of,
)
from comity.topics.topic import Now, Topic, TopicMember, TopicMessage

log = logging.getLogger(__name__)

INBOX: Final = "system:approvals"
_INBOX_CAPABILITIES: Final = ("mcp/request:*", "mcp/response:*", "mcp/proposal:*")
_SERVER_CAPABILITIES: Final = ("mcp/response:*", f"{REQUEST}:{protocol.RESOURCE_UPDATED}")
_HANDLED_FAMILIES: Final = frozenset({REQUEST, PROPOSAL, REJECT, WITHDRAW})


class MemberGrantSource(Protocol):
    """The grants in force. Raises Unavailable if they are not known."""

    @property
    def access(self) -> GrantSet: ...


class TopicHandler(Protocol):
    """Handles the requests and proposals of members in a managed topic on this node."""

    def on_message(
        self, managed_topic: "ManagedTopic", member: TopicMember, message: TopicMessage
    ) -> None: ...


@dataclass(frozen=True, slots=True)
class TopicMembersConfig:
    """The settings of the gateway members of one topic."""

    mounts: tuple[str, ...] = ()
    asks: bool = False


class GatewayMember:
    """One member of a topic that is part of the gateway."""

    def __init__(self, topic: Topic, party: str, capabilities: Iterable[str], now: Now) -> None:
        self.topic = topic
        self.party = party
        self._now = now
        actor = Actor(party, PrincipalKind(party.partition(":")[0]))
        self.member = TopicMember(actor, DeliveryMode.DIRECTED, self, "built-in")
        self.member.is_built_in = True
        self.member.may = TopicCapabilities(capabilities)

    def send(self, heading: EnvelopeHeader, kind: str, payload: Mapping[str, Any]) -> None:
        """Send an envelope as this member.

        Raises MalformedMessage if the topic does not accept it.
        """
        envelope = wire.build_envelope(heading, self.party, kind, payload)
        data = wire.encode_envelope(envelope)
        wire.decode_envelope(data, self.topic.settings.limits)
        self.topic.receive(self.member, data, self._now())

    # Envelopes reach this member through the handlers of the topic. The connection discards them.

    def deliver(self, message: TopicMessage) -> bool:
        return True

    def end(self, code: int, reason: str) -> None:
        log.warning("%s is no longer in topic %r: %s", self.party, self.topic.name, reason)


class ManagedTopic:
    """A topic with gateway members."""

    def __init__(self, topic: Topic, config: TopicMembersConfig, clock: WallClock) -> None:
        self.room = topic
        self.servers: dict[str, GatewayMember] = {}
        self.inbox: GatewayMember | None = None
        self.handlers: Collection[TopicHandler] = ()
        # When the first grant of a gateway member's membership expires.
        self.until: datetime | None = None
        self.config = config
        self._clock = clock

    @property
    def topic(self) -> str:
        return self.room.name

    @property
    def shows_approvals(self) -> bool:
        return self.config.asks

    def new_header(
        self, to: Iterable[str] = (), correlation_id: str = "", id: str = ""
    ) -> EnvelopeHeader:
        named = id or str(uuid.uuid4())
        return EnvelopeHeader(
            named, format_timestamp(self._clock()), tuple(dict.fromkeys(to)), correlation_id
        )

    def set_servers(self, servers: Collection[str], now: Now) -> None:
        """Make exactly these servers members, and the approvals member if the topic needs it."""
        for name in [name for name in self.servers if name not in servers]:
            self.room.remove_member(self.servers.pop(name).member)
        has_inbox = bool(servers) or self.shows_approvals
        if has_inbox and self.inbox is None:
            self.inbox = self._add_member(INBOX, _INBOX_CAPABILITIES, now)
            self.room.listeners.append(self._on_message)
        for name in servers:
            if name not in self.servers:
                self.servers[name] = self._add_member(party_of(name), _SERVER_CAPABILITIES, now)
        if not has_inbox and self.inbox is not None:
            self.room.listeners.remove(self._on_message)
            self.room.remove_member(self.inbox.member)
            self.inbox = None

    def _add_member(self, party: str, capabilities: Iterable[str], now: Now) -> GatewayMember:
        member = GatewayMember(self.room, party, capabilities, now)
        self.room.add_member(member.member)
        return member

    def _on_message(self, message: TopicMessage) -> None:
        envelope = message.envelope
        if envelope.kind.partition(":")[0] not in _HANDLED_FAMILIES:
            return
        member = self.room.local_members.get(envelope.sender)
        if member is None:
            return
        for attendant in self.handlers:
            try:
                attendant.on_message(self, member, message)
            except Exception:
                log.exception("Processing a message of topic %r failed", self.topic)

    # Messages of the gateway

    def refuse(self, member: TopicMember, envelope: Envelope, refusal: TopicRefusal) -> None:
        """Tell a member that its envelope had no effect, and record that. (D-41)"""
        payload = {
            "error": refusal.error,
            "message": refusal.message,
            "attempted_kind": envelope.kind,
            "your_capabilities": member.may.listed,
        }
        self.room.send_to(member, wire.ERROR, payload, envelope.id)
        self.room.record_refusal(member, envelope, refusal)

    def refuse_mismatch(self, member: TopicMember, envelope: Envelope, reason: str) -> None:
        self.refuse(member, envelope, TopicRefusal(TopicViolation.MISMATCH, reason[:300]))

    def notify(
        self,
        notice: str,
        message: str,
        to: Iterable[str] = (),
        correlation_id: str = "",
        **more: object,
    ) -> None:
        """Send a notice to members on every node."""
        payload = {"notice": notice, "message": message, **more}
        said = self.room.new_message(wire.NOTICE, payload, tuple(dict.fromkeys(to)), correlation_id)
        self.room.deliver(said)
        if self.room.remote_topic is not None:
            try:
                self.room.remote_topic.send(self.topic, said)
            except Unavailable as error:
                log.info("Only members at this node receive %s: %s", correlation_id, error)


def grant_actor(actor: Actor) -> Actor:
    """Return the principal that grants name.

    With one local person behind several members, all of them are that person.
    """
    if not actor.is_local:
        return actor
    return LOCAL if actor.lacks_token else LOCAL_OPERATOR


class ManagedTopics:
    """All topics of this node, with the gateway members that settings and grants define."""

    def __init__(
        self,
        config_of: Callable[[str], TopicMembersConfig],
        grants: MemberGrantSource,
        names: Callable[[], Collection[str]],
        now: Now,
        clock: WallClock,
    ) -> None:
        self.handlers: list[TopicHandler] = []
        self.topics: dict[str, ManagedTopic] = {}
        # Callbacks for a topic that was closed or replaced.
        self.close_listeners: list[Callable[[ManagedTopic], None]] = []
        self._config_of = config_of
        self._grants = grants
        self._server_names = names
        self._known_servers: frozenset[str] = frozenset()
        self._now = now
        self._clock = clock

    async def add_members(self, topic: Topic) -> None:
        """Add the gateway members to a new topic, before the first member receives its welcome."""
        before = self.topics.pop(topic.name, None)
        if before is not None:
            self._close(before)
        place = ManagedTopic(topic, self._config_of(topic.name), self._clock)
        place.handlers = self.handlers
        self.topics[topic.name] = place
        self._apply_grants(place)

    def on_grants_changed(self, subject: str) -> None:
        """Apply a change of a subject's grants. An empty name or `*` means all subjects."""
        if subject in ("", "*") or subject.startswith(f"{PrincipalKind.SERVER}:"):
            for place in list(self.topics.values()):
                self._apply_grants(place)

    def look(self, rooms: Mapping[str, Topic]) -> None:
        """Update the topics for changed servers, expired grants and closed topics."""
        names, now = frozenset(self._server_names()), self._clock()
        are_others, self._known_servers = names != self._known_servers, names
        for topic, place in list(self.topics.items()):
            if rooms.get(topic) is not place.room:
                del self.topics[topic]
                self._close(place)
            elif are_others or (place.until is not None and place.until <= now):
                self._apply_grants(place)

    def _close(self, managed_topic: ManagedTopic) -> None:
        for hear in self.close_listeners:
            hear(managed_topic)

    def _apply_grants(self, managed_topic: ManagedTopic) -> None:
        """Apply the grants to a topic. While the grants are not known, no server is a member."""
        try:
            access = self._grants.access
        except Unavailable:
            managed_topic.set_servers((), self._now)
            managed_topic.until = self._clock()
            return
        found, ends = list[str](), list[datetime]()
        for name in self._server_names():
            is_written = name in managed_topic.config.mounts
            judged = decide_membership(
                access, name, managed_topic.topic, self._clock(), is_written=is_written
            )
            if judged.is_member:
                found.append(name)
            if judged.until is not None:
                ends.append(judged.until)
        managed_topic.until = min(ends, default=None)
        managed_topic.set_servers(found, self._now)
