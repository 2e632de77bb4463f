"""Events between the nodes of a cluster."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from comity.cluster.bus import Bus, BusMessage, BusSubscription
from comity.cluster.nodes import ClusterMembers
from comity.errors import MalformedMessage, Unavailable
from comity.events.bus import EventBus, EventSubscriber, Found
from comity.events.model import ALL, GatewayEvent, Severity, is_channel_match
from comity.events.server_events import ANSWER_SECONDS, ServerEventSources
from comity.events.standard_channels import STANDARD
from comity.toolkit.background import BackgroundTasks


class ClusterEvent(msgspec.Struct, frozen=True, array_like=True, tag="happened"):
    """An event on its way to other nodes."""

    node: str
    id: str
    channel: str
    at: datetime
    severity: Severity
    data: dict[str, Any]
    server: str
    tool: str
    party: str
    source: str

    def event(self) -> GatewayEvent:
        return GatewayEvent(
            self.id,
            self.channel,
            self.at,
            self.severity,
            self.data,
            self.server,
            self.tool,
            self.party,
            self.source,
        )


class ChannelInterestMessage(msgspec.Struct, frozen=True, array_like=True, tag="wants"):
    """All channels and patterns with a subscriber on one node."""

    node: str
    names: tuple[str, ...]


class ChannelOfferMessage(msgspec.Struct, frozen=True, array_like=True, tag="has"):
    """The requested channels of the servers that only one node runs."""

    node: str
    found: dict[str, tuple[str, ...]]


type ClusterEventMessage = ClusterEvent | ChannelInterestMessage | ChannelOfferMessage

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ClusterEvent | ChannelInterestMessage | ChannelOfferMessage)


def to_cluster_event(node: str, event: GatewayEvent) -> ClusterEvent:
    return ClusterEvent(
        node,
        event.id,
        event.channel,
        event.at,
        event.severity,
        dict(event.data),
        event.server,
        event.tool,
        event.party,
        event.source,
    )


def encode_event(said: ClusterEventMessage) -> bytes:
    """Encode a message. Raises MalformedMessage if an event has data that cannot be encoded."""
    try:
        return _encoder.encode(said)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedMessage(f"an event for no other node: {error}") from None


def decode_event(data: bytes) -> ClusterEventMessage:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"invalid message from a node: {error}") from None


log = logging.getLogger(__name__)

GATHER_SECONDS: Final = 0.05
PATIENCE_SECONDS: Final = ANSWER_SECONDS + 1.0
MAX_NAMES: Final = 512
"""A node with more names than this receives all events."""


class ClusterEvents:
    """Exchanges events between this node and the others."""

    def __init__(
        self, bus: Bus, peers: ClusterMembers, events: EventBus, servers: ServerEventSources
    ) -> None:
        self._bus = bus
        self._peers = peers
        self._events = events
        self._servers = servers
        self._own_node = peers.me.id
        self._names_by_node: dict[str, tuple[str, ...]] = {}
        self._channels_by_node: dict[str, Found] = {}
        self._announced: tuple[str, ...] = ()
        self._is_gathering = False
        self._subscriptions: list[BusSubscription] = []
        self._background_tasks = BackgroundTasks("events at other nodes")

    async def open(self) -> None:
        self._subscriptions = [
            await self._bus.subscribe(self._subject("told"), self._on_event),
            await self._bus.subscribe(self._subject("wanted"), self._on_interest),
        ]
        self._events.span = self._send_event
        self._events.other_sources.append(self)
        self._events.switches.append(lambda _: self._schedule_announcement())
        self._bus.watch(self._on_connection_changed)
        self._peers.watch(self._on_node_changed)

    async def close(self) -> None:
        self._events.span = None
        self._background_tasks.cancel()
        for interest in self._subscriptions:
            await interest.close()

    # Subscriptions of this node

    async def find(self, names: Sequence[str], subscriber: EventSubscriber) -> Found:
        """Ask every node for the channels that are wanted here. The wait for answers is bounded."""
        del names, subscriber
        found: dict[str, list[str]] = {}
        waited_for = {peer.node.id for peer in self._peers}
        if not waited_for:
            return found
        all_here = asyncio.Event()

        def hear(heard: BusMessage) -> None:
            has = _read(heard)
            if not isinstance(has, ChannelOfferMessage):
                return
            self._channels_by_node[has.node] = has.found
            for server, channels in has.found.items():
                found.setdefault(server, []).extend(channels)
            waited_for.discard(has.node)
            if not waited_for:
                all_here.set()

        await self._request_channels(hear, all_here)
        return found

    async def _request_channels(
        self, hear: Callable[[BusMessage], None], all_here: asyncio.Event
    ) -> None:
        try:
            inbox = self._bus.inbox()
            interest = await self._bus.subscribe(inbox, hear)
        except Unavailable as error:
            log.info("Event channels of other nodes could not be read: %s", error)
            return
        try:
            self._announce(inbox)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await all_here.wait()
        except (TimeoutError, Unavailable) as error:
            log.info("Not all nodes report their event channels: %s", error or "in time")
        finally:
            await interest.close()

    def forget(self, subscriber: EventSubscriber) -> None:
        """Do nothing, since every change sends the complete list of names."""

    def known(self) -> Found:
        return {
            server: names
            for found in self._channels_by_node.values()
            for server, names in found.items()
        }

    def _names(self) -> tuple[str, ...]:
        names = tuple(sorted(self._events.wanted_channels()))
        return names if len(names) <= MAX_NAMES else (ALL,)

    def _schedule_announcement(self) -> None:
        """Send changes that follow each other closely as one message."""
        if not self._is_gathering and self._names() != self._announced:
            self._is_gathering = True
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._try_announce)

    def _try_announce(self) -> None:
        self._is_gathering = False
        try:
            self._announce()
        except Unavailable as error:
            # It is sent again as soon as the bus is connected.
            log.debug("Other nodes do not know the subscriptions of this node: %s", error)

    def _announce(self, reply: str = "") -> None:
        names = self._names()
        wants = encode_event(ChannelInterestMessage(self._own_node, names))
        self._bus.publish(self._subject("wanted"), wants, reply)
        self._announced = names

    # Subscriptions of other nodes

    def _on_interest(self, message: BusMessage) -> None:
        wants = _read(message)
        if not isinstance(wants, ChannelInterestMessage) or wants.node == self._own_node:
            return
        self._record_interest(wants.node, wants.names)
        self._background_tasks.start(self._answer_interest(wants, message.reply), at_once=True)

    def _record_interest(self, node: str, names: tuple[str, ...]) -> None:
        if names:
            self._names_by_node[node] = names
        else:
            self._names_by_node.pop(node, None)
        self._events.set_wanted_remotely(bool(self._names_by_node))

    async def _answer_interest(self, wants: ChannelInterestMessage, reply: str) -> None:
        beyond = [name for name in wants.names if name not in STANDARD]
        found = await self._servers.find_for_node(beyond, wants.node)
        if not reply:
            return
        has = ChannelOfferMessage(
            self._own_node, {server: tuple(names) for server, names in found.items()}
        )
        try:
            self._bus.publish(reply, encode_event(has))
        except Unavailable as error:
            log.debug("a node cannot be answered: %s", error)

    def _send_event(self, event: GatewayEvent) -> None:
        """Send an event to the other nodes, if one wants it and does not receive it by itself."""
        if event.source and not self._servers.is_only_here(event.source):
            return
        wanted = self._names_by_node.values()
        if not any(is_channel_match(name, event.channel) for names in wanted for name in names):
            return
        try:
            said = encode_event(to_cluster_event(self._own_node, event))
            self._bus.publish(self._subject("told"), said)
        except (Unavailable, MalformedMessage) as error:
            log.debug("other nodes do not hear of %s: %s", event.channel, error)

    def _on_event(self, message: BusMessage) -> None:
        said = _read(message)
        if isinstance(said, ClusterEvent) and said.node != self._own_node:
            self._events.deliver_remote(said.event())

    # Reachability of other nodes

    def _on_node_changed(self, node: str, is_alive: bool) -> None:
        if is_alive:
            self._try_announce()
            return
        self._channels_by_node.pop(node, None)
        self._record_interest(node, ())
        self._background_tasks.start(self._answer_interest(ChannelInterestMessage(node, ()), ""))

    def _on_connection_changed(self, is_connected: bool) -> None:
        if is_connected:
            self._try_announce()

    def _subject(self, what: str) -> str:
        return f"{self._peers.prefix}.events.{what}"


def _read(message: BusMessage) -> ClusterEventMessage | None:
    try:
        return decode_event(message.data)
    except MalformedMessage as error:
        log.warning("%s", error)
        return None
