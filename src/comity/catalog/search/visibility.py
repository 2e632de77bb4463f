"""The tools that each principal may find, cached as bit masks."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import batched, islice
from typing import Final

from comity.catalog.access import ActorView, CatalogAccess
from comity.catalog.catalog import ServerEntryView
from comity.catalog.search import index as search_masks
from comity.catalog.search.tool_index import ToolIndex
from comity.mcp.actors import Actor
from comity.mcp.entries import EntryKind
from comity.policy.snapshot import StillHolds

MAX_CACHE_BYTES: Final = 16 * 1024 * 1024


TOOLS_PER_STEP: Final = 300
"""Tools that are checked before the event loop runs other tasks: some milliseconds."""


type Who = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...] | None]


@dataclass(slots=True)
class VisibilityMask:
    """The slots that one principal sees, one byte each, and their number."""

    still_holds: StillHolds
    generation: int
    mask: bytearray = field(default_factory=bytearray)
    count: int = 0


class VisibilityCache:
    """The masks of the principals that searched most recently."""

    def __init__(self, index: ToolIndex, catalog_access: CatalogAccess) -> None:
        self._index = index
        self._catalog_access = catalog_access
        self._mask_by_principal: OrderedDict[Who, VisibilityMask] = OrderedDict()

    def __len__(self) -> int:
        return len(self._mask_by_principal)

    async def mask_of(self, actor: Actor) -> VisibilityMask:
        """Return the mask of this actor.

        Raises Unavailable if the grants cannot be read.
        """
        who = (actor.party, actor.groups, actor.permissions)
        kept = self._mask_by_principal.get(who)
        if kept is None or not kept.still_holds() or self._is_too_old(kept):
            kept = await self._build_mask(actor)
            self._store_mask(who, kept)
        elif kept.generation != self._index.generation:
            await self._update_mask(actor, kept)
        if who in self._mask_by_principal:
            self._mask_by_principal.move_to_end(who)
        return kept

    def _is_too_old(self, mask: VisibilityMask) -> bool:
        return self._index.generation - mask.generation > len(self._index.changed_slots)

    def _store_mask(self, who: Who, mask: VisibilityMask) -> None:
        self._mask_by_principal[who] = mask
        most = max(4, MAX_CACHE_BYTES // (len(mask.mask) + 1))
        while len(self._mask_by_principal) > most:
            self._mask_by_principal.popitem(last=False)

    async def _build_mask(self, actor: Actor) -> VisibilityMask:
        index, sight = self._index, self._catalog_access.view_of(actor, EntryKind.TOOL)
        seen = VisibilityMask(self._catalog_access.visibility_check(actor), index.generation)
        seen.mask = bytearray(len(index.entries))
        spent = 0
        within = sight.servers
        for server in list(index.servers if within is None else within):
            spent += self._check_server(seen, sight, server) + 3
            if spent > TOOLS_PER_STEP:
                await asyncio.sleep(0)
                spent = 0
        await self._update_mask(actor, seen)
        return seen

    def _check_server(self, mask: VisibilityMask, actor_view: ActorView, server: str) -> int:
        """Set the visible slots of one server; return how many tools had to be checked."""
        outlook, index = actor_view.server_visibility(server), self._index
        slots: Iterable[int] = index.slots_of(server)
        if outlook.is_uniform and not outlook.is_visible_by_default:
            return 0
        if outlook.is_uniform:
            for slot in slots:
                if slot < len(mask.mask):
                    mask.mask[slot] = index.usable[slot]
            return len(mask.mask) // 10_000
        view = actor_view.server_view(server)
        if view is None:
            return 0
        if view.only_names is not None:
            named = (index.slot_of(server, name) for name in view.only_names)
            slots = [slot for slot in named if slot is not None]
        return self._check_slots(mask, view, list(slots))

    def _check_slots(
        self, mask: VisibilityMask, view: ServerEntryView | None, slots: Sequence[int]
    ) -> int:
        for slot in slots:
            offer = self._index.entries[slot]
            if slot >= len(mask.mask):
                mask.mask.extend(bytes(slot + 1 - len(mask.mask)))
            is_seen = view is not None and offer is not None and view.is_visible(offer)
            mask.mask[slot] = int(is_seen)
        return len(slots)

    async def _update_mask(self, actor: Actor, mask: VisibilityMask) -> None:
        """Check the slots that changed since the mask was made, until it is up to date."""
        index, sight = self._index, self._catalog_access.view_of(actor, EntryKind.TOOL)
        while mask.generation < index.generation and not self._is_too_old(mask):
            until = index.generation
            changed = set(islice(reversed(index.changed_slots), until - mask.generation))
            for some in batched(changed, TOOLS_PER_STEP):
                views: dict[str, ServerEntryView | None] = {}
                for slot in some:
                    self._check_slots(mask, self._view(slot, sight, views), (slot,))
                if len(changed) > TOOLS_PER_STEP:
                    await asyncio.sleep(0)
            mask.generation = max(mask.generation, until)
        mask.count = search_masks.count_visible(mask.mask)

    def _view(
        self, slot: int, actor_view: ActorView, views: dict[str, ServerEntryView | None]
    ) -> ServerEntryView | None:
        offer = self._index.entries[slot]
        if offer is None:
            return None
        if offer.server not in views:
            views[offer.server] = actor_view.server_view(offer.server)
        return views[offer.server]
