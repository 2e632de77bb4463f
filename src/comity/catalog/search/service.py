"""Searches over the tools that a principal may see, by words, meaning and category."""

import heapq
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import reduce
from itertools import chain
from typing import Any, Final

from comity.catalog.access import START_RETRY_AFTER, CatalogAccess
from comity.catalog.catalog import read_tool, tags_of
from comity.catalog.search import index
from comity.catalog.search.index import PostingList
from comity.catalog.search.ranking import (
    EXACT_NAME_SCORE,
    GUESS_FACTORS,
    HYBRID_CALIBRATION,
    MAX_QUERY_LETTERS,
    MAX_QUERY_WORDS,
    MAX_RESULTS,
    MEANING_CALIBRATION,
    NAME_PREFIX_SCORE,
    SERVER_WEIGHT,
    WORDS_CALIBRATION,
    Category,
    Evidence,
    PythonScorer,
    QueryTerm,
    SearchQuery,
    SearchStrategy,
    TermScorer,
    TermStats,
    ideal_score,
    inverse_document_frequency,
    is_real_description,
    rank_evidence,
    round_robin,
    scale_value,
    score_by_share,
    score_evidence,
)
from comity.catalog.search.tool_index import (
    RISK_LEVELS,
    SearchDocument,
    ServerDescription,
    SimilarityResult,
    ToolAvailability,
    ToolIndex,
    VectorIndex,
    WordsOf,
    to_search_document,
)
from comity.catalog.search.visibility import VisibilityCache
from comity.catalog.search.words import (
    category_and_parents,
    category_of,
    extract_facts,
    permissions_of,
    stem_words,
)
from comity.errors import SERVER_NOT_READY, Unavailable
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.policy.risk import Risk


def fastest_scoring() -> TermScorer[Any]:
    """Return the numpy scorer if numpy is installed, else the Python one.

    Both give the same scores. 100,000 tools need numpy (`comity[semantic]`).
    """
    try:
        # numpy is an optional dependency.
        from comity.catalog.search.numpy_scorer import NumpyScorer
    except ModuleNotFoundError as missing:
        if missing.name != "numpy":
            raise
        return PythonScorer()
    return NumpyScorer()


log = logging.getLogger(__name__)


MAX_CANDIDATES: Final = 100
"""The number of best results by words, and by meaning, that are compared with each other."""

SPARE_CANDIDATES: Final = 16
"""Further candidates, since a tool may be gone by the time it is shown."""

MAX_GUESSES_PER_WORD: Final = 3
MAX_GUESSED_WORDS: Final = 4
MAX_PREFIX_MATCHES: Final = 100


@dataclass(frozen=True, slots=True)
class SearchScope:
    """The slots that a search covers, as a mask of one byte each, and their number."""

    mask: bytes
    count: int

    @property
    def mask_or_none(self) -> bytes | None:
        """The mask, or None if every slot is visible and no lookup is needed."""
        return None if self.count == len(self.mask) else self.mask


class SearchRun:
    """One query in progress; each `add_` method adds evidence for tools."""

    def __init__(
        self,
        index: ToolIndex,
        scorer: TermScorer[Any],
        text: str,
        scope: SearchScope,
        max_candidates: int = MAX_CANDIDATES,
    ) -> None:
        self._index = index
        self._scorer = scorer
        self._max_candidates = max_candidates
        self._mask, self._seen = scope.mask, scope.mask_or_none
        self.text = text[:MAX_QUERY_LETTERS]
        self.evidence: dict[int, Evidence] = {}
        self._missing = 0
        sought = list(self._query_terms(dict.fromkeys(stem_words(self.text)[:MAX_QUERY_WORDS])))
        self._scores = scorer.score(sought, scope.count, max_candidates)
        weighed = zip(self._scores.weights, sought, strict=True)
        # A word that no tool has still counts: no tool matches the whole query.
        weights = [weight for weight, each in weighed if each.factor == 1.0]
        self._ideal_score = ideal_score(
            [*weights, *([inverse_document_frequency(0, scope.count)] * self._missing)]
        )
        self._best_score = max((total for _, total in self._scores.best), default=0.0)

    def add_words(self) -> None:
        """Add the tools in which the words of the query weigh most."""
        best = self._scores.best
        if len(best) > self._max_candidates:
            best = heapq.nsmallest(
                self._max_candidates, best, key=lambda item: (-item[1], self._tool_key(item[0]))
            )
        for slot, total in best:
            self._evidence_of(slot, total)

    def add_names(self) -> None:
        """Add the tools whose name equals the query or begins with it."""
        for slot in self._visible_slots(self._index.names.find_exact(self.text)):
            self._evidence_of(slot).name = EXACT_NAME_SCORE
        beginning = self._visible_slots(self._index.names.find_by_prefix(self.text))
        for slot in heapq.nsmallest(MAX_PREFIX_MATCHES, beginning, key=self._tool_key):
            each = self._evidence_of(slot)
            each.name = max(each.name, NAME_PREFIX_SCORE)

    def add_meaning(self, similarity: SimilarityResult) -> None:
        """Add the nearest tools and the similarity of each; some tools have no vector yet."""
        asked = zip(list(self.evidence), similarity.also, strict=False)
        known = {slot: near for slot, near in asked if near is not None}
        known |= dict(self._existing_results(similarity.best))
        most = max(known.values(), default=0.0)
        for slot, near in known.items():
            each = self._evidence_of(slot)
            each.near = near
            each.meaning = scale_value(near, similarity.least, most)
        for slot, each in self.evidence.items():
            if each.near is None:
                each.meaning = each.words
            offer = self._index.entries[slot]
            about = None if offer is None else self._index.server_descriptions.get(offer.server)
            if offer is not None and about is not None and is_real_description(about.description):
                each.server = SERVER_WEIGHT * similarity.servers.get(offer.server, 0.0)

    def add(self, slots: Iterable[int], found: float) -> None:
        """Add tools that were found by other means than their words."""
        for slot in self._visible_slots(slots):
            each = self._evidence_of(slot)
            each.found = max(each.found, found)

    def forget_words(self) -> None:
        """Rank by meaning alone where it is known."""
        for each in self.evidence.values():
            if each.near is not None:
                each.words = 0.0

    def _evidence_of(self, slot: int, total: float | None = None) -> Evidence:
        each = self.evidence.get(slot)
        if each is None:
            total = self._scores.scores_at((slot,))[0] if total is None else total
            each = self.evidence[slot] = Evidence(self._tool_key(slot))
            if total:
                each.words, each.found = total / self._best_score, total / self._ideal_score
        return each

    def _sort_key(self, item: tuple[int, float]) -> tuple[float, str]:
        return -item[1], self._tool_key(item[0])

    def _tool_key(self, slot: int) -> str:
        offer = self._index.entries[slot]
        return "" if offer is None else offer.key

    def _existing_results(self, best: Iterable[tuple[int, float]]) -> Iterator[tuple[int, float]]:
        """Yield the results that still exist.

        The index may have changed during the similarity search.
        """
        offers = self._index.entries
        return ((slot, near) for slot, near in best if slot < len(offers) and offers[slot])

    def _visible_slots(self, slots: Iterable[int]) -> Iterator[int]:
        return (slot for slot in slots if slot < len(self._mask) and self._mask[slot])

    def _query_terms(self, words: Iterable[str]) -> Iterator[QueryTerm[Any]]:
        guessed = 0
        for word in words:
            met = self._term_stats(self._index.words.find_posting(word))
            if met is not None:
                yield QueryTerm(met)
                continue
            # The result must not show whether a word is absent or only in tools this principal
            # cannot see.
            self._missing += 1
            guessed += 1
            if guessed <= MAX_GUESSED_WORDS:
                yield from self._guess_terms(word)

    def _guess_terms(self, word: str) -> Iterator[QueryTerm[Any]]:
        found = 0
        for posting, distance in self._index.words.find_similar(word):
            met = self._term_stats(posting)
            if met is not None:
                yield QueryTerm(met, GUESS_FACTORS[distance])
                found += 1
            if found == MAX_GUESSES_PER_WORD:
                return

    def _term_stats(self, posting: PostingList | None) -> TermStats | None:
        met = None if posting is None else self._scorer.restrict(posting, self._seen)
        return met if met is not None and met.count else None


MAX_NEAREST_TOOLS: Final = 100
MAX_CATEGORIES: Final = 500

type StatusOf = Callable[[str], str]
"""Returns the state of a server, such as `connected`."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A found tool, the likelihood that it was meant (0 to 1), and the parts of its score."""

    entry: CatalogEntry
    score: float
    score_parts: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search, and the number of tools that it covered.

    `fallback` is the strategy used in place of meaning if some or all tools had no vectors.
    """

    hits: list[SearchHit]
    total: int
    strategy: SearchStrategy
    fallback: SearchStrategy | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ToolSummary:
    """The facts about a tool beside its definition."""

    searchable: SearchDocument
    risk: Risk
    # Declared keywords, the words of the name, and the hints.
    keywords: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()


class ToolSearch:
    """The search over the catalog, which every interface of the gateway uses."""

    def __init__(
        self,
        catalog_access: CatalogAccess,
        vector_index: VectorIndex | None = None,
        describe_server: WordsOf = lambda _: ServerDescription(),
        status_of: StatusOf = lambda _: "connected",
        scorer: TermScorer[Any] | None = None,
    ) -> None:
        self._catalog_access = catalog_access
        self._vector_index = vector_index
        self._describe_server = describe_server
        self._status_of = status_of
        self._scorer: TermScorer[Any] = PythonScorer() if scorer is None else scorer
        self.index = ToolIndex(
            catalog_access.catalog, describe_server, self._availability_of, vector_index
        )
        self._visibility_cache = VisibilityCache(self.index, catalog_access)

    async def find(self, actor: Actor, query: SearchQuery) -> SearchResult:
        """Return the best matching tools.

        Raises Unavailable if the grants cannot be read.
        """
        began = time.perf_counter()
        among = await self._search_scope(actor, query)
        most = min(query.most, MAX_RESULTS)
        # If words alone decide, results after the last wanted one need no scoring.
        pool = (
            most + SPARE_CANDIDATES
            if query.strategy is SearchStrategy.KEYWORD
            else MAX_CANDIDATES + SPARE_CANDIDATES
        )
        search = SearchRun(self.index, self._scorer, query.text, among, pool)
        fallback = None
        if query.strategy is SearchStrategy.CATEGORY:
            self._add_category_tools(search)
            by = score_by_share
        else:
            by, fallback = await self._collect_evidence(search, query.strategy, among)
        found = self._visible_hits(actor, search, by, most)
        spent = time.perf_counter() - began
        return SearchResult(found, among.count, query.strategy, fallback, spent)

    async def find_all(self, actor: Actor, queries: Sequence[SearchQuery]) -> SearchResult:
        """Merge several searches: the first result of each, then the second of each."""
        began = time.perf_counter()
        each = [await self.find(actor, query) for query in queries]
        if not each:
            return SearchResult([], 0, SearchStrategy.HYBRID)
        best: dict[str, SearchHit] = {}
        for found in chain.from_iterable(findings.hits for findings in each):
            held = best.get(found.entry.key)
            best[found.entry.key] = found if held is None or found.score > held.score else held
        keys = [[found.entry.key for found in findings.hits] for findings in each]
        merged = [best[key] for key in round_robin(keys, max(query.most for query in queries))]
        fallback = next((found.fallback for found in each if found.fallback is not None), None)
        total = max(findings.total for findings in each)
        spent = time.perf_counter() - began
        return SearchResult(merged, total, each[0].strategy, fallback, spent)

    async def categories(self, actor: Actor) -> Mapping[str, Category]:
        """Return the categories of the actor's tools, with counts. (MGP §16.3, level 1)"""
        return build_category_tree(await self.count_by_category(actor, SearchQuery("")))

    async def count_by_category(self, actor: Actor, query: SearchQuery) -> dict[str, int]:
        """Return the number of tools in each category, largest first.

        If the query names categories, only those and their subcategories are counted.
        """
        mask = (await self._search_scope(actor, query)).mask
        named = {category_of(each) for each in query.categories}
        counts: dict[str, int] = {}
        for category, slots in self.index.categories.items():
            count = sum(map(mask.__getitem__, slots))
            if count and (not named or not named.isdisjoint(category_and_parents(category))):
                counts[category] = count
        largest = sorted(counts, key=lambda each: (-counts[each], each))[:MAX_CATEGORIES]
        return {category: counts[category] for category in largest}

    def summarize_tool(self, entry: CatalogEntry) -> ToolSummary:
        """Return the description, categories, risk and permissions of a tool."""
        facts = extract_facts(entry.name, entry.definition)
        about = self.index.server_descriptions.get(entry.server) or self._describe_server(
            entry.server
        )
        tool = read_tool(entry.definition)
        return ToolSummary(
            to_search_document(entry, facts, about),
            self._availability_of(entry).risk,
            tuple(tags_of(entry.server, entry.name, tool)),
            permissions_of(tool),
        )

    @property
    def is_warming(self) -> bool:
        """Whether the vectors of tools are being made, so that a search finds more in a moment."""
        return self._vector_index is not None and self._vector_index.is_warming

    async def wait_while_warming(self, timeout: timedelta) -> None:
        if self._vector_index is not None:
            await self._vector_index.wait_while_warming(timeout)

    def require_complete(self, actor: Actor) -> None:
        """Raise Unavailable while a tool may be missing here that will be found in a moment."""
        if self.is_warming:
            reason = "the search index is being built, so not every tool can be found yet"
            raise Unavailable(reason, SERVER_NOT_READY, START_RETRY_AFTER)
        self._catalog_access.require_started(actor)

    @property
    def cached_masks(self) -> int:
        """The number of principals whose visibility mask is cached."""
        return len(self._visibility_cache)

    def stop(self) -> None:
        self.index.stop()

    def _availability_of(self, entry: CatalogEntry) -> ToolAvailability:
        standing = self._catalog_access.review_of(entry)
        if standing is None:
            return ToolAvailability()
        return ToolAvailability(standing.refusal is None, standing.risk)

    async def _search_scope(self, actor: Actor, query: SearchQuery) -> SearchScope:
        """Return the tools that this actor sees and that pass the filters of the query."""
        await self.index.wait_for_recent()
        seen = await self._visibility_cache.mask_of(actor)
        size = len(self.index.entries)
        mask = bytes(seen.mask).ljust(size, b"\0")
        masks: list[bytes] = []
        if query.risk_level_max is not None:
            level = RISK_LEVELS.index(query.risk_level_max)
            masks.append(index.mask_up_to_level(bytes(self.index.risks), level))
        if query.categories:
            named = (self.index.categories.get(category_of(each), ()) for each in query.categories)
            masks.append(index.mask_of_slots(size, chain.from_iterable(named)))
        if query.servers or query.status is not None:
            there = (self.index.slots_of(each) for each in self._matching_servers(query))
            masks.append(index.mask_of_slots(size, chain.from_iterable(there)))
        if not masks:
            return SearchScope(mask, seen.count)
        mask = reduce(index.intersect_masks, masks, mask)
        return SearchScope(mask, index.count_visible(mask))

    def _matching_servers(self, query: SearchQuery) -> list[str]:
        wanted = query.servers or tuple(self.index.servers)
        if query.status is None:
            return list(wanted)
        return [server for server in wanted if self._status_of(server) == query.status]

    async def _collect_evidence(
        self, search: SearchRun, strategy: SearchStrategy, among: SearchScope
    ) -> tuple[Callable[[Evidence], float], SearchStrategy | None]:
        search.add_words()
        if strategy is not SearchStrategy.SEMANTIC:
            search.add_names()
        if strategy is SearchStrategy.KEYWORD:
            return WORDS_CALIBRATION, None
        nearness = await self._find_nearest(search, among)
        if nearness is None:
            search.add_names()
            return WORDS_CALIBRATION, SearchStrategy.KEYWORD
        search.add_meaning(nearness)
        is_complete = self._vector_index is not None and self._vector_index.is_complete
        fallback = None if is_complete else SearchStrategy.KEYWORD
        if strategy is SearchStrategy.HYBRID:
            return HYBRID_CALIBRATION, fallback
        search.forget_words()
        return MEANING_CALIBRATION, fallback

    async def _find_nearest(self, search: SearchRun, among: SearchScope) -> SimilarityResult | None:
        """Return the nearest tools; None without a usable model or while no tool has a vector."""
        if self._vector_index is None or not search.text.strip():
            return None
        asked = list(search.evidence)
        try:
            found = await self._vector_index.find_nearest(
                search.text, among.mask_or_none, MAX_NEAREST_TOOLS, asked
            )
        except Unavailable:
            return None
        return found if found.best else None

    def _add_category_tools(self, search: SearchRun) -> None:
        """Add the tools of the named category, or of categories that share a word with it."""
        named = self.index.categories.get(category_of(search.text))
        if named is not None:
            search.add(named, 1.0)
            return
        said = set(stem_words(search.text))
        for category, slots in self.index.categories.items():
            shared = len(said & set(stem_words(category.rpartition("/")[2])))
            if shared:
                search.add(slots, shared / len(said))

    def _visible_hits(
        self, actor: Actor, search: SearchRun, by: Callable[[Evidence], float], most: int
    ) -> list[SearchHit]:
        offers = {each.key: slot for slot, each in search.evidence.items()}
        order = rank_evidence(search.evidence.values())
        found: list[SearchHit] = []
        for each, likely in score_evidence(order, by):
            if len(found) >= most:
                break
            offer = self.index.entry_at(offers[each.key])
            if offer is not None and self._catalog_access.is_listed(actor, EntryKind.TOOL, offer):
                found.append(SearchHit(offer, likely, each.parts))
        return found


def build_category_tree(counts: Mapping[str, int]) -> dict[str, Category]:
    """Nest categories under their parents.

    A parent that has no count of its own gets the largest count of its children.
    """
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
        found[head] = replace(held, below=build_category_tree(deeper))
    return dict(sorted(found.items()))
