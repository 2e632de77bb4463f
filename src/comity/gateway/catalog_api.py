"""The HTTP API for tools and tool search; each principal sees the tools that it may call."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NotRequired, TypedDict

from msgspec import Meta, Raw

from comity.catalog.search.ranking import (
    DEFAULT_RESULTS,
    MAX_RESULTS,
    CategoryView,
    SearchQuery,
    SearchStrategy,
)
from comity.catalog.search.service import SearchHit, ToolSearch
from comity.catalog.token_counter import ByteTokenCounter
from comity.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.gateway.pipeline import CallGate
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyQuery, RequestQuery
from comity.mcp import jsonrpc
from comity.mcp.actors import ADMIN_READ, Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.policy.grants import Effect
from comity.policy.risk import Risk
from comity.policy.snapshot import PolicyEngine
from comity.servers.service import ServerService

MAX_DESCRIPTION_LETTERS: Final = 500


class ToolSearchQuery(RequestQuery, frozen=True):
    """The query parameters of a tool search."""

    query: str = ""
    strategy: SearchStrategy = SearchStrategy.HYBRID
    limit: Annotated[int, Meta(ge=1, le=MAX_RESULTS)] = DEFAULT_RESULTS
    category: str | None = None
    risk_level_max: Risk | None = None
    status: str | None = None
    server: str = ""

    def to_search(self) -> SearchQuery:
        if not self.query.strip() and self.category is None:
            raise MalformedMessage("add a query, such as ?query=read+a+file", INVALID_PARAMS)
        return SearchQuery(
            self.query,
            self.strategy,
            self.limit,
            _split_names(self.category or ""),
            self.risk_level_max,
            self.status,
            _split_names(self.server),
        )


def _split_names(listed: str) -> tuple[str, ...]:
    return tuple(name for name in listed.split(",") if name)


class ToolPageQuery(RequestQuery, frozen=True):
    """The query parameters of the tool list."""

    server: str | None = None
    cursor: str | None = None
    search: str = ""


class ToolSecurityView(TypedDict):
    """The effective risk of a tool, and the permissions that it needs."""

    risk_level: Risk
    permissions_required: Sequence[str]


class SearchHitView(TypedDict):
    """A tool that a search found, and the parts of its score."""

    name: str
    server: str
    tool: str
    relevance_score: float
    score_parts: Mapping[str, float]
    title: str
    description: str
    categories: Sequence[str]
    keywords: Sequence[str]
    # An estimate of what the definition takes in the context of a model.
    tokens: int
    security: ToolSecurityView


class SearchResultView(TypedDict):
    """The tools that a search found, the best first."""

    tools: list[SearchHitView]
    total_available: int
    search_strategy: SearchStrategy
    fallback_strategy: SearchStrategy | None
    query_time_ms: float


class CategoryListView(TypedDict):
    """The categories of tools."""

    categories: list[CategoryView]


class ToolSummaryView(TypedDict):
    """A tool in a list."""

    name: str
    server: str
    tool: str
    title: str | None
    description: str | None
    annotations: Raw | None
    risk: Risk | None


class ToolPage(TypedDict):
    """One page of tools."""

    tools: list[ToolSummaryView]
    next: NotRequired[str]


class ToolView(TypedDict):
    """A tool with its definition, as its server wrote it."""

    name: str
    server: str
    tool: str
    risk: Risk | None
    definition: Mapping[str, Raw]


class SearchApi:
    """The API routes that search for tools and list their categories."""

    def __init__(self, tool_search: ToolSearch) -> None:
        self._tool_search = tool_search
        self._token_counter = ByteTokenCounter()

    @property
    def routes(self) -> ApiRoutes:
        anyone = Permission.ANY_PRINCIPAL
        return (
            ApiRoute("GET", "/api/search", anyone, self._search, ToolSearchQuery),
            ApiRoute("GET", "/api/search/categories", anyone, self._list_categories, EmptyQuery),
        )

    async def _list_categories(self, request: ApiRequest[EmptyQuery]) -> CategoryListView:
        found = await self._tool_search.categories(request.actor)
        return {"categories": [each.to_json() for each in found.values()]}

    async def _search(self, request: ApiRequest[ToolSearchQuery]) -> SearchResultView:
        findings = await self._tool_search.find(request.actor, request.input.to_search())
        return {
            "tools": [self._summarize_hit(found) for found in findings.hits],
            "total_available": findings.total,
            "search_strategy": findings.strategy,
            "fallback_strategy": findings.fallback,
            "query_time_ms": round(findings.seconds * 1000, 1),
        }

    def _summarize_hit(self, found: SearchHit) -> SearchHitView:
        known = self._tool_search.summarize_tool(found.entry)
        return {
            "name": found.entry.key,
            "server": found.entry.server,
            "tool": found.entry.name,
            "relevance_score": found.score,
            "score_parts": found.score_parts,
            "title": known.searchable.title,
            "description": known.searchable.description[:MAX_DESCRIPTION_LETTERS],
            "categories": known.searchable.categories,
            "keywords": known.keywords,
            "tokens": self._token_counter.count(found.entry.definition),
            "security": {
                "risk_level": known.risk,
                "permissions_required": known.permissions,
            },
        }


class ToolsApi:
    """The API routes that list tools and show their definitions."""

    def __init__(
        self, servers: ServerService, call_gate: CallGate, policy_engine: PolicyEngine
    ) -> None:
        self._servers = servers
        self._call_gate = call_gate
        self._catalog = call_gate.catalog
        self._policy_engine = policy_engine

    @property
    def routes(self) -> ApiRoutes:
        anyone = Permission.ANY_PRINCIPAL
        return (
            ApiRoute("GET", "/api/tools", anyone, self._list_tools, ToolPageQuery),
            ApiRoute("GET", "/api/tools/{name}", anyone, self._show_tool, EmptyQuery),
        )

    def _may_see_all(self, actor: Actor) -> bool:
        return self._policy_engine.authorize(actor, ADMIN_READ, "", "").effect is Effect.ALLOW

    async def _list_tools(self, request: ApiRequest[ToolPageQuery]) -> ToolPage:
        """Return one page.

        An empty page may have a next page, since the search filters each page.
        """
        actor, wanted, cursor = request.actor, request.input.server, request.input.cursor
        oversees = self._may_see_all(actor)
        if wanted is not None and not self._is_server_visible(actor, wanted, oversees):
            raise MalformedMessage(f"there is no server {wanted!r:.200}", NOTHING_HERE)

        def is_wanted(server: str) -> bool:
            return wanted in (None, server)

        if oversees:
            definitions, following = self._catalog.page(EntryKind.TOOL, is_wanted, cursor)
        else:
            definitions, following = self._call_gate.page(actor, EntryKind.TOOL, is_wanted, cursor)
        words = request.input.search.casefold().split()
        listed = [self._summarize_tool(definition) for definition in definitions]
        found: ToolPage = {"tools": [tool for tool in listed if _contains_words(tool, words)]}
        return found if following is None else {**found, "next": following}

    def _is_server_visible(self, actor: Actor, server: str, may_see_all: bool) -> bool:
        return self._servers.get(server) is not None and (
            may_see_all or self._call_gate.may_know_server(actor, server)
        )

    def _summarize_tool(self, definition: bytes) -> ToolSummaryView:
        members = jsonrpc.decode_members(definition)
        name = jsonrpc.decode_text(members.get("name")) or ""
        offer = self._catalog.find_public(EntryKind.TOOL, name)
        return {
            "name": name,
            "server": "" if offer is None else offer.server,
            "tool": "" if offer is None else offer.name,
            "title": jsonrpc.decode_text(members.get("title")),
            "description": jsonrpc.decode_text(members.get("description")),
            "annotations": members.get("annotations"),
            "risk": None if offer is None else self._risk_of(offer),
        }

    def _risk_of(self, entry: CatalogEntry) -> Risk | None:
        review = self._call_gate.review_of(entry)
        return None if review is None else review.risk

    async def _show_tool(self, request: ApiRequest[EmptyQuery]) -> ToolView:
        name = request.path["name"]
        offer = self._find_tool(request.actor, name)
        if offer is None:
            # It may be a tool of a server that starts, so the answer is not for ever.
            self._call_gate.require_started(request.actor)
            raise MalformedMessage(f"there is no tool {name!r:.200}", NOTHING_HERE)
        return {
            "name": offer.key,
            "server": offer.server,
            "tool": offer.name,
            "risk": self._risk_of(offer),
            "definition": jsonrpc.decode_members(offer.definition),
        }

    def _find_tool(self, actor: Actor, name: str) -> CatalogEntry | None:
        if self._may_see_all(actor):
            return self._catalog.find(EntryKind.TOOL, name)
        named = self._catalog.find_public(EntryKind.TOOL, name)
        holders = self._catalog.find_bare(EntryKind.TOOL, name) if named is None else [named]
        seen = [
            offer for offer in holders if self._call_gate.is_listed(actor, EntryKind.TOOL, offer)
        ]
        return seen[0] if len(seen) == 1 else None


def _contains_words(tool: ToolSummaryView, words: list[str]) -> bool:
    parts = tool["name"], tool["title"], tool["description"]
    text = " ".join(part or "" for part in parts).casefold()
    return all(word in text for word in words)
