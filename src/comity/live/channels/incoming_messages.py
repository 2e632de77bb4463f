"""Takes in each message from outside once, and starts turns, topic chat and mirrors."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.audit.events import AuditResult, AuditType
from comity.errors import MalformedMessage, Unavailable
from comity.inference.messages import Content, text_of, to_text_content
from comity.live.audit import LiveAuditEntry, record_entry
from comity.live.channels import model as rules
from comity.live.channels import model as wire
from comity.live.channels.model import (
    ChannelRoute,
    IncomingAction,
    IncomingMessage,
    OutputTarget,
    TopicChatConfig,
)
from comity.live.channels.outgoing_messages import OWN_MESSAGE, OutgoingMessage, OutputRouter
from comity.live.channels.service import enabled_sets
from comity.live.host import LiveMessage, LiveServer
from comity.live.turns.model import TurnCause, TurnOrigin, TurnRequest, TurnStarter
from comity.mcp.mcpl import FeatureSet, FeatureUse
from comity.toolkit.background import BackgroundTasks
from comity.toolkit.jobs import KeyClaim, KeyState
from comity.toolkit.resilience import RateLimit, RateLimiter
from comity.toolkit.text import escape_unsafe
from comity.topics.envelope import Envelope
from comity.topics.topic import TopicMember

log = logging.getLogger(__name__)

MOST_WAITING: Final = 1_000


class ChannelMirror:
    """Copies messages between mirrored channels and topics."""

    def __init__(self, output_router: OutputRouter) -> None:
        self._output_router = output_router
        self._background_tasks = BackgroundTasks("mirrors")
        self._target_locks: dict[OutputTarget, asyncio.Lock] = {}
        self._waiting_counts: dict[OutputTarget, int] = {}

    def stop(self) -> None:
        self._background_tasks.cancel()

    async def wait_until_copied(self) -> None:
        """Wait until all earlier messages are copied."""
        await self._background_tasks.finish()

    def copy_from_channel(self, server: str, message: IncomingMessage) -> None:
        """Copy a message from a channel to its mirrors."""
        found = self._output_router.mirrors(OutputTarget(message.channel, server))
        if found:
            key, content, testimony = _format_message(server, message)
            self._start_copies(
                found, key, str(OutputTarget(message.channel, server)), content, testimony
            )

    async def post_to_topic(
        self, target: OutputTarget, server: str, message: IncomingMessage
    ) -> None:
        """Post a message from a channel to a topic. Raises MalformedMessage and Unavailable."""
        key, content, testimony = _format_message(server, message)
        words = OutgoingMessage(
            _target_key(key, target), str(OutputTarget(message.channel, server)), content
        )
        await self._output_router.publish(target, words, testimony)

    def copy_from_topic(self, topic: str, party: str, envelope: str, text: str) -> None:
        """Copy a message of a topic member to the mirrors of the topic."""
        place = OutputTarget(topic)
        found = self._output_router.mirrors(place)
        if found:
            content = to_text_content(f"{escape_unsafe(party)[:120]}: {text}")
            key = f"out:{rules.digest_names(topic, party, envelope)}"
            self._start_copies(found, key, str(place), content, {})

    def _start_copies(
        self,
        found: list[OutputTarget],
        key: str,
        conversation: str,
        content: Content,
        more: Mapping[str, object],
    ) -> None:
        for each in found:
            if self._waiting_counts.get(each, 0) >= MOST_WAITING:
                log.warning("%s is too slow: a message is dropped", each)
                continue
            self._waiting_counts[each] = self._waiting_counts.get(each, 0) + 1
            words = OutgoingMessage(_target_key(key, each), conversation, content)
            self._background_tasks.start(self._copy(each, words, dict(more)), at_once=True)

    async def _copy(
        self, target: OutputTarget, message: OutgoingMessage, more: dict[str, object]
    ) -> None:
        lock = self._target_locks.setdefault(target, asyncio.Lock())
        try:
            # One message at a time keeps their order at each target.
            async with lock:
                await self._output_router.publish(target, message, more)
        except (MalformedMessage, Unavailable) as error:
            log.warning("A message to %s was not sent: %s", target, error)
        finally:
            self._waiting_counts[target] -= 1
            if not self._waiting_counts[target]:
                del self._waiting_counts[target]
                self._target_locks.pop(target, None)


def _target_key(key: str, target: OutputTarget) -> str:
    return f"{key}:{rules.digest_names(str(target))[:8]}"


def _format_message(
    server: str, message: IncomingMessage
) -> tuple[str, Content, dict[str, object]]:
    """Return an incoming message as Comity repeats it: its key, its text and its claimed author."""
    author, place = rules.author_of(message), OutputTarget(message.channel, server)
    content = to_text_content(f"{author} ({place.display_name[:120]}): {text_of(message.content)}")
    testimony = {
        "server": server,
        "channel": message.channel,
        "message": message.id,
        "author": author,
        "author_id": message.author_id,
        "is_testimony": True,
    }
    return rules.message_key(server, message.channel, message.id), content, {"said_by": testimony}


CLAIM_LIFETIME: Final = timedelta(minutes=2)
START_TIMEOUT_SECONDS: Final = 30.0
MAX_ACTIVE_MESSAGES: Final = 1_000
"""The number of messages of one server that may be in progress."""

CHANNELS_PER_SERVER_RATE: Final = 10
"""The rate limit of all channels of a server together, as a multiple of the limit of one."""

_MAX_RATE_KEYS: Final = 10_000
RATE_LIMITED: Final = "rate_limited"
UNAVAILABLE: Final = "unavailable"
BEING_TAKEN: Final = "being_taken"
DUPLICATE: Final = "duplicate"
ECHO: Final = "own_words"
NO_TURN: Final = "no_turn"
AGAIN: Final = frozenset({RATE_LIMITED, UNAVAILABLE, BEING_TAKEN})
"""The reasons after which a server may send a message again."""

type TurnStarterGetter = Callable[[], TurnStarter | None]
type _Result = dict[str, object]


@dataclass(frozen=True, slots=True)
class _IncomingDelivery:
    """An admitted message with its server, its feature set and its route."""

    live_server: LiveServer
    feature: FeatureSet
    message: IncomingMessage
    route: ChannelRoute

    @property
    def place(self) -> OutputTarget:
        return OutputTarget(self.message.channel, self.live_server.server)

    @property
    def key(self) -> str:
        return rules.message_key(self.live_server.server, self.message.channel, self.message.id)


class IncomingMessages:
    """Answers `channels/incoming`."""

    def __init__(
        self, output_router: OutputRouter, mirror: ChannelMirror, turns: TurnStarterGetter
    ) -> None:
        self._output_router = output_router
        self._mirror = mirror
        self._turn_starter = turns
        self._limiter = RateLimiter(time.monotonic, _MAX_RATE_KEYS)
        self._active_counts: dict[str, int] = {}
        output_router.outputs.channels.live_host.add_request_handler(wire.INCOMING, self.answer)

    async def answer(self, message: LiveMessage) -> Mapping[str, object]:
        sets = rules.require_feature_sets(enabled_sets(message.live_server), FeatureUse.OBSERVE)
        found = wire.messages_in(message.params)
        server = message.live_server.server
        if self._active_counts.get(server, 0) + len(found) > MAX_ACTIVE_MESSAGES:
            return {"results": [_refusal_result(id, RATE_LIMITED) for id, _ in found]}
        self._active_counts[server] = self._active_counts.get(server, 0) + len(found)
        try:
            return {"results": await self._handle_batch(message.live_server, sets, found)}
        finally:
            self._active_counts[server] -= len(found)
            if not self._active_counts[server]:
                del self._active_counts[server]

    async def _handle_batch(
        self,
        live_server: LiveServer,
        sets: Sequence[FeatureSet],
        found: Sequence[tuple[str, IncomingMessage | MalformedMessage]],
    ) -> list[_Result]:
        judged = [self._admit(live_server, sets, id, each) for id, each in found]
        wanted = {each.key: each for each in judged if isinstance(each, _IncomingDelivery)}
        deeds = await self._claim_keys(list(wanted))
        await self._remember_echoes(live_server.server, found, judged)
        results: list[_Result] = []
        done: dict[str, str] = {}
        for each in judged:
            if isinstance(each, _IncomingDelivery):
                # A duplicate within one batch is done once the first copy is.
                result = await self._result(each, deeds.get(each.key))
                if result["accepted"]:
                    note = done[each.key] = str(result.get("conversationId", ""))
                    deeds[each.key] = KeyClaim(each.key, KeyState.DONE, note)
                results.append(result)
            else:
                results.append(each)
        await self._finish_claims(done)
        self._record_audit(live_server, results)
        return results

    # Admission.

    def _admit(
        self,
        live_server: LiveServer,
        sets: Sequence[FeatureSet],
        id: str,
        message: IncomingMessage | MalformedMessage,
    ) -> _IncomingDelivery | _Result:
        if isinstance(message, MalformedMessage):
            return _refusal_result(id, str(message)[:200], message.fault.code)
        place, channels = (
            OutputTarget(message.channel, live_server.server),
            self._output_router.outputs.channels,
        )
        known, closed = (
            channels.get(live_server.server, place.id),
            channels.is_closed(live_server.server, place.id),
        )
        why = rules.channel_refusal(channels.names_of(place), sets, live_server.policy.scopes)
        why = why or rules.direction_refusal(known, is_out=False, is_closed=closed)
        if why is not None:
            return _refusal_result(id, why[1], why[0].code)
        route = self._output_router.route_of(place)
        if route is None or (route.to == IncomingAction.NOTHING and not route.mirror):
            return _refusal_result(id, NO_TURN)
        if self._output_router.outputs.publisher.is_echo(place, message.id, message.content):
            return _refusal_result(id, ECHO)
        if not self._is_within_rate(place, route):
            return _refusal_result(id, RATE_LIMITED)
        return _IncomingDelivery(live_server, sets[0], message, route)

    def _is_within_rate(self, target: OutputTarget, route: ChannelRoute) -> bool:
        """Whether a message is within the rate of its channel and of its server.

        Without the limit per server, a server could send any number of messages on new channels.
        """
        rates = {
            (target.server, target.id): RateLimit.per_minute(route.max_per_minute),
            (target.server, ""): RateLimit.per_minute(
                route.max_per_minute * CHANNELS_PER_SERVER_RATE
            ),
        }
        return not self._limiter.take(rates)

    # Processing.

    async def _claim_keys(self, keys: list[str]) -> dict[str, KeyClaim | None]:
        once = self._output_router.delivery_log
        now = once.clock()
        try:
            deeds = await once.store.take(keys, once.holder, now, now + CLAIM_LIFETIME)
        except Unavailable as error:
            log.info("Messages cannot be processed: %s", error)
            return dict.fromkeys(keys)
        return {each.key: each for each in deeds}

    async def _remember_echoes(
        self,
        server: str,
        found: Sequence[tuple[str, IncomingMessage | MalformedMessage]],
        judged: Sequence[_IncomingDelivery | _Result],
    ) -> None:
        """Record echoes as Comity's own messages, in case they come in again."""
        for (_, message), result in zip(found, judged, strict=True):
            is_own = isinstance(result, dict) and result.get("reason") == ECHO
            if is_own and isinstance(message, IncomingMessage):
                try:
                    await self._output_router.remember_own(
                        OutputTarget(message.channel, server), message.id
                    )
                except Unavailable as error:
                    log.info("An echo could not be stored: %s", error)

    async def _result(self, delivery: _IncomingDelivery, claim: KeyClaim | None) -> _Result:
        id, once = delivery.message.id, self._output_router.delivery_log
        before = _unclaimed_result(id, claim)
        if before is not None:
            return before
        try:
            async with asyncio.timeout(START_TIMEOUT_SECONDS):
                conversation = await self._deliver(delivery)
        except MalformedMessage as error:
            await once.store.release(once.holder, [delivery.key])
            return _refusal_result(id, str(error)[:200], error.fault.code)
        except (Unavailable, TimeoutError) as error:
            log.info("a message of server %r waits: %s", delivery.live_server.server, error)
            await self._release_claim(delivery.key)
            return _refusal_result(id, UNAVAILABLE)
        return wire.result_of(id, conversation=conversation)

    async def _finish_claims(self, done: Mapping[str, str]) -> None:
        """Record all messages of a batch as done.

        A crash before that leaves a message that the server may send again. It has no further
        effect, because a cause has one turn and an envelope one id.
        """
        once = self._output_router.delivery_log
        try:
            await once.store.finish(once.holder, done, once.clock())
        except Unavailable as error:
            log.info("Processed messages are remembered in memory only: %s", error)

    async def _release_claim(self, key: str) -> None:
        """Release a claim. If the store is unavailable, the claim expires."""
        try:
            await self._output_router.delivery_log.store.release(
                self._output_router.delivery_log.holder, [key]
            )
        except Unavailable as error:
            log.info("A message stays reserved for a while: %s", error)

    async def _deliver(self, delivery: _IncomingDelivery) -> str:
        """Start the turn or post the message, and return its conversation. Raises Unavailable."""
        route, message, server = delivery.route, delivery.message, delivery.live_server.server
        conversation = rules.conversation_of(server, message, route.conversation)
        if route.to == IncomingAction.TURN:
            turns = self._turn_starter()
            if turns is None:
                raise Unavailable("no model is configured; add one to [[models]]")
            taken = await turns.start(self._turn_request(delivery, conversation))
            conversation = taken.conversation
        elif route.to != IncomingAction.NOTHING:
            await self._mirror.post_to_topic(rules.parse_target(route.to), server, message)
        self._mirror.copy_from_channel(server, message)
        return conversation

    def _turn_request(self, delivery: _IncomingDelivery, conversation: str) -> TurnRequest:
        route, message, place = delivery.route, delivery.message, delivery.place
        say_in = route.reply_to or (str(place),)
        candidates = [rules.parse_target(each).display_name for each in say_in]
        cause = TurnCause(
            TurnOrigin.CHANNEL,
            f"channel:{delivery.key}",
            route.principal,
            server=delivery.live_server.server,
            feature=delivery.feature.name,
            channels=rules.channels_context(place, message, say_in, candidates),
        )
        author = rules.describe_author(place.server, message)
        return TurnRequest(cause, conversation, message.content, author, say_in)

    def _record_audit(self, live_server: LiveServer, results: Sequence[_Result]) -> None:
        accepted = sum(bool(each["accepted"]) for each in results)
        reasons = sorted({str(each["reason"]) for each in results if "reason" in each})
        details = {"accepted": accepted, "refused": len(results) - accepted, "reasons": reasons[:5]}
        entry = LiveAuditEntry(live_server.server, wire.INCOMING, details=details)
        outcome = AuditResult.SUCCESS if accepted or not results else AuditResult.BLOCKED
        audit = self._output_router.outputs.channels.live_host.audit
        record_entry(audit, AuditType.FEATURE_USED, entry, outcome, is_limited=True)


def _unclaimed_result(id: str, claim: KeyClaim | None) -> _Result | None:
    """Return the result of a message that this process does not own, or None if it does."""
    if claim is None:
        return _refusal_result(id, UNAVAILABLE)
    if claim.state is KeyState.OURS:
        return None
    if claim.state is KeyState.BUSY:
        return _refusal_result(id, BEING_TAKEN)
    if claim.result == OWN_MESSAGE:
        return _refusal_result(id, ECHO)
    return wire.result_of(id, conversation=claim.result, reason=DUPLICATE)


def _refusal_result(id: str, reason: str, code: int = 0) -> _Result:
    return wire.result_of(id, reason=reason, code=code)


class TopicChat:
    """Starts turns for what members say in topics, and mirrors it."""

    def __init__(
        self,
        output_router: OutputRouter,
        mirror: ChannelMirror,
        chats: Sequence[TopicChatConfig],
        turns: Callable[[], TurnStarter | None],
    ) -> None:
        self._output_router = output_router
        self._mirror = mirror
        self._chats_by_topic = {each.topic: each for each in chats}
        self._turn_starter = turns
        self._background_tasks = BackgroundTasks("talk in topics")
        output_router.outputs.topics.chat_listeners.append(self.on_chat_message)

    def stop(self) -> None:
        self._background_tasks.cancel()

    def on_chat_message(
        self, topic: str, member: TopicMember, envelope: Envelope, text: str
    ) -> None:
        self._mirror.copy_from_topic(topic, member.party, envelope.id, text)
        talk = self._chats_by_topic.get(topic)
        if talk is None or not text.strip():
            return
        if talk.principal in envelope.to or (talk.hears_all and envelope.is_for_all):
            self._background_tasks.start(self._start_turn(talk, member, envelope, text))

    async def _start_turn(
        self, chat: TopicChatConfig, member: TopicMember, envelope: Envelope, text: str
    ) -> None:
        errand = self._turn_request(chat, member, envelope, text)
        try:
            taken = await self._require_turn_starter().start(errand)
        except (Unavailable, MalformedMessage) as error:
            log.info("No turn for a message in topic %r: %s", chat.topic, error)
            reason = f"the model does not answer: {error}"[:300]
            self._output_router.outputs.topics.send_notice(
                chat.topic, member.party, reason, envelope.id
            )
            return
        self._output_router.record_answer(taken.inference, chat.topic, envelope.id, chat.principal)

    def _require_turn_starter(self) -> TurnStarter:
        turns = self._turn_starter()
        if turns is None:
            raise Unavailable("no model is configured; an operator can add one")
        return turns

    def _turn_request(
        self, chat: TopicChatConfig, member: TopicMember, envelope: Envelope, text: str
    ) -> TurnRequest:
        place = OutputTarget(chat.topic)
        say_in = chat.reply_to or (str(place),)
        thread = envelope.correlation_id
        conversation = rules.conversation_in(chat.topic, chat.conversation, thread, member.party)
        candidates = [rules.parse_target(each).display_name for each in say_in]
        cause = TurnCause(
            TurnOrigin.TOPIC,
            f"topic:{rules.digest_names(chat.topic, member.party, envelope.id)}",
            chat.principal,
            channels=rules.channels_context(place, None, say_in, candidates),
        )
        return TurnRequest(cause, conversation, to_text_content(text), member.party, say_in)
