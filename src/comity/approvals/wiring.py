"""Builds the approval service, the pending calls, the client prompts and the API routes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime

from comity.app.authentication import HttpAuthenticator
from comity.app.records import GatewaySnapshot
from comity.app.settings import Settings
from comity.approvals.api import AsksApi, AsksStream
from comity.approvals.briefing import ApprovalBriefing
from comity.approvals.client_prompts import (
    ElicitationPrompt,
    InputRequiredPrompt,
    LongWaitPrompt,
    TaskPrompt,
)
from comity.approvals.model import ApprovalRequest
from comity.approvals.notifiers.recipients import ApproverDirectory
from comity.approvals.notifiers.wiring import NotifierComponents, build_notifiers
from comity.approvals.page import AsksPage
from comity.approvals.pending_calls import ClientPrompt, LastSteps, PendingCalls
from comity.approvals.presentation import ApprovalLink, ApprovalLinks
from comity.approvals.server_questions import CallbackService, ElicitationInbox, ServerQuestions
from comity.approvals.service import ApprovalInbox, ApprovalService
from comity.audit.log import AuditLog
from comity.audit.wiring import AuditLogComponents
from comity.catalog.catalog import Catalog
from comity.catalog.tool_reviews import ToolReviewService
from comity.http.api import ApiRoutes
from comity.http.asgi import HttpEndpoint
from comity.identity.authentication import Authenticator, IdentityDirectory
from comity.identity.keys import mac_of_key
from comity.inference.service import InferenceService
from comity.live.hooks.inference import HookedInference, InferenceHooks
from comity.live.inference import SamplingFallback, ServerQuestionRouter
from comity.mcp.actors import Actor
from comity.mcp.eras import TaskIds
from comity.policy.administration import GrantAdmin
from comity.policy.snapshot import (
    PolicyEngine,
)
from comity.storage.changes import RecordKind
from comity.toolkit.background import BackgroundTasks


def build_client_prompts(
    task_ids: TaskIds, clock: Callable[[], datetime]
) -> tuple[list[ClientPrompt], TaskPrompt]:
    """Return the prompts that tell clients about a pending call, and the handler of their tasks.

    Every node with the same pepper can read the state that another node gave to a client.
    """
    own_tasks = TaskPrompt(task_ids, clock)
    return [
        LongWaitPrompt(),
        InputRequiredPrompt(),
        ElicitationPrompt(),
        own_tasks,
    ], own_tasks


def build_pending_calls(
    approvals: ApprovalService,
    steps: LastSteps,
    policy_engine: PolicyEngine,
    catalog: Catalog,
    *,
    pepper: bytes,
    forms: Iterable[ClientPrompt],
    redact: Callable[[object], object],
) -> PendingCalls:
    """Build the pending calls."""
    links = ApprovalLinks(pepper)
    return PendingCalls(
        approvals,
        steps,
        policy_engine,
        catalog,
        client_prompts=forms,
        redact=redact,
        key=mac_of_key(pepper, b"asks put to clients"),
        token_for=lambda ask, actor: _make_token(links, ask, actor),
    )


def _make_token(links: ApprovalLinks, request: ApprovalRequest, actor: Actor) -> str:
    return links.seal(ApprovalLink(request.id, actor.party, request.expires_at, actor.credential))


@dataclass(frozen=True, slots=True)
class ApprovalComponents:
    """The approval requests of this node, the pending calls, and the endpoints for answers."""

    approvals: ApprovalService
    pending_calls: PendingCalls
    settings: Settings
    snapshot: GatewaySnapshot
    audit_log: AuditLog
    stream: AsksStream
    notifiers: NotifierComponents
    routes: ApiRoutes
    endpoints: dict[str, HttpEndpoint]

    def set_origin(self, origin: str) -> None:
        """Set where the pages are, unless the operator named the address of the gateway."""
        if not self.settings.identity.public_url:
            self.approvals.set_origin(origin)

    def end_streams(self) -> None:
        """End all open streams and pending calls, so that they do not delay the shutdown."""
        self.pending_calls.end()
        self.stream.end()

    def stop(self) -> None:
        self.end_streams()
        self.notifiers.stop()
        self.pending_calls.stop()
        self.approvals.stop()


def build_approvals(
    settings: Settings,
    snapshot: GatewaySnapshot,
    audit_log_components: AuditLogComponents,
    pending_calls: PendingCalls,
    authenticator: Authenticator,
    administration: GrantAdmin,
    http_authenticator: HttpAuthenticator,
    tool_reviews: ToolReviewService,
) -> ApprovalComponents:
    """Build the endpoints where people answer: the API, the page and the notifications."""
    approvals, audit_log = pending_calls.approvals, audit_log_components.audit_log
    inbox = ApprovalInbox(
        approvals, ApprovalLinks(authenticator.pepper), authenticator.find_actor, audit_log
    )
    stream = AsksStream(inbox, authenticate=http_authenticator.authenticate)
    directory = ApproverDirectory(snapshot.grants, inbox, snapshot.members_of)
    briefing = ApprovalBriefing(
        inbox, administration, audit_log.store.find, tool_reviews, directory.approvers_of
    )
    notifiers = build_notifiers(
        settings, inbox, directory, snapshot, audit_log, authenticator.pepper
    )
    snapshot.watch(RecordKind.ASKS, approvals.on_changed)
    snapshot.watch(RecordKind.ASKS, stream.on_id_changed)
    approvals.watchers.extend((inbox.clear_history_cache, stream.on_request_changed))
    approvals.notifiers.append(notifiers.service.on_request_changed)
    return ApprovalComponents(
        approvals=approvals,
        pending_calls=pending_calls,
        settings=settings,
        snapshot=snapshot,
        audit_log=audit_log,
        stream=stream,
        notifiers=notifiers,
        routes=(*AsksApi(briefing).routes, *notifiers.routes),
        endpoints=stream.endpoints
        | AsksPage(inbox, authenticator).endpoints
        | notifiers.clicks.endpoints,
    )


def make_approvals(
    settings: Settings, snapshot: GatewaySnapshot, audit_log: AuditLog | None
) -> ApprovalService:
    return ApprovalService(
        snapshot.records.approval_requests,
        snapshot.grants,
        audit_log,
        settings.approvals,
        approve_own=settings.policy.approve_own,
        public_url=settings.identity.public_url or f"http://{settings.host}:{settings.port}",
    )


def stored_approval_routes(
    settings: Settings,
    snapshot: GatewaySnapshot,
    pepper: bytes,
    audit_log: AuditLog | None,
) -> ApiRoutes:
    """Return routes on a store without a gateway. A user who opens the store may decide."""
    approvals = make_approvals(settings, snapshot, audit_log)
    authenticator = Authenticator(IdentityDirectory(snapshot.keys, snapshot.parties, pepper))
    inbox = ApprovalInbox(approvals, ApprovalLinks(pepper), authenticator.find_actor, audit_log)
    grant_admin = GrantAdmin(
        snapshot.records.grants,
        snapshot.grants,
        snapshot.refresh,
        audit_log=audit_log,
        groups_of=snapshot.groups_of,
    )
    briefing = ApprovalBriefing(inbox, grant_admin, snapshot.records.audit_log.find)
    return AsksApi(briefing).routes


def build_server_questions(
    settings: Settings,
    approvals: ApprovalService,
    background_tasks: BackgroundTasks,
    audit_log_components: AuditLogComponents,
    engine: InferenceService,
    hooks: InferenceHooks,
) -> ServerQuestionRouter:
    """Build the router for questions of servers during a call.

    People answer these questions, or a model if the client has none.
    """
    inquiries = ServerQuestions(approvals, background_tasks, audit_log_components.redact)
    stand_in = settings.approvals.elicitations == "people"
    return ServerQuestionRouter(
        CallbackService(inquiries),
        ElicitationInbox(inquiries, settings.approvals.request_ttl, is_enabled=stand_in),
        SamplingFallback(
            HookedInference(
                engine, hooks, audit_log_components.redactor.hide, settings.turns.max_chain
            ),
            hooks.active,
            approvals,
            inquiries,
            settings.inference.sampling,
            audit_log_components.redact,
        ),
    )
