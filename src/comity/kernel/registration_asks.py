"""A registration that waits for a person, held as a call of a tool is. (MGP §15.4, D-30, D-94)

Rule 1: what is asked about is what will run: its whole command, URL or code is what the answer is
        bound to, and an answer is good for one start.
Rule 2: only who may administer that server says yes to it, beside the grant to answer asks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from comity.kernel.approvals import Approvals
from comity.kernel.approved import Approved
from comity.kernel.call_hold import GoOn, LastSteps
from comity.kernel.catalog import Catalog, Offer
from comity.kernel.grants import Judge
from comity.kernel.held import HeldCall, Holding
from comity.kernel.own_methods import Asked
from comity.kernel.registration_rights import Rights
from comity.rules import ask_forms
from comity.rules.refusals import Refusal
from comity.rules.registering import shown, summary
from comity.wire import registration
from comity.wire.asks import Ask, Kind
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.parties import Actor
from comity.wire.registration import REGISTER, Wanted
from comity.wire.security import Risk

type Look = Callable[[], Refusal | None]
"""Why what was asked about cannot be done any more."""

NO_AUTHORITY: Final = "you were not granted admin/write on this server; see `comity grants`"


@dataclass(frozen=True, slots=True)
class _Wish:
    """How a wish stands, in the words in which a tool does."""

    refusal: Refusal | None = None
    must_be_confirmed: bool = True
    is_confirmed_always: bool = True
    asked_each_time: str | None = "each server that is registered is asked about by itself"
    cost: int = 1
    risk: Risk = Risk.DANGEROUS
    digest: str = REGISTER
    quorum: int = 1


class _Start(Approved):
    """One start that a person may allow."""

    look: Look

    def changed(self, judge: Judge, catalog: Catalog, steps: LastSteps) -> Refusal | None:
        return self.look()

    async def intend(self, steps: LastSteps, ask: Ask) -> Refusal | None:
        """It is written down where it is started."""
        self.call.answered_by = ask.id
        return None

    def miss(self, steps: LastSteps) -> None:
        self.call.answered_by = ""

    async def send(self, approvals: Approvals, ask: Ask, go_on: GoOn) -> None:
        """Whatever becomes of it: what was begun is not begun again by the same word."""
        try:
            await go_on()
        except (Unavailable, MalformedMessage) as error:
            self.call.failed(error)


class HeldRegistration(HeldCall):
    """A registration of somebody who was not granted it."""

    def __init__(self, holding: Holding, asked: Asked, wish: Wanted, look: Look) -> None:
        offer = Offer(wish.id, wish.id, "", b"")
        said = registration.entry(wish)
        super().__init__(holding, asked.call, offer, _Wish(), said, asked.frame)
        self._wish = wish
        self._approved = _Start(asked.call, offer, _Wish(), said)
        self._approved.look = look

    def _question(self, id: str, at: datetime, until: datetime) -> Ask:
        party, wish = self.call.outbox.actor.party, self._wish
        about = {name: self.holding.redact(value) for name, value in shown(wish).items()}
        return Ask(
            *(id, Kind.REGISTRATION, party, wish.id, "", self.digest),
            str(self.holding.redact(f"{party} wants to register {wish.id}: {summary(wish)}")),
            *(about, at, until),
            trace=self.call.traced(),
        )

    def _take_form(self, ask: Ask) -> None:
        """It hears of progress, or waits for a while: no form of a client knows this method."""
        if ask.is_open and ask_forms.token_in(self.frame) is not None:
            self.patience = None
            self._tell_progress(ask)


def demand_authority(approvals: Approvals, rights: Rights) -> None:
    """Have nobody say yes to a server who may not administer it."""

    def why_not(ask: Ask, actor: Actor) -> str | None:
        try:
            return None if rights.may_administer(actor, ask.server) else NO_AUTHORITY
        except Unavailable as error:
            return str(error)

    approvals.scruples[Kind.REGISTRATION] = why_not
