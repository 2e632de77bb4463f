"""What nodes say to each other when one carries a request to another: pieces of numbered streams.

Rule 1: a stream is named by who opened it and its number. Each side numbers what it says on it,
        from 0 and without gaps; what is said of a stream (credit, sums) bears no number of its own.
Rule 2: no piece is longer than PIECE_BYTES, so that every bus takes it whole.
Rule 3: what cannot be read is nobody's, and is refused as a whole.
Rule 4: no credential goes from node to node. Who sent a request is told by its actor.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import IntEnum
from typing import Final, cast

import msgspec

from comity.wire import errors
from comity.wire.errors import UPSTREAM_FAILED, Fault, MalformedMessage, Unavailable
from comity.wire.parties import Actor

PIECE_BYTES: Final = 256 * 1024
"""A quarter of what NATS takes as a rule; a stream has its turn among others that much sooner."""

_MOST_WORDS: Final = 2000
_FAULTS: Final = {
    fault.error_type: fault for fault in vars(errors).values() if isinstance(fault, Fault)
}


class Act(IntEnum):
    """What a piece does."""

    OPEN = 0
    """The one who opens: what is wanted, and as much of its body as fits."""
    SAY = 1
    """A piece of the body, or of the answer."""
    END = 2
    """The answer is whole."""
    FAIL = 3
    """There is no answer, or no more of it; `data` says why."""
    CANCEL = 4
    """The one who opened it wants no more."""
    CREDIT = 5
    """How many bytes of the answer were taken so far; as many more may be on their way."""
    SUMS = 6
    """How many pieces were sent on each stream that is open: whoever has other sums lost some."""


class Piece(msgspec.Struct, array_like=True, frozen=True):
    """One message between two nodes."""

    act: Act
    sender: str
    stream: int = 0
    # Whether the stream is one that the sender opened.
    is_own: bool = False
    number: int = 0
    # Whether more pieces belong to the same message.
    has_more: bool = False
    data: bytes = b""


class Opening(msgspec.Struct, array_like=True, frozen=True):
    """What is wanted of the other node: the kind of work, its head, its time."""

    what: str
    head: bytes
    seconds: float | None
    body: bytes


class Failure(msgspec.Struct, array_like=True, frozen=True):
    """Why there is no answer."""

    error_type: str
    because: str
    retry_after: float | None = None


class Sum(msgspec.Struct, array_like=True, frozen=True):
    """How much the sender has said on one stream."""

    stream: int
    is_own: bool
    sent: int


class RelayHead(msgspec.Struct, array_like=True, frozen=True):
    """A call to a server that another node runs, which was judged where it came in."""

    server: str
    headers: tuple[tuple[bytes, bytes], ...]
    party: str
    kind: str


class RequestHead(msgspec.Struct, array_like=True, frozen=True):
    """A request of a client's that came to the wrong node, without its body and its credentials."""

    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    client: tuple[str, int] | None
    # Who sent it, as the node has found out that the client came to.
    actor: Actor
    scheme: str = "http"


class ResponseHead(msgspec.Struct, array_like=True, frozen=True):
    """How the right node answers it; what follows is the body, in pieces."""

    status: int
    headers: list[tuple[bytes, bytes]]


def _plain(value: object) -> object:
    """The claims of an actor, which nobody may change."""
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, object]", value))
    raise NotImplementedError


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_piece = msgspec.msgpack.Decoder(Piece)
_opening = msgspec.msgpack.Decoder(Opening)
_failure = msgspec.msgpack.Decoder(Failure)
_sums = msgspec.msgpack.Decoder(list[Sum])
_relay_head = msgspec.msgpack.Decoder(RelayHead)
_request_head = msgspec.msgpack.Decoder(RequestHead)
_response_head = msgspec.msgpack.Decoder(ResponseHead)


def encode(said: Piece | Opening | list[Sum] | RelayHead | RequestHead | ResponseHead) -> bytes:
    return _encoder.encode(said)


def decode(data: bytes) -> Piece:
    return _read(_piece, data)


def opening(data: bytes) -> Opening:
    return _read(_opening, data)


def sums(data: bytes) -> list[Sum]:
    return _read(_sums, data)


def relay_head(data: bytes) -> RelayHead:
    return _read(_relay_head, data)


def request_head(data: bytes) -> RequestHead:
    return _read(_request_head, data)


def response_head(data: bytes) -> ResponseHead:
    return _read(_response_head, data)


def failure(error: Unavailable | MalformedMessage) -> bytes:
    after = error.retry_after if isinstance(error, Unavailable) else None
    seconds = None if after is None else after.total_seconds()
    return _encoder.encode(Failure(error.fault.error_type, str(error)[:_MOST_WORDS], seconds))


def unavailable(data: bytes) -> Unavailable:
    """The same failure on the other side; one of a kind that is not known here is a plain one."""
    told = _read(_failure, data)
    after = None if told.retry_after is None else timedelta(seconds=told.retry_after)
    return Unavailable(told.because, _FAULTS.get(told.error_type, UPSTREAM_FAILED), after)


def split(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """The pieces of a message, and whether more of them follow; of an empty one, one."""
    if len(data) <= PIECE_BYTES:
        yield data, False
        return
    whole = memoryview(data)
    for start in range(0, len(data), PIECE_BYTES):
        yield bytes(whole[start : start + PIECE_BYTES]), start + PIECE_BYTES < len(data)


def _read[T](decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError) as error:
        raise MalformedMessage(f"another node sent something else: {error}") from None
