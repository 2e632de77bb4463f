"""Publishes the output of turns to channels, topics and observers."""

import asyncio
import itertools
import logging
import uuid
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace as with_text

from comity.audit.events import AuditResult, AuditType
from comity.errors import (
    CHANNEL_UNKNOWN,
    FEATURE_NOT_ENABLED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    SCOPE_NOT_PERMITTED,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    MalformedMessage,
    Unavailable,
)
from comity.inference.messages import Content, ContentBlock, text_of, to_text_content, to_wire
from comity.live.audit import LiveAuditEntry, record_entry
from comity.live.channels import model as rules
from comity.live.channels import model as wire
from comity.live.channels.model import (
    HOST_PARTY,
    ChannelRoute,
    OutputTarget,
    PublishResult,
    StreamRedactor,
)
from comity.live.channels.service import ChannelService, enabled_sets
from comity.live.host import LiveHost, LiveServer
from comity.live.turns.model import OutputContext
from comity.mcp.mcpl import FeatureUse
from comity.toolkit.background import BackgroundTasks, draw_delay
from comity.toolkit.jobs import KeyState, OnceKeys
from comity.toolkit.resilience import RetrySchedule
from comity.toolkit.text import format_timestamp
from comity.topics.envelope import CHAT, NOTICE, Envelope, EnvelopeHeader
from comity.topics.gateway_members import GatewayMember
from comity.topics.service import TopicService
from comity.topics.topic import Now, Topic, TopicMember, TopicMessage

log = logging.getLogger(__name__)

MAX_INLINE_LENGTH: Final = 64 * 1024
"""Longer texts are redacted in a thread, because they would block the event loop."""

_PERMANENT_FAULT_CODES: Final = frozenset(
    fault.code
    for fault in (
        *(CHANNEL_UNKNOWN, SCOPE_NOT_PERMITTED, FEATURE_NOT_ENABLED),
        *(INVALID_PARAMS, METHOD_NOT_FOUND),
    )
)
DELIVERY_UNKNOWN: Final = UPSTREAM_SLOW
"""The fault of a message that may or may not have been delivered."""

_MIN_ECHO_LENGTH: Final = 24
"""An incoming text of this length that equals a published one counts as an echo."""

_MAX_ECHO_MATCHES: Final = 3
"""After this many matches in a channel, shorter texts count as echoes, too."""

_RETRIES: Final = RetrySchedule(timedelta(milliseconds=250), timedelta(seconds=5), max_attempts=4)


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """The timeout and the retries for a connector."""

    timeout: timedelta = timedelta(seconds=30)
    retries: RetrySchedule = _RETRIES
    # How long a published text is remembered to detect its echo.
    echo_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to publish. `id` identifies this publication permanently."""

    id: str
    conversation: str
    content: Content
    is_streamed: bool = False


@dataclass(slots=True)
class _PublishedText:
    text: str
    at: float
    message: str | None = None


type Hide = Callable[[str], str]


class ChannelPublisher:
    """Publishes messages to channels and detects their echoes."""

    MAX_REMEMBERED_TEXTS: Final = 256
    MAX_CHANNELS: Final = 10_000

    def __init__(
        self, channels: ChannelService, hide: Hide, settings: PublishSettings | None = None
    ) -> None:
        self._channels = channels
        self._hide = hide
        self._settings = settings or PublishSettings()
        self._published_texts: dict[tuple[str, str], deque[_PublishedText]] = {}
        self._echo_counts: dict[tuple[str, str], tuple[int, float]] = {}

    async def redact_content(self, content: Content) -> Content:
        """Return the content without secrets. Long content is redacted in a thread."""
        if sum(block.size for block in content) > MAX_INLINE_LENGTH:
            return await asyncio.to_thread(self._redact_content, content)
        return self._redact_content(content)

    def _redact_content(self, content: Content) -> Content:
        return tuple(self._redact_block(block) for block in content)

    def _redact_block(self, block: ContentBlock) -> ContentBlock:
        return with_text(block, text=self._hide(block.text), uri=self._hide(block.uri))

    async def publish(
        self, target: OutputTarget, message: OutgoingMessage, route: ChannelRoute | None = None
    ) -> str:
        """Publish a message and return its id there, if the connector reports one.

        Raises MalformedMessage or Unavailable if it was not delivered. Unavailable has the fault
        UNSURE if the message may have been delivered.
        """
        route = route or ChannelRoute(target.server)
        message = replace(message, content=await self.redact_content(message.content))
        uttered = self._remember_text(target, message)
        try:
            uttered.message = await self._publish_with_retries(target, message, route)
        except MalformedMessage:
            self._forget_text(target, uttered)
            raise
        except Unavailable as error:
            if error.fault is not DELIVERY_UNKNOWN:
                self._forget_text(target, uttered)
            raise
        finally:
            self._record_audit(target, message, uttered)
        return uttered.message

    async def _publish_with_retries(
        self, target: OutputTarget, message: OutgoingMessage, route: ChannelRoute
    ) -> str:
        for tried in itertools.count(1):
            try:
                return await self._publish_once(target, message, route)
            except MalformedMessage as error:
                if error.fault.code in _PERMANENT_FAULT_CODES:
                    raise
                failed = Unavailable(str(error), UPSTREAM_FAILED)
            except Unavailable as error:
                if error.fault is DELIVERY_UNKNOWN and not route.deduplicates:
                    raise
                failed = error
            if self._settings.retries.is_exhausted(tried):
                raise failed
            await asyncio.sleep(draw_delay(self._settings.retries, tried).total_seconds())
        raise AssertionError("unreachable")

    async def _publish_once(
        self, target: OutputTarget, message: OutgoingMessage, route: ChannelRoute
    ) -> str:
        # Permission is checked on each attempt, because the server may reconnect between two
        # attempts.
        hosted, channel = self._channels.resolve_target(target)
        params = wire.build_publish_params(
            message.conversation,
            channel.id,
            message.content,
            is_streamed=message.is_streamed,
            id=message.id,
        )
        if not route.acknowledges:
            await hosted.notify(wire.PUBLISH, params)
            return ""
        answered = await _send_request(lambda: self._request_publish(hosted, params), target)
        if not answered.delivered:
            raise Unavailable(
                f"{target.display_name!r:.200}: it was not delivered", UPSTREAM_FAILED
            )
        return answered.message

    async def _request_publish(
        self, live_server: LiveServer, params: dict[str, object]
    ) -> PublishResult:
        return wire.published_in(
            await live_server.request(wire.PUBLISH, params, self._settings.timeout)
        )

    def _record_audit(
        self, target: OutputTarget, message: OutgoingMessage, published: _PublishedText
    ) -> None:
        is_said = published.message is not None
        deed = LiveAuditEntry(
            target.server,
            wire.PUBLISH,
            outcome="ok" if is_said else "failed",
            by="system:gateway",
            details={
                "channel": target.id,
                "conversation": message.conversation,
                "publication": message.id,
                "message": published.message or "",
            },
        )
        audit = self._channels.live_host.audit
        record_entry(
            audit,
            AuditType.FEATURE_USED,
            deed,
            AuditResult.SUCCESS if is_said else AuditResult.FAILURE,
            is_limited=True,
        )

    # Echoes.

    def _remember_text(self, target: OutputTarget, message: OutgoingMessage) -> _PublishedText:
        """Remember a text before it goes out. Its echo may arrive before the acknowledgement."""
        key = (target.server, target.id)
        kept = self._published_texts.setdefault(key, deque(maxlen=self.MAX_REMEMBERED_TEXTS))
        while len(self._published_texts) > self.MAX_CHANNELS:
            del self._published_texts[next(iter(self._published_texts))]
        kept.append(
            _PublishedText(text_of(message.content).strip(), asyncio.get_running_loop().time())
        )
        return kept[-1]

    def _forget_text(self, target: OutputTarget, published: _PublishedText) -> None:
        kept = self._published_texts.get((target.server, target.id))
        if kept is not None and published in kept:
            kept.remove(published)

    def is_echo(self, target: OutputTarget, message: str, content: Content) -> bool:
        """Whether an incoming message is an echo of a message that Comity published."""
        key = (target.server, target.id)
        kept, now = self._published_texts.get(key), asyncio.get_running_loop().time()
        while kept and now - kept[0].at > self._settings.echo_seconds:
            kept.popleft()
        if not kept:
            self._published_texts.pop(key, None)
            return False
        text = text_of(content).strip()
        same = next((each for each in kept if message and each.message == message), None)
        found = same or next((each for each in kept if each.text == text), None)
        if found is None:
            return False
        seen = self._count_match(key, now)
        if same is not None or len(text) >= _MIN_ECHO_LENGTH or seen > _MAX_ECHO_MATCHES:
            return True
        # A short text may be a person's own. An acknowledged message comes back with its id, so
        # only one that was not acknowledged counts, and only once.
        if not found.message:
            kept.remove(found)
        return not found.message

    def _count_match(self, key: tuple[str, str], now: float) -> int:
        """Count recent matches in a channel, echoes or not."""
        seen, since = self._echo_counts.get(key, (0, now))
        if now - since > self._settings.echo_seconds:
            seen, since = 0, now
        self._echo_counts[key] = (seen + 1, since)
        return seen + 1


async def _send_request[T](ask: Callable[[], Awaitable[T]], target: OutputTarget) -> T:
    """Send a request and turn a missing answer into UNSURE: the server may have acted on it."""
    try:
        return await ask()
    except Unavailable as error:
        reason = f"{target.display_name!r:.200}: it is unknown whether it was delivered: {error}"
        raise Unavailable(reason[:500], DELIVERY_UNKNOWN) from None


MOST_STREAMS: Final = 1_000
MOST_WAITING: Final = 256
"""The number of messages that may wait for one observer."""


@dataclass(slots=True)
class _ObserverStream:
    redactor: StreamRedactor
    index: int = 0
    has_begun: bool = False


class OutputObservers:
    """Sends the output of turns to observers."""

    def __init__(
        self,
        live_host: LiveHost,
        hide: Callable[[str], str],
        names_of: Callable[[OutputTarget], tuple[str, ...]],
    ) -> None:
        self._live_host = live_host
        self._hide = hide
        self._names_of = names_of
        self._streams: OrderedDict[tuple[str, str], _ObserverStream] = OrderedDict()
        self._tasks_by_server: dict[str, BackgroundTasks] = {}

    def stop(self) -> None:
        for each in self._tasks_by_server.values():
            each.cancel()

    def send_chunk(self, context: OutputContext, target: OutputTarget, delta: str) -> None:
        watchers = self._observers_of(target)
        if not watchers:
            return
        stream = self._stream(context, target)
        self._notify_chunk(context, target, stream, stream.redactor.add(delta), watchers)

    def complete(self, context: OutputContext, target: OutputTarget, moderated: Content) -> None:
        """Send the text that was held back, and then the whole output."""
        watchers = self._observers_of(target)
        stream = self._streams.pop((context.inference, str(target)), None)
        if stream is not None:
            self._notify_chunk(context, target, stream, stream.redactor.end(), watchers)
        for each in watchers:
            told = {**_observer_ids(context, target, each), "content": to_wire(moderated)}
            self._notify(each, wire.OUTGOING_COMPLETE, told)

    def has_streamed(self, context: OutputContext, target: OutputTarget) -> bool:
        """Whether the target's own server already received chunks of this output. (D-73)"""
        stream = self._streams.get((context.inference, str(target)))
        is_seen = any(each.server == target.server for each in self._observers_of(target))
        return stream is not None and stream.has_begun and is_seen

    def send_thinking(self, context: OutputContext, text: str) -> None:
        """Send a model's redacted reasoning to the servers with an explicit grant."""
        content = to_wire(to_text_content(self._hide(text)))
        for each in self._live_host.servers_using(FeatureUse.OBSERVE):
            named, scopes = each.policy.enabled, each.policy.scopes
            if rules.may_see_thinking(enabled_sets(each), named, scopes):
                told: dict[str, object] = {
                    "inferenceId": context.inference,
                    "conversationId": context.conversation,
                    "channelId": wire.THINKING,
                    "content": content,
                }
                self._notify(each, wire.OUTGOING_COMPLETE, told)

    def _observers_of(self, target: OutputTarget) -> list[LiveServer]:
        names = self._names_of(target)
        return [
            each
            for each in self._live_host.servers_using(FeatureUse.OBSERVE)
            if rules.can_observe(target, each.server, enabled_sets(each), each.policy.scopes, names)
        ]

    def _stream(self, context: OutputContext, target: OutputTarget) -> _ObserverStream:
        key = (context.inference, str(target))
        if key not in self._streams:
            self._streams[key] = _ObserverStream(StreamRedactor(self._hide))
            if len(self._streams) > MOST_STREAMS:
                self._streams.popitem(last=False)
        return self._streams[key]

    def _notify_chunk(
        self,
        context: OutputContext,
        target: OutputTarget,
        stream: _ObserverStream,
        shown: str,
        watchers: Iterable[LiveServer],
    ) -> None:
        if not shown:
            return
        stream.has_begun = True
        for each in watchers:
            named = _observer_ids(context, target, each)
            self._notify(
                each, wire.OUTGOING_CHUNK, {**named, "index": stream.index, "delta": shown}
            )
        stream.index += 1

    def _notify(self, live_server: LiveServer, method: str, params: dict[str, object]) -> None:
        background_tasks = self._tasks_by_server.setdefault(
            live_server.server, BackgroundTasks("observers")
        )
        if len(background_tasks) >= MOST_WAITING:
            log.info("Server %r reads too slowly; %s is dropped", live_server.server, method)
            return
        background_tasks.start(live_server.notify(method, params), at_once=True)


def _observer_ids(
    context: OutputContext, target: OutputTarget, watcher: LiveServer
) -> dict[str, object]:
    """Return the identifiers for an observer.

    Only the owner of a channel gets its bare id. (D-72)
    """
    is_own = target.server == watcher.server
    return {
        "inferenceId": context.inference,
        "conversationId": context.conversation,
        "channelId": target.id if is_own else target.display_name,
    }


MAX_TEXT_LENGTH: Final = 64 * 1024
_SPEAKER_CAPABILITIES: Final = ("chat",)

_ENVELOPE_NAMESPACE: Final = uuid.UUID("0b8f5c1e-3a55-4c0e-8f43-6c1f9b7a2d10")
"""The namespace from which the ids of envelopes are derived."""


@dataclass(frozen=True, slots=True)
class TopicUtterance:
    """A message by a gateway member of a topic. `key` identifies it permanently."""

    key: str
    party: str
    text: str
    reply_to: str = ""
    more: Mapping[str, object] = field(default_factory=dict[str, object])


type ChatListener = Callable[[str, TopicMember, Envelope, str], None]
"""Called with the topic, the member, the envelope and the text of each chat message."""


class _ChatPayload(msgspec.Struct):
    text: str


_chat: Final = msgspec.json.Decoder(_ChatPayload)


class TopicSpeakers:
    """The gateway members through which the model and the channels speak in topics."""

    def __init__(
        self, topics: TopicService, speakers_of: Callable[[str], Iterable[str]], now: Now
    ) -> None:
        self.chat_listeners: list[ChatListener] = []
        self._topics = topics
        self._speakers_of = speakers_of
        self._now = now
        self._members: dict[tuple[str, str], GatewayMember] = {}
        topics.open_listeners.append(self.add_speakers)

    def stop(self) -> None:
        if self.add_speakers in self._topics.open_listeners:
            self._topics.open_listeners.remove(self.add_speakers)

    async def add_speakers(self, topic: Topic) -> None:
        """Add the gateway members to a topic when it opens, before the first other member."""
        for party in self._speakers_of(topic.name):
            self._member(topic, party)

    def _member(self, room: Topic, party: str) -> GatewayMember:
        found = self._members.get((room.name, party))
        if found is not None and found.topic is room:
            return found
        is_first = not any(
            topic == room.name and each.topic is room for (topic, _), each in self._members.items()
        )
        self._forget_closed()
        member = self._members[room.name, party] = GatewayMember(
            room, party, _SPEAKER_CAPABILITIES, self._now
        )
        room.add_member(member.member)
        if is_first:
            room.listeners.append(lambda said: self._on_message(room, said))
        return member

    def _forget_closed(self) -> None:
        rooms = self._topics.topics
        for key, each in list(self._members.items()):
            if rooms.get(key[0]) is not each.topic:
                del self._members[key]

    async def post(self, topic: str, utterance: TopicUtterance) -> str:
        """Post a message and return its envelope id.

        Raises MalformedMessage if there can be no such topic, or it refuses the message.
        """
        room = await self._topics.open(topic)
        id = str(uuid.uuid5(_ENVELOPE_NAMESPACE, utterance.key))
        if id in room.trail:
            # A process that crashed before it recorded the delivery has already posted it.
            return id
        heading = EnvelopeHeader(id, format_timestamp(datetime.now(UTC)), (), utterance.reply_to)
        payload = {"text": utterance.text[:MAX_TEXT_LENGTH], "format": "plain", **utterance.more}
        self._member(room, utterance.party).send(heading, CHAT, payload)
        return id

    def send_notice(self, topic: str, party: str, message: str, about: str) -> None:
        """Send a notice to one member about a message that it posted."""
        room = self._topics.topics.get(topic)
        member = None if room is None else room.local_members.get(party)
        if room is not None and member is not None:
            room.send_to(member, NOTICE, {"notice": "turn", "message": message}, about)

    def _on_message(self, topic: Topic, message: TopicMessage) -> None:
        envelope = message.envelope
        if envelope.kind != CHAT:
            return
        member = topic.local_members.get(envelope.sender)
        if member is None or member.is_built_in:
            return
        try:
            text = _chat.decode(envelope.payload).text
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        for hear in self.chat_listeners:
            try:
                hear(topic.name, member, envelope, text)
            except Exception:
                log.exception("Processing a message of topic %r failed", topic.name)


OWN_MESSAGE: Final = "own"
"""The recorded result of a message that Comity published itself."""

_MAX_PENDING_ANSWERS: Final = 10_000


@dataclass(frozen=True, slots=True)
class DeliveryLog:
    """The store of deduplication keys, and the name under which this process claims them."""

    store: OnceKeys
    holder: str
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class OutputTargets:
    """The services that deliver output."""

    channels: ChannelService
    publisher: ChannelPublisher
    observers: OutputObservers
    topics: TopicSpeakers


class OutputRouter:
    """Delivers the output of turns (`comity.live.turns.model.OutputSink`)."""

    def __init__(
        self, outputs: OutputTargets, delivery_log: DeliveryLog, routes: Sequence[ChannelRoute]
    ) -> None:
        self.outputs = outputs
        self.delivery_log = delivery_log
        self._routes = routes
        self._mirrored_topics = frozenset(each.mirror for each in routes if each.mirror)
        # The envelope that a turn answers and the principal that answers, by inference and topic.
        self._answered_messages: OrderedDict[tuple[str, str], tuple[str, str]] = OrderedDict()

    def route_of(self, target: OutputTarget) -> ChannelRoute | None:
        return rules.route_of(self._routes, target.server, target.id)

    def mirrors(self, target: OutputTarget) -> list[OutputTarget]:
        """Return the targets that mirror this one."""
        topic = target.id if target.is_topic else self._mirror_of(target)
        if topic not in self._mirrored_topics:
            return []
        group = [OutputTarget(topic)]
        group += [
            each for each in self.outputs.channels.open_targets() if self._mirror_of(each) == topic
        ]
        return [each for each in group if each != target]

    def _mirror_of(self, target: OutputTarget) -> str:
        route = self.route_of(target)
        return "" if route is None else route.mirror

    def record_answer(self, inference: str, topic: str, envelope: str, party: str) -> None:
        """Record that a turn answers a message in a topic as this principal."""
        self._answered_messages[inference, topic] = (envelope, party)
        if len(self._answered_messages) > _MAX_PENDING_ANSWERS:
            self._answered_messages.popitem(last=False)

    # The interface for turns.

    def candidates(self) -> Sequence[str]:
        topics = [OutputTarget(each) for each in sorted(self._mirrored_topics)]
        return [str(each) for each in (*topics, *self.outputs.channels.open_targets())]

    def show_chunk(self, context: OutputContext, index: int, delta: str) -> None:
        del index  # Observers have their own numbering, because redaction holds text back.
        try:
            self.outputs.observers.send_chunk(context, rules.parse_target(context.place), delta)
        except MalformedMessage as error:
            log.info("Topic %r cannot be joined: %s", context.place, error)

    async def deliver(self, context: OutputContext, content: Content) -> None:
        place = rules.parse_target(context.place)
        await self._deliver_once(context, place, content)
        for mirror in self.mirrors(place):
            try:
                await self._deliver_once(context, mirror, content)
            except (MalformedMessage, Unavailable) as error:
                log.warning("A message of %s was not mirrored to %s: %s", place, mirror, error)

    async def show_thinking(self, context: OutputContext, text: str) -> None:
        self.outputs.observers.send_thinking(context, text)

    # Delivery at most once.

    async def _deliver_once(
        self, context: OutputContext, target: OutputTarget, content: Content
    ) -> None:
        key, route = rules.output_key(context.inference, target), self.route_of(target)
        records, holder, now = (
            self.delivery_log.store,
            self.delivery_log.holder,
            self.delivery_log.clock(),
        )
        # A second attempt comes from a turn whose first runner is gone. A topic, or a connector
        # with `repeats`, ignores duplicates. Elsewhere the outcome of the first attempt is unknown.
        is_safe = target.is_topic or (route is not None and route.deduplicates)
        until = now if is_safe else None
        (deed,) = await records.take([key], holder, now, until)
        if deed.state is KeyState.DONE:
            return
        if deed.state is KeyState.BUSY:
            raise Unavailable(
                f"it is unknown whether it was delivered to {target}", DELIVERY_UNKNOWN
            )
        try:
            done = await self._deliver(context, target, content, key)
        except MalformedMessage:
            await records.release(holder, [key])
            raise
        except Unavailable as error:
            if error.fault is not DELIVERY_UNKNOWN:
                await records.release(holder, [key])
            raise
        own = {} if target.is_topic or not done else {_own_key(target, done): OWN_MESSAGE}
        await records.finish(holder, {key: done, **own}, self.delivery_log.clock())

    async def _deliver(
        self, context: OutputContext, target: OutputTarget, content: Content, key: str
    ) -> str:
        moderated = await self.outputs.publisher.redact_content(content)
        if target.is_topic:
            done = await self._post_in_topic(context, target, moderated, key)
        else:
            is_streamed = self.outputs.observers.has_streamed(context, target)
            words = OutgoingMessage(key, context.conversation, moderated, is_streamed=is_streamed)
            done = await self.outputs.publisher.publish(target, words, self.route_of(target))
        self.outputs.observers.complete(context, target, moderated)
        return done

    async def _post_in_topic(
        self, context: OutputContext, target: OutputTarget, moderated: Content, key: str
    ) -> str:
        envelope, party = self._answered_messages.pop(
            (context.inference, target.id), ("", HOST_PARTY)
        )
        more = {"inference": context.inference, "conversation": context.conversation}
        uttered = TopicUtterance(key, party, text_of(moderated), envelope, more)
        return await self.outputs.topics.post(target.id, uttered)

    async def publish(
        self, target: OutputTarget, words: OutgoingMessage, more: dict[str, object] | None = None
    ) -> str:
        """Publish a message that no turn produced, and return its id at the target.

        Raises MalformedMessage and Unavailable.
        """
        if target.is_topic:
            moderated = await self.outputs.publisher.redact_content(words.content)
            uttered = TopicUtterance(words.id, HOST_PARTY, text_of(moderated), more=more or {})
            return await self.outputs.topics.post(target.id, uttered)
        message = await self.outputs.publisher.publish(target, words, self.route_of(target))
        if message:
            await self.remember_own(target, message)
        return message

    async def remember_own(self, target: OutputTarget, message: str) -> None:
        """Record a message as Comity's own, so that it is ignored if it comes in."""
        own = {_own_key(target, message): OWN_MESSAGE}
        await self.delivery_log.store.finish(
            self.delivery_log.holder, own, self.delivery_log.clock()
        )


def _own_key(target: OutputTarget, message: str) -> str:
    return rules.message_key(target.server, target.id, message)
