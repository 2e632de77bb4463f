"""MCP Events: how they are listed, subscribed to, polled and told, in the words of the draft.

The draft is that of MCP's working group for triggers and events; what of it is taken, and what is
ours, is said in decision 0042. An event's name here is what MGP calls its channel; a family of
channels (`tool.*`) may stand in its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec import Raw, Struct

from comity.wire import jsonrpc
from comity.wire.audit import stamp
from comity.wire.errors import INVALID_PARAMS, MODE_UNSUPPORTED, MalformedMessage
from comity.wire.events import Channel, Event, Severity, is_channel, is_pattern

LIST: Final = "events/list"
SUBSCRIBE: Final = "events/subscribe"
UNSUBSCRIBE: Final = "events/unsubscribe"
POLL: Final = "events/poll"
CAPABILITY: Final[Mapping[str, object]] = {"listChanged": False}
WEBHOOK: Final = "webhook"
MODES: Final = (WEBHOOK, "poll")
OURS: Final = "dev.comity/"
"""How the members of `_meta` begin that are ours: the draft has no severity, and no server."""

LONGEST_URL: Final = 2048
LONGEST_CURSOR: Final = 128
MOST_EVENTS: Final = 100
MOST_MS: Final = 10**12
NEXT_POLL_MS: Final = 5_000
_INPUT: Final[Mapping[str, object]] = {
    "type": "object",
    "properties": {
        "min_severity": {
            "enum": list(Severity),
            "description": "leave out what matters less than this",
        }
    },
    "additionalProperties": False,
}
_PAYLOAD: Final[Mapping[str, object]] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Named:
    """What is listened for: a channel, a family or all, and how much it has to matter."""

    name: str
    least: Severity = Severity.DEBUG

    @property
    def arguments(self) -> dict[str, object]:
        """As they are told and compared: what changes nothing is not there."""
        return {} if self.least is Severity.DEBUG else {"min_severity": self.least}


@dataclass(frozen=True, slots=True, repr=False)
class Subscribing:
    """What is to be posted where. `secret` is None where the gateway is to draw one.

    `lasts` is how long it is wanted; None where nothing was said, and where no end is wanted.
    """

    named: Named
    url: str
    secret: str | None
    lasts: timedelta | None

    def __repr__(self) -> str:
        return f"Subscribing({self.named!r})"


@dataclass(frozen=True, slots=True)
class Polling:
    """What is asked for, from which position on; None is from now on."""

    named: Named
    cursor: str | None
    most: int


class _Arguments(Struct, forbid_unknown_fields=True):
    min_severity: Severity | None = None


class _Listening(Struct):
    name: str
    arguments: _Arguments | None = None


class _Place(Struct):
    url: str
    mode: str = WEBHOOK
    secret: str | None = None


class _Subscribing(_Listening, kw_only=True, rename={"ttl_ms": "ttlMs"}):
    delivery: _Place
    ttl_ms: int | None = None


class _Polling(_Listening, rename={"most": "maxEvents"}):
    cursor: str | None = None
    most: int = MOST_EVENTS


def subscribing(params: Mapping[str, Raw]) -> Subscribing:
    """What `events/subscribe` asks for. Raises MalformedMessage."""
    said = _read(params, _Subscribing)
    if said.delivery.mode != WEBHOOK:
        because = "events/subscribe is for webhooks; to poll, use events/poll"
        raise MalformedMessage(because, MODE_UNSUPPORTED)
    if said.ttl_ms is not None and said.ttl_ms <= 0:
        raise MalformedMessage("ttlMs must be a number of milliseconds, or null", INVALID_PARAMS)
    lasts = None if said.ttl_ms is None else timedelta(milliseconds=min(said.ttl_ms, MOST_MS))
    return Subscribing(_named(said), _url(said.delivery.url), said.delivery.secret, lasts)


def unsubscribing(params: Mapping[str, Raw]) -> tuple[Named, str]:
    """What is listened for, and where it was posted. Raises MalformedMessage."""
    said = _read(params, _Subscribing)
    return _named(said), _url(said.delivery.url)


def polling(params: Mapping[str, Raw]) -> Polling:
    """What `events/poll` asks for. Raises MalformedMessage."""
    said = _read(params, _Polling)
    if said.cursor is not None and len(said.cursor) > LONGEST_CURSOR:
        raise MalformedMessage("this cursor is none of ours", INVALID_PARAMS)
    return Polling(_named(said), said.cursor, min(max(said.most, 1), MOST_EVENTS))


def listed(channel: Channel) -> dict[str, object]:
    """A channel as `events/list` has it."""
    return {
        "name": channel.name,
        "description": channel.description,
        "delivery": list(MODES),
        "inputSchema": _INPUT,
        "payloadSchema": channel.schema or _PAYLOAD,
        "_meta": {f"{OURS}severity": channel.severity},
    }


def occurrence(event: Event, cursor: str | None = None) -> dict[str, object]:
    """An event as it is told in every mode, and what is posted of it."""
    ours: dict[str, object] = {f"{OURS}severity": event.severity}
    if event.source:
        ours[f"{OURS}server"] = event.source
    return {
        "eventId": event.id,
        "name": event.channel,
        "timestamp": stamp(event.at),
        "data": event.data,
        "cursor": cursor,
        "_meta": ours,
    }


def subscribed(id: str, until: datetime | None, status: Mapping[str, object]) -> dict[str, object]:
    """The answer to a subscription; there is no position to take up again, so no cursor."""
    return {
        "id": id,
        "refreshBefore": None if until is None else stamp(until),
        "cursor": None,
        "truncated": False,
        **({"deliveryStatus": status} if status else {}),
    }


def polled(
    found: Sequence[Mapping[str, object]], cursor: str, *, is_truncated: bool, has_more: bool
) -> dict[str, object]:
    """The answer to a poll."""
    return {
        "events": list(found),
        "cursor": cursor,
        "truncated": is_truncated,
        "hasMore": has_more,
        "nextPollMs": NEXT_POLL_MS,
    }


def _named(said: _Listening) -> Named:
    if not (is_channel(said.name) or is_pattern(said.name)):
        because = "name must be a channel as tool.completed, a family as tool.*, or *"
        raise MalformedMessage(because, INVALID_PARAMS)
    least = None if said.arguments is None else said.arguments.min_severity
    return Named(said.name, least or Severity.DEBUG)


def _url(text: str) -> str:
    if not 0 < len(text) <= LONGEST_URL:
        because = f"delivery.url must have 1 to {LONGEST_URL} characters"
        raise MalformedMessage(because, INVALID_PARAMS)
    return text


def _read[T](params: Mapping[str, Raw], kind: type[T]) -> T:
    known = {name: jsonrpc.value(raw) for name, raw in params.items() if name != "_meta"}
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as error:
        raise MalformedMessage(f"{error}"[:300], INVALID_PARAMS) from None
