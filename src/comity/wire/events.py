"""What happens, as it is subscribed to and told: MGP's events. (MGP §13.2, §13.3, D-27)

Read strictly: a subscription comes from a client and an event from a server, strangers both.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, UnsetType

from comity.wire import jsonrpc
from comity.wire.audit import stamp
from comity.wire.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame

SUBSCRIBE: Final = "mgp/events/subscribe"
UNSUBSCRIBE: Final = "mgp/events/unsubscribe"
NOTICE: Final = "notifications/mgp.event"
LISTENED: Final = "mgp.events"
"""By which name a stream of the modern era asks for events among its other notifications."""

ALL: Final = "*"
MOST_CHANNELS: Final = 64
LONGEST_CHANNEL: Final = 128
LONGEST_ID: Final = 128
MOST_BYTES: Final = 16 * 1024
"""What one event of a server may take; its subscribers get it as it is."""

DEEPEST: Final = 12
MOST_FOUND: Final = 256
"""Of how many channels a server's answer to a subscription is believed to speak."""

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)+", re.ASCII)
_FAMILY: Final = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*\.\*", re.ASCII)


class Severity(StrEnum):
    """How much it matters; the document names `warning` only. (D-27)"""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    `source` is the server that says so, and empty where the gateway knows it by itself: no server
    can speak with that name. `server` and `tool` are what it is about, `party` whose doing it is:
    by these it is decided who may hear of it.
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
class Channel:
    """One kind of event: how it is called, what it tells, and what its data looks like."""

    name: str
    description: str
    severity: Severity = Severity.INFO
    schema: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody wants to hear: channels, families (`tool.*`) or all (`*`)."""

    channels: tuple[str, ...]
    min_severity: Severity = Severity.DEBUG


class _Filter(Struct):
    min_severity: str | None = None


class _Subscribing(Struct):
    channels: list[str]
    filter: _Filter | None = None


class _Subscribed(Struct):
    subscription_id: str
    subscribed: list[str]


class _Told(Struct):
    subscription_id: str
    channel: str
    timestamp: str
    data: dict[str, Any]
    severity: str = Severity.INFO
    id: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """An event as a server told it."""

    subscription: str
    channel: str
    timestamp: str
    data: Mapping[str, object]
    severity: str
    id: str | None

    def at(self, otherwise: datetime) -> datetime:
        """When it says that it happened, where that can be read."""
        try:
            at = datetime.fromisoformat(self.timestamp)
            return otherwise if at.tzinfo is None else at.astimezone(UTC)
        except (ValueError, OverflowError):
            return otherwise


def is_channel(name: str) -> bool:
    return len(name) <= LONGEST_CHANNEL and _NAME.fullmatch(name) is not None


def is_pattern(name: str) -> bool:
    """Whether it stands for several channels."""
    return name == ALL or (len(name) <= LONGEST_CHANNEL and _FAMILY.fullmatch(name) is not None)


def wanted_in(params: Raw | UnsetType) -> Wanted:
    """What is subscribed to. Names that no channel can have are left in. Raises."""
    found = _read(params, _Subscribing, "a subscription")
    if not found.channels:
        raise MalformedMessage("channels names at least one channel", INVALID_PARAMS)
    if len(found.channels) > MOST_CHANNELS:
        raise MalformedMessage(f"at most {MOST_CHANNELS} channels at once", EXHAUSTED)
    if any(len(name) > LONGEST_CHANNEL for name in found.channels):
        because = f"a channel has at most {LONGEST_CHANNEL} characters"
        raise MalformedMessage(because, INVALID_PARAMS)
    least = None if found.filter is None else found.filter.min_severity
    if least is not None and least not in Severity:
        known = ", ".join(Severity)
        raise MalformedMessage(f"min_severity is one of {known}", INVALID_PARAMS)
    severity = Severity.DEBUG if least is None else Severity(least)
    return Wanted(tuple(dict.fromkeys(found.channels)), severity)


def named_in(params: Raw | UnsetType) -> str:
    """Which subscription is to end. Raises MalformedMessage."""
    named = {} if params is UNSET else jsonrpc.members(params)
    found = jsonrpc.text(named.get("subscription_id"))
    if found is None:
        raise MalformedMessage("subscription_id is missing", INVALID_PARAMS)
    return found


def subscribed(
    subscription: str, found: Sequence[str], unsupported: Sequence[str]
) -> dict[str, object]:
    """The answer to a subscription."""
    return {
        "subscribed": list(found),
        "unsupported": list(unsupported),
        "subscription_id": subscription,
    }


def subscribed_in(result: Raw | UnsetType) -> tuple[str, tuple[str, ...]]:
    """What a server answered: its name of the subscription, and the channels. Raises."""
    found = _read(result, _Subscribed, "the answer to a subscription")
    if not 0 < len(found.subscription_id) <= LONGEST_ID:
        raise MalformedMessage(f"a subscription_id has 1 to {LONGEST_ID} characters")
    named = dict.fromkeys(name for name in found.subscribed if is_channel(name))
    return found.subscription_id, tuple(named)[:MOST_FOUND]


def told_in(params: Raw | UnsetType) -> Told:
    """An event of a server's. Raises MalformedMessage."""
    if params is not UNSET and jsonrpc.excess(bytes(params), DEEPEST):
        raise MalformedMessage("an event is less deep", INVALID_PARAMS)
    found = _read(params, _Told, "an event")
    named = found.id if found.id is not None else found.event_id
    if not is_channel(found.channel) or (named is not None and not 0 < len(named) <= LONGEST_ID):
        raise MalformedMessage("an event has a channel and a short id", INVALID_PARAMS)
    return Told(
        *(found.subscription_id, found.channel, found.timestamp, found.data),
        *(found.severity, named),
    )


def params_of(event: Event, subscription: str) -> dict[str, object]:
    """An event as MGP §13.3 has it, with its id and severity; a server's names the server too."""
    said: dict[str, object] = {
        "subscription_id": subscription,
        "channel": event.channel,
        "timestamp": stamp(event.at),
        "severity": event.severity,
        "id": event.id,
        "data": event.data,
    }
    return {**said, "server_id": event.source} if event.source else said


def notice_of(event: Event, subscription: str) -> Frame:
    return jsonrpc.notification(NOTICE, params_of(event, subscription))


def _read[Shape](params: Raw | UnsetType, shape: type[Shape], what: str) -> Shape:
    if params is UNSET or len(params) > MOST_BYTES:
        raise MalformedMessage(f"{what} has at most {MOST_BYTES} bytes", INVALID_PARAMS)
    try:
        return msgspec.json.decode(params, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"{what} is misshapen: {error}", INVALID_PARAMS) from None
