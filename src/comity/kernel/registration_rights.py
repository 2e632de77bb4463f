"""Who may register what, given what is there and what was granted: asked again before each start.

Rule 1: a message's own words decide nothing; the link, the grants and the operator's lists do.
Rule 2: whoever needed a grant needs it still at the moment of the start; what a person approved may
        have been forbidden since.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from comity.kernel.grants import Judge
from comity.kernel.owned_names import OwnedNames
from comity.kernel.servers import Servers
from comity.rules import registering
from comity.rules.refusals import Refusal
from comity.rules.registering import Allowed
from comity.wire.errors import ACCESS_DENIED, INVALID_PARAMS, QUOTA_EXCEEDED, MalformedMessage
from comity.wire.grants import ADMIN_WRITE, PERMISSION, Effect, Source
from comity.wire.parties import Actor, PartyKind
from comity.wire.registration import Wanted

CODE_EXECUTION: Final = "code_execution"
_NOT_FROM_HERE: Final = Refusal(
    ACCESS_DENIED,
    "servers are registered from this machine alone; an operator may set from_network = true in "
    "[registration]",
)


@dataclass(frozen=True, slots=True)
class Guest:
    """One registered server, and until when it may stay."""

    wish: Wanted
    owner: str
    ends_at: datetime | None


@dataclass(slots=True)
class Rights:
    """What the operator allows, what there is, and who was granted what."""

    allowed: Allowed
    judge: Judge
    servers: Servers
    names: OwnedNames
    # Every server that stands in a file.
    configured: Callable[[], Collection[str]]
    # Whether code of an agent that was granted that needs nobody's word. (D-31, MGP §16.6)
    code_goes_unasked: bool = False
    there: dict[str, Guest] = field(default_factory=dict[str, Guest])

    def why_not(self, actor: Actor, wish: Wanted) -> Refusal | None:
        """Why an actor cannot even ask for this server; None where it can."""
        if not self.allowed.from_network and not actor.is_local:
            return _NOT_FROM_HERE
        if self.effect(actor, wish) is Effect.DENY:
            because = f"{actor.party or 'nobody'} may not register {wish.id:.80}"
            return Refusal(ACCESS_DENIED, because)
        problem = registering.problem(wish, self.allowed)
        if problem is not None:
            return Refusal(ACCESS_DENIED, problem)
        others = self._others(actor.party, wish.id)
        problem = registering.id_problem(wish.id, self.allowed.namespace, others)
        if problem is not None:
            return Refusal(INVALID_PARAMS, problem)
        owners = [guest.owner for guest in self.there.values()]
        problem = registering.room_problem(actor.party, owners, self.allowed)
        return None if problem is None else Refusal(QUOTA_EXCEEDED, problem)

    def demand(self, actor: Actor, wish: Wanted, own: Guest | None, *, is_approved: bool) -> None:
        """Raise unless it may start now; its own place, and no other, does not speak against it."""
        has_place = own is not None and self.there.get(wish.id) is own
        if own is not None and has_place:
            del self.there[wish.id]
        try:
            refusal = self.why_not(actor, wish)
        finally:
            if own is not None and has_place:
                self.there[wish.id] = own
        if own is not None and not has_place:
            refusal = Refusal(ACCESS_DENIED, "it was deregistered before it started")
        if refusal is None and not is_approved and self.effect(actor, wish) is not Effect.ALLOW:
            refusal = Refusal(ACCESS_DENIED, "what this needed was granted until just now")
        if refusal is not None:
            raise MalformedMessage(refusal.because, refusal.fault)

    def effect(self, actor: Actor, wish: Wanted) -> Effect:
        """Whether somebody may register this itself, may ask for it, or neither."""
        judged = self.judge.judge(actor, ADMIN_WRITE, wish.id, "")
        effect = registering.entitlement(actor, judged)
        if effect is Effect.DENY or not wish.is_made:
            return effect
        if not self._may_create(actor):
            return Effect.DENY
        return Effect.ALLOW if self.code_goes_unasked else effect

    def may_administer(self, actor: Actor, server: str) -> bool:
        judged = self.judge.judge(actor, ADMIN_WRITE, server, "")
        return judged.effect is Effect.ALLOW and actor.kind is not PartyKind.SERVER

    def _may_create(self, actor: Actor) -> bool:
        """Whether an agent was granted to have its code run: by name, and by no pattern. (D-31)"""
        judged = self.judge.judge(actor, PERMISSION, CODE_EXECUTION, "")
        grant = judged.grant
        if grant is None or judged.effect is not Effect.ALLOW:
            return False
        return grant.verb == PERMISSION or grant.source is Source.BUILT_IN

    def _others(self, party: str, id: str) -> set[str]:
        """Every name but this one, where it is free and was this party's before."""
        running, configured = {*self.servers.names(), *self.there}, {*self.configured()}
        others = running | configured | self.names.owners.keys()
        was_own = self.names.owners.get(id) == party
        return others - {id} if was_own and id not in running | configured else others
