"""What a node says of itself to the others: who it is, that it lives, and what it alone runs.

A node's id is its name and an epoch: a number that nobody can guess, another one for each start.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from comity.wire.errors import MalformedMessage

EPOCH_BYTES: Final = 8
SECRET_BYTES: Final = 16
_SESSION: Final = re.compile(rf"([0-9a-f]{{{2 * EPOCH_BYTES}}})[0-9a-f]{{{2 * SECRET_BYTES}}}")
_NOT_IN_A_SUBJECT: Final = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Node:
    """One gateway of several, from its start to its end."""

    name: str
    epoch: str

    @property
    def id(self) -> str:
        return f"{self.name}-{self.epoch}"

    def session_id(self, secret: bytes) -> str:
        """A name for a session that tells the other nodes where it is, and strangers nothing."""
        return self.epoch + secret.hex()


def new_node(name: str, secret: bytes) -> Node:
    """A node of that name that starts now; whatever a subject cannot hold becomes a dash."""
    plain = _NOT_IN_A_SUBJECT.sub("-", name)[:32].strip("-") or "node"
    return Node(plain, secret.hex())


def epoch_in(session_id: str) -> str | None:
    """The epoch of the node at which a session is; None where no node has given such a name."""
    found = _SESSION.fullmatch(session_id)
    return None if found is None else found.group(1)


class Beat(msgspec.Struct, frozen=True):
    """One sign of life."""

    name: str
    epoch: str
    # Whether it is the last one.
    leaves: bool = False
    # Whether the others are to give a sign of theirs at once.
    asks: bool = False
    # The fence of each server that it alone may run.
    runs: Mapping[str, int] = {}


_decoder = msgspec.msgpack.Decoder(Beat)
_encoder = msgspec.msgpack.Encoder()


def encode(beat: Beat) -> bytes:
    return _encoder.encode(beat)


def decode(data: bytes) -> Beat:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"no sign of life of a node: {error}") from None
