"""One node's chain being proved: where it breaks first, and what was probably done there.

Rule 1: an entry that follows from the one before it is as it was written.
Rule 2: where one does not, the likeliest deed is looked for: each is a different way in which the
        entries around the break would fit together again. What fits none was altered.
Rule 3: after a break the rest is proved as far as it can be, from what stands there.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from comity.rules.chain import GENESIS, link
from comity.wire.exported import Row
from comity.wire.journal import Checkpoint, Segment

FARTHEST: Final = 64
"""How many entries may have been taken out or put in, for the rest to be recognised as moved."""

COMMIT_ENTRIES: Final = 2_000
"""How many entries one commit adds, and one page of an export holds."""

_NO_HASH: Final = b""


class Kind(StrEnum):
    """What is wrong."""

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
class Finding:
    """One thing that is wrong: with which entry, the first of those it is about, and in words."""

    kind: Kind
    node: str
    seq: int
    words: str


@dataclass(frozen=True, slots=True)
class CheckpointInterval:
    """How often a gateway signs: after `every` entries, and `within` a while of each.

    A verifier allows more. A signature comes after the commit that makes it due, and an export
    reads the signatures before the entries. A busy machine does both late.
    """

    every: int = 1_000
    within: timedelta = timedelta(seconds=10)

    @property
    def most_unsigned(self) -> int:
        return self.every + 2 * COMMIT_ENTRIES

    @property
    def longest_unsigned(self) -> timedelta:
        return 3 * self.within + timedelta(seconds=5)


USUAL_INTERVAL: Final = CheckpointInterval()


@dataclass(slots=True)
class _Kept:
    """An entry that did not follow, until the one behind it is seen."""

    seq: int
    body: bytes
    hash: bytes
    before: bytes


type Tell = Callable[[Finding], None]


@dataclass(slots=True)
class ChainProof:
    """How far one chain has been proved."""

    node: str
    tell: Tell
    first: int = 0
    seq: int = 0
    entries: int = 0
    sealed: int = 0
    hash: bytes = GENESIS
    signed_to: int = 0
    keys: dict[str, None] = field(default_factory=dict[str, None])
    awaited: dict[int, Checkpoint] = field(default_factory=dict[int, Checkpoint])
    """Checkpoints of entries that have not come yet."""
    _before: bytes = _NO_HASH
    _follows: bool = True
    """Whether the next entry can be proved by this one's hash: not behind a hole."""
    _moved: int = 0
    """By how much the numbers are off, since some entry was taken out or put in."""
    _doubted: _Kept | None = None
    _missing: dict[int, int] = field(default_factory=dict[int, int])
    _rewritten: tuple[int, int] | None = None
    """Between which numbers the chain is whole, and another than was signed."""
    _is_told: bool = False
    _sealed_from: int = 0
    _sealed_to: int = 0
    _at: str = ""
    """When the last entry was written, as it says."""
    _unsigned_since: str = ""
    """When the first entry was written that no signature covers."""
    _vouched_to: int = 0
    """How far somebody whose word is in the chain, or signed, says that it was sealed."""
    _encoded: bytes = b""

    def __post_init__(self) -> None:
        self._encoded = self.node.encode("utf-8", "surrogatepass")

    def take(self, row: Row, body: bytes) -> None:
        """The next entry as it stands in the export."""
        self._at = row.at or self._at
        seq = row.seq - self._moved
        if self._doubted is None and seq == self.seq + 1 and self._follows:
            linked = link(self.hash, self._encoded, seq, body)
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
        if self._doubted is not None:
            doubted, self._doubted = self._doubted, None
            if not self._settle(doubted, written, body, hashed):
                # What is known now may be all that was wrong with this one.
                self.take(Row(seq=written, hash=hashed.hex()), body)
            return
        seq = written - self._moved
        if seq <= self.seq:
            self._behind(seq)
        elif seq > self.seq + 1:
            self._beyond(seq, body, hashed)
        elif not self._follows:
            # The entry before it is not there: nothing says what its hash should be.
            self._accept(seq, hashed)
        elif self._before and link(self._before, self._encoded, seq - 1, body) == hashed:
            self._tell(Kind.INSERTED, self.seq, "was put in; the entries behind it were renumbered")
            self._moved += 1
            self.hash, self.seq = self._before, self.seq - 1
            self._accept(self.seq + 1, hashed)
        else:
            self._doubted = _Kept(seq, body, hashed, self.hash)

    def _settle(self, doubted: _Kept, written: int, body: bytes, hashed: bytes) -> bool:
        """What was done to an entry, by how the one behind it fits; whether that is done too."""
        seq, at = doubted.seq, self._encoded
        behind = max(0, written - self._moved)
        if behind in (seq, seq + 1) and link(doubted.before, at, seq, body) == hashed:
            if link(hashed, at, seq + 1, doubted.body) == doubted.hash:
                self._tell(Kind.REORDERED, seq, f"and entry {seq + 1} have changed places")
                self._accept(seq, hashed)
                self._accept(seq + 1, doubted.hash)
                return True
            self._tell(Kind.INSERTED, seq, "was put in")
            self._moved += behind - seq
            return False
        for by in range(1, FARTHEST + 1):
            if link(doubted.hash, at, behind + by, body) == hashed:
                told = "was" if by == 1 else f"to {seq + by - 1} were"
                self._tell(Kind.REMOVED, seq, f"{told} taken out; those behind were renumbered")
                self._moved -= by
                self._skip_to(seq + by, doubted.hash)
                return False
        self._alter(doubted, link(doubted.hash, at, behind, body) == hashed, body, hashed)
        return False

    def _alter(self, doubted: _Kept, is_followed: bool, body: bytes, hashed: bytes) -> None:
        """It fits nowhere: it is itself what is wrong."""
        own = link(doubted.before, self._encoded, doubted.seq, doubted.body)
        if not is_followed and link(own, self._encoded, doubted.seq + 1, body) == hashed:
            self._tell(Kind.ALTERED, doubted.seq, "has another hash than it had")
            self._accept(doubted.seq, own)
            return
        self._tell(Kind.ALTERED, doubted.seq, _ALTERED.format(before=doubted.seq - 1))
        self._accept(doubted.seq, doubted.hash)
        self._follows = is_followed

    def _behind(self, seq: int) -> None:
        """A number that was there already, or one that was missed before."""
        for first, last in self._missing.items():
            if first <= seq <= last:
                # Told as missing before; that they come after all says what was really done.
                self._tell(Kind.REORDERED, first, "stands behind entries that came after it")
                return
        self._tell(Kind.INSERTED, seq, f"is there a second time, behind entry {self.seq}")

    def _beyond(self, seq: int, body: bytes, hashed: bytes) -> None:
        first = self.seq + 1
        if self._follows and link(self.hash, self._encoded, first, body) == hashed:
            self._tell(Kind.ALTERED, first, f"bears the number {seq}")
            self._accept(first, hashed)
            return
        told = "is" if seq - first == 1 else f"to {seq - 1} are"
        self._tell(Kind.REMOVED, first, f"{told} missing")
        if len(self._missing) < FARTHEST:
            self._missing[first] = seq - 1
        self._skip_to(seq, hashed)

    def _skip_to(self, seq: int, hashed: bytes) -> None:
        self.hash, self.seq = _NO_HASH, seq - 1
        self._accept(seq, hashed)

    def seal(self, segment: Segment) -> None:
        """Entries that are gone for a reason: what is left must follow from the last of them."""
        if segment.first == self.seq + 1 and segment.before == self.hash:
            self._sealed_from = self._sealed_from or segment.first
            self._sealed_to = segment.last
            self.sealed += segment.last - segment.first + 1
            self._before, self.hash, self.seq = _NO_HASH, segment.hash, segment.last
            if segment.last in self.awaited:
                self.check(self.awaited.pop(segment.last))

    def vouch(self, last: int) -> None:
        """An entry of the chain says that all up to this one was sealed."""
        self._vouched_to = max(self._vouched_to, last)

    def check(self, checkpoint: Checkpoint) -> None:
        """A checkpoint that is rightly signed: what it says must be what stands here."""
        if checkpoint.seq > self.seq:
            self.awaited[checkpoint.seq] = checkpoint
        elif checkpoint.seq < self.seq:
            self._passed(checkpoint)
        elif checkpoint.hash == self.hash:
            self.signed_to = max(self.signed_to, checkpoint.seq)
            self._unsigned_since = ""
            if checkpoint.seq == self._sealed_to:
                self.vouch(checkpoint.seq)
        elif self._rewritten is None:
            self._rewritten = (self.signed_to + 1, checkpoint.seq)

    def _passed(self, checkpoint: Checkpoint) -> None:
        is_old = checkpoint.seq <= self.signed_to or checkpoint.seq < self.first
        # In what is sealed only the last entry's hash is known.
        is_old = is_old or checkpoint.seq < self._sealed_to
        if not is_old and not self._is_told:
            told = f"has its checkpoint behind entry {self.seq}, where it cannot be compared"
            self._tell(Kind.REORDERED, checkpoint.seq, told)

    @property
    def unsigned(self) -> int:
        """How many entries at the end no signature covers."""
        return min(self.entries, self.seq - self.signed_to)

    def refusal_reason(self, interval: CheckpointInterval, exported_at: str) -> str | None:
        """Why the entries at the end cannot be ones that the gateway had no time to sign yet."""
        if not self.unsigned:
            return None
        behind = f"and the {self.unsigned - 1:,} behind it " if self.unsigned > 1 else ""
        if self.unsigned > interval.most_unsigned:
            return f"{behind}are not signed: a gateway signs after {interval.every:,} entries"
        since, last, read = map(_time, (self._unsigned_since, self._at, exported_at or self._at))
        if since is None or last is None or read is None:
            return f"{behind}cannot be dated, and no signature covers them"
        if max(last, read) - since > interval.longest_unsigned:
            seconds = f"{interval.within.total_seconds():g} s"
            return f"{behind}stayed unsigned: a gateway signs within {seconds}"
        return None

    def finish(self) -> None:
        """No more comes: what is missed now was cut off."""
        if self._doubted is not None:
            doubted, self._doubted = self._doubted, None
            self._tell(Kind.ALTERED, doubted.seq, _ALTERED.format(before=doubted.seq - 1))
            self._accept(doubted.seq, doubted.hash)
        if self._rewritten is not None and not self._is_told:
            since, to = self._rewritten
            span = f"to {to} are" if since < to else "is"
            self._tell(Kind.ALTERED, since, f"{span} not what was signed: the chain was rewritten")
        # Where nothing is signed at all nothing is proved, neither that.
        if self._sealed_to > self._vouched_to and self.signed_to:
            told = f"to {self._sealed_to} are missing: sealed, but nothing signed says so"
            self._tell(Kind.REMOVED, self._sealed_from, told)
        last = max(self.awaited, default=0)
        if last > self.seq:
            told = "is" if last == self.seq + 1 else f"to {last} are"
            self._tell(Kind.CUT, self.seq + 1, f"{told} missing: a checkpoint of {last} was signed")

    def _tell(self, kind: Kind, seq: int, words: str) -> None:
        self._is_told = True
        self.tell(Finding(kind, self.node, seq, words))


_ALTERED: Final = (
    "does not follow from entry {before}: it was altered, or that one was and hashed anew"
)


def _time(written: str) -> datetime | None:
    """A moment with its zone, or None."""
    try:
        at = datetime.fromisoformat(written)
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def _bytes(hexadecimal: str) -> bytes:
    """What is no hash is one that nothing has."""
    try:
        return bytes.fromhex(hexadecimal)
    except ValueError:
        return _NO_HASH
