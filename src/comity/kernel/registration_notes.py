"""What becomes of registrations, as entries of the journal: who, what, and by whose word."""

from collections.abc import Awaitable, Mapping

from comity.kernel.audit_recorder import Redact
from comity.kernel.journal import Journal
from comity.rules import registering
from comity.wire.audit import Event, Result, Type
from comity.wire.parties import Actor
from comity.wire.registration import Wanted


class RegistrationNotes:
    """Writes down what others brought, without secrets, and of code no more than how long it is."""

    def __init__(self, journal: Journal, redact: Redact) -> None:
        self._journal = journal
        self._redact = redact

    def intended(self, actor: Actor, wish: Wanted, ask: str, trace: str) -> Awaitable[None]:
        """It is about to start; raises Unavailable where that cannot be written down."""
        said = self._said(wish) | ({"ask": ask} if ask else {})
        registered = Type.SERVER_REGISTERED
        return self._journal.insist(
            self._event(registered, actor, wish.id, Result.PENDING, said, trace)
        )

    def registered(
        self, actor: Actor, wish: Wanted, result: Result, why: str = "", trace: str = ""
    ) -> None:
        said = self._said(wish) | self._why(why)
        self._journal.note(self._event(Type.SERVER_REGISTERED, actor, wish.id, result, said, trace))

    def deregistered(self, actor: Actor, wish: Wanted, owner: str, why: str) -> None:
        said = {"created_by": owner, **self._why(why)}
        gone = Type.SERVER_DEREGISTERED
        self._journal.note(self._event(gone, actor, wish.id, Result.SUCCESS, said, ""))

    def _why(self, why: str) -> dict[str, object]:
        return {"reason": self._redact(why[:1000])} if why else {}

    def _said(self, wish: Wanted) -> dict[str, object]:
        said = {**registering.shown(wish), "claimed_by": wish.claimed_by}
        code = said.pop("code", "")
        said |= {"code_characters": len(str(code))} if code else {}
        return {name: self._redact(value) for name, value in said.items() if value}

    def _event(
        self,
        type: Type,
        actor: Actor,
        id: str,
        result: Result,
        said: Mapping[str, object],
        trace: str,
    ) -> Event:
        kind, at = actor.kind, self._journal.clock()
        return Event(type, actor.party, at, kind, id, result=result, trace=trace, details=said)
