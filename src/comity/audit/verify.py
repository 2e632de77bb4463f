"""Verification of an exported audit log, without a database."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from comity.audit import export
from comity.audit.chain import (
    GENESIS,
    AuditRecord,
    ChainCheckpoint,
    ChainSegment,
    entry_hash,
    has_matching_body,
    signed_part,
)
from comity.audit.events import AuditType
from comity.audit.export import ExportRow
from comity.errors import MalformedMessage

FARTHEST: Final = 64
"""Up to how many removed or inserted entries the rest is recognised as moved."""

COMMIT_ENTRIES: Final = 2_000
"""How many entries one commit adds, and one page of an export holds."""

_NO_HASH: Final = b""


class FindingKind(StrEnum):
    """The kind of a defect."""

    ALTERED = "altered"
    REMOVED = "removed"
    INSERTED = "inserted"
    REORDERED = "reordered"
    CUT = "cut"
    COLUMNS = "columns"
    SIGNATURE = "signature"
    KEY = "key"
    UNREADABLE = "unreadable"
    UNSIGNED = "unsigned"


@dataclass(frozen=True, slots=True)
class ChainDefect:
    """One defect: its kind, its first entry, and a description."""

    kind: FindingKind
    node: str
    seq: int
    words: str


@dataclass(frozen=True, slots=True)
class CheckpointInterval:
    """How often a gateway signs: after `max_entries` entries, and `max_delay` a time of each.

    A verifier allows more. A signature comes after the commit that makes it due, and an export
    reads the signatures before the entries. A busy machine does both late.
    """

    max_entries: int = 1_000
    max_delay: timedelta = timedelta(seconds=10)

    @property
    def max_unsigned_entries(self) -> int:
        return self.max_entries + 2 * COMMIT_ENTRIES

    @property
    def max_unsigned_time(self) -> timedelta:
        return 3 * self.max_delay + timedelta(seconds=5)


USUAL_INTERVAL: Final = CheckpointInterval()


@dataclass(slots=True)
class _DoubtfulEntry:
    """An entry that does not fit, until the next entry shows why."""

    seq: int
    body: bytes
    hash: bytes
    before: bytes


type Tell = Callable[[ChainDefect], None]


@dataclass(slots=True)
class ChainVerifier:
    """The verification of one chain, up to the last line that was read."""

    node: str
    report_defect: Tell
    first: int = 0
    seq: int = 0
    entries: int = 0
    sealed: int = 0
    hash: bytes = GENESIS
    signed_to: int = 0
    keys: dict[str, None] = field(default_factory=dict[str, None])
    awaited: dict[int, ChainCheckpoint] = field(default_factory=dict[int, ChainCheckpoint])
    """Checkpoints of entries that were not read yet."""
    _before: bytes = _NO_HASH
    _follows: bool = True
    """Whether this hash proves the next entry. After a gap it does not."""
    _moved: int = 0
    """By how much the numbers are shifted after a removed or inserted entry."""
    _doubtful_entry: _DoubtfulEntry | None = None
    _missing: dict[int, int] = field(default_factory=dict[int, int])
    _rewritten: tuple[int, int] | None = None
    """The numbers between which the chain is consistent but differs from what was signed."""
    _is_reported: bool = False
    _sealed_from: int = 0
    _sealed_to: int = 0
    _at: str = ""
    """The time that the last entry states."""
    _unsigned_since: str = ""
    """The time of the first entry that no signature covers."""
    _vouched_to: int = 0
    """Up to which entry the chain or a signature confirms that it was sealed."""
    _encoded: bytes = b""

    def __post_init__(self) -> None:
        self._encoded = self.node.encode("utf-8", "surrogatepass")

    def take(self, row: ExportRow, body: bytes) -> None:
        """Read the next entry of the export."""
        self._at = row.at or self._at
        seq = row.seq - self._moved
        if self._doubtful_entry is None and seq == self.seq + 1 and self._follows:
            linked = entry_hash(self.hash, self._encoded, seq, body)
            if linked.hex() == row.hash:
                self._accept(seq, linked)
                return
        self._examine(row.seq, body, _bytes(row.hash))

    def _accept(self, seq: int, hashed: bytes) -> None:
        self._before, self.hash, self.seq = self.hash, hashed, seq
        self._follows = True
        self.entries += 1
        if self.entries == 1:
            self.first = seq
        if not self._unsigned_since:
            self._unsigned_since = self._at
        if seq in self.awaited:
            self.check(self.awaited.pop(seq))

    def _examine(self, written: int, body: bytes, hashed: bytes) -> None:
        if self._doubtful_entry is not None:
            doubted, self._doubtful_entry = self._doubtful_entry, None
            if not self._settle(doubted, written, body, hashed):
                # With that known, this entry may be correct.
                self.take(ExportRow(seq=written, hash=hashed.hex()), body)
            return
        seq = written - self._moved
        if seq <= self.seq:
            self._behind(seq)
        elif seq > self.seq + 1:
            self._on_gap(seq, body, hashed)
        elif not self._follows:
            # The entry before it is missing, so its hash cannot be checked.
            self._accept(seq, hashed)
        elif self._before and entry_hash(self._before, self._encoded, seq - 1, body) == hashed:
            self._report(
                FindingKind.INSERTED, self.seq, "was put in; the entries behind it were renumbered"
            )
            self._moved += 1
            self.hash, self.seq = self._before, self.seq - 1
            self._accept(self.seq + 1, hashed)
        else:
            self._doubtful_entry = _DoubtfulEntry(seq, body, hashed, self.hash)

    def _settle(self, entry: _DoubtfulEntry, written: int, body: bytes, hashed: bytes) -> bool:
        """Find out from the next entry what is wrong with one. Gives whether both are done."""
        seq, at = entry.seq, self._encoded
        behind = max(0, written - self._moved)
        if behind in (seq, seq + 1) and entry_hash(entry.before, at, seq, body) == hashed:
            if entry_hash(hashed, at, seq + 1, entry.body) == entry.hash:
                self._report(FindingKind.REORDERED, seq, f"and entry {seq + 1} have changed places")
                self._accept(seq, hashed)
                self._accept(seq + 1, entry.hash)
                return True
            self._report(FindingKind.INSERTED, seq, "was put in")
            self._moved += behind - seq
            return False
        for by in range(1, FARTHEST + 1):
            if entry_hash(entry.hash, at, behind + by, body) == hashed:
                told = "was" if by == 1 else f"to {seq + by - 1} were"
                self._report(
                    FindingKind.REMOVED, seq, f"{told} removed; later entries were renumbered"
                )
                self._moved -= by
                self._skip_to(seq + by, entry.hash)
                return False
        self._alter(entry, entry_hash(entry.hash, at, behind, body) == hashed, body, hashed)
        return False

    def _alter(self, entry: _DoubtfulEntry, is_followed: bool, body: bytes, hashed: bytes) -> None:
        """The entry fits nowhere, so it is the defect."""
        own = entry_hash(entry.before, self._encoded, entry.seq, entry.body)
        if not is_followed and entry_hash(own, self._encoded, entry.seq + 1, body) == hashed:
            self._report(FindingKind.ALTERED, entry.seq, "has another hash than it had")
            self._accept(entry.seq, own)
            return
        self._report(FindingKind.ALTERED, entry.seq, _ALTERED.format(before=entry.seq - 1))
        self._accept(entry.seq, entry.hash)
        self._follows = is_followed

    def _behind(self, seq: int) -> None:
        """Read an entry whose number came before, or was missing."""
        for first, last in self._missing.items():
            if first <= seq <= last:
                # They were reported as missing; now they turn out to be reordered.
                self._report(FindingKind.REORDERED, first, "is stored after later entries")
                return
        self._report(FindingKind.INSERTED, seq, f"is there a second time, behind entry {self.seq}")

    def _on_gap(self, seq: int, body: bytes, hashed: bytes) -> None:
        first = self.seq + 1
        if self._follows and entry_hash(self.hash, self._encoded, first, body) == hashed:
            self._report(FindingKind.ALTERED, first, f"bears the number {seq}")
            self._accept(first, hashed)
            return
        told = "is" if seq - first == 1 else f"to {seq - 1} are"
        self._report(FindingKind.REMOVED, first, f"{told} missing")
        if len(self._missing) < FARTHEST:
            self._missing[first] = seq - 1
        self._skip_to(seq, hashed)

    def _skip_to(self, seq: int, hashed: bytes) -> None:
        self.hash, self.seq = _NO_HASH, seq - 1
        self._accept(seq, hashed)

    def seal(self, segment: ChainSegment) -> None:
        """Read a sealed segment. The next entry must follow from its last one."""
        if segment.first == self.seq + 1 and segment.before == self.hash:
            self._sealed_from = self._sealed_from or segment.first
            self._sealed_to = segment.last
            self.sealed += segment.last - segment.first + 1
            self._before, self.hash, self.seq = _NO_HASH, segment.hash, segment.last
            if segment.last in self.awaited:
                self.check(self.awaited.pop(segment.last))

    def vouch(self, last: int) -> None:
        """Note that an entry of the chain confirms the sealing up to a number."""
        self._vouched_to = max(self._vouched_to, last)

    def check(self, checkpoint: ChainCheckpoint) -> None:
        """Check a validly signed checkpoint against the chain."""
        if checkpoint.seq > self.seq:
            self.awaited[checkpoint.seq] = checkpoint
        elif checkpoint.seq < self.seq:
            self._on_late_checkpoint(checkpoint)
        elif checkpoint.hash == self.hash:
            self.signed_to = max(self.signed_to, checkpoint.seq)
            self._unsigned_since = ""
            if checkpoint.seq == self._sealed_to:
                self.vouch(checkpoint.seq)
        elif self._rewritten is None:
            self._rewritten = (self.signed_to + 1, checkpoint.seq)

    def _on_late_checkpoint(self, checkpoint: ChainCheckpoint) -> None:
        is_old = checkpoint.seq <= self.signed_to or checkpoint.seq < self.first
        # Of a sealed segment only the last hash is known.
        is_old = is_old or checkpoint.seq < self._sealed_to
        if not is_old and not self._is_reported:
            told = f"has its checkpoint behind entry {self.seq}, where it cannot be compared"
            self._report(FindingKind.REORDERED, checkpoint.seq, told)

    @property
    def unsigned(self) -> int:
        """How many entries at the end have no signature."""
        return min(self.entries, self.seq - self.signed_to)

    def refusal_reason(self, interval: CheckpointInterval, exported_at: str) -> str | None:
        """Why the gateway should have signed the last entries already; None if it need not."""
        if not self.unsigned:
            return None
        behind = f"and the {self.unsigned - 1:,} behind it " if self.unsigned > 1 else ""
        if self.unsigned > interval.max_unsigned_entries:
            return f"{behind}are not signed: a gateway signs after {interval.max_entries:,} entries"
        since, last, read = map(_time, (self._unsigned_since, self._at, exported_at or self._at))
        if since is None or last is None or read is None:
            return f"{behind}cannot be dated, and no signature covers them"
        if max(last, read) - since > interval.max_unsigned_time:
            seconds = f"{interval.max_delay.total_seconds():g} s"
            return f"{behind}stayed unsigned: a gateway signs within {seconds}"
        return None

    def finish(self) -> None:
        """End the chain. Entries that are still awaited were cut off."""
        if self._doubtful_entry is not None:
            doubted, self._doubtful_entry = self._doubtful_entry, None
            self._report(FindingKind.ALTERED, doubted.seq, _ALTERED.format(before=doubted.seq - 1))
            self._accept(doubted.seq, doubted.hash)
        if self._rewritten is not None and not self._is_reported:
            since, to = self._rewritten
            span = f"to {to} are" if since < to else "is"
            self._report(
                FindingKind.ALTERED, since, f"{span} not what was signed: the chain was rewritten"
            )
        # Without any signature nothing is proved, so this is not reported either.
        if self._sealed_to > self._vouched_to and self.signed_to:
            told = f"to {self._sealed_to} are missing: sealed, but without a signature"
            self._report(FindingKind.REMOVED, self._sealed_from, told)
        last = max(self.awaited, default=0)
        if last > self.seq:
            told = "is" if last == self.seq + 1 else f"to {last} are"
            self._report(
                FindingKind.CUT, self.seq + 1, f"{told} missing: a checkpoint of {last} was signed"
            )

    def _report(self, kind: FindingKind, seq: int, words: str) -> None:
        self._is_reported = True
        self.report_defect(ChainDefect(kind, self.node, seq, words))


_ALTERED: Final = (
    "does not follow from entry {before}: it was altered, or that one was and hashed anew"
)


def _time(text: str) -> datetime | None:
    """A time with its zone, or None."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def _bytes(hexadecimal: str) -> bytes:
    """The bytes of a hash; an empty hash, which no entry has, if it is malformed."""
    try:
        return bytes.fromhex(hexadecimal)
    except ValueError:
        return _NO_HASH


MAX_FINDINGS: Final = 20
MAX_NODES: Final = 10_000
MAX_OPEN: Final = 10_000
_NAME_DIGITS: Final = 12
_NAMED_BY_KEY: Final = re.compile(r"n-[0-9a-f]{12}")

type Verify = Callable[[str, bytes, bytes], bool]
"""Verifies a signature: of a key in hexadecimal digits, over these bytes."""


def name_of(key: str) -> str:
    """The name of a node, derived from its key: no other key yields it."""
    return "n-" + hashlib.sha256(key.encode()).hexdigest()[:_NAME_DIGITS]


@dataclass(frozen=True, slots=True)
class VerifiedChain:
    """The result for one chain: its entries, how far they are signed, and by which keys."""

    node: str
    first: int
    last: int
    entries: int
    sealed: int
    signed_to: int
    unsigned: int
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The result of a verification. `open_calls` have no outcome; that alone is no defect."""

    findings: tuple[ChainDefect, ...]
    more: int
    nodes: tuple[VerifiedChain, ...]
    entries: int
    checkpoints: int
    open_calls: tuple[str, ...]

    @property
    def signed(self) -> int:
        """How many entries a signature covers."""
        return self.entries - self.unsigned

    @property
    def unsigned(self) -> int:
        return sum(node.unsigned for node in self.nodes)

    @property
    def is_whole(self) -> bool:
        """Whether the signed entries are unchanged, and none is unsigned for too long.

        Without any signature nothing is proved, so that does not count as whole.
        """
        return not self.findings and (self.signed > 0 or not self.entries)

    @property
    def is_only_unsigned(self) -> bool:
        """Whether missing signatures are the only defects."""
        return bool(self.findings) and all(
            each.kind is FindingKind.UNSIGNED for each in self.findings
        )


class _BodyActor(msgspec.Struct, gc=False):
    id: str = ""


class _BodyTarget(msgspec.Struct, gc=False):
    server_id: str = ""
    tool_name: str = ""


class _EntryBody(msgspec.Struct):
    timestamp: str
    trace_id: str
    event_type: str
    actor: _BodyActor
    target: _BodyTarget
    result: str
    call_id: str = ""


class _SegmentDetails(msgspec.Struct):
    last: int


class _SegmentBody(msgspec.Struct):
    details: _SegmentDetails


_body: Final = msgspec.json.Decoder(_EntryBody)
_STILL_OPEN: Final = (AuditType.CALL_INTENDED, AuditType.CALL_RETRIED)


@dataclass(slots=True)
class ExportVerifier:
    """Verifies an export. `outside` are checkpoints that were kept elsewhere."""

    verify: Verify
    trusted: Collection[str] = ()
    outside: Iterable[ChainCheckpoint] = ()
    interval: CheckpointInterval = USUAL_INTERVAL
    entries: int = 0
    checkpoints: int = 0
    _lines: int = 0
    _chains: dict[str, ChainVerifier] = field(default_factory=dict[str, ChainVerifier])
    _findings: list[ChainDefect] = field(default_factory=list[ChainDefect])
    _more: int = 0
    _open: dict[str, None] = field(default_factory=dict[str, None])
    _end: int | None = None
    _exported_at: str = ""

    def __post_init__(self) -> None:
        for checkpoint in self.outside:
            self._checkpoint(checkpoint)

    def take(self, line: bytes) -> None:
        """Read the next line. Raises MalformedMessage if the first line is no header."""
        self._lines += 1
        try:
            row = export.row_of(line)
        except MalformedMessage:
            if self._lines == 1:
                raise
            self._add_defect(
                ChainDefect(FindingKind.UNREADABLE, "", 0, f"line {self._lines} cannot be read")
            )
            return
        if self._lines == 1:
            _demand_header(row)
            self._exported_at = row.exported_at
        elif row.body:
            self._entry(row)
        else:
            self._other(row)

    def _entry(self, row: ExportRow) -> None:
        body = row.body.encode("utf-8", "surrogatepass")
        self.entries += 1
        (self._chains.get(row.node) or self._chain(row.node)).take(row, body)
        said = _decode_body(row)
        if said is None or not _columns_match_body(row, said):
            self._look_closely(row, body)
        if row.type == AuditType.CALL_INTENDED:
            if len(self._open) < MAX_OPEN:
                self._open[row.call] = None
        elif row.type == AuditType.SEGMENT_SEALED:
            self._chain(row.node).vouch(_sealed_in(body))
        elif self._open and row.type not in _STILL_OPEN:
            self._open.pop(row.call, None)

    def _look_closely(self, row: ExportRow, body: bytes) -> None:
        """Whether the columns contradict the body, apart from being shortened."""
        try:
            at = datetime.fromisoformat(row.at)
        except ValueError:
            at = None
        columns = (row.trace, row.call, row.type, row.actor, row.server, row.tool, row.result)
        if at is None or not has_matching_body(
            AuditRecord(row.node, row.seq, at, *columns, body, b"")
        ):
            told = "has columns that differ from its body"
            self._add_defect(ChainDefect(FindingKind.COLUMNS, row.node, row.seq, told))

    def _other(self, row: ExportRow) -> None:
        try:
            if row.checkpoint is not None:
                self._checkpoint(export.checkpoint_of(row.checkpoint))
            elif row.segment is not None:
                segment = export.segment_of(row.segment)
                self._chain(segment.node).seal(segment)
            elif row.end is not None:
                self._end = row.end
            else:
                told = f"line {self._lines} is nothing that an export holds"
                self._add_defect(ChainDefect(FindingKind.UNREADABLE, row.node, row.seq, told))
        except MalformedMessage as error:
            told = f"line {self._lines} is {error}"
            self._add_defect(ChainDefect(FindingKind.UNREADABLE, row.node, row.seq, told))

    def _checkpoint(self, checkpoint: ChainCheckpoint) -> None:
        chain = self._chain(checkpoint.node)
        self.checkpoints += 1
        wrong = self._is_untrusted(chain, checkpoint)
        if wrong:
            self._add_defect(ChainDefect(FindingKind.KEY, checkpoint.node, checkpoint.seq, wrong))
        elif not self.verify(checkpoint.key, signed_part(checkpoint), checkpoint.signature):
            told = "has a checkpoint with an invalid signature"
            self._add_defect(
                ChainDefect(FindingKind.SIGNATURE, checkpoint.node, checkpoint.seq, told)
            )
        else:
            chain.keys[checkpoint.key] = None
            chain.check(checkpoint)

    def _is_untrusted(self, chain: ChainVerifier, checkpoint: ChainCheckpoint) -> str:
        key, node = checkpoint.key, checkpoint.node.partition("~")[0]
        if self.trusted:
            return "" if key in self.trusted else f"has a checkpoint by another key, {key:.64}"
        if _NAMED_BY_KEY.fullmatch(node) and node != name_of(key):
            return f"has a checkpoint by a key that is not its node's, {key:.64}"
        if chain.keys and key not in chain.keys:
            return f"has a checkpoint by another key than those before it, {key:.64}"
        return ""

    def _chain(self, node: str) -> ChainVerifier:
        chain = self._chains.get(node)
        if chain is None:
            chain = ChainVerifier(node, self._add_defect)
            if len(self._chains) < MAX_NODES:
                self._chains[node] = chain
            else:
                self._add_defect(
                    ChainDefect(FindingKind.INSERTED, node, 0, "is of one node too many")
                )
        return chain

    def finish(self) -> VerificationReport:
        """End the verification after the last line."""
        for chain in self._chains.values():
            chain.finish()
            is_told = any(each.node == chain.node for each in self._findings)
            if not is_told:
                self._look_at_tail(chain)
        if self._end is None:
            self._add_defect(ChainDefect(FindingKind.CUT, "", 0, "the export stops before its end"))
        elif self._end != self.entries and not self._findings:
            told = f"the export was of {self._end:,} entries, and has {self.entries:,}"
            self._add_defect(ChainDefect(FindingKind.CUT, "", 0, told))
        nodes = tuple(
            VerifiedChain(
                each.node,
                each.first,
                each.seq,
                each.entries,
                each.sealed,
                each.signed_to,
                each.unsigned,
                tuple(each.keys),
            )
            for each in self._chains.values()
        )
        return VerificationReport(
            self._in_order(),
            self._more,
            nodes,
            self.entries,
            self.checkpoints,
            tuple(self._open),
        )

    def _look_at_tail(self, chain: ChainVerifier) -> None:
        reason = chain.refusal_reason(self.interval, self._exported_at)
        if reason is not None:
            first = chain.seq - chain.unsigned + 1
            self._add_defect(ChainDefect(FindingKind.UNSIGNED, chain.node, first, reason))

    def _in_order(self) -> tuple[ChainDefect, ...]:
        """The defects by node and number. An altered entry is not reported for its columns too."""
        places = {node: place for place, node in enumerate(self._chains)}
        ordered = sorted(
            self._findings,
            key=lambda each: (
                places.get(each.node, -1),
                each.seq,
                each.kind is FindingKind.COLUMNS,
            ),
        )
        kept: list[ChainDefect] = []
        for each in ordered:
            is_told = bool(kept) and (kept[-1].node, kept[-1].seq) == (each.node, each.seq)
            if each.kind is not FindingKind.COLUMNS or not is_told:
                kept.append(each)
        return tuple(kept)

    def _add_defect(self, defect: ChainDefect) -> None:
        if defect.kind is FindingKind.REORDERED and self._reclassified(defect):
            return
        if len(self._findings) < MAX_FINDINGS:
            self._findings.append(defect)
        else:
            self._more += 1

    def _reclassified(self, defect: ChainDefect) -> bool:
        """Whether a later defect explains what was reported as missing."""
        for place, before in enumerate(self._findings):
            if (before.node, before.seq) == (defect.node, defect.seq):
                if before.kind is FindingKind.REMOVED:
                    self._findings[place] = defect
                return before.kind in (FindingKind.REMOVED, FindingKind.REORDERED)
        return False


def _sealed_in(body: bytes) -> int:
    """Up to which number this entry confirms the sealing."""
    try:
        last = msgspec.json.decode(body, type=_SegmentBody).details.last
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0
    return last


def _demand_header(row: ExportRow) -> None:
    if row.comity_audit_log is None:
        raise MalformedMessage("this is not an audit export: its first line is not a header")
    if row.comity_audit_log != export.VERSION:
        raise MalformedMessage(f"an export of an unknown format: {row.comity_audit_log}")


def _decode_body(row: ExportRow) -> _EntryBody | None:
    try:
        return _body.decode(row.body)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _columns_match_body(row: ExportRow, said: _EntryBody) -> bool:
    """Whether the columns equal the body, which is true for nearly all entries."""
    return (
        row.type == said.event_type
        and row.actor == said.actor.id
        and row.call == said.call_id
        and row.server == said.target.server_id
        and row.tool == said.target.tool_name
        and row.result == said.result
        and row.at == said.timestamp
        and row.trace == said.trace_id.replace("-", "")
    )
