"""The permissions of each server: Comity decides on them and tells the server."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.errors import METHOD_NOT_FOUND, PERMISSION_DENIED, MalformedMessage, Unavailable
from comity.mcp import jsonrpc
from comity.mcp.actors import GATEWAY, Actor, PrincipalKind
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import MgpStatement, format_timestamp
from comity.policy.grants import PERMISSION_VERB
from comity.policy.risk import (
    DECISION_METHODS,
    PERMISSION_ALIASES,
    RISK_BY_PERMISSION,
    SERVER_SUBJECT_PREFIX,
    WAIT_METHODS,
    ApprovalPolicy,
    PermissionDecision,
    PermissionDenialAction,
    PermissionOutcome,
    ServerPolicy,
    decide_permission,
    expand_aliases,
)
from comity.policy.snapshot import PolicyEngine, WallClock
from comity.toolkit.background import BackgroundTasks

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_SECONDS: Final = 5.0
"""How long the start of a server waits for it to acknowledge a decision."""

MAX_PERMISSIONS: Final = 200
MAX_CLAIM_BYTES: Final = 16 * 1024

type Speak = Callable[[str, Mapping[str, object]], Awaitable[Frame]]
"""Sends a request to a server on its own connection. Raises Unavailable."""


@dataclass(frozen=True, slots=True)
class ServerIntroduction:
    """A server that has introduced itself but has not been told to start."""

    server: str
    statement: MgpStatement | None
    send_request: Speak | None = None


@dataclass(slots=True)
class ServerPermissions:
    """The permissions of one server. `generation` counts their changes."""

    server: str
    declared: tuple[str, ...] = ()
    tool_permissions: tuple[str, ...] = ()
    trust_level: str | None = None
    decision_by_name: dict[str, PermissionDecision] = field(
        default_factory=dict[str, PermissionDecision]
    )
    generation: int = 0
    decided_grants: object = None
    expires_at: datetime | None = None
    send_request: Speak | None = None
    # The last outcome sent to the server for each permission, and the id of the request to wait.
    told_outcomes: dict[str, PermissionOutcome] = field(
        default_factory=dict[str, PermissionOutcome]
    )
    request_id: str = ""
    # The decisions that the audit log already holds.
    recorded_decisions: dict[str, PermissionDecision] = field(
        default_factory=dict[str, PermissionDecision]
    )

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.declared, *self.tool_permissions)))[:MAX_PERMISSIONS]

    def missing(self, needs: Iterable[str]) -> dict[str, PermissionDecision]:
        """The needed permissions that are not approved, with their decisions."""
        found = {name: self.decision_by_name.get(name, _UNDECIDED_DECISION) for name in needs}
        return {n: d for n, d in found.items() if d.decision is not PermissionOutcome.APPROVED}


_UNDECIDED_DECISION: Final = PermissionDecision(
    PermissionOutcome.DEFERRED, GATEWAY, "not decided yet"
)
_UNKNOWN_DECISION: Final = PermissionDecision(
    PermissionOutcome.DEFERRED, GATEWAY, "permissions are not loaded"
)
_NEVER_DECIDED: Final = object()
_DECISION_EVENTS: Final = {
    PermissionOutcome.APPROVED: AuditType.PERMISSION_GRANTED,
    PermissionOutcome.DENIED: AuditType.PERMISSION_DENIED,
}


class PermissionService:
    """Decides on the permissions of all servers and tells the servers."""

    def __init__(
        self,
        policy_of: Callable[[str], ServerPolicy],
        policy_engine: PolicyEngine | None = None,
        current_grants: Callable[[], object] = lambda: None,
        clock: WallClock = lambda: datetime.now(UTC),
        *,
        audit_log: AuditLog | None = None,
    ) -> None:
        self._policy_of = policy_of
        self._policy_engine = policy_engine
        self._current_grants = current_grants
        self._clock = clock
        self._servers: dict[str, ServerPermissions] = {}
        self._request_count = 0
        self._background_tasks = BackgroundTasks("the permissions")
        self._watchers: list[Callable[[str], None]] = []
        # Permissions that other sources say a server needs. They count as requests only.
        self.claimed_permissions: dict[str, tuple[str, ...]] = {}
        # Receives the decisions that no person made.
        self.audit_log = audit_log

    def watch(self, watcher: Callable[[str], None]) -> None:
        """Register a callback for each server whose permissions change."""
        self._watchers.append(watcher)

    def permissions_of(self, server: str) -> ServerPermissions:
        """Return the current permissions of a server."""
        permit = self._servers.get(server)
        if permit is None:
            permit = self._servers[server] = ServerPermissions(
                server, decided_grants=_NEVER_DECIDED
            )
        if permit.decided_grants is not self._current_grants() or _has_passed(
            permit.expires_at, self._clock
        ):
            self._decide(permit)
        return permit

    def add_tool_permissions(self, server: str, names: Iterable[str]) -> None:
        """Note the permissions that a server's tools need in addition to its own declaration."""
        permit = self.permissions_of(server)
        needed = tuple(dict.fromkeys(names))[:MAX_PERMISSIONS]
        if needed != permit.tool_permissions:
            permit.tool_permissions = needed
            self._decide(permit)

    async def decide_introduction(self, introduction: ServerIntroduction) -> None:
        """Decide on the permissions that a server declares.

        Raises Unavailable if it is rejected.
        """
        permit = self.permissions_of(introduction.server)
        said = introduction.statement
        declared = () if said is None else said.permissions
        declared = (*declared, *self.claimed_permissions.get(introduction.server, ()))
        aliases = [name for name in declared if name in PERMISSION_ALIASES]
        if aliases:
            log.warning(
                "server %r: permissions named %s; their full names are %s",
                introduction.server,
                ", ".join(aliases),
                ", ".join(expand_aliases(aliases)),
            )
        permit.declared = expand_aliases(declared)
        permit.trust_level = None if said is None else said.trust_level
        permit.send_request, permit.told_outcomes, permit.request_id = (
            introduction.send_request,
            {},
            "",
        )
        self._decide(permit, is_new=True)
        self._reject(permit)
        if self._policy_of(permit.server).approval is not ApprovalPolicy.INTERACTIVE:
            # Outside the interactive policy, the server only needs to know what it does not get.
            approved = (
                permit.decision_by_name.keys() - permit.missing(permit.decision_by_name).keys()
            )
            permit.told_outcomes = dict.fromkeys(approved, PermissionOutcome.APPROVED)
        await self._tell_decisions(permit)

    def find_approval(self, server: str, permission: str) -> PermissionDecision | None:
        """Return the approval of a grant or the file, whatever the server declares, or None."""
        policy = replace(self._policy_of(server), approval=ApprovalPolicy.CONFIG_ONLY)
        found = self._decide_one(self.permissions_of(server), permission, policy)
        return found if found.decision is PermissionOutcome.APPROVED else None

    def decisions_of(self, server: str) -> dict[str, PermissionDecision]:
        """Return the decisions on what a server needs, and what is approved beyond that."""
        decided, policy = self.permissions_of(server).decision_by_name, self._policy_of(server)
        found: dict[str, PermissionDecision] = {}
        for name in dict.fromkeys((*decided, *RISK_BY_PERMISSION)):
            approval = self.find_approval(server, name)
            if approval is not None:
                found[name] = replace(approval, reach=policy.reach_of(name, approval.reach))
            elif name in decided:
                found[name] = decided[name]
        return found

    def remove_server(self, server: str) -> None:
        self._servers.pop(server, None)

    def renew_due_decisions(self) -> None:
        """Renew the decisions that are due, even without a call."""
        for server in list(self._servers):
            self.permissions_of(server)

    async def wait_until_told(self) -> None:
        """Wait until all servers have received their decisions."""
        await self._background_tasks.finish()

    def stop(self) -> None:
        self._background_tasks.cancel()

    def _decide(self, permissions: ServerPermissions, *, is_new: bool = False) -> None:
        before, policy = permissions.decision_by_name, self._policy_of(permissions.server)
        permissions.decided_grants = self._current_grants()
        decided: dict[str, PermissionDecision] = {}
        for name in permissions.required:
            decided[name] = self._decide_one(permissions, name, policy)
        permissions.decision_by_name = decided
        permissions.expires_at = min(
            (each.expires_at for each in decided.values() if each.expires_at is not None),
            default=None,
        )
        if decided == before and not is_new:
            return
        permissions.generation += 1
        if self.audit_log is not None:
            for name, decision in decided.items():
                _record_decision(self.audit_log, permissions, name, decision)
        for watcher in self._watchers:
            watcher(permissions.server)
        if not is_new and permissions.send_request is not None:
            self._background_tasks.start(self._tell_decisions(permissions))

    def _decide_one(
        self, permissions: ServerPermissions, name: str, policy: ServerPolicy
    ) -> PermissionDecision:
        judged = None
        try:
            if self._policy_engine is not None:
                actor = Actor(SERVER_SUBJECT_PREFIX + permissions.server, PrincipalKind.SERVER)
                judged = self._policy_engine.authorize(actor, PERMISSION_VERB, name, "")
        except Unavailable:
            permissions.decided_grants = _NEVER_DECIDED
            return _UNKNOWN_DECISION
        return decide_permission(name, judged, policy.approval, policy.permissions)

    def _reject(self, permissions: ServerPermissions) -> None:
        if self._policy_of(permissions.server).on_denied is not PermissionDenialAction.REJECT:
            return
        denied = permissions.missing(permissions.declared)
        if denied:
            told = ", ".join(f"{name} ({each.decision})" for name, each in denied.items())
            raise Unavailable(
                f"server {permissions.server!r} lacks permissions: {told:.500}; "
                "approve it "
                f"with `comity servers permissions approve {permissions.server} PERMISSION` and "
                "restart it",
                PERMISSION_DENIED,
            )

    async def _ask_to_wait(self, permissions: ServerPermissions) -> None:
        """Tell a server that an operator has yet to decide, if it can be reached. (MGP §3.5)"""
        waiting = [
            n
            for n, d in permissions.decision_by_name.items()
            if d.decision is PermissionOutcome.DEFERRED
        ]
        permissions.told_outcomes |= dict.fromkeys(waiting, PermissionOutcome.DEFERRED)
        policy = self._policy_of(permissions.server).approval
        if (
            not waiting
            or permissions.send_request is None
            or policy is not ApprovalPolicy.INTERACTIVE
        ):
            return
        permissions.request_id = self._next_request_id()
        params = {
            "request_id": permissions.request_id,
            "permissions": waiting,
            "policy": str(policy),
            "message": "Waiting for operator approval",
        }
        await self._send_request(permissions, WAIT_METHODS, params)

    async def _tell_decisions(self, permissions: ServerPermissions) -> None:
        """Tell a server the decisions since the last message. (MGP §3.6)"""
        news = {
            n: d
            for n, d in permissions.decision_by_name.items()
            if permissions.told_outcomes.get(n) is not d.decision
        }
        if any(each.decision is PermissionOutcome.DEFERRED for each in news.values()):
            # The permission was approved before or is new, so the operator is asked again. (D-11)
            await self._ask_to_wait(permissions)
        final = {n: d for n, d in news.items() if d.decision is not PermissionOutcome.DEFERRED}
        permissions.told_outcomes |= {name: each.decision for name, each in final.items()}
        if not final or permissions.send_request is None:
            return
        ends = [each.expires_at for each in final.values() if each.expires_at is not None]
        params: dict[str, object] = {
            "request_id": permissions.request_id or self._next_request_id(),
            "grants": {name: str(each.decision) for name, each in final.items()},
            "approved_by": ", ".join(dict.fromkeys(each.by for each in final.values())),
            **({"expires_at": format_timestamp(min(ends))} if ends else {}),
        }
        await self._send_request(permissions, DECISION_METHODS, params)

    async def _send_request(
        self, permissions: ServerPermissions, names: Iterable[str], params: Mapping[str, object]
    ) -> None:
        """Send a request under the method's first name, then under its other name.

        No answer of the server grants anything.
        """
        assert permissions.send_request is not None
        for name in names:
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
                    answer = await permissions.send_request(name, params)
            except (Unavailable, MalformedMessage, TimeoutError) as error:
                log.info(
                    "Server %r could not be notified with %s: %s", permissions.server, name, error
                )
                return
            refused = jsonrpc.error_of(answer)
            if refused is None or refused.code != METHOD_NOT_FOUND.code:
                self._ignore_grants(permissions.server, answer)
                return

    def _ignore_grants(self, server: str, answer: Frame) -> None:
        try:
            said = {} if answer.result is UNSET else jsonrpc.decode_members(answer.result)
            claimed = said.get("grants")
            if claimed is None:
                return
            grants = (
                jsonrpc.decode_value(claimed)
                if len(claimed) <= MAX_CLAIM_BYTES
                else "too long to read"
            )
        except MalformedMessage:
            return
        log.warning("Server %r answered with its own grants. Comity ignores them.", server)
        if self.audit_log is not None:
            self.audit_log.record(
                AuditType.SERVER_REPORT,
                f"{SERVER_SUBJECT_PREFIX}{server}",
                server=server,
                result=AuditResult.UNKNOWN,
                rate_key=server,
                untrusted={"asserted": {"grants": grants}},
            )

    def _next_request_id(self) -> str:
        self._request_count += 1
        return f"perm-{self._request_count:03}"


def _record_decision(
    audit_log: AuditLog, permissions: ServerPermissions, name: str, now: PermissionDecision
) -> None:
    """Record a decision of a policy, or the end of a decision. (D-11)

    The decision of a person is already recorded as the grant that the person wrote.
    """
    if now.by == GATEWAY:
        # The grants cannot be read at present. That does not undo an earlier decision.
        return
    before, permissions.recorded_decisions[name] = permissions.recorded_decisions.get(name), now
    has_ended = before is not None and _has_passed(before.expires_at, audit_log.clock)
    type = _change_type(before, now, has_ended=has_ended)
    if type is None:
        return
    details: dict[str, object] = {"permission": name, "decision": now.decision, "by": now.by}
    if type is AuditType.PERMISSION_REVOKED and has_ended:
        details["expired"] = True
    untrusted = {"reason": now.reason}
    audit_log.record(type, GATEWAY, server=permissions.server, details=details, untrusted=untrusted)


def _change_type(
    before: PermissionDecision | None, now: PermissionDecision, *, has_ended: bool
) -> AuditType | None:
    """Return the type of the audit event for a change of a decision, or None.

    The id of a person contains a colon. The name of a policy contains none.
    """
    was = None if before is None else before.decision
    if now.decision is was:
        return None
    if before is not None and was is PermissionOutcome.APPROVED:
        is_by_person = ":" in before.by + now.by and not has_ended
        return None if is_by_person else AuditType.PERMISSION_REVOKED
    return None if ":" in now.by else _DECISION_EVENTS.get(now.decision)


def _has_passed(end: datetime | None, clock: WallClock) -> bool:
    return end is not None and end <= clock()
