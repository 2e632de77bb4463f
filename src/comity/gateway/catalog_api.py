"""The HTTP API for tools and tool search; each principal sees the tools that it may call."""

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta

from comity.catalog.search.ranking import DEFAULT_RESULTS, MAX_RESULTS, SearchQuery, SearchStrategy
from comity.catalog.search.service import SearchHit, ToolSearch
from comity.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage
from comity.gateway.pipeline import CallGate
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission, View
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


class SearchApi:
    """The API routes that search for tools and list their categories."""

    def __init__(self, tool_search: ToolSearch) -> None:
        self._tool_search = tool_search

    @property
    def routes(self) -> ApiRoutes:
        anyone = Permission.ANY_PRINCIPAL
        return (
            ApiRoute("GET", "/api/search", anyone, self._search, ToolSearchQuery),
            ApiRoute("GET", "/api/search/categories", anyone, self._list_categories, EmptyQuery),
        )

    async def _list_categories(self, request: ApiRequest[EmptyQuery]) -> View:
        found = await self._tool_search.categories(request.actor)
        return {"categories": [each.to_json() for each in found.values()]}

    async def _search(self, request: ApiRequest[ToolSearchQuery]) -> View:
        findings = await self._tool_search.find(request.actor, request.input.to_search())
        return {
            "tools": [self._summarize_hit(found) for found in findings.hits],
            "total_available": findings.total,
            "search_strategy": findings.strategy,
            "fallback_strategy": findings.fallback,
            "query_time_ms": round(findings.seconds * 1000, 1),
        }

    def _summarize_hit(self, found: SearchHit) -> View:
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

    async def _list_tools(self, request: ApiRequest[ToolPageQuery]) -> View:
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
        found: dict[str, object] = {
            "tools": [tool for tool in listed if _contains_words(tool, words)]
        }
        return found if following is None else {**found, "next": following}

    def _is_server_visible(self, actor: Actor, server: str, may_see_all: bool) -> bool:
        return self._servers.get(server) is not None and (
            may_see_all or self._call_gate.may_know_server(actor, server)
        )

    def _summarize_tool(self, definition: bytes) -> dict[str, object]:
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
        }

    async def _show_tool(self, request: ApiRequest[EmptyQuery]) -> View:
        name = request.path["name"]
        offer = self._find_tool(request.actor, name)
        if offer is None:
            raise MalformedMessage(f"there is no tool {name!r:.200}", NOTHING_HERE)
        return {
            "name": offer.key,
            "server": offer.server,
            "tool": offer.name,
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


def _contains_words(tool: Mapping[str, object], words: list[str]) -> bool:
    text = " ".join(str(tool[key] or "") for key in ("name", "title", "description")).casefold()
    return all(word in text for word in words)
