"""Finds tools: among those that whoever asks may call, and no others. (MGP §16.4, §16.5)

Rule 1: what may not be called is left out before anything is ranked or counted.
Rule 2: what was found is judged at the gate once more before it is shown.
Rule 3: without vectors words find alone, and the answer says so. (D-32)
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import Any, Final

from comity.kernel.catalog import Kind, Offer
from comity.kernel.catalog_access import CatalogAccess
from comity.kernel.searching import POOL, SPARE, Field, Search
from comity.kernel.seen_tools import SeenTools
from comity.kernel.tool_index import RISKS, ServerWords, ToolIndex, Usable, WordsOf, searchable
from comity.ports.finding import Nearness, Searchable, Similarity
from comity.rules import search_masks
from comity.rules.catalogue import read_tool, tags_of
from comity.rules.search import (
    BY_BOTH,
    BY_MEANING,
    BY_WORDS,
    MOST_FOUND,
    Category,
    Evidence,
    Query,
    Strategy,
    by_share,
    ranked,
    round_robin,
    scored,
)
from comity.rules.search_scores import PlainScoring, Scoring
from comity.rules.search_words import words
from comity.rules.tool_facts import category_of, facts_of, holders_of, permissions_of
from comity.wire.errors import Unavailable
from comity.wire.parties import Actor
from comity.wire.security import Risk

NEAREST: Final = 100
MOST_CATEGORIES: Final = 500

type StatusOf = Callable[[str], str]
"""The state of a server, as `connected`."""


@dataclass(frozen=True, slots=True)
class Found:
    """A tool, how likely it is what was meant (0 to 1), and what speaks for it."""

    offer: Offer
    score: float
    parts: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class Findings:
    """What a search found, of how many tools that could have been found.

    `fallback` is what had to stand in for meaning, where some tools had no vectors, or all.
    """

    found: list[Found]
    total: int
    strategy: Strategy
    fallback: Strategy | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a tool beside its definition."""

    searchable: Searchable
    risk: Risk
    # Also what was not declared as such: the words of its name, its hints.
    keywords: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()


class Finder:
    """The one search of the catalog, for every door."""

    def __init__(
        self,
        gate: CatalogAccess,
        similarity: Similarity | None = None,
        words_of: WordsOf = lambda _: ServerWords(),
        status_of: StatusOf = lambda _: "connected",
        scoring: Scoring[Any] | None = None,
    ) -> None:
        self._gate = gate
        self._similarity = similarity
        self._words_of = words_of
        self._status_of = status_of
        self._scoring: Scoring[Any] = PlainScoring() if scoring is None else scoring
        self.index = ToolIndex(gate.catalog, words_of, self._usable, similarity)
        self._seen = SeenTools(self.index, gate)

    async def find(self, actor: Actor, query: Query) -> Findings:
        """The tools that fit best. Raises Unavailable where nobody can know what may be seen."""
        began = time.perf_counter()
        among = await self._among(actor, query)
        most = min(query.most, MOST_FOUND)
        # Where words alone decide, those after the last that is wanted need no weighing.
        pool = most + SPARE if query.strategy is Strategy.KEYWORD else POOL + SPARE
        search = Search(self.index, self._scoring, query.text, among, pool)
        fallback = None
        if query.strategy is Strategy.CATEGORY:
            self._by_category(search)
            by = by_share
        else:
            by, fallback = await self._by_evidence(search, query.strategy, among)
        found = self._shown(actor, search, by, most)
        spent = time.perf_counter() - began
        return Findings(found, among.count, query.strategy, fallback, spent)

    async def find_all(self, actor: Actor, queries: Sequence[Query]) -> Findings:
        """Several searches as one: the first of each, then the second of each."""
        began = time.perf_counter()
        each = [await self.find(actor, query) for query in queries]
        if not each:
            return Findings([], 0, Strategy.HYBRID)
        best: dict[str, Found] = {}
        for found in chain.from_iterable(findings.found for findings in each):
            held = best.get(found.offer.key)
            best[found.offer.key] = found if held is None or found.score > held.score else held
        keys = [[found.offer.key for found in findings.found] for findings in each]
        merged = [best[key] for key in round_robin(keys, max(query.most for query in queries))]
        fallback = next((found.fallback for found in each if found.fallback is not None), None)
        total = max(findings.total for findings in each)
        spent = time.perf_counter() - began
        return Findings(merged, total, each[0].strategy, fallback, spent)

    async def categories(self, actor: Actor) -> Mapping[str, Category]:
        """The categories of what this actor may call, with counts. (MGP §16.3, level 1)"""
        return tree(await self.counted(actor, Query("")))

    async def counted(self, actor: Actor, query: Query) -> dict[str, int]:
        """How many tools are in each category, the largest first.

        Where the query names categories, only those and the ones below them are counted.
        """
        mask = (await self._among(actor, query)).mask
        named = {category_of(each) for each in query.categories}
        counts: dict[str, int] = {}
        for category, slots in self.index.categories.items():
            count = sum(map(mask.__getitem__, slots))
            if count and (not named or not named.isdisjoint(holders_of(category))):
                counts[category] = count
        largest = sorted(counts, key=lambda each: (-counts[each], each))[:MOST_CATEGORIES]
        return {category: counts[category] for category in largest}

    def facts(self, offer: Offer) -> Known:
        """What is known of a tool: how it is described, where it belongs, what it risks."""
        facts = facts_of(offer.name, offer.definition)
        about = self.index.about.get(offer.server) or self._words_of(offer.server)
        tool = read_tool(offer.definition)
        return Known(
            searchable(offer, facts, about),
            self._usable(offer).risk,
            tuple(tags_of(offer.server, offer.name, tool)),
            permissions_of(tool),
        )

    @property
    def remembered(self) -> int:
        """Of how many parties it is known what they see."""
        return len(self._seen)

    def stop(self) -> None:
        self.index.stop()

    def _usable(self, offer: Offer) -> Usable:
        standing = self._gate.standing(offer)
        if standing is None:
            return Usable()
        return Usable(standing.refusal is None, standing.risk)

    async def _among(self, actor: Actor, query: Query) -> Field:
        """The tools that this search is about: seen by this actor, and let through by filters."""
        await self.index.caught_up()
        seen = await self._seen.by(actor)
        size = len(self.index.offers)
        mask = bytes(seen.mask).ljust(size, b"\0")
        masks: list[bytes] = []
        if query.risk_level_max is not None:
            level = RISKS.index(query.risk_level_max)
            masks.append(search_masks.up_to(bytes(self.index.risks), level))
        if query.categories:
            named = (self.index.categories.get(category_of(each), ()) for each in query.categories)
            masks.append(search_masks.of_slots(size, chain.from_iterable(named)))
        if query.servers or query.status is not None:
            there = (self.index.slots_of(each) for each in self._servers(query))
            masks.append(search_masks.of_slots(size, chain.from_iterable(there)))
        if not masks:
            return Field(mask, seen.count)
        mask = reduce(search_masks.both, masks, mask)
        return Field(mask, search_masks.count(mask))

    def _servers(self, query: Query) -> list[str]:
        wanted = query.servers or tuple(self.index.servers)
        if query.status is None:
            return list(wanted)
        return [server for server in wanted if self._status_of(server) == query.status]

    async def _by_evidence(
        self, search: Search, strategy: Strategy, among: Field
    ) -> tuple[Callable[[Evidence], float], Strategy | None]:
        search.add_words()
        if strategy is not Strategy.SEMANTIC:
            search.add_names()
        if strategy is Strategy.KEYWORD:
            return BY_WORDS, None
        nearness = await self._near(search, among)
        if nearness is None:
            search.add_names()
            return BY_WORDS, Strategy.KEYWORD
        search.add_meaning(nearness)
        is_complete = self._similarity is not None and self._similarity.is_complete
        fallback = None if is_complete else Strategy.KEYWORD
        if strategy is Strategy.HYBRID:
            return BY_BOTH, fallback
        search.forget_words()
        return BY_MEANING, fallback

    async def _near(self, search: Search, among: Field) -> Nearness | None:
        """None where there is no model, where it cannot be used, and while nothing has a vector."""
        if self._similarity is None or not search.text.strip():
            return None
        asked = list(search.evidence)
        try:
            found = await self._similarity.near(search.text, among.seen, NEAREST, asked)
        except Unavailable:
            return None
        return found if found.best else None

    def _by_category(self, search: Search) -> None:
        """All of the category that is named, or of those that have one of the words."""
        named = self.index.categories.get(category_of(search.text))
        if named is not None:
            search.add(named, 1.0)
            return
        said = set(words(search.text))
        for category, slots in self.index.categories.items():
            shared = len(said & set(words(category.rpartition("/")[2])))
            if shared:
                search.add(slots, shared / len(said))

    def _shown(
        self, actor: Actor, search: Search, by: Callable[[Evidence], float], most: int
    ) -> list[Found]:
        offers = {each.key: slot for slot, each in search.evidence.items()}
        order = ranked(search.evidence.values())
        found: list[Found] = []
        for each, likely in scored(order, by):
            if len(found) >= most:
                break
            offer = self.index.at(offers[each.key])
            if offer is not None and self._gate.shows(actor, Kind.TOOL, offer):
                found.append(Found(offer, likely, each.parts))
        return found


def tree(counts: Mapping[str, int]) -> dict[str, Category]:
    """Categories by what holds them."""
    found: dict[str, Category] = {}
    below: dict[str, dict[str, int]] = {}
    for category, count in counts.items():
        head, separator, rest = category.partition("/")
        if separator:
            below.setdefault(head, {})[rest] = count
        else:
            found[head] = Category(head, count)
    for head, deeper in below.items():
        held = found.get(head, Category(head, max(deeper.values())))
        found[head] = replace(held, below=tree(deeper))
    return dict(sorted(found.items()))
