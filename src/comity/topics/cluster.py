"""Topics across the nodes of a cluster: their envelopes and member lists."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import batched
from typing import Final

import msgspec

from comity.cluster.bus import Bus, BusMessage, BusSubscription
from comity.cluster.nodes import ClusterMembers
from comity.errors import MalformedMessage, Unavailable
from comity.toolkit.background import BackgroundTasks
from comity.topics.envelope import PROTOCOL, Envelope
from comity.topics.service import TopicQuestion, TopicService
from comity.topics.topic import RemoteMember, Topic, TopicMember, TopicMessage


class RemoteMemberInfo(msgspec.Struct, frozen=True, array_like=True):
    """A member on another node. Of two stamps of one principal, the greater is the newer."""

    party: str
    capabilities: tuple[str, ...]
    stamp: str


class TopicRelay(msgspec.Struct, frozen=True, array_like=True, tag="said"):
    """An envelope for other nodes.

    `number` counts the envelopes of this node in the topic, so that the receiver detects a gap.
    """

    topic: str
    node: str
    number: int
    id: str
    sender: str
    kind: str
    to: tuple[str, ...]
    correlation_id: str
    text: bytes


class MemberArrival(msgspec.Struct, frozen=True, array_like=True, tag="came"):
    topic: str
    node: str
    who: RemoteMemberInfo


class MemberDeparture(msgspec.Struct, frozen=True, array_like=True, tag="went"):
    topic: str
    node: str
    party: str


class MemberList(msgspec.Struct, frozen=True, array_like=True, tag="roll"):
    """All members on one node, and the number of envelopes that it has sent in the topic."""

    topic: str
    node: str
    number: int
    members: tuple[RemoteMemberInfo, ...]


class MemberListRequest(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A node asks for the members of a topic on other nodes."""

    topic: str
    node: str


class PeerQuestion(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """A node asks the others about topics, for an operator."""

    node: str
    question: TopicQuestion


class PeerAnswer(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """The JSON answer of a node. Empty if it has none."""

    node: str
    view: bytes


type ClusterTopicMessage = (
    TopicRelay
    | MemberArrival
    | MemberDeparture
    | MemberList
    | MemberListRequest
    | PeerQuestion
    | PeerAnswer
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(
    TopicRelay
    | MemberArrival
    | MemberDeparture
    | MemberList
    | MemberListRequest
    | PeerQuestion
    | PeerAnswer
)


def encode_message(message: ClusterTopicMessage) -> bytes:
    return _encoder.encode(message)


def decode_message(data: bytes) -> ClusterTopicMessage:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"no word of a node about a topic: {error}") from None


@lru_cache(16_384)
def subject_part(topic: str) -> str:
    """Return the part of a bus subject that names a topic. It contains no dots."""
    return hashlib.blake2b(topic.encode(), digest_size=12).hexdigest()


log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 1.0
AT_ONCE: Final = 100
_EMPTY_PAYLOAD: Final = msgspec.Raw(b"{}")
"""Placeholder for the payload of a relayed envelope. Its bytes are in the text of the message."""


class ClusterTopics:
    """Connects every topic with the same topic on other nodes."""

    def __init__(self, bus: Bus, peers: ClusterMembers, topics: TopicService) -> None:
        self._bus = bus
        self._peers = peers
        self._topics = topics
        self._own_node = peers.me.id
        self._subscriptions: dict[str, BusSubscription] = {}
        # The number of envelopes sent in each topic, and the number received from each other node.
        self._sent_counts: dict[str, int] = {}
        self._received_counts: dict[str, dict[str, int]] = {}
        self._list_requests: BusSubscription | None = None
        self._background_tasks = BackgroundTasks("topics at other nodes")

    async def open(self) -> None:
        self._topics.remote_topic = self._topics.interest_tracker = self._topics.peers = self
        self._list_requests = await self._bus.subscribe(
            f"{self._peers.prefix}.topics", self._on_list_request
        )
        self._bus.watch(self._on_connection_changed)
        self._peers.watch(self._on_node_changed)

    async def close(self) -> None:
        self._background_tasks.cancel()
        for interest in (self._list_requests, *self._subscriptions.values()):
            if interest is not None:
                await interest.close()

    # Changes on this node

    async def subscribe(self, room: Topic) -> None:
        """Subscribe to a topic, and learn its members on other nodes."""
        topic = room.name
        if topic in self._subscriptions:
            return
        try:
            self._subscriptions[topic] = await self._bus.subscribe(
                self._subject(topic), self._on_message
            )
            await self._request_members(room)
        except Unavailable as error:
            # The topic is local to this node until the other nodes can be reached again.
            log.warning("Topic %r is not shared with other nodes yet: %s", topic, error)

    def forget(self, topic: str) -> None:
        interest = self._subscriptions.pop(topic, None)
        self._sent_counts.pop(topic, None)
        self._received_counts.pop(topic, None)
        if interest is not None:
            self._background_tasks.start(interest.close())

    def send(self, topic: str, message: TopicMessage) -> None:
        number = self._sent_counts[topic] = self._sent_counts.get(topic, 0) + 1
        if not len(self._peers) and self._bus.is_connected:
            return
        envelope = message.envelope
        heading = (envelope.id, envelope.sender, envelope.kind, envelope.to)
        passed = TopicRelay(
            topic, self._own_node, number, *heading, envelope.correlation_id, message.text
        )
        self._bus.publish(self._subject(topic), encode_message(passed))

    def on_joined(self, topic: str, member: TopicMember) -> None:
        if not member.is_built_in:
            self._send_update(topic, MemberArrival(topic, self._own_node, _member_info(member)))

    def on_left(self, topic: str, party: str) -> None:
        self._send_update(topic, MemberDeparture(topic, self._own_node, party))

    def _send_update(
        self, topic: str, update: MemberArrival | MemberDeparture | MemberList
    ) -> None:
        try:
            self._bus.publish(self._subject(topic), encode_message(update))
        except Unavailable as error:
            # All of it is sent again as soon as the bus is connected.
            log.debug("the other nodes do not hear of topic %r: %s", topic, error)

    async def _request_members(self, topic: Topic) -> None:
        """Ask every node for the members of a topic. The wait for answers is bounded."""

        def take(answer: ClusterTopicMessage | None) -> str:
            if not isinstance(answer, MemberList) or answer.topic != topic.name:
                return ""
            self._apply_member_list(topic, answer)
            return answer.node

        silent = await self._ask_all(MemberListRequest(topic.name, self._own_node), take)
        if silent:
            log.info("Nodes %s do not report topic %r", sorted(silent), topic.name)

    async def ask(self, question: TopicQuestion) -> Sequence[bytes]:
        """Ask every node for what an operator wants to see. The wait for answers is bounded."""
        found: dict[str, bytes] = {}

        def take(answer: ClusterTopicMessage | None) -> str:
            if not isinstance(answer, PeerAnswer):
                return ""
            found[answer.node] = answer.view
            return answer.node

        try:
            await self._ask_all(PeerQuestion(self._own_node, question), take)
        except Unavailable as error:
            log.info("Other nodes cannot be asked about topics: %s", error)
        return [found[node] for node in sorted(found) if found[node]]

    async def _ask_all(
        self, message: ClusterTopicMessage, take: Callable[[ClusterTopicMessage | None], str]
    ) -> set[str]:
        """Publish a message and pass each answer to `take`, which returns its node.

        Returns the nodes that did not answer in time.
        """
        waited_for = {peer.node.id for peer in self._peers}
        if not waited_for:
            return waited_for
        all_here = asyncio.Event()

        def hear(heard: BusMessage) -> None:
            waited_for.discard(take(_read(heard)))
            if not waited_for:
                all_here.set()

        inbox = self._bus.inbox()
        interest = await self._bus.subscribe(inbox, hear)
        try:
            self._bus.publish(f"{self._peers.prefix}.topics", encode_message(message), inbox)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await all_here.wait()
        except TimeoutError:
            pass
        finally:
            await interest.close()
        return waited_for

    # Messages of other nodes

    def _on_list_request(self, message: BusMessage) -> None:
        called = _read(message)
        match called:
            case MemberListRequest():
                answer = self._member_list(called.topic)
            case PeerQuestion():
                view = self._topics.answer_peer(called.question, self._own_node)
                answer = PeerAnswer(self._own_node, view)
            case _:
                return
        if not message.reply:
            return
        try:
            self._bus.publish(message.reply, encode_message(answer))
        except (Unavailable, MalformedMessage) as error:
            log.debug("a node cannot be answered: %s", error)

    def _member_list(self, topic: str) -> MemberList:
        room = self._topics.topics.get(topic)
        seats = () if room is None else room.local_members.values()
        members = tuple(_member_info(member) for member in seats if not member.is_built_in)
        return MemberList(topic, self._own_node, self._sent_counts.get(topic, 0), members)

    def _on_message(self, message: BusMessage) -> None:
        told = _read(message)
        if told is None or isinstance(told, PeerQuestion | PeerAnswer):
            return
        topic = self._topics.topics.get(told.topic)
        if topic is None or told.node == self._own_node:
            return
        match told:
            case TopicRelay():
                self._deliver_relay(topic, told)
            case MemberArrival():
                self._on_arrival(topic, told.node, told.who)
            case MemberDeparture():
                topic.remove_remote_member(told.party, told.node)
            case MemberList():
                self._apply_member_list(topic, told)
            case _:
                pass

    def _deliver_relay(self, topic: Topic, relay: TopicRelay) -> None:
        self._detect_missing(topic, relay.node, relay.number - 1)
        self._received_counts[topic.name][relay.node] = relay.number
        if relay.id in topic.trail:
            # When a node dies, its successor publishes the same envelope about a push again.
            return
        envelope = Envelope(
            PROTOCOL,
            relay.id,
            relay.sender,
            relay.kind,
            _EMPTY_PAYLOAD,
            relay.to,
            relay.correlation_id,
        )
        topic.deliver(TopicMessage(relay.text, envelope, is_from_here=False))

    def _detect_missing(self, topic: Topic, node: str, number: int) -> None:
        """Detect missing envelopes of a node by their number."""
        heard = self._received_counts.setdefault(topic.name, {})
        known = heard.get(node)
        if known is not None and number > known:
            reason = f"node {node.rpartition('-')[0]} could not be heard for a while"
            topic.send_missed_to_all(number - known, reason)
        if known is None or number > known:
            heard[node] = number

    def _on_arrival(self, topic: Topic, node: str, member_info: RemoteMemberInfo) -> None:
        here = topic.local_members.get(member_info.party)
        is_newer = here is None or member_info.stamp > here.stamp
        there = RemoteMember(node, member_info.capabilities, member_info.stamp)
        known = topic.remote_members.get(member_info.party)
        if known is not None and known.stamp > member_info.stamp:
            return
        topic.add_remote_member(member_info.party, there, is_newer=is_newer)
        if here is not None and not is_newer:
            self.on_joined(topic.name, here)

    def _apply_member_list(self, topic: Topic, member_list: MemberList) -> None:
        self._detect_missing(topic, member_list.node, member_list.number)
        named = {who.party for who in member_list.members}
        for party, there in list(topic.remote_members.items()):
            if there.node == member_list.node and party not in named:
                topic.remove_remote_member(party, member_list.node)
        for who in member_list.members:
            self._on_arrival(topic, member_list.node, who)

    # Reachability of other nodes

    def _on_node_changed(self, node: str, is_alive: bool) -> None:
        if is_alive:
            self._background_tasks.start(self._send_all_members())
            return
        for topic in list(self._topics.topics.values()):
            self._remove_node(topic, node)

    def _remove_node(self, topic: Topic, node: str) -> None:
        gone = [party for party, there in topic.remote_members.items() if there.node == node]
        was_heard = self._received_counts.get(topic.name, {}).pop(node, None) is not None
        if gone or was_heard:
            # The last envelopes of the node may be lost. Their number is unknown.
            name = node.rpartition("-")[0]
            topic.send_missed_to_all(0, f"node {name} died; its last messages may be lost")
        for party in gone:
            topic.remove_remote_member(party, node)

    def _on_connection_changed(self, is_connected: bool) -> None:
        if is_connected:
            self._background_tasks.start(self._send_all_members(and_ask=True))

    async def _send_all_members(self, *, and_ask: bool = False) -> None:
        """Send the members of every topic to the other nodes, a few topics at a time.

        With `and_ask`, also ask the other nodes for their members.
        """
        try:
            for some in batched(list(self._topics.topics.values()), AT_ONCE):
                # Concurrently, so that a silent node delays the whole batch only once.
                await asyncio.gather(
                    *(self._refresh_topic(topic, and_ask=and_ask) for topic in some)
                )
                await self._bus.wait_until_drained()
        except Unavailable as error:
            log.debug("Other nodes could not be notified of topics: %s", error)

    async def _refresh_topic(self, topic: Topic, *, and_ask: bool) -> None:
        if topic.name not in self._subscriptions:
            await self.subscribe(topic)
        elif and_ask:
            await self._request_members(topic)
        self._send_update(topic.name, self._member_list(topic.name))

    def _subject(self, topic: str) -> str:
        return f"{self._peers.prefix}.topic.{subject_part(topic)}"


def _member_info(member: TopicMember) -> RemoteMemberInfo:
    return RemoteMemberInfo(member.party, member.may.listed, member.stamp)


def _read(message: BusMessage) -> ClusterTopicMessage | None:
    try:
        return decode_message(message.data)
    except MalformedMessage as error:
        log.warning("%s", error)
        return None
