"""Events, channels and filters, and the messages of `mgp/events/*`."""

import hashlib
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, UnsetType

from comity.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import UNSET, Frame
from comity.toolkit.text import format_timestamp as stamp

SUBSCRIBE: Final = "mgp/events/subscribe"
UNSUBSCRIBE: Final = "mgp/events/unsubscribe"
NOTICE: Final = "notifications/mgp.event"
LISTENED: Final = "mgp.events"
"""The filter name with which a stream of the modern protocol asks for events."""

ALL: Final = "*"
MAX_CHANNELS: Final = 64
MAX_CHANNEL_LENGTH: Final = 128
MAX_ID_LENGTH: Final = 128
MOST_BYTES: Final = 16 * 1024
"""The maximum size of one event of a server. Subscribers receive it unchanged."""

MAX_DEPTH: Final = 12
MAX_FOUND: Final = 256
"""The maximum number of channels that Comity accepts from a server's answer."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)+", re.ASCII)
_FAMILY: Final = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*\.\*", re.ASCII)


class Severity(StrEnum):
    """How important an event is. The document names only `warning`. (D-27)"""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class GatewayEvent:
    """One event.

    `source` is the server that reports it, or empty for the gateway. No server has an empty name.
    `server` and `tool` are the subject of the event, and `party` is the principal that caused it.
    All four decide who may see it.
    """

    id: str
    channel: str
    at: datetime
    severity: Severity
    data: Mapping[str, object]
    server: str = ""
    tool: str = ""
    party: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class EventChannel:
    """One kind of event: its name, its description and the schema of its data."""

    name: str
    description: str
    severity: Severity = Severity.INFO
    schema: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class EventFilter:
    """The events that a subscriber wants: channels, patterns (`tool.*`) or all (`*`)."""

    channels: tuple[str, ...]
    min_severity: Severity = Severity.DEBUG


class _EventFilterParams(Struct):
    min_severity: str | None = None


class _EventSubscribeParams(Struct):
    channels: list[str]
    filter: _EventFilterParams | None = None


class _EventSubscribeResult(Struct):
    subscription_id: str
    subscribed: list[str]


class _EventNotification(Struct):
    subscription_id: str
    channel: str
    timestamp: str
    data: dict[str, Any]
    severity: str = Severity.INFO
    id: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """An event as a server sent it."""

    subscription: str
    channel: str
    timestamp: str
    data: Mapping[str, object]
    severity: str
    id: str | None

    def at(self, otherwise: datetime) -> datetime:
        """Return the time that the server states, or `otherwise` if it is unreadable."""
        try:
            at = datetime.fromisoformat(self.timestamp)
            return otherwise if at.tzinfo is None else at.astimezone(UTC)
        except (ValueError, OverflowError):
            return otherwise


def is_channel(name: str) -> bool:
    return len(name) <= MAX_CHANNEL_LENGTH and _NAME.fullmatch(name) is not None


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern for several channels."""
    return name == ALL or (len(name) <= MAX_CHANNEL_LENGTH and _FAMILY.fullmatch(name) is not None)


def filter_in(params: Raw | UnsetType) -> EventFilter:
    """Decode the filter of a subscription.

    Invalid channel names are kept. Raises MalformedMessage.
    """
    found = _read(params, _EventSubscribeParams, "a subscription")
    if not found.channels:
        raise MalformedMessage("channels names at least one channel", INVALID_PARAMS)
    if len(found.channels) > MAX_CHANNELS:
        raise MalformedMessage(f"at most {MAX_CHANNELS} channels at once", EXHAUSTED)
    if any(len(name) > MAX_CHANNEL_LENGTH for name in found.channels):
        reason = f"a channel has at most {MAX_CHANNEL_LENGTH} characters"
        raise MalformedMessage(reason, INVALID_PARAMS)
    least = None if found.filter is None else found.filter.min_severity
    if least is not None and least not in Severity:
        known = ", ".join(Severity)
        raise MalformedMessage(f"min_severity is one of {known}", INVALID_PARAMS)
    severity = Severity.DEBUG if least is None else Severity(least)
    return EventFilter(tuple(dict.fromkeys(found.channels)), severity)


def named_in(params: Raw | UnsetType) -> str:
    """Decode which subscription to end. Raises MalformedMessage."""
    named = {} if params is UNSET else jsonrpc.decode_members(params)
    found = jsonrpc.decode_text(named.get("subscription_id"))
    if found is None:
        raise MalformedMessage("subscription_id is missing", INVALID_PARAMS)
    return found


def build_subscribe_result(
    subscription: str, found: Sequence[str], unsupported: Sequence[str]
) -> dict[str, object]:
    """Build the result of a subscription."""
    return {
        "subscribed": list(found),
        "unsupported": list(unsupported),
        "subscription_id": subscription,
    }


def subscribed_in(result: Raw | UnsetType) -> tuple[str, tuple[str, ...]]:
    """Decode a server's answer: its subscription id and the channels. Raises MalformedMessage."""
    found = _read(result, _EventSubscribeResult, "the answer to a subscription")
    if not 0 < len(found.subscription_id) <= MAX_ID_LENGTH:
        raise MalformedMessage(f"a subscription_id has 1 to {MAX_ID_LENGTH} characters")
    named = dict.fromkeys(name for name in found.subscribed if is_channel(name))
    return found.subscription_id, tuple(named)[:MAX_FOUND]


def event_in(params: Raw | UnsetType) -> ServerEvent:
    """Decode an event of a server. Raises MalformedMessage."""
    if params is not UNSET and jsonrpc.excess_reason(bytes(params), MAX_DEPTH):
        raise MalformedMessage("an event is less deep", INVALID_PARAMS)
    found = _read(params, _EventNotification, "an event")
    named = found.id if found.id is not None else found.event_id
    if not is_channel(found.channel) or (named is not None and not 0 < len(named) <= MAX_ID_LENGTH):
        raise MalformedMessage("an event has a channel and a short id", INVALID_PARAMS)
    return ServerEvent(
        found.subscription_id,
        found.channel,
        found.timestamp,
        found.data,
        found.severity,
        named,
    )


def params_of(event: GatewayEvent, subscription: str) -> dict[str, object]:
    """Build an event in the form of MGP §13.3, with id and severity.

    An event of a server also names the server.
    """
    said: dict[str, object] = {
        "subscription_id": subscription,
        "channel": event.channel,
        "timestamp": stamp(event.at),
        "severity": event.severity,
        "id": event.id,
        "data": event.data,
    }
    return {**said, "server_id": event.source} if event.source else said


def notice_of(event: GatewayEvent, subscription: str) -> Frame:
    return jsonrpc.make_notification(NOTICE, params_of(event, subscription))


def _read[Shape](params: Raw | UnsetType, shape: type[Shape], what: str) -> Shape:
    if params is UNSET or len(params) > MOST_BYTES:
        raise MalformedMessage(f"{what} has at most {MOST_BYTES} bytes", INVALID_PARAMS)
    try:
        return msgspec.json.decode(params, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"{what} is misshapen: {error}", INVALID_PARAMS) from None


_ORDER: Final = {severity: place for place, severity in enumerate(Severity)}
_ALSO: Final[Mapping[str, Severity]] = {
    "notice": Severity.INFO,
    "warn": Severity.WARNING,
    "alert": Severity.CRITICAL,
    "emergency": Severity.CRITICAL,
    "fatal": Severity.CRITICAL,
}
"""Other names of severities: the levels of MCP logging and of common libraries."""


def severity_of(text: str) -> Severity:
    """Return the severity for the term that a server uses."""
    named = text.casefold()
    return Severity(named) if named in Severity else _ALSO.get(named, Severity.INFO)


def is_enough(severity: Severity, min_severity: Severity) -> bool:
    """Whether a severity reaches the minimum."""
    return _ORDER[severity] >= _ORDER[min_severity]


def is_channel_match(pattern: str, channel: str) -> bool:
    """Whether a channel matches a name or pattern."""
    if pattern in (ALL, channel):
        return True
    return is_pattern(pattern) and channel.startswith(pattern[:-1])


def is_channel_wanted(event_filter: EventFilter, channel: str) -> bool:
    return any(is_channel_match(pattern, channel) for pattern in event_filter.channels)


def resolve_channels(
    event_filter: EventFilter, known: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...], EventFilter]:
    """Return the wanted channels that exist, the names without a channel, and the filter from now
    on. The filter keeps a pattern, since matching channels may appear later.
    """
    there = dict.fromkeys(known)
    found = [channel for channel in there if is_channel_wanted(event_filter, channel)]
    missing = [
        name
        for name in event_filter.channels
        if not any(is_channel_match(name, each) for each in found)
    ]
    kept = [name for name in event_filter.channels if name not in missing or is_pattern(name)]
    return tuple(sorted(found)), tuple(missing), EventFilter(tuple(kept), event_filter.min_severity)


def could_be(wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are valid channels or patterns."""
    return tuple(name for name in wanted if is_channel(name) or is_pattern(name))


def id_of(event: ServerEvent) -> str:
    """Return the id of an event among those of its server. (D-99)"""
    if event.id is not None:
        return event.id
    whole = [event.channel, event.timestamp, event.data]
    return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()[:32]


class SeenEvents:
    """Remembers which events have arrived. The oldest are dropped."""

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._ids: dict[tuple[str, str], None] = {}

    def is_new(self, event: GatewayEvent) -> bool:
        """Remember an event, and return whether it is new."""
        name = (event.source, event.id)
        if name in self._ids:
            return False
        self._ids[name] = None
        if len(self._ids) > self._maximum:
            del self._ids[next(iter(self._ids))]
        return True


MAX_WANTED: Final = 256
MAX_PER_PARTY: Final = 64


class ChannelInterest[Who: Hashable]:
    """Names of channels and patterns, and who wants them."""

    def __init__(self, maximum: int = MAX_WANTED, most_of_party: int = MAX_PER_PARTY) -> None:
        self._maximum = maximum
        self._most_of_party = most_of_party
        self._by_name: dict[str, dict[Who, None]] = {}
        # The principal that first wanted each name, and the number of names of each principal.
        self._first: dict[str, str] = {}
        self._counts_by_party: Counter[str] = Counter()

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._by_name))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def of(self, name: str) -> tuple[Who, ...]:
        """Return all who want a name."""
        return tuple(self._by_name.get(name, ()))

    def add(self, names: Iterable[str], who: Who, party: str) -> tuple[str, ...]:
        """Add names for a subscriber. Returns those that the limits admit."""
        return tuple(name for name in names if self._add(name, who, party))

    def _add(self, name: str, who: Who, party: str) -> bool:
        if name not in self._by_name:
            if (
                len(self._by_name) >= self._maximum
                or self._counts_by_party[party] >= self._most_of_party
            ):
                return False
            self._by_name[name] = {}
            self._first[name] = party
            self._counts_by_party[party] += 1
        self._by_name[name][who] = None
        return True

    def drop(self, who: Who) -> tuple[str, ...]:
        """Remove a subscriber. Returns the names that have no subscriber any more."""
        left: list[str] = []
        for name, wanting in list(self._by_name.items()):
            if who not in wanting:
                continue
            del wanting[who]
            if not wanting:
                del self._by_name[name]
                self._forget(self._first.pop(name))
                left.append(name)
        return tuple(left)

    def _forget(self, party: str) -> None:
        self._counts_by_party[party] -= 1
        if self._counts_by_party[party] <= 0:
            del self._counts_by_party[party]
