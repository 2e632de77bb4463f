"""A call that waits for a person: how its client is kept meanwhile, and what follows. (design §1)

Rule 1: no deadline of the call runs while it waits. (D-94)
Rule 2: how a client is told is a form's business: the first that suits is taken. Where none does, a
        client that hears of progress is kept until there is an answer, and any other for a while;
        then it is told to make the same call again, which finds the answer.
Rule 3: an answer is used up by the one call that leaves (`kernel.approved`); of several that wait
        for the same one, the others ask anew.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, Protocol

from msgspec import Raw

from comity.kernel.approvals import Approvals
from comity.kernel.approved import Approved, looked_at
from comity.kernel.call import Call
from comity.kernel.call_hold import GoOn, Hold, LastSteps
from comity.kernel.catalog import Catalog, Offer
from comity.kernel.catalog_access import Standing
from comity.kernel.chores import Chores
from comity.kernel.continuing import Continuing
from comity.kernel.grants import Judge
from comity.kernel.question import Errand
from comity.rules import ask_forms, ask_words, asks
from comity.rules.ask_forms import Brought, Mode, Way
from comity.rules.conversation import Conversation
from comity.rules.negotiation import Terms
from comity.rules.refusals import Refusal
from comity.wire import jsonrpc
from comity.wire.asks import Ask, State, Verdict
from comity.wire.asks import Kind as AskKind
from comity.wire.errors import (
    ACCESS_DENIED,
    APPROVAL_REQUIRED,
    INVALID_PARAMS,
    TOOL_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import Frame
from comity.wire.parties import NOBODY, Actor, PartyKind

PROGRESS_EVERY: Final = timedelta(seconds=10)
_NOT_WAITING: Final = "this answer is to nothing that waits; make the call again without it"
_NOT_INSTEAD: Final = Refusal(
    APPROVAL_REQUIRED, "a tool that needs a person's approval does not stand in for another"
)


class Form(Protocol):
    """One way to deal with a client while a person is asked."""

    def take(self, held: "HeldCall", ask: Ask) -> bool:
        """Whether this client is dealt with so; then it has been told what it had to be told.

        A form may answer the client's call (`held.let_go`), or have it wait on (`held.patience`).
        """
        ...


class Holding:
    """Puts calls before people: the gate's last but one step."""

    def __init__(
        self, approvals: Approvals, steps: LastSteps, judge: Judge, catalog: Catalog
    ) -> None:
        self.approvals = approvals
        self.steps = steps
        self.judge = judge
        self.catalog = catalog
        self.forms: list[Form] = []
        self.redact: Callable[[object], object] = lambda value: value
        # What our states are sealed with: the same on every node.
        self.key = secrets.token_bytes(32)
        self.token_for: Callable[[Ask, Actor], str] = lambda ask, actor: ""
        self.continuing = Continuing(approvals.clock)
        self.held: set[HeldCall] = set()
        self.chores = Chores("calls that wait for a person")

    def hold(
        self, call: Call, offer: Offer, standing: Standing, arguments: object, frame: Frame
    ) -> Hold | Refusal:
        if call.is_bridged:
            return _NOT_INSTEAD
        return HeldCall(self, call, offer, standing, arguments, frame)

    def goes_on(
        self, call: Call, offer: Offer, standing: Standing, arguments: object, frame: Frame
    ) -> bool:
        """Whether this is the next round of an execution that was approved when it began."""
        if not self.continuing.is_round(frame):
            return False
        party = call.outbox.actor.party
        digest = asks.digest(party, offer.server, offer.name, standing.digest, arguments, self.key)
        return self.continuing.goes_on(call, digest, frame)

    def taken_out(self, call: Call, frame: Frame) -> Frame:
        plain, call.brought = ask_forms.taken_out(self.key, call.outbox.actor.party, frame)
        return plain

    def link_to(self, ask: Ask, actor: Actor) -> str:
        """Where an ask can be answered: whoever comes there says who it is.

        Only who may answer it itself is given what says that for it.
        """
        url = f"{self.approvals.options.public_url}/asks/{ask.id}"
        may_answer = actor is not NOBODY and self.approvals.why_not(ask, actor) is None
        token = self.token_for(ask, actor) if may_answer else ""
        return f"{url}?t={token}" if token else url

    def way_to(self, ask: Ask, actor: Actor) -> Way:
        """Who can approve a call that waits, and how. Its link answers in nobody's name."""
        page = self.link_to(ask, NOBODY)
        origin = self.approvals.options.public_url
        return Way(
            *(self.approvals.approvers(ask, actor), page, ask_words.command(ask.id, origin)),
            self.approvals.why_not_own(ask, actor),
        )

    def end(self) -> None:
        """The gateway is about to end: tell whoever waits to make the call again."""
        for held in list(self.held):
            held.end()

    def stop(self) -> None:
        self.chores.cancel()


class HeldCall:
    """One call that waits. It stands where the call's link would."""

    def __init__(
        self,
        holding: Holding,
        call: Call,
        offer: Offer,
        standing: Standing,
        arguments: object,
        frame: Frame,
    ) -> None:
        self.conversation: Conversation[Errand] = Conversation()
        self.mgp: Terms | None = None
        self.call = call
        self.offer = offer
        self.frame = frame
        self.holding = holding
        self.patience: timedelta | None = holding.approvals.options.hold
        # What is to be done when it waits no longer, whatever becomes of it.
        self.endings: list[Callable[[], None]] = []
        self.digest = asks.digest(
            *(call.outbox.actor.party, offer.server, offer.name, standing.digest),
            *(arguments, holding.key),
        )
        self._approved = Approved(call, offer, standing, arguments)
        self._is_over = False
        self._progress = 0
        self._asked: Ask | None = None

    @property
    def approvals(self) -> Approvals:
        return self.holding.approvals

    def begin(self, go_on: GoOn, patience: timedelta | None = None) -> None:
        """Ask, and go on when there is an answer; a door may have less patience than we."""
        if patience is not None and self.patience is not None:
            self.patience = min(self.patience, patience)
        self.call.hold()
        self.holding.held.add(self)
        self.call.link, self.call.minted = self, 0
        self.holding.chores.start(self._go(go_on))

    def let_go(self, tell: Callable[[Call], None]) -> None:
        """Give the client its answer for now; the question stays."""
        if not self._is_over:
            self._is_over = True
            self._step_aside()
            tell(self.call)
            if self._asked is not None:
                self.approvals.wake(self._asked.id)

    def end(self) -> None:
        if self._asked is not None and self._asked.is_open:
            self._turn_down(self.pending(self._asked))

    async def _go(self, go_on: GoOn) -> None:
        try:
            await self._wait(go_on)
        except (Unavailable, MalformedMessage) as error:
            self.let_go(lambda call, because=error: call.failed(because))

    async def _wait(self, go_on: GoOn) -> None:
        brought = self.call.brought
        is_reply = isinstance(brought, ask_forms.Brought)
        ask = await (self._hear(brought) if is_reply else self._ask())
        self._take_form(ask)
        while not self._is_over:
            if ask.state is State.USED:
                ask = await self._ask_anew()
            elif ask.state is not State.ACCEPTED:
                ask = await self._later(ask)
            elif await self._use(ask, go_on):
                return
            else:
                ask = await self._ask_anew()

    async def _ask_anew(self) -> Ask:
        """Another call has used up the answer: it was good for one."""
        if self.call.brought is not None:
            raise MalformedMessage(_NOT_WAITING, INVALID_PARAMS)
        self._end_forms()
        ask = await self._ask()
        self._take_form(ask)
        return ask

    async def _later(self, ask: Ask) -> Ask:
        """The ask when it is another; the client is let go where that takes too long, or ends."""
        if ask.is_open and ask.expires_at > self.approvals.clock():
            found = await self._until_other(ask)
            if found is None:
                self._turn_down(self.pending(ask))
            return found or ask
        ask = await self.approvals.expired(ask) if ask.is_open else ask
        # Somebody may have answered in the last moment after all.
        if ask.state is not State.ACCEPTED:
            self._turn_down(ask_forms.ended(ask))
        return ask

    async def _ask(self) -> Ask:
        """The question that is open for this very call, or was answered; else a new one."""
        ask = await self.approvals.asks.latest(self.digest)
        if ask is None or not self._still_counts(ask):
            ask = await self.approvals.open(self.approvals.new(self._question))
        self._asked = ask
        return ask

    def _still_counts(self, ask: Ask) -> bool:
        now, ended = self.approvals.clock(), ask.ended_at or ask.created_at
        if ask.state in asks.LIVE:
            return ask.expires_at > now
        return ask.state is State.DECLINED and now - ended < self.approvals.options.declined_for

    async def _hear(self, brought: Brought) -> Ask:
        """The ask that a client was put, after what it says to it."""
        ask = await self.approvals.asks.get(brought.ask)
        if ask is None or ask.digest != self.digest:
            # Somebody else's, or its arguments were others when it was asked.
            raise MalformedMessage(_NOT_WAITING, INVALID_PARAMS)
        self._asked = ask
        if brought.verdict is not None and ask.is_open and ask.expires_at > self.approvals.clock():
            ask = await self.take_answer(ask, brought.mode, brought.verdict)
        if brought.verdict in (Verdict.DECLINE, Verdict.CANCEL) and ask.state is State.ACCEPTED:
            # Somebody else has approved it; whoever wanted it wants it no longer.
            await self.approvals.withdraw(ask, "whoever asked for it declined")
            ask = await self.approvals.asks.get(ask.id) or ask
        if ask.state is State.USED:
            raise MalformedMessage(_NOT_WAITING, INVALID_PARAMS)
        return ask

    async def take_answer(self, ask: Ask, mode: Mode, verdict: Verdict) -> Ask:
        """What the client says to an ask that was put to it; gives the ask as it is then.

        Only who may answer for itself answers so, and that is looked at once more. Whoever may not
        and does not want to visit the page only does not wait.
        """
        actor = self.call.outbox.actor
        if mode is Mode.URL:
            if verdict is Verdict.ACCEPT:
                return ask
            if self.approvals.why_not(ask, actor) is not None:
                self._turn_down(self.pending(ask))
                return ask
        try:
            return await self.approvals.answer(actor, ask.id, verdict)
        except MalformedMessage as error:
            if error.fault is ACCESS_DENIED:
                raise
            # Somebody was quicker.
            return await self.approvals.asks.get(ask.id) or ask

    def _question(self, id: str, at: datetime, until: datetime) -> Ask:
        actor, offer, standing = self.call.outbox.actor, self.offer, self._approved.standing
        arguments = self._approved.arguments
        about: Mapping[str, object] = {
            "tool": offer.key,
            "risk": standing.risk,
            "definition": standing.digest,
            "arguments": self.holding.redact(arguments),
            "arguments_digest": asks.arguments_digest(arguments, self.holding.key),
        }
        return Ask(
            *(id, AskKind.CONFIRM, actor.party, offer.server, offer.name, self.digest),
            f"{actor.party} wants to call {offer.key}",
            *(about, at, until),
            quorum=standing.quorum,
            # Whether this person may answer it is looked at when it does: that may change.
            own=actor.kind is PartyKind.PERSON,
            trace=self.call.traced(),
        )

    def _take_form(self, ask: Ask) -> None:
        if self._is_over or not ask.is_open:
            return
        if ask_forms.token_in(self.frame) is not None:
            # It hears of progress, so it need not be let go before there is an answer.
            self.patience = None
            self._tell_progress(ask)
        if self.call.brought is None and self.call.outbox.registry is None:
            any(form.take(self, ask) for form in self.holding.forms)

    async def _until_other(self, ask: Ask) -> Ask | None:
        """The ask once it is another; None when the client has waited long enough."""
        now = asyncio.get_running_loop().time
        began, clock = now(), self.approvals.clock
        while self.patience is None or now() - began < self.patience.total_seconds():
            left = PROGRESS_EVERY
            if self.patience is not None:
                left = min(left, self.patience - timedelta(seconds=now() - began))
            found = await self.approvals.until_other(ask, left)
            if found.state is not ask.state or found.expires_at <= clock() or self._is_over:
                return found
            self._tell_progress(ask)
        return None

    async def _use(self, ask: Ask, go_on: GoOn) -> bool:
        """Run what was approved, once; False where another call had the answer first."""
        refusal = await looked_at(self._changed_meanwhile)
        if refusal is not None:
            if refusal.fault is not TOOL_NOT_FOUND:
                await self.approvals.withdraw(ask, refusal.because)
            self._turn_down(refusal)
            return True
        steps, approved = self.holding.steps, self._approved
        refusal = await approved.intend(steps, ask)
        if refusal is not None:
            # The answer stands: whoever makes the call again finds it.
            self._turn_down(refusal)
            return True
        used = await self.approvals.use(ask, approved.name or ask.id)
        if used is None:
            approved.miss(steps)
            return False
        await self._leave(used, go_on)
        return True

    async def _leave(self, ask: Ask, go_on: GoOn) -> None:
        try:
            refusal = self._changed_meanwhile()
        except Unavailable:
            await self.approvals.restore(ask, ask.call)
            raise
        if refusal is not None:
            self._turn_down(refusal)
        elif self._is_over:
            # The client has gone in the last moment; nothing was done.
            await self.approvals.restore(ask, ask.call)
        else:
            self._is_over = True
            self._step_aside()
            self.holding.continuing.watch(self.call, self.digest)
            await self._approved.send(self.approvals, ask, go_on)

    def _changed_meanwhile(self) -> Refusal | None:
        holding = self.holding
        return self._approved.changed(holding.judge, holding.catalog, holding.steps)

    def pending(self, ask: Ask) -> Refusal:
        """What a client is told that cannot wait any longer."""
        return ask_forms.pending(ask, self.way(ask), self.approvals.options.hold)

    def way(self, ask: Ask) -> Way:
        """Who can approve this call and how, for its client."""
        return self.holding.way_to(ask, self.call.outbox.actor)

    def _turn_down(self, refusal: Refusal) -> None:
        self.let_go(lambda call: call.turn_down(refusal))

    def _step_aside(self) -> None:
        if self.call.link is self:
            self.call.link = None
        self.call.release()
        self.holding.held.discard(self)
        self._end_forms()

    def _end_forms(self) -> None:
        while self.endings:
            self.endings.pop(0)()

    def _tell_progress(self, ask: Ask) -> None:
        token = ask_forms.token_in(self.frame)
        if token is not None and not self._is_over:
            self._progress += 1
            notice = ask_forms.progress(token, self._progress, ask, self.way(ask))
            self.call.outbox.put(jsonrpc.encode(notice))

    # What the call does with its link, which for now is this.

    def tell(self, frame: Frame) -> None:
        """Nobody is there who could be told anything."""

    def forsake(self, minted: int, reason: Raw | None) -> None:
        """The client has left, or has waited for too long; the question stays."""
        if not self._is_over:
            self._is_over = True
            self._step_aside()
            if self._asked is not None:
                self.approvals.changed(self._asked.id)

    def throttle(self, minted: int, paused: bool) -> None:
        """No stream is open."""
