"""`mgp/tools/*`: tools are searched for, asked for, listed and let go. (MGP §16.5-16.8)

Rule 1: nothing is shown or counted that whoever asks may not call.
Rule 2: what a search finds is in no belt: it lives as long as its answer, unless it is called.
Rule 3: as many tools are given as fit into what is left of the budget, each of them whole; the
        names of the others are told.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from comity.kernel.admission import Limits
from comity.kernel.call import Call
from comity.kernel.catalog import Offer
from comity.kernel.finding import Finder, tree
from comity.kernel.own_methods import Asked, OwnMethods
from comity.kernel.search_log import SearchLog
from comity.kernel.toolbelts import Belt, Toolbelts
from comity.kernel.toolcare import ToolStanding
from comity.rules.meta_tools import MetaTool
from comity.rules.search import Query, Strategy
from comity.rules.toolbelt import pack
from comity.wire import jsonrpc, tool_discovery
from comity.wire.errors import Unavailable
from comity.wire.negotiation import Extension
from comity.wire.parties import GATEWAY
from comity.wire.tool_discovery import Counted, Search

USUAL_RESULTS: Final = 8

type StandingOf = Callable[[Offer], ToolStanding]


@dataclass(frozen=True, slots=True)
class _Index:
    """The categories as an answer tells them, what they cost, and whether some were left out."""

    told: Mapping[str, object] = field(default_factory=dict[str, object])
    tokens: int = 0
    is_cut: bool = False


class Discovering:
    """Answers what clients ask of the tools that there are, and of those that they have."""

    def __init__(
        self,
        finder: Finder,
        belts: Toolbelts,
        standing: StandingOf,
        limits: Limits | None = None,
        log: SearchLog | None = None,
        results: int = USUAL_RESULTS,
    ) -> None:
        self.finder = finder
        self.belts = belts
        self.log = log
        self.results = results
        self._standing = standing
        self._limits = limits

    def join(self, methods: OwnMethods) -> None:
        methods.add(tool_discovery.DISCOVER, Extension.TOOL_DISCOVERY, self._discover)
        methods.add(tool_discovery.SESSION, Extension.TOOL_DISCOVERY, self._session)
        methods.add(tool_discovery.EVICT, Extension.TOOL_DISCOVERY, self._evict)

    @property
    def counted(self) -> dict[str, object]:
        """How tokens are counted."""
        return Counted(self.belts.tokens.method, self.belts.tokens.is_exact).told()

    def shown(self, belt: Belt, offer: Offer, score: float | None = None) -> dict[str, object]:
        """One tool as it is told: whole, and with what is known of its risk."""
        known = self._standing(offer)
        label = tool_discovery.security(known.risk, known.needs, known.validators)
        return tool_discovery.tool(belt.shown(offer.definition), offer.server, label, score)

    def count(self, call: Call, name: str) -> None:
        """A search counts against its caller's rates as a call does. Raises Unavailable."""
        if self._limits is not None:
            refusal = self._limits.take(call.outbox.actor, GATEWAY, name, 1)
            if refusal is not None:
                raise Unavailable(refusal.because, refusal.fault, refusal.retry_after)

    async def search(self, call: Call, said: Search) -> dict[str, object]:
        """Raises Unavailable."""
        self.count(call, MetaTool.SEARCH)
        queries = _queries(said, said.max_results or self.results)
        findings = await self.finder.find_all(call.outbox.actor, queries)
        belt = self.belts.of(call)
        weights = (self.belts.weight(belt, each.offer) for each in findings.found)
        packed = pack(weights, belt.tools.room_for_results)
        fitting = {each.name for each in packed.taken}
        tools = [
            self.shown(belt, each.offer, each.score)
            for each in findings.found
            if each.offer.key in fitting
        ]
        room = belt.tools.room_for_results - packed.tokens
        index = _Index() if said.queries else await self._index(call, queries[0], room)
        result: dict[str, object] = {
            "tools": tools,
            "total_available": findings.total,
            "search_strategy": findings.strategy,
            "query_time_ms": round(findings.seconds * 1000, 1),
            "truncated": bool(packed.left_out) or index.is_cut,
            "context_tokens": packed.tokens + index.tokens,
            "token_count": self.counted,
            **index.told,
        }
        if findings.fallback is not None:
            result["fallback_strategy"] = findings.fallback
        if packed.left_out:
            result["omitted"] = list(packed.left_out)
        if self.log is not None:
            self.log.searched(call, said, findings.strategy, [each.name for each in packed.taken])
        return result

    async def _index(self, call: Call, query: Query, room: int) -> _Index:
        """The categories, where these are looked through: as many as fit, the largest first."""
        if query.strategy is not Strategy.CATEGORY:
            return _Index()
        counts = await self.finder.counted(call.outbox.actor, query)
        most = len(counts)
        while True:
            held = tree(dict(islice(counts.items(), most)))
            told = {"categories": [each.told() for each in held.values()]}
            tokens = self.belts.tokens.count(jsonrpc.to_json(told)) if held else 0
            if tokens <= room or not held:
                return _Index(told, tokens, is_cut=most < len(counts))
            most //= 2

    def session(self, call: Call) -> dict[str, object]:
        """What is in somebody's belt, and what it costs. Raises Unavailable."""
        belt = self.belts.of(call)
        tools = belt.tools
        result: dict[str, object] = {
            "pinned": list(tools.pinned),
            "cached": list(tools.cached),
            "total_tokens": tools.total,
            "max_tokens": tools.budget.max_tokens,
            "tokens": {"own": tools.own, **tools.pinned, **tools.cached},
            "token_count": self.counted,
        }
        if tools.set_aside:
            result["set_aside"] = list(tools.set_aside)
        return result

    def evict(self, call: Call, names: Sequence[str]) -> dict[str, object]:
        """Let go of cached tools, and tell what is left. Raises Unavailable."""
        belt = self.belts.of(call)
        pinned = [name for name in names if name in belt.tools.pinned]
        gone = self.belts.evict(belt, names)
        kept = {"not_evicted": pinned} if pinned else {}
        return {**self.session(call), "evicted": list(gone), **kept}

    async def _discover(self, asked: Asked) -> Mapping[str, object]:
        return fresh(asked, await self.search(asked.call, tool_discovery.search(asked.params)))

    async def _session(self, asked: Asked) -> Mapping[str, object]:
        return fresh(asked, self.session(asked.call))

    async def _evict(self, asked: Asked) -> Mapping[str, object]:
        names, _ = tool_discovery.evicted(asked.params)
        return fresh(asked, self.evict(asked.call, names))


def fresh(asked: Asked, result: Mapping[str, object]) -> Mapping[str, object]:
    """An answer that is true for this moment only; the modern era would let it be kept a while."""
    return result if asked.session is not None else {"ttlMs": 0, **result}


def _queries(said: Search, most: int) -> list[Query]:
    """Each text for itself; with categories and no text, all that is in each of them.

    With neither, the index of the categories is wanted, and no tool.
    """
    strategy = Strategy(said.strategy or (Strategy.HYBRID if said.queries else Strategy.CATEGORY))
    return [
        Query(text, strategy, most, said.categories, said.risk_level_max, said.status)
        for text in said.queries or said.categories or ("",)
    ]
