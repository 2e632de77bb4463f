"""The routes of the operator API, the pages of browsers and the checks of a gateway."""

from collections.abc import Mapping
from functools import partial
from importlib.metadata import version

from comity.app.authentication import HttpAuthenticator
from comity.app.browser_pages import LANDING_PATH, landing_page
from comity.app.cluster import LocalClusterNode, make_node
from comity.app.offline import audit_routes
from comity.app.parts import CallComponents, GatewayFoundation
from comity.app.settings import Settings
from comity.app.settings_api import ConfigState, HealthCheck, SettingsApi
from comity.cluster.api import NodesApi
from comity.console.endpoint import installed_console_files, redirect_to_console
from comity.console.wiring import ConsoleDependencies
from comity.errors import Unavailable
from comity.gateway.catalog_api import ToolsApi
from comity.http.api import ApiRoutes
from comity.http.asgi import HttpEndpoint
from comity.identity.authentication import TokenIssuer
from comity.identity.wiring import (
    identity_routes,
)
from comity.policy.wiring import (
    grant_routes,
    suggestion_routes,
)
from comity.secrets.wiring import secret_routes
from comity.servers.api import GatewayIdentity, OperatorDependencies, ServersApi
from comity.servers.service import ServerStatusReports
from comity.servers.wiring import (
    proxies_of,
)
from comity.toolkit.text import count_noun
from comity.topics.service import TopicService
from comity.views.api import ViewsApi


def _health_checks(
    base: GatewayFoundation, cluster: LocalClusterNode | None
) -> dict[str, HealthCheck]:
    """Return the checks of what this node depends on."""

    async def check_store() -> str:
        await base.snapshot.records.changes.since(base.snapshot.version)
        return base.snapshot.problem or "the store answers"

    async def check_bus() -> str:
        assert cluster is not None
        if reason := cluster.members.cut_off:
            raise Unavailable(reason)
        return f"joined with {count_noun(len(cluster.members), 'other node')}"

    async def check_issuer(issuer: TokenIssuer) -> str:
        # Imported here because PyJWT loads slowly, and most gateways have no issuer.
        from comity.identity.oauth import count_keys

        number = await count_keys(issuer, proxies_of(base.settings))
        return f"it publishes {count_noun(number, 'key')}"

    checks: dict[str, HealthCheck] = {"store": check_store}
    if cluster is not None:
        checks["nats"] = check_bus
    for issuer in base.settings.identity.issuers:
        checks[f"issuer {issuer.issuer}"] = partial(check_issuer, issuer)
    return checks


def _operator_dependencies(
    calls: CallComponents,
    about: GatewayIdentity,
    descriptions: Mapping[str, Mapping[str, str]],
) -> OperatorDependencies:
    return OperatorDependencies(
        calls.servers,
        calls.catalog,
        calls.sessions,
        calls.active_calls,
        about,
        descriptions.__getitem__,
        calls.server_policies.tool_reviews.withheld_definitions,
        calls.server_policies.permission_views,
        ServerStatusReports(calls.servers),
        calls.server_policies.tool_reviews.trust_of,
    )


def build_routes(
    base: GatewayFoundation,
    calls: CallComponents,
    about: GatewayIdentity,
    cluster: LocalClusterNode | None,
    config_state: ConfigState,
) -> ApiRoutes:
    """The operator API, without the routes of approvals, topics, search and the console."""
    settings, snapshot, audit_log_components = (
        base.settings,
        base.snapshot,
        base.audit_log_components,
    )
    policy_components, server_policies, catalog = (
        calls.policy_components,
        calls.server_policies,
        calls.catalog,
    )
    return (
        *identity_routes(snapshot, base.authenticator.pepper, audit_log_components.audit_log),
        *base.login.routes,
        *ServersApi(_operator_dependencies(calls, about, base.descriptions)).routes,
        *ToolsApi(calls.servers, calls.call_gate, snapshot.grants).routes,
        *ViewsApi(
            calls.views,
            server_policies.tool_reviews,
            snapshot.records.audit_log.find,
            audit_log_components.redact,
            audit_log_components.audit_log.clock,
        ).routes,
        *server_policies.routes(calls.servers, policy_components.administration),
        *grant_routes(policy_components, catalog, server_policies.tool_reviews, calls.views),
        *audit_routes(snapshot.records, audit_log_components, settings),
        *suggestion_routes(
            policy_components,
            catalog,
            server_policies.tool_reviews,
            audit_log_components.audit_log,
            settings,
        ),
        *calls.webhooks.routes,
        *calls.accounts.routes,
        *secret_routes(base.sealer, snapshot.records, audit_log_components.audit_log),
        *_node_routes(settings, calls, cluster),
        *SettingsApi(config_state, _health_checks(base, cluster)).routes,
    )


def _node_routes(
    settings: Settings, calls: CallComponents, cluster: LocalClusterNode | None
) -> ApiRoutes:
    members = None if cluster is None else cluster.members
    node = make_node(settings) if members is None else members.me
    return NodesApi(node, members, lambda: [server.name for server in calls.servers]).routes


def describe_gateway() -> GatewayIdentity:
    return {"name": "comity", "version": version("comity")}


def browser_endpoints() -> dict[str, HttpEndpoint]:
    """The web console, and `/`, which leads to it. Without a build, `/` is a plain page."""
    console = installed_console_files()
    return {
        **console.endpoints,
        LANDING_PATH: redirect_to_console if console.is_built else landing_page,
    }


def console_dependencies(
    base: GatewayFoundation,
    calls: CallComponents,
    topics: TopicService,
    http_authenticator: HttpAuthenticator,
    cluster: LocalClusterNode | None,
) -> ConsoleDependencies:
    node = make_node(base.settings) if cluster is None else cluster.members.me
    return ConsoleDependencies(
        servers=calls.servers,
        catalog=calls.catalog,
        tool_reviews=calls.server_policies.tool_reviews,
        sessions=calls.sessions,
        active_calls=calls.active_calls,
        approvals=base.approvals,
        topics=topics,
        audit_log=base.audit_log_components.audit_log,
        accounts=calls.accounts.service,
        snapshot=base.snapshot,
        http_authenticator=http_authenticator,
        count_usage=base.models.engine.usage_totals,
        node=node.name,
    )
