"""How well tools are found: questions with known answers, through the gateway's own search."""

import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.processes import ROOT
from bench.progress import say
from comity.adapters.embedders import open_meanings, open_minilm
from comity.adapters.token_counts import open_tokens
from comity.adapters.word_scores import fastest_scoring
from comity.kernel.catalog import Catalog, Kind, Offer
from comity.kernel.finding import Finder
from comity.kernel.gate import Gate
from comity.kernel.tool_index import ServerWords
from comity.ports.finding import Similarity
from comity.rules.meta_tools import DEFINITIONS, LISTED, MetaTool
from comity.rules.names import public_name
from comity.rules.search import MOST_FOUND, Query, Strategy
from comity.wire.errors import Misconfigured
from comity.wire.parties import Actor

COMMITTED = ROOT / "bench" / "data"
FOLDER_VARIABLE = "COMITY_DISCOVERY_DATA"
SETS = {
    "livemcp.step": "livemcp",
    "livemcp.agent": "livemcp",
    "bfcl": "bfcl",
    "metatool.single": "metatool",
    "seal.out": "seal",
    "seal.in": "seal",
    "metatool.multi": "metatool",
}
STRATEGIES = (Strategy.KEYWORD, Strategy.SEMANTIC, Strategy.HYBRID)
_WHO = Actor("agent:bench")

type Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """Which sets, from which folder; vectors are kept in another one from run to run."""

    sets: tuple[str, ...] = tuple(SETS)
    folder: Path | None = None
    vectors: Path | None = None


SHORT = Plan(("livemcp.step", "livemcp.agent"), COMMITTED)


@dataclass(slots=True)
class Asked:
    """One question: the places at which each right answer was found, and the scores shown."""

    places: list[int | None]
    # Of the first ten: the score that was shown, and whether it was right.
    scores: list[tuple[float, bool]]
    found: list[str]
    task: str = ""
    task_groups: list[list[str]] = field(default_factory=list[list[str]])


@dataclass(slots=True)
class Findings:
    """What every question brought, by set and strategy; and what definitions cost."""

    asked: dict[tuple[str, str], list[Asked]] = field(
        default_factory=dict[tuple[str, str], list[Asked]]
    )
    # What all tools cost, five found ones, and of the gateway's own all, or the search alone.
    all_tokens: int = 0
    five_tokens: float = 0.0
    own_tokens: int = 0
    search_tokens: int = 0
    counted_by: str = ""
    skipped: list[str] = field(default_factory=list[str])


def folder_of(given: Path | None) -> Path | None:
    """The folder of the sets: as told, or as the environment says."""
    named = os.environ.get(FOLDER_VARIABLE, "")
    return given or (Path(named) if named else None)


async def measure(plan: Plan) -> Findings:
    findings = Findings()
    if plan.folder is None:
        findings.skipped.append(f"no folder of sets: give --data, or set {FOLDER_VARIABLE}")
        return findings
    for collection in dict.fromkeys(SETS[name] for name in plan.sets):
        names = [name for name in plan.sets if SETS[name] == collection]
        tools = list(rows(plan.folder, f"{collection}.tools"))
        if not tools:
            findings.skipped.append(f"{collection}: its file is not in {plan.folder.name}")
            continue
        say(f"{collection}: {len(tools)} tools")
        await _measure(plan, findings, tools, names)
    return findings


async def _measure(plan: Plan, findings: Findings, tools: list[Row], names: Sequence[str]) -> None:
    similarity = _similarity(plan, findings)
    finder, ids = _finder(tools, similarity)
    try:
        await finder.index.settle()
        if similarity is not None:
            say("vectors are made; once made they are kept where --vectors says")
            await _complete(similarity)
        for name in names:
            assert plan.folder is not None
            questions = [row for row in rows(plan.folder, f"{name}.queries") if _counts(row)]
            for strategy in STRATEGIES if similarity is not None else STRATEGIES[:1]:
                asked = [await _ask(finder, ids, row, strategy) for row in questions]
                findings.asked[name, strategy] = asked
            say(f"{name}: {len(questions)} questions")
        if names[0].startswith("livemcp"):
            _count_tokens(findings, finder, ids, names[0])
    finally:
        finder.stop()
        if similarity is not None:
            await similarity.close()


def _similarity(plan: Plan, findings: Findings) -> Similarity | None:
    try:
        return open_meanings(open_minilm(), plan.vectors)
    except Misconfigured as missing:
        said = f"semantic and hybrid: {missing}"
        if said not in findings.skipped:
            findings.skipped.append(said)
        return None


async def _complete(similarity: Similarity) -> None:
    settled: Callable[[], Any] = getattr(similarity, "settled")  # noqa: B009 - of this adapter alone
    while not similarity.is_complete:
        await settled()


def _finder(tools: list[Row], similarity: Similarity | None) -> tuple[Finder, dict[str, str]]:
    """Every tool on the shelf of its server. A second one of the same name needs another server."""
    catalog = Catalog()
    shelves: dict[str, list[Offer]] = {}
    about: dict[str, ServerWords] = {}
    ids: dict[str, str] = {}
    held: set[tuple[str, str]] = set()
    for tool in tools:
        server, number = tool["server"], 1
        while (server, tool["name"]) in held:
            number += 1
            server = f"{tool['server']}.{number}"
        held.add((server, tool["name"]))
        about[server] = ServerWords(tool["server_title"] or "", tool["server_description"] or "")
        offer = _offer(server, tool)
        shelves.setdefault(server, []).append(offer)
        ids[offer.key] = tool["id"]
    for server, offers in shelves.items():
        catalog.put(server, Kind.TOOL, offers)
    finder = Finder(Gate(catalog), similarity, about.__getitem__, scoring=fastest_scoring())
    return finder, ids


def _offer(server: str, tool: Row) -> Offer:
    key = public_name(server, tool["name"])
    definition = {
        "name": key,
        "description": tool["description"] or "",
        "inputSchema": tool["inputSchema"] or {"type": "object"},
    }
    return Offer(key, server, tool["name"], json.dumps(definition, ensure_ascii=False).encode())


async def _ask(finder: Finder, ids: dict[str, str], row: Row, strategy: Strategy) -> Asked:
    findings = await finder.find(_WHO, Query(row["query"], strategy, MOST_FOUND))
    found = [ids[each.offer.key] for each in findings.found]
    place = {tool: at for at, tool in reversed(list(enumerate(found)))}
    groups: list[list[str]] = row["gold_groups"]
    places = [
        min((place[each] for each in group if each in place), default=None) for group in groups
    ]
    right = {each for group in groups for each in group}
    scores = [(each.score, ids[each.offer.key] in right) for each in findings.found[:10]]
    task_groups = row.get("task_gold_groups", [])
    return Asked(places, scores, found[:10], row.get("task_id", ""), task_groups)


def _count_tokens(findings: Findings, finder: Finder, ids: dict[str, str], name: str) -> None:
    """What all definitions cost in a context, beside the gateway's own and the five found."""
    tokens = open_tokens(os.environ)
    findings.counted_by = tokens.method
    offers = [offer for offer in finder.index.offers if offer is not None]
    cost = {ids[offer.key]: tokens.count(offer.definition) for offer in offers}
    findings.own_tokens = sum(tokens.count(DEFINITIONS[tool]) for tool in LISTED)
    findings.search_tokens = tokens.count(DEFINITIONS[MetaTool.SEARCH])
    findings.all_tokens = sum(cost.values())
    asked = findings.asked.get((name, Strategy.HYBRID)) or findings.asked[name, Strategy.KEYWORD]
    found = sum(cost[tool] for each in asked for tool in each.found[:5])
    findings.five_tokens = found / max(1, len(asked))


def _counts(row: Row) -> bool:
    return bool(row["gold_groups"] or row.get("task_gold_groups"))


def rows(folder: Path, name: str) -> Iterator[Row]:
    plain, packed = folder / f"{name}.jsonl", folder / f"{name}.jsonl.gz"
    if packed.is_file():
        lines = gzip.decompress(packed.read_bytes()).decode().splitlines()
    elif plain.is_file():
        lines = plain.read_text(encoding="utf-8").splitlines()
    else:
        return
    yield from map(json.loads, lines)
