"""How long a search takes among many tools, beside bare engines; and what a change costs."""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from statistics import median

import numpy as np

from bench.progress import say
from bench.search_corpus import PER_SERVER, fill, offer_of, queries, tools, words_of
from bench.search_peers import DIMENSIONS, BareVectors, BareWords, Fts5
from bench.search_sets import OWN
from comity.catalog.catalog import Catalog
from comity.catalog.search.ranking import PythonScorer, SearchQuery, SearchStrategy
from comity.catalog.search.service import ToolSearch, fastest_scoring
from comity.catalog.semantic.embedders import open_vector_index
from comity.gateway.pipeline import CallGate
from comity.mcp.actors import CALL, Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.policy.grants import Effect, Grant, GrantSet
from comity.policy.snapshot import GrantSnapshot

ALL, FEW = Actor("agent:all"), Actor("agent:few")
SEEN_ONE_IN = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """Among how many tools, with how many questions, how often each, from which folders of sets."""

    sizes: tuple[int, ...] = (1_000, 10_000, 100_000)
    questions: int = 60
    rounds: int = 5
    updates: int = 16
    folders: tuple[Path, ...] = (OWN,)


SHORT = Plan((1_000, 10_000), 20, 3, 8)


@dataclass(slots=True)
class Timed:
    """Every search of one kind: by the clock, and by the CPU of the whole process."""

    wall: list[float] = field(default_factory=list[float])
    cpu: list[float] = field(default_factory=list[float])

    @property
    def p50(self) -> float:
        return median(self.wall)

    @property
    def cpu_p50(self) -> float:
        return median(self.cpu)


@dataclass(slots=True)
class Cell:
    """What was measured among one number of tools."""

    size: int
    kinds: dict[str, Timed] = field(default_factory=dict[str, Timed])
    build_seconds: float = 0.0


type Search = Callable[[str], Awaitable[object]]


class _MadeUp:
    """An embedder that costs nothing, so that what is measured is the search."""

    name = "made-up"
    size = DIMENSIONS

    def __init__(self) -> None:
        table = np.random.default_rng(3).standard_normal((4_096, DIMENSIONS), np.float32)
        self._table = table / np.linalg.norm(table, axis=1, keepdims=True)

    def one(self, text: str) -> Sequence[float]:
        number = int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little")
        return self._table[number % len(self._table)]

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        return [self.one(text) for text in texts]

    async def close(self) -> None:
        return


async def measure(plan: Plan) -> list[Cell]:
    return [await _measure(plan, size) for size in plan.sizes]


async def _measure(plan: Plan, size: int) -> Cell:
    cell = Cell(size)
    say(f"{size:,} tools")
    catalog, embedder = Catalog(), _MadeUp()
    fill(catalog, plan.folders, size)
    similarity = open_vector_index(embedder, None)
    gate = CallGate(catalog, GrantSnapshot(GrantSet.from_grants(_grants(catalog))))
    finder = ToolSearch(gate, similarity, words_of, scorer=fastest_scoring())
    began = time.process_time()
    await finder.index.wait_until_indexed()
    cell.build_seconds = time.process_time() - began
    while not similarity.is_complete:
        await finder.find(ALL, SearchQuery("anything"))
    await _update(plan, cell, catalog, finder)
    plain = ToolSearch(gate, None, words_of, scorer=PythonScorer())
    await plain.index.wait_until_indexed()
    words, vectors = BareWords(finder.index), BareVectors(size, embedder.one)
    fts5 = Fts5(finder.index)

    async def bare_both(text: str) -> None:
        words.search(text)
        vectors.search(text)

    await _search(
        plan,
        cell,
        {
            "keyword": _by(finder, ALL, SearchStrategy.KEYWORD),
            "keyword, 99 % hidden": _by(finder, FEW, SearchStrategy.KEYWORD),
            "FTS5": _bare(fts5.search),
            "bare postings": _bare(words.search),
            "hybrid": _by(finder, ALL, SearchStrategy.HYBRID),
            "hybrid, 99 % hidden": _by(finder, FEW, SearchStrategy.HYBRID),
            "bare postings and bare dot": bare_both,
            "keyword without numpy": _by(plain, ALL, SearchStrategy.KEYWORD),
            "keyword without numpy, 99 % hidden": _by(plain, FEW, SearchStrategy.KEYWORD),
        },
    )
    for each in (finder, plain):
        each.stop()
    fts5.close()
    await similarity.close()
    return cell


def _grants(catalog: Catalog) -> list[Grant]:
    """Everything to one party; to another one server in a hundred."""
    few = catalog.servers(EntryKind.TOOL)[::SEEN_ONE_IN]
    return [
        Grant(ALL.party, CALL, "*/*", Effect.ALLOW),
        *(Grant(FEW.party, CALL, f"{server}/*", Effect.ALLOW) for server in few),
    ]


async def _search(plan: Plan, cell: Cell, kinds: dict[str, Search]) -> None:
    """Every kind has its turn at every question, so that a slow moment is slow for all."""
    asked = queries(plan.folders, plan.questions)
    for search in kinds.values():
        await search(asked[0])
    for _ in range(plan.rounds):
        for query in asked:
            for kind, search in kinds.items():
                cpu, wall = time.process_time(), time.perf_counter()
                await search(query)
                timed = cell.kinds.setdefault(kind, Timed())
                timed.cpu.append(time.process_time() - cpu)
                timed.wall.append(time.perf_counter() - wall)


async def _update(plan: Plan, cell: Cell, catalog: Catalog, finder: ToolSearch) -> None:
    """One server lists other tools than before: until the index holds them. An even number of
    times, so that those are there in the end that were there before."""
    server = catalog.servers(EntryKind.TOOL)[len(catalog.servers(EntryKind.TOOL)) // 2]
    before = list(catalog.entries(server, EntryKind.TOOL))
    others = [offer_of(made) for made in tools(plan.folders, PER_SERVER)]
    there = [CatalogEntry(o.key, server, o.name, o.definition) for o in others][: len(before)]
    timed = cell.kinds["update"] = Timed()
    for number in range(plan.updates):
        cpu, wall = time.process_time(), time.perf_counter()
        catalog.put(server, EntryKind.TOOL, before if number % 2 else there)
        await finder.index.wait_until_indexed()
        timed.cpu.append(time.process_time() - cpu)
        timed.wall.append(time.perf_counter() - wall)


def _by(finder: ToolSearch, actor: Actor, strategy: SearchStrategy) -> Search:
    async def search(text: str) -> None:
        await finder.find(actor, SearchQuery(text, strategy))

    return search


def _bare(found: Callable[[str], object]) -> Search:
    async def search(text: str) -> None:
        found(text)

    return search
