"""What nodes say to each other about events: what happened, and what is wanted to be heard.

Only nodes speak on these subjects: what is said here is believed.
"""

from datetime import datetime
from typing import Any

import msgspec

from comity.wire.errors import MalformedMessage
from comity.wire.events import Event, Severity


class Happened(msgspec.Struct, frozen=True, array_like=True, tag="happened"):
    """An event, as it is known at the node that tells of it."""

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

    def event(self) -> Event:
        return Event(
            *(self.id, self.channel, self.at, self.severity, self.data),
            *(self.server, self.tool, self.party, self.source),
        )


class Wants(msgspec.Struct, frozen=True, array_like=True, tag="wants"):
    """All that anybody follows at one node: channels and families."""

    node: str
    names: tuple[str, ...]


class Has(msgspec.Struct, frozen=True, array_like=True, tag="has"):
    """The channels of what is wanted that are told by servers which one node alone runs."""

    node: str
    found: dict[str, tuple[str, ...]]


type Spanned = Happened | Wants | Has

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Happened | Wants | Has)


def happened(node: str, event: Event) -> Happened:
    return Happened(
        *(node, event.id, event.channel, event.at, event.severity, dict(event.data)),
        *(event.server, event.tool, event.party, event.source),
    )


def encode(said: Spanned) -> bytes:
    """Raises MalformedMessage where an event holds what cannot be said to another node."""
    try:
        return _encoder.encode(said)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise MalformedMessage(f"an event for no other node: {error}") from None


def decode(data: bytes) -> Spanned:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"a node says what no node says: {error}") from None
