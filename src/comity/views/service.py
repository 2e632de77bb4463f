"""The views in force: their tools at this moment, and the principals that may use them."""

from collections.abc import Iterable, Iterator, Sequence

from comity.catalog.access import ToolReviewSource
from comity.catalog.catalog import Catalog
from comity.mcp.actors import CALL, Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.policy.explanations import ViewEntry
from comity.policy.generation import PolicyGeneration
from comity.policy.grants import ANY, Effect, is_pattern_match, split_target, view_target
from comity.policy.snapshot import PolicyEngine
from comity.views.model import ToolOverride, View
from comity.views.tools import CompiledView, ViewTool, build_tool, compile_view

type Ranked = tuple[int, str, str]
"""The order of tools in a view: by the setting that selects each, its server and its name."""


class ServedView:
    """One view with its tools, which follow the catalog."""

    def __init__(self, view: View, catalog: Catalog, reviews: ToolReviewSource | None) -> None:
        self.settings = view
        self.name = view.name
        # The target of grants for this view.
        self.target = view_target(view.name)
        self._catalog = catalog
        self._reviews = reviews
        self._selected_by_server: dict[str, list[tuple[Ranked, CatalogEntry]]] = {}
        self._compiled: CompiledView | None = None
        # The tools that were built before, so that a change of one server builds only its tools.
        self._built: dict[tuple[str, str], ViewTool] = {}

    def replace(self, view: View) -> None:
        """Serve other settings from now on."""
        self.settings = view
        self._selected_by_server, self._built, self._compiled = {}, {}, None

    def on_catalog_changed(self, server: str) -> None:
        """Note that the tools of a server, or their reviews, may have changed."""
        self._selected_by_server.pop(server, None)
        self._compiled = None

    def concerns(self, server: str) -> bool:
        """Return whether the view may hold tools of a server."""
        return any(True for _ in self._selectors_of(server))

    def is_whole(self, server: str) -> bool:
        """Return whether the view selects a server as a whole, with its resources and prompts."""
        return any(
            name == ANY and is_pattern_match(of_server, server)
            for of_server, name in map(split_target, self.settings.select)
        )

    @property
    def servers(self) -> list[str]:
        """The servers with tools of which the view may hold some."""
        return [each for each in self._catalog.servers(EntryKind.TOOL) if self.concerns(each)]

    @property
    def compiled(self) -> CompiledView:
        """The tools of the view now."""
        if self._compiled is None:
            self._compiled = self._compile()
        return self._compiled

    def find(self, name: str) -> ViewTool | None:
        """Return the served tool with this name in the view."""
        return self.compiled.by_name.get(name)

    def serves_tool(self, server: str, tool: str) -> bool:
        """Return whether a tool belongs to the view, by its own name, and can be called there."""
        return any(
            (each.entry.server, each.entry.name) == (server, tool) and not each.withheld
            for each in self.compiled.tools
        )

    def serves_resource(self, server: str, uri: str) -> bool:
        """Return whether a resource of a server belongs to the view."""
        return self.is_whole(server) or (server, uri) in self.compiled.interfaces

    def _compile(self) -> CompiledView:
        ranked: list[tuple[Ranked, CatalogEntry]] = []
        for server in self.servers:
            if server not in self._selected_by_server:
                self._selected_by_server[server] = self._select(server)
            ranked += self._selected_by_server[server]
        ranked.sort(key=lambda each: each[0])
        compiled = compile_view(self.settings, [entry for _, entry in ranked], self._build)
        self._built = {(each.entry.server, each.entry.name): each for each in compiled.tools}
        return compiled

    def _build(self, entry: CatalogEntry, name: str, override: ToolOverride | None) -> ViewTool:
        before = self._built.get((entry.server, entry.name))
        if before is not None and before.entry is entry and before.listed.key == name:
            return before
        return build_tool(entry, name, override, self._digest_of)

    def _selectors_of(self, server: str) -> Iterator[tuple[int, str]]:
        """Yield the entries of the settings that may select tools of a server, with their place."""
        for place, override in enumerate(self.settings.overrides):
            if override.server == server:
                yield place, override.tool
        for place, target in enumerate(self.settings.select, start=len(self.settings.overrides)):
            of_server, name = split_target(target)
            if is_pattern_match(of_server, server):
                yield place, name

    def _select(self, server: str) -> list[tuple[Ranked, CatalogEntry]]:
        found: dict[str, tuple[Ranked, CatalogEntry]] = {}
        for place, pattern in self._selectors_of(server):
            for entry in self._matching(server, pattern):
                found.setdefault(entry.name, ((place, server, entry.name), entry))
        return list(found.values())

    def _matching(self, server: str, pattern: str) -> Iterable[CatalogEntry]:
        if ANY not in pattern:
            entry = self._catalog.find_own(server, EntryKind.TOOL, pattern)
            return () if entry is None else (entry,)
        entries = self._catalog.entries(server, EntryKind.TOOL)
        return [each for each in entries if is_pattern_match(pattern, each.name)]

    def _digest_of(self, entry: CatalogEntry) -> str:
        return "" if self._reviews is None else self._reviews.review_of(entry).digest


class ViewService:
    """All views. The endpoints, the operator API and the commands read them here."""

    def __init__(
        self,
        catalog: Catalog,
        policy_engine: PolicyEngine,
        reviews: ToolReviewSource | None = None,
        generation: PolicyGeneration | None = None,
    ) -> None:
        self._catalog = catalog
        self._policy_engine = policy_engine
        self._reviews = reviews
        self._generation = generation or PolicyGeneration()
        self._view_by_name: dict[str, ServedView] = {}
        catalog.watch(self._on_catalog_changed)

    def __iter__(self) -> Iterator[ServedView]:
        return iter(list(self._view_by_name.values()))

    def get(self, name: str) -> ServedView | None:
        return self._view_by_name.get(name)

    def replace(self, views: Sequence[View]) -> list[ServedView]:
        """Serve these views from now on. Returns the views that are new or have changed."""
        changed: list[ServedView] = []
        served: dict[str, ServedView] = {}
        for view in views:
            held = self._view_by_name.get(view.name)
            if held is None:
                held = ServedView(view, self._catalog, self._reviews)
                changed.append(held)
            elif held.settings != view:
                held.replace(view)
                changed.append(held)
            served[view.name] = held
        self._view_by_name = served
        # A plan holds the name and the fixed arguments of a tool.
        self._generation.advance()
        return changed

    def list_entries(self) -> list[ViewEntry]:
        """Return every tool that a view serves now."""
        return [
            ViewEntry(view.name, tool.listed.key, tool.entry.server, tool.entry.name)
            for view in self
            for tool in view.compiled.tools
            if not tool.withheld
        ]

    def is_visible_to(self, actor: Actor, name: str) -> bool:
        """Return whether an actor may know a view: a grant names it, or opens one of its tools."""
        view = self._view_by_name.get(name)
        if view is None:
            return False
        authorize = self._policy_engine.authorize
        own = authorize(actor, CALL, "", "", view.name)
        if own.grant is not None and own.effect is not Effect.DENY:
            return True
        if own.grant is not None and own.grant.target == view.target:
            return False
        return any(
            authorize(actor, CALL, tool.entry.server, tool.entry.name, view.name).effect
            is not Effect.DENY
            for tool in view.compiled.tools
            if not tool.withheld
        )

    def _on_catalog_changed(self, server: str, kind: EntryKind) -> None:
        if kind is EntryKind.TOOL:
            for view in self._view_by_name.values():
                if view.concerns(server):
                    view.on_catalog_changed(server)
