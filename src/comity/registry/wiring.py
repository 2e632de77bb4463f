"""Wiring of the registry: the REST API of tools, its documents, and the list of servers."""

from collections.abc import Mapping

from comity.app.settings import Settings
from comity.gateway.all_servers import AllServersEndpoint
from comity.http.asgi import HttpEndpoint
from comity.identity.http_auth import AuthMember
from comity.registry.api import RegistryApi
from comity.registry.export import CatalogExport
from comity.registry.server_list import ServerListApi
from comity.registry.service import RegistryService, RegistryTimeouts
from comity.servers.wiring import limits_of
from comity.sessions.calls import ActiveCalls


def registry_endpoints(
    settings: Settings,
    all_servers_endpoint: AllServersEndpoint,
    active_calls: ActiveCalls,
    auth: AuthMember,
    descriptions: Mapping[str, Mapping[str, str]],
) -> dict[str, HttpEndpoint]:
    """The endpoints /tools, /openapi.json, /resources and /v0.1/servers."""
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
    listed = ServerListApi(
        gate, all_servers_endpoint.servers, descriptions, settings.identity.public_url
    )
    return {**RegistryApi(registry, limits_of(settings), auth).endpoints, **listed.endpoints}
