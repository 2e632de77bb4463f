"""Proposals of topics, cared for by the inbox: asked about, fulfilled once, ended. (D-46, D-47)

Rule 1: what a proposer may not do itself waits for somebody who may: a member that fulfils it, or a
        person who answers its ask at any door. Whoever is first counts; a later one is refused
        where the target is ours, and written down everywhere. (D-56)
Rule 2: what people have answered once and for all, by a grant made from precedents, is fulfilled at
        once, and the journal names the grant.
Rule 3: the inbox fulfils in its own name what was approved, and says by whom; the gate judges the
        call as that of whoever may make it (`kernel.proposal_asks`).
Rule 4: the proposer is told what became of it.
"""

import logging
import secrets
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from comity.kernel.admission import arguments_in
from comity.kernel.approvals import Approvals
from comity.kernel.chores import Chores
from comity.kernel.furnished import Furnished, judged_as
from comity.kernel.journal import Journal
from comity.kernel.mounted import PENDING, Fulfilment
from comity.kernel.proposal_asks import Known, Pending
from comity.kernel.proposal_notes import ProposalNotes
from comity.kernel.seats import Said, Seat
from comity.kernel.topic_outbox import Approval, good_for
from comity.rules import proposals, topic_requests
from comity.rules.kinds import parse
from comity.rules.mounting import party_of
from comity.rules.proposals import Happened, Proposal, State
from comity.wire.asks import Ask, Verdict
from comity.wire.asks import State as AskState
from comity.wire.audit import Result
from comity.wire.envelope import PROPOSAL, REJECT, REQUEST, Envelope
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.jsonrpc import Frame
from comity.wire.parties import Actor

log = logging.getLogger(__name__)

MOST: Final = 10_000
"""How many proposals one node cares for; the oldest that are over are forgotten first."""

FULFILS: Final = "dev.comity/fulfils"
_ENDED: Final = {
    AskState.DECLINED: Happened.REJECTION,
    AskState.CANCELLED: Happened.REJECTION,
    AskState.EXPIRED: Happened.TIMEOUT,
    AskState.WITHDRAWN: Happened.WITHDRAWAL,
}
_WORDS: Final = {
    AskState.DECLINED: "it was declined",
    AskState.CANCELLED: "it was called off",
    AskState.EXPIRED: "nobody answered in time",
    AskState.WITHDRAWN: "it is asked about no longer",
}

type ActorOf = Callable[[str], Actor]
"""Somebody who has answered, as grants know it."""


class Proposals:
    """Every proposal that was made in a furnished topic at this node."""

    def __init__(
        self,
        approvals: Approvals,
        known: Known,
        actor_of: ActorOf,
        journal: Journal | None = None,
    ) -> None:
        self._approvals = approvals
        self._known = known
        self._actor_of = actor_of
        self._notes = ProposalNotes(journal)
        self._pending: dict[tuple[str, str], Pending] = {}
        self._by_ask: dict[str, Pending] = {}
        self._fulfilments: dict[str, Fulfilment] = {}
        self._due: dict[str, Ask] = {}
        self._chores = Chores("proposals")

    # What is said

    def hear(self, place: Furnished, seat: Seat, said: Said) -> None:
        envelope = said.envelope
        family = envelope.kind.partition(":")[0]
        if seat.is_built_in:
            return
        if family == PROPOSAL:
            self._proposed(place, seat, envelope)
        elif family == REQUEST:
            self._requested(place, envelope)
        else:
            self._spoken_against(place, seat, envelope)

    def _proposed(self, place: Furnished, seat: Seat, envelope: Envelope) -> None:
        concerns_us = place.has_asks or any(party_of(name) in envelope.to for name in place.servers)
        try:
            frame = topic_requests.proposed_in(envelope)
        except MalformedMessage as error:
            if concerns_us:
                place.mismatched(seat, envelope, str(error))
            return
        server, targets = self._target(place, envelope, frame)
        now = self._approvals.clock()
        proposal = Proposal(
            *(envelope.id, seat.party, targets, str(frame.method), None),
            *(now, now + self._known.lasts),
        )
        actor, trace = judged_as(seat.actor), secrets.token_hex(16)
        pending = Pending(place, proposal, envelope.kind, frame, actor, server, trace)
        self._keep(pending)
        if len(targets) == 1 and concerns_us:
            self._chores.start(self._consider(pending))
        elif concerns_us:
            because = "name one member in `to` to have it put before people"
            self._tell(pending, "unaddressed", because)

    def _target(
        self, place: Furnished, envelope: Envelope, frame: Frame
    ) -> tuple[str, tuple[str, ...]]:
        """The server that is meant, where one is; and whom a fulfilment would be addressed to."""
        named = [name for name in place.servers if party_of(name) in envelope.to]
        if not envelope.to:
            named = [name for name in place.servers if self._known.offer(name, frame)]
        if len(named) == 1:
            return named[0], (party_of(named[0]),)
        is_one = len(envelope.to) == 1 and envelope.to[0] != envelope.sender
        return "", envelope.to if is_one and not named else ()

    def _keep(self, pending: Pending) -> None:
        if len(self._pending) >= MOST:
            over = (key for key, each in self._pending.items() if not each.proposal.is_open)
            del self._pending[next(over, next(iter(self._pending)))]
        self._pending[pending.key] = pending

    def _requested(self, place: Furnished, envelope: Envelope) -> None:
        """A member may fulfil for another member: then nobody needs to be asked any more."""
        pending = self._pending.get((place.topic, envelope.correlation_id))
        if pending is None or any(party_of(name) in envelope.to for name in place.servers):
            return
        if not topic_requests.is_fulfilment(envelope.kind, pending.kind):
            return
        if pending.proposal.status is State.FULFILLED:
            self._notes.repeated(place, envelope, pending.proposal.fulfilled_by, Result.SUCCESS)
        elif pending.proposal.is_open:
            self._mark(pending, envelope.sender, envelope.id)
            self._chores.start(self._take_over(pending, envelope.sender))

    async def _take_over(self, pending: Pending, by: str) -> None:
        self._notes.fulfilled(pending, by)
        if pending.ask is not None:
            try:
                await self._approvals.withdraw(pending.ask, f"{by} fulfils it")
            except Unavailable as error:
                log.info("ask %s is not withdrawn: %s", pending.ask.id, error)

    def _spoken_against(self, place: Furnished, seat: Seat, envelope: Envelope) -> None:
        """Later versions of the document let members reject and withdraw. (D-46)"""
        pending = self._pending.get((place.topic, envelope.correlation_id))
        if pending is None or pending.ask is None or not pending.proposal.is_open:
            return
        is_rejected = envelope.kind.startswith(REJECT)
        what = Happened.REJECTION if is_rejected else Happened.WITHDRAWAL
        if proposals.may_end(pending.proposal, what, seat.party):
            self._chores.start(self._end(pending.ask, seat, is_rejected=is_rejected))

    async def _end(self, ask: Ask, seat: Seat, *, is_rejected: bool) -> None:
        try:
            if is_rejected:
                actor, words = judged_as(seat.actor), "rejected in its topic"
                await self._approvals.answer(actor, ask.id, Verdict.DECLINE, words)
            else:
                await self._approvals.withdraw(ask, "its proposer withdrew it")
        except (Unavailable, MalformedMessage) as error:
            log.info("ask %s goes on in spite of %s: %s", ask.id, seat.party, error)

    # Asked about

    async def _consider(self, pending: Pending) -> None:
        try:
            grant = self._known.standing_answer(pending)
            if grant is not None:
                done = Fulfilment(pending.actor, pending.proposal.id, grant=grant.id)
                self._fulfil(pending, done, str(uuid.uuid4()))
            else:
                await self._ask(pending)
        except (Unavailable, MalformedMessage) as error:
            self._tell(pending, "unasked", f"nobody can be asked about this: {error}")

    async def _ask(self, pending: Pending) -> None:
        ask = pending.ask = self._approvals.new(self._known.question(pending))
        self._by_ask[ask.id] = pending
        try:
            kept = await self._approvals.open(ask)
        except BaseException:
            self._by_ask.pop(ask.id, None)
            raise
        if kept.id != ask.id:
            self._by_ask.pop(ask.id, None)
            pending.ask = None
            raise MalformedMessage("its id is that of another proposal which waits")
        if pending.proposal.is_open:
            words = "people are asked about it; its answer comes when there is one"
            self._tell(pending, PENDING, words, ask.id)

    def heard(self, ask: Ask) -> None:
        """An ask is new, or other than before."""
        pending = self._by_ask.get(ask.id)
        if pending is None or ask.is_open:
            return
        if ask.state is AskState.ACCEPTED and pending.proposal.is_open:
            self._chores.start(self._accepted(pending, ask))
        elif ask.state in _ENDED:
            del self._by_ask[ask.id]
            if pending.proposal.is_open:
                pending.proposal = proposals.after(pending.proposal, _ENDED[ask.state])
                last = ask.answers[-1] if ask.answers else None
                by = f" by {last.by}" if last is not None and last.verdict != "accept" else ""
                why = f": {last.reason}" if by and last is not None and last.reason else ""
                words = f"{_WORDS[ask.state]}{by}{why}; nothing was done"
                self._tell(pending, str(ask.state), words, ask.id)

    async def _accepted(self, pending: Pending, ask: Ask) -> None:
        approved_by = tuple(each.by for each in ask.answers if each.verdict is Verdict.ACCEPT)
        envelope = str(uuid.uuid4())
        before, pending.proposal = pending.proposal, self._fulfilled(pending, envelope)
        try:
            caller = self._known.caller(pending, self._actor_of(approved_by[-1]))
            used = await self._approvals.use(ask, envelope)
        except Unavailable as error:
            log.info("ask %s is not acted on yet: %s", ask.id, error)
            pending.proposal = before
            self._due[ask.id] = ask
            return
        self._by_ask.pop(ask.id, None)
        if used is None:
            # Somebody at another node has fulfilled it.
            return
        if caller is None:
            self._tell(pending, "denied", "neither proposer nor approver may do it", ask.id)
            return
        approval = self._approval(pending, ask)
        done = Fulfilment(caller, pending.proposal.id, ask.id, "", approved_by, approval)
        self._fulfil(pending, done, envelope)

    def _approval(self, pending: Pending, ask: Ask) -> Approval | None:
        """What was approved, where the gate would ask about it: a call of a tool as it was then."""
        definition = ask.about.get("definition")
        if not isinstance(definition, str):
            return None
        place = (pending.server, pending.context, definition)
        digest = good_for(*place, arguments_in(pending.frame), self._known.key)
        return Approval(ask.id, digest)

    # Fulfilled

    def _fulfilled(self, pending: Pending, envelope: str) -> Proposal:
        inbox = pending.place.inbox
        by = "" if inbox is None else inbox.party
        return proposals.after(pending.proposal, Happened.FULFILMENT, by, envelope)

    def _mark(self, pending: Pending, by: str, envelope: str) -> None:
        pending.proposal = proposals.after(pending.proposal, Happened.FULFILMENT, by, envelope)

    def _fulfil(self, pending: Pending, done: Fulfilment, envelope: str) -> None:
        """Send the real request, in the inbox's name, with who is behind it."""
        place, inbox = pending.place, pending.place.inbox
        if inbox is None or not place.room.members:
            self._tell(pending, "withdrawn", "the topic was left meanwhile; nothing was done")
            return
        pending.proposal = self._fulfilled(pending, envelope)
        told = {"ask": done.ask, "grant": done.grant, "approved_by": list(done.approved_by)}
        fulfils = {name: value for name, value in told.items() if value}
        fulfils |= {"proposal": done.proposal, "proposer": pending.proposal.proposer}
        params = topic_requests.values(pending.frame)
        trace = f"00-{pending.trace}-{secrets.token_hex(8)}-01"
        params["_meta"] = {FULFILS: fulfils, "traceparent": trace}
        payload = {"jsonrpc": "2.0", "id": envelope, "method": pending.method, "params": params}
        kind = str(parse(pending.kind)._replace(family=REQUEST))
        heading = place.heading(pending.proposal.target, done.proposal, envelope)
        if pending.server:
            self._fulfilments[envelope] = done
        try:
            inbox.say(heading, kind, payload)
        except MalformedMessage as error:
            self._tell(pending, "unsaid", f"it cannot be said here: {error}; nothing was done")
        else:
            self._notes.fulfilled(pending, done.actor.party, fulfils)
        finally:
            self._fulfilments.pop(envelope, None)

    def brought(self, envelope: str) -> Fulfilment | None:
        return self._fulfilments.pop(envelope, None)

    async def claim(self, place: Furnished, envelope: Envelope, actor: Actor, server: str) -> str:
        """Why a member's fulfilment cannot be; empty where it is the first, or is none."""
        step = place.room.trail.get(envelope.correlation_id)
        if step is None or not topic_requests.is_fulfilment(envelope.kind, step.kind):
            return ""
        frame = topic_requests.request_in(envelope)
        named = topic_requests.context_of(frame)
        if not self._known.may_call(actor, str(frame.method), server, named):
            # The gate will say so; until then it is somebody else's to fulfil.
            return ""
        pending = self._pending.get((place.topic, envelope.correlation_id))
        if pending is not None and pending.proposal.status is State.FULFILLED:
            return self._notes.repeated(
                place, envelope, pending.proposal.fulfilled_by, Result.BLOCKED
            )
        if pending is None:
            ask = await self._approvals.asks.latest(
                self._known.digest(place.topic, envelope.correlation_id)
            )
        else:
            self._mark(pending, envelope.sender, envelope.id)
            ask = pending.ask
            self._notes.fulfilled(pending, envelope.sender)
        if ask is None or ask.state in (AskState.DECLINED, AskState.EXPIRED):
            return ""
        if await self._approvals.withdraw(ask, f"{envelope.sender} fulfils it"):
            return ""
        return self._notes.repeated(place, envelope, "somebody else", Result.BLOCKED)

    def release(self, place: Furnished, envelope: Envelope) -> None:
        """A fulfilment that was refused before it left: another may still be the first."""
        pending = self._pending.get((place.topic, envelope.correlation_id))
        if pending is not None and pending.proposal.fulfilment == envelope.id:
            pending.proposal = replace(
                pending.proposal, status=State.PENDING, fulfilled_by="", fulfilment=""
            )
            pending.ask = None

    # What others, and time, do

    def look(self) -> None:
        """Try again what could not be done, and forget what is long over."""
        due, self._due = self._due, {}
        for ask in due.values():
            self.heard(ask)
        now = self._approvals.clock()
        for key, pending in list(self._pending.items()):
            if now - pending.proposal.expires_at > self._known.lasts:
                del self._pending[key]

    def closed(self, place: Furnished) -> None:
        """Everybody has left a topic: nothing that was proposed there is to be done."""
        for pending in [each for each in self._pending.values() if each.place is place]:
            del self._pending[pending.key]
            if pending.ask is not None and pending.ask.id in self._by_ask:
                del self._by_ask[pending.ask.id]
                self._chores.start(self._let_go(pending.ask))

    async def _let_go(self, ask: Ask) -> None:
        try:
            await self._approvals.withdraw(ask, "everybody has left the topic")
        except Unavailable as error:
            log.info("ask %s is not withdrawn: %s", ask.id, error)

    async def settle(self) -> None:
        await self._chores.finish()

    def stop(self) -> None:
        self._chores.cancel()

    # What is told

    def _tell(self, pending: Pending, notice: str, words: str, ask: str = "") -> None:
        proposal, more = pending.proposal, {"ask": ask} if ask else {}
        pending.place.notify(notice, words[:1000], (proposal.proposer,), proposal.id, **more)
