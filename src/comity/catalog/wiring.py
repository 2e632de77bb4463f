"""Builds tool discovery, tool search and the tool sets of clients from the settings."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import Raw

from comity.app.plugins import load_plugin_embedder
from comity.app.settings import Settings
from comity.audit.wiring import AuditLogComponents
from comity.catalog.discovery import (
    MetaTools,
    ToolCreator,
    ToolDiscoveryMethods,
    ToolRequestMethods,
    ToolsAwaitingPermission,
)
from comity.catalog.discovery_messages import DEFINITIONS, LISTED_TOOLS
from comity.catalog.search.service import ToolSearch, fastest_scoring
from comity.catalog.search.tool_index import ServerDescription, VectorIndex
from comity.catalog.semantic.embedders import open_minilm, open_vector_index
from comity.catalog.token_counter import open_token_counter
from comity.catalog.tool_reviews import ToolReviewService
from comity.catalog.toolbelt import (
    ClientToolbelt,
    ContextBudget,
    ToolbeltDefaults,
    ToolbeltService,
)
from comity.errors import MalformedMessage, Misconfigured
from comity.gateway.pipeline import CallGate
from comity.mcp import jsonrpc
from comity.policy.snapshot import PolicyEngine
from comity.policy.wiring import ServerPolicyService
from comity.servers.service import ServerService
from comity.servers.supervisor import UpstreamServer
from comity.storage.stores import file_of


@dataclass(frozen=True, slots=True)
class DiscoveryComponents:
    """The parts of tool discovery: the MGP methods and the gateway's own tools."""

    discovery_methods: ToolDiscoveryMethods
    request_methods: ToolRequestMethods
    own_tools: MetaTools


def build_toolbelts(
    settings: Settings, call_gate: CallGate, on_changed: Callable[[ClientToolbelt], None]
) -> ToolbeltService:
    """Build the service for the tools that each client lists within its context budget."""
    now = asyncio.get_running_loop().time
    return ToolbeltService(
        call_gate,
        open_token_counter(os.environ),
        now,
        _toolbelt_defaults(settings),
        on_changed=on_changed,
    )


def build_discovery(
    settings: Settings,
    tool_search: ToolSearch,
    toolbelt_service: ToolbeltService,
    server_policies: ServerPolicyService,
    audit_log_components: AuditLogComponents,
    *,
    call_gate: CallGate,
    policy_engine: PolicyEngine,
    servers: ServerService,
    tool_creator: ToolCreator,
) -> DiscoveryComponents:
    """Build the methods with which clients search for tools and request tools they lack."""
    search_audit = audit_log_components.audit_log if settings.discovery.log_searches else None
    discovering = ToolDiscoveryMethods(
        tool_search,
        toolbelt_service,
        server_policies.tool_reviews.review_of,
        call_gate.pipeline.limits,
        search_audit,
        settings.discovery.default_results,
    )
    withheld = ToolsAwaitingPermission(
        call_gate.catalog,
        policy_engine,
        server_policies.tool_reviews,
        lambda: server_policies.permission_approvals,
        lambda: sorted(servers.names()),
    )
    requesting = ToolRequestMethods(
        discovering, policy_engine, withheld, tool_creator, audit_log_components.audit_log
    )
    own_tools = MetaTools(
        discovering, requesting, tool_creator, is_enabled=is_discovery_on(settings)
    )
    return DiscoveryComponents(discovering, requesting, own_tools)


def is_discovery_on(settings: Settings) -> bool:
    """Return whether clients list a few tools and search for the others."""
    return settings.discovery.mode == "on"


def _toolbelt_defaults(settings: Settings) -> ToolbeltDefaults:
    budget = ContextBudget(
        settings.discovery.max_tokens,
        settings.discovery.pinned_reserve,
        settings.discovery.discovery_reserve,
        settings.discovery.cache_limit,
    )
    own = tuple(DEFINITIONS[tool] for tool in LISTED_TOOLS) if is_discovery_on(settings) else ()
    return ToolbeltDefaults(
        budget, settings.discovery.pinned, own, settings.limits.session_idle_timeout.total_seconds()
    )


MAX_DESCRIPTION_LENGTH: Final = 1_000


def make_tool_search(
    call_gate: CallGate,
    servers: ServerService,
    tools: ToolReviewService,
    vector_index: VectorIndex | None = None,
) -> ToolSearch:
    """Build the search of this node; it follows changes of the catalog."""

    def words_of(name: str) -> ServerDescription:
        server = servers.get(name)
        return ServerDescription() if server is None else describe_for_search(server)

    def status_of(name: str) -> str:
        server = servers.get(name)
        return "" if server is None else server.state.value

    tool_search = ToolSearch(call_gate, vector_index, words_of, status_of, fastest_scoring())
    tools.watch(tool_search.index.reindex_server)
    return tool_search


def describe_for_search(server: UpstreamServer) -> ServerDescription:
    """Return the title and the description that a server gives of itself."""
    said = server.connections.initialize_result or server.connections.discover_result
    gateway_info = _members(said.get("serverInfo"))
    title = _text(gateway_info.get("title")) or _text(gateway_info.get("name"))
    description = _text(gateway_info.get("description")) or _text(said.get("instructions"))
    return ServerDescription(title, description)


def _members(raw: Raw | None) -> dict[str, Raw]:
    try:
        return {} if raw is None else jsonrpc.decode_members(raw)
    except MalformedMessage:
        return {}


def _text(raw: Raw | None) -> str:
    return (jsonrpc.decode_text(raw) or "")[:MAX_DESCRIPTION_LENGTH]


log = logging.getLogger(__name__)

AUTO: Final = "auto"
NONE: Final = "none"
MINILM: Final = "minilm"


def open_similarity(settings: Settings) -> VectorIndex | None:
    """Open the vector index for semantic search, or return None if there is none.

    Raises Misconfigured if the embedder or model that the settings name is missing. With the
    default `auto`, a missing model is no error: Comity searches by words, and each answer says so.
    """
    if settings.discovery.embedder == NONE:
        return None
    try:
        return _open_index(settings)
    except Misconfigured as missing:
        if settings.discovery.embedder != AUTO or settings.discovery.model_folder:
            raise
        log.info("Keyword search only: %s", missing)
        return None


@asynccontextmanager
async def similarity_index(settings: Settings) -> AsyncGenerator[VectorIndex | None]:
    """Open the vector index as `open_similarity` does, and close it on exit."""
    vector_index = open_similarity(settings)
    try:
        yield vector_index
    finally:
        if vector_index is not None:
            await vector_index.close()


def _open_index(settings: Settings) -> VectorIndex:
    if settings.discovery.embedder in (AUTO, MINILM):
        embedder = open_minilm(settings.discovery.model_folder)
    else:
        embedder = load_plugin_embedder(settings.discovery.embedder)
    # In discovery mode clients depend on search, so the first one should already find by meaning.
    at_once = settings.discovery.mode == "on"
    return open_vector_index(embedder, vectors_folder(settings), at_once=at_once)


def vectors_folder(settings: Settings) -> Path | None:
    """Return the folder for vectors: the configured one, else beside the store, else None."""
    if settings.discovery.vectors_folder:
        return Path(settings.discovery.vectors_folder)
    file = file_of(settings.store.url)
    return None if file is None else file.with_name(f"{file.name}.vectors")
