"""Operator API for the gateway's status and its servers."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, NotRequired, TypedDict

from msgspec import Meta

from comity.catalog.catalog import Catalog
from comity.catalog.review_api import PermissionView
from comity.errors import NOTHING_HERE, MalformedMessage, Misconfigured
from comity.http.api import ApiHandler, ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyBody, EmptyQuery, RequestQuery
from comity.mcp.entries import EntryKind
from comity.mcp.mgp import HealthStatus, ServerLifecycleState
from comity.policy.risk import TrustLevel
from comity.servers.service import ServerService, ServerStatusReports
from comity.servers.supervisor import ServerTransition, UpstreamServer
from comity.sessions.calls import ActiveCalls
from comity.sessions.sessions import SessionStore

log = logging.getLogger(__name__)

ORDER_TIMEOUT_SECONDS: Final = 5.0
"""How long the answer to an order waits for the order to complete."""
MAX_REASON_LENGTH: Final = 2000
MAX_SERVERS: Final = 1000
MAX_TRANSITIONS: Final = 50
HEALTHY_STATES: Final = frozenset(
    {ServerLifecycleState.CONNECTED, ServerLifecycleState.DISCONNECTED}
)

type ServerOrder = Callable[[str, str], Awaitable[None]]
"""Acts on the server of that name, by order of that principal."""


class GatewayIdentity(TypedDict):
    """The name and version of this gateway."""

    name: str
    version: str


class ServerStateView(TypedDict):
    """The state of a server, and how it is reached."""

    id: str
    state: ServerLifecycleState
    reason: str
    since: datetime
    restarts: int
    # The status that the server reports about itself, if it speaks MGP.
    health: HealthStatus | None
    label: str
    transport: str
    reached: str
    # The level of its sandbox at its last start, if it is a process.
    sandbox: str | None
    # The principal that registered the server at run time.
    registered_by: str | None
    protocol_versions: Sequence[str]
    tools: int
    resources: int
    resourceTemplates: int
    prompts: int


class ServerSummaryView(ServerStateView):
    """A server in a list. `quarantined` is the number of tools that no client sees."""

    quarantined: int


class ServerListView(TypedDict):
    """One page of servers. `total` counts all that match."""

    servers: list[ServerSummaryView]
    total: int
    next: NotRequired[str]


class TransitionView(TypedDict):
    """One transition of a server's state. `by` is the principal that ordered it."""

    at: datetime
    previous: ServerLifecycleState
    state: ServerLifecycleState
    reason: str
    by: str | None
    is_given_up: bool


class ServerDetailView(ServerStateView):
    """One server. `quarantined` has the reason for each tool that no client sees."""

    quarantined: Mapping[str, str]
    permissions: Sequence[PermissionView]
    info: object
    instructions: object
    lines: list[str]
    # The latest transitions at this node, the newest first.
    history: list[TransitionView]
    trust: TrustLevel
    account: NotRequired[Mapping[str, object] | None]


class ServerLogsView(TypedDict):
    """The last lines that a server wrote to stderr."""

    id: str
    lines: list[str]


class TroubledServerView(TypedDict):
    """A server that cannot be used, and the reason."""

    id: str
    state: ServerLifecycleState
    reason: str


class StatusView(GatewayIdentity):
    """The gateway as a whole."""

    started: datetime
    ready: bool
    servers: Mapping[ServerLifecycleState, int]
    troubled: list[TroubledServerView]
    tools: int
    sessions: int
    calls: int


class ServerPageQuery(RequestQuery, frozen=True):
    """Which servers to list. `text` is a part of the id, the label or the reason."""

    state: ServerLifecycleState | None = None
    text: Annotated[str, Meta(max_length=200)] = ""
    limit: Annotated[int, Meta(ge=1, le=MAX_SERVERS)] = MAX_SERVERS
    # The number of servers of the pages before.
    cursor: Annotated[int, Meta(ge=0, le=10**9)] = 0


class TransitionHistory:
    """The latest transitions of each server of this node, in memory."""

    def __init__(self, servers: ServerService) -> None:
        self._servers = servers
        self._transitions: dict[str, deque[ServerTransition]] = {}
        servers.watch(self._on_transition)

    def of(self, server: str) -> list[TransitionView]:
        return [_transition_view(each) for each in reversed(self._transitions.get(server, ()))]

    def _on_transition(self, transition: ServerTransition) -> None:
        if transition.server not in self._transitions:
            # A server that was removed leaves its transitions behind.
            for gone in self._transitions.keys() - set(self._servers.names()):
                del self._transitions[gone]
        kept = self._transitions.setdefault(
            transition.server, deque[ServerTransition](maxlen=MAX_TRANSITIONS)
        )
        kept.append(transition)


def _transition_view(transition: ServerTransition) -> TransitionView:
    return {
        "at": transition.at,
        "previous": transition.previous,
        "state": transition.state,
        "reason": transition.reason[:MAX_REASON_LENGTH],
        "by": transition.by or None,
        "is_given_up": transition.is_given_up,
    }


@dataclass(frozen=True, slots=True)
class OperatorDependencies:
    """The components that the operator API of servers uses."""

    servers: ServerService
    catalog: Catalog
    sessions: SessionStore
    active_calls: ActiveCalls
    gateway_info: GatewayIdentity
    # How each server is reached, without anything that may be a secret.
    describe: Callable[[str], Mapping[str, str]]
    # Why clients do not see some of its tools, by their names.
    withheld_definitions: Callable[[str], Awaitable[Mapping[str, str]]]
    # The permissions that each server needs, and which of them it has.
    permissions_of: Callable[[str], Sequence[PermissionView]] = lambda _: ()
    # The health that a server reports when it is asked. (MGP §11.3)
    status_reports: ServerStatusReports | None = None
    # Whether Comity believes what a server says of its tools.
    trust_of: Callable[[str], TrustLevel] = lambda _: TrustLevel.STANDARD


class ServersApi:
    """Routes that show the gateway and its servers, and that restart, stop or start a server."""

    def __init__(self, dependencies: OperatorDependencies) -> None:
        self._servers = dependencies.servers
        self._catalog = dependencies.catalog
        self._dependencies = dependencies
        self._history = TransitionHistory(dependencies.servers)
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
            ApiRoute("GET", "/api/servers", read, self._list_servers, ServerPageQuery),
            ApiRoute("GET", "/api/servers/{server}", read, self._show_server, EmptyQuery),
            ApiRoute("GET", "/api/servers/{server}/logs", read, self._show_logs, EmptyQuery),
            ApiRoute("POST", "/api/servers/{server}/restart", write, restart, EmptyBody),
            ApiRoute("POST", "/api/servers/{server}/stop", write, stop, EmptyBody),
            ApiRoute("POST", "/api/servers/{server}/start", write, start, EmptyBody),
        )

    async def _list_servers(self, request: ApiRequest[ServerPageQuery]) -> ServerListView:
        """Return one page of the servers that match."""
        wanted = request.input
        found = [server for server in self._servers if self._is_wanted(server, wanted)]
        end = wanted.cursor + wanted.limit
        page: ServerListView = {
            "servers": [await self._summary_view(server) for server in found[wanted.cursor : end]],
            "total": len(found),
        }
        return page if end >= len(found) else {**page, "next": str(end)}

    def _is_wanted(self, server: UpstreamServer, wanted: ServerPageQuery) -> bool:
        if wanted.state is not None and server.state is not wanted.state:
            return False
        label = self._dependencies.describe(server.name)["label"]
        said = f"{server.name} {label} {server.reason}".casefold()
        return all(word in said for word in wanted.text.casefold().split())

    async def _show_server(self, request: ApiRequest[EmptyQuery]) -> ServerDetailView:
        server = self._require_server(request.path["server"])
        accounts = self._dependencies.status_reports
        found = await self._detail_view(server)
        return found if accounts is None else {**found, "account": await accounts.report_of(server)}

    async def _show_logs(self, request: ApiRequest[EmptyQuery]) -> ServerLogsView:
        server = self._require_server(request.path["server"])
        return {"id": server.name, "lines": list(server.stderr_lines())}

    def _order_handler(self, order: ServerOrder) -> ApiHandler[EmptyBody]:
        """Return a handler that carries out an order and answers with the server's status.

        An order waits for the active calls. It continues if the client disconnects, and the answer
        waits at most `ORDER_TIMEOUT_SECONDS`.
        """

        async def handle(request: ApiRequest[EmptyBody]) -> ServerDetailView:
            server = self._require_server(request.path["server"])
            task = asyncio.ensure_future(_run_and_log(order, server.name, request.actor.party))
            self._order_tasks.add(task)
            task.add_done_callback(self._order_tasks.discard)
            await asyncio.wait([task], timeout=ORDER_TIMEOUT_SECONDS)
            return await self._detail_view(self._require_server(server.name))

        return handle

    def _require_server(self, name: str) -> UpstreamServer:
        server = self._servers.get(name)
        if server is None:
            raise MalformedMessage(f"there is no server {name!r:.200}", NOTHING_HERE)
        return server

    async def _show_status(self, _: ApiRequest[EmptyQuery]) -> StatusView:
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

    async def _summary_view(self, server: UpstreamServer) -> ServerSummaryView:
        withheld = await self._dependencies.withheld_definitions(server.name)
        return {**self._state_view(server), "quarantined": len(withheld)}

    def _state_view(self, server: UpstreamServer) -> ServerStateView:
        about = self._dependencies.describe(server.name)

        def count(kind: EntryKind) -> int:
            return self._catalog.count(server.name, kind)

        return {
            "id": server.name,
            "state": server.state,
            "reason": server.reason[:MAX_REASON_LENGTH],
            "since": server.since,
            "restarts": server.restarts,
            "health": server.health.status,
            "label": about["label"],
            "transport": about["transport"],
            "reached": about["reached"],
            "sandbox": about.get("sandbox"),
            "registered_by": about.get("registered_by"),
            "protocol_versions": server.connections.protocol_versions,
            "tools": count(EntryKind.TOOL),
            "resources": count(EntryKind.RESOURCE),
            "resourceTemplates": count(EntryKind.TEMPLATE),
            "prompts": count(EntryKind.PROMPT),
        }

    async def _detail_view(self, server: UpstreamServer) -> ServerDetailView:
        """Return all details of one server, including its own reports and its last output."""
        withheld = await self._dependencies.withheld_definitions(server.name)
        return {
            **self._state_view(server),
            "quarantined": withheld,
            "permissions": list(self._dependencies.permissions_of(server.name)),
            "info": _initialize_member(server, "serverInfo"),
            "instructions": _initialize_member(server, "instructions"),
            "lines": list(server.stderr_lines()),
            "history": self._history.of(server.name),
            "trust": self._dependencies.trust_of(server.name),
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
