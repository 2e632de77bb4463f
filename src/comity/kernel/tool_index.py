"""Every tool of the catalog as it is searched, kept in step with it, one server at a time.

Rule 1: a tool has a slot while it is as it is. One that has changed gives its slot back and gets
        another; so a slot that was seen stays what it was, or is noted in `changed`.
Rule 2: a server's change costs what that server costs, in pieces, so that nobody is held up.
Rule 3: what is known here is for finding. Who may see a tool is judged at the gate, each time.
"""

import asyncio
import logging
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from comity.kernel.catalog import Catalog, Kind, Offer
from comity.kernel.chores import Chores
from comity.ports.finding import Searchable, Similarity
from comity.rules.search_index import WordIndex
from comity.rules.search_names import NameIndex
from comity.rules.search_words import impacts
from comity.rules.tool_facts import Facts, facts_of, holders_of, texts_of
from comity.wire.security import Risk

log = logging.getLogger(__name__)

PIECE: Final = 40_000
"""So many bytes of definitions are read in some milliseconds."""

EACH: Final = 4_000
"""What any tool counts, however short it is."""

MOST_CHANGES: Final = 50_000
PATIENCE_SECONDS: Final = 10.0
SMALL_BACKLOG: Final = 10_000
"""Tools that a search waits for: that takes seconds, and who finds too little cannot know."""

RISKS: Final = tuple(Risk)


@dataclass(frozen=True, slots=True)
class ServerWords:
    """What a server says of itself, as far as tools are found by it."""

    title: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class Usable:
    """Whether anybody can call a tool just now, and how risky it counts as."""

    now: bool = True
    risk: Risk = Risk.DANGEROUS


type WordsOf = Callable[[str], ServerWords]
type UsableOf = Callable[[Offer], Usable]


class ToolIndex:
    """The tools of all servers by slot, and by all that they are found by."""

    def __init__(
        self,
        catalog: Catalog,
        words_of: WordsOf,
        usable_of: UsableOf,
        similarity: Similarity | None = None,
    ) -> None:
        self._catalog = catalog
        # Until somebody searches nothing is read, unless that is to be expected.
        self._has_begun = False
        self._words_of = words_of
        self._usable_of = usable_of
        self._similarity = similarity
        self.words = WordIndex()
        self.names = NameIndex()
        self.offers: list[Offer | None] = []
        self.usable = bytearray()
        self.risks = bytearray()
        self.categories: dict[str, array[int]] = {}
        self.about: dict[str, ServerWords] = {}
        # How often anything has changed, and at which slots it did the last so many times.
        self.generation = 0
        self.changed: deque[int] = deque(maxlen=MOST_CHANGES)
        self._of_slot: list[tuple[str, ...]] = []
        self._free: list[int] = []
        self._slots: dict[str, dict[str, int]] = {}
        self._waiting: dict[str, None] = {}
        self._chores = Chores("the index of tools")
        catalog.watch(self._noticed)
        for server in catalog.servers(Kind.TOOL):
            self._noticed(server, Kind.TOOL)

    def __len__(self) -> int:
        """How many tools there are; the slots may be more."""
        return len(self.offers) - len(self._free)

    @property
    def servers(self) -> Iterable[str]:
        return self._slots.keys()

    def slots_of(self, server: str) -> Iterable[int]:
        return self._slots.get(server, _NO_SLOTS).values()

    def slot(self, server: str, name: str) -> int | None:
        return self._slots.get(server, _NO_SLOTS).get(name)

    def at(self, slot: int) -> Offer | None:
        """The tool at a slot, if it is still offered like this."""
        offer = self.offers[slot] if slot < len(self.offers) else None
        if offer is None:
            return None
        held = self._catalog.offered(offer.server, Kind.TOOL, offer.name)
        is_same = held is offer or (held is not None and held.definition == offer.definition)
        return held if is_same else None

    def categories_at(self, slot: int) -> tuple[str, ...]:
        return self._of_slot[slot]

    async def caught_up(self) -> None:
        """Until what has changed is known here, if that is soon; else it is searched as it is."""
        behind = sum(self._catalog.count(server, Kind.TOOL) for server in self._waiting)
        is_known = self._has_begun and behind > SMALL_BACKLOG
        self.begin()
        if is_known:
            return
        if len(self._chores):
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self._chores.finish()
            except TimeoutError:
                log.info("searched while the index was behind by %d tools", behind)

    async def settle(self) -> None:
        """Until all that has changed is known here."""
        self.begin()
        await self._chores.finish()

    def stop(self) -> None:
        self._chores.cancel()

    def look_again(self, server: str) -> None:
        """Some of a server's tools may stand otherwise now, though it offers what it did."""
        self._noticed(server, Kind.TOOL)

    def _noticed(self, server: str, kind: Kind) -> None:
        if kind is Kind.TOOL:
            self._waiting[server] = None
            if self._has_begun:
                self.begin()

    def begin(self) -> None:
        """Read what has changed, and from now on whatever does."""
        self._has_begun = True
        if self._waiting and not len(self._chores):
            self._chores.start(self._catch_up())

    async def _catch_up(self) -> None:
        while self._waiting:
            server = next(iter(self._waiting))
            del self._waiting[server]
            await self._renew(server)

    async def _renew(self, server: str) -> None:
        about = self._words_of(server)
        is_same = self.about.get(server) == about
        held = self._slots.setdefault(server, {})
        offered = {offer.name: offer for offer in self._catalog.offers(server, Kind.TOOL)}
        self.about[server] = about
        spent = 0
        for name, slot in list(held.items()):
            offer, now = self.offers[slot], offered.get(name)
            if not is_same or offer is None or now is None or now.definition != offer.definition:
                self._drop(held, name)
            else:
                self.offers[slot] = now
                self._look_again(slot)
            spent = await _breathe(spent)
        for name, offer in offered.items():
            if name not in held:
                self._put(held, offer, about)
                spent = await _breathe(spent, len(offer.definition))
        if not held:
            del self._slots[server], self.about[server]

    def _put(self, held: dict[str, int], offer: Offer, about: ServerWords) -> None:
        slot = self._free.pop() if self._free else self._grow()
        facts = facts_of(offer.name, offer.definition)
        held[offer.name] = slot
        self.offers[slot] = offer
        self.words.put(slot, impacts(texts_of(offer.name, facts, about.title, about.description)))
        self.names.put(slot, offer.name, offer.key)
        self._of_slot[slot] = facts.categories
        for category in _all_of(facts.categories):
            slots = self.categories.setdefault(category, array("I"))
            slots.insert(bisect_left(slots, slot), slot)
        self._look_again(slot, is_new=True)
        if self._similarity is not None:
            self._similarity.put(slot, searchable(offer, facts, about))

    def _drop(self, held: dict[str, int], name: str) -> None:
        slot = held.pop(name)
        offer = self.offers[slot]
        if offer is not None:
            self.names.drop(slot, offer.name, offer.key)
        self.words.drop(slot)
        for category in _all_of(self._of_slot[slot]):
            slots = self.categories[category]
            del slots[bisect_left(slots, slot)]
            if not slots:
                del self.categories[category]
        self.offers[slot], self._of_slot[slot] = None, ()
        self.usable[slot] = 0
        self._free.append(slot)
        self._note(slot)
        if self._similarity is not None:
            self._similarity.drop(slot)

    def _grow(self) -> int:
        self.offers.append(None)
        self._of_slot.append(())
        self.usable.append(0)
        self.risks.append(0)
        return len(self.offers) - 1

    def _look_again(self, slot: int, *, is_new: bool = False) -> None:
        offer = self.offers[slot]
        usable = Usable(now=False) if offer is None else self._usable_of(offer)
        found = (int(usable.now), RISKS.index(usable.risk))
        if is_new or found != (self.usable[slot], self.risks[slot]):
            self.usable[slot], self.risks[slot] = found
            self._note(slot)

    def _note(self, slot: int) -> None:
        self.generation += 1
        self.changed.append(slot)


_NO_SLOTS: Final[dict[str, int]] = {}


def searchable(offer: Offer, facts: Facts, about: ServerWords) -> Searchable:
    """A tool as those see it who make vectors of what it means."""
    return Searchable(
        server=offer.server,
        name=offer.name,
        title=facts.title,
        description=facts.description,
        parameters=facts.parameters,
        server_title=about.title,
        server_description=about.description,
        categories=facts.categories,
        keywords=facts.keywords,
    )


def _all_of(categories: Iterable[str]) -> Iterator[str]:
    yield from dict.fromkeys(each for category in categories for each in holders_of(category))


async def _breathe(spent: int, size: int = 0) -> int:
    spent += size + EACH if size else EACH // 20
    if spent < PIECE:
        return spent
    await asyncio.sleep(0)
    return 0
