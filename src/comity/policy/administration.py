"""Administration of grants: write, revoke, list and explain them (`mgp/access/*`)."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol

from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditFacts, AuditLog
from comity.errors import ACCESS_DENIED, INVALID_PARAMS, MalformedMessage
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, Actor, PrincipalKind, kind_of
from comity.policy import grants as granting
from comity.policy.explanations import (
    DecisionExplanation,
    ViewEntry,
    ViewExplanation,
    explain_decision,
    explain_in_view,
)
from comity.policy.grants import (
    GATEWAY_VERBS,
    PERMISSION_VERB,
    Decision,
    Effect,
    Grant,
    GrantSet,
    Where,
    split_target,
)
from comity.policy.risk import SERVER_SUBJECT_PREFIX
from comity.policy.snapshot import WallClock
from comity.storage.changes import PAGE
from comity.toolkit.text import format_timestamp

log = logging.getLogger(__name__)

type Refresh = Callable[[], Awaitable[None]]
type ReadReach = Callable[[str, tuple[str, ...]], tuple[str, ...]]
"""Returns the places of a permission in their stored form. Raises MalformedMessage."""

CATALOG_VERBS: Final = ("tools/", "prompts/", "resources/", "completion/")
"""Prefixes of the verbs that concern the catalog entries of a server."""

_PERMISSION_EVENTS: Final = {
    Effect.ALLOW: AuditType.PERMISSION_GRANTED,
    Effect.DENY: AuditType.PERMISSION_DENIED,
}


class GrantRecordStore(Protocol):
    """The part of the grant store that administration uses."""

    async def put(self, *grants: Grant) -> tuple[Grant, ...]: ...
    async def extend(self, grant: Grant) -> Grant: ...
    async def revoke(self, subject: str, verb: str, target: str, where: Where = None) -> bool: ...
    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[Grant]: ...


class EffectiveGrants(Protocol):
    """The grants in force on this node."""

    @property
    def access(self) -> GrantSet: ...
    def authorize(self, actor: Actor, verb: str, server: str, name: str) -> Decision: ...


def _refuse_reach(permission: str, places: tuple[str, ...]) -> tuple[str, ...]:
    raise MalformedMessage(f"no reach of {permission:.80} can be read here", INVALID_PARAMS)


class GrantAdmin:
    """Reads and changes the grants in the store, after checking that the actor may do so."""

    def __init__(
        self,
        store: GrantRecordStore,
        effective_grants: EffectiveGrants,
        refresh: Refresh,
        clock: WallClock = lambda: datetime.now(UTC),
        *,
        audit_log: AuditLog | None = None,
        groups_of: Callable[[str], tuple[str, ...]] = lambda _: (),
        read_reach: ReadReach = _refuse_reach,
    ) -> None:
        self._store = store
        self._effective_grants = effective_grants
        self._refresh = refresh
        self._clock = clock
        # Receives an event for each grant that an actor writes or revokes.
        self.audit_log = audit_log
        self._groups_of = groups_of
        self._read_reach = read_reach

    def actor_named(self, principal: str) -> Actor:
        """Return a principal as an actor with the groups of its record."""
        return Actor(principal, kind_of(principal), groups=self._groups_of(principal))

    @property
    def access(self) -> GrantSet:
        return self._effective_grants.access

    def require_grant(self, actor: Actor, verb: str, target: str) -> None:
        """Raise MalformedMessage unless the actor has a grant of `verb` on the target."""
        server, name = ("", "") if target == "*" else split_target(target)
        judged = self._effective_grants.authorize(actor, verb, server, name)
        if actor.kind is PrincipalKind.SERVER or judged.effect is not Effect.ALLOW:
            raise MalformedMessage(
                f"{actor.party or 'an unauthenticated client'} needs the grant {verb} on "
                f"{target:.200}",
                ACCESS_DENIED,
            )

    async def put(
        self, actor: Actor, grant: Grant, trace: str = "", *, keeps_reach: bool = False
    ) -> Grant:
        """Write a grant, or replace the one with the same subject, verb and target.

        With `keeps_reach`, it has the places of the replaced grant too. The grant is in force on
        this node when the method returns. Its grantor is the actor, even if the grant names another
        one. (D-17) Raises MalformedMessage if the actor may not administer the target, or if the
        grant is invalid or has expired.
        """
        grant = replace(
            grant,
            subject=granting.parse_subject(grant.subject),
            verb=granting.parse_verb(grant.verb),
            target=granting.parse_target(grant.target, grant.verb),
        )
        grant = replace(grant, where=granting.normalise_condition(grant))
        granting.check_reach(grant)
        if grant.reach:
            grant = replace(grant, reach=self._read_reach(grant.target, grant.reach))
        now = self._clock()
        try:
            self.require_grant(actor, ADMIN_WRITE, _administered_target(grant.verb, grant.target))
        except MalformedMessage:
            self._record_grant(actor, grant, AuditResult.BLOCKED, trace)
            raise
        if grant.expires_at is not None and grant.expires_at <= now:
            raise MalformedMessage("expires_at is in the past", INVALID_PARAMS)
        grant = replace(grant, granted_by=actor.party, granted_at=now)
        if keeps_reach:
            kept = await self._store.extend(grant)
        else:
            (kept,) = await self._store.put(grant)
        self._record_grant(actor, kept, AuditResult.SUCCESS, trace)
        await self._refresh()
        log.info("%s grants %s: %s on %s: %s", actor.party, *_storage_key(kept))
        return kept

    async def revoke(
        self,
        actor: Actor,
        subject: str,
        verb: str,
        target: str,
        where: Where = None,
        *,
        trace: str = "",
    ) -> bool:
        """Revoke a grant, and return whether the store held it.

        The grant is void on this node when the method returns. Raises MalformedMessage if the actor
        may not administer the target.
        """
        subject, verb = granting.parse_subject(subject), granting.parse_verb(verb)
        target = granting.parse_target(target, verb)
        try:
            self.require_grant(actor, ADMIN_WRITE, _administered_target(verb, target))
        except MalformedMessage:
            self._record_revocation(actor, (subject, verb, target), AuditResult.BLOCKED, trace)
            raise
        was_there = await self._store.revoke(subject, verb, target, where)
        if was_there:
            self._record_revocation(actor, (subject, verb, target), AuditResult.SUCCESS, trace)
        await self._refresh()
        log.info(
            "%s deletes the grant of %s: %s on %s: %s",
            actor.party,
            subject,
            verb,
            target,
            was_there,
        )
        return was_there

    def explain(
        self, actor: Actor, about: Actor, verb: str, entry: tuple[str, str]
    ) -> DecisionExplanation:
        """Return what the actor `about` may do, and why.

        Raises MalformedMessage if `actor` asks about another principal without a grant of
        ADMIN_READ.
        """
        if about.party != actor.party:
            server, name = entry
            self.require_grant(actor, ADMIN_READ, f"{server}/{name}" if server else "*")
        return explain_decision(self.access, about, verb, entry, self._clock())

    def explain_in_view(self, about: Actor, verb: str, entry: ViewEntry) -> ViewExplanation:
        """Return what the actor `about` may do at the endpoint of a view, and why."""
        return explain_in_view(self.access, about, verb, entry, self._clock())

    async def page(self, actor: Actor, after: str, limit: int = PAGE) -> Sequence[Grant]:
        """Return the stored grants whose ids follow `after`."""
        self.require_grant(actor, ADMIN_READ, "*")
        return await self._store.page(after, limit)

    def _record_grant(self, actor: Actor, grant: Grant, result: AuditResult, trace: str) -> None:
        """Record that an actor wrote a grant, or was not allowed to. (D-16)"""
        if self.audit_log is None:
            return
        type: AuditType = AuditType.ACCESS_GRANTED
        details: dict[str, object] = {"permission": grant.effect}
        if grant.verb == PERMISSION_VERB:
            type = _PERMISSION_EVENTS.get(grant.effect, AuditType.PERMISSION_REVOKED)
            details = {"permission": grant.target, "decision": grant.effect}
        if grant.expires_at is not None:
            details["expires_at"] = format_timestamp(grant.expires_at)
        untrusted: dict[str, object] = {}
        if grant.justification:
            untrusted["justification"] = grant.justification
        if grant.where is not None:
            untrusted["where"] = dict(grant.where)
        if grant.reach:
            untrusted["reach"] = list(grant.reach)
        about = (grant.subject, grant.verb, grant.target)
        facts = _facts_of(about, result, trace, details)
        self.audit_log.record(type, actor, untrusted=untrusted, **facts)

    def _record_revocation(
        self, actor: Actor, about: tuple[str, str, str], result: AuditResult, trace: str
    ) -> None:
        """Record that an actor revoked this subject, verb and target, or was not allowed to."""
        if self.audit_log is None:
            return
        is_permission = about[1] == PERMISSION_VERB
        type = AuditType.PERMISSION_REVOKED if is_permission else AuditType.ACCESS_REVOKED
        details = {"permission": about[2]} if is_permission else {}
        self.audit_log.record(type, actor, **_facts_of(about, result, trace, details))


def _facts_of(
    about: tuple[str, str, str], result: AuditResult, trace: str, details: Mapping[str, object]
) -> AuditFacts:
    """The facts of the audit event for a change of one grant."""
    subject, verb, target = about
    server, tool = "", ""
    if verb == PERMISSION_VERB and subject.startswith(SERVER_SUBJECT_PREFIX):
        server = subject.removeprefix(SERVER_SUBJECT_PREFIX)
    elif "/" in target:
        # A pattern identifies no single server or tool. The details hold the pattern itself.
        server, tool = ("" if "*" in each else each for each in split_target(target))
    named = {"subject": subject, "verb": verb, "target": target, **details}
    return AuditFacts(server=server, tool=tool, result=result, trace=trace, details=named)


def _storage_key(grant: Grant) -> tuple[str, str, str, str]:
    return grant.subject, grant.verb, grant.target, grant.effect


def _administered_target(verb: str, target: str) -> str:
    """Return the target that an actor must be able to administer to write this grant."""
    is_offered = (
        verb.startswith(CATALOG_VERBS)
        and not verb.startswith(GATEWAY_VERBS)
        and verb != PERMISSION_VERB
    )
    return target if is_offered else "*"
