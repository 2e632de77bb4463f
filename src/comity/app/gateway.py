"""Builds a gateway from its settings, starts it and stops it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from comity.accounts.wiring import AccountComponents, build_accounts
from comity.app.authentication import HttpAuthenticator
from comity.app.cluster import ClusterGatewayParts, LocalClusterNode, make_cluster
from comity.app.gateway_routes import (
    browser_endpoints,
    build_routes,
    console_dependencies,
    describe_gateway,
)
from comity.app.health import ProbeEndpoints
from comity.app.http import HttpApp
from comity.app.metrics import GatewayMetrics, PoolFigures, SnapshotMetrics
from comity.app.parts import CallComponents, GatewayFoundation
from comity.app.records import GatewaySnapshot
from comity.app.settings import Settings
from comity.app.settings_api import ConfigState
from comity.app.upstreams import UpstreamRegistry, make_endpoints
from comity.app.view_endpoints import ViewEndpoints
from comity.approvals.pending_calls import ApprovedCallSteps
from comity.approvals.server_questions import CallbackMethods
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
    AuditLogComponents,
    build_audit,
    build_call_audit,
    open_audit_log,
)
from comity.catalog.catalog import Catalog
from comity.catalog.search.service import ToolSearch
from comity.catalog.toolbelt import ToolbeltService
from comity.catalog.wiring import (
    DiscoveryComponents,
    build_discovery,
    build_toolbelts,
    is_discovery_on,
    make_tool_search,
    similarity_index,
)
from comity.console.wiring import ConsoleComponents, build_console
from comity.events.bus import EventBus
from comity.events.wiring import EventComponents, WebhookComponents, build_events, build_webhooks
from comity.gateway.access_log import with_access_log
from comity.gateway.access_methods import AccessControlMethods
from comity.gateway.all_servers import AllServersEndpoint, GatewayInfo
from comity.gateway.call_audit import CallAudit
from comity.gateway.call_jobs import CallJobs, CallJobsApi
from comity.gateway.catalog_api import SearchApi
from comity.gateway.era_bridge import EraBridge, ParkedCalls
from comity.gateway.mgp_methods import ServerStatusMethods
from comity.gateway.one_server import ServerEndpoint
from comity.gateway.pipeline import CallGate, PlanCache
from comity.gateway.streaming import StreamingService
from comity.gateway.subscriptions import ListSubscriptions
from comity.http.api import ApiRouter
from comity.http.api_openapi import openapi_routes
from comity.http.asgi import OPERATORS, HostOriginCheck, HttpEndpoint
from comity.http.trusted_proxies import TrustedProxies
from comity.identity.authentication import Authenticator, IdentityDirectory
from comity.identity.http_auth import AuthMember
from comity.identity.login.service import LoginService
from comity.identity.login.wiring import build_login, make_browser_sessions
from comity.identity.wiring import (
    last_use_written,
    make_auth_member,
    make_identity,
    make_reception,
    make_register,
    make_task_names,
    make_tokens,
    open_policy_snapshot,
    scim_endpoints,
)
from comity.inference.wiring import InferenceComponents, open_inference
from comity.live.scopes.service import ScopeService
from comity.live.wiring import run_live
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.mgp import MgpExtension, offer_extensions
from comity.policy.shares import PrincipalShares
from comity.policy.snapshot import GrantSnapshot
from comity.policy.wiring import (
    LimitComponents,
    PolicyComponents,
    ServerPolicyService,
    make_administration,
)
from comity.registry.wiring import registry_endpoints
from comity.secrets.wiring import build_sealer
from comity.servers.registration.wiring import RegistrationComponents, build_registration
from comity.servers.sandbox.wiring import SandboxComponents
from comity.servers.service import ResourceLimits, ServerService
from comity.servers.wiring import (
    UpstreamPools,
    build_gateway_control,
    limits_of,
    make_pools,
)
from comity.sessions.calls import ActiveCalls, run_periodically
from comity.sessions.methods import MethodTable
from comity.sessions.revocation import AccessMonitor
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
from comity.views.service import ViewService

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
    login: LoginService
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
    console: ConsoleComponents
    call_jobs: CallJobs
    config_state: ConfigState
    accounts: AccountComponents
    view_endpoints: ViewEndpoints

    async def apply_settings(self, settings: Settings) -> None:
        """Apply the settings that a running gateway can change, apart from its servers."""
        await self.policy_components.apply_settings(settings)
        await self.view_endpoints.apply_settings(settings)

    def set_shutdown_callback(self, end: Callable[[], None]) -> None:
        """Set how this process ends where a client may ask for that."""
        self.all_servers_endpoint.status_methods.set_shutdown_callback(end)

    def end_streams(self) -> None:
        """End the streams that clients and operators read."""
        self.all_servers_endpoint.status_methods.announce_shutdown()
        self.sessions.end_streams()
        self.approval_components.end_streams()
        self.console.stream.end()


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
        audit_log_components = await start(open_audit_log(settings, snapshot, register.pepper))
        audit_log = audit_log_components.audit_log
        browser_sessions = make_browser_sessions(settings, snapshot, audit_log)
        authenticator = make_identity(
            settings, register, make_tokens(settings), operator_token, browser_sessions
        )
        await start(last_use_written(snapshot, authenticator.key_usage, browser_sessions))
        sealer = build_sealer(settings, register.pepper)
        login = build_login(
            settings,
            snapshot,
            authenticator,
            browser_sessions,
            audit_log,
            sealer,
            operator_token,
        )
        vector_index = await start(similarity_index(settings))
        approvals = make_approvals(settings, snapshot, audit_log)
        descriptions: dict[str, Mapping[str, str]] = {}
        tracer = await start(open_tracing(settings, descriptions))
        models = await start(
            open_inference(
                settings,
                snapshot.records.budgets,
                approvals,
                audit_log,
                tracer,
            )
        )
        foundation = GatewayFoundation(
            settings,
            snapshot,
            authenticator,
            login,
            audit_log_components,
            sealer,
            approvals,
            models,
            vector_index,
            tracer,
            descriptions,
        )
        yield await start(_run_gateway(foundation))


@contextlib.asynccontextmanager
async def _run_gateway(base: GatewayFoundation) -> AsyncGenerator[GatewayParts]:
    pools, schemas = make_pools(base.settings), CachedSchemaChecker()
    parts = build_gateway(base, pools, schemas)
    try:
        async with parts.accounts.running(), _run_servers(base, parts):
            yield parts
    finally:
        # Also after a start that failed: its parts have begun tasks that use the store.
        parts.tool_search.stop()
        parts.server_policies.stop()
        await parts.registration_components.close()
        await parts.webhooks.close()
        await parts.policy_components.limits.limits.close()
        await _close_resources(parts, pools, schemas)


@contextlib.asynccontextmanager
async def _run_servers(base: GatewayFoundation, parts: GatewayParts) -> AsyncGenerator[None]:
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
    await parts.upstream_registry.add_all(settings.servers)
    check_task = asyncio.ensure_future(
        run_periodically(checks, CHECK_INTERVAL_SECONDS, KEEP_ALIVE_SECONDS)
    )
    try:
        joined = contextlib.nullcontext() if cluster is None else cluster.running()
        async with joined, parts.console.running(), run_live(settings, parts):
            parts.servers.start()
            await registration_components.open()
            try:
                async with (
                    parts.webhooks.running(),
                    parts.approval_components.notifiers.running(),
                ):
                    yield
            finally:
                registration_components.stop()
                topic_members.stop()
                parts.call_jobs.stop()
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
        parts.policy_components.limits.limits.check,
    )
    return [*waiting, *kept, limits.check, parts.upstream_registry.sandboxes.check]


async def _close_resources(
    parts: GatewayParts, pools: UpstreamPools, schemas: CachedSchemaChecker
) -> None:
    """Close the connection pools, the schema checker and the validators."""
    await pools.close()
    await parts.upstream_registry.close()
    await schemas.close()
    await parts.validation_components.close()


def _build_calls(
    base: GatewayFoundation,
    pools: UpstreamPools,
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
        build_question_router=lambda hooks: build_server_questions(
            settings,
            base.approvals,
            background_tasks,
            audit_log_components,
            base.models.engine,
            hooks,
        ),
        stream_relay=streaming,
        is_elsewhere=_no_server if cluster is None else cluster.is_run_elsewhere,
    )
    counts = authenticator.stands
    bus = EventBus(snapshot.grants, counts, audit_log.clock)
    webhooks = build_webhooks(settings, authenticator, snapshot, audit_log, bus, base.sealer)
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
    limits = LimitComponents(settings, catalog, server_policies.policy_of, snapshot)
    limits.retries.retry_listeners.append(call_audit.record_retry)
    validation_components = ValidationComponents(
        RulesOf(server_policies.policy_of, server_policies.tool_reviews.review_of), settings
    )
    accounts = build_accounts(
        settings, snapshot, authenticator, base.login, audit_log, pools.calls, base.approvals
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
        sign_in=accounts.make_gate(pending_calls),
    )
    servers = ServerService(catalog, schemas, server_policies.tool_reviews, base.descriptions.get)
    sessions, parked_calls = _build_client_state(settings, cluster)
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
        views=ViewService(
            catalog, snapshot.grants, server_policies.tool_reviews, snapshot.grants.generation
        ),
        servers=servers,
        sessions=sessions,
        parked_calls=parked_calls,
        active_calls=_build_active_calls(settings, catalog, sessions, base.tracer, call_audit),
        audit_components=build_audit(audit_log, snapshot.grants, counts, servers, server_policies),
        event_components=build_events(bus, audit_log, call_audit, servers, is_only_here),
        accounts=accounts,
        webhooks=webhooks,
        streaming=streaming,
    )


def _build_plan_cache(grants: GrantSnapshot, server_policies: ServerPolicyService) -> PlanCache:
    permits = server_policies.tool_reviews.permission_service

    def is_lasting(actor: Actor, entry: CatalogEntry, view: str) -> bool:
        is_decided = grants.never_expires(actor, entry.server, entry.name, view)
        return is_decided and permits.permissions_of(entry.server).expires_at is None

    return PlanCache(grants.generation, is_lasting)


def build_gateway(
    base: GatewayFoundation, pools: UpstreamPools, schemas: CachedSchemaChecker
) -> GatewayParts:
    """Every part of a gateway, in the order in which they depend on each other."""
    settings, snapshot, authenticator = base.settings, base.snapshot, base.authenticator
    audit_log_components, audit_log = base.audit_log_components, base.audit_log_components.audit_log
    auth = make_auth_member(settings, authenticator)
    cluster = make_cluster(settings, authenticator.pepper)
    calls = _build_calls(base, pools, schemas, cluster)
    server_policies, grant_admin = calls.server_policies, calls.policy_components.administration
    http_authenticator = make_reception(settings, authenticator, snapshot, calls.views)
    approval_components = build_approvals(
        settings,
        snapshot,
        audit_log_components,
        calls.pending_calls,
        authenticator,
        grant_admin,
        http_authenticator,
        server_policies.tool_reviews,
    )
    topic_components = make_topics(settings, snapshot, authenticator, audit_log, grant_admin)
    http = _build_http_app(base, http_authenticator, auth, cluster)
    toolbelt_service = build_toolbelts(
        settings, calls.call_gate, calls.event_components.sources.on_toolbelt_changed
    )
    subscriptions = _build_subscriptions(settings, calls, toolbelt_service)
    _watch_access(snapshot, calls, authenticator, subscriptions)
    bridge = EraBridge(calls.catalog, calls.parked_calls)
    upstream_registry = _build_servers(
        base, calls, subscriptions, bridge, http, pools, auth, cluster
    )
    info = GatewayInfo(calls.servers, describe_gateway())
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
    methods = _build_methods(calls, approval_components, registration_components, discovery)
    all_servers_endpoint = _build_endpoint(
        base, calls, bridge, subscriptions, info, methods, discovery
    )
    probes = _build_probes(base, calls, pools, cluster, approval_components)
    api = ApiRouter(http_authenticator.require_grant)
    console = build_console(
        console_dependencies(base, calls, topic_components.topics, http_authenticator, cluster),
        cluster,
    )
    config_state = ConfigState(settings, learn_secrets=audit_log_components.learn_secrets)
    call_jobs = _build_call_jobs(all_servers_endpoint, cluster)
    api.add(build_routes(base, calls, describe_gateway(), cluster, config_state))
    api.add((*approval_components.routes, *topic_components.routes, *SearchApi(tool_search).routes))
    api.add((*openapi_routes(api), *console.routes, *CallJobsApi(call_jobs).routes))
    api.add_stream(console.stream.route)
    endpoints = _build_endpoints(settings, calls, all_servers_endpoint, auth, base.descriptions)
    endpoints |= approval_components.endpoints | topic_components.endpoints | probes.endpoints
    http.add_endpoints({**endpoints, OPERATORS: api})
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
        login=base.login.service,
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
        console=console,
        call_jobs=call_jobs,
        config_state=config_state,
        accounts=calls.accounts,
        view_endpoints=_serve_views(settings, calls, all_servers_endpoint, http, auth),
    )


def _serve_views(
    settings: Settings,
    calls: CallComponents,
    all_servers_endpoint: AllServersEndpoint,
    http: HttpApp,
    auth: AuthMember,
) -> ViewEndpoints:
    """Build the endpoints of views, and serve those of the settings."""
    endpoints = ViewEndpoints(calls.views, all_servers_endpoint, http, calls.sessions, auth)
    endpoints.serve(settings)
    return endpoints


def _build_endpoints(
    settings: Settings,
    calls: CallComponents,
    all_servers_endpoint: AllServersEndpoint,
    auth: AuthMember,
    descriptions: Mapping[str, Mapping[str, str]],
) -> dict[str, HttpEndpoint]:
    """Build the endpoints of all servers: for MCP clients, as REST endpoints, and for browsers."""
    return {
        **make_endpoints("", all_servers_endpoint, calls.sessions, limits_of(settings), auth),
        **registry_endpoints(
            settings, all_servers_endpoint, calls.active_calls, auth, descriptions
        ),
        **browser_endpoints(),
        **calls.accounts.endpoints,
    }


def _build_endpoint(
    base: GatewayFoundation,
    calls: CallComponents,
    bridge: EraBridge,
    subscriptions: ListSubscriptions,
    info: GatewayInfo,
    methods: MethodTable,
    discovery: DiscoveryComponents,
) -> AllServersEndpoint:
    return AllServersEndpoint(
        calls.servers,
        calls.call_gate,
        calls.active_calls,
        bridge,
        subscriptions,
        info,
        status_methods=_build_status_methods(base.settings, calls, base.audit_log_components),
        methods=methods,
        tasks=make_task_names(base.authenticator),
        own_tools=discovery.own_tools,
    )


def _build_call_jobs(
    all_servers_endpoint: AllServersEndpoint, cluster: LocalClusterNode | None
) -> CallJobs:
    if cluster is None:
        return CallJobs(all_servers_endpoint)
    return CallJobs(all_servers_endpoint, cluster.session_id)


def _build_http_app(
    base: GatewayFoundation,
    http_authenticator: HttpAuthenticator,
    auth: AuthMember,
    cluster: LocalClusterNode | None,
) -> HttpApp:
    elsewhere = None if cluster is None else cluster.request_forwarder(auth)
    audit_log = base.audit_log_components.audit_log
    return HttpApp(
        _origin_check(base.settings),
        {
            **base.login.endpoints,
            **scim_endpoints(base.settings, base.snapshot, http_authenticator, audit_log),
        },
        http_authenticator=http_authenticator,
        node_forwarder=elsewhere,
        generation=base.snapshot.grants.generation,
    )


def _build_servers(
    base: GatewayFoundation,
    calls: CallComponents,
    subscriptions: ListSubscriptions,
    bridge: EraBridge,
    http: HttpApp,
    pools: UpstreamPools,
    auth: AuthMember,
    cluster: LocalClusterNode | None,
) -> UpstreamRegistry:
    task_ids = make_task_names(base.authenticator)
    return UpstreamRegistry(
        base.settings,
        calls.servers,
        calls.sessions,
        subscriptions,
        http,
        pools,
        lambda server: ServerEndpoint(
            server, calls.call_gate, calls.active_calls, bridge, subscriptions, task_ids
        ),
        calls.server_policies,
        SandboxComponents(
            base.settings,
            calls.server_policies,
            calls.servers,
            base.descriptions,
            snapshot=calls.policy_components.snapshot,
            resolver=calls.validation_components.resolver,
            audit_log=base.audit_log_components.audit_log,
        ),
        auth,
        base.descriptions,
        cluster,
        calls.accounts,
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


def _watch_access(
    snapshot: GatewaySnapshot,
    calls: CallComponents,
    authenticator: Authenticator,
    subscriptions: ListSubscriptions,
) -> None:
    """Follow the changes of grants, principals and keys that concern what is open."""
    snapshot.watch(RecordKind.GRANTS, subscriptions.on_grants_changed)
    monitor = AccessMonitor(calls.sessions, calls.active_calls, authenticator.refresh_actor)
    snapshot.watch_principals(monitor.on_principal_changed)


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
    base: GatewayFoundation,
    calls: CallComponents,
    pools: UpstreamPools,
    cluster: LocalClusterNode | None,
    approval_components: ApprovalComponents,
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
        approval_components.notifiers.service.metric_families,
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


def _no_server(_: str) -> bool:
    return False


def _build_client_state(
    settings: Settings, cluster: LocalClusterNode | None
) -> tuple[SessionStore, ParkedCalls]:
    """Build the state that clients have between requests: sessions and parked calls."""
    now = asyncio.get_running_loop().time
    sessions = SessionStore(
        now,
        settings.limits.max_sessions,
        settings.limits.session_idle_timeout.total_seconds(),
        settings.limits.max_sessions_per_principal,
        max_streams_per_principal=settings.limits.max_streams_per_principal,
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
    question_timeout = settings.limits.pending_input_timeout.total_seconds()
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
        question_timeout,
        tallies,
        request_shares=requests,
        stream_shares=sessions.streams,
        tracer=tracer,
        outcome_recorder=with_access_log(call_audit),
    )
