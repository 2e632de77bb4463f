"""How well tools are found: questions with known answers, through the gateway's own search."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from bench.progress import say
from bench.search_sets import OWN, Collection, Row, collections
from comity.catalog.catalog import Catalog
from comity.catalog.discovery_messages import DEFINITIONS, LISTED_TOOLS, MetaTool
from comity.catalog.search.ranking import MAX_RESULTS, SearchQuery, SearchStrategy
from comity.catalog.search.service import ToolSearch, fastest_scoring
from comity.catalog.search.tool_index import ServerDescription, VectorIndex
from comity.catalog.semantic.embedders import open_minilm, open_vector_index
from comity.catalog.token_counter import open_token_counter
from comity.errors import Misconfigured
from comity.gateway.pipeline import CallGate
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.protocol import public_name

STRATEGIES = (SearchStrategy.KEYWORD, SearchStrategy.SEMANTIC, SearchStrategy.HYBRID)
_WHO = Actor("agent:bench")


@dataclass(frozen=True, slots=True)
class Plan:
    """The folders of the sets; and one in which vectors are kept from run to run."""

    folders: tuple[Path, ...] = (OWN,)
    vectors: Path | None = None


@dataclass(slots=True)
class Asked:
    """One question: the places at which each right answer was found, and the scores shown."""

    places: list[int | None]
    # Of the first ten: the score that was shown, and whether it was right.
    scores: list[tuple[float, bool]]
    found: list[str]
    task: str = ""
    task_groups: list[list[str]] = field(default_factory=list[list[str]])

    @property
    def is_hopeless(self) -> bool:
        """No tool of the set is right, neither for this question nor for the task it is part of."""
        return not self.places and not self.task_groups


@dataclass(frozen=True, slots=True)
class Cost:
    """What definitions cost in a context: all, five found ones, and the gateway's own."""

    tools: int
    all: int
    five: float
    # Of the gateway's own tools: all of them, or the search alone.
    own: int
    search: int
    counted_by: str

    def saved(self, own: int) -> float:
        """The share of tokens that is saved where so many go to the gateway's own tools."""
        return 1 - (self.five + own) / self.all


@dataclass(slots=True)
class Findings:
    """What every question brought, by set and strategy; and what definitions cost."""

    asked: dict[tuple[str, str], list[Asked]] = field(
        default_factory=dict[tuple[str, str], list[Asked]]
    )
    costs: dict[str, Cost] = field(default_factory=dict[str, Cost])
    skipped: list[str] = field(default_factory=list[str])


async def measure(plan: Plan) -> Findings:
    findings = Findings()
    for collection in collections(plan.folders):
        await _measure(plan, findings, collection)
    return findings


async def _measure(plan: Plan, findings: Findings, collection: Collection) -> None:
    similarity = _similarity(plan, findings)
    tools = collection.tools()
    say(f"{collection.name}: {len(tools)} tools")
    finder, ids = _finder(tools, similarity)
    try:
        await finder.index.wait_until_indexed()
        if similarity is not None:
            say("vectors are made; once made they are kept where --vectors says")
            await _complete(similarity)
        for name in collection.sets:
            questions = collection.questions(name)
            for strategy in STRATEGIES if similarity is not None else STRATEGIES[:1]:
                asked = [await _ask(finder, ids, row, strategy) for row in questions]
                findings.asked[name, strategy] = asked
            say(f"{name}: {len(questions)} questions")
        _count_tokens(findings, finder, ids, collection)
    finally:
        finder.stop()
        if similarity is not None:
            await similarity.close()


def _similarity(plan: Plan, findings: Findings) -> VectorIndex | None:
    try:
        return open_vector_index(open_minilm(), plan.vectors)
    except Misconfigured as missing:
        said = f"semantic and hybrid: {missing}"
        if said not in findings.skipped:
            findings.skipped.append(said)
        return None


async def _complete(similarity: VectorIndex) -> None:
    settled: Callable[[], Any] = getattr(similarity, "wait_until_complete")  # noqa: B009 - of this adapter alone
    while not similarity.is_complete:
        await settled()


def _finder(tools: list[Row], similarity: VectorIndex | None) -> tuple[ToolSearch, dict[str, str]]:
    """Every tool on the shelf of its server. A second one of the same name needs another server."""
    catalog = Catalog()
    shelves: dict[str, list[CatalogEntry]] = {}
    about: dict[str, ServerDescription] = {}
    ids: dict[str, str] = {}
    held: set[tuple[str, str]] = set()
    for tool in tools:
        server, number = tool["server"], 1
        while (server, tool["name"]) in held:
            number += 1
            server = f"{tool['server']}.{number}"
        held.add((server, tool["name"]))
        about[server] = ServerDescription(
            tool["server_title"] or "", tool["server_description"] or ""
        )
        offer = _offer(server, tool)
        shelves.setdefault(server, []).append(offer)
        ids[offer.key] = tool["id"]
    for server, offers in shelves.items():
        catalog.put(server, EntryKind.TOOL, offers)
    finder = ToolSearch(CallGate(catalog), similarity, about.__getitem__, scorer=fastest_scoring())
    return finder, ids


def _offer(server: str, tool: Row) -> CatalogEntry:
    key = public_name(server, tool["name"])
    definition = {
        "name": key,
        "description": tool["description"] or "",
        "inputSchema": tool["inputSchema"] or {"type": "object"},
    }
    return CatalogEntry(
        key, server, tool["name"], json.dumps(definition, ensure_ascii=False).encode()
    )


async def _ask(
    finder: ToolSearch, ids: dict[str, str], row: Row, strategy: SearchStrategy
) -> Asked:
    findings = await finder.find(_WHO, SearchQuery(row["query"], strategy, MAX_RESULTS))
    found = [ids[each.entry.key] for each in findings.hits]
    place = {tool: at for at, tool in reversed(list(enumerate(found)))}
    groups: list[list[str]] = row["gold_groups"]
    places = [
        min((place[each] for each in group if each in place), default=None) for group in groups
    ]
    right = {each for group in groups for each in group}
    scores = [(each.score, ids[each.entry.key] in right) for each in findings.hits[:10]]
    task_groups = row.get("task_gold_groups", [])
    return Asked(places, scores, found[:10], row.get("task_id", ""), task_groups)


def _count_tokens(
    findings: Findings, finder: ToolSearch, ids: dict[str, str], collection: Collection
) -> None:
    """What all definitions cost in a context, beside the gateway's own and the five found."""
    tokens = open_token_counter(os.environ)
    offers = [offer for offer in finder.index.entries if offer is not None]
    cost = {ids[offer.key]: tokens.count(offer.definition) for offer in offers}
    name = collection.sets[0]
    asked = (
        findings.asked.get((name, SearchStrategy.HYBRID))
        or findings.asked[name, SearchStrategy.KEYWORD]
    )
    findings.costs[collection.name] = Cost(
        len(cost),
        sum(cost.values()),
        fmean(sum(cost[tool] for tool in each.found[:5]) for each in asked),
        sum(tokens.count(DEFINITIONS[tool]) for tool in LISTED_TOOLS),
        tokens.count(DEFINITIONS[MetaTool.SEARCH]),
        tokens.method,
    )
