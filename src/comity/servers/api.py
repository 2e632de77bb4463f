"""Operator API for the gateway's status and its servers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from comity.catalog.catalog import Catalog
from comity.errors import NOTHING_HERE, MalformedMessage, Misconfigured
from comity.http.api import ApiHandler, ApiRequest, ApiRoute, ApiRoutes, Permission, View
from comity.http.api_input import EmptyBody, EmptyQuery
from comity.mcp.entries import EntryKind
from comity.mcp.mgp import ServerLifecycleState
from comity.servers.service import ServerService, ServerStatusReports
from comity.servers.supervisor import UpstreamServer
from comity.sessions.calls import ActiveCalls
from comity.sessions.sessions import SessionStore

log = logging.getLogger(__name__)

ORDER_TIMEOUT_SECONDS: Final = 5.0
"""How long the answer to an order waits for the order to complete."""
MAX_REASON_LENGTH: Final = 2000
HEALTHY_STATES: Final = frozenset(
    {ServerLifecycleState.CONNECTED, ServerLifecycleState.DISCONNECTED}
)

type ServerOrder = Callable[[str, str], Awaitable[None]]
"""Acts on the server of that name, by order of that principal."""


@dataclass(frozen=True, slots=True)
class OperatorDependencies:
    """The components that the operator API of servers uses."""

    servers: ServerService
    catalog: Catalog
    sessions: SessionStore
    active_calls: ActiveCalls
    gateway_info: Mapping[str, object]
    # How each server is reached, without anything that may be a secret.
    describe: Callable[[str], Mapping[str, str]]
    # The permissions that each server needs, and which of them it has.
    permissions_of: Callable[[str], Sequence[View]] = lambda _: ()
    # The health that a server reports when it is asked. (MGP §11.3)
    status_reports: ServerStatusReports | None = None


class ServersApi:
    """Routes that show the gateway and its servers, and that restart, stop or start a server."""

    def __init__(self, dependencies: OperatorDependencies) -> None:
        self._servers = dependencies.servers
        self._catalog = dependencies.catalog
        self._dependencies = dependencies
        self._started_at = datetime.now(UTC)
        self._order_tasks: set[asyncio.Task[None]] = set()

    @property
    def routes(self) -> ApiRoutes:
        read, write = Permission.ADMIN_READ, Permission.ADMIN_WRITE
        restart = self._order_handler(self._servers.restart)
        stop = self._order_handler(self._servers.stop_server)
        start = self._order_handler(self._servers.start_server)
        return (
            ApiRoute("GET", "/api/status", read, self._show_status, EmptyQuery),
            ApiRoute("GET", "/api/servers", read, self._list_servers, EmptyQuery),
            ApiRoute("GET", "/api/servers/{server}", read, self._show_server, EmptyQuery),
            ApiRoute("GET", "/api/servers/{server}/logs", read, self._show_logs, EmptyQuery),
            ApiRoute("POST", "/api/servers/{server}/restart", write, restart, EmptyBody),
            ApiRoute("POST", "/api/servers/{server}/stop", write, stop, EmptyBody),
            ApiRoute("POST", "/api/servers/{server}/start", write, start, EmptyBody),
        )

    async def _list_servers(self, _: ApiRequest[EmptyQuery]) -> View:
        return {"servers": [self._summary_view(server) for server in self._servers]}

    async def _show_server(self, request: ApiRequest[EmptyQuery]) -> View:
        server = self._require_server(request.path["server"])
        accounts = self._dependencies.status_reports
        found = self._detail_view(server)
        return found if accounts is None else {**found, "account": await accounts.report_of(server)}

    async def _show_logs(self, request: ApiRequest[EmptyQuery]) -> View:
        server = self._require_server(request.path["server"])
        return {"id": server.name, "lines": list(server.stderr_lines())}

    def _order_handler(self, order: ServerOrder) -> ApiHandler[EmptyBody]:
        """Return a handler that carries out an order and answers with the server's status.

        An order waits for the active calls. It continues if the client disconnects, and the answer
        waits at most `ORDER_TIMEOUT_SECONDS`.
        """

        async def handle(request: ApiRequest[EmptyBody]) -> View:
            server = self._require_server(request.path["server"])
            task = asyncio.ensure_future(_run_and_log(order, server.name, request.actor.party))
            self._order_tasks.add(task)
            task.add_done_callback(self._order_tasks.discard)
            await asyncio.wait([task], timeout=ORDER_TIMEOUT_SECONDS)
            return self._detail_view(self._require_server(server.name))

        return handle

    def _require_server(self, name: str) -> UpstreamServer:
        server = self._servers.get(name)
        if server is None:
            raise MalformedMessage(f"there is no server {name!r:.200}", NOTHING_HERE)
        return server

    async def _show_status(self, _: ApiRequest[EmptyQuery]) -> View:
        states = [server.state for server in self._servers]
        tools = sum(self._catalog.count(server.name, EntryKind.TOOL) for server in self._servers)
        troubled = [
            each for each in self._servers if each.reason and each.state not in HEALTHY_STATES
        ]
        return {
            **self._dependencies.gateway_info,
            "started": self._started_at,
            "ready": self._servers.is_every_server_tried,
            "servers": {
                state: states.count(state) for state in ServerLifecycleState if state in states
            },
            "troubled": [
                {"id": each.name, "state": each.state, "reason": each.reason[:MAX_REASON_LENGTH]}
                for each in troubled
            ],
            "tools": tools,
            "sessions": len(self._dependencies.sessions),
            "calls": len(self._dependencies.active_calls),
        }

    def _summary_view(self, server: UpstreamServer) -> View:
        return {
            "id": server.name,
            "state": server.state,
            "reason": server.reason[:MAX_REASON_LENGTH],
            "since": server.since,
            "restarts": server.restarts,
            # The status that the server reports about itself, if it speaks MGP.
            "health": server.health.status,
            **self._dependencies.describe(server.name),
            "protocol_versions": server.connections.protocol_versions,
            **{kind: self._catalog.count(server.name, kind) for kind in EntryKind},
            "quarantined": len(self._catalog.quarantine_reasons(server.name)),
        }

    def _detail_view(self, server: UpstreamServer) -> View:
        """Return all details of one server, including its own reports and its last output."""
        return {
            **self._summary_view(server),
            "quarantined": dict(self._catalog.quarantine_reasons(server.name)),
            "permissions": list(self._dependencies.permissions_of(server.name)),
            "info": _initialize_member(server, "serverInfo"),
            "instructions": _initialize_member(server, "instructions"),
            "lines": list(server.stderr_lines()),
        }


def _initialize_member(server: UpstreamServer, member: str) -> object:
    return (server.connections.initialize_result or server.connections.discover_result).get(member)


async def _run_and_log(order: ServerOrder, name: str, by: str) -> None:
    """Log a failure, because the client may be gone by then."""
    try:
        await order(name, by)
    except Misconfigured as error:
        log.warning("An operator action came too late: %s", error)
    except Exception:
        log.exception("An operator action on server %r failed", name)
