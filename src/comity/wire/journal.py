"""The journal as it is kept and handed to others: entries, checkpoints, sealed segments."""

from datetime import datetime
from typing import NamedTuple

from comity.wire.audit import Event


class Line(NamedTuple):
    """One entry as it is kept. All but the node, the number and the hash repeat the body."""

    node: str
    seq: int
    at: datetime
    trace: str
    call: str
    type: str
    actor: str
    server: str
    tool: str
    result: str
    body: bytes
    hash: bytes


class Checkpoint(NamedTuple):
    """A node's signed word for how far its chain had come, and to what hash.

    `key` is the public key, as hexadecimal digits.
    """

    node: str
    seq: int
    hash: bytes
    at: datetime
    key: str
    signature: bytes = b""


class Segment(NamedTuple):
    """Entries that were sealed and may be gone: which, to what hash they led, and since when.

    `before` is the hash of the entry before the first.
    """

    node: str
    first: int
    last: int
    before: bytes
    hash: bytes
    sealed_at: datetime


def line_of(event: Event, node: str, seq: int, body: bytes, linked: bytes) -> Line:
    """An entry, with what it is found by."""
    return Line(
        *(node, seq, event.at, event.trace, event.call, event.type),
        *(event.actor, event.server, event.tool, event.result, body, linked),
    )
