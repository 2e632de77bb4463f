"""Builds a gateway from its settings, starts it and stops it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Final

from comity.app.authentication import HttpAuthenticator
from comity.app.browser_pages import LANDING_PATH, landing_page
from comity.app.cluster import ClusterGatewayParts, LocalClusterNode, make_cluster, make_node
from comity.app.health import ProbeEndpoints
from comity.app.http import HttpApp
from comity.app.metrics import GatewayMetrics, PoolFigures, SnapshotMetrics
from comity.app.offline import audit_routes
from comity.app.records import GatewaySnapshot
from comity.app.settings import Settings
from comity.app.upstreams import UpstreamRegistry, make_endpoints
from comity.approvals.pending_calls import ApprovedCallSteps, PendingCalls
from comity.approvals.server_questions import CallbackMethods
from comity.approvals.service import ApprovalService
from comity.approvals.wiring import (
    ApprovalComponents,
    build_approvals,
    build_client_prompts,
    build_pending_calls,
    build_server_questions,
    make_approvals,
)
from comity.audit.metrics import AuditMetrics
from comity.audit.wiring import (
    AuditComponents,
    AuditLogComponents,
    build_audit,
    build_call_audit,
    has_valid_credential,
    open_audit_log,
)
from comity.catalog.catalog import Catalog
from comity.catalog.search.service import ToolSearch
from comity.catalog.search.tool_index import VectorIndex
from comity.catalog.toolbelt import ToolbeltService
from comity.catalog.wiring import (
    DiscoveryComponents,
    build_discovery,
    build_toolbelts,
    is_discovery_on,
    make_tool_search,
    similarity_index,
)
from comity.cluster.api import NodesApi
from comity.events.bus import EventBus
from comity.events.wiring import EventComponents, WebhookComponents, build_events, build_webhooks
from comity.gateway.access_log import with_access_log
from comity.gateway.access_methods import AccessControlMethods
from comity.gateway.all_servers import AllServersEndpoint, GatewayInfo
from comity.gateway.call_audit import CallAudit
from comity.gateway.catalog_api import SearchApi, ToolsApi
from comity.gateway.era_bridge import EraBridge, ParkedCalls
from comity.gateway.mgp_methods import ServerStatusMethods
from comity.gateway.one_server import ServerEndpoint
from comity.gateway.pipeline import CallGate, PlanCache
from comity.gateway.streaming import StreamingService
from comity.gateway.subscriptions import ListSubscriptions
from comity.http.api import ApiRouter, ApiRoutes
from comity.http.api_openapi import openapi_routes
from comity.http.asgi import OPERATORS, HostOriginCheck, HttpEndpoint
from comity.http.trusted_proxies import TrustedProxies
from comity.identity.authentication import Authenticator, IdentityDirectory
from comity.identity.http_auth import AuthMember
from comity.identity.wiring import (
    identity_routes,
    last_use_written,
    make_auth_member,
    make_identity,
    make_reception,
    make_register,
    make_task_names,
    make_tokens,
    open_policy_snapshot,
)
from comity.inference.wiring import InferenceComponents, open_inference
from comity.live.scopes.service import ScopeService
from comity.live.wiring import run_live
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.eras import TaskIds
from comity.mcp.mgp import MgpExtension, offer_extensions
from comity.policy.shares import PrincipalShares
from comity.policy.snapshot import GrantSnapshot
from comity.policy.wiring import (
    LimitComponents,
    PolicyComponents,
    ServerPolicyService,
    grant_routes,
    make_administration,
    suggestion_routes,
)
from comity.registry.api import RegistryApi
from comity.registry.export import CatalogExport
from comity.registry.service import RegistryService, RegistryTimeouts
from comity.servers.api import OperatorDependencies, ServersApi
from comity.servers.registration.wiring import RegistrationComponents, build_registration
from comity.servers.service import ResourceLimits, ServerService, ServerStatusReports
from comity.servers.wiring import UpstreamPools, build_gateway_control, limits_of, make_pools
from comity.sessions.calls import ActiveCalls, run_periodically
from comity.sessions.methods import MethodTable
from comity.sessions.sessions import SessionStore
from comity.storage.changes import RecordKind
from comity.telemetry.metrics import CallMetrics
from comity.telemetry.process import ProcessMetrics
from comity.telemetry.tracing import Tracer
from comity.telemetry.wiring import open_tracing
from comity.toolkit.background import BackgroundTasks
from comity.topics.server_members import InTopics
from comity.topics.wiring import TopicComponents, make_topic_members, make_topics
from comity.validation.compiled_schemas import CachedSchemaChecker
from comity.validation.wiring import RulesOf, ValidationComponents


def registry_endpoints(
    settings: Settings,
    all_servers_endpoint: AllServersEndpoint,
    active_calls: ActiveCalls,
    auth: AuthMember,
) -> dict[str, HttpEndpoint]:
    """The endpoints /tools, /openapi.json and /resources."""
    gate = all_servers_endpoint.call_gate
    exports = CatalogExport(
        gate, all_servers_endpoint.servers, is_open=settings.identity.mode == "local"
    )
    options = RegistryTimeouts(
        tool=settings.registry.tool_timeout.total_seconds(),
        validation=settings.registry.validation_timeout.total_seconds(),
        discovery=settings.registry.discovery_timeout.total_seconds(),
        lock=settings.registry.queue_timeout.total_seconds(),
        calls_per_server=settings.registry.calls_per_server,
        documentation=settings.registry.documentation_url,
    )
    registry = RegistryService(all_servers_endpoint, gate, active_calls, exports, options)
    return RegistryApi(registry, limits_of(settings), auth).endpoints


_PLAIN_CLIENT_OFFER: Final = {"mgp": jsonrpc.to_raw(offer_extensions({MgpExtension.STREAMING}))}
"""The MGP extensions for servers of a client without MGP, which gets chunks as progress."""

log = logging.getLogger(__name__)

CHECK_INTERVAL_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """The parts of a running gateway that HTTP and stdio serve."""

    servers: ServerService
    catalog: Catalog
    sessions: SessionStore
    active_calls: ActiveCalls
    parked_calls: ParkedCalls
    all_servers_endpoint: AllServersEndpoint
    http_app: HttpApp
    upstream_registry: UpstreamRegistry
    authenticator: Authenticator
    auth: AuthMember
    snapshot: GatewaySnapshot
    server_policies: ServerPolicyService
    policy_components: PolicyComponents
    validation_components: ValidationComponents
    audit_log_components: AuditLogComponents
    approval_components: ApprovalComponents
    topic_components: TopicComponents
    probes: ProbeEndpoints
    event_components: EventComponents
    registration_components: RegistrationComponents
    tool_search: ToolSearch
    api: ApiRouter
    call_audit: CallAudit
    scopes: ScopeService
    webhooks: WebhookComponents
    models: InferenceComponents

    def set_shutdown_callback(self, end: Callable[[], None]) -> None:
        """Set how this process ends where a client may ask for that."""
        self.all_servers_endpoint.status_methods.set_shutdown_callback(end)

    def end_streams(self) -> None:
        """End the streams that clients and operators read."""
        self.all_servers_endpoint.status_methods.announce_shutdown()
        self.sessions.end_streams()
        self.approval_components.end_streams()


@contextlib.asynccontextmanager
async def assemble_gateway(
    settings: Settings, register: IdentityDirectory | None = None, operator_token: str = ""
) -> AsyncGenerator[GatewayParts]:
    """Every part joined and every server starting; all of it ended on the way out.

    In local mode, the holder of `operator_token` is an operator.
    """
    async with contextlib.AsyncExitStack() as stack:
        start = stack.enter_async_context
        snapshot = await start(open_policy_snapshot(settings))
        register = register or make_register(settings, snapshot)
        authenticator = make_identity(settings, register, make_tokens(settings), operator_token)
        await start(last_use_written(snapshot, authenticator.key_usage))
        audit_log_components = await start(open_audit_log(settings, snapshot, authenticator.pepper))
        vector_index = await start(similarity_index(settings))
        approvals = make_approvals(settings, snapshot, audit_log_components.audit_log)
        descriptions: dict[str, Mapping[str, str]] = {}
        tracer = await start(open_tracing(settings, descriptions))
        models = await start(
            open_inference(
                settings,
                snapshot.records.budgets,
                approvals,
                audit_log_components.audit_log,
                tracer,
            )
        )
        foundation = Foundation(
            settings,
            snapshot,
            authenticator,
            audit_log_components,
            approvals,
            models,
            vector_index,
            tracer,
            descriptions,
        )
        yield await start(_run_gateway(foundation))


@dataclass(frozen=True, slots=True)
class Foundation:
    """The resources that are opened before a gateway is built, and closed after it."""

    settings: Settings
    snapshot: GatewaySnapshot
    authenticator: Authenticator
    audit_log_components: AuditLogComponents
    approvals: ApprovalService
    models: InferenceComponents
    vector_index: VectorIndex | None
    tracer: Tracer | None
    # The description of each server, by its name. The server registry fills it.
    descriptions: dict[str, Mapping[str, str]]


@contextlib.asynccontextmanager
async def _run_gateway(base: Foundation) -> AsyncGenerator[GatewayParts]:
    pools, schemas = make_pools(base.settings), CachedSchemaChecker()
    parts = build_gateway(base, pools, schemas)
    try:
        async with _run_servers(base, parts):
            yield parts
    finally:
        # Also after a start that failed: its parts have begun tasks that use the store.
        parts.tool_search.stop()
        parts.server_policies.stop()
        await parts.registration_components.close()
        await parts.webhooks.close()
        await _close_resources(parts, pools, schemas)


@contextlib.asynccontextmanager
async def _run_servers(base: Foundation, parts: GatewayParts) -> AsyncGenerator[None]:
    settings = base.settings
    cluster, registration_components = (
        parts.upstream_registry.cluster,
        parts.registration_components,
    )
    topic_members = make_topic_members(
        settings,
        parts.topic_components.topics,
        parts.approval_components,
        parts.upstream_registry,
        base.audit_log_components,
        base.authenticator,
    )
    checks = [*_periodic_checks(parts), topic_members.look, registration_components.check]
    if cluster is not None:
        cluster.join(_cluster_parts(parts))
        checks.append(cluster.check)
    parts.upstream_registry.add_all(settings.servers)
    check_task = asyncio.ensure_future(
        run_periodically(checks, CHECK_INTERVAL_SECONDS, KEEP_ALIVE_SECONDS)
    )
    try:
        joined = contextlib.nullcontext() if cluster is None else cluster.running()
        async with joined, run_live(settings, parts):
            parts.servers.start()
            await registration_components.open()
            try:
                async with parts.webhooks.running():
                    yield
            finally:
                registration_components.stop()
                topic_members.stop()
                parts.approval_components.stop()
                await parts.event_components.stop()
                await parts.sessions.close()
                await parts.servers.stop()
    finally:
        check_task.cancel()


def _periodic_checks(parts: GatewayParts) -> list[Callable[[float], None]]:
    """The checks that run periodically, for expired calls, sessions and requests."""
    limits = ResourceLimits(parts.servers, parts.active_calls)
    waiting = (parts.active_calls.check, parts.sessions.check, parts.parked_calls.check)
    kept = (
        parts.server_policies.check,
        parts.approval_components.approvals.check,
        parts.topic_components.look,
    )
    return [*waiting, *kept, limits.check]


async def _close_resources(
    parts: GatewayParts, pools: UpstreamPools, schemas: CachedSchemaChecker
) -> None:
    """Close the connection pools, the schema checker and the validators."""
    await pools.close()
    await schemas.close()
    await parts.validation_components.close()


@dataclass(frozen=True, slots=True)
class CallComponents:
    """The services that a call passes on its way to a server, for all endpoints."""

    catalog: Catalog
    server_policies: ServerPolicyService
    validation_components: ValidationComponents
    policy_components: PolicyComponents
    pending_calls: PendingCalls
    scopes: ScopeService
    call_audit: CallAudit
    call_gate: CallGate
    servers: ServerService
    sessions: SessionStore
    parked_calls: ParkedCalls
    active_calls: ActiveCalls
    audit_components: AuditComponents
    event_components: EventComponents
    webhooks: WebhookComponents
    streaming: StreamingService


def _build_calls(
    base: Foundation,
    schemas: CachedSchemaChecker,
    cluster: LocalClusterNode | None,
) -> CallComponents:
    settings, snapshot, authenticator = base.settings, base.snapshot, base.authenticator
    audit_log_components, audit_log = base.audit_log_components, base.audit_log_components.audit_log
    catalog = Catalog()
    streaming = StreamingService(for_progress=settings.limits.stream_for_progress)
    grant_admin = make_administration(snapshot, audit_log)
    background_tasks = BackgroundTasks("questions to people")
    server_policies = ServerPolicyService(
        settings,
        catalog,
        snapshot,
        audit_log,
        base.approvals,
        grant_admin,
        background_tasks=background_tasks,
        question_router=build_server_questions(
            settings, base.approvals, background_tasks, audit_log_components, base.models.engine
        ),
        stream_relay=streaming,
        is_elsewhere=_no_server if cluster is None else cluster.is_run_elsewhere,
    )
    counts = partial(has_valid_credential, authenticator)
    bus = EventBus(snapshot.grants, counts, audit_log.clock)
    webhooks = build_webhooks(settings, authenticator, snapshot, audit_log, bus)
    call_audit = build_call_audit(
        settings,
        audit_log,
        authenticator.pepper,
        server_policies.tool_reviews,
        webhooks.intake.is_awaited,
    )
    forms, own_tasks = build_client_prompts(make_task_names(authenticator), base.approvals.clock)
    pending_calls = build_pending_calls(
        base.approvals,
        ApprovedCallSteps(server_policies.tool_reviews, call_audit),
        snapshot.grants,
        catalog,
        pepper=authenticator.pepper,
        forms=forms,
        redact=audit_log_components.redact,
    )
    scopes = ScopeService(server_policies.live_host, server_policies.live_policy, pending_calls)
    limits = LimitComponents(
        settings, catalog, server_policies.policy_of, snapshot.grants.generation
    )
    limits.retries.retry_listeners.append(call_audit.record_retry)
    validation_components = ValidationComponents(
        RulesOf(server_policies.policy_of, server_policies.tool_reviews.review_of), settings
    )
    gate = CallGate(
        catalog,
        snapshot.grants,
        server_policies.tool_reviews,
        limits.limits,
        validation_components.inspector,
        approvals=InTopics(pending_calls, pending_calls.key),
        scope_checker=scopes,
        own_tasks=own_tasks,
        intent_recorder=call_audit,
        retries=limits.retries,
        plan_cache=_build_plan_cache(snapshot.grants, server_policies),
    )
    servers = ServerService(catalog, schemas, server_policies.tool_reviews)
    sessions, parked_calls = _build_client_state(settings, make_task_names(authenticator), cluster)
    is_only_here = _no_server if cluster is None else cluster.is_run_here
    return CallComponents(
        catalog=catalog,
        server_policies=server_policies,
        validation_components=validation_components,
        policy_components=PolicyComponents(snapshot, grant_admin, limits),
        pending_calls=pending_calls,
        scopes=scopes,
        call_audit=call_audit,
        call_gate=gate,
        servers=servers,
        sessions=sessions,
        parked_calls=parked_calls,
        active_calls=_build_active_calls(settings, catalog, sessions, base.tracer, call_audit),
        audit_components=build_audit(audit_log, snapshot.grants, counts, servers, server_policies),
        event_components=build_events(bus, audit_log, call_audit, servers, is_only_here),
        webhooks=webhooks,
        streaming=streaming,
    )


def _build_plan_cache(grants: GrantSnapshot, server_policies: ServerPolicyService) -> PlanCache:
    permits = server_policies.tool_reviews.permission_service

    def is_lasting(actor: Actor, entry: CatalogEntry) -> bool:
        is_decided = grants.never_expires(actor, entry.server, entry.name)
        return is_decided and permits.permissions_of(entry.server).expires_at is None

    return PlanCache(grants.generation, is_lasting)


def build_gateway(
    base: Foundation, pools: UpstreamPools, schemas: CachedSchemaChecker
) -> GatewayParts:
    """Every part of a gateway, in the order in which they depend on each other."""
    settings, snapshot, authenticator = base.settings, base.snapshot, base.authenticator
    audit_log_components, audit_log = base.audit_log_components, base.audit_log_components.audit_log
    gateway_info, auth = _gateway_info(), make_auth_member(settings, authenticator)
    descriptions = base.descriptions
    cluster = make_cluster(settings, authenticator.pepper)
    calls = _build_calls(base, schemas, cluster)
    server_policies, grant_admin = calls.server_policies, calls.policy_components.administration

    http_authenticator = make_reception(settings, authenticator, snapshot)
    approval_components = build_approvals(
        settings,
        snapshot,
        audit_log_components,
        calls.pending_calls,
        authenticator,
        grant_admin,
        http_authenticator,
    )
    topic_components = make_topics(settings, snapshot, authenticator, audit_log, grant_admin)

    http = _build_http_app(settings, http_authenticator, auth, cluster, snapshot)
    toolbelt_service = build_toolbelts(
        settings, calls.call_gate, calls.event_components.sources.on_toolbelt_changed
    )
    subscriptions = _build_subscriptions(settings, calls, toolbelt_service)
    snapshot.watch(RecordKind.GRANTS, subscriptions.on_grants_changed)
    bridge = EraBridge(calls.catalog, calls.parked_calls)
    upstream_registry = _build_servers(
        settings, calls, subscriptions, bridge, http, pools, auth, descriptions, cluster
    )
    info = GatewayInfo(calls.servers, gateway_info)
    registration_components = build_registration(
        upstream_registry, calls.validation_components, approval_components, calls.call_gate, info
    )
    tool_search = make_tool_search(
        calls.call_gate, calls.servers, server_policies.tool_reviews, base.vector_index
    )
    discovery = _build_discovery(
        settings,
        calls,
        tool_search,
        toolbelt_service,
        audit_log_components,
        registration_components,
    )
    all_servers_endpoint = AllServersEndpoint(
        calls.servers,
        calls.call_gate,
        calls.active_calls,
        bridge,
        subscriptions,
        info,
        status_methods=_build_status_methods(settings, calls, audit_log_components),
        methods=_build_methods(calls, approval_components, registration_components, discovery),
        tasks=make_task_names(authenticator),
        own_tools=discovery.own_tools,
    )
    probes = _build_probes(base, calls, pools, cluster)
    api = ApiRouter(http_authenticator.require_grant)
    api.add(_build_routes(settings, calls, snapshot, authenticator, audit_log_components))
    api.add(openapi_routes(lambda: api.routes))
    api.add(ServersApi(_operator_dependencies(calls, gateway_info, descriptions)).routes)
    api.add((*approval_components.routes, *topic_components.routes, *SearchApi(tool_search).routes))
    api.add((*calls.webhooks.routes, *_node_routes(settings, calls, cluster)))
    endpoints = make_endpoints("", all_servers_endpoint, calls.sessions, limits_of(settings), auth)
    endpoints |= registry_endpoints(settings, all_servers_endpoint, calls.active_calls, auth)
    endpoints |= approval_components.endpoints | topic_components.endpoints | probes.endpoints
    http.add_endpoints({**endpoints, LANDING_PATH: landing_page, OPERATORS: api})
    return GatewayParts(
        servers=calls.servers,
        catalog=calls.catalog,
        sessions=calls.sessions,
        active_calls=calls.active_calls,
        parked_calls=calls.parked_calls,
        all_servers_endpoint=all_servers_endpoint,
        http_app=http,
        upstream_registry=upstream_registry,
        authenticator=authenticator,
        auth=auth,
        snapshot=snapshot,
        server_policies=server_policies,
        policy_components=calls.policy_components,
        validation_components=calls.validation_components,
        audit_log_components=audit_log_components,
        approval_components=approval_components,
        topic_components=topic_components,
        probes=probes,
        event_components=calls.event_components,
        registration_components=registration_components,
        tool_search=tool_search,
        api=api,
        call_audit=calls.call_audit,
        scopes=calls.scopes,
        webhooks=calls.webhooks,
        models=base.models,
    )


def _build_http_app(
    settings: Settings,
    http_authenticator: HttpAuthenticator,
    auth: AuthMember,
    cluster: LocalClusterNode | None,
    snapshot: GatewaySnapshot,
) -> HttpApp:
    elsewhere = None if cluster is None else cluster.request_forwarder(auth)
    return HttpApp(
        _origin_check(settings),
        {},
        http_authenticator=http_authenticator,
        node_forwarder=elsewhere,
        generation=snapshot.grants.generation,
    )


def _build_servers(
    settings: Settings,
    calls: CallComponents,
    subscriptions: ListSubscriptions,
    bridge: EraBridge,
    http: HttpApp,
    pools: UpstreamPools,
    auth: AuthMember,
    descriptions: dict[str, Mapping[str, str]],
    cluster: LocalClusterNode | None,
) -> UpstreamRegistry:
    return UpstreamRegistry(
        settings,
        calls.servers,
        calls.sessions,
        subscriptions,
        http,
        pools,
        lambda server: ServerEndpoint(
            server, calls.call_gate, calls.active_calls, bridge, subscriptions
        ),
        calls.server_policies,
        auth,
        descriptions,
        cluster,
        calls.event_components.sources.on_settings_reloaded,
    )


def _build_subscriptions(
    settings: Settings, calls: CallComponents, toolbelt_service: ToolbeltService
) -> ListSubscriptions:
    """Build the list subscriptions; with discovery, only for changes of a client's own list."""
    is_on = is_discovery_on(settings)
    subscriptions = ListSubscriptions(
        calls.servers,
        calls.call_gate,
        audit_feed=calls.audit_components.notices,
        events=calls.event_components.methods,
        has_other_list=toolbelt_service.has_list_changed if is_on else None,
    )
    if is_on:
        toolbelt_service.watch(subscriptions.on_tool_list_changed)
    return subscriptions


def _build_discovery(
    settings: Settings,
    calls: CallComponents,
    tool_search: ToolSearch,
    toolbelt_service: ToolbeltService,
    audit_log_components: AuditLogComponents,
    registration_components: RegistrationComponents,
) -> DiscoveryComponents:
    if is_discovery_on(settings):
        # A client that has to search should not wait until everything is indexed.
        tool_search.index.start()
    return build_discovery(
        settings,
        tool_search,
        toolbelt_service,
        calls.server_policies,
        audit_log_components,
        call_gate=calls.call_gate,
        policy_engine=calls.policy_components.snapshot.grants,
        servers=calls.servers,
        tool_creator=registration_components.generated_tools,
    )


def _build_methods(
    calls: CallComponents,
    approval_components: ApprovalComponents,
    registration_components: RegistrationComponents,
    discovery: DiscoveryComponents,
) -> MethodTable:
    """Every protocol method that the gateway answers itself."""
    methods = MethodTable()
    methods.register(
        AccessControlMethods(calls.policy_components.administration),
        calls.streaming,
        calls.event_components.methods,
        calls.webhooks.methods,
        CallbackMethods(approval_components.approvals),
        registration_components.service,
        discovery.discovery_methods,
        discovery.request_methods,
    )
    return methods


def _build_status_methods(
    settings: Settings, calls: CallComponents, audit_log_components: AuditLogComponents
) -> ServerStatusMethods:
    """The gateway's answers of its servers' health and of its own."""
    own = build_gateway_control(
        settings,
        calls.servers,
        calls.sessions,
        calls.policy_components.administration,
        audit_log_components.audit_log,
    )
    return ServerStatusMethods(
        calls.servers,
        calls.call_gate,
        calls.active_calls,
        plain_capabilities=_PLAIN_CLIENT_OFFER if settings.limits.stream_for_progress else None,
        audit_feed=calls.audit_components.notices,
        gateway_control=own,
    )


def _build_probes(
    base: Foundation,
    calls: CallComponents,
    pools: UpstreamPools,
    cluster: LocalClusterNode | None,
) -> ProbeEndpoints:
    snapshot, audit = base.snapshot, base.audit_log_components
    metrics = [
        GatewayMetrics(
            calls.servers,
            calls.catalog,
            calls.sessions,
            calls.active_calls,
            calls.parked_calls.__len__,
        ),
        calls.policy_components.limits,
        calls.streaming.metric_families,
        PoolFigures({"calls": pools.calls, "streams": pools.streams}),
        SnapshotMetrics(snapshot),
        base.approvals.metric_families,
        AuditMetrics(audit.audit_log, audit.checkpoints),
        base.models.engine.metric_families,
        ProcessMetrics(version("comity")),
    ]
    if cluster is None:
        return ProbeEndpoints(
            calls.servers, metrics, calls.call_gate.may_know_server, lambda: snapshot.problem
        )
    return ProbeEndpoints(
        calls.servers,
        [*metrics, cluster.metric_families],
        calls.call_gate.may_know_server,
        lambda: snapshot.problem,
        isolation_reason=cluster.isolation_reason,
        node_counts=cluster.node_counts,
    )


def _operator_dependencies(
    calls: CallComponents, about: Mapping[str, str], descriptions: Mapping[str, Mapping[str, str]]
) -> OperatorDependencies:
    return OperatorDependencies(
        calls.servers,
        calls.catalog,
        calls.sessions,
        calls.active_calls,
        about,
        descriptions.__getitem__,
        calls.server_policies.permission_views,
        ServerStatusReports(calls.servers),
    )


def _build_routes(
    settings: Settings,
    calls: CallComponents,
    snapshot: GatewaySnapshot,
    authenticator: Authenticator,
    audit_log_components: AuditLogComponents,
) -> ApiRoutes:
    """The operator API for keys, tools, grants and the audit log."""
    policy_components, server_policies, catalog = (
        calls.policy_components,
        calls.server_policies,
        calls.catalog,
    )
    return (
        *identity_routes(snapshot, authenticator.pepper, audit_log_components.audit_log),
        *ToolsApi(calls.servers, calls.call_gate, snapshot.grants).routes,
        *server_policies.routes(calls.servers, policy_components.administration),
        *grant_routes(policy_components, catalog, server_policies.tool_reviews),
        *audit_routes(snapshot.records, audit_log_components),
        *suggestion_routes(
            policy_components,
            catalog,
            server_policies.tool_reviews,
            audit_log_components.audit_log,
            settings,
        ),
    )


def _node_routes(
    settings: Settings, calls: CallComponents, cluster: LocalClusterNode | None
) -> ApiRoutes:
    members = None if cluster is None else cluster.members
    node = make_node(settings) if members is None else members.me
    return NodesApi(node, members, lambda: [server.name for server in calls.servers]).routes


def _gateway_info() -> dict[str, str]:
    return {"name": "comity", "version": version("comity")}


def _no_server(_: str) -> bool:
    return False


def _build_client_state(
    settings: Settings, task_ids: TaskIds, cluster: LocalClusterNode | None
) -> tuple[SessionStore, ParkedCalls]:
    """Build the state that clients have between requests: sessions and parked calls."""
    now = asyncio.get_running_loop().time
    sessions = SessionStore(
        now,
        settings.limits.max_sessions,
        settings.limits.session_idle_timeout.total_seconds(),
        settings.limits.max_sessions_per_principal,
        max_streams_per_principal=settings.limits.max_streams_per_principal,
        task_ids=task_ids,
        make_session_id=None if cluster is None else cluster.session_id,
    )
    parked = (
        settings.limits.max_pending_input,
        settings.limits.pending_input_timeout,
        settings.limits.max_pending_input_per_principal,
    )
    return sessions, ParkedCalls(now, *parked)


def _origin_check(settings: Settings) -> HostOriginCheck:
    proxies = TrustedProxies(settings.trusted_proxies)
    return HostOriginCheck(settings.allowed_hosts, settings.allowed_origins, proxies)


def _cluster_parts(parts: GatewayParts) -> ClusterGatewayParts:
    return ClusterGatewayParts(
        parts.servers,
        parts.catalog,
        parts.parked_calls,
        parts.http_app,
        parts.topic_components.topics,
        parts.event_components,
        parts.scopes,
    )


def _build_active_calls(
    settings: Settings,
    catalog: Catalog,
    sessions: SessionStore,
    tracer: Tracer | None,
    call_audit: CallAudit,
) -> ActiveCalls:
    deadline, cap = (
        settings.limits.call_idle_timeout.total_seconds(),
        settings.limits.call_total_timeout.total_seconds(),
    )
    setting = "max_requests_per_principal"
    requests = PrincipalShares(
        "requests in flight", setting, settings.limits.max_requests_per_principal
    )
    tallies = CallMetrics(lambda server, tool: catalog.has_entry(server, EntryKind.TOOL, tool))
    # The loop's own clock stands still between two rounds, too coarse for how long a call took.
    return ActiveCalls(
        time.monotonic,
        deadline,
        cap,
        tallies,
        requests,
        sessions.streams,
        tracer=tracer,
        outcome_recorder=with_access_log(call_audit),
    )
