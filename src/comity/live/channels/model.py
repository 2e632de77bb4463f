"""Messages of channels, the rules on who may use a channel, and the routing of messages."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from comity.errors import (
    CHANNEL_UNKNOWN,
    FEATURE_NOT_ENABLED,
    INVALID_PARAMS,
    SCOPE_NOT_PERMITTED,
    Fault,
    MalformedMessage,
)
from comity.inference.messages import Content, content_in, to_wire
from comity.live.scopes.rules import is_allowed, is_denied
from comity.mcp import jsonrpc
from comity.mcp.mcpl import FeatureSet, FeatureUse, ScopeBounds
from comity.toolkit.patterns import SEPARATOR, is_glob_match
from comity.toolkit.text import escape_unsafe
from comity.topics.rules import is_topic

REGISTER: Final = "channels/register"
CHANGED: Final = "channels/changed"
LIST: Final = "channels/list"
OPEN: Final = "channels/open"
CLOSE: Final = "channels/close"
OUTGOING_CHUNK: Final = "channels/outgoing/chunk"
OUTGOING_COMPLETE: Final = "channels/outgoing/complete"
PUBLISH: Final = "channels/publish"
INCOMING: Final = "channels/incoming"
MESSAGE_KEYS: Final = "message"
"""The kind of the deduplication keys of incoming messages."""

THINKING: Final = "thinking"
"""The channel of a model's reasoning. It is read-only and needs an explicit grant. (D-73)"""

MAX_CHANNELS: Final = 1_000
MAX_MESSAGES: Final = 500
MAX_ID_LENGTH: Final = 256
MOST_BYTES: Final = 16 * 1024


class ChannelDirection(StrEnum):
    """The direction of messages in a channel, seen from the gateway."""

    OUT = "outbound"
    IN = "inbound"
    BOTH = "bidirectional"


class ChannelDescriptor(Struct, frozen=True, omit_defaults=True):
    """A channel as its server describes it. (§14.2)"""

    id: str
    type: str
    label: str = ""
    direction: ChannelDirection = ChannelDirection.BOTH
    address: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """A message from outside. Its author is what the server claims, and not a principal."""

    channel: str
    id: str
    content: Content
    at: datetime | None = None
    thread: str = ""
    author_id: str = ""
    author: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ChannelChanges:
    """The channels that a server added, removed or updated."""

    added: tuple[ChannelDescriptor, ...] = ()
    removed: tuple[str, ...] = ()
    updated: tuple[ChannelDescriptor, ...] = ()


class PublishResult(Struct, frozen=True):
    """The report of a connector about the delivery of a message."""

    delivered: bool
    message: str = msgspec.field(default="", name="messageId")


class _ChannelOpenResult(Struct):
    channel: Raw


class _ChannelCloseResult(Struct):
    closed: bool


class _MessageAuthor(Struct):
    id: str = ""
    name: str = ""


class _IncomingMessageParams(Struct):
    channel: str = msgspec.field(name="channelId")
    id: str = msgspec.field(name="messageId")
    content: Raw
    thread: str | None = msgspec.field(default=None, name="threadId")
    author: _MessageAuthor | None = None
    timestamp: str | None = None
    metadata: dict[str, Any] | None = None


class _IncomingBatchParams(Struct):
    messages: list[Raw]


class _ChannelRegisterParams(Struct):
    channels: list[Raw]


class _ChannelChangeParams(Struct):
    added: list[Raw] = msgspec.field(default_factory=list[Raw])
    removed: list[str] = msgspec.field(default_factory=list[str])
    updated: list[Raw] = msgspec.field(default_factory=list[Raw])


def registered_in(params: Raw) -> tuple[ChannelDescriptor, ...]:
    """Decode `channels/register`. Raises MalformedMessage."""
    return _descriptors(_decode(params, _ChannelRegisterParams, REGISTER).channels)


def changes_in(params: Raw) -> ChannelChanges:
    """Decode `channels/changed`. Raises MalformedMessage."""
    found = _decode(params, _ChannelChangeParams, CHANGED)
    removed = tuple(found.removed[:MAX_CHANNELS])
    return ChannelChanges(_descriptors(found.added), removed, _descriptors(found.updated))


def descriptor_in(raw: Raw) -> ChannelDescriptor:
    """Decode one channel. Raises MalformedMessage."""
    found = _decode(raw, ChannelDescriptor, "a channel")
    if not 0 < len(found.id) <= MAX_ID_LENGTH or not found.id.isprintable() or not found.type:
        raise MalformedMessage("a channel has an id and a type that can be read", INVALID_PARAMS)
    if len(raw) > MOST_BYTES:
        raise MalformedMessage(f"a channel takes at most {MOST_BYTES} bytes", INVALID_PARAMS)
    return found


def messages_in(params: Raw) -> list[tuple[str, IncomingMessage | MalformedMessage]]:
    """Return each message by its id, or the error that it causes.

    Raises MalformedMessage if there is no list at all.
    """
    batch = _decode(params, _IncomingBatchParams, INCOMING).messages
    if len(batch) > MAX_MESSAGES:
        raise MalformedMessage(f"at most {MAX_MESSAGES} messages at once", INVALID_PARAMS)
    return [_message(raw) for raw in batch]


def listed_in(result: Raw) -> tuple[ChannelDescriptor, ...]:
    """Decode the answer to `channels/list`. Raises MalformedMessage."""
    return _descriptors(_decode(result, _ChannelRegisterParams, LIST).channels)


def opened_in(result: Raw) -> ChannelDescriptor:
    """Decode the answer to `channels/open`. Raises MalformedMessage."""
    return descriptor_in(_decode(result, _ChannelOpenResult, OPEN).channel)


def closed_in(result: Raw) -> bool:
    """Decode the answer to `channels/close`. Raises MalformedMessage."""
    return _decode(result, _ChannelCloseResult, CLOSE).closed


def published_in(result: Raw) -> PublishResult:
    """Decode the answer to `channels/publish`. Raises MalformedMessage."""
    found = _decode(result, PublishResult, PUBLISH)
    if len(found.message) > MAX_ID_LENGTH:
        raise MalformedMessage("messageId is no name", INVALID_PARAMS)
    return found


def build_channel_list(channels: Iterable[ChannelDescriptor]) -> dict[str, object]:
    # A descriptor always has a direction, also the default one. (§14.2)
    return {
        "channels": [
            {**msgspec.to_builtins(each), "direction": each.direction.value} for each in channels
        ]
    }


def build_open_params(
    type: str, address: Mapping[str, Any], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    return {"type": type, "address": dict(address), "metadata": dict(metadata)}


def build_publish_params(
    conversation: str, channel: str, content: Content, *, is_streamed: bool, id: str
) -> dict[str, object]:
    """Return the parameters of `channels/publish`.

    `publishId` is Comity's addition, with which a connector can avoid duplicate deliveries.
    """
    return {
        "conversationId": conversation,
        "channelId": channel,
        "stream": is_streamed,
        "content": to_wire(content),
        "publishId": id,
    }


def result_of(
    message: str, *, conversation: str = "", reason: str = "", code: int = 0
) -> dict[str, object]:
    """Return the result for one message. An empty reason means that it was accepted. (D-73)"""
    told: dict[str, object] = {"messageId": message, "accepted": not reason}
    told |= {"conversationId": conversation} if conversation else {}
    told |= {"reason": reason} if reason else {}
    return {**told, "code": code} if code else told


def registration_of(channel: str, reason: str = "", code: int = 0) -> dict[str, object]:
    """Return the result for one registered channel. Each channel has its own result. (D-64)"""
    told: dict[str, object] = {"id": channel, "accepted": not reason}
    return {**told, "reason": reason, "code": code} if reason else told


def _message(raw: Raw) -> tuple[str, IncomingMessage | MalformedMessage]:
    named = ""
    try:
        named = (jsonrpc.decode_text(jsonrpc.decode_members(raw).get("messageId")) or "")[
            :MAX_ID_LENGTH
        ]
        return named, _incoming(_decode(raw, _IncomingMessageParams, "a message"))
    except MalformedMessage as problem:
        return named, problem


def _incoming(found: _IncomingMessageParams) -> IncomingMessage:
    if not 0 < len(found.id) <= MAX_ID_LENGTH or not 0 < len(found.channel) <= MAX_ID_LENGTH:
        raise MalformedMessage("messageId or channelId is no name", INVALID_PARAMS)
    author = found.author or _MessageAuthor()
    return IncomingMessage(
        found.channel,
        found.id,
        content_in(found.content),
        _parse_timestamp(found.timestamp),
        found.thread or "",
        author.id[:MAX_ID_LENGTH],
        author.name[:MAX_ID_LENGTH],
        found.metadata or {},
    )


def _parse_timestamp(text: str | None) -> datetime | None:
    try:
        at = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise MalformedMessage("the timestamp is no moment", INVALID_PARAMS) from None
    return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at


def _descriptors(raws: list[Raw]) -> tuple[ChannelDescriptor, ...]:
    if len(raws) > MAX_CHANNELS:
        raise MalformedMessage(f"at most {MAX_CHANNELS} channels", INVALID_PARAMS)
    return tuple(descriptor_in(raw) for raw in raws)


def _decode[T](raw: Raw, expected_type: type[T], what: str) -> T:
    jsonrpc.decode_value(raw)
    try:
        return jsonrpc.decode_shape(raw, expected_type)
    except msgspec.DecodeError as problem:
        raise MalformedMessage(f"{what}: {problem}", INVALID_PARAMS) from None


TOPIC_PREFIX: Final = "topic:"
CHANNEL_PREFIX: Final = "channel:"
HOST_PARTY: Final = "agent:host"
"""The principal that speaks for the gateway's model in topics and calls tools for it."""

CHANNEL_USES: Final = (FeatureUse.PUBLISH, FeatureUse.OBSERVE)
_MAX_READABLE_LENGTH: Final = 120
_MAX_AUTHOR_LENGTH: Final = 80


class IncomingAction(StrEnum):
    """The effect of an incoming message, besides its post in a topic."""

    NOTHING = "nothing"
    TURN = "turn"


class ConversationScope(StrEnum):
    """Which messages of a channel belong to one conversation."""

    CHANNEL = "channel"
    THREAD = "thread"
    AUTHOR = "author"


@dataclass(frozen=True, slots=True)
class ChannelRoute:
    """An operator's configuration for some channels of a server.

    `to` is an action, or the target `topic:NAME`. Without `say_in` a model answers where it was
    asked. `mirror` is a topic that mirrors the channel. `repeats` is for connectors that recognise
    a publication by its id. A connector without `acknowledges` gets a notification instead of a
    request.
    """

    server: str
    channel: str = "**"
    to: str = IncomingAction.TURN
    conversation: ConversationScope = ConversationScope.CHANNEL
    reply_to: tuple[str, ...] = ()
    mirror: str = ""
    principal: str = HOST_PARTY
    max_per_minute: int = 60
    deduplicates: bool = False
    acknowledges: bool = True


@dataclass(frozen=True, slots=True)
class TopicChatConfig:
    """An operator's configuration for chat in a topic: when a model answers, and where."""

    topic: str
    hears_all: bool = False
    conversation: ConversationScope = ConversationScope.CHANNEL
    reply_to: tuple[str, ...] = ()
    principal: str = HOST_PARTY


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """The target of an output: a topic, or a channel of a server."""

    id: str
    server: str = ""

    @property
    def is_topic(self) -> bool:
        return not self.server

    def __str__(self) -> str:
        return (
            f"{TOPIC_PREFIX}{self.id}"
            if self.is_topic
            else f"{CHANNEL_PREFIX}{self.server}/{self.id}"
        )

    @property
    def display_name(self) -> str:
        """The name of the target as other servers see it."""
        return f"{TOPIC_PREFIX}{self.id}" if self.is_topic else f"{self.server}/{self.id}"


def parse_target(text: str) -> OutputTarget:
    """Parse `topic:NAME` or `channel:SERVER/ID`. Raises MalformedMessage."""
    if text.startswith(TOPIC_PREFIX) and is_topic(text.removeprefix(TOPIC_PREFIX)):
        return OutputTarget(text.removeprefix(TOPIC_PREFIX))
    server, slash, id = text.removeprefix(CHANNEL_PREFIX).partition("/")
    if text.startswith(CHANNEL_PREFIX) and server and slash and id:
        return OutputTarget(id, server)
    raise MalformedMessage(
        f"{text!r:.80} is no place; write topic:NAME or channel:SERVER/ID", INVALID_PARAMS
    )


# Permissions.


def require_feature_sets(sets: Iterable[FeatureSet], *uses: FeatureUse) -> list[FeatureSet]:
    """Return the enabled sets with one of these uses.

    Raises MalformedMessage if there is none. (D-64)
    """
    found = [each for each in sets if any(use in each.uses for use in uses)]
    if not found:
        wanted = " or ".join(uses)
        raise MalformedMessage(f"no enabled feature set uses {wanted}", FEATURE_NOT_ENABLED)
    return found


def channel_names(descriptor: ChannelDescriptor) -> tuple[str, ...]:
    """Return the names by which a pattern covers a channel: its id, and its address.

    The channel `discord:#general` of the guild acme is `discord:acme/#general` by its address. The
    document prints this id and the pattern `discord:acme/*`. (§14.2, §14.5)
    """
    parts = [str(each) for each in descriptor.address.values() if isinstance(each, str | int)]
    is_plain = all(part and SEPARATOR not in part for part in parts)
    if not parts or len(parts) != len(descriptor.address) or not is_plain:
        return (descriptor.id,)
    return descriptor.id, f"{descriptor.type}:{SEPARATOR.join(parts)}"


def channel_refusal(
    names: Sequence[str], sets: Iterable[FeatureSet], bounds: Mapping[str, ScopeBounds]
) -> tuple[Fault, str] | None:
    """Return why a server may not use its own channel with these sets, or None if it may.

    A pattern that allows covers any name of the channel, and so does one that forbids.
    """
    if THINKING in names:
        return SCOPE_NOT_PERMITTED, "thinking can be watched, and nothing else"
    found = [bounds.get(each.name, _NO_BOUNDS) for each in sets]
    if any(is_denied(each, _blacklisted(found)) for each in names):
        return SCOPE_NOT_PERMITTED, "the channel is among those that the host forbids"
    if not any(_is_channel_allowed(each, name) for each in found for name in names):
        return SCOPE_NOT_PERMITTED, "the channel is not among those that the host allows"
    return None


def unused_patterns(
    channels: Iterable[ChannelDescriptor],
    sets: Iterable[FeatureSet],
    bounds: Mapping[str, ScopeBounds],
) -> list[str]:
    """Return the patterns of whitelists that cover none of the channels."""
    names = [name for each in channels for name in channel_names(each)]
    patterns = (pattern for each in sets for pattern in bounds.get(each.name, _NO_BOUNDS).whitelist)
    return [
        pattern
        for pattern in dict.fromkeys(patterns)
        if pattern != THINKING and not any(is_allowed(name, (pattern,)) for name in names)
    ]


_NO_BOUNDS: Final = ScopeBounds()


def _is_channel_allowed(bounds: ScopeBounds, channel: str) -> bool:
    """Whether the bounds allow a channel.

    A set without a whitelist covers all of its server's channels.
    """
    return not bounds.whitelist or is_allowed(channel, bounds.whitelist)


def _blacklisted(several: Iterable[ScopeBounds]) -> list[str]:
    return [pattern for each in several for pattern in each.blacklist]


def direction_refusal(
    channel: ChannelDescriptor | None, *, is_out: bool, is_closed: bool
) -> tuple[Fault, str] | None:
    """Return why no message may go in this direction, regardless of the sender. None if it may."""
    if channel is None:
        return CHANNEL_UNKNOWN, "there is no such channel"
    if is_closed:
        return CHANNEL_UNKNOWN, "the channel is closed"
    if channel.direction is (ChannelDirection.IN if is_out else ChannelDirection.OUT):
        return SCOPE_NOT_PERMITTED, f"the channel is {channel.direction}"
    return None


def can_observe(
    target: OutputTarget,
    server: str,
    sets: Iterable[FeatureSet],
    bounds: Mapping[str, ScopeBounds],
    names: Sequence[str],
) -> bool:
    """Whether a server may observe a target: its own channel, or one that its bounds name.

    `names` are those of the channel, as far as its server has described it.
    """
    observing = [
        each for each in sets if FeatureUse.OBSERVE in each.uses and not _is_thinking(each)
    ]
    if not observing:
        return False
    if target.server == server and server:
        return channel_refusal(names, observing, bounds) is None
    found = [bounds.get(each.name, _NO_BOUNDS) for each in observing]
    if is_denied(target.display_name, _blacklisted(found)):
        return False
    return any(is_allowed(target.display_name, each.whitelist) for each in found)


def may_see_thinking(
    sets: Iterable[FeatureSet], names: Iterable[str], bounds: Mapping[str, ScopeBounds]
) -> bool:
    """Whether a server may observe a model's reasoning. A wildcard never grants that."""
    written = frozenset(names)
    for each in sets:
        said = bounds.get(each.name, _NO_BOUNDS)
        is_granted = (_is_thinking(each) and each.name in written) or THINKING in said.whitelist
        if FeatureUse.OBSERVE in each.uses and is_granted and THINKING not in said.blacklist:
            return True
    return False


def _is_thinking(feature: FeatureSet) -> bool:
    return feature.name.rpartition(".")[2] == THINKING


# Routing.


def route_of(routes: Iterable[ChannelRoute], server: str, channel: str) -> ChannelRoute | None:
    """Return the first route for this channel.

    Messages of a channel without a route are refused.
    """
    mine = (each for each in routes if each.server == server)
    # A star alone means every channel, also one with a slash in its id.
    return next(
        (each for each in mine if each.channel == "*" or is_glob_match(each.channel, channel)), None
    )


def conversation_of(server: str, message: IncomingMessage, by: ConversationScope) -> str:
    """Return the stable name of the conversation that a message belongs to."""
    part = {
        ConversationScope.THREAD: message.thread,
        ConversationScope.AUTHOR: message.author_id,
    }.get(by, "")
    return _readable_name(
        f"{CHANNEL_PREFIX}{server}/{message.channel}", f"{by}:{part}" if part else ""
    )


def conversation_in(topic: str, by: ConversationScope, thread: str, author: str) -> str:
    part = {ConversationScope.THREAD: thread, ConversationScope.AUTHOR: author}.get(by, "")
    return _readable_name(f"{TOPIC_PREFIX}{topic}", f"{by}:{part}" if part else "")


def _readable_name(whole: str, part: str) -> str:
    """Return a readable name as it is, and a digest in place of a long or unusual one."""
    text = f"{whole}#{part}" if part else whole
    if len(text) <= _MAX_READABLE_LENGTH and text.isascii() and text.isprintable():
        return text
    return f"{whole.partition(':')[0]}:{digest_names(whole, part)}"


def digest_names(*names: str) -> str:
    """Return one collision-free name for several names."""
    named = "".join(f"{len(each)}:{each}" for each in names)
    return hashlib.sha256(named.encode(errors="surrogatepass")).hexdigest()[:40]


def message_key(server: str, channel: str, message: str) -> str:
    """Return the permanent deduplication key of a message in a channel. (D-72)"""
    return f"in:{digest_names(server, channel, message)}"


def output_key(inference: str, target: OutputTarget) -> str:
    """Return the permanent deduplication key of a turn's output at a target."""
    return f"out:{digest_names(inference, str(target))}"


# Display.


def author_of(message: IncomingMessage) -> str:
    """Return the claimed author of a message. It is never the name of a principal."""
    said = (
        escape_unsafe(message.author or message.author_id or "somebody").replace("\n", " ").strip()
    )
    return said[:_MAX_AUTHOR_LENGTH] or "somebody"


def describe_author(server: str, message: IncomingMessage) -> str:
    """Return the author for a model, with a note that only a server makes the claim."""
    where = escape_unsafe(f"{server}/{message.channel}")[:_MAX_READABLE_LENGTH]
    return f"{author_of(message)} (external, according to {where})"


def channels_context(
    target: OutputTarget,
    message: IncomingMessage | None,
    say_in: Iterable[str],
    candidates: Iterable[str],
) -> dict[str, object]:
    """Return what servers may know about the origin of a turn and its targets. (§14.4)"""
    goes = [parse_target(each) for each in say_in]
    told: dict[str, object] = {"candidates": list(candidates)}
    if message is not None:
        incoming = {"channelId": message.channel, "messageId": message.id}
        told["incoming"] = {**incoming, **({"threadId": message.thread} if message.thread else {})}
    else:
        told["incoming"] = {"channelId": str(target)}
    if goes:
        first = goes[0]
        same = first == target and not target.is_topic
        told["defaultOutgoing"] = {"channelId": first.id if same else first.display_name}
    return told


class StreamRedactor:
    """Redacts the streamed output of one turn for observers.

    A secret may be split between two chunks. The redactor therefore holds back the last characters,
    and any private key that has begun and not ended.
    """

    HELD_CHARACTERS: Final = 256
    _BLOCK_START: Final = "-----BEGIN"
    _BLOCK_END: Final = "-----END"

    def __init__(self, hide: Callable[[str], str]) -> None:
        self._hide = hide
        self._buffer = ""

    def add(self, delta: str) -> str:
        """Add a chunk and return the text that is safe to show now."""
        self._buffer += delta
        upto = self._buffer.rfind(" ", 0, max(len(self._buffer) - self.HELD_CHARACTERS, 0)) + 1
        begun = self._buffer.find(self._BLOCK_START)
        if begun >= 0 and self._BLOCK_END not in self._buffer[begun:]:
            upto = min(upto, begun)
        shown = self._hide(self._buffer[:upto])
        if not upto or not self._hide(self._buffer).startswith(shown):
            return ""
        self._buffer = self._buffer[upto:]
        return shown

    def end(self) -> str:
        """Return the remaining text."""
        rest, self._buffer = self._hide(self._buffer), ""
        return rest
