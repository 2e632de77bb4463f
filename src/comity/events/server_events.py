"""Events of servers, and the gateway's subscriptions to them."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.catalog.listing import gateway_envelope
from comity.errors import MalformedMessage, Unavailable
from comity.events.bus import EventBus, EventSubscriber, Found
from comity.events.model import (
    LISTENED,
    MAX_WANTED,
    NOTICE,
    SUBSCRIBE,
    UNSUBSCRIBE,
    ChannelInterest,
    GatewayEvent,
    ServerEvent,
    event_in,
    id_of,
    is_channel_match,
    severity_of,
    subscribed_in,
)
from comity.events.standard_channels import CUT_OFF, STANDARD
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import MgpExtension, ServerLifecycleState
from comity.servers.connections import SharedConnection
from comity.servers.service import ServerService
from comity.servers.supervisor import ServerTransition, UpstreamServer
from comity.sessions.upstream import QuestionConnection, UpstreamConnection
from comity.toolkit.background import BackgroundTasks, draw_delay
from comity.toolkit.resilience import RateCounter, RateLimit, RetrySchedule

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0


class ServerSubscription:
    """The subscription to one name at one server, while its task runs."""

    def __init__(self, shared: SharedConnection, name: str, *, is_modern: bool) -> None:
        self.id = ""
        self.channels: tuple[str, ...] = ()
        self._connection: UpstreamConnection = shared.connection
        self._sharers = shared.users
        self._name = name
        self._is_modern = is_modern
        self._is_settled = asyncio.Event()
        self._task = asyncio.ensure_future(self._run())

    async def wait_for_channels(self) -> tuple[str, ...]:
        """Return the channels that the server has under this name.

        The wait for its answer is bounded.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._is_settled.wait()
        return self.channels

    def hears(self, subscription: str, channel: str) -> bool:
        """Whether this subscription asked for an event with this subscription id and channel."""
        return subscription == self.id != "" and is_channel_match(self._name, channel)

    def close(self) -> None:
        self._task.cancel()

    async def closed(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        ended = 0
        try:
            while self._connection.is_open:
                try:
                    if not await (self._listen() if self._is_modern else self._subscribe()):
                        return
                except (Unavailable, TimeoutError) as error:
                    log.info(
                        "server %r: its events cannot be received: %s",
                        self._connection.server,
                        error,
                    )
                except MalformedMessage as error:
                    # The server has no such channel, so another attempt would not help.
                    log.info(
                        "Server %r refused the event subscription: %s",
                        self._connection.server,
                        error,
                    )
                    return
                self.id, ended = "", ended + 1
                pause = draw_delay(RetrySchedule(), ended)
                await asyncio.sleep(pause.total_seconds())
        except Exception:
            log.exception("Reading the events of server %r failed", self._connection.server)
        finally:
            self._is_settled.set()

    async def _subscribe(self) -> bool:
        """Subscribe, and wait until the server loses the subscription.

        Returns whether another attempt is worthwhile.
        """
        anew = self._sharers.subscriptions_lost
        async with asyncio.timeout(ANSWER_SECONDS):
            answer = await self._connection.request(SUBSCRIBE, {"channels": [self._name]})
        if jsonrpc.error_of(answer) is not None:
            return False
        self._agree(*subscribed_in(answer.result))
        try:
            if self.channels:
                await anew.wait()
                return True
            return False
        finally:
            if not anew.is_set():
                await self._unsubscribe()

    async def _unsubscribe(self) -> None:
        named, self.id = {"subscription_id": self.id}, ""
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._connection.request(UNSUBSCRIBE, named)

    async def _listen(self) -> bool:
        wanted = {LISTENED: {"channels": [self._name]}}
        params = {"_meta": gateway_envelope(), "notifications": wanted}
        headers = ((protocol.METHOD_HEADER, protocol.LISTEN.encode()),)
        asking = asyncio.ensure_future(
            self._connection.request(protocol.LISTEN, params, headers, self._on_acknowledged)
        )
        try:
            answer = await asking
        finally:
            asking.cancel()
        return jsonrpc.error_of(answer) is None and bool(self.channels)

    def _on_acknowledged(self, frame: Frame) -> None:
        if frame.method != protocol.ACKNOWLEDGED:
            return
        try:
            agreed = jsonrpc.decode_members(frame.parameters.get("notifications", b"{}"))
            self._agree(*subscribed_in(agreed.get(LISTENED, UNSET)))
        except MalformedMessage as error:
            log.info("Server %r refused the event subscription: %s", self._connection.server, error)
            self.close()

    def _agree(self, subscription: str, channels: tuple[str, ...]) -> None:
        self.id = subscription
        own = [
            each for each in channels if is_channel_match(self._name, each) and each not in STANDARD
        ]
        self.channels = tuple(own)
        self._is_settled.set()


_RATE: Final = RateLimit(1_000, 10.0, 1_000)


@dataclass(frozen=True, slots=True)
class EventRateLimit:
    """How many events a server may send, and for how long Comity ignores it after more."""

    rate: RateLimit = _RATE
    pause: timedelta = timedelta(seconds=60)


FLOOD: Final = EventRateLimit()


class _ServerEventSource:
    """One connected server that supports subscriptions."""

    def __init__(
        self, name: str, shared: SharedConnection, rate: RateLimit, *, is_modern: bool
    ) -> None:
        self.name = name
        self.shared = shared
        self.is_modern = is_modern
        self.subscriptions: dict[str, ServerSubscription] = {}
        self.is_cut_off = False
        self.counter = RateCounter(rate)

    def hears(self, event: ServerEvent) -> bool:
        return any(
            ear.hears(event.subscription, event.channel) for ear in self.subscriptions.values()
        )

    def get_or_subscribe(self, name: str) -> ServerSubscription:
        found = self.subscriptions.get(name)
        if found is None:
            found = self.subscriptions[name] = ServerSubscription(
                self.shared, name, is_modern=self.is_modern
            )
        return found

    def close(self) -> None:
        for ear in self.subscriptions.values():
            ear.close()
        self.subscriptions.clear()


class ServerEventSources:
    """All servers, and the subscriptions to their events."""

    def __init__(
        self,
        events: EventBus,
        servers: ServerService,
        rate_limit: EventRateLimit = FLOOD,
        *,
        is_only_here: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._events = events
        self._servers = servers
        self._rate_limit = rate_limit
        self._interest = ChannelInterest[EventSubscriber]()
        # What other nodes want of the servers that only this node runs.
        self._remote_interest = ChannelInterest[str](most_of_party=MAX_WANTED)
        self.is_only_here: Callable[[str], bool] = is_only_here
        self._sources: dict[str, _ServerEventSource] = {}
        self._background_tasks = BackgroundTasks("events of servers")
        servers.watch(self._on_server_state)
        events.other_sources.append(self)

    def __len__(self) -> int:
        return sum(len(source.subscriptions) for source in self._sources.values())

    async def find(self, names: Sequence[str], subscriber: EventSubscriber) -> Found:
        admitted = self._interest.add(names, subscriber, subscriber.actor.party)
        known = [s for s in self._sources.values() if self._events.knows(subscriber.actor, s.name)]
        return await self._wait_for_channels(known, admitted)

    async def find_for_node(self, names: Sequence[str], node: str) -> Found:
        """Subscribe for another node to the servers that only this node runs."""
        dropped = self._remote_interest.drop(node)
        admitted = self._remote_interest.add(names, node, node)
        if dropped:
            self._drop_unwanted()
        here = [each for each in self._sources.values() if self.is_only_here(each.name)]
        return await self._wait_for_channels(here, admitted)

    def forget(self, subscriber: EventSubscriber) -> None:
        if self._interest.drop(subscriber):
            self._drop_unwanted()

    def known(self) -> Found:
        return {
            source.name: [
                channel for ear in source.subscriptions.values() for channel in ear.channels
            ]
            for source in self._sources.values()
        }

    async def stop(self) -> None:
        self._background_tasks.cancel()
        ears = [ear for source in self._sources.values() for ear in source.subscriptions.values()]
        self._sources.clear()
        await asyncio.gather(*(ear.closed() for ear in ears))

    async def _wait_for_channels(
        self, sources: Sequence[_ServerEventSource], names: Sequence[str]
    ) -> Found:
        ears = [
            (source.name, source.get_or_subscribe(name))
            for source in sources
            for name in names
            if not source.is_cut_off
        ]
        found: dict[str, list[str]] = {}
        for (server, _), channels in zip(
            ears, await asyncio.gather(*(ear.wait_for_channels() for _, ear in ears)), strict=True
        ):
            found.setdefault(server, []).extend(channels)
        return found

    def _drop_unwanted(self) -> None:
        for source in self._sources.values():
            for name in [
                each for each in source.subscriptions if not self._is_wanted(source, each)
            ]:
                source.subscriptions.pop(name).close()

    def _is_wanted(self, source: _ServerEventSource, name: str) -> bool:
        knows = self._events.knows
        if any(knows(each.actor, source.name) for each in self._interest.of(name)):
            return True
        return name in self._remote_interest and self.is_only_here(source.name)

    def _on_server_state(self, step: ServerTransition) -> None:
        server = self._servers.get(step.server)
        if step.state is ServerLifecycleState.CONNECTED and server is not None:
            self._end(step.server)
            self._start_source(server)
        elif step.state is not ServerLifecycleState.DRAINING:
            self._end(step.server)

    def _start_source(self, server: UpstreamServer) -> None:
        shared = server.connections.own_connection or server.connections.own_modern_connection
        terms = None if shared is None else shared.connection.mgp
        if shared is None or terms is None or MgpExtension.BIDIRECTIONAL not in terms.extensions:
            return
        source = _ServerEventSource(
            server.name,
            shared,
            self._rate_limit.rate,
            is_modern=server.connections.own_connection is None,
        )
        self._sources[server.name] = source
        server.activity.notification_handlers[NOTICE] = self._on_event
        self._subscribe_all(source)

    def _subscribe_all(self, source: _ServerEventSource) -> None:
        """Subscribe to all wanted names at a server that has just connected."""
        for name in (*self._interest, *self._remote_interest):
            if self._is_wanted(source, name):
                source.get_or_subscribe(name)

    def _end(self, name: str) -> None:
        source = self._sources.pop(name, None)
        if source is not None:
            source.close()

    def _on_event(self, connection: QuestionConnection, frame: Frame) -> None:
        """Handle an event of a server. Never raises, whatever the server sends."""
        source = self._sources.get(connection.server)
        if source is None or source.is_cut_off or source.shared.connection is not connection:
            return
        now = asyncio.get_running_loop().time()
        if source.counter.wait(now):
            self._cut_off(source)
            return
        source.counter.take(now)
        try:
            told = event_in(frame.params)
        except MalformedMessage as error:
            log.info("server %r: %s", connection.server, error)
            return
        if told.channel in STANDARD or not source.hears(told):
            log.info("Server %r sent %s without a subscription", connection.server, told.channel)
            return
        at, severity = told.at(self._events.clock()), severity_of(told.severity)
        name, server = id_of(told), connection.server
        event = GatewayEvent(name, told.channel, at, severity, told.data, server, source=server)
        self._events.publish(event)

    def _cut_off(self, source: _ServerEventSource) -> None:
        source.is_cut_off = True
        source.close()
        seconds = self._rate_limit.pause.total_seconds()
        log.warning(
            "server %r sends more than %d events in %d s; Comity ignores it for %d s",
            source.name,
            self._rate_limit.rate.count,
            self._rate_limit.rate.period,
            seconds,
        )
        self._events.publish_own(CUT_OFF, {"server_id": source.name}, source.name)
        self._background_tasks.start(self._resume(source))

    async def _resume(self, source: _ServerEventSource) -> None:
        await asyncio.sleep(self._rate_limit.pause.total_seconds())
        source.is_cut_off = False
        if self._sources.get(source.name) is source:
            self._subscribe_all(source)
