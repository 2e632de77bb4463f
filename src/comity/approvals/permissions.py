"""Approval requests for server permissions."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol

from comity.approvals.kinds import permission_end
from comity.approvals.model import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalDraft,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
    call_digest,
)
from comity.approvals.service import ApprovalService, KindHandler
from comity.errors import MalformedMessage, Unavailable
from comity.mcp.actors import GATEWAY, Actor, PrincipalKind
from comity.policy.grants import PERMISSION_VERB, Effect, Grant
from comity.policy.risk import (
    SERVER_SUBJECT_PREFIX,
    PermissionDecision,
    PermissionOutcome,
    describe_permission,
    is_writable_name,
    permission_risk,
)
from comity.policy.server_permissions import PermissionService
from comity.toolkit.background import BackgroundTasks

log = logging.getLogger(__name__)

PERMISSION_FIELD: Final = "permission"
_EFFECT_BY_STATE: Final = {
    ApprovalState.APPROVED: Effect.ALLOW,
    ApprovalState.DENIED: Effect.DENY,
}
_DECISION_BY_OUTCOME: Final = {
    PermissionOutcome.APPROVED: ApprovalDecision.ACCEPT,
    PermissionOutcome.DENIED: ApprovalDecision.DECLINE,
}


class PermissionGrantWriter(Protocol):
    """Writes grants in the name of an actor."""

    def actor_named(self, principal: str) -> Actor: ...
    async def put(self, actor: Actor, grant: Grant) -> Grant: ...


class PermissionApprovals:
    """Asks for the permissions of servers that wait, and writes the answers as grants."""

    def __init__(
        self,
        approvals: ApprovalService,
        permission_service: PermissionService,
        grants: PermissionGrantWriter,
        background_tasks: BackgroundTasks | None = None,
    ) -> None:
        self._approvals = approvals
        self._permission_service = permission_service
        self._grants = grants
        self._open_requests: dict[str, dict[str, ApprovalRequest]] = {}
        self._failed_servers: set[str] = set()
        self._lock = asyncio.Lock()
        if background_tasks is None:
            background_tasks = BackgroundTasks("requests for permissions")
        self._background_tasks = background_tasks
        approvals.add_handler(ApprovalKind.PERMISSION, KindHandler(on_answer=self._on_answer))
        approvals.watchers.append(self._on_request_changed)
        permission_service.watch(self.on_permissions_changed)

    def on_permissions_changed(self, server: str) -> None:
        """Handle a change of the decisions on a server's permissions."""
        self._failed_servers.discard(server)
        self._background_tasks.start(self._update_soon(server))

    def on_server_removed(self, server: str) -> None:
        """Withdraw the open requests of a server that was removed."""
        self._failed_servers.discard(server)
        for ask in self._open_requests.pop(server, {}).values():
            self._background_tasks.start(self._withdraw(ask, "the server was removed"))

    def find_open_request(self, server: str, permissions: Iterable[str]) -> str:
        """Return the id of an open request for one of these permissions, or nothing."""
        known = self._open_requests.get(server, {})
        return next((known[name].id for name in permissions if name in known), "")

    def retry_failed(self) -> None:
        """Try again what failed."""
        for server in list(self._failed_servers):
            self.on_permissions_changed(server)

    async def wait_until_idle(self) -> None:
        """Wait until the background tasks are done."""
        await self._background_tasks.finish()

    async def _update_soon(self, server: str) -> None:
        try:
            async with self._lock:
                await self._update_requests(server)
        except (Unavailable, MalformedMessage) as error:
            self._failed_servers.add(server)
            log.info("The permissions of server %r could not be requested yet: %s", server, error)

    async def _update_requests(self, server: str) -> None:
        decided = dict(self._permission_service.permissions_of(server).decision_by_name)
        known = self._open_requests.setdefault(server, {})
        for name, ask in list(known.items()):
            if name not in decided or not _is_waiting(name, decided[name]):
                await self._end_request(ask, decided.get(name))
        for name, each in decided.items():
            if _is_waiting(name, each) and each.by != GATEWAY and name not in known:
                ask = await self._approvals.request(_draft(server, name))
                if ask.state is ApprovalState.APPROVED:
                    # The gateway ended after the answer and before the grant was written.
                    await self._write_grant(ask, self._grants.actor_named(ask.answers[-1].by))
                elif self._open_requests.get(server) is not known:
                    await self._approvals.withdraw(ask, "the server was removed")
                    return
                elif ask.is_open:
                    known[name] = ask

    async def _end_request(
        self, request: ApprovalRequest, decision: PermissionDecision | None
    ) -> None:
        """End a request whose permission is decided already, or no longer needed."""
        self._open_requests.get(request.server, {}).pop(str(request.about[PERMISSION_FIELD]), None)
        if decision is None:
            await self._approvals.withdraw(request, "the server needs it no longer")
            return
        answered = None
        if (
            decision.by.startswith(f"{PrincipalKind.PERSON}:")
            and decision.decision in _DECISION_BY_OUTCOME
        ):
            verdict, now = _DECISION_BY_OUTCOME[decision.decision], self._approvals.clock()
            answer = ApprovalAnswer(decision.by, verdict, now, decision.reason)
            answered = await self._approvals.store_answer(request, answer)
        if answered is None:
            reason = f"it is {decision.decision} by {decision.by}: {decision.reason}"
            await self._approvals.withdraw(request, reason)
        elif answered.state is ApprovalState.APPROVED:
            await self._approvals.consume(answered, _permission_of(answered))

    async def _withdraw(self, request: ApprovalRequest, reason: str) -> None:
        try:
            await self._approvals.withdraw(request, reason)
        except Unavailable as error:
            log.info("Approval request %s could not be withdrawn: %s", request.id, error)

    async def _on_answer(self, request: ApprovalRequest, actor: Actor) -> None:
        async with self._lock:
            await self._write_grant(request, actor)

    async def _write_grant(self, request: ApprovalRequest, actor: Actor) -> None:
        """Write the answer as a grant, in the name of the approver."""
        effect = _EFFECT_BY_STATE.get(request.state)
        if effect is None:
            return
        said = request.answers[-1]
        subject, name = SERVER_SUBJECT_PREFIX + request.server, str(request.about[PERMISSION_FIELD])
        ends = permission_end(said.content) if effect is Effect.ALLOW else None
        grant = Grant(
            subject, PERMISSION_VERB, name, effect, justification=said.reason, expires_at=ends
        )
        await self._grants.put(actor, grant)
        if request.state is ApprovalState.APPROVED:
            await self._approvals.consume(request, _permission_of(request))
        self._permission_service.permissions_of(request.server)

    def _on_request_changed(self, request: ApprovalRequest) -> None:
        if request.kind is not ApprovalKind.PERMISSION or request.is_open:
            return
        name, known = (
            str(request.about.get(PERMISSION_FIELD, "")),
            self._open_requests.get(request.server, {}),
        )
        if name in known and known[name].id == request.id:
            del known[name]
            if request.state in (ApprovalState.APPROVED, ApprovalState.EXPIRED):
                # A later look writes the grant, or asks anew, if the permission still waits.
                self._failed_servers.add(request.server)


def _is_waiting(name: str, decision: PermissionDecision) -> bool:
    return decision.decision is PermissionOutcome.DEFERRED and is_writable_name(name)


def _permission_of(request: ApprovalRequest) -> str:
    return f"grant-{request.id}"


def _draft(server: str, name: str) -> ApprovalDraft:
    subject, risk, meaning = (
        SERVER_SUBJECT_PREFIX + server,
        permission_risk(name),
        describe_permission(name),
    )
    return ApprovalDraft(
        kind=ApprovalKind.PERMISSION,
        asker=subject,
        server=server,
        digest=call_digest(subject, server, "", PERMISSION_VERB, name),
        message=f"Server {server} needs the permission {name} ({risk}): to {meaning}",
        about={PERMISSION_FIELD: name, "risk": risk, "meaning": meaning},
    )
