"""All topics of this node, their joins and leaves, and changes of capabilities."""

import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple, Protocol

from comity.audit.log import AuditLog
from comity.config.document import nearest_name
from comity.errors import (
    EXHAUSTED,
    INVALID_PARAMS,
    JOINING_REFUSED,
    NOTHING_HERE,
    RATE_LIMITED,
    MalformedMessage,
    Unavailable,
)
from comity.mcp.actors import GROUP_PREFIX, LOCAL, Actor, PrincipalKind
from comity.policy.administration import GrantAdmin
from comity.policy.grants import (
    ANY_SUBJECT,
    ANY_TARGET,
    Effect,
    Grant,
    GrantSet,
    parse_subject,
)
from comity.toolkit.background import SharedOpening
from comity.toolkit.text import count_noun
from comity.topics.rules import (
    ALIAS_PREFIX,
    SEND,
    DeliveryMode,
    TopicCapabilities,
    TopicEntitlement,
    can_send_kind,
    decide_topic_entitlement,
    is_capability,
    is_topic,
)
from comity.topics.rules import TopicAccess as Entrance
from comity.topics.topic import (
    NO_RATE_LIMIT,
    UNENTITLED,
    Clock,
    MemberConnection,
    MemberRateLimit,
    MemberRateState,
    Now,
    RemoteTopic,
    Topic,
    TopicMember,
    TopicSettings,
)

MAX_TOPICS_PER_PARTY: Final = 200


class TopicGrantSource(Protocol):
    """The grants in force. Raises Unavailable if they are not known."""

    @property
    def access(self) -> GrantSet: ...


class TopicInterestTracker(Protocol):
    """Subscribes this node to a topic of the cluster while it has members."""

    async def subscribe(self, room: Topic) -> None: ...
    def forget(self, topic: str) -> None: ...


class TopicQuestion(NamedTuple):
    """The part of a topic that an operator wants to see.

    Without a topic, these are all topics. Without a limit, these are the members.
    """

    topic: str = ""
    limit: int = 0
    cursor: int = 0
    correlation: str = ""


class TopicPeers(Protocol):
    """Asks the other nodes about topics."""

    async def ask(self, question: TopicQuestion) -> Sequence[bytes]:
        """Return the JSON answers of the nodes that know one, in the order of the nodes."""
        ...


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Limits on topics and their members."""

    topics: int = 10_000
    pace: MemberRateLimit = NO_RATE_LIMIT
    grace: float = 5.0


type SettingsOf = Callable[[str], TopicSettings]


class TopicService:
    """All topics with members on this node."""

    def __init__(
        self,
        grants: TopicGrantSource,
        settings_of: SettingsOf,
        limits: TopicLimits,
        now: Now,
        clock: Clock = lambda: datetime.now(UTC),
        *,
        audit: AuditLog | None = None,
        refresh_actor: Callable[[Actor], Actor | None] = lambda actor: actor,
    ) -> None:
        self.topics: dict[str, Topic] = {}
        self.limits = limits
        self.remote_topic: RemoteTopic | None = None
        self.interest_tracker: TopicInterestTracker | None = None
        self.peers: TopicPeers | None = None
        # Answers a question of another node, whose operators see this node under the given name.
        # Empty if this node has no answer.
        self.answer_peer: Callable[[TopicQuestion, str], bytes] = lambda _, __: b""
        self.audit = audit
        # Called with each new topic, to add the gateway members.
        self.open_listeners: list[Callable[[Topic], Awaitable[None]]] = []
        # Returns an actor with its current groups, or None if its credentials are void.
        self.refresh_actor: Callable[[Actor], Actor | None] = refresh_actor
        self._grants = grants
        self._settings_of = settings_of
        self._now = now
        self._clock = clock
        self._topics_by_party: dict[str, set[str]] = {}
        self._disconnected: dict[tuple[str, str], TopicMember] = {}
        # The rate state of members that have left, so that a rejoin does not reset it.
        self._rate_states: dict[tuple[str, str], MemberRateState] = {}
        self._opening: SharedOpening[str, Topic] = SharedOpening()

    def entitlement_of(self, topic: str, actor: Actor) -> TopicEntitlement:
        """Return what an actor may do in a topic. Raises Unavailable if that is not known."""
        terms = self._settings_of(topic)
        access = self._grants.access
        return decide_topic_entitlement(
            access, actor, topic, self._clock(), (terms.access, terms.default_capabilities)
        )

    def check(self, topic: str, actor: Actor) -> TopicEntitlement:
        """Return the entitlement of an actor that wants to join.

        Raises MalformedMessage if it may not join or a limit is reached. Raises Unavailable if it
        joins too often, or if the grants are not known.
        """
        if not is_topic(topic):
            raise MalformedMessage(
                "?topic= must name a topic: 1 to 64 of A-Z a-z 0-9 _ . -", INVALID_PARAMS
            )
        found = self.entitlement_of(topic, actor)
        if found.is_admitted:
            self._check_capacity(topic, actor.party)
            self._check_join_rate(topic, actor.party)
            return found
        if self._settings_of(topic).access is Entrance.PRIVATE:
            raise MalformedMessage(f"there is no topic {topic!r} that you can join", NOTHING_HERE)
        raise MalformedMessage(
            f"{actor.party or 'an unauthenticated client'} has no grant in topic {topic!r}; an "
            "operator can: "
            f"comity topics capabilities set {topic} {actor.party or 'PRINCIPAL'} --add chat",
            JOINING_REFUSED,
        )

    async def join(
        self, topic: str, actor: Actor, mode: DeliveryMode, connection: MemberConnection
    ) -> TopicMember:
        """Add a member to a topic. It has received its welcome when the method returns.

        Raises MalformedMessage and Unavailable as `check` does.
        """
        self.check(topic, actor)
        room = await self._get_or_open(topic)
        # During the wait, all members may have left, and the topic may have been replaced.
        while self.topics.get(topic) is not room:
            room = await self._get_or_open(topic)
        try:
            found = self.check(topic, actor)
        except (MalformedMessage, Unavailable):
            self._forget(room, actor.party)
            raise
        member = TopicMember(actor, mode, connection, secrets.token_hex(8))
        member.may, member.until = found.capabilities, _earlier(found.until, actor.expires_at)
        member.spent = self._rate_state_of(room, actor.party)
        member.came(self._now())
        self._topics_by_party.setdefault(actor.party, set()).add(topic)
        self._disconnected.pop((topic, actor.party), None)
        room.add_member(member)
        return member

    async def open(self, topic: str) -> Topic:
        """Return a topic in which the gateway wants to send. An empty topic is soon dropped again.

        Raises MalformedMessage if the name is invalid.
        """
        if not is_topic(topic):
            raise MalformedMessage(f"{topic!r:.80} is no name of a topic", INVALID_PARAMS)
        if topic not in self.topics:
            self._check_capacity(topic, "")
        return await self._get_or_open(topic)

    def _rate_state_of(self, topic: Topic, party: str) -> MemberRateState:
        """Return the rate state of a principal. A member that rejoins keeps its state."""
        before = topic.local_members.get(party)
        spent = self._rate_states.pop((topic.name, party), None) if before is None else before.spent
        return spent or MemberRateState(self.limits.pace)

    async def _get_or_open(self, topic: str) -> Topic:
        """Return the topic. The first member opens it, and others wait until it is complete."""
        if topic in self.topics and topic not in self._opening:
            return self.topics[topic]
        return await self._opening.wait_for(
            topic, lambda: self._open(topic), lambda: Unavailable("the topic was closed")
        )

    async def _open(self, topic: str) -> Topic:
        room = self.topics[topic] = Topic(topic, self._settings_of(topic), self._clock)
        room.audit = self.audit
        room.remote_topic = self.remote_topic
        try:
            if self.interest_tracker is not None:
                await self.interest_tracker.subscribe(room)
            for furnish in self.open_listeners:
                await furnish(room)
        except BaseException:
            self._close(room)
            raise
        return room

    def _check_capacity(self, topic: str, party: str) -> None:
        """Raise if a topic is full, if there are too many, or if a gateway member has this name."""
        room = self.topics.get(topic)
        if room is None and len(self.topics) >= self.limits.topics:
            raise _too_many(
                f"no more than {count_noun(self.limits.topics, 'topic')} may be open here"
            )
        if (
            room is not None
            and not room.has(party)
            and room.member_count >= room.settings.max_members
        ):
            raise _too_many(
                f"topic {topic!r} has {count_noun(room.settings.max_members, 'member')} already"
            )
        here = None if room is None else room.local_members.get(party)
        if here is not None and here.is_built_in:
            # Other members could not tell two members with the same name apart.
            raise MalformedMessage(
                f"{party} is a built-in member of topic {topic!r}", JOINING_REFUSED
            )
        of_party = self._topics_by_party.get(party, ())
        if topic not in of_party and len(of_party) >= MAX_TOPICS_PER_PARTY:
            raise _too_many(f"{party} is in {MAX_TOPICS_PER_PARTY} topics already")

    def _check_join_rate(self, topic: str, party: str) -> None:
        """Raise Unavailable if a principal joins too often. Every join notifies all members."""
        room = self.topics.get(topic)
        here = None if room is None else room.local_members.get(party)
        spent = self._rate_states.get((topic, party)) if here is None else here.spent
        joins = None if spent is None else spent.joins
        wait = 0.0 if joins is None else joins.wait(self._now())
        if wait:
            raise Unavailable(
                f"{party} comes to topic {topic!r} too often; retry in {wait:.1f} s",
                RATE_LIMITED,
                timedelta(seconds=wait),
            )

    def receive(self, topic: str, member: TopicMember, data: bytes) -> int:
        """Handle an envelope of a member. Returns the number of envelopes that result."""
        room = self.topics.get(topic)
        if room is None or room.local_members.get(member.party) is not member:
            return 0
        return room.receive(member, data, self._now())

    def on_resumed(self, topic: str, member: TopicMember) -> None:
        """Tell a member that reads again how many envelopes it has missed."""
        room = self.topics.get(topic)
        if room is not None:
            room.send_missed_notice(member, "you read messages too slowly")

    def on_disconnected(self, topic: str, member: TopicMember, *, is_clean: bool) -> None:
        """Handle the end of a connection. `is_clean` tells whether the member closed it."""
        room = self.topics.get(topic)
        member.outlet = None
        if room is None or room.local_members.get(member.party) is not member:
            if room is not None and member.party not in room.local_members:
                # The member has a newer connection on another node.
                self._forget(room, member.party)
            return
        if is_clean or not self.limits.grace:
            self._leave(room, member)
        else:
            member.away_since = self._now()
            self._disconnected[topic, member.party] = member

    def _leave(self, topic: Topic, member: TopicMember) -> None:
        self._disconnected.pop((topic.name, member.party), None)
        topic.remove_member(member)
        if member.spent.is_limited(self._now()):
            self._rate_states[topic.name, member.party] = member.spent
        self._forget(topic, member.party)

    def _forget(self, topic: Topic, party: str) -> None:
        of_party = self._topics_by_party.get(party)
        if of_party is not None:
            of_party.discard(topic.name)
            if not of_party:
                del self._topics_by_party[party]
        if topic.is_empty and self.topics.get(topic.name) is topic:
            self._close(topic)

    def _close(self, topic: Topic) -> None:
        del self.topics[topic.name]
        if self.interest_tracker is not None:
            self.interest_tracker.forget(topic.name)

    def look(self) -> None:
        """Remove members that did not return in time, and apply expired grants."""
        now, clock = self._now(), self._clock()
        for (topic, _), member in list(self._disconnected.items()):
            if now - member.away_since >= self.limits.grace and topic in self.topics:
                self._leave(self.topics[topic], member)
        for key in [key for key, spent in self._rate_states.items() if not spent.is_limited(now)]:
            del self._rate_states[key]
        rooms = self.topics.values()
        ended = [
            (room, member)
            for room in rooms
            for member in room.local_members.values()
            if member.until is not None and member.until <= clock
        ]
        for room, member in ended:
            self._update_member(room, member)
        # A client that wanted to join may have gone while the topic was opened.
        for room in [each for each in rooms if each.is_empty and each.name not in self._opening]:
            self._forget(room, "")

    def on_grants_changed(self, party: str) -> None:
        """Apply a change of a principal's grants or credentials.

        An empty name or `*` means all.
        """
        if party.startswith(GROUP_PREFIX):
            named = [each for each in self._memberships() if party in each[1].actor.subjects]
        elif party and party != "*":
            named = self.memberships_of(party)
        else:
            named = self._memberships()
        for name, member in named:
            if not member.is_built_in:
                self._update_member(self.topics[name], member)

    def _memberships(self) -> list[tuple[str, TopicMember]]:
        return [
            (name, member)
            for name, topic in self.topics.items()
            for member in topic.local_members.values()
        ]

    def _update_member(self, topic: Topic, member: TopicMember) -> None:
        try:
            actor = self.refresh_actor(member.actor)
            is_known = actor is not None and not self._has_expired(actor)
            member.actor = actor or member.actor
            found = self.entitlement_of(topic.name, member.actor)
        except Unavailable:
            # While the grants are not known, the member may send nothing. The next check follows
            # soon.
            is_known = True
            found = TopicEntitlement(TopicCapabilities(()), is_admitted=True, until=self._clock())
        if is_known and found.is_admitted:
            member.until = _earlier(found.until, member.actor.expires_at)
            topic.set_capabilities(member, found.capabilities)
            return
        if member.outlet is not None:
            words = (
                "you no longer have access to this topic"
                if is_known
                else "your credentials are void"
            )
            member.outlet.end(UNENTITLED, words)
        self._leave(topic, member)

    def _has_expired(self, actor: Actor) -> bool:
        return actor.expires_at is not None and actor.expires_at <= self._clock()

    def memberships_of(self, party: str) -> Sequence[tuple[str, TopicMember]]:
        found = ((name, self.topics.get(name)) for name in self._topics_by_party.get(party, ()))
        return [
            (name, topic.local_members[party])
            for name, topic in found
            if topic is not None and party in topic.local_members
        ]

    def member_names(self) -> Iterator[str]:
        """The members of all topics, on all nodes. Some may occur twice."""
        for topic in self.topics.values():
            yield from topic.local_members
            yield from topic.remote_members

    @property
    def member_count(self) -> int:
        return sum(len(topic.local_members) for topic in self.topics.values())


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _too_many(reason: str) -> MalformedMessage:
    return MalformedMessage(f"{reason}; try again later, or ask an operator for more", EXHAUSTED)


MAX_CHANGES_AT_ONCE: Final = 64
_NOWHERE: Final = "nowhere"
_MAX_COMPARED_NAMES: Final = 1_000


class PrincipalRecords(Protocol):
    """The principals of which there is a record."""

    def has_principal(self, party: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class CapabilityChange:
    """The capabilities of a principal before a change, and now."""

    party: str
    before: tuple[str, ...]
    now: tuple[str, ...]


class CapabilityAdmin:
    """Changes what principals may send in topics, by writing and revoking grants."""

    def __init__(
        self, administration: GrantAdmin, topics: TopicService, principals: PrincipalRecords
    ) -> None:
        self._grant_admin = administration
        self._topics = topics
        self._principals = principals

    async def change(
        self, actor: Actor, party: str, topic: str, add: Iterable[str], remove: Iterable[str]
    ) -> CapabilityChange:
        """Change the capabilities of a principal, and return them before and after.

        Raises MalformedMessage if the actor may not do this, or if a capability is invalid.
        """
        adding, removing = _check_capabilities(add), _check_capabilities(remove)
        if topic != ANY_TARGET and not is_topic(topic):
            raise MalformedMessage("topic must be the name of a topic, or *", INVALID_PARAMS)
        parse_subject(party)
        self.require_known(party)
        before = self.of(party, topic)
        for each in adding:
            grant = Grant(party, SEND, f"{topic}/{each}", Effect.ALLOW)
            await self._grant_admin.put(actor, grant)
        for each in removing:
            await self._grant_admin.revoke(actor, party, SEND, f"{topic}/{each}")
            if any(can_send_kind(has, each) or has == each for has in self.of(party, topic)):
                denial = Grant(party, SEND, f"{topic}/{each}", Effect.DENY)
                await self._grant_admin.put(actor, denial)
        self._topics.on_grants_changed(party)
        return CapabilityChange(party, before, self.of(party, topic))

    def require_known(self, party: str) -> None:
        """Raise MalformedMessage unless there is such a participant.

        A misspelt id would otherwise get the grant, and the participant would not.
        """
        if self._is_known(party):
            return
        # Each comparison takes time on the event loop, so that not all principals are compared.
        present = islice(self._topics.member_names(), _MAX_COMPARED_NAMES)
        whole = (f"{kind}:{party}" for kind in PrincipalKind)
        near = next(filter(self._is_known, whole), None) or nearest_name(party, present)
        hint = f"did you mean {near!r}?" if near else "`comity grants allow` can name it beforehand"
        raise MalformedMessage(f"there is no participant {party!r:.100}; {hint}", NOTHING_HERE)

    def _is_known(self, party: str) -> bool:
        # Participants of local mode name themselves, and may join after they were promoted.
        if party in (ANY_SUBJECT, LOCAL.party) or party.startswith((GROUP_PREFIX, ALIAS_PREFIX)):
            return True
        return (
            self._principals.has_principal(party)
            or bool(self._grant_admin.access.index_of(party).grants)
            or any(topic.has(party) for topic in self._topics.topics.values())
        )

    def of(self, party: str, topic: str) -> tuple[str, ...]:
        """Return what a principal may send in a topic, or in one of its topics for `*`."""
        somebody, named = self._grant_admin.actor_named(party), topic
        for name, member in self._topics.memberships_of(party):
            if topic in (name, ANY_TARGET):
                somebody, named = member.actor, name
        named = _NOWHERE if named == ANY_TARGET else named
        return self._topics.entitlement_of(named, somebody).capabilities.listed


def _check_capabilities(names: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(names))
    if len(found) > MAX_CHANGES_AT_ONCE:
        raise MalformedMessage(
            f"at most {MAX_CHANGES_AT_ONCE} capabilities at once", INVALID_PARAMS
        )
    for each in found:
        if not is_capability(each):
            raise MalformedMessage(
                f"{each!r:.80} is no capability, as mcp/proposal:* or chat", INVALID_PARAMS
            )
    return found
