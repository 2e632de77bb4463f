"""The hash chain of the audit log: records, checkpoints and segments."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec

from comity.audit.events import AuditEvent, AuditType, event_of
from comity.errors import MalformedMessage
from comity.storage import values
from comity.toolkit.text import as_uuid, format_timestamp


class AuditRecord(NamedTuple):
    """One stored entry. All but the node, the number and the hash repeat the body."""

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


class ChainCheckpoint(NamedTuple):
    """A signed statement of a node: the number and the hash of the last entry of its chain.

    `key` is the public key, as hexadecimal digits.
    """

    node: str
    seq: int
    hash: bytes
    at: datetime
    key: str
    signature: bytes = b""


class ChainSegment(NamedTuple):
    """Entries that were sealed and may be removed: their numbers, last hash and time.

    `before` is the hash of the entry before the first.
    """

    node: str
    first: int
    last: int
    before: bytes
    hash: bytes
    sealed_at: datetime


def line_of(event: AuditEvent, node: str, seq: int, body: bytes, linked: bytes) -> AuditRecord:
    """The record of an event, with the columns that it is found by."""
    # `AuditRecord(...)` runs a Python function, and this runs for every entry.
    return _new_record(
        (
            node,
            seq,
            event.at,
            event.trace,
            event.call,
            event.type,
            event.actor,
            event.server,
            event.tool,
            event.result,
            body,
            linked,
        )
    )


_new_record: Final[Callable[[tuple[object, ...]], AuditRecord]] = partial(
    tuple.__new__,  # pyright: ignore[reportUnknownMemberType]  # it takes any tuple
    AuditRecord,
)
GENESIS: Final = bytes(32)
_PURPOSE: Final = b"comity checkpoint 1\n"
"""The prefix of what is signed, so that a signature is valid for nothing else."""

MAX_INDEXED_LENGTH: Final = 256
"""How many characters of a word are indexed. An index cannot hold much more."""

OUTCOMES: Final = (
    AuditType.TOOL_EXECUTED,
    AuditType.TOOL_BLOCKED,
    AuditType.VALIDATION_FAILED,
    AuditType.CODE_REJECTED,
    AuditType.OUTCOME_UNKNOWN,
)
"""The types that report the outcome of an intended call."""


def entry_hash(previous: bytes, node: bytes, seq: int, body: bytes) -> bytes:
    """The hash of one entry."""
    return hashlib.sha256(
        b"%b%b%b%b%b" % (previous, len(node).to_bytes(2), node, seq.to_bytes(8), body)
    ).digest()


def signed_part(checkpoint: ChainCheckpoint) -> bytes:
    """The bytes that are signed."""
    said = [
        checkpoint.node,
        checkpoint.seq,
        checkpoint.hash.hex(),
        format_timestamp(checkpoint.at),
        checkpoint.key,
    ]
    return _PURPOSE + msgspec.json.encode(said)


def index_value(text: str) -> str:
    """A word as it is indexed: shortened, without characters that a database refuses."""
    return values.clean_words(text[:MAX_INDEXED_LENGTH])


def to_stored_record(record: AuditRecord) -> AuditRecord:
    """A record as a store holds it. Its body stays the same, byte by byte."""
    words = record[3:10]  # from the trace to the result
    joined = "".join(words)
    # This runs for every entry, and nearly all are plain: so one check covers all words.
    if len(joined) <= MAX_INDEXED_LENGTH and joined.isascii() and joined.isprintable():
        return record
    trace, call, type, actor, server, tool, result = map(index_value, words)
    return record._replace(
        trace=trace, call=call, type=type, actor=actor, server=server, tool=tool, result=result
    )


def is_next_in_chain(records: Sequence[AuditRecord], node: str, seq: int) -> bool:
    """Whether these are the entries of the chain that come after the number `seq`."""
    numbers = [line.seq for line in records]
    return {line.node for line in records} == {node} and numbers == [
        *range(seq + 1, seq + 1 + len(records))
    ]


def has_matching_body(record: AuditRecord) -> bool:
    """Whether the columns of an entry repeat its body."""
    try:
        said = event_of(record.body)
    except MalformedMessage:
        return False
    told = to_stored_record(line_of(said, record.node, record.seq, record.body, record.hash))
    return (
        format_timestamp(told.at) == format_timestamp(record.at)
        and as_uuid(told.trace) == as_uuid(record.trace)
        and told[4:] == record[4:]
    )


PAGE: Final = 500


class ChainHead(NamedTuple):
    """The end of a chain. `doubtful` are the bodies of intents without a known outcome."""

    node: str
    seq: int
    hash: bytes
    doubtful: tuple[bytes, ...] = ()


type AuditPlace = tuple[datetime, str, int]
"""The `at`, `node` and `seq` of an entry, by which all entries are in order."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries to find. An empty member matches all."""

    trace: str = ""
    call: str = ""
    actor: str = ""
    server: str = ""
    tool: str = ""
    types: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    newest_first: bool = False
    after: AuditPlace | None = None
    """The last entry of the page before."""


class AuditStore(Protocol):
    """The chains of all nodes, in one store."""

    async def open(self, node: str) -> ChainHead:
        """Open a node's chain, or one beside it. Reports doubtful intents once."""
        ...

    async def append(self, records: Sequence[AuditRecord]) -> None:
        """Add to the open chain. Raises Misconfigured if another process added to it."""
        ...

    async def flush(self) -> None:
        """Write the entries that the writer holds in memory. Its own readers do that first."""
        ...

    async def add_checkpoint(self, checkpoint: ChainCheckpoint) -> None: ...

    async def page(self, node: str, after: int = 0, limit: int = PAGE) -> Sequence[AuditRecord]:
        """The entries of one chain after a number, in order."""
        ...

    async def find(self, criteria: AuditFilter, limit: int = PAGE) -> Sequence[AuditRecord]:
        """Entries of all chains by time, the oldest first unless the filter says otherwise."""
        ...

    async def nodes(self) -> Sequence[str]: ...
    async def checkpoints(self, node: str, after: int = 0) -> Sequence[ChainCheckpoint]: ...
    async def segments(self, node: str) -> Sequence[ChainSegment]: ...

    async def drop(self, segment: ChainSegment) -> None:
        """Remove the entries of a sealed segment, and keep the record of the segment."""
        ...

    async def close(self) -> None: ...


class CheckpointSigner(Protocol):
    """Signs checkpoints of a node. `key` is the public key, as hexadecimal digits."""

    @property
    def key(self) -> str: ...
    def sign(self, data: bytes) -> bytes: ...


class CheckpointMirror(Protocol):
    """A place outside the store that gets a copy of each checkpoint.

    Its methods raise OSError or Unavailable.
    """

    async def write(self, checkpoint: ChainCheckpoint) -> None: ...
    async def close(self) -> None: ...


class LastCheckpointStore(CheckpointMirror, Protocol):
    """Holds the last checkpoint of each chain, apart from the store and its writers."""

    def read(self, node: str) -> ChainCheckpoint | None:
        """The last checkpoint of this chain; None if there is none."""
        ...

    def set_aside(self, node: str) -> str:
        """Keep the checkpoint for good, because the chain contradicts it. Gives its place."""
        ...


class ChainWriter(Protocol):
    """Writes one node's chain. No other process adds to it while this one holds it."""

    async def open(self, node: str) -> ChainHead: ...
    async def append(self, records: Sequence[AuditRecord]) -> None: ...
    async def flush(self) -> None: ...
    async def close(self) -> None: ...
