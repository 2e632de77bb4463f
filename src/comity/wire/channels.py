"""Places outside that words come from and go to, as their servers register them. (MCPL §14)

An id is unique in its connection alone: inside, a channel is its server and its id. (D-72)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from comity.wire import jsonrpc
from comity.wire.contents import Content, content_in, to_wire
from comity.wire.errors import INVALID_PARAMS, MalformedMessage

REGISTER: Final = "channels/register"
CHANGED: Final = "channels/changed"
LIST: Final = "channels/list"
OPEN: Final = "channels/open"
CLOSE: Final = "channels/close"
OUTGOING_CHUNK: Final = "channels/outgoing/chunk"
OUTGOING_COMPLETE: Final = "channels/outgoing/complete"
PUBLISH: Final = "channels/publish"
INCOMING: Final = "channels/incoming"

THINKING: Final = "thinking"
"""The channel that can be read, where that was granted, and never written to. (D-73)"""

MOST_CHANNELS: Final = 1_000
MOST_MESSAGES: Final = 500
LONGEST_ID: Final = 256
MOST_BYTES: Final = 16 * 1024


class Direction(StrEnum):
    OUT = "outbound"
    IN = "inbound"
    BOTH = "bidirectional"


class Descriptor(Struct, frozen=True, omit_defaults=True):
    """One channel, as its server describes it. (§14.2)"""

    id: str
    type: str
    label: str = ""
    direction: Direction = Direction.BOTH
    address: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    metadata: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message from outside. Who wrote it is what the server says: testimony, no party."""

    channel: str
    id: str
    content: Content
    at: datetime | None = None
    thread: str = ""
    author_id: str = ""
    author: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Changes:
    added: tuple[Descriptor, ...] = ()
    removed: tuple[str, ...] = ()
    updated: tuple[Descriptor, ...] = ()


class Published(Struct, frozen=True):
    """What a connector says has become of words that it was to deliver."""

    delivered: bool
    message: str = msgspec.field(default="", name="messageId")


class _Opened(Struct):
    channel: Raw


class _Closed(Struct):
    closed: bool


class _Author(Struct):
    id: str = ""
    name: str = ""


class _Incoming(Struct):
    channel: str = msgspec.field(name="channelId")
    id: str = msgspec.field(name="messageId")
    content: Raw
    thread: str | None = msgspec.field(default=None, name="threadId")
    author: _Author | None = None
    timestamp: str | None = None
    metadata: dict[str, Any] | None = None


class _Batch(Struct):
    messages: list[Raw]


class _Registered(Struct):
    channels: list[Raw]


class _Changes(Struct):
    added: list[Raw] = msgspec.field(default_factory=list[Raw])
    removed: list[str] = msgspec.field(default_factory=list[str])
    updated: list[Raw] = msgspec.field(default_factory=list[Raw])


def registered_in(params: Raw) -> tuple[Descriptor, ...]:
    """What a server registers. Raises MalformedMessage."""
    return _descriptors(_decoded(params, _Registered, REGISTER).channels)


def changes_in(params: Raw) -> Changes:
    """Raises MalformedMessage."""
    found = _decoded(params, _Changes, CHANGED)
    removed = tuple(found.removed[:MOST_CHANNELS])
    return Changes(_descriptors(found.added), removed, _descriptors(found.updated))


def descriptor_in(raw: Raw) -> Descriptor:
    """One channel. Raises MalformedMessage."""
    found = _decoded(raw, Descriptor, "a channel")
    if not 0 < len(found.id) <= LONGEST_ID or not found.id.isprintable() or not found.type:
        raise MalformedMessage("a channel has an id and a type that can be read", INVALID_PARAMS)
    if len(raw) > MOST_BYTES:
        raise MalformedMessage(f"a channel takes at most {MOST_BYTES} bytes", INVALID_PARAMS)
    return found


def messages_in(params: Raw) -> list[tuple[str, Incoming | MalformedMessage]]:
    """Each message by its id, or why it cannot be read. Raises where there is no list at all."""
    batch = _decoded(params, _Batch, INCOMING).messages
    if len(batch) > MOST_MESSAGES:
        raise MalformedMessage(f"at most {MOST_MESSAGES} messages at once", INVALID_PARAMS)
    return [_message(raw) for raw in batch]


def listed_in(result: Raw) -> tuple[Descriptor, ...]:
    """What a server answers to `channels/list`. Raises MalformedMessage."""
    return _descriptors(_decoded(result, _Registered, LIST).channels)


def opened_in(result: Raw) -> Descriptor:
    """Raises MalformedMessage."""
    return descriptor_in(_decoded(result, _Opened, OPEN).channel)


def closed_in(result: Raw) -> bool:
    """Raises MalformedMessage."""
    return _decoded(result, _Closed, CLOSE).closed


def published_in(result: Raw) -> Published:
    """Raises MalformedMessage."""
    found = _decoded(result, Published, PUBLISH)
    if len(found.message) > LONGEST_ID:
        raise MalformedMessage("messageId is no name", INVALID_PARAMS)
    return found


def listing(channels: Iterable[Descriptor]) -> dict[str, object]:
    return {"channels": [msgspec.to_builtins(each) for each in channels]}


def opening(type: str, address: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": type, "address": dict(address), "metadata": dict(metadata)}


def publication(
    conversation: str, channel: str, content: Content, *, is_streamed: bool, id: str
) -> dict[str, object]:
    """`publishId` is ours: a connector that remembers it delivers nothing twice."""
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
    """What became of one message; it was accepted where no reason stands against it. (D-73)"""
    told: dict[str, object] = {"messageId": message, "accepted": not reason}
    told |= {"conversationId": conversation} if conversation else {}
    told |= {"reason": reason} if reason else {}
    return {**told, "code": code} if code else told


def registration_of(channel: str, reason: str = "", code: int = 0) -> dict[str, object]:
    """What became of one channel that a server registered; spoken of one by one. (D-64)"""
    told: dict[str, object] = {"id": channel, "accepted": not reason}
    return {**told, "reason": reason, "code": code} if reason else told


def _message(raw: Raw) -> tuple[str, Incoming | MalformedMessage]:
    named = ""
    try:
        named = (jsonrpc.text(jsonrpc.members(raw).get("messageId")) or "")[:LONGEST_ID]
        return named, _incoming(_decoded(raw, _Incoming, "a message"))
    except MalformedMessage as problem:
        return named, problem


def _incoming(found: _Incoming) -> Incoming:
    if not 0 < len(found.id) <= LONGEST_ID or not 0 < len(found.channel) <= LONGEST_ID:
        raise MalformedMessage("messageId or channelId is no name", INVALID_PARAMS)
    author = found.author or _Author()
    return Incoming(
        found.channel,
        found.id,
        content_in(found.content),
        _moment(found.timestamp),
        found.thread or "",
        author.id[:LONGEST_ID],
        author.name[:LONGEST_ID],
        found.metadata or {},
    )


def _moment(said: str | None) -> datetime | None:
    try:
        at = None if said is None else datetime.fromisoformat(said)
    except ValueError:
        raise MalformedMessage("the timestamp is no moment", INVALID_PARAMS) from None
    return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at


def _descriptors(raws: list[Raw]) -> tuple[Descriptor, ...]:
    if len(raws) > MOST_CHANNELS:
        raise MalformedMessage(f"at most {MOST_CHANNELS} channels", INVALID_PARAMS)
    return tuple(descriptor_in(raw) for raw in raws)


def _decoded[T](raw: Raw, wanted: type[T], what: str) -> T:
    jsonrpc.value(raw)
    try:
        return jsonrpc.shaped(raw, wanted)
    except msgspec.DecodeError as problem:
        raise MalformedMessage(f"{what}: {problem}", INVALID_PARAMS) from None
