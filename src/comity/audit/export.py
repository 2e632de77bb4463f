"""Reading, searching and exporting the audit log."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, NamedTuple, Protocol

import msgspec

from comity.audit.chain import AuditFilter, AuditRecord, AuditStore, ChainCheckpoint, ChainSegment
from comity.audit.outcome_search import OutcomePage, find_outcome
from comity.audit.timeline import asks_in
from comity.errors import NOTHING_HERE, MalformedMessage
from comity.telemetry.outcomes import OutcomeClass
from comity.toolkit.text import format_timestamp

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


class ExportRow(msgspec.Struct, gc=False):
    """A line of an export. It is an entry unless it has one of the last four members."""

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
    comity_audit_log: int | None = None
    exported_at: str = ""
    end: int | None = None


class _ExportEntry(msgspec.Struct):
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


_rows: Final = msgspec.json.Decoder(ExportRow)
_encode: Final = msgspec.json.Encoder().encode


def row_of(line: bytes) -> ExportRow:
    """Decode one line. Raises MalformedMessage."""
    try:
        return _rows.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"invalid line of an audit export: {error}") from None


def encode_header(at: datetime, nodes: Iterable[str]) -> bytes:
    said = {"comity_audit_log": VERSION, "exported_at": format_timestamp(at), "nodes": list(nodes)}
    return _encode(said)


def encode_entry(record: AuditRecord) -> bytes:
    # Comity writes UTF-8 only. A body that is not UTF-8 was altered, and verification shows that.
    body = record.body.decode("utf-8", "replace")
    return _encode(
        _ExportEntry(
            record.node,
            record.seq,
            format_timestamp(record.at),
            *record[3:10],
            body,
            record.hash.hex(),
        )
    )


def checkpoint_line(signed: ChainCheckpoint) -> bytes:
    row = CheckpointRow(
        signed.node,
        signed.seq,
        signed.hash.hex(),
        format_timestamp(signed.at),
        signed.key,
        signed.signature.hex(),
    )
    return _encode({"checkpoint": row})


def segment_line(sealed: ChainSegment) -> bytes:
    row = SegmentRow(
        sealed.node,
        sealed.first,
        sealed.last,
        sealed.before.hex(),
        sealed.hash.hex(),
        format_timestamp(sealed.sealed_at),
    )
    return _encode({"segment": row})


def end_line(entries: int) -> bytes:
    """The last line: the number of entries."""
    return _encode({"end": entries})


def checkpoint_of(row: CheckpointRow) -> ChainCheckpoint:
    """Raises MalformedMessage."""
    try:
        return ChainCheckpoint(
            row.node,
            row.seq,
            bytes.fromhex(row.hash),
            datetime.fromisoformat(row.at),
            row.key,
            bytes.fromhex(row.signature),
        )
    except ValueError:
        raise MalformedMessage("a checkpoint that cannot be read") from None


def segment_of(row: SegmentRow) -> ChainSegment:
    """Raises MalformedMessage."""
    try:
        return ChainSegment(
            row.node,
            row.first,
            row.last,
            bytes.fromhex(row.before),
            bytes.fromhex(row.hash),
            datetime.fromisoformat(row.sealed_at),
        )
    except ValueError:
        raise MalformedMessage("a sealed segment that cannot be read") from None


AT_ONCE: Final = 2_000
"""How many entries an export reads at once."""

MAX_TIMELINE_EVENTS: Final = 1_000
MAX_ASKS: Final = 20
_TRACE_LENGTH: Final = 32

type Clock = Callable[[], datetime]
type Settle = Callable[[], Awaitable[None]]


class ExportCursor(NamedTuple):
    """The position of an export: the node, its last entry, and the number of entries so far."""

    node: str
    after: int
    entries: int


@dataclass(frozen=True, slots=True)
class ExportChunk:
    """Some lines of an export, and the cursor of the next ones; None if these are the last."""

    lines: Sequence[bytes]
    next: ExportCursor | None


class TracedRequest(Protocol):
    """An approval request, as far as it leads to entries."""

    @property
    def trace(self) -> str: ...
    @property
    def call(self) -> str: ...


class TracedRequests(Protocol):
    """The approval requests, by their whole ids."""

    async def get(self, id: str, /) -> TracedRequest | None: ...


type FindRequest = Callable[[str], Awaitable[TracedRequest | None]]
"""Finds an approval request by its id, or by as much of its beginning as no other has."""


class AuditReader:
    """Reads the audit log, and the approval requests that it names."""

    def __init__(
        self,
        store: AuditStore,
        requests: TracedRequests | None = None,
        find_request: FindRequest | None = None,
        clock: Clock = lambda: datetime.now(UTC),
        settle: Settle | None = None,
    ) -> None:
        self._store = store
        # A person may shorten an id. An entry may quote a server, so its ids count only in full.
        self._requests = requests
        self._find_request = find_request
        self._clock = clock
        # The latest events may not be committed yet.
        self._settle = settle

    async def find(self, criteria: AuditFilter, limit: int) -> Sequence[AuditRecord]:
        if self._settle is not None:
            await self._settle()
        return await self._store.find(criteria, limit)

    async def find_outcome(
        self, criteria: AuditFilter, outcome: OutcomeClass, limit: int
    ) -> OutcomePage:
        if self._settle is not None:
            await self._settle()
        return await find_outcome(self._store, criteria, outcome, limit)

    async def about(self, name: str) -> Sequence[AuditRecord]:
        """The entries of one trace, call or approval request, in order of time.

        A request is named by its id, or by a beginning of it that no other id has.
        The entries of its approval requests are included, also those of an earlier attempt.
        Raises MalformedMessage if there are no entries.
        """
        if self._settle is not None:
            await self._settle()
        found: dict[tuple[str, int], AuditRecord] = {}
        for sought in await self._filters_for(name):
            await self._add(found, sought)
        ids = asks_in([line.body for line in found.values()])[:MAX_ASKS]
        for each in ids:
            for sought in await self._filters_of_approval(each):
                await self._add(found, sought)
        if not found:
            raise MalformedMessage(
                f"the audit log has no entry for {name!r:.80}; `comity audit list` finds calls",
                NOTHING_HERE,
            )
        return sorted(found.values(), key=lambda line: (line.at, line.node, line.seq))

    async def _filters_for(self, name: str) -> list[AuditFilter]:
        bare = name.replace("-", "").lower()
        if len(bare) == _TRACE_LENGTH and all(each in "0123456789abcdef" for each in bare):
            return [AuditFilter(trace=bare)]
        ask = None if self._find_request is None else await self._find_request(name.lower())
        of_ask = [] if ask is None else _approval_filters(ask)
        return of_ask or [AuditFilter(call=name)] if name else []

    async def _filters_of_approval(self, id: str) -> list[AuditFilter]:
        ask = None if self._requests is None else await self._requests.get(id)
        return [] if ask is None else _approval_filters(ask)

    async def _add(self, found: dict[tuple[str, int], AuditRecord], criteria: AuditFilter) -> None:
        for line in await self._store.find(criteria, MAX_TIMELINE_EVENTS):
            found[line.node, line.seq] = line

    async def export(self) -> AsyncGenerator[bytes]:
        """Every line of an export."""
        place: ExportCursor | None = None
        while True:
            part = await self.part(place)
            for line in part.lines:
                yield line
            if part.next is None:
                return
            place = part.next

    async def part(self, place: ExportCursor | None) -> ExportChunk:
        """The lines of an export from a cursor on; None is its beginning."""
        nodes = await self._store.nodes()
        if place is None:
            lines, entries = [encode_header(self._clock(), nodes)], 0
            return self._next_cursor(lines, nodes, "", entries)
        # Read before the entries, so that no checkpoint is of an entry that came in between.
        checkpoints = await self._store.checkpoints(place.node, place.after)
        found = await self._store.page(place.node, place.after, AT_ONCE)
        is_last = len(found) < AT_ONCE
        lines = await self._read_segments(place, found[0].seq if found else None, checkpoints)
        lines += _merge_checkpoints(found, checkpoints, is_last=is_last)
        entries = place.entries + len(found)
        if not is_last:
            return ExportChunk(lines, ExportCursor(place.node, found[-1].seq, entries))
        return self._next_cursor(lines, nodes, place.node, entries)

    def _next_cursor(
        self, lines: list[bytes], nodes: Sequence[str], node: str, entries: int
    ) -> ExportChunk:
        """The cursor of the next node; None if there is none."""
        after = min((each for each in nodes if each > node), default=None)
        if after is None:
            return ExportChunk([*lines, end_line(entries)], None)
        return ExportChunk(lines, ExportCursor(after, 0, entries))

    async def _read_segments(
        self, place: ExportCursor, first: int | None, checkpoints: Sequence[ChainCheckpoint]
    ) -> list[bytes]:
        """The segments that explain missing entries, each with its checkpoints."""
        if first == place.after + 1:
            return []
        lines: list[bytes] = []
        for segment in await self._store.segments(place.node):
            if segment.first > place.after and (first is None or segment.last < first):
                lines += [segment_line(segment), *_checkpoint_lines(segment, checkpoints)]
        return lines


def _checkpoint_lines(segment: ChainSegment, checkpoints: Sequence[ChainCheckpoint]) -> list[bytes]:
    return [checkpoint_line(each) for each in checkpoints if each.seq == segment.last]


def _merge_checkpoints(
    records: Sequence[AuditRecord], checkpoints: Sequence[ChainCheckpoint], *, is_last: bool
) -> list[bytes]:
    """The lines of entries, each checkpoint after its entry."""
    first = records[0].seq if records else 0
    waiting = [each for each in checkpoints if each.seq >= first]
    woven: list[bytes] = []
    place = 0
    for line in records:
        woven.append(encode_entry(line))
        while place < len(waiting) and waiting[place].seq <= line.seq:
            woven.append(checkpoint_line(waiting[place]))
            place += 1
    # Checkpoints of entries that are missing: they existed when this was signed.
    return [*woven, *map(checkpoint_line, waiting[place:])] if is_last else woven


def _approval_filters(ask: TracedRequest) -> list[AuditFilter]:
    wanted = [AuditFilter(trace=ask.trace)] if ask.trace else []
    return [*wanted, AuditFilter(call=ask.call)] if ask.call else wanted
