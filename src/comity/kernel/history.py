"""What the journal holds, read again: found, gathered into one story, and handed to others.

Rule 1: nothing is read that is not kept; what waits to be kept is not told here.
Rule 2: an export is the chains of all nodes in their order, page by page, whatever is added
        meanwhile: a checkpoint is read before the entries that it is of.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple, Protocol

from comity.ports.journaling import JournalStore, Sought
from comity.rules.stories import asks_in
from comity.wire import exported
from comity.wire.errors import NOTHING_HERE, MalformedMessage
from comity.wire.journal import Checkpoint, Line, Segment

AT_ONCE: Final = 2_000
"""How many entries an export reads at once."""

MOST_OF_ONE: Final = 1_000
MOST_ASKS: Final = 20
_TRACE_LENGTH: Final = 32

type Clock = Callable[[], datetime]
type Settle = Callable[[], Awaitable[None]]


class Place(NamedTuple):
    """How far an export has come: in which node's chain, behind which entry, after how many."""

    node: str
    after: int
    entries: int


@dataclass(frozen=True, slots=True)
class Part:
    """Some lines of an export, and where the next ones begin; None is that these are the last."""

    lines: Sequence[bytes]
    next: Place | None


class TracedRequest(Protocol):
    """An approval request, as far as it leads to entries."""

    @property
    def trace(self) -> str: ...
    @property
    def call(self) -> str: ...


type FindRequest = Callable[[str], Awaitable[TracedRequest | None]]
"""Finds an approval request by its id, or by as much of its beginning as no other has."""


class History:
    """Reads a journal, and the asks that stand in it."""

    def __init__(
        self,
        journal: JournalStore,
        find_request: FindRequest | None = None,
        clock: Clock = lambda: datetime.now(UTC),
        settle: Settle | None = None,
    ) -> None:
        self._journal = journal
        self._find_request = find_request
        self._clock = clock
        # What has just happened may be on its way there still.
        self._settle = settle

    async def find(self, sought: Sought, limit: int) -> Sequence[Line]:
        if self._settle is not None:
            await self._settle()
        return await self._journal.find(sought, limit)

    async def about(self, name: str) -> Sequence[Line]:
        """All that is written down of one trace, one call or one ask, in order of time.

        An ask is named by its id, or by as much of its beginning as no other ask has.
        Also of the asks that belong to it: those may have been opened by an earlier attempt.
        Raises MalformedMessage where nothing is.
        """
        if self._settle is not None:
            await self._settle()
        found: dict[tuple[str, int], Line] = {}
        for sought in await self._sought(name):
            await self._add(found, sought)
        ids = asks_in([line.body for line in found.values()])[:MOST_ASKS]
        for each in ids:
            for sought in await self._of_ask(each):
                await self._add(found, sought)
        if not found:
            raise MalformedMessage(
                f"nothing is written down of {name!r:.80}; `comity journal search` finds calls",
                NOTHING_HERE,
            )
        return sorted(found.values(), key=lambda line: (line.at, line.node, line.seq))

    async def _sought(self, name: str) -> list[Sought]:
        bare = name.replace("-", "").lower()
        if len(bare) == _TRACE_LENGTH and all(each in "0123456789abcdef" for each in bare):
            return [Sought(trace=bare)]
        of_ask = await self._of_ask(name.lower())
        return of_ask or [Sought(call=name)] if name else []

    async def _of_ask(self, id: str) -> list[Sought]:
        ask = None if self._find_request is None else await self._find_request(id)
        return [] if ask is None else _sought_of(ask)

    async def _add(self, found: dict[tuple[str, int], Line], sought: Sought) -> None:
        for line in await self._journal.find(sought, MOST_OF_ONE):
            found[line.node, line.seq] = line

    async def export(self) -> AsyncGenerator[bytes]:
        """Every line of an export."""
        place: Place | None = None
        while True:
            part = await self.part(place)
            for line in part.lines:
                yield line
            if part.next is None:
                return
            place = part.next

    async def part(self, place: Place | None) -> Part:
        """The lines of an export from there on; None is its beginning."""
        nodes = await self._journal.nodes()
        if place is None:
            lines, entries = [exported.header(self._clock(), nodes)], 0
            return self._following(lines, nodes, "", entries)
        # Read first, so that none is of an entry that came between the two.
        checkpoints = await self._journal.checkpoints(place.node, place.after)
        found = await self._journal.page(place.node, place.after, AT_ONCE)
        is_last = len(found) < AT_ONCE
        lines = await self._sealed(place, found[0].seq if found else None, checkpoints)
        lines += _woven(found, checkpoints, is_last=is_last)
        entries = place.entries + len(found)
        if not is_last:
            return Part(lines, Place(place.node, found[-1].seq, entries))
        return self._following(lines, nodes, place.node, entries)

    def _following(self, lines: list[bytes], nodes: Sequence[str], node: str, entries: int) -> Part:
        """On to the next node, if there is one."""
        after = min((each for each in nodes if each > node), default=None)
        if after is None:
            return Part([*lines, exported.end(entries)], None)
        return Part(lines, Place(after, 0, entries))

    async def _sealed(
        self, place: Place, first: int | None, checkpoints: Sequence[Checkpoint]
    ) -> list[bytes]:
        """What explains that entries are not there: each segment, with what was signed of it."""
        if first == place.after + 1:
            return []
        lines: list[bytes] = []
        for segment in await self._journal.segments(place.node):
            if segment.first > place.after and (first is None or segment.last < first):
                lines += [exported.segment(segment), *_signed(segment, checkpoints)]
        return lines


def _signed(segment: Segment, checkpoints: Sequence[Checkpoint]) -> list[bytes]:
    return [exported.checkpoint(each) for each in checkpoints if each.seq == segment.last]


def _woven(
    lines: Sequence[Line], checkpoints: Sequence[Checkpoint], *, is_last: bool
) -> list[bytes]:
    """Entries, with each checkpoint behind the one that it is of."""
    first = lines[0].seq if lines else 0
    waiting = [each for each in checkpoints if each.seq >= first]
    woven: list[bytes] = []
    place = 0
    for line in lines:
        woven.append(exported.entry(line))
        while place < len(waiting) and waiting[place].seq <= line.seq:
            woven.append(exported.checkpoint(waiting[place]))
            place += 1
    # Of entries that are not there: they were, when this was signed.
    return [*woven, *map(exported.checkpoint, waiting[place:])] if is_last else woven


def _sought_of(ask: TracedRequest) -> list[Sought]:
    wanted = [Sought(trace=ask.trace)] if ask.trace else []
    return [*wanted, Sought(call=ask.call)] if ask.call else wanted
