"""The tool set of each client: the tools in its context, and their token budget."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from comity.catalog.access import CatalogAccess
from comity.catalog.search.tool_index import TokenCounter
from comity.errors import Unavailable
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.eras import handshake_tool
from comity.policy.grants import is_pattern_match
from comity.sessions.calls import Call
from comity.sessions.sessions import Session


@dataclass(frozen=True, slots=True)
class ContextBudget:
    """`tool_context_budget`: how many tokens definitions may take. (MGP §16.8)"""

    max_tokens: int = 8000
    pinned_reserve: int = 2000
    discovery_reserve: int = 3000
    cache_limit: int = 3000


@dataclass(frozen=True, slots=True)
class PinnedTools:
    """Tools that Comity always lists for the principals whose ids match a pattern.

    Each tool is given by server and name.
    """

    principal: str
    tools: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SizedTool:
    """The name of a tool and the token cost of its definition."""

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class PackedTools:
    """The tools that fit, in the given order, and the names of those that do not."""

    packed: tuple[SizedTool, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.packed)


def pack_tools(tools: Iterable[SizedTool], max_tokens: int) -> PackedTools:
    """Take whole tools in the given order up to the limit; skip each one that is too large."""
    taken: list[SizedTool] = []
    left_out: list[str] = []
    for each in {each.name: each for each in tools}.values():
        if each.tokens <= max_tokens:
            taken.append(each)
            max_tokens -= each.tokens
        else:
            left_out.append(each.name)
    return PackedTools(tuple(taken), tuple(left_out))


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The outcome of putting tools into the cache."""

    added: tuple[SizedTool, ...] = ()
    # Already in the tool set, cached or pinned.
    present: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    evicted: tuple[str, ...] = ()

    @property
    def tokens_added(self) -> int:
        return sum(each.tokens for each in self.added)

    @property
    def has_changed(self) -> bool:
        return bool(self.added or self.evicted)


_NO_TOOLS: Final[Mapping[str, int]] = {}


@dataclass(slots=True)
class Toolbelt:
    """The tools of one client, and how they share its token budget."""

    budget: ContextBudget
    # The token cost of the gateway's own tools, which are always listed.
    own_tokens: int = 0
    pinned: Mapping[str, int] = field(default_factory=lambda: _NO_TOOLS)
    # Pinned tools that do not fit into the budget.
    unpinned: tuple[str, ...] = ()
    cached: OrderedDict[str, int] = field(default_factory=OrderedDict[str, int])

    @property
    def total(self) -> int:
        """The tokens that the tool set takes now."""
        return self.own_tokens + sum(self.pinned.values()) + sum(self.cached.values())

    @property
    def count(self) -> int:
        """The number of tools of servers in the tool set."""
        return len(self.pinned) + len(self.cached)

    @property
    def room_for_results(self) -> int:
        """The tokens that the results of one search may take."""
        return max(0, min(self.budget.discovery_reserve, self.budget.max_tokens - self.total))

    @property
    def _room_for_cached(self) -> int:
        others = self.own_tokens + sum(self.pinned.values())
        return max(0, min(self.budget.cache_limit, self.budget.max_tokens - others))

    def pin(self, tools: Sequence[SizedTool]) -> tuple[str, ...]:
        """Pin these tools in place of the present ones; return the names evicted from the cache."""
        within = min(self.budget.pinned_reserve, self.budget.max_tokens)
        packed = pack_tools(tools, max(0, within - self.own_tokens))
        self.pinned = {each.name: each.tokens for each in packed.packed}
        self.unpinned = packed.left_out
        for name in self.pinned:
            self.cached.pop(name, None)
        return self._make_room(self._room_for_cached)

    def load(self, tools: Sequence[SizedTool]) -> LoadResult:
        """Cache these tools, best first, and evict older ones that do not fit any more."""
        present = tuple(e.name for e in tools if e.name in self.pinned or e.name in self.cached)
        again = [e for e in tools if e.name in self.cached]
        new = [e for e in tools if e.name not in present]
        # A tool that is requested again counts as new, so it is not evicted for the others.
        free = self._room_for_cached - sum(self.cached[each.name] for each in again)
        packed = pack_tools(new, free)
        evicted = self._make_room(
            self._room_for_cached - packed.tokens, {each.name for each in again}
        )
        for each in reversed([*again, *packed.packed]):
            self.cached[each.name] = each.tokens
            self.cached.move_to_end(each.name)
        return LoadResult(packed.packed, present, packed.left_out, evicted)

    def use(self, tool: SizedTool) -> LoadResult:
        """Mark a tool as used last; load it first if it fits and is not cached."""
        if tool.name in self.cached:
            self.cached.move_to_end(tool.name)
            return LoadResult(present=(tool.name,))
        return self.load((tool,))

    def remove(self, names: Iterable[str]) -> tuple[str, ...]:
        """Remove these names from the cache; return those that were cached."""
        return tuple(name for name in names if self.cached.pop(name, None) is not None)

    def _make_room(self, max_tokens: int, kept: Iterable[str] = ()) -> tuple[str, ...]:
        """Evict the least recently used tools until the rest fits; return the evicted names."""
        spared, evicted = set(kept), list[str]()
        held = sum(self.cached.values())
        for name in [each for each in self.cached if each not in spared]:
            if held <= max_tokens:
                break
            held -= self.cached.pop(name)
            evicted.append(name)
        return tuple(evicted)


log = logging.getLogger(__name__)

MAX_TOOLBELTS: Final = 10_000
"""Tool sets of principals without a session; each takes some thousand bytes."""

MAX_CACHED_COUNTS: Final = 20_000
MAX_WARNINGS: Final = 1000

type Told = Callable[[Actor, Session | None], None]
"""Called when the tool list of a principal, or of one session, has changed."""


@dataclass(frozen=True, slots=True)
class ToolbeltDefaults:
    """The initial contents of every tool set.

    `own` holds the gateway's own tools, if discovery mode lists them.
    """

    budget: ContextBudget = field(default_factory=ContextBudget)
    pinned: Sequence[PinnedTools] = ()
    own_definitions: Sequence[bytes] = ()
    idle_seconds: float = 1800.0


@dataclass(slots=True)
class ClientToolbelt:
    """The tool set of one client, with the definition of each tool as it was when sized."""

    actor: Actor
    session: Session | None
    tools: Toolbelt
    used_at: float
    definitions: dict[str, bytes] = field(default_factory=dict[str, bytes])
    # The gateway's own tools that this client lists.
    own_definitions: tuple[bytes, ...] = ()
    # The tools of the client's last list, if any; and those at its last change notification.
    listed_before: tuple[bytes, ...] | None = None
    last_notified: tuple[bytes, ...] | None = None

    def listed_definition(self, definition: bytes) -> bytes:
        return definition if self.session is None else handshake_tool(definition)

    @property
    def names(self) -> list[str]:
        """The names in an order that use does not change, since prompt caches depend on it."""
        return [*self.tools.pinned, *sorted(self.tools.cached)]

    @property
    def definitions_listed(self) -> tuple[bytes, ...]:
        held = (self.listed_definition(self.definitions[name]) for name in self.names)
        return (*self.own_definitions, *held)


_DEFAULTS: Final = ToolbeltDefaults()


def _no_definitions(actor: Actor) -> Sequence[bytes]:
    return ()


class ToolbeltService:
    """The tool sets of all clients that this node serves."""

    def __init__(
        self,
        catalog_access: CatalogAccess,
        token_counter: TokenCounter,
        now: Callable[[], float],
        defaults: ToolbeltDefaults = _DEFAULTS,
        *,
        on_changed: Callable[[ClientToolbelt], None] | None = None,
    ) -> None:
        self.token_counter = token_counter
        self.defaults = defaults
        self._catalog_access = catalog_access
        self._now = now
        self._count_tokens = lru_cache(MAX_CACHED_COUNTS)(token_counter.count)
        # Returns the own tools that only some clients list. `MetaTools` sets it.
        self.more_definitions_of: Callable[[Actor], Sequence[bytes]] = _no_definitions
        self._toolbelt_by_session: dict[Session, ClientToolbelt] = {}
        self._toolbelt_by_principal: OrderedDict[object, ClientToolbelt] = OrderedDict()
        self._warned: set[tuple[str, ...]] = set()
        self._watchers: list[Told] = []
        # Called when the tools of a tool set have changed.
        self._on_changed = on_changed

    def __len__(self) -> int:
        return len(self._toolbelt_by_session) + len(self._toolbelt_by_principal)

    def watch(self, watcher: Told) -> None:
        """Call `told` for each client whose list of tools has changed."""
        self._watchers.append(watcher)

    def toolbelt_of(self, call: Call) -> ClientToolbelt:
        """Return the up-to-date tool set of the caller. Raises Unavailable."""
        session = call.client if isinstance(call.client, Session) else None
        return self.toolbelt_of_client(call.client_stream.actor, session)

    def toolbelt_of_client(self, actor: Actor, session: Session | None) -> ClientToolbelt:
        toolbelt = self._find_or_create(actor, session)
        self._refresh(toolbelt)
        return toolbelt

    def list_definitions(self, toolbelt: ClientToolbelt) -> list[bytes]:
        """Return the list of a client in discovery mode.

        The list holds the gateway's own tools, the pinned and the cached ones.
        """
        toolbelt.listed_before = listed = toolbelt.definitions_listed
        return list(listed)

    def size_tool(self, toolbelt: ClientToolbelt, entry: CatalogEntry) -> SizedTool:
        """Return the name of a tool and its token cost for this client."""
        return SizedTool(
            entry.key, self._count_tokens(toolbelt.listed_definition(entry.definition))
        )

    def load(self, toolbelt: ClientToolbelt, entries: Iterable[CatalogEntry]) -> LoadResult:
        """Cache requested tools, best first."""
        found = {offer.key: offer for offer in entries}
        loaded = toolbelt.tools.load([self.size_tool(toolbelt, offer) for offer in found.values()])
        self._record_definitions(toolbelt, found)
        return loaded

    def use(self, call: Call, entry: CatalogEntry) -> None:
        """Keep a tool that the caller was granted and now calls. Raises Unavailable."""
        session = call.client if isinstance(call.client, Session) else None
        toolbelt = self._find_or_create(call.client_stream.actor, session)
        if toolbelt.definitions.get(entry.key) is entry.definition:
            # The usual case: the tool is in the toolbelt and has not changed.
            if entry.key in toolbelt.tools.cached:
                toolbelt.tools.cached.move_to_end(entry.key)
            return
        self._refresh(toolbelt)
        toolbelt.tools.use(self.size_tool(toolbelt, entry))
        self._record_definitions(toolbelt, {entry.key: entry})

    def evict(self, toolbelt: ClientToolbelt, names: Iterable[str]) -> tuple[str, ...]:
        """Remove cached tools by name; return the names that were cached."""
        gone = toolbelt.tools.remove(names)
        self._record_definitions(toolbelt, {})
        return gone

    def has_list_changed(self, actor: Actor, session: Session | None) -> bool:
        """Return whether the client's list differs from the one it read last.

        The answer is True while the grants are unavailable.
        """
        try:
            toolbelt = self.toolbelt_of_client(actor, session)
        except Unavailable:
            return True
        return (
            toolbelt.listed_before is not None
            and toolbelt.definitions_listed != toolbelt.listed_before
        )

    def _find_or_create(self, actor: Actor, session: Session | None) -> ClientToolbelt:
        now = self._now()
        if session is not None:
            toolbelt = self._toolbelt_by_session.get(session)
            if toolbelt is None:
                toolbelt = self._toolbelt_by_session[session] = self._create(actor, session)
                session.on_close[self] = lambda: self._remove_session(session)
            toolbelt.actor = actor
            return toolbelt
        key = _cache_key(actor)
        toolbelt = self._toolbelt_by_principal.get(key)
        if toolbelt is None:
            toolbelt = self._toolbelt_by_principal[key] = self._create(actor, None)
        toolbelt.used_at = now
        self._toolbelt_by_principal.move_to_end(key)
        self._remove_idle(now)
        return toolbelt

    def _create(self, actor: Actor, session: Session | None) -> ClientToolbelt:
        return ClientToolbelt(actor, session, Toolbelt(self.defaults.budget), self._now())

    def _remove_session(self, session: Session) -> None:
        self._toolbelt_by_session.pop(session, None)

    def _remove_idle(self, now: float) -> None:
        oldest, idle = next(iter(self._toolbelt_by_principal.values())), self.defaults.idle_seconds
        while len(self._toolbelt_by_principal) > MAX_TOOLBELTS or now - oldest.used_at > idle:
            self._toolbelt_by_principal.popitem(last=False)
            oldest = next(iter(self._toolbelt_by_principal.values()))

    def _refresh(self, toolbelt: ClientToolbelt) -> None:
        """Drop tools that changed or are no longer visible, and pin the configured ones."""
        gone = [name for name in toolbelt.tools.cached if not self._is_unchanged(toolbelt, name)]
        toolbelt.tools.remove(gone)
        more = self.more_definitions_of(toolbelt.actor)
        toolbelt.own_definitions = (*self.defaults.own_definitions, *more)
        toolbelt.tools.own_tokens = sum(map(self._count_tokens, toolbelt.own_definitions))
        pinned = {offer.key: offer for offer in self._entries_to_pin(toolbelt.actor)}
        toolbelt.tools.pin([self.size_tool(toolbelt, offer) for offer in pinned.values()])
        self._keep_definitions(toolbelt, pinned)
        self._warn(toolbelt)

    def _record_definitions(
        self, toolbelt: ClientToolbelt, entries: Mapping[str, CatalogEntry]
    ) -> None:
        """Record the present definitions, and notify the client if its list has changed."""
        self._keep_definitions(toolbelt, entries)
        if self._on_changed is not None:
            self._on_changed(toolbelt)
        if not self._watchers or toolbelt.listed_before is None:
            return
        listed = toolbelt.definitions_listed
        if listed not in (toolbelt.listed_before, toolbelt.last_notified):
            toolbelt.last_notified = listed
            for told in self._watchers:
                told(toolbelt.actor, toolbelt.session)

    def _keep_definitions(
        self, toolbelt: ClientToolbelt, entries: Mapping[str, CatalogEntry]
    ) -> None:
        """Keep the definitions of the tools in the tool set, and no others."""
        held = {**toolbelt.definitions, **{key: offer.definition for key, offer in entries.items()}}
        toolbelt.definitions = {name: held[name] for name in toolbelt.names}

    def _is_unchanged(self, toolbelt: ClientToolbelt, name: str) -> bool:
        offer = self._catalog_access.catalog.find_public(EntryKind.TOOL, name)
        if offer is None or offer.definition != toolbelt.definitions[name]:
            return False
        return self._catalog_access.is_listed(toolbelt.actor, EntryKind.TOOL, offer)

    def _entries_to_pin(self, actor: Actor) -> Iterable[CatalogEntry]:
        for entry in self.defaults.pinned:
            for server, name in (
                entry.tools if is_pattern_match(entry.principal, actor.party) else ()
            ):
                offer = self._catalog_access.catalog.find_own(server, EntryKind.TOOL, name)
                if offer is not None and self._catalog_access.is_listed(
                    actor, EntryKind.TOOL, offer
                ):
                    yield offer

    def _warn(self, toolbelt: ClientToolbelt) -> None:
        aside = toolbelt.tools.unpinned
        if aside and aside not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(aside)
            log.warning(
                "%s pinned for %r are not listed: with the gateway's own tools they exceed "
                "pinned_reserve, %d tokens; pin fewer, or raise it in [discovery]",
                ", ".join(aside)[:500],
                toolbelt.actor.party,
                self.defaults.budget.pinned_reserve,
            )


def _cache_key(actor: Actor) -> tuple[object, ...]:
    """Return the cache key of an actor.

    Two credentials of one principal may have different groups, or be limited to different tools.
    """
    return actor.party, actor.groups, actor.permissions
