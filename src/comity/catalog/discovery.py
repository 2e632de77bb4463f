"""Tool discovery (`mgp/tools/*`), the gateway's meta tools, and tools that await a permission."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Final, Protocol

from msgspec import Raw

from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.catalog import discovery_messages
from comity.catalog.access import ActorView, needs_confirmation
from comity.catalog.catalog import Catalog
from comity.catalog.discovery_messages import (
    RESERVED_PREFIXES,
    MetaTool,
    MissingTool,
    Result,
    TokenCount,
    ToolRequestOutcome,
    ToolRequestParams,
    ToolSearchParams,
    find_meta_tool,
    is_reserved,
)
from comity.catalog.search.ranking import SearchQuery, SearchStrategy, round_robin
from comity.catalog.search.service import ToolSearch, build_category_tree
from comity.catalog.search.words import extract_facts, stem_words
from comity.catalog.tool_reviews import ToolReview, ToolReviewService
from comity.catalog.toolbelt import ClientToolbelt, LoadResult, ToolbeltService, pack_tools
from comity.errors import (
    INVALID_TOOL_ARGS,
    METHOD_NOT_FOUND,
    PERMISSION_DENIED,
    TOOL_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.mcp import jsonrpc, refusals
from comity.mcp.actors import GATEWAY, Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import MgpExtension, NegotiatedTerms, of_request
from comity.mcp.protocol import CALL_TOOL, COMPLETE_RESULT
from comity.policy.call_limiter import CallLimiter
from comity.policy.snapshot import PolicyEngine
from comity.redaction.secrets import without_secrets
from comity.sessions.calls import Call
from comity.sessions.methods import MethodRequest, method

MAX_RECORDED_TOOLS: Final = 50
"""The number of found or loaded tools that an audit event names."""

DEFAULT_RESULTS: Final = 8

type StandingOf = Callable[[CatalogEntry], ToolReview]


@dataclass(frozen=True, slots=True)
class _CategoryIndex:
    """The categories in an answer, their token cost, and whether some were left out."""

    members: Mapping[str, object] = field(default_factory=dict[str, object])
    tokens: int = 0
    is_truncated: bool = False


class ToolDiscoveryMethods:
    """Implements `mgp/tools/discover`, `mgp/tools/session` and `mgp/tools/session/evict`."""

    def __init__(
        self,
        tool_search: ToolSearch,
        toolbelt_service: ToolbeltService,
        review_of: StandingOf,
        limits: CallLimiter | None = None,
        audit_log: AuditLog | None = None,
        default_results: int = DEFAULT_RESULTS,
    ) -> None:
        self.tool_search = tool_search
        self.toolbelt_service = toolbelt_service
        self.default_results = default_results
        # None if the operator switched off `log_searches`.
        self._audit_log = audit_log
        self.review_of = review_of
        self._limits = limits

    @property
    def token_method(self) -> dict[str, object]:
        """How tokens are counted, as answers say it."""
        return TokenCount(
            self.toolbelt_service.token_counter.method, self.toolbelt_service.token_counter.is_exact
        ).to_json()

    def describe_entry(
        self, toolbelt: ClientToolbelt, entry: CatalogEntry, score: float | None = None
    ) -> dict[str, object]:
        """Return the whole definition of a tool with its security label and score."""
        known = self.review_of(entry)
        label = discovery_messages.security_label(known.risk, known.permissions, known.validators)
        return discovery_messages.describe_tool(
            toolbelt.listed_definition(entry.definition), entry.server, label, score
        )

    async def count_search(self, call: Call, name: str) -> None:
        """Count a search against the caller's rate limits, as a call is counted.

        Raises Unavailable if a limit is reached.
        """
        if self._limits is not None:
            refusal = self._limits.count_call(call.client_stream.actor, GATEWAY, name, 1)
            refusal = await refusal if isinstance(refusal, Awaitable) else refusal
            if refusal is not None:
                raise Unavailable(refusal.reason, refusal.fault, refusal.retry_after)

    async def search(self, call: Call, params: ToolSearchParams) -> dict[str, object]:
        """Search for tools and return the answer, cut to the token budget of the client.

        Raises Unavailable if a rate limit is reached or grants cannot be read.
        """
        await self.count_search(call, MetaTool.SEARCH)
        queries = _search_queries(params, params.max_results or self.default_results)
        findings = await self.tool_search.find_all(call.client_stream.actor, queries)
        toolbelt = self.toolbelt_service.toolbelt_of(call)
        weights = (self.toolbelt_service.size_tool(toolbelt, each.entry) for each in findings.hits)
        packed = pack_tools(weights, toolbelt.tools.room_for_results)
        fitting = {each.name for each in packed.packed}
        tools = [
            self.describe_entry(toolbelt, each.entry, each.score)
            for each in findings.hits
            if each.entry.key in fitting
        ]
        free = toolbelt.tools.room_for_results - packed.tokens
        index = (
            _CategoryIndex()
            if params.queries
            else await self._category_index(call, queries[0], free)
        )
        result: dict[str, object] = {
            "tools": tools,
            "total_available": findings.total,
            "search_strategy": findings.strategy,
            "query_time_ms": round(findings.seconds * 1000, 1),
            "truncated": bool(packed.left_out) or index.is_truncated,
            "context_tokens": packed.tokens + index.tokens,
            "token_count": self.token_method,
            **index.members,
        }
        if findings.fallback is not None:
            result["fallback_strategy"] = findings.fallback
        if packed.left_out:
            result["omitted"] = list(packed.left_out)
        if self._audit_log is not None:
            shown = [each.name for each in packed.packed[:MAX_RECORDED_TOOLS]]
            self._audit_log.record(
                AuditType.TOOLS_SEARCHED,
                call.client_stream.actor,
                trace=call.ensure_trace_id(),
                details={"strategy": findings.strategy, "shown": shown},
                untrusted={"queries": list(params.queries)},
            )
        return result

    async def _category_index(
        self, call: Call, query: SearchQuery, max_tokens: int
    ) -> _CategoryIndex:
        """Return the category index for a search by category: the largest categories that fit."""
        if query.strategy is not SearchStrategy.CATEGORY:
            return _CategoryIndex()
        counts = await self.tool_search.count_by_category(call.client_stream.actor, query)
        most = len(counts)
        while True:
            held = build_category_tree(dict(islice(counts.items(), most)))
            told = {"categories": [each.to_json() for each in held.values()]}
            tokens = self.toolbelt_service.token_counter.count(jsonrpc.to_json(told)) if held else 0
            if tokens <= max_tokens or not held:
                return _CategoryIndex(told, tokens, is_truncated=most < len(counts))
            most //= 2

    def describe_session(self, call: Call) -> dict[str, object]:
        """Return the tools in the client's tool set and their token costs. Raises Unavailable."""
        toolbelt = self.toolbelt_service.toolbelt_of(call)
        tools = toolbelt.tools
        result: dict[str, object] = {
            "pinned": list(tools.pinned),
            "cached": list(tools.cached),
            "total_tokens": tools.total,
            "max_tokens": tools.budget.max_tokens,
            "tokens": {"own": tools.own_tokens, **tools.pinned, **tools.cached},
            "token_count": self.token_method,
        }
        if tools.unpinned:
            result["omitted"] = list(tools.unpinned)
        return result

    def evict(self, call: Call, names: Sequence[str]) -> dict[str, object]:
        """Remove cached tools and return the remaining tool set. Raises Unavailable."""
        toolbelt = self.toolbelt_service.toolbelt_of(call)
        pinned = [name for name in names if name in toolbelt.tools.pinned]
        gone = self.toolbelt_service.evict(toolbelt, names)
        kept = {"not_evicted": pinned} if pinned else {}
        return {**self.describe_session(call), "evicted": list(gone), **kept}

    @method("mgp/tools/discover", MgpExtension.TOOL_DISCOVERY)
    async def _discover(self, request: MethodRequest) -> Mapping[str, object]:
        return mark_uncacheable(
            request,
            await self.search(request.call, discovery_messages.decode_search(request.params)),
        )

    @method("mgp/tools/session", MgpExtension.TOOL_DISCOVERY)
    async def _session(self, request: MethodRequest) -> Mapping[str, object]:
        return mark_uncacheable(request, self.describe_session(request.call))

    @method("mgp/tools/session/evict", MgpExtension.TOOL_DISCOVERY)
    async def _evict(self, request: MethodRequest) -> Mapping[str, object]:
        names, _ = discovery_messages.decode_eviction(request.params)
        return mark_uncacheable(request, self.evict(request.call, names))


def mark_uncacheable(request: MethodRequest, result: Mapping[str, object]) -> Mapping[str, object]:
    """Return an answer that modern clients may not cache, since it is valid only now."""
    return result if request.session is not None else {"ttlMs": 0, **result}


def _search_queries(params: ToolSearchParams, limit: int) -> list[SearchQuery]:
    """Return one query for each text, or for each category if there is no text.

    With neither, one empty query asks for the category index and no tool.
    """
    strategy = SearchStrategy(
        params.strategy or (SearchStrategy.HYBRID if params.queries else SearchStrategy.CATEGORY)
    )
    return [
        SearchQuery(text, strategy, limit, params.categories, params.risk_level_max, params.status)
        for text in params.queries or params.categories or ("",)
    ]


MAX_EXAMINED_TOOLS: Final = 2000
"""Checking this many definitions takes about 10 ms."""


class PermissionRequestFinder(Protocol):
    """Finds the open approval requests for permissions of servers."""

    def find_open_request(self, server: str, permissions: Iterable[str]) -> str:
        """Return the id of an open approval request for one of these permissions, or ""."""
        ...


@dataclass(frozen=True, slots=True)
class WaitingTool:
    """A tool that awaits a permission, the reason, and the approval request for it."""

    entry: CatalogEntry
    reason: str
    approval_request_id: str = ""


class ToolsAwaitingPermission:
    """Finds tools with a wanted capability that are refused only for a missing permission."""

    def __init__(
        self,
        catalog: Catalog,
        policy_engine: PolicyEngine,
        tool_reviews: ToolReviewService,
        request_finder: Callable[[], PermissionRequestFinder | None],
        servers: Callable[[], Iterable[str]],
    ) -> None:
        self._catalog = catalog
        self._policy_engine = policy_engine
        self._tool_reviews = tool_reviews
        self._request_finder = request_finder
        self._servers = servers

    def find(self, actor: Actor, capability: str) -> WaitingTool | None:
        """Return the first waiting tool whose own words include all words of the capability."""
        wanted = set(stem_words(capability))
        if not wanted:
            return None
        for offer in self._grantable_entries(actor):
            facts = extract_facts(offer.name, offer.definition)
            said = {
                *stem_words(offer.name),
                *stem_words(facts.title),
                *stem_words(facts.description),
            }
            if wanted <= said:
                return self._describe_waiting(offer)
        return None

    def _grantable_entries(self, actor: Actor) -> Iterator[CatalogEntry]:
        sight, left = ActorView(self._policy_engine, actor, CALL_TOOL), MAX_EXAMINED_TOOLS
        for server in self._servers():
            permit = self._tool_reviews.permission_service.permissions_of(server)
            view = sight.server_view(server) if permit.missing(permit.required) else None
            for offer in (
                () if view is None else self._catalog.visible_entries(server, EntryKind.TOOL, view)
            ):
                refusal = self._tool_reviews.review_of(offer).refusal
                if refusal is not None and refusal.fault is PERMISSION_DENIED:
                    yield offer
                left -= 1
                if not left:
                    return

    def _describe_waiting(self, entry: CatalogEntry) -> WaitingTool:
        standing, questions = self._tool_reviews.review_of(entry), self._request_finder()
        missing = self._tool_reviews.permission_service.permissions_of(entry.server).missing(
            standing.permissions
        )
        ask = "" if questions is None else questions.find_open_request(entry.server, missing)
        reason = "" if standing.refusal is None else standing.refusal.reason
        return WaitingTool(entry, reason, ask)


MIN_SCORE: Final = 0.1
"""A tool with a lower score has almost nothing in common with the request."""

TOOLS_PER_CAPABILITY: Final = 3
MAX_WARMING_WAIT: Final = timedelta(seconds=15)
"""How long a request for tools waits for vectors. Clients commonly wait 60 s for an answer."""

_NEEDS_APPROVAL_TEXT: Final = "a person is asked about each call; call it, and wait for the answer"
_NO_ROOM_TEXT: Final = "its definition does not fit into the budget; it can be called all the same"
_NO_TOOL_TEXT: Final = "no tool that you may call does this"


class ToolCreator(Protocol):
    """Starts the creation of tools that do not exist yet."""

    def may_create(self, actor: Actor) -> bool:
        """Return whether the settings and the grants of an actor let its code become a tool."""
        ...

    async def create_from_code(self, request: MethodRequest, arguments: Mapping[str, Raw]) -> None:
        """Make a server from the code in these arguments, and answer the call.

        Raises MalformedMessage or Unavailable.
        """
        ...

    async def create(
        self, request: MethodRequest, tool_request: ToolRequestParams
    ) -> Mapping[str, object] | None:
        """Return further members of the answer; None if this caller may not have tools created."""
        ...


@dataclass(slots=True)
class _CapabilityMatch:
    """The tools found for one capability: those that run at once, and those that ask a person."""

    capability: str
    usable: list[CatalogEntry] = field(default_factory=list[CatalogEntry])
    asking: list[CatalogEntry] = field(default_factory=list[CatalogEntry])
    missing: MissingTool | None = None

    @property
    def chosen(self) -> list[CatalogEntry]:
        """The tools to load. Those that ask are loaded too: a call of one begins the asking."""
        return (self.usable or self.asking)[:TOOLS_PER_CAPABILITY]


class ToolRequestMethods:
    """Implements `mgp/tools/request`: loads tools for the capabilities that a client lacks."""

    def __init__(
        self,
        discovery: ToolDiscoveryMethods,
        policy_engine: PolicyEngine,
        waiting_tools: ToolsAwaitingPermission | None = None,
        tool_creator: ToolCreator | None = None,
        audit_log: AuditLog | None = None,
    ) -> None:
        self._discovery = discovery
        self._policy_engine = policy_engine
        self._waiting_tools = waiting_tools
        self._tool_creator = tool_creator
        self._audit_log = audit_log

    async def request(
        self, request: MethodRequest, tool_request: ToolRequestParams
    ) -> dict[str, object]:
        """Search for each capability, load the best tools, and return what is still lacking.

        Raises Unavailable if a rate limit is reached or grants cannot be read.
        """
        call, actor = request.call, request.actor
        await self._discovery.count_search(call, MetaTool.REQUEST)
        sought = await self._match_known(actor, tool_request)
        belts = self._discovery.toolbelt_service
        toolbelt = belts.toolbelt_of(call)
        by_key = {offer.key: offer for each in sought for offer in each.chosen}
        keys = [[offer.key for offer in each.chosen] for each in sought]
        chosen = round_robin(keys, self._discovery.default_results)
        loaded = belts.load(toolbelt, [by_key[key] for key in chosen])
        lacking = _missing_tools(sought, loaded)
        status = _request_outcome(sought, loaded, lacking)
        made = None
        if (
            status is ToolRequestOutcome.UNAVAILABLE
            and not by_key
            and self._tool_creator is not None
        ):
            made = await self._tool_creator.create(request, tool_request)
            status = status if made is None else ToolRequestOutcome.CREATING
        there = [key for key in chosen if key not in loaded.left_out]
        self._record(call, tool_request, status, there)
        result = self._describe_loaded(toolbelt, loaded, [by_key[key] for key in there])
        told = [each.to_json() for each in lacking]
        return {"status": status, "tools_unavailable": told, **result, **(made or {})}

    def _record(
        self,
        call: Call,
        tool_request: ToolRequestParams,
        status: ToolRequestOutcome,
        loaded: list[str],
    ) -> None:
        if self._audit_log is None:
            return
        is_done = status in (ToolRequestOutcome.FULFILLED, ToolRequestOutcome.PARTIAL)
        untrusted: dict[str, object] = {
            "reason": tool_request.reason,
            "capabilities": list(tool_request.capabilities),
            "context": tool_request.context,
        }
        if tool_request.task_trace_id is not None:
            untrusted["task_trace_id"] = tool_request.task_trace_id
        self._audit_log.record(
            AuditType.TOOLS_REQUESTED,
            call.client_stream.actor,
            result=AuditResult.SUCCESS if is_done else AuditResult.PENDING,
            trace=call.ensure_trace_id(),
            details={"status": status, "loaded": loaded[:MAX_RECORDED_TOOLS]},
            untrusted=untrusted,
        )

    def _describe_loaded(
        self, toolbelt: ClientToolbelt, loaded: LoadResult, entries: Sequence[CatalogEntry]
    ) -> dict[str, object]:
        result: dict[str, object] = {
            "tools_loaded": [self._discovery.describe_entry(toolbelt, offer) for offer in entries],
            "session_tools_count": toolbelt.tools.count,
            "context_tokens_added": loaded.tokens_added,
            "token_count": self._discovery.token_method,
        }
        return {**result, "evicted": list(loaded.evicted)} if loaded.evicted else result

    async def _match_known(
        self, actor: Actor, tool_request: ToolRequestParams
    ) -> list[_CapabilityMatch]:
        """Match each capability with a search that knows all tools.

        "No tool does this" would be untrue while vectors are made or a server has listed nothing
        yet. Raises Unavailable if that takes too long; the client may then ask again.
        """
        sought = await self._match_capabilities(actor, tool_request)
        search = self._discovery.tool_search
        if all(each.chosen or each.missing for each in sought):
            return sought
        if search.is_warming:
            await search.wait_while_warming(MAX_WARMING_WAIT)
            sought = await self._match_capabilities(actor, tool_request)
        if not all(each.chosen or each.missing for each in sought):
            search.require_complete(actor)
        return sought

    async def _match_capabilities(
        self, actor: Actor, tool_request: ToolRequestParams
    ) -> list[_CapabilityMatch]:
        needs = tool_request.capabilities or (tool_request.context,)
        return [await self._match_capability(actor, need, tool_request) for need in needs]

    async def _match_capability(
        self, actor: Actor, capability: str, tool_request: ToolRequestParams
    ) -> _CapabilityMatch:
        sought = _CapabilityMatch(capability)
        for query in _capability_queries(capability, tool_request):
            findings = await self._discovery.tool_search.find(actor, query)
            likely = [each.entry for each in findings.hits if each.score >= MIN_SCORE]
            for offer in likely:
                if not self._needs_approval(actor, offer):
                    sought.usable.append(offer)
                elif offer not in sought.asking:
                    sought.asking.append(offer)
            if sought.usable:
                return sought
        if sought.asking:
            sought.missing = _missing_tool(capability, sought.asking[0], _NEEDS_APPROVAL_TEXT)
            return sought
        waiting = (
            None if self._waiting_tools is None else self._waiting_tools.find(actor, capability)
        )
        if waiting is not None:
            sought.missing = _missing_tool(
                capability, waiting.entry, waiting.reason, waiting.approval_request_id
            )
        return sought

    def _needs_approval(self, actor: Actor, entry: CatalogEntry) -> bool:
        """Return whether a call waits for a person, by the rule that decides about the call."""
        decision = self._policy_engine.authorize(actor, CALL_TOOL, entry.server, entry.name)
        return needs_confirmation(decision, self._discovery.review_of(entry))

    @method("mgp/tools/request", MgpExtension.TOOL_DISCOVERY)
    async def _request(self, request: MethodRequest) -> Mapping[str, object]:
        return mark_uncacheable(
            request,
            await self.request(request, discovery_messages.decode_tool_request(request.params)),
        )


def _capability_queries(capability: str, tool_request: ToolRequestParams) -> list[SearchQuery]:
    """Return the queries to try in turn for a need.

    Each risk is tried with and without the input and output types; the preferred risk comes first.
    """
    plain = capability.replace("_", " ")[: discovery_messages.MAX_QUERY_LENGTH]
    whole = " ".join([plain, *tool_request.input_types, *tool_request.output_types])
    risks = dict.fromkeys((tool_request.preferred_risk_level, None))
    texts = dict.fromkeys((whole[: discovery_messages.MAX_QUERY_LENGTH], plain))
    return [SearchQuery(text, risk_level_max=risk) for risk in risks for text in texts]


def _missing_tool(
    capability: str, entry: CatalogEntry, reason: str, approval_request_id: str = ""
) -> MissingTool:
    return MissingTool(
        ToolRequestOutcome.PENDING_APPROVAL,
        capability,
        entry.key,
        entry.server,
        reason,
        approval_request_id,
    )


def _is_fulfilled(match: _CapabilityMatch, loaded: LoadResult) -> bool:
    return any(offer in match.usable and offer.key not in loaded.left_out for offer in match.chosen)


def _missing_tools(matches: Sequence[_CapabilityMatch], loaded: LoadResult) -> list[MissingTool]:
    """Return the reason for each capability that got no tool."""
    found: list[MissingTool] = []
    for each in matches:
        if _is_fulfilled(each, loaded):
            continue
        if each.usable:
            best = each.usable[0]
            found.append(
                MissingTool("budget", each.capability, best.key, best.server, _NO_ROOM_TEXT)
            )
        else:
            none = MissingTool(
                ToolRequestOutcome.UNAVAILABLE, each.capability, message=_NO_TOOL_TEXT
            )
            found.append(each.missing or none)
    return found


def _request_outcome(
    matches: Sequence[_CapabilityMatch], loaded: LoadResult, missing: Sequence[MissingTool]
) -> ToolRequestOutcome:
    if not missing:
        return ToolRequestOutcome.FULFILLED
    if any(_is_fulfilled(each, loaded) for each in matches):
        return ToolRequestOutcome.PARTIAL
    waits = any(each.reason == ToolRequestOutcome.PENDING_APPROVAL for each in missing)
    return ToolRequestOutcome.PENDING_APPROVAL if waits else ToolRequestOutcome.UNAVAILABLE


_DESCRIBE_BY_TOOL: Final[Mapping[MetaTool, Callable[[Result], str]]] = {
    MetaTool.SEARCH: discovery_messages.describe_search_result,
    MetaTool.REQUEST: discovery_messages.describe_request_result,
    MetaTool.SESSION: discovery_messages.describe_session_tools,
    MetaTool.EVICT: discovery_messages.describe_session_tools,
}
_DISCOVERY_BYTES: Final = MgpExtension.TOOL_DISCOVERY.encode()
_CALL_MEMBERS: Final = frozenset({"name", "arguments"})


class MetaTools:
    """The tools of the gateway itself for discovery, and the calls that they forward."""

    def __init__(
        self,
        discovery: ToolDiscoveryMethods,
        tool_requests: ToolRequestMethods,
        tool_creator: ToolCreator,
        *,
        is_enabled: bool,
    ) -> None:
        self._discovery = discovery
        self._tool_requests = tool_requests
        self._tool_creator = tool_creator
        self._belts = discovery.toolbelt_service
        self._is_enabled = is_enabled
        if is_enabled:
            self._belts.more_definitions_of = self._definitions_for_some

    def _definitions_for_some(self, actor: Actor) -> tuple[bytes, ...]:
        is_creator = self._tool_creator.may_create(actor)
        return (discovery_messages.DEFINITIONS[MetaTool.CREATE],) if is_creator else ()

    def list_definitions(self, call: Call) -> list[bytes] | None:
        """Return the tools to list for this client; None if discovery mode is off.

        Raises Unavailable if grants cannot be read.
        """
        if not self._is_enabled:
            return None
        return self._belts.list_definitions(self._belts.toolbelt_of(call))

    def has_tool(self, name: str | None) -> bool:
        if name is None:
            return False
        return is_reserved(name) if self._is_enabled else name.startswith(RESERVED_PREFIXES)

    def note_use(self, call: Call, entry: CatalogEntry) -> None:
        if self._is_enabled or self._has_toolbelt(call):
            self._belts.use(call, entry)

    def _has_toolbelt(self, call: Call) -> bool:
        """Return whether a client that lists all tools negotiated tool discovery.

        A modern client negotiates it in each request.
        """
        if call.client is not None:
            return call.client.mgp is not None and _has_discovery(call.client.mgp)
        if call.params is UNSET or _DISCOVERY_BYTES not in bytes(call.params):
            return False
        terms = of_request(call.params)
        return terms is not None and _has_discovery(terms)

    async def handle_call(self, request: MethodRequest) -> Frame | None:
        params = request.params
        name = jsonrpc.decode_text(params.get("name")) or ""
        tool = (
            find_meta_tool(name, is_listed=self._is_enabled)
            if self._is_available_to(request)
            else None
        )
        if tool is MetaTool.CREATE and not self._tool_creator.may_create(request.actor):
            tool = None
        if tool is None:
            said = without_secrets(name[:1000])
            raise MalformedMessage(f"unknown tool {said!r:.200}", TOOL_NOT_FOUND)
        arguments = _arguments(params)
        if tool is MetaTool.CALL:
            return _target_call(request, params, arguments)
        if "task" in params:
            raise MalformedMessage(f"{name} is not done as a task", METHOD_NOT_FOUND)
        if tool is MetaTool.CREATE:
            await self._tool_creator.create_from_code(request, arguments)
            return None
        result = await self._answer(tool, request, arguments)
        text = {"type": "text", "text": _DESCRIBE_BY_TOOL[tool](result)}
        body: dict[str, object] = {"content": [text], "structuredContent": result, "isError": False}
        if request.session is None:
            body = {"resultType": COMPLETE_RESULT, **body}
        request.call.deliver_answer(jsonrpc.make_result(request.call.client_request_id, body))
        return None

    def _is_available_to(self, request: MethodRequest) -> bool:
        return self._is_enabled or (request.terms is not None and _has_discovery(request.terms))

    async def _answer(
        self, tool: MetaTool, request: MethodRequest, arguments: Mapping[str, Raw]
    ) -> Result:
        if tool is MetaTool.SEARCH:
            said = discovery_messages.decode_search(arguments, INVALID_TOOL_ARGS)
            return await self._discovery.search(request.call, said)
        if tool is MetaTool.REQUEST:
            wanted = discovery_messages.decode_tool_request(arguments, INVALID_TOOL_ARGS)
            return await self._tool_requests.request(request, wanted)
        if tool is MetaTool.SESSION and "evict" in arguments:
            arguments = {"tools": arguments["evict"]}
        elif tool is MetaTool.SESSION:
            return self._discovery.describe_session(request.call)
        names, _ = discovery_messages.decode_eviction(arguments, INVALID_TOOL_ARGS)
        return self._discovery.evict(request.call, names)


def _has_discovery(terms: NegotiatedTerms) -> bool:
    return MgpExtension.TOOL_DISCOVERY in terms.extensions


def _arguments(params: Mapping[str, Raw]) -> dict[str, Raw]:
    try:
        return jsonrpc.decode_members(params["arguments"]) if "arguments" in params else {}
    except MalformedMessage:
        raise MalformedMessage("arguments must be an object", INVALID_TOOL_ARGS) from None


def _target_call(
    request: MethodRequest, params: Mapping[str, Raw], arguments: Mapping[str, Raw]
) -> Frame:
    """Return the call of the target tool that `call_tool` names, with all other params kept.

    Raises MalformedMessage if the name is missing or reserved, or an argument is misplaced.
    """
    name = jsonrpc.decode_text(arguments.get("name"))
    if not name:
        raise MalformedMessage("set `name` to the tool", INVALID_TOOL_ARGS)
    if is_reserved(name):
        raise MalformedMessage(
            f"{name} is a tool of the gateway's own; call it directly", INVALID_TOOL_ARGS
        )
    strangers = ", ".join(sorted(arguments.keys() - _CALL_MEMBERS))
    if strangers:
        reason = f"the arguments of {name!r:.80} belong into `arguments`: {strangers:.200}"
        raise MalformedMessage(without_secrets(reason), INVALID_TOOL_ARGS)
    aimed = {**params, "name": arguments["name"], "arguments": arguments.get("arguments")}
    if aimed["arguments"] is None:
        del aimed["arguments"]
    frame = jsonrpc.with_params(request.frame, jsonrpc.to_raw(aimed))
    # From here on, refusals, rate limits and audit events name the target tool.
    request.call.params, request.call.tool = refusals.trim_params(frame.params), name
    return frame


class OwnTools(Protocol):
    """The gateway's own tools, with which an agent finds and uses other tools."""

    def list_definitions(self, call: Call) -> list[bytes] | None:
        """Return the definitions that this client lists in place of all; None if it lists all."""
        ...

    def has_tool(self, name: str | None) -> bool:
        """Return whether a tool of this name belongs to the gateway."""
        ...

    async def handle_call(self, request: MethodRequest) -> Frame | None:
        """Return the call of a server's tool to make instead; None once this call is answered.

        Raises MalformedMessage or Unavailable.
        """
        ...

    def note_use(self, call: Call, entry: CatalogEntry) -> None:
        """Note that a client calls a server's tool that it was granted."""
        ...
