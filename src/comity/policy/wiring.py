"""Wiring of the policy package: server permissions, grants and limits."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from comity.app.records import GatewaySnapshot, RecordStores
from comity.app.settings import ServerSettings, Settings
from comity.approvals.api import SuggestionsApi
from comity.approvals.model import MEMBER_TOOL
from comity.approvals.permissions import PermissionApprovals
from comity.approvals.service import ApprovalService
from comity.approvals.suggestion_rules import CurrentTool, SuggestionThreshold
from comity.approvals.suggestions import ApprovalHistory, SuggestionService
from comity.audit.log import AuditLog
from comity.catalog.catalog import Catalog
from comity.catalog.review_api import CareApi, PermissionView, permission_views
from comity.catalog.tool_reviews import AcceptedDefinitions, ToolReviewService
from comity.gateway.retries import RetryService
from comity.http.api import ApiRoutes
from comity.live.features import DEFAULT_POLICY as LIVE_NOTHING
from comity.live.features import LivePolicy
from comity.live.hooks.inference import InferenceHooks
from comity.live.host import FeatureSetDecisions, LiveHost
from comity.live.inference import ServerQuestionRouter
from comity.live.settings import live_policy_of
from comity.mcp.actors import LOCAL
from comity.mcp.entries import EntryKind
from comity.policy.administration import GrantAdmin
from comity.policy.api import GrantsApi, ReviewStateView
from comity.policy.call_limiter import CallLimiter
from comity.policy.grants import (
    TOPIC_SERVER,
    DefaultPolicy,
    Effect,
    Grant,
    GrantSource,
    StaticRules,
    role_grants,
)
from comity.policy.preview import GrantPreview
from comity.policy.risk import (
    ApprovalPolicy,
    DefinitionPolicy,
    FallbackValidatorPolicy,
    PermissionDenialAction,
    RequireApproval,
    Risk,
    ServerPolicy,
    SuspicionPolicy,
    TrustLevel,
    expand_aliases,
    server_subject,
)
from comity.policy.server_permissions import PermissionService
from comity.policy.shared_counts import SharedCounts
from comity.policy.snapshot import (
    GrantSnapshot,
    PolicySnapshot,
    SnapshotFreshness,
)
from comity.servers.sandbox.reach import read_reach
from comity.servers.service import ServerService
from comity.servers.supervisor import ServerOptions
from comity.sessions.upstream import CallStreamRelay
from comity.storage.changes import RecordKind
from comity.telemetry.metrics import MetricFamily
from comity.toolkit.background import BackgroundTasks
from comity.views.service import ViewService

_UNKNOWN_SERVER_POLICY: Final = ServerPolicy(
    approval=ApprovalPolicy.DENY_ALL,
    trust=TrustLevel.SANDBOXED,
    require_approval=RequireApproval.DANGEROUS,
)
"""The policy of a server that the settings do not mention."""


class ServerPolicyService:
    """The server policies in force. It also builds the tool review service that applies them."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        snapshot: GatewaySnapshot,
        audit_log: AuditLog,
        approvals: ApprovalService,
        administration: GrantAdmin,
        *,
        background_tasks: BackgroundTasks,
        build_question_router: Callable[[InferenceHooks], ServerQuestionRouter],
        stream_relay: CallStreamRelay,
        is_elsewhere: Callable[[str], bool],
    ) -> None:
        self._settings = settings
        self._policy_by_server: dict[str, ServerPolicy] = {}
        self._live_policy_by_server: dict[str, LivePolicy] = {}
        grants, pins = snapshot.grants, AcceptedDefinitions(snapshot.records.accepted_tools)
        permits = PermissionService(
            self.policy_of, grants, lambda: grants.latest, audit_log=audit_log
        )
        self.tool_reviews = ToolReviewService(
            catalog, self.policy_of, permits, pins, audit_log=audit_log
        )
        snapshot.watch(RecordKind.PINS, self.tool_reviews.on_accepted_changed)
        self.stream_relay = stream_relay
        enabling = FeatureSetDecisions(self.live_policy, grants, lambda: grants.latest)
        self.live_host = LiveHost(
            self.live_policy, enabling, audit=audit_log, is_on_other_node=is_elsewhere
        )
        self.inference_hooks = InferenceHooks.build(
            self.live_host, settings.turns, self.required_reviewers
        )
        self.question_router = build_question_router(self.inference_hooks)
        snapshot.watch(RecordKind.GRANTS, lambda _: self.live_host.refresh_outdated())
        # Everything that decides about calls advances the same number.
        self._generation = grants.generation
        catalog.watch(lambda server, _: self._void_plans(server))
        permits.watch(self._void_plans)
        self.tool_reviews.watch(self._void_plans)
        self.live_host.handlers.watchers.append(lambda live: self._void_plans(live.server))
        self._background_tasks = background_tasks
        self.permission_approvals = PermissionApprovals(
            approvals, permits, administration, background_tasks
        )

    def _void_plans(self, server: str) -> None:
        """Void the plans of calls to a server."""
        self._generation.advance_for((server_subject(server),))

    def check(self, keep_alive_seconds: float) -> None:
        self.tool_reviews.check()
        self.live_host.refresh_outdated()
        self.permission_approvals.retry_failed()

    def stop(self) -> None:
        self.question_router.stop()
        self._background_tasks.cancel()
        self.tool_reviews.stop()

    def policy_of(self, server: str) -> ServerPolicy:
        return self._policy_by_server.get(server, _UNKNOWN_SERVER_POLICY)

    def live_policy(self, server: str) -> LivePolicy:
        """The rights of a server beyond answering requests."""
        return self._live_policy_by_server.get(server, LIVE_NOTHING)

    def required_reviewers(self) -> list[str]:
        """The servers without whose review no output of a model goes out."""
        found = self._live_policy_by_server.items()
        return [name for name, each in found if each.rewrites and each.fails_closed]

    def apply_to_server(self, server: ServerSettings, options: ServerOptions) -> ServerOptions:
        """Apply the settings of a server. Returns its options with the policy included."""
        self._apply_policy(server)
        meet, questions = (
            self.tool_reviews.permission_service.decide_introduction,
            self.question_router,
        )
        links = replace(
            options.connections,
            on_introduction=meet,
            question_handler=questions,
            stream_relay=self.stream_relay,
        )
        self._apply_live_policy(server)
        return replace(options, connections=replace(links, live_handler=self.live_host))

    def update_server(self, server: ServerSettings) -> None:
        """Apply changes for which a running server need not restart."""
        self._apply_policy(server)
        self._apply_live_policy(server)

    def _apply_policy(self, server: ServerSettings) -> None:
        self._policy_by_server[server.id] = policy_of(server, self._settings)
        self.tool_reviews.refresh(server.id)

    def _apply_live_policy(self, server: ServerSettings) -> None:
        self._live_policy_by_server[server.id] = live_policy_of(server.live)
        self._void_plans(server.id)
        self.live_host.refresh(server.id)

    def routes(self, servers: ServerService, administration: GrantAdmin) -> ApiRoutes:
        """The routes for permissions of servers and definitions of tools."""
        return CareApi(self.tool_reviews, servers, administration).routes

    def permission_views(self, server: str) -> list[PermissionView]:
        return permission_views(self.tool_reviews.permission_service, server)

    def remove_server(self, server: str) -> None:
        self._policy_by_server.pop(server, None)
        self._live_policy_by_server.pop(server, None)
        self._void_plans(server)
        self.live_host.remove(server)
        self.tool_reviews.permission_service.remove_server(server)
        self.permission_approvals.on_server_removed(server)


def policy_of(server: ServerSettings, settings: Settings) -> ServerPolicy:
    """Build the policy of a server from its own tables, the file's defaults and the built-ins."""
    is_local = settings.identity.mode == "local"
    own: dict[str, Any] = dict(server.policy)
    approval = own.get("approval_policy", settings.policy.approval_policy)
    if approval == "auto":
        approval = ApprovalPolicy.AUTO_APPROVE if is_local else ApprovalPolicy.CONFIG_ONLY
    require_approval = settings.policy.require_approval
    if require_approval == "auto":
        require_approval = RequireApproval.NEVER if is_local else RequireApproval.DANGEROUS
    # With this preset, the operator vouches that the servers describe their tools truthfully.
    trust = TrustLevel.TRUSTED if require_approval == "destructive" else TrustLevel.STANDARD
    if require_approval == "destructive":
        require_approval = RequireApproval.DANGEROUS
    fallback = settings.policy.fallback_validators
    if fallback == "auto":
        fallback = FallbackValidatorPolicy.WARN if is_local else FallbackValidatorPolicy.ON
    listed = (*own.get("permissions", ()), *expand_aliases(server.permissions_required))
    risk = own.get("risk")
    return ServerPolicy(
        ApprovalPolicy(approval),
        tuple(dict.fromkeys(listed)),
        PermissionDenialAction(own.get("on_denied", PermissionDenialAction.DEGRADE)),
        TrustLevel(own.get("trust") or server.trust_level or trust),
        None if risk is None else Risk(risk),
        DefinitionPolicy(own.get("trust_definitions", settings.policy.trust_definitions)),
        SuspicionPolicy(
            own.get("on_suspicious_definition", settings.policy.on_suspicious_definition)
        ),
        FallbackValidatorPolicy(fallback),
        RequireApproval(require_approval),
        settings.policy.require_approval == "never",
        server.tools,
        {
            Risk.MODERATE: settings.limits.rate_cost_moderate,
            Risk.DANGEROUS: settings.limits.rate_cost_dangerous,
        },
        bool(own.get("audit", False)),
        own.get("permissions", {}),
        None if server.lock is None else server.lock.tools,
    )


class LimitComponents:
    """The rate limits and retries of one gateway, with their metrics."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        policy_of: Callable[[str], ServerPolicy],
        snapshot: GatewaySnapshot,
    ) -> None:
        # Without a store, no other process counts and no count survives this one.
        is_shared = bool(settings.store.url)
        self.limits = CallLimiter(
            settings.limits.rates,
            is_listed=lambda server, name: catalog.has_entry(server, EntryKind.TOOL, name),
            shared=SharedCounts(snapshot.records.limit_counts, time.monotonic)
            if is_shared
            else None,
        )
        self._generation = snapshot.grants.generation
        self._settings = settings
        self.retries = RetryService(
            policy_of, settings.limits.retry_read_only, is_enabled=_are_retries_enabled(settings)
        )

    def apply_settings(self, settings: Settings) -> None:
        """Apply new settings. The counts of unchanged limits remain."""
        if settings.limits.rates != self._settings.limits.rates:
            self.limits.replace(settings.limits.rates)
            self._generation.advance()
        self._settings = settings
        self.retries.set_enabled(_are_retries_enabled(settings))

    def __call__(self) -> list[MetricFamily]:
        return [*self.limits.metric_families(), *self.retries.metric_families()]


def _are_retries_enabled(settings: Settings) -> bool:
    return bool(settings.limits.retry_read_only) or any(
        tool.idempotent or tool.max_retries or tool.fallback_tool
        for server in settings.servers
        for tool in server.tools.values()
    )


BUILT_IN_GRANTS: Final = (
    Grant(
        LOCAL.party,
        "*",
        "*",
        Effect.ALLOW,
        source=GrantSource.BUILT_IN,
        justification="the local user of this gateway",
    ),
)


@dataclass(frozen=True, slots=True)
class PolicyComponents:
    """The grants in force, their administration and the limits."""

    snapshot: GatewaySnapshot
    administration: GrantAdmin
    limits: LimitComponents

    async def apply_settings(self, settings: Settings) -> None:
        """Apply new settings. The set of visible entries may change for every actor."""
        self.limits.apply_settings(settings)
        decided = static_rules_of(settings)
        if decided != self.snapshot.static_rules:
            await self.snapshot.replace_static_rules(decided)


def make_administration(snapshot: GatewaySnapshot, audit_log: AuditLog) -> GrantAdmin:
    return GrantAdmin(
        snapshot.records.grants,
        snapshot.grants,
        snapshot.refresh,
        audit_log=audit_log,
        groups_of=snapshot.groups_of,
        read_reach=read_reach,
    )


def suggestion_routes(
    policy_components: PolicyComponents,
    catalog: Catalog,
    tool_reviews: ToolReviewService,
    audit_log: AuditLog,
    settings: Settings,
) -> ApiRoutes:
    """The routes for suggested grants."""

    def known(server: str, name: str) -> CurrentTool | None:
        if server.startswith(TOPIC_SERVER):
            return CurrentTool(MEMBER_TOOL)
        offer = catalog.find_own(server, EntryKind.TOOL, name)
        if offer is None:
            return None
        found = tool_reviews.review_of(offer)
        return CurrentTool(found.digest, found.repeat_approval_reason)

    records = policy_components.snapshot.records
    measure = SuggestionThreshold(
        settings.suggestions.min_approvals,
        settings.suggestions.min_people,
        settings.suggestions.min_span,
        settings.suggestions.window,
    )
    past = ApprovalHistory(records.approval_requests, records.audit_log, known)
    service = SuggestionService(past, policy_components.administration, audit_log, measure)
    return SuggestionsApi(service).routes


def grant_routes(
    policy_components: PolicyComponents,
    catalog: Catalog,
    tool_reviews: ToolReviewService,
    views: ViewService,
) -> ApiRoutes:
    """The routes for grants, with the review state of the tools, and their views."""

    def find_tool(name: str) -> tuple[str, str] | None:
        offer = catalog.find(EntryKind.TOOL, name)
        return None if offer is None else (offer.server, offer.name)

    def standing(server: str, name: str) -> ReviewStateView | None:
        offer = catalog.find_own(server, EntryKind.TOOL, name)
        if offer is None:
            return None
        found = tool_reviews.review_of(offer)
        refusal = None if found.refusal is None else found.refusal.reason
        return {"refusal": refusal, "is_asked": found.must_be_confirmed, "risk": found.risk}

    def list_tools() -> Iterable[tuple[str, str]]:
        for server in catalog.servers(EntryKind.TOOL):
            for name in catalog.names(server, EntryKind.TOOL):
                yield server, name

    snapshot = policy_components.snapshot
    grants = GrantsApi(
        policy_components.administration, snapshot.keys.get, find_tool, standing, views.list_entries
    )
    preview = GrantPreview(
        policy_components.administration,
        snapshot.parties.ids,
        list_tools,
        snapshot.records.audit_log.find,
        lambda: datetime.now(UTC),
        snapshot.groups_of,
        snapshot.members_of,
        views.list_entries,
    )
    return (*grants.routes, *preview.routes)


def stored_snapshot(records: RecordStores, settings: Settings) -> GatewaySnapshot:
    """The grants and rules over the store alone, without a running gateway."""
    certainty = SnapshotFreshness()
    grants = GrantSnapshot(freshness=certainty)
    return PolicySnapshot(records, grants, certainty, static_rules_of(settings))


def stored_grant_routes(snapshot: GatewaySnapshot, audit_log: AuditLog | None) -> ApiRoutes:
    """The routes for grants over the store alone, without a running gateway and its tools."""
    grant_admin = GrantAdmin(
        snapshot.records.grants,
        snapshot.grants,
        snapshot.refresh,
        audit_log=audit_log,
        groups_of=snapshot.groups_of,
        read_reach=read_reach,
    )
    return GrantsApi(grant_admin, snapshot.keys.get).routes


def static_rules_of(settings: Settings) -> StaticRules:
    """The static rules of the settings, which apply in addition to the stored grants."""
    policies = {
        server.id: DefaultPolicy(server.default_policy)
        for server in settings.servers
        if server.default_policy != "inherit"
    }
    default = DefaultPolicy(settings.policy.default_policy)
    grants = (*BUILT_IN_GRANTS, *settings.grants, *role_grants(settings.identity.roles))
    return StaticRules(grants, settings.forbid, policies, default)
