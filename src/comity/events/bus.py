"""Event bus: subscribers, and the events that reach each of them."""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from comity.errors import EXHAUSTED, Unavailable
from comity.events.model import (
    EventChannel,
    EventFilter,
    GatewayEvent,
    SeenEvents,
    could_be,
    is_channel_wanted,
    is_enough,
    resolve_channels,
)
from comity.events.standard_channels import STANDARD
from comity.mcp.actors import ADMIN_READ, Actor
from comity.policy.grants import Effect
from comity.policy.snapshot import PolicyEngine
from comity.toolkit.background import BackgroundTasks

log = logging.getLogger(__name__)

MAX_FOLLOWINGS: Final = 10_000
MAX_PER_PARTY: Final = 256
MAX_SEEN: Final = 10_000
MAX_INDEXED: Final = 4_096

type Hear = Callable[[GatewayEvent], None]
"""Receives an event. It must not block."""

type Found = Mapping[str, Sequence[str]]
"""Channels, by the server that has them."""


class EventSource(Protocol):
    """A source of further channels: servers and other nodes."""

    async def find(self, names: Sequence[str], subscriber: "EventSubscriber") -> Found:
        """Subscribe to these channels and patterns, and return those that exist. Never raises."""
        ...

    def forget(self, subscriber: "EventSubscriber") -> None:
        """Drop the subscriptions of a subscriber."""
        ...

    def known(self) -> Found:
        """Return the channels that are subscribed now."""
        ...


class EventSubscriber:
    """A subscriber that receives events until it is closed."""

    def __init__(
        self,
        event_filter: EventFilter,
        actor: Actor,
        handler: Hear,
        close: Callable[["EventSubscriber"], None],
    ) -> None:
        self.event_filter = event_filter
        self.actor = actor
        self.handler = handler
        self.is_open = True
        # The channels that exist, and the requested names that do not.
        self.subscribed: tuple[str, ...] = ()
        self.unsupported: tuple[str, ...] = ()
        self._channels_known = asyncio.Event()
        self._close = close

    async def settled(self) -> "EventSubscriber":
        """Wait until it is known which of the requested channels exist."""
        await self._channels_known.wait()
        return self

    def settle(self, names: Iterable[str]) -> None:
        self.subscribed, self.unsupported, self.event_filter = resolve_channels(
            self.event_filter, names
        )
        self._channels_known.set()

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._close(self)


type Post = Callable[[GatewayEvent], Awaitable[None]]


class EventBus:
    """All subscribers on this node."""

    def __init__(
        self,
        policy_engine: PolicyEngine,
        is_counted: Callable[[Actor], bool] = lambda _: True,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.clock = clock
        # Whether there is a subscriber on this node or on another.
        self.has_subscribers = False
        # Called when that changes, so that sources can pause without subscribers.
        self.switches: list[Callable[[bool], None]] = []
        self.other_sources: list[EventSource] = []
        # Sends events to other nodes that want them.
        self.span: Hear | None = None
        # Stores an event for webhooks. None until the webhooks are loaded.
        self.post: Post | None = None
        self._policy_engine = policy_engine
        self._is_counted = is_counted
        self._subscribers: dict[EventSubscriber, tuple[str, ...]] = {}
        self._of_party: Counter[str] = Counter()
        self._by_channel: dict[str, tuple[EventSubscriber, ...]] = {}
        self._seen_events = SeenEvents(MAX_SEEN)
        self._is_wanted_remotely = False
        self._run = secrets.token_hex(8)
        self._id_counter = 0
        self._background_tasks = BackgroundTasks("who follows events")

    def set_webhook_outbox(self, post: Post) -> None:
        """Also pass each event to webhooks from now on."""
        self.post = post

    def __len__(self) -> int:
        return len(self._subscribers)

    def publish(self, event: GatewayEvent) -> None:
        """Publish an event of this node or of one of its servers."""
        if not self.has_subscribers or (event.source and not self._seen_events.is_new(event)):
            return
        self._deliver(event)
        if self.span is not None:
            self.span(event)

    def publish_own(self, channel: str, data: Mapping[str, object], server: str = "") -> None:
        """Publish an event without an actor on one of the gateway's own channels."""
        if self.has_subscribers:
            severity = STANDARD[channel].severity
            self.publish(GatewayEvent(self.mint(), channel, self.clock(), severity, data, server))

    def mint(self) -> str:
        """Return an event id that is unique across all nodes."""
        self._id_counter += 1
        return f"{self._run}-{self._id_counter:x}"

    def deliver_remote(self, event: GatewayEvent) -> None:
        """Deliver an event of another node."""
        if self._subscribers and self._seen_events.is_new(event):
            self._deliver(event)

    def subscribe(self, event_filter: EventFilter, actor: Actor, handler: Hear) -> EventSubscriber:
        """Subscribe an actor to the events that it may see. Raises Unavailable."""
        party = actor.party
        if len(self._subscribers) >= MAX_FOLLOWINGS or self._of_party[party] >= MAX_PER_PARTY:
            raise Unavailable("too many subscriptions are open already", EXHAUSTED)
        following = EventSubscriber(event_filter, actor, handler, self._leave)
        names = could_be(name for name in event_filter.channels if name not in STANDARD)
        self._subscribers[following] = names
        self._of_party[party] += 1
        self._on_subscribers_changed()
        self._background_tasks.start(self._settle(following, names), at_once=True)
        return following

    def set_wanted_remotely(self, is_wanted: bool) -> None:
        """Note whether another node wants any events."""
        self._is_wanted_remotely = is_wanted
        self._on_subscribers_changed()

    def channels(self, actor: Actor) -> list[EventChannel]:
        """Return the channels that the actor can subscribe to, as far as they are known."""
        told: dict[str, list[str]] = {}
        for beyond in self.other_sources:
            for server, names in beyond.known().items():
                if self.knows(actor, server):
                    for name in names:
                        told.setdefault(name, []).append(server)
        others = [
            EventChannel(name, f"Sent by {', '.join(sorted(set(servers)))}.")
            for name, servers in sorted(told.items())
            if name not in STANDARD
        ]
        return [*STANDARD.values(), *others]

    def wanted_channels(self) -> dict[str, None]:
        """Return all channels and patterns with a subscriber on this node."""
        return {name: None for each in self._subscribers for name in each.event_filter.channels}

    def stop(self) -> None:
        self._background_tasks.cancel()

    async def _settle(self, subscriber: EventSubscriber, names: tuple[str, ...]) -> None:
        found = list(STANDARD)
        if names:
            asked = (beyond.find(names, subscriber) for beyond in self.other_sources)
            for there in await asyncio.gather(*asked):
                for server, channels in there.items():
                    found += channels if self.knows(subscriber.actor, server) else ()
        subscriber.settle(found)
        if subscriber.is_open:
            self._on_subscribers_changed()
        else:
            # The subscriber was closed before the sources were asked.
            self._forget(subscriber)

    def _leave(self, subscriber: EventSubscriber) -> None:
        names, party = self._subscribers.pop(subscriber), subscriber.actor.party
        self._of_party[party] -= 1
        if self._of_party[party] <= 0:
            del self._of_party[party]
        if names:
            self._forget(subscriber)
        self._on_subscribers_changed()

    def _forget(self, subscriber: EventSubscriber) -> None:
        for beyond in self.other_sources:
            beyond.forget(subscriber)

    def _on_subscribers_changed(self) -> None:
        self._by_channel.clear()
        self.has_subscribers = bool(self._subscribers) or self._is_wanted_remotely
        for switch in self.switches:
            switch(self.has_subscribers)

    def _deliver(self, event: GatewayEvent) -> None:
        for following in self._followers(event.channel):
            least = following.event_filter.min_severity
            if is_enough(event.severity, least) and self.may_see(following.actor, event):
                _deliver(following, event)

    def _followers(self, channel: str) -> tuple[EventSubscriber, ...]:
        found = self._by_channel.get(channel)
        if found is None:
            if len(self._by_channel) >= MAX_INDEXED:
                self._by_channel.clear()
            found = tuple(
                each for each in self._subscribers if is_channel_wanted(each.event_filter, channel)
            )
            self._by_channel[channel] = found
        return found

    def may_see(self, actor: Actor, event: GatewayEvent) -> bool:
        """Whether an actor may see an event now."""
        is_over = actor.expires_at is not None and actor.expires_at <= self.clock()
        if is_over or not self._is_counted(actor):
            return False
        if event.source:
            return self.knows(actor, event.source)
        if event.party == actor.party and event.party:
            return True
        if event.server and not event.party and self.knows(actor, event.server):
            return True
        try:
            judged = self._policy_engine.authorize(actor, ADMIN_READ, event.server, event.tool)
        except Unavailable:
            # While the grants are not known, no actor receives events about others.
            return False
        return judged.effect is Effect.ALLOW

    def knows(self, actor: Actor, server: str) -> bool:
        """Whether an actor may see the events of a server. False while the grants are not known."""
        try:
            return self._policy_engine.may_know_server(actor, server)
        except Unavailable:
            return False


def _deliver(subscriber: EventSubscriber, event: GatewayEvent) -> None:
    try:
        if subscriber.is_open:
            subscriber.handler(event)
    except Exception:
        log.exception("An event subscriber failed")
