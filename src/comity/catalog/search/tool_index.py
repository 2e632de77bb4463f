"""The search index over all tools, and the interfaces of embedders and token counters."""

import asyncio
import logging
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol

from comity.catalog.catalog import Catalog
from comity.catalog.search.index import NameIndex, WordIndex
from comity.catalog.search.words import (
    ToolFacts,
    category_and_parents,
    extract_facts,
    field_texts,
    word_impacts,
)
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.policy.risk import Risk
from comity.toolkit.background import BackgroundTasks

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SearchDocument:
    """The searchable text of one tool."""

    server: str
    name: str
    title: str = ""
    description: str = ""
    # The name and the description of each parameter.
    parameters: tuple[tuple[str, str], ...] = ()
    server_title: str = ""
    server_description: str = ""
    categories: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SimilarityResult:
    """The similarity of tools to a query, as the cosine of their vectors."""

    # The nearest visible tools, nearest first: slot and cosine.
    best: Sequence[tuple[int, float]]
    # The cosines of the slots in `also`, in their order; None for a slot without a vector.
    also: Sequence[float | None]
    # The least cosine among all visible tools.
    least: float = 0.0
    # The similarity of servers by their own descriptions.
    servers: Mapping[str, float] = field(default_factory=dict[str, float])


class VectorIndex(Protocol):
    """The vectors of all tools, and the search for those nearest to a query."""

    @property
    def name(self) -> str:
        """The name of the model, for comparisons."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether each tool in the index has its vector by now."""
        ...

    @property
    def is_warming(self) -> bool:
        """Whether vectors are being made, so that a search finds more in a moment."""
        ...

    async def wait_while_warming(self, timeout: timedelta) -> None:
        """Wait until vectors are no longer being made, or until the time is over."""
        ...

    def put(self, slot: int, tool: SearchDocument) -> None:
        """Put a tool at a slot; the index makes its vector in the background."""
        ...

    def remove(self, slot: int) -> None: ...

    async def find_nearest(
        self, query: str, visible_mask: bytes | None, limit: int, also: Sequence[int] = ()
    ) -> SimilarityResult:
        """Return the tools nearest to a query. Raises Unavailable if the model cannot be used."""
        ...

    async def close(self) -> None: ...


class Embedder(Protocol):
    """A model that turns a text into a vector."""

    @property
    def name(self) -> str:
        """The model and its version; vectors of different names are not comparable."""
        ...

    @property
    def size(self) -> int: ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return a unit vector for each text. Raises Unavailable if the model cannot be used."""
        ...

    async def close(self) -> None: ...


class TokenCounter(Protocol):
    """Counts the tokens that a text takes in a model's context."""

    @property
    def method(self) -> str:
        """The method of counting, such as `o200k` or `bytes/4.3`."""
        ...

    @property
    def is_exact(self) -> bool:
        """Whether the count is that of a tokenizer, and not an estimate."""
        ...

    def count(self, text: bytes) -> int: ...


BYTES_PER_STEP: Final = 40_000
"""Bytes of definitions that are read in some milliseconds, before other tasks run."""


MIN_TOOL_COST: Final = 4_000
"""The least cost of a tool in bytes, however short its definition."""


MAX_REMEMBERED_CHANGES: Final = 50_000


CATCH_UP_TIMEOUT_SECONDS: Final = 10.0


SMALL_BACKLOG: Final = 10_000
"""The number of pending tools that a search waits for.

Indexing them takes seconds, and a client cannot tell that results are missing.
"""


RISK_LEVELS: Final = tuple(Risk)


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """The title and description of a server, as far as search uses them."""

    title: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class ToolAvailability:
    """Whether a tool can be called now, and its risk."""

    is_callable: bool = True
    risk: Risk = Risk.DANGEROUS


type WordsOf = Callable[[str], ServerDescription]


type UsableOf = Callable[[CatalogEntry], ToolAvailability]


class ToolIndex:
    """The tools of all servers by slot, with indexes by word, name and category."""

    def __init__(
        self,
        catalog: Catalog,
        describe_server: WordsOf,
        availability_of: UsableOf,
        vector_index: VectorIndex | None = None,
    ) -> None:
        self._catalog = catalog
        # Indexing starts with the first search, or earlier if `start` is called.
        self._has_begun = False
        self._describe_server = describe_server
        self._availability_of = availability_of
        self._vector_index = vector_index
        self.words = WordIndex()
        self.names = NameIndex()
        self.entries: list[CatalogEntry | None] = []
        self.usable = bytearray()
        self.risks = bytearray()
        self.categories: dict[str, array[int]] = {}
        self.server_descriptions: dict[str, ServerDescription] = {}
        # The number of changes so far, and the slots of the last MOST_CHANGES of them.
        self.generation = 0
        self.changed_slots: deque[int] = deque(maxlen=MAX_REMEMBERED_CHANGES)
        self._categories_by_slot: list[tuple[str, ...]] = []
        self._free_slots: list[int] = []
        self._slots_by_server: dict[str, dict[str, int]] = {}
        self._waiting_servers: dict[str, None] = {}
        self._background_tasks = BackgroundTasks("the index of tools")
        catalog.watch(self._on_catalog_changed)
        for server in catalog.servers(EntryKind.TOOL):
            self._on_catalog_changed(server, EntryKind.TOOL)

    def __len__(self) -> int:
        """Return the number of tools; there may be more slots."""
        return len(self.entries) - len(self._free_slots)

    @property
    def servers(self) -> Iterable[str]:
        return self._slots_by_server.keys()

    def slots_of(self, server: str) -> Iterable[int]:
        return self._slots_by_server.get(server, _NO_SLOTS).values()

    def slot_of(self, server: str, name: str) -> int | None:
        return self._slots_by_server.get(server, _NO_SLOTS).get(name)

    def entry_at(self, slot: int) -> CatalogEntry | None:
        """Return the tool at a slot, if the catalog still has the same definition."""
        offer = self.entries[slot] if slot < len(self.entries) else None
        if offer is None:
            return None
        held = self._catalog.find_own(offer.server, EntryKind.TOOL, offer.name)
        is_same = held is offer or (held is not None and held.definition == offer.definition)
        return held if is_same else None

    async def wait_for_recent(self) -> None:
        """Wait until recent changes are indexed.

        With a long backlog, the search runs on the index as it is.
        """
        behind = sum(
            self._catalog.count(server, EntryKind.TOOL) for server in self._waiting_servers
        )
        is_known = self._has_begun and behind > SMALL_BACKLOG
        self.start()
        if is_known:
            return
        if len(self._background_tasks):
            try:
                async with asyncio.timeout(CATCH_UP_TIMEOUT_SECONDS):
                    await self._background_tasks.finish()
            except TimeoutError:
                log.info("searched while the index was behind by %d tools", behind)

    async def wait_until_indexed(self) -> None:
        """Wait until all changes are indexed."""
        self.start()
        await self._background_tasks.finish()

    def stop(self) -> None:
        self._background_tasks.cancel()

    def reindex_server(self, server: str) -> None:
        """Index a server again whose tools have new reviews, though its list is the same."""
        self._on_catalog_changed(server, EntryKind.TOOL)

    def _on_catalog_changed(self, server: str, kind: EntryKind) -> None:
        if kind is EntryKind.TOOL:
            self._waiting_servers[server] = None
            if self._has_begun:
                self.start()

    def start(self) -> None:
        """Start to index, and keep the index up to date from now on."""
        self._has_begun = True
        if self._waiting_servers and not len(self._background_tasks):
            self._background_tasks.start(self._index_waiting())

    async def _index_waiting(self) -> None:
        while self._waiting_servers:
            server = next(iter(self._waiting_servers))
            del self._waiting_servers[server]
            await self._index_server(server)

    async def _index_server(self, server: str) -> None:
        about = self._describe_server(server)
        is_same = self.server_descriptions.get(server) == about
        held = self._slots_by_server.setdefault(server, {})
        offered = {offer.name: offer for offer in self._catalog.entries(server, EntryKind.TOOL)}
        self.server_descriptions[server] = about
        spent = 0
        for name, slot in list(held.items()):
            offer, now = self.entries[slot], offered.get(name)
            if not is_same or offer is None or now is None or now.definition != offer.definition:
                self._remove_tool(held, name)
            else:
                self.entries[slot] = now
                self._update_availability(slot)
            spent = await _yield_if_long(spent)
        for name, offer in offered.items():
            if name not in held:
                self._add_tool(held, offer, about)
                spent = await _yield_if_long(spent, len(offer.definition))
        if not held:
            del self._slots_by_server[server], self.server_descriptions[server]

    def _add_tool(
        self, slot_by_name: dict[str, int], entry: CatalogEntry, about: ServerDescription
    ) -> None:
        slot = self._free_slots.pop() if self._free_slots else self._add_slot()
        facts = extract_facts(entry.name, entry.definition)
        slot_by_name[entry.name] = slot
        self.entries[slot] = entry
        self.words.put(
            slot, word_impacts(field_texts(entry.name, facts, about.title, about.description))
        )
        self.names.put(slot, entry.name, entry.key)
        self._categories_by_slot[slot] = facts.categories
        for category in _with_parents(facts.categories):
            slots = self.categories.setdefault(category, array("I"))
            slots.insert(bisect_left(slots, slot), slot)
        self._update_availability(slot, is_new=True)
        if self._vector_index is not None:
            self._vector_index.put(slot, to_search_document(entry, facts, about))

    def _remove_tool(self, slot_by_name: dict[str, int], name: str) -> None:
        slot = slot_by_name.pop(name)
        offer = self.entries[slot]
        if offer is not None:
            self.names.remove(slot, offer.name, offer.key)
        self.words.remove(slot)
        for category in _with_parents(self._categories_by_slot[slot]):
            slots = self.categories[category]
            del slots[bisect_left(slots, slot)]
            if not slots:
                del self.categories[category]
        self.entries[slot], self._categories_by_slot[slot] = None, ()
        self.usable[slot] = 0
        self._free_slots.append(slot)
        self._record_change(slot)
        if self._vector_index is not None:
            self._vector_index.remove(slot)

    def _add_slot(self) -> int:
        self.entries.append(None)
        self._categories_by_slot.append(())
        self.usable.append(0)
        self.risks.append(0)
        return len(self.entries) - 1

    def _update_availability(self, slot: int, *, is_new: bool = False) -> None:
        offer = self.entries[slot]
        usable = (
            ToolAvailability(is_callable=False) if offer is None else self._availability_of(offer)
        )
        found = (int(usable.is_callable), RISK_LEVELS.index(usable.risk))
        if is_new or found != (self.usable[slot], self.risks[slot]):
            self.usable[slot], self.risks[slot] = found
            self._record_change(slot)

    def _record_change(self, slot: int) -> None:
        self.generation += 1
        self.changed_slots.append(slot)


_NO_SLOTS: Final[dict[str, int]] = {}


def to_search_document(
    entry: CatalogEntry, facts: ToolFacts, about: ServerDescription
) -> SearchDocument:
    """Return a tool in the form from which an embedder makes vectors."""
    return SearchDocument(
        server=entry.server,
        name=entry.name,
        title=facts.title,
        description=facts.description,
        parameters=facts.parameters,
        server_title=about.title,
        server_description=about.description,
        categories=facts.categories,
        keywords=facts.keywords,
    )


def _with_parents(categories: Iterable[str]) -> Iterator[str]:
    yield from dict.fromkeys(
        each for category in categories for each in category_and_parents(category)
    )


async def _yield_if_long(spent: int, size: int = 0) -> int:
    spent += size + MIN_TOOL_COST if size else MIN_TOOL_COST // 20
    if spent < BYTES_PER_STEP:
        return spent
    await asyncio.sleep(0)
    return 0
