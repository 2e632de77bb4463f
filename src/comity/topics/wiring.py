"""Wiring of the topics package: topics, their endpoints and their gateway members."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from comity.app.records import GatewaySnapshot
from comity.app.settings import Settings
from comity.app.upstreams import UpstreamRegistry
from comity.approvals.model import ApprovalKind
from comity.approvals.service import KindHandler
from comity.approvals.wiring import ApprovalComponents
from comity.audit.log import AuditLog
from comity.audit.wiring import AuditLogComponents
from comity.http.api import ApiRoutes
from comity.http.asgi import HttpEndpoint
from comity.http.websocket import WebSocketLimits, WebSocketRegistry
from comity.identity.authentication import Authenticator
from comity.mcp.actors import LOCAL, LOCAL_OPERATOR, Actor, PrincipalKind
from comity.policy.administration import GrantAdmin
from comity.storage.changes import RecordKind
from comity.toolkit.resilience import RateLimit
from comity.topics import websocket
from comity.topics.api import ParticipantsApi
from comity.topics.approvals import TopicApprovals
from comity.topics.envelope import EnvelopeLimits
from comity.topics.gateway_members import ManagedTopics, TopicMembersConfig
from comity.topics.proposals import ProposalPolicy, ProposalService
from comity.topics.rules import TopicAccess
from comity.topics.server_members import ServerMembers
from comity.topics.service import CapabilityAdmin, SettingsOf, TopicLimits, TopicService
from comity.topics.settings import TopicOverride
from comity.topics.topic import MemberRateLimit, TopicAuditLevel, TopicSettings
from comity.topics.websocket import TopicSocket


@dataclass(frozen=True, slots=True)
class TopicComponents:
    """The topics of a gateway, and their endpoints."""

    topics: TopicService
    sockets: WebSocketRegistry
    endpoints: dict[str, HttpEndpoint]
    routes: ApiRoutes

    def look(self, keep_alive_seconds: float) -> None:
        del keep_alive_seconds
        self.topics.look()
        self.sockets.look()


def make_topics(
    settings: Settings,
    snapshot: GatewaySnapshot,
    identity: Authenticator,
    audit_log: AuditLog,
    administration: GrantAdmin,
) -> TopicComponents:
    now = asyncio.get_running_loop().time
    pace = MemberRateLimit(
        RateLimit.setting_per_minute(settings.topics.message_rate),
        RateLimit.setting_per_minute(settings.topics.chat_rate),
    )
    bounds = TopicLimits(
        settings.topics.max_topics, pace, settings.topics.reconnect_grace.total_seconds()
    )
    topics = TopicService(
        snapshot.grants,
        _terms_of(settings),
        bounds,
        now,
        audit=audit_log,
        refresh_actor=identity.refresh_actor,
    )
    sockets = WebSocketRegistry(
        WebSocketLimits(settings.topics.max_envelope_bytes, settings.topics.max_queue_bytes), now
    )

    snapshot.watch(RecordKind.GRANTS, topics.on_grants_changed)
    snapshot.watch_principals(topics.on_grants_changed)
    participants = ParticipantsApi(
        topics, CapabilityAdmin(administration, topics, identity), redact=audit_log.redact
    )
    doors: dict[str, HttpEndpoint] = {websocket.PATH: TopicSocket(topics, sockets)}
    return TopicComponents(topics, sockets, doors, participants.routes)


def _terms_of(settings: Settings) -> SettingsOf:
    usual = TopicSettings(
        TopicAccess(settings.topics.access),
        settings.topics.capabilities,
        settings.topics.max_members,
        limits=EnvelopeLimits(settings.topics.max_envelope_bytes, settings.limits.max_depth),
        audit_level=TopicAuditLevel(settings.topics.audit),
    )
    named = {room.name: _terms(room, usual) for room in settings.topics.overrides}
    return lambda topic: named.get(topic, usual)


def _terms(room: TopicOverride, usual: TopicSettings) -> TopicSettings:
    return TopicSettings(
        usual.access if room.access is None else TopicAccess(room.access),
        usual.default_capabilities if room.capabilities is None else room.capabilities,
        room.max_members or usual.max_members,
        room.history or 0,
        is_strict=room.kinds != "later",
        limits=usual.limits,
        audit_level=usual.audit_level,
    )


@dataclass(frozen=True, slots=True)
class TopicMemberComponents:
    """The gateway members of topics, and the services behind them."""

    topics: TopicService
    managed_topics: ManagedTopics
    server_members: ServerMembers
    proposals: ProposalService
    approvals: TopicApprovals

    def look(self, keep_alive_seconds: float) -> None:
        del keep_alive_seconds
        self.managed_topics.look(self.topics.topics)
        self.server_members.look()
        self.proposals.look()

    def stop(self) -> None:
        for each in (self.server_members, self.proposals, self.approvals):
            each.stop()


def make_topic_members(
    settings: Settings,
    topics: TopicService,
    asking: ApprovalComponents,
    upstream_registry: UpstreamRegistry,
    audit_log_components: AuditLogComponents,
    identity: Authenticator,
) -> TopicMemberComponents:
    """Build the gateway members, and handle requests and proposals in topics."""
    snapshot, pending_calls, approvals = asking.snapshot, asking.pending_calls, asking.approvals
    furnishing = ManagedTopics(
        _written(settings),
        snapshot.grants,
        upstream_registry.servers.names,
        asyncio.get_running_loop().time,
        approvals.clock,
    )
    known = ProposalPolicy(
        pending_calls.policy_engine,
        pending_calls.catalog,
        pending_calls.last_steps.tools,
        audit_log_components.redact,
        pending_calls.key,
        groups_of=snapshot.groups_of,
    )
    proposals = ProposalService(
        approvals, known, _actor_of(identity), audit_log_components.audit_log
    )
    hide = (audit_log_components.redactor.hide, audit_log_components.redactor.mark)
    mounted = ServerMembers(
        upstream_registry.endpoint_of, proposals, hide, audit_log_components.audit_log
    )
    asks = TopicApprovals(approvals, lambda: list(furnishing.topics.values()))
    furnishing.handlers.extend((mounted, proposals, asks))
    furnishing.close_listeners.append(proposals.on_topic_closed)
    topics.open_listeners.append(furnishing.add_members)
    snapshot.watch(RecordKind.GRANTS, furnishing.on_grants_changed)
    approvals.watchers.extend((proposals.on_approval_changed, asks.on_approval_changed))
    approvals.add_handler(ApprovalKind.CONFIRM, KindHandler(known.answer_refusal))
    return TopicMemberComponents(topics, furnishing, mounted, proposals, asks)


def _written(settings: Settings) -> Callable[[str], TopicMembersConfig]:
    named = {
        room.name: TopicMembersConfig(room.servers, room.approvals)
        for room in settings.topics.overrides
    }
    nothing = TopicMembersConfig()
    return lambda topic: named.get(topic, nothing)


def _actor_of(identity: Authenticator) -> Callable[[str], Actor]:
    """Return a function that finds the actor of a principal that has answered.

    The holder of a token may have no record.
    """

    def actor_of(party: str) -> Actor:
        if party == LOCAL.party:
            # Answers always require the operator token.
            return LOCAL_OPERATOR
        return identity.find_actor(party) or Actor(party, PrincipalKind.PERSON)

    return actor_of
