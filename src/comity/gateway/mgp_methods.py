"""The MGP methods about servers, and about health and shutdown of the gateway."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

import msgspec
from msgspec import Raw, Struct

from comity.audit.events import AuditType
from comity.audit.log import AuditLog
from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.events.audit_feed import AuditFeed
from comity.gateway.pipeline import CallGate
from comity.mcp import jsonrpc, mgp
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, Actor
from comity.mcp.entries import EntryKind
from comity.mcp.mgp import (
    CLIENT_EXTENSIONS,
    SERVER_EXTENSIONS,
    HealthStatus,
    MgpExtension,
    MgpStatement,
    NegotiatedTerms,
    ServerLifecycleState,
    ShutdownReason,
    declare_mgp,
    decode_statement,
    negotiate_terms,
    offer_extensions,
    strip_mgp_capabilities,
    version_remark,
)
from comity.policy.administration import GrantAdmin
from comity.policy.risk import TrustLevel, expand_aliases
from comity.servers.service import ServerService
from comity.servers.supervisor import ServerTransition, UpstreamServer
from comity.sessions.calls import ActiveCalls
from comity.sessions.methods import MethodRequest, method
from comity.sessions.sessions import Session

log = logging.getLogger(__name__)

DRAIN_TIME_PER_REQUEST: Final = timedelta(seconds=1)
"""The estimated time that an open request still needs."""

type Readings = Callable[[], Mapping[str, int]]


class GatewayControl:
    """Decides which actors may read the state of this process and which may shut it down."""

    def __init__(
        self,
        administration: GrantAdmin,
        audit_log: AuditLog,
        read_resources: Readings,
        grace: timedelta,
        *,
        is_enabled: bool,
    ) -> None:
        self._administration = administration
        self._audit_log = audit_log
        self._read_resources = read_resources
        self._grace = grace
        self._is_enabled = is_enabled
        # Stops the process; None if the process ends together with its client.
        self.on_shutdown: Callable[[], None] | None = None
        self.reason = ShutdownReason.KERNEL_SHUTDOWN

    def resources(self, actor: Actor) -> Mapping[str, int]:
        return self._read_resources() if self._has_grant(actor, ADMIN_READ) else {}

    def drain_ms(self, pending: int) -> int:
        return min(pending * DRAIN_TIME_PER_REQUEST, self._grace) // timedelta(milliseconds=1)

    def may_shut_down(self, actor: Actor) -> bool:
        return (
            self._is_enabled
            and self.on_shutdown is not None
            and self._has_grant(actor, ADMIN_WRITE)
        )

    def begin_shutdown(self, actor: Actor, reason: ShutdownReason, trace: str) -> None:
        """Record the shutdown, and begin it after the current answer is sent."""
        assert self.on_shutdown is not None
        self.reason = reason
        log.warning("%s stops the gateway: %s", actor.party, reason)
        details = {"reason": reason}
        self._audit_log.record(AuditType.GATEWAY_SHUTDOWN, actor, trace=trace, details=details)
        asyncio.get_running_loop().call_soon(self.on_shutdown)

    def _has_grant(self, actor: Actor, verb: str) -> bool:
        try:
            self._administration.require_grant(actor, verb, "*")
        except MalformedMessage:
            return False
        return True


class _ServerFilterParams(Struct):
    extensions: list[str] = []
    permissions: list[str] = []
    status: ServerLifecycleState | None = None


@dataclass(frozen=True, slots=True)
class ServerListing:
    """The current state of a server. `was_connected`: it has completed a handshake before."""

    id: str
    status: ServerLifecycleState
    # The level in force, by which the risk of the server's tools is decided.
    trust_level: TrustLevel
    tools: tuple[str, ...] = ()
    was_connected: bool = False
    own_statement: MgpStatement | None = None
    operator_statement: MgpStatement | None = None

    @property
    def extensions(self) -> frozenset[str]:
        known = self.own_statement if self.was_connected else self.operator_statement
        return frozenset() if known is None else known.extensions

    @property
    def permissions(self) -> frozenset[str]:
        """All permissions that the server or the operator declares.

        A declared need counts even if the other side does not name it.
        """
        known = [
            each.permissions
            for each in (self.own_statement, self.operator_statement)
            if each is not None
        ]
        return frozenset(expand_aliases(name for names in known for name in names))

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "status": self.status,
            "mgp_version": None if self.own_statement is None else self.own_statement.version,
            "extensions": sorted(self.extensions),
            "tools": list(self.tools),
            "trust_level": self.trust_level,
        }


@dataclass(frozen=True, slots=True)
class ServerFilter:
    """A filter for servers. A server must have everything that the filter names."""

    extensions: frozenset[str] = frozenset()
    permissions: frozenset[str] = frozenset()
    status: ServerLifecycleState | None = None

    @classmethod
    def parse(cls, params: Mapping[str, Raw]) -> Self:
        """Read the parameters of `mgp/discovery/list`. Raises MalformedMessage."""
        try:
            found = msgspec.convert(
                jsonrpc.decode_value(params.get("filter", Raw(b"{}"))), _ServerFilterParams
            )
        except msgspec.ValidationError as error:
            raise MalformedMessage(f"filter: {error!s:.200}", INVALID_PARAMS) from None
        # MGP prints both `network` (§2.3) and `network.outbound` (§15.2) for one permission. (D-09)
        permissions = frozenset(expand_aliases(found.permissions))
        return cls(frozenset(found.extensions), permissions, found.status)

    def matches(self, server: ServerListing) -> bool:
        return (
            self.extensions <= server.extensions
            and self.permissions <= server.permissions
            and self.status in (None, server.status)
        )


GATEWAY_SUBJECT: Final = "system:gateway"
_SERVER_CAPABILITIES: Final = {"mgp": jsonrpc.to_raw(offer_extensions(SERVER_EXTENSIONS))}


class ServerStatusMethods:
    """Answers MGP methods about servers, and sends state changes to clients that use MGP."""

    def __init__(
        self,
        servers: ServerService,
        call_gate: CallGate,
        active_calls: ActiveCalls,
        *,
        plain_capabilities: Mapping[str, Raw] | None = None,
        audit_feed: AuditFeed | None = None,
        gateway_control: GatewayControl | None = None,
    ) -> None:
        self._servers = servers
        self._call_gate = call_gate
        self._active_calls = active_calls
        self._started_at = asyncio.get_running_loop().time()
        self._actor_by_session: dict[Session, Actor] = {}
        # The MGP capabilities that a server is offered for a client without MGP.
        self._plain_capabilities = plain_capabilities or {}
        # Sends audit events to clients, if there is an audit log.
        self._audit_feed = audit_feed
        # The state and the shutdown of this process.
        self.gateway_control = gateway_control
        self._is_shutting_down = False
        servers.watch(self.on_transition)

    def __len__(self) -> int:
        return len(self._actor_by_session)

    def negotiate(self, session: Session, extensions: frozenset[str] = CLIENT_EXTENSIONS) -> Raw:
        """Negotiate these extensions of MGP with a client, and set what its servers see. (D-95)

        Returns the capabilities that the client sent.
        """
        asked = jsonrpc.to_raw(session.capabilities)
        said = decode_statement(asked)
        session.mgp = negotiate_terms(said, extensions)
        strange = version_remark(said)
        if strange is not None:
            log.warning("a client %s", strange)
        # For a client without MGP, the server is offered only what applies to plain clients.
        offered = self._plain_capabilities if session.mgp is None else _SERVER_CAPABILITIES
        session.capabilities = {**strip_mgp_capabilities(session.capabilities), **offered}
        hello = jsonrpc.decode_members(session.initialize_params)
        session.initialize_params = jsonrpc.to_raw({**hello, "capabilities": session.capabilities})
        return asked

    def attach(self, session: Session, actor: Actor) -> None:
        """Send state changes to a session, if it negotiated them."""
        if session.mgp is not None and MgpExtension.LIFECYCLE in session.mgp.extensions:
            self._actor_by_session[session] = actor
            session.on_close[self] = lambda: self._detach(session)
        if self._audit_feed is not None:
            self._audit_feed.attach(session, actor)

    def _detach(self, session: Session) -> None:
        self._actor_by_session.pop(session, None)

    def on_transition(self, transition: ServerTransition) -> None:
        """Send the state change of a server to the sessions that may see the server."""
        notice = mgp.state_change_notification(
            transition.server,
            transition.previous,
            transition.state,
            transition.reason,
            transition.at,
        )
        for session, actor in self._actor_by_session.items():
            if self._call_gate.may_see_state(actor, transition.server):
                session.send_notification(notice)

    def set_shutdown_callback(self, callback: Callable[[], None]) -> None:
        """Set the function that stops the process when a client requests it."""
        if self.gateway_control is not None:
            self.gateway_control.on_shutdown = callback

    def announce_shutdown(self) -> None:
        """Tell the subscribed sessions once that the gateway shuts down."""
        if self._is_shutting_down:
            return
        self._is_shutting_down = True
        reason = (
            ShutdownReason.KERNEL_SHUTDOWN
            if self.gateway_control is None
            else self.gateway_control.reason
        )
        steps = (
            GATEWAY_SUBJECT,
            ServerLifecycleState.CONNECTED,
            ServerLifecycleState.DRAINING,
            reason,
            datetime.now(UTC),
        )
        for session in self._actor_by_session:
            session.send_notification(mgp.state_change_notification(*steps))

    def _visible_servers(self, actor: Actor) -> list[UpstreamServer]:
        within = self._call_gate.visible_servers(actor)
        found = self._servers if within is None else map(self._servers.get, sorted(within))
        return [
            each
            for each in found
            if each is not None and self._call_gate.may_know_server(actor, each.name)
        ]

    @method("mgp/discovery/list", MgpExtension.DISCOVERY)
    async def _list(self, request: MethodRequest) -> dict[str, object]:
        wanted, actor = ServerFilter.parse(request.params), request.actor
        listed = [self._describe_server(actor, server) for server in self._visible_servers(actor)]
        return {"servers": [each.to_json() for each in listed if wanted.matches(each)]}

    def _describe_server(self, actor: Actor, server: UpstreamServer) -> ServerListing:
        reached = server.connections
        return ServerListing(
            server.name,
            server.state,
            self._call_gate.trust_of(server.name),
            tuple(self._call_gate.usable_names(actor, EntryKind.TOOL, server.name)),
            was_connected=bool(reached.initialize_result or reached.discover_result),
            own_statement=reached.mgp_statement,
            operator_statement=reached.declared,
        )

    @method("mgp/health/ping", MgpExtension.LIFECYCLE)
    async def _ping(self, request: MethodRequest) -> dict[str, object]:
        return {
            "status": self._health(self._visible_servers(request.actor)),
            "timestamp": mgp.format_timestamp(datetime.now(UTC)),
            "uptime_secs": self._uptime(),
            "server_id": GATEWAY_SUBJECT,
        }

    @method("mgp/health/status", MgpExtension.LIFECYCLE)
    async def _status(self, request: MethodRequest) -> dict[str, object]:
        known = self._visible_servers(request.actor)
        tools = {
            s.name: self._call_gate.count_granted(request.actor, EntryKind.TOOL, s.name)
            for s in known
        }
        there = {server.name: server.state is ServerLifecycleState.CONNECTED for server in known}
        return {
            "status": self._health(known),
            "uptime_secs": self._uptime(),
            "tools_available": sum(count for name, count in tools.items() if there[name]),
            "tools_total": sum(tools.values()),
            # The count excludes this request.
            "pending_requests": len(self._active_calls) - 1,
            "resources": {}
            if self.gateway_control is None
            else self.gateway_control.resources(request.actor),
            "checks": there,
            # Not a member of MGP: at which level each server process is confined.
            "sandbox": {
                server.name: level
                for server in known
                if (level := self._servers.sandbox_level(server.name)) is not None
            },
        }

    @method("mgp/lifecycle/shutdown", MgpExtension.LIFECYCLE)
    async def _shut_down(self, request: MethodRequest) -> dict[str, object]:
        """Shut down the gateway, if the setting and the actor's grants allow it.

        Other clients use the gateway too, so both must allow it.
        """
        pending, own = len(self._active_calls) - 1, self.gateway_control
        if own is None or not own.may_shut_down(request.actor):
            return {"accepted": False, "pending_requests": pending, "estimated_drain_ms": 0}
        own.begin_shutdown(request.actor, mgp.shutdown_in(request.params), request.call.trace)
        return {
            "accepted": True,
            "pending_requests": pending,
            "estimated_drain_ms": own.drain_ms(pending),
        }

    def _health(self, servers: Iterable[UpstreamServer]) -> HealthStatus:
        states = {server.state for server in servers}
        if states == {ServerLifecycleState.ERROR}:
            return HealthStatus.UNHEALTHY
        whole = states <= {ServerLifecycleState.CONNECTED} and not self._is_shutting_down
        return HealthStatus.HEALTHY if whole else HealthStatus.DEGRADED

    def _uptime(self) -> int:
        return int(asyncio.get_running_loop().time() - self._started_at)


def with_mgp(
    capabilities: Mapping[str, Mapping[str, object]],
    terms: NegotiatedTerms | None,
    client_offer: Raw,
) -> Mapping[str, Mapping[str, object]]:
    """Add the negotiated MGP terms to capabilities.

    A client that did not mention MGP receives none of it. (MGP §2.4)
    """
    if terms is None:
        return capabilities
    return declare_mgp(
        capabilities,
        offer_extensions(terms.extensions, {"server_id": GATEWAY_SUBJECT}),
        client_offer,
    )
