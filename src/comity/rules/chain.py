"""The chain of a journal: each entry's hash holds the one before it, and a signature holds both.

Rule 1: a hash is taken of the hash before, the node, the number and the body as it stands, each
        with its length known, so that no two different entries are the same bytes.
Rule 2: numbers have no gaps. An entry that was altered, removed, put in or moved breaks the chain
        where it stands; a tail that was cut off is missed by a checkpoint that is kept elsewhere.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from comity.rules import keeping
from comity.wire.audit import Type, as_uuid, event_of, stamp
from comity.wire.errors import MalformedMessage
from comity.wire.journal import Checkpoint, Line, line_of

GENESIS: Final = bytes(32)
_PURPOSE: Final = b"comity checkpoint 1\n"
"""Said first in what is signed, so that no signature can be taken for one of something else."""

FOUND_BY: Final = 256
"""How many characters of a word an entry is found by; an index has no room for much more."""

OUTCOMES: Final = (
    Type.TOOL_EXECUTED,
    Type.TOOL_BLOCKED,
    Type.VALIDATION_FAILED,
    Type.CODE_REJECTED,
    Type.OUTCOME_UNKNOWN,
)
"""What says how a call ended that was intended."""


def link(previous: bytes, node: bytes, seq: int, body: bytes) -> bytes:
    """The hash of one entry."""
    head = previous + len(node).to_bytes(2) + node + seq.to_bytes(8)
    return hashlib.sha256(head + body).digest()


def signed_part(checkpoint: Checkpoint) -> bytes:
    """The bytes that a signature is over."""
    said = [
        checkpoint.node,
        checkpoint.seq,
        checkpoint.hash.hex(),
        stamp(checkpoint.at),
        checkpoint.key,
    ]
    return _PURPOSE + msgspec.json.encode(said)


def found_by(text: str) -> str:
    """A word as entries are found by it: shortened, and without what no database takes."""
    return keeping.words(text[:FOUND_BY])


def kept(line: Line) -> Line:
    """An entry as every store keeps it. Its body stays as it is, byte by byte."""
    words = line[3:10]  # from the trace to the result
    joined = "".join(words)
    # Nearly all are plain, and this is asked of every entry: so it is one look at all of them.
    if len(joined) <= FOUND_BY and joined.isascii() and joined.isprintable():
        return line
    trace, call, type, actor, server, tool, result = map(found_by, words)
    return line._replace(
        trace=trace, call=call, type=type, actor=actor, server=server, tool=tool, result=result
    )


def follow(lines: Sequence[Line], node: str, seq: int) -> bool:
    """Whether these are the next entries of that chain, after the one of that number."""
    numbers = [line.seq for line in lines]
    return {line.node for line in lines} == {node} and numbers == [
        *range(seq + 1, seq + 1 + len(lines))
    ]


def agrees(line: Line) -> bool:
    """Whether an entry is found by what its body says, and nothing else."""
    try:
        said = event_of(line.body)
    except MalformedMessage:
        return False
    told = kept(line_of(said, line.node, line.seq, line.body, line.hash))
    return (
        stamp(told.at) == stamp(line.at)
        and as_uuid(told.trace) == as_uuid(line.trace)
        and told[4:] == line[4:]
    )
