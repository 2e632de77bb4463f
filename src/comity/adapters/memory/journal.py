"""The journal in memory: for tests, and for one node that keeps nothing beyond its end.

What is older than the last entries it has room for is forgotten, and on record as a segment: so
a chain can be verified from where it begins now.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest, nsmallest
from itertools import islice
from typing import Any, Final

from comity.ports.journaling import PAGE, Head, Sought
from comity.rules import chain, keeping
from comity.rules.chain import OUTCOMES, found_by
from comity.wire.audit import Type
from comity.wire.errors import Misconfigured
from comity.wire.journal import Checkpoint, Line, Segment

REMEMBERED: Final = 200
REMEMBERED_BYTES: Final = 32 * 1024 * 1024
CHECKPOINTS: Final = 10_000


@dataclass(slots=True)
class _Chain:
    """One node's entries, oldest first, and what is known of those before them."""

    seq: int = 0
    hash: bytes = chain.GENESIS
    # As plain tuples of plain words: others would be looked through for garbage again and again.
    rows: deque[tuple[Any, ...]] = field(default_factory=deque[tuple[Any, ...]])
    size: int = 0
    segments: list[Segment] = field(default_factory=list[Segment])
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict[int, Checkpoint])

    def add(self, line: Line) -> None:
        self.rows.append(tuple(str(each) if isinstance(each, str) else each for each in line))
        self.size += len(line.body)
        self.seq, self.hash = line.seq, line.hash

    @property
    def lines(self) -> Iterator[Line]:
        return map(Line._make, self.rows)

    def forget(self) -> None:
        """The oldest; it lengthens what is on record as gone, if that ends right before it."""
        gone = Line._make(self.rows.popleft())
        self.size -= len(gone.body)
        last = self.segments[-1] if self.segments else None
        if last is not None and last.last == gone.seq - 1:
            self.segments[-1] = last._replace(last=gone.seq, hash=gone.hash, sealed_at=gone.at)
        elif gone.seq == 1:
            self.segments.append(Segment(gone.node, 1, 1, chain.GENESIS, gone.hash, gone.at))


class MemoryJournal:
    """The chains of all who share this memory."""

    def __init__(self, remembered: int = REMEMBERED, remembered_bytes: int | None = None) -> None:
        self._remembered = remembered
        self._bytes = remembered_bytes or REMEMBERED_BYTES
        self._chains: dict[str, _Chain] = {}
        self._told: set[str] = set()

    async def open(self, node: str) -> Head:
        """Nobody else can hold a chain; what is doubtful is told once until it is closed."""
        keeping.name(node, "a node")
        own = self._chains.setdefault(node, _Chain())
        doubtful = () if node in self._told else self._doubtful(own)
        self._told.add(node)
        return Head(node, own.seq, own.hash, doubtful)

    def heads(self) -> dict[str, int]:
        """How far each chain has come."""
        return {node: own.seq for node, own in self._chains.items()}

    async def append(self, lines: Sequence[Line]) -> None:
        if not lines:
            return
        own = self._chains.get(lines[0].node)
        if own is None or not chain.follow(lines, lines[0].node, own.seq):
            raise Misconfigured("the journal went on without us; its chain has to be opened again")
        for line in lines:
            own.add(chain.kept(line))
        while len(own.rows) > self._remembered or own.size > self._bytes:
            own.forget()

    async def keep(self, checkpoint: Checkpoint) -> None:
        own = self._chains.setdefault(checkpoint.node, _Chain()).checkpoints
        own[checkpoint.seq] = checkpoint
        while len(own) > CHECKPOINTS:
            del own[min(own)]

    async def page(self, node: str, after: int = 0, limit: int = PAGE) -> Sequence[Line]:
        lines = self._of(node).lines
        return list(islice((line for line in lines if line.seq > after), limit))

    async def find(self, sought: Sought, limit: int = PAGE) -> Sequence[Line]:
        select = nlargest if sought.newest_first else nsmallest
        return select(limit, (line for line in self._all() if _fits(line, sought)), key=_place)

    async def nodes(self) -> Sequence[str]:
        known = self._chains.items()
        return sorted(node for node, own in known if own.rows or own.segments or own.checkpoints)

    async def checkpoints(self, node: str, after: int = 0) -> Sequence[Checkpoint]:
        kept = self._of(node).checkpoints
        return [kept[seq] for seq in sorted(kept) if seq > after]

    async def segments(self, node: str) -> Sequence[Segment]:
        return list(self._of(node).segments)

    async def drop(self, segment: Segment) -> None:
        own = self._of(segment.node)
        if any(each.first <= segment.first and segment.last <= each.last for each in own.segments):
            return
        if not any((line.seq, line.hash) == (segment.last, segment.hash) for line in own.lines):
            raise Misconfigured("no entry is where this segment of the journal ends")
        stay = [line for line in own.lines if not segment.first <= line.seq <= segment.last]
        own.rows = deque(tuple(line) for line in stay)
        own.size = sum(len(line.body) for line in stay)
        own.segments = [each for each in own.segments if each.first != segment.first]
        own.segments = sorted([*own.segments, segment], key=lambda each: each.first)

    async def close(self) -> None:
        self._told.clear()

    def _of(self, node: str) -> _Chain:
        return self._chains.get(node) or _Chain()

    def _all(self) -> Iterator[Line]:
        return (line for own in self._chains.values() for line in own.lines)

    def _doubtful(self, own: _Chain) -> tuple[bytes, ...]:
        """Intents of the last run that wrote this chain, to which no chain has an outcome."""
        opened = max(
            (line.seq for line in own.lines if line.type == Type.JOURNAL_OPENED), default=0
        )
        known = {line.call for line in self._all() if line.type in OUTCOMES}
        return tuple(
            line.body
            for line in own.lines
            if line.seq > opened and line.type == Type.CALL_INTENDED and line.call not in known
        )


def _place(line: Line) -> tuple[object, str, int]:
    return line.at, line.node, line.seq


def _fits(line: Line, sought: Sought) -> bool:
    wanted = (sought.trace, sought.call, sought.actor, sought.server, sought.tool, sought.result)
    has = (line.trace, line.call, line.actor, line.server, line.tool, line.result)
    return (
        all(not want or found_by(want) == own for want, own in zip(wanted, has, strict=True))
        and (not sought.types or line.type in map(found_by, sought.types))
        and _is_in_time(line, sought)
    )


def _is_in_time(line: Line, sought: Sought) -> bool:
    if sought.since is not None and line.at < sought.since:
        return False
    if sought.until is not None and line.at >= sought.until:
        return False
    if sought.after is None:
        return True
    place = (line.at, line.node, line.seq)
    return place < sought.after if sought.newest_first else place > sought.after
