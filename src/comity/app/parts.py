"""The parts that several builders of a gateway share."""

from collections.abc import Mapping
from dataclasses import dataclass

from comity.accounts.wiring import AccountComponents
from comity.app.records import GatewaySnapshot
from comity.app.settings import Settings
from comity.approvals.pending_calls import PendingCalls
from comity.approvals.service import ApprovalService
from comity.audit.wiring import (
    AuditComponents,
    AuditLogComponents,
)
from comity.catalog.catalog import Catalog
from comity.catalog.search.tool_index import VectorIndex
from comity.events.wiring import EventComponents, WebhookComponents
from comity.gateway.call_audit import CallAudit
from comity.gateway.era_bridge import ParkedCalls
from comity.gateway.pipeline import CallGate
from comity.gateway.streaming import StreamingService
from comity.identity.authentication import Authenticator
from comity.identity.login.wiring import LoginComponents
from comity.inference.wiring import InferenceComponents
from comity.live.scopes.service import ScopeService
from comity.policy.wiring import (
    PolicyComponents,
    ServerPolicyService,
)
from comity.secrets.envelope import EnvelopeSealer
from comity.servers.service import ServerService
from comity.sessions.calls import ActiveCalls
from comity.sessions.sessions import SessionStore
from comity.telemetry.tracing import Tracer
from comity.validation.wiring import ValidationComponents
from comity.views.service import ViewService


@dataclass(frozen=True, slots=True)
class GatewayFoundation:
    """The resources that are opened before a gateway is built, and closed after it."""

    settings: Settings
    snapshot: GatewaySnapshot
    authenticator: Authenticator
    login: LoginComponents
    audit_log_components: AuditLogComponents
    sealer: EnvelopeSealer
    approvals: ApprovalService
    models: InferenceComponents
    vector_index: VectorIndex | None
    tracer: Tracer | None
    # The description of each server, by its name. The server registry fills it.
    descriptions: dict[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class CallComponents:
    """The services that a call passes on its way to a server, for all endpoints."""

    catalog: Catalog
    server_policies: ServerPolicyService
    validation_components: ValidationComponents
    policy_components: PolicyComponents
    pending_calls: PendingCalls
    scopes: ScopeService
    call_audit: CallAudit
    call_gate: CallGate
    views: ViewService
    servers: ServerService
    sessions: SessionStore
    parked_calls: ParkedCalls
    active_calls: ActiveCalls
    audit_components: AuditComponents
    event_components: EventComponents
    accounts: AccountComponents
    webhooks: WebhookComponents
    streaming: StreamingService
