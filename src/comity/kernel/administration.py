"""Who reads and changes grants, and that a change is in force before it is answered. (MGP §5)

Rule 1: whoever changes what others may do has `admin/write` there, and is named in the entry; a
        message that names somebody else as its granter is refused. (D-17, S5)
Rule 2: a party may ask what it may do itself; for others it needs `admin/read`.
Rule 3: a server never grants anything.
Rule 4: what can be granted is what could be taken back: verbs of the gateway's own need
        `admin/write` on everything, so that nobody with power over one server gets it over all.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Protocol

from comity.kernel.grant_audit import GrantAudit
from comity.kernel.grants import Clock
from comity.ports import PAGE
from comity.rules import granting
from comity.rules.access import OUR_VERBS, Access, Judgement
from comity.rules.explaining import Explanation, explain
from comity.rules.patterns import parts
from comity.wire.errors import ACCESS_DENIED, INVALID_PARAMS, MalformedMessage
from comity.wire.grants import ADMIN_READ, ADMIN_WRITE, PERMISSION, Effect, Grant, Where
from comity.wire.parties import Actor, PartyKind

log = logging.getLogger(__name__)

type Refresh = Callable[[], Awaitable[None]]

OFFERED: Final = ("tools/", "prompts/", "resources/", "completion/")
"""Families of verbs that are about what a server offers."""


class Written(Protocol):
    """The records of grants, as far as they are administered."""

    async def put(self, *grants: Grant) -> tuple[Grant, ...]: ...
    async def revoke(self, subject: str, verb: str, target: str, where: Where = None) -> bool: ...
    async def page(self, after: str = "", limit: int = PAGE) -> Sequence[Grant]: ...


class InForce(Protocol):
    """What calls are judged by here."""

    @property
    def access(self) -> Access: ...
    def judge(self, actor: Actor, verb: str, server: str, name: str) -> Judgement: ...


class Administration:
    """The grants of the records, for those who may read or change them."""

    def __init__(
        self,
        written: Written,
        in_force: InForce,
        refresh: Refresh,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self._written = written
        self._in_force = in_force
        self._refresh = refresh
        self._clock = clock
        # Who writes down who granted what to whom, beside the log.
        self.audit: GrantAudit | None = None

    @property
    def access(self) -> Access:
        return self._in_force.access

    def demand(self, actor: Actor, verb: str, target: str) -> None:
        """Raise MalformedMessage unless this actor may administer that target."""
        server, name = ("", "") if target == "*" else parts(target)
        judged = self._in_force.judge(actor, verb, server, name)
        if actor.kind is PartyKind.SERVER or judged.effect is not Effect.ALLOW:
            raise MalformedMessage(
                f"this is for operators: {actor.party or 'nobody'} has no grant of {verb} on "
                f"{target:.200}",
                ACCESS_DENIED,
            )

    async def put(self, actor: Actor, grant: Grant, trace: str = "") -> Grant:
        """Write an entry, or another in its place; it is in force here when this returns."""
        grant = replace(
            grant,
            subject=granting.subject(grant.subject),
            verb=granting.verb(grant.verb),
            target=granting.target(grant.target, grant.verb),
        )
        grant = replace(grant, where=granting.condition(grant))
        now = self._clock()
        try:
            self.demand(actor, ADMIN_WRITE, _administered(grant.verb, grant.target))
            _refuse_other(actor, grant.granted_by)
        except MalformedMessage:
            if self.audit is not None:
                self.audit.granted(actor, grant, trace, refused=True)
            raise
        if grant.expires_at is not None and grant.expires_at <= now:
            raise MalformedMessage("expires_at is in the past", INVALID_PARAMS)
        (kept,) = await self._written.put(replace(grant, granted_by=actor.party, granted_at=now))
        if self.audit is not None:
            self.audit.granted(actor, kept, trace)
        await self._refresh()
        log.info("%s grants %s: %s on %s: %s", actor.party, *_kept_as(kept))
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
        """Whether there was such an entry in the records; it is void here when this returns."""
        subject, verb = granting.subject(subject), granting.verb(verb)
        target = granting.target(target, verb)
        try:
            self.demand(actor, ADMIN_WRITE, _administered(verb, target))
        except MalformedMessage:
            if self.audit is not None:
                self.audit.revoked(actor, (subject, verb, target), trace, refused=True)
            raise
        was_there = await self._written.revoke(subject, verb, target, where)
        if was_there and self.audit is not None:
            self.audit.revoked(actor, (subject, verb, target), trace)
        await self._refresh()
        log.info("%s revokes of %s: %s on %s: %s", actor.party, subject, verb, target, was_there)
        return was_there

    def explain(self, actor: Actor, about: Actor, verb: str, place: tuple[str, str]) -> Explanation:
        """What somebody may do, and why."""
        if about.party != actor.party:
            server, name = place
            self.demand(actor, ADMIN_READ, f"{server}/{name}" if server else "*")
        return explain(self.access, about, verb, place, self._clock())

    async def page(self, actor: Actor, after: str, limit: int = PAGE) -> Sequence[Grant]:
        """What the records hold, from that id on."""
        self.demand(actor, ADMIN_READ, "*")
        return await self._written.page(after, limit)


def _refuse_other(actor: Actor, named: str) -> None:
    if named not in ("", actor.party):
        because = f"an entry is granted by whoever asks for it, which is {actor.party}"
        raise MalformedMessage(because, ACCESS_DENIED)


def _kept_as(grant: Grant) -> tuple[str, str, str, str]:
    return grant.subject, grant.verb, grant.target, grant.effect


def _administered(verb: str, target: str) -> str:
    """Over what somebody must have power who grants this."""
    is_offered = verb.startswith(OFFERED) and not verb.startswith(OUR_VERBS) and verb != PERMISSION
    return target if is_offered else "*"
