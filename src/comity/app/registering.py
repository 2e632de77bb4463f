"""The registry's face, joined from the parts that every other door has too."""

from comity.app.reaching import limits_of
from comity.config import Settings
from comity.kernel.exports import Exports
from comity.kernel.gate import Gate
from comity.kernel.registry import Options, Registry
from comity.kernel.servers import Servers
from comity.kernel.switchboard import AllServers
from comity.kernel.underway import Underway
from comity.surfaces.auth_member import AuthMember
from comity.surfaces.gateway import Door
from comity.surfaces.registry_api import RegistryApi


def registry_doors(
    settings: Settings,
    servers: Servers,
    everything: AllServers,
    gate: Gate,
    underway: Underway,
    auth: AuthMember,
) -> dict[str, Door]:
    """The doors at /tools, /openapi.json and /resources."""
    exports = Exports(gate, servers, is_open=settings.identity_mode == "local")
    options = Options(
        tool=settings.tool_timeout.total_seconds(),
        validation=settings.validation_timeout.total_seconds(),
        discovery=settings.discovery_timeout.total_seconds(),
        lock=settings.lock_timeout.total_seconds(),
        calls_per_server=settings.calls_per_server,
        documentation=settings.documentation_url,
    )
    registry = Registry(everything, gate, underway, exports, options)
    return RegistryApi(registry, limits_of(settings), auth).doors
