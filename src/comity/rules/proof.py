"""Proves that an exported journal is what was written, line by line, trusting nobody but a key.

Rule 1: the lines are gone through once, and what is remembered does not grow with their number.
Rule 2: the first entry that is not what it was is named, and what was probably done to it.
Rule 3: a signature counts if its key is one that is trusted; where none was named, the first key of
        each node is taken, and whoever reads the report has to know it.
Rule 4: that a tail was cut off is told by a checkpoint that was kept elsewhere, and only by that.
Rule 5: only what is signed is called whole. Entries that stay unsigned longer than a gateway takes
        to sign them are a finding: who can write to the store can rewrite those.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from comity.rules.chain import agrees, signed_part
from comity.rules.proof_chain import USUAL_INTERVAL, ChainProof, CheckpointInterval, Finding, Kind
from comity.wire import exported
from comity.wire.audit import Type
from comity.wire.errors import MalformedMessage
from comity.wire.exported import Row
from comity.wire.journal import Checkpoint, Line

MOST_FINDINGS: Final = 20
MOST_NODES: Final = 10_000
MOST_OPEN: Final = 10_000
_NAME_DIGITS: Final = 12
_NAMED_BY_KEY: Final = re.compile(r"n-[0-9a-f]{12}")

type Verify = Callable[[str, bytes, bytes], bool]
"""Whether a key, by its hexadecimal digits, has signed these bytes so."""


def name_of(key: str) -> str:
    """What a node is called by its key: a name that nobody can take who has another key."""
    return "n-" + hashlib.sha256(key.encode()).hexdigest()[:_NAME_DIGITS]


@dataclass(frozen=True, slots=True)
class Proved:
    """One node's chain: what of it is there, and how far it is signed, with which keys."""

    node: str
    first: int
    last: int
    entries: int
    sealed: int
    signed_to: int
    unsigned: int
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What came of it. `open_calls` are calls whose end is not told: that alone is no finding."""

    findings: tuple[Finding, ...]
    more: int
    nodes: tuple[Proved, ...]
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
        """Whether all that is signed is what was written, and nothing else is older than it may be.

        Where nothing is signed nothing is proved, so that is not called whole.
        """
        return not self.findings and (self.signed > 0 or not self.entries)

    @property
    def is_only_unsigned(self) -> bool:
        """Whether nothing is wrong but that signatures are missing."""
        return bool(self.findings) and all(each.kind is Kind.UNSIGNED for each in self.findings)


class _Party(msgspec.Struct, gc=False):
    id: str = ""


class _Target(msgspec.Struct, gc=False):
    server_id: str = ""
    tool_name: str = ""


class _Body(msgspec.Struct):
    timestamp: str
    trace_id: str
    event_type: str
    actor: _Party
    target: _Target
    result: str
    call_id: str = ""


class _Span(msgspec.Struct):
    last: int


class _Sealed(msgspec.Struct):
    details: _Span


_body: Final = msgspec.json.Decoder(_Body)
_STILL_OPEN: Final = (Type.CALL_INTENDED, Type.CALL_RETRIED)


@dataclass(slots=True)
class Proof:
    """A journal being proved. `outside` are the checkpoints that were kept elsewhere."""

    verify: Verify
    trusted: Collection[str] = ()
    outside: Iterable[Checkpoint] = ()
    interval: CheckpointInterval = USUAL_INTERVAL
    entries: int = 0
    checkpoints: int = 0
    _lines: int = 0
    _chains: dict[str, ChainProof] = field(default_factory=dict[str, ChainProof])
    _findings: list[Finding] = field(default_factory=list[Finding])
    _more: int = 0
    _open: dict[str, None] = field(default_factory=dict[str, None])
    _end: int | None = None
    _exported_at: str = ""

    def __post_init__(self) -> None:
        for checkpoint in self.outside:
            self._checkpoint(checkpoint)

    def take(self, line: bytes) -> None:
        """The next line. Raises MalformedMessage where the first is no header of an export."""
        self._lines += 1
        try:
            row = exported.row_of(line)
        except MalformedMessage:
            if self._lines == 1:
                raise
            self._tell(Finding(Kind.UNREADABLE, "", 0, f"line {self._lines} cannot be read"))
            return
        if self._lines == 1:
            _demand_header(row)
            self._exported_at = row.exported_at
        elif row.body:
            self._entry(row)
        else:
            self._other(row)

    def _entry(self, row: Row) -> None:
        body = row.body.encode("utf-8", "surrogatepass")
        self.entries += 1
        (self._chains.get(row.node) or self._chain(row.node)).take(row, body)
        said = _said(row)
        if said is None or not _is_filed(row, said):
            self._look_closely(row, body)
        if row.type == Type.CALL_INTENDED:
            if len(self._open) < MOST_OPEN:
                self._open[row.call] = None
        elif row.type == Type.SEGMENT_SEALED:
            self._chain(row.node).vouch(_sealed_in(body))
        elif self._open and row.type not in _STILL_OPEN:
            self._open.pop(row.call, None)

    def _look_closely(self, row: Row, body: bytes) -> None:
        """Whether the columns differ from the body by more than that they are shortened."""
        try:
            at = datetime.fromisoformat(row.at)
        except ValueError:
            at = None
        columns = (row.trace, row.call, row.type, row.actor, row.server, row.tool, row.result)
        if at is None or not agrees(Line(row.node, row.seq, at, *columns, body, b"")):
            told = "is filed under something else than its body says"
            self._tell(Finding(Kind.COLUMNS, row.node, row.seq, told))

    def _other(self, row: Row) -> None:
        try:
            if row.checkpoint is not None:
                self._checkpoint(exported.checkpoint_of(row.checkpoint))
            elif row.segment is not None:
                segment = exported.segment_of(row.segment)
                self._chain(segment.node).seal(segment)
            elif row.end is not None:
                self._end = row.end
            else:
                told = f"line {self._lines} is nothing that an export holds"
                self._tell(Finding(Kind.UNREADABLE, row.node, row.seq, told))
        except MalformedMessage as error:
            told = f"line {self._lines} is {error}"
            self._tell(Finding(Kind.UNREADABLE, row.node, row.seq, told))

    def _checkpoint(self, checkpoint: Checkpoint) -> None:
        chain = self._chain(checkpoint.node)
        self.checkpoints += 1
        wrong = self._mistrusted(chain, checkpoint)
        if wrong:
            self._tell(Finding(Kind.KEY, checkpoint.node, checkpoint.seq, wrong))
        elif not self.verify(checkpoint.key, signed_part(checkpoint), checkpoint.signature):
            told = "has a checkpoint whose signature is wrong"
            self._tell(Finding(Kind.SIGNATURE, checkpoint.node, checkpoint.seq, told))
        else:
            chain.keys[checkpoint.key] = None
            chain.check(checkpoint)

    def _mistrusted(self, chain: ChainProof, checkpoint: Checkpoint) -> str:
        key, node = checkpoint.key, checkpoint.node.partition("~")[0]
        if self.trusted:
            return "" if key in self.trusted else f"has a checkpoint by another key, {key:.64}"
        if _NAMED_BY_KEY.fullmatch(node) and node != name_of(key):
            return f"has a checkpoint by a key that is not its node's, {key:.64}"
        if chain.keys and key not in chain.keys:
            return f"has a checkpoint by another key than those before it, {key:.64}"
        return ""

    def _chain(self, node: str) -> ChainProof:
        chain = self._chains.get(node)
        if chain is None:
            chain = ChainProof(node, self._tell)
            if len(self._chains) < MOST_NODES:
                self._chains[node] = chain
            else:
                self._tell(Finding(Kind.INSERTED, node, 0, "is of one node too many"))
        return chain

    def finish(self) -> Report:
        """All lines were taken."""
        for chain in self._chains.values():
            chain.finish()
            is_told = any(each.node == chain.node for each in self._findings)
            if not is_told:
                self._look_at_tail(chain)
        if self._end is None:
            self._tell(Finding(Kind.CUT, "", 0, "the export stops before its end"))
        elif self._end != self.entries and not self._findings:
            told = f"the export was of {self._end:,} entries, and has {self.entries:,}"
            self._tell(Finding(Kind.CUT, "", 0, told))
        nodes = tuple(
            Proved(
                *(each.node, each.first, each.seq, each.entries, each.sealed, each.signed_to),
                each.unsigned,
                tuple(each.keys),
            )
            for each in self._chains.values()
        )
        return Report(
            *(self._in_order(), self._more, nodes, self.entries, self.checkpoints),
            tuple(self._open),
        )

    def _look_at_tail(self, chain: ChainProof) -> None:
        reason = chain.refusal_reason(self.interval, self._exported_at)
        if reason is not None:
            first = chain.seq - chain.unsigned + 1
            self._tell(Finding(Kind.UNSIGNED, chain.node, first, reason))

    def _in_order(self) -> tuple[Finding, ...]:
        """By node and number. An entry that is altered disagrees with its columns, of course."""
        places = {node: place for place, node in enumerate(self._chains)}
        ordered = sorted(
            self._findings,
            key=lambda each: (places.get(each.node, -1), each.seq, each.kind is Kind.COLUMNS),
        )
        kept: list[Finding] = []
        for each in ordered:
            is_told = bool(kept) and (kept[-1].node, kept[-1].seq) == (each.node, each.seq)
            if each.kind is not Kind.COLUMNS or not is_told:
                kept.append(each)
        return tuple(kept)

    def _tell(self, finding: Finding) -> None:
        if finding.kind is Kind.REORDERED and self._reclassified(finding):
            return
        if len(self._findings) < MOST_FINDINGS:
            self._findings.append(finding)
        else:
            self._more += 1

    def _reclassified(self, finding: Finding) -> bool:
        """Whether what was told as missing is told better now."""
        for place, before in enumerate(self._findings):
            if (before.node, before.seq) == (finding.node, finding.seq):
                if before.kind is Kind.REMOVED:
                    self._findings[place] = finding
                return before.kind in (Kind.REMOVED, Kind.REORDERED)
        return False


def _sealed_in(body: bytes) -> int:
    """Up to which entry this one says that all is sealed."""
    try:
        last = msgspec.json.decode(body, type=_Sealed).details.last
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0
    return last


def _demand_header(row: Row) -> None:
    if row.comity_journal is None:
        raise MalformedMessage("this is no exported journal: its first line is not a header")
    if row.comity_journal != exported.VERSION:
        raise MalformedMessage(f"an export of a form that is not known here: {row.comity_journal}")


def _said(row: Row) -> _Body | None:
    try:
        return _body.decode(row.body)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None


def _is_filed(row: Row, said: _Body) -> bool:
    """Whether the columns are what the body says; of nearly all they are, letter by letter."""
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
