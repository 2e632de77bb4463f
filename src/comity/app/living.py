"""Health in both directions: what servers say of themselves, how this gateway fares and ends."""

from collections.abc import Mapping

from comity.adapters.telemetry_process import resident_bytes
from comity.config import Settings
from comity.kernel.accounts import Accounts
from comity.kernel.administration import Administration
from comity.kernel.journal import Journal
from comity.kernel.own_life import OwnLife
from comity.kernel.servers import Servers
from comity.kernel.sessions import Sessions
from comity.kernel.switchboard import AllServers


def let_live(
    settings: Settings,
    everything: AllServers,
    sessions: Sessions,
    administration: Administration,
    journal: Journal,
) -> Accounts:
    """Have the gateway answer for itself, and its servers asked for their own account.

    A connection is a client's session, or a link to a server.
    """
    servers = everything.servers

    def readings() -> Mapping[str, int]:
        found = {"open_connections": len(sessions) + _links(servers)}
        memory = resident_bytes()
        return found if memory is None else {"memory_bytes": int(memory), **found}

    everything.presence.own = OwnLife(
        *(administration, journal, readings, settings.shutdown_grace),
        is_switched_on=settings.remote_shutdown,
    )
    return Accounts(servers)


def _links(servers: Servers) -> int:
    return sum(len(server.pulse.links) for server in servers)
