"""A server in a topic: what members ask of it passes the whole gate, and is answered there. (D-101)

Rule 1: only what is addressed to it is for it. What is not what its kind says is dropped, and told
        and written down as that. (D-41)
Rule 2: a call is its sender's own: judged by its grants, with its limits, and held for a person
        where that is wanted; the sender is told that it waits.
Rule 3: the answer goes to whoever asked, and to whoever proposed it (D-39); before that, what is
        secret is hidden, since everybody here reads it.
Rule 4: what was proposed once is done once; a later fulfilment is refused and written down. (D-56)
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from comity.kernel.call import Call
from comity.kernel.chores import Chores
from comity.kernel.furnished import BuiltIn, Furnished, judged_as
from comity.kernel.journal import Journal
from comity.kernel.outbox import Outbox
from comity.kernel.seats import Said, Seat
from comity.kernel.topic_outbox import Approval, TopicOutbox
from comity.ports import Headers
from comity.rules import eras, topic_requests
from comity.rules.moderation import Hide, Mark, Moderation
from comity.rules.mounting import party_of
from comity.rules.topics import Refusal, Violation
from comity.wire import jsonrpc, mcp
from comity.wire.asks import Ask
from comity.wire.audit import Event, Type
from comity.wire.envelope import REQUEST, Envelope
from comity.wire.errors import (
    EXHAUSTED,
    METHOD_NOT_FOUND,
    UPSTREAM_FAILED,
    Fault,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import UNSET, Frame, Id, Limits
from comity.wire.parties import Actor

MOST_OF_ONE: Final = 32
"""How many calls of one member may be under way in one topic."""

LONG: Final = 64 * 1024
"""How long an answer may be that is looked through for secrets while others wait."""

PENDING: Final = "pending"


class ServerDesk(Protocol):
    """The way to one server, through the gate."""

    async def ask_modern(self, frame: Frame, outbox: Outbox, headers: Headers) -> Call: ...
    def headers_for(self, frame: Frame) -> Headers: ...
    def introduction(self, wanted: str | None) -> Mapping[str, object]: ...


@dataclass(frozen=True, slots=True)
class Fulfilment:
    """What the inbox fulfils, in whose name, and by what word: an ask's or a standing answer's."""

    actor: Actor
    proposal: str
    ask: str = ""
    grant: str = ""
    approved_by: tuple[str, ...] = ()
    approval: Approval | None = None


class Claims(Protocol):
    """Who knows what was proposed here, and by whom it was fulfilled first."""

    def brought(self, envelope: str) -> Fulfilment | None:
        """What the inbox fulfils by this envelope; it is given once."""
        ...

    async def claim(self, place: Furnished, envelope: Envelope, actor: Actor, server: str) -> str:
        """Why a fulfilment cannot be; empty where it is the first."""
        ...

    def release(self, place: Furnished, envelope: Envelope) -> None:
        """A fulfilment that never left."""
        ...


class Mounted:
    """Answers for the servers in topics."""

    def __init__(
        self,
        desk_of: Callable[[str], ServerDesk | None],
        claims: Claims,
        hide: tuple[Hide, Mark],
        journal: Journal | None = None,
    ) -> None:
        self._desk_of = desk_of
        self._claims = claims
        self._hide = hide
        self._journal = journal
        self._underway: dict[tuple[str, str], dict[str, tuple[Id, Call | None]]] = {}
        self._chores = Chores("servers in topics")

    def hear(self, place: Furnished, seat: Seat, said: Said) -> None:
        envelope = said.envelope
        if not envelope.kind.startswith(f"{REQUEST}:"):
            return
        named = [name for name in place.servers if party_of(name) in envelope.to]
        if not named:
            return
        try:
            frame = topic_requests.request_in(envelope)
        except MalformedMessage as error:
            place.mismatched(seat, envelope, str(error))
            return
        kind = topic_requests.whole_kind(REQUEST, frame)
        if not seat.may.cover(kind):
            because = f"None of your capabilities covers '{kind[:200]}'"
            place.refuse(seat, envelope, Refusal(Violation.CAPABILITY, because))
        elif frame.id is UNSET:
            self._told(place, seat, frame)
        else:
            for name in named:
                self._begin(place, seat, Errand(name, envelope, frame))

    async def settle(self) -> None:
        """Until all is answered that was asked before."""
        await self._chores.finish()

    def stop(self) -> None:
        self._chores.cancel()

    def _told(self, place: Furnished, seat: Seat, frame: Frame) -> None:
        """What expects no answer: only that somebody wants none any more means something here."""
        if frame.method != mcp.CANCELLED:
            return
        wanted = topic_requests.values(frame).get("requestId")
        for id, call in list(self._underway.get((place.topic, seat.party), {}).values()):
            if call is not None and type(id) is type(wanted) and id == wanted:
                call.withdraw(None)

    def _begin(self, place: Furnished, seat: Seat, errand: "Errand") -> None:
        fulfilment = None
        if seat.is_built_in:
            # In the name of somebody else nothing is done but what was approved as just that.
            fulfilment = self._claims.brought(errand.envelope.id)
            if fulfilment is None:
                return
        actor = judged_as(seat.actor) if fulfilment is None else fulfilment.actor
        underway = self._underway.setdefault((place.topic, seat.party), {})
        member = place.servers[errand.server]
        answering = Answering(place, member, errand, seat.party, fulfilment)
        if len(underway) >= MOST_OF_ONE and not seat.is_built_in:
            answering.fail(EXHAUSTED, f"{MOST_OF_ONE} of your calls are under way here already")
            return
        underway[errand.key] = (errand.id, None)
        self._chores.start(self._answer(answering, actor, underway))

    async def _answer(
        self,
        answering: "Answering",
        actor: Actor,
        underway: dict[str, tuple[Id, Call | None]],
    ) -> None:
        errand = answering.errand
        try:
            payload = await self._payload(answering, actor, underway)
            if payload is not None:
                answering.say(payload)
        except (Unavailable, MalformedMessage) as error:
            answering.fail(error.fault, str(error))
        finally:
            underway.pop(errand.key, None)
            if not underway:
                self._underway.pop((answering.place.topic, answering.asker), None)

    async def _payload(
        self,
        answering: "Answering",
        actor: Actor,
        underway: dict[str, tuple[Id, Call | None]],
    ) -> Mapping[str, object] | None:
        errand, place = answering.errand, answering.place
        desk = self._desk_of(errand.server)
        if desk is None:
            raise Unavailable(f"server {errand.server!r} is not here any more")
        own = _answered_here(desk, errand)
        if own is not None:
            return own
        if answering.fulfilment is None:
            because = await self._claims.claim(place, errand.envelope, actor, errand.server)
            if because:
                raise MalformedMessage(because, EXHAUSTED)
        plain = topic_requests.asked_plainly(errand.frame)
        outbox = answering.outbox(actor)
        call = await desk.ask_modern(plain, outbox, desk.headers_for(plain))
        underway[errand.key] = (errand.id, call)
        self._note(answering, actor, call)
        said = await _last_word(outbox)
        if not _has_left(call):
            self._claims.release(place, errand.envelope)
        return None if said is None else await self._looked_through(said, place, errand)

    async def _looked_through(
        self, said: bytes, place: Furnished, errand: "Errand"
    ) -> Mapping[str, object] | None:
        """The answer for a topic; none where what a server said last is none."""
        most = place.room.terms.limits.envelope_bytes
        try:
            # What does not fit anyway is not looked through; what is long, beside the loop.
            answer = jsonrpc.decode(said, Limits(most))
            if answer.method is not UNSET:
                return None
            if len(said) > LONG:
                return await asyncio.to_thread(self._published, answer, errand)
            return self._published(answer, errand)
        except MalformedMessage as error:
            because = f"the server's answer does not fit into this topic: {error}"
            raise MalformedMessage(because, UPSTREAM_FAILED) from None

    def _published(self, answer: Frame, errand: "Errand") -> Mapping[str, object]:
        """The answer as everybody may read it."""
        plain = topic_requests.answered_plainly(answer, errand.method)
        name, said = ("error", plain.error) if plain.result is UNSET else ("result", plain.result)
        raw = jsonrpc.to_raw(said)
        moderation = Moderation(*self._hide, minds_names=errand.method not in eras.LISTS)
        value = moderation.of(jsonrpc.value(raw))
        return {"jsonrpc": "2.0", "id": errand.id, name: value if moderation.was_needed else raw}

    def _note(self, answering: "Answering", actor: Actor, call: Call) -> None:
        """What ties the envelopes of a topic to the call, and so to all that is known of it."""
        if self._journal is None or not self._journal.has_room:
            return
        errand, done = answering.errand, answering.fulfilment
        details: dict[str, object] = {
            "topic": answering.place.topic,
            "envelope": errand.envelope.id,
            "from": errand.envelope.sender,
            "method": errand.method,
        }
        if errand.envelope.correlation_id:
            details["correlation_id"] = errand.envelope.correlation_id
        if done is not None:
            told = {"ask": done.ask, "grant": done.grant, "approved_by": list(done.approved_by)}
            details |= {name: value for name, value in told.items() if value}
        at, trace = self._journal.clock(), call.traced()
        self._journal.note(
            Event(
                *(Type.TOPIC_CALLED, actor.party, at, actor.kind, errand.server),
                *(topic_requests.context_of(errand.frame)[:200],),
                trace=trace,
                details=details,
            )
        )


@dataclass(frozen=True, slots=True)
class Errand:
    """One request to one server."""

    server: str
    envelope: Envelope
    frame: Frame

    @property
    def key(self) -> str:
        return f"{self.server} {self.envelope.id}"

    @property
    def id(self) -> Id:
        found = self.frame.id
        assert isinstance(found, int | str)
        return found

    @property
    def method(self) -> str:
        return str(self.frame.method)


class Answering:
    """Where the answer to one request goes."""

    def __init__(
        self,
        place: Furnished,
        member: BuiltIn,
        errand: Errand,
        asker: str,
        fulfilment: Fulfilment | None,
    ) -> None:
        self.place = place
        self.errand = errand
        self.asker = asker
        self.fulfilment = fulfilment
        self._member = member

    def outbox(self, actor: Actor) -> TopicOutbox:
        outbox = TopicOutbox()
        outbox.actor = actor
        outbox.approval = None if self.fulfilment is None else self.fulfilment.approval
        outbox.on_held = self._tell_held
        return outbox

    def say(self, payload: Mapping[str, Any]) -> None:
        if self.place.servers.get(self.errand.server) is not self._member:
            self.place.notify(
                "dismounted",
                f"{self._member.party} is not in this topic any more",
                *((self.asker,), self.errand.envelope.id),
            )
            return
        kind = topic_requests.response_kind(self.errand.envelope.kind)
        heading = self.place.heading(self._readers(), self.errand.envelope.id)
        try:
            self._member.say(heading, kind, payload)
        except MalformedMessage as error:
            if "error" in payload:
                raise
            because = f"the server's answer does not fit into this topic: {error}"
            self._member.say(heading, kind, self._failure(UPSTREAM_FAILED, because))

    def fail(self, fault: Fault, because: str) -> None:
        self.say(self._failure(fault, because))

    def _failure(self, fault: Fault, because: str) -> Mapping[str, object]:
        failure = jsonrpc.failure(self.errand.id, fault, because[:1000])
        return {"jsonrpc": "2.0", "id": self.errand.id, "error": failure.error}

    def _readers(self) -> list[str]:
        """Whoever asked, whoever proposed it, and whoever approved it and is here."""
        room, readers = self.place.room, [self.asker]
        step = room.trail.get(self.errand.envelope.correlation_id)
        if step is not None and topic_requests.is_fulfilment(self.errand.envelope.kind, step.kind):
            readers.append(step.sender)
        approved_by = () if self.fulfilment is None else self.fulfilment.approved_by
        return [*readers, *(each for each in approved_by if room.has(each))]

    def _tell_held(self, ask: Ask) -> None:
        self.place.notify(
            PENDING,
            "this call waits for a person's approval; its answer comes when there is one",
            *((self.asker,), self.errand.envelope.id),
            ask=ask.id,
            expires_at=ask.expires_at.isoformat(),
        )


def _answered_here(desk: ServerDesk, errand: Errand) -> Mapping[str, object] | None:
    """What is about the link, of which a topic has none: answered as a server would."""
    result: Mapping[str, object] = {}
    if errand.method == mcp.INITIALIZE:
        wanted = topic_requests.values(errand.frame).get("protocolVersion")
        result = desk.introduction(wanted if isinstance(wanted, str) else None)
    elif errand.method in topic_requests.KEPT:
        return None
    elif errand.method != mcp.PING:
        raise MalformedMessage(f"{errand.method[:80]} is not asked in topics", METHOD_NOT_FOUND)
    return {"jsonrpc": "2.0", "id": errand.id, "result": result}


async def _last_word(outbox: Outbox) -> bytes | None:
    """What a call ends with; what is told amid it has no place in a topic, and is let go."""
    said: list[bytes] = []
    while not outbox.final or outbox.frames:
        await outbox.wait()
        outbox.nudged = outbox.suspended = False
        said = outbox.take() or said
    if outbox.overrun:
        raise Unavailable("the server said too much amid the call", UPSTREAM_FAILED)
    return said[-1] if said else None


def _has_left(call: Call) -> bool:
    return call.link is not None if call.record is None else call.record.has_left
