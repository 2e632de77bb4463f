"""What nodes say to each other about a topic that has members at several of them.

Only nodes speak on these subjects: what is said here was judged where it came in.
"""

import hashlib
from functools import lru_cache

import msgspec

from comity.wire.errors import MalformedMessage


class There(msgspec.Struct, frozen=True, array_like=True):
    """A member at another node; of two stamps of one party the greater is the newer."""

    party: str
    capabilities: tuple[str, ...]
    stamp: str


class Passed(msgspec.Struct, frozen=True, array_like=True, tag="said"):
    """An envelope: `number` counts what this node has said in the topic, so that a gap is seen."""

    topic: str
    node: str
    number: int
    id: str
    sender: str
    kind: str
    to: tuple[str, ...]
    correlation_id: str
    text: bytes


class Came(msgspec.Struct, frozen=True, array_like=True, tag="came"):
    topic: str
    node: str
    who: There


class Went(msgspec.Struct, frozen=True, array_like=True, tag="went"):
    topic: str
    node: str
    party: str


class Roll(msgspec.Struct, frozen=True, array_like=True, tag="roll"):
    """All members at one node, and how much it has said there."""

    topic: str
    node: str
    number: int
    members: tuple[There, ...]


class Called(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A node wants to know who is in a topic elsewhere."""

    topic: str
    node: str


type Spanned = Passed | Came | Went | Roll | Called

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Passed | Came | Went | Roll | Called)


def encode(spanned: Spanned) -> bytes:
    return _encoder.encode(spanned)


def decode(data: bytes) -> Spanned:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"no word of a node about a topic: {error}") from None


@lru_cache(16_384)
def part(topic: str) -> str:
    """A topic as a part of a subject, which holds no dots."""
    return hashlib.blake2b(topic.encode(), digest_size=12).hexdigest()
