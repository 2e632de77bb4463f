"""Which slots of the index each party sees: worked out once, and kept while it is so.

Rule 1: what is remembered depends on a party and its credential's bounds, and on nothing else; so
        it is used only while the very entries are in force that it was judged by, and none of
        them has ended since.
Rule 2: a tool that has changed is judged anew before it is seen.
Rule 3: no more than so many are remembered; a thousand parties cost what the busiest few do.
Rule 4: whoever shows what was found asks the gate once more. What stands here may hide a tool for
        a moment too long, and shows none.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import batched, islice
from typing import Final

from comity.kernel.catalog import Kind, View
from comity.kernel.catalog_access import CatalogAccess
from comity.kernel.grants import StillHolds
from comity.kernel.sight import Sight
from comity.kernel.tool_index import ToolIndex
from comity.rules import search_masks
from comity.wire.parties import Actor

MOST_BYTES: Final = 16 * 1024 * 1024
PIECE: Final = 300
"""So many judgements take some milliseconds."""

type Who = tuple[str, tuple[tuple[str, str], ...] | None]


@dataclass(slots=True)
class Seen:
    """What one party sees: a byte for each slot, and how many of them are set."""

    still_holds: StillHolds
    generation: int
    mask: bytearray = field(default_factory=bytearray)
    count: int = 0


class SeenTools:
    """The masks of those who searched last."""

    def __init__(self, index: ToolIndex, gate: CatalogAccess) -> None:
        self._index = index
        self._gate = gate
        self._kept: OrderedDict[Who, Seen] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    async def by(self, actor: Actor) -> Seen:
        """What this actor sees. Raises Unavailable where nobody can know that just now."""
        who = (actor.party, actor.permissions)
        kept = self._kept.get(who)
        if kept is None or not kept.still_holds() or self._is_too_old(kept):
            kept = await self._made(actor)
            self._keep(who, kept)
        elif kept.generation != self._index.generation:
            await self._mend(actor, kept)
        if who in self._kept:
            self._kept.move_to_end(who)
        return kept

    def _is_too_old(self, kept: Seen) -> bool:
        return self._index.generation - kept.generation > len(self._index.changed)

    def _keep(self, who: Who, seen: Seen) -> None:
        self._kept[who] = seen
        most = max(4, MOST_BYTES // (len(seen.mask) + 1))
        while len(self._kept) > most:
            self._kept.popitem(last=False)

    async def _made(self, actor: Actor) -> Seen:
        index, sight = self._index, self._gate.sight_of(actor, Kind.TOOL)
        seen = Seen(self._gate.ground(actor), index.generation)
        seen.mask = bytearray(len(index.offers))
        spent = 0
        within = sight.servers
        for server in list(index.servers if within is None else within):
            spent += self._look_over(seen, sight, server) + 3
            if spent > PIECE:
                await asyncio.sleep(0)
                spent = 0
        await self._mend(actor, seen)
        return seen

    def _look_over(self, seen: Seen, sight: Sight, server: str) -> int:
        """See what there is to see of one server; how many tools had to be judged for that."""
        outlook, index = sight.outlook(server), self._index
        slots: Iterable[int] = index.slots_of(server)
        if outlook.is_plain and not outlook.all_else:
            return 0
        if outlook.is_plain:
            for slot in slots:
                if slot < len(seen.mask):
                    seen.mask[slot] = index.usable[slot]
            return len(seen.mask) // 10_000
        view = sight.over(server)
        if view is None:
            return 0
        if view.only is not None:
            named = (index.slot(server, name) for name in view.only)
            slots = [slot for slot in named if slot is not None]
        return self._judge(seen, view, list(slots))

    def _judge(self, seen: Seen, view: View | None, slots: Sequence[int]) -> int:
        for slot in slots:
            offer = self._index.offers[slot]
            if slot >= len(seen.mask):
                seen.mask.extend(bytes(slot + 1 - len(seen.mask)))
            is_seen = view is not None and offer is not None and view.sees(offer)
            seen.mask[slot] = int(is_seen)
        return len(slots)

    async def _mend(self, actor: Actor, seen: Seen) -> None:
        """Judge anew what has changed in the meantime, until nothing has."""
        index, sight = self._index, self._gate.sight_of(actor, Kind.TOOL)
        while seen.generation < index.generation and not self._is_too_old(seen):
            until = index.generation
            changed = set(islice(reversed(index.changed), until - seen.generation))
            for some in batched(changed, PIECE):
                views: dict[str, View | None] = {}
                for slot in some:
                    self._judge(seen, self._view(slot, sight, views), (slot,))
                if len(changed) > PIECE:
                    await asyncio.sleep(0)
            seen.generation = max(seen.generation, until)
        seen.count = search_masks.count(seen.mask)

    def _view(self, slot: int, sight: Sight, views: dict[str, View | None]) -> View | None:
        offer = self._index.offers[slot]
        if offer is None:
            return None
        if offer.server not in views:
            views[offer.server] = sight.over(offer.server)
        return views[offer.server]
