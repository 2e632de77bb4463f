"""A journal as it is handed to others: JSON lines that anybody can verify without Comity.

First a header, then the chain of each node in its order, with its signed checkpoints and its sealed
segments where they belong, and at the end a line that says so. What a hash is taken of stands in
`body`, letter by letter. Checkpoints that are kept outside are lines of the same kind.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Final

import msgspec

from comity.wire.audit import stamp
from comity.wire.errors import MalformedMessage
from comity.wire.journal import Checkpoint, Line, Segment

VERSION: Final = 1
LINE_BYTES: Final = 16 * 1024 * 1024

type Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
type Node = Annotated[str, msgspec.Meta(max_length=4096)]


class CheckpointRow(msgspec.Struct, gc=False):
    node: Node
    seq: Number
    hash: str
    at: str
    key: str
    signature: str


class SegmentRow(msgspec.Struct, gc=False):
    node: Node
    first: Number
    last: Number
    before: str
    hash: str
    sealed_at: str


class Row(msgspec.Struct, gc=False):
    """Any line of an export. An entry unless one of the last four is there."""

    node: Node = ""
    seq: Number = 0
    at: str = ""
    trace: str = ""
    call: str = ""
    type: str = ""
    actor: str = ""
    server: str = ""
    tool: str = ""
    result: str = ""
    body: str = ""
    hash: str = ""
    checkpoint: CheckpointRow | None = None
    segment: SegmentRow | None = None
    comity_journal: int | None = None
    exported_at: str = ""
    end: int | None = None


class _Entry(msgspec.Struct):
    node: str
    seq: int
    at: str
    trace: str
    call: str
    type: str
    actor: str
    server: str
    tool: str
    result: str
    body: str
    hash: str


_rows: Final = msgspec.json.Decoder(Row)
_encode: Final = msgspec.json.Encoder().encode


def row_of(line: bytes) -> Row:
    """One line as it was written. Raises MalformedMessage."""
    try:
        return _rows.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"no line of an exported journal: {error}") from None


def header(at: datetime, nodes: Iterable[str]) -> bytes:
    said = {"comity_journal": VERSION, "exported_at": stamp(at), "nodes": list(nodes)}
    return _encode(said)


def entry(line: Line) -> bytes:
    # A body that is no UTF-8 was not written by us; what stands here then is altered, and shown so.
    body = line.body.decode("utf-8", "replace")
    return _encode(_Entry(line.node, line.seq, stamp(line.at), *line[3:10], body, line.hash.hex()))


def checkpoint(signed: Checkpoint) -> bytes:
    row = CheckpointRow(
        *(signed.node, signed.seq, signed.hash.hex(), stamp(signed.at)),
        *(signed.key, signed.signature.hex()),
    )
    return _encode({"checkpoint": row})


def segment(sealed: Segment) -> bytes:
    row = SegmentRow(
        *(sealed.node, sealed.first, sealed.last, sealed.before.hex()),
        *(sealed.hash.hex(), stamp(sealed.sealed_at)),
    )
    return _encode({"segment": row})


def end(entries: int) -> bytes:
    """The last line: how many entries there were."""
    return _encode({"end": entries})


def checkpoint_of(row: CheckpointRow) -> Checkpoint:
    """Raises MalformedMessage."""
    try:
        return Checkpoint(
            *(row.node, row.seq, bytes.fromhex(row.hash), datetime.fromisoformat(row.at)),
            *(row.key, bytes.fromhex(row.signature)),
        )
    except ValueError:
        raise MalformedMessage("a checkpoint that cannot be read") from None


def segment_of(row: SegmentRow) -> Segment:
    """Raises MalformedMessage."""
    try:
        return Segment(
            *(row.node, row.first, row.last, bytes.fromhex(row.before)),
            *(bytes.fromhex(row.hash), datetime.fromisoformat(row.sealed_at)),
        )
    except ValueError:
        raise MalformedMessage("a sealed segment that cannot be read") from None
