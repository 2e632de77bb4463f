"""The gateway's own members of a topic: mounted servers, and the inbox. (D-47, D-101)

Rule 1: a server is a member exactly as long as an operator's file or grant says so; `system:inbox`
        is one where something of the gateway's is to be said or answered.
Rule 2: they speak through the topic like everybody else, so that what they say is bounded,
        correlated and written down alike.
Rule 3: a topic without any of them costs nothing more.
"""

import logging
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from comity.kernel.grants import Clock
from comity.kernel.rooms import Room
from comity.kernel.seats import Now, Said, Seat
from comity.rules.access import Access
from comity.rules.capabilities import Capabilities
from comity.rules.mounting import mounted, party_of
from comity.rules.topics import Mode, Refusal, Violation
from comity.wire import envelope as wire
from comity.wire.audit import stamp
from comity.wire.envelope import PROPOSAL, REJECT, REQUEST, WITHDRAW, Envelope, Heading
from comity.wire.errors import Unavailable
from comity.wire.parties import LOCAL, LOCAL_OPERATOR, Actor, PartyKind

log = logging.getLogger(__name__)

INBOX: Final = "system:inbox"
_OF_INBOX: Final = ("mcp/request:*", "mcp/response:*", "mcp/proposal:*")
_OF_SERVERS: Final = ("mcp/response:*",)
_HEARD: Final = frozenset({REQUEST, PROPOSAL, REJECT, WITHDRAW})


class InForce(Protocol):
    """The grants that count now; raises Unavailable where that cannot be known."""

    @property
    def access(self) -> Access: ...


class Attendant(Protocol):
    """Who does something about what members of a furnished topic ask and propose at this node."""

    def hear(self, place: "Furnished", seat: Seat, said: Said) -> None: ...


@dataclass(frozen=True, slots=True)
class Furniture:
    """What an operator has written down for one topic."""

    mounts: tuple[str, ...] = ()
    asks: bool = False


class BuiltIn:
    """One member that is part of the gateway."""

    def __init__(self, room: Room, party: str, may: Iterable[str], now: Now) -> None:
        self.room = room
        self.party = party
        self._now = now
        actor = Actor(party, PartyKind(party.partition(":")[0]))
        self.seat = Seat(actor, Mode.DIRECTED, self, "built-in")
        self.seat.is_built_in = True
        self.seat.may = Capabilities(may)

    def say(self, heading: Heading, kind: str, payload: Mapping[str, Any]) -> None:
        """Say something like any member. Raises MalformedMessage where the topic takes no such."""
        envelope = wire.written(heading, self.party, kind, payload)
        data = wire.encode(envelope)
        wire.decode(data, self.room.terms.limits)
        self.room.say(self.seat, data, self._now())

    # What members are given reaches it by its attendants; as an outlet it takes all and is silent.

    def give(self, said: Said) -> bool:
        return True

    def end(self, code: int, because: str) -> None:
        log.warning("%s is no longer in topic %r: %s", self.party, self.room.name, because)


class Furnished:
    """One topic with members of the gateway's own."""

    def __init__(self, room: Room, furniture: Furniture, clock: Clock) -> None:
        self.room = room
        self.servers: dict[str, BuiltIn] = {}
        self.inbox: BuiltIn | None = None
        self.attendants: Collection[Attendant] = ()
        # When somebody's grant to be here ends by itself.
        self.until: datetime | None = None
        self.furniture = furniture
        self._clock = clock

    @property
    def topic(self) -> str:
        return self.room.name

    @property
    def has_asks(self) -> bool:
        return self.furniture.asks

    def heading(self, to: Iterable[str] = (), correlation_id: str = "", id: str = "") -> Heading:
        named = id or str(uuid.uuid4())
        return Heading(named, stamp(self._clock()), tuple(dict.fromkeys(to)), correlation_id)

    def settle(self, servers: Collection[str], now: Now) -> None:
        """Have exactly these servers as members, and the inbox where it has to do something."""
        for name in [name for name in self.servers if name not in servers]:
            self.room.leave(self.servers.pop(name).seat)
        has_inbox = bool(servers) or self.has_asks
        if has_inbox and self.inbox is None:
            self.inbox = self._seated(INBOX, _OF_INBOX, now)
            self.room.listeners.append(self._hear)
        for name in servers:
            if name not in self.servers:
                self.servers[name] = self._seated(party_of(name), _OF_SERVERS, now)
        if not has_inbox and self.inbox is not None:
            self.room.listeners.remove(self._hear)
            self.room.leave(self.inbox.seat)
            self.inbox = None

    def _seated(self, party: str, may: Iterable[str], now: Now) -> BuiltIn:
        member = BuiltIn(self.room, party, may, now)
        self.room.take(member.seat)
        return member

    def _hear(self, said: Said) -> None:
        envelope = said.envelope
        if envelope.kind.partition(":")[0] not in _HEARD:
            return
        seat = self.room.seats.get(envelope.sender)
        if seat is None:
            return
        for attendant in self.attendants:
            try:
                attendant.hear(self, seat, said)
            except Exception:
                log.exception("what was said in topic %r ended in a bug of ours", self.topic)

    # What the gateway itself says here

    def refuse(self, seat: Seat, envelope: Envelope, why: Refusal) -> None:
        """Tell a member that nothing was done about what it said, and write that down. (D-41)"""
        payload = {
            "error": why.error,
            "message": why.message,
            "attempted_kind": envelope.kind,
            "your_capabilities": seat.may.listed,
        }
        self.room.tell(seat, wire.ERROR, payload, envelope.id)
        if self.room.chronicle is not None:
            self.room.chronicle.refused(self.topic, seat, envelope, why)

    def mismatched(self, seat: Seat, envelope: Envelope, because: str) -> None:
        self.refuse(seat, envelope, Refusal(Violation.MISMATCH, because[:300]))

    def notify(
        self,
        notice: str,
        message: str,
        to: Iterable[str] = (),
        correlation_id: str = "",
        **more: object,
    ) -> None:
        """Tell members what became of something: at every node, as what members say is told."""
        payload = {"notice": notice, "message": message, **more}
        said = self.room.made(wire.NOTICE, payload, tuple(dict.fromkeys(to)), correlation_id)
        self.room.deliver(said)
        if self.room.span is not None:
            try:
                self.room.span.say(self.topic, said)
            except Unavailable as error:
                log.info("only members at this node hear of %s: %s", correlation_id, error)


def judged_as(actor: Actor) -> Actor:
    """Whom grants name: several members whom one person plays alone are that person."""
    if not actor.is_local:
        return actor
    return LOCAL if actor.lacks_token else LOCAL_OPERATOR


class Furnishing:
    """Every topic of this node, furnished as file and grants say."""

    def __init__(
        self,
        written: Callable[[str], Furniture],
        grants: InForce,
        names: Callable[[], Collection[str]],
        now: Now,
        clock: Clock,
    ) -> None:
        self.attendants: list[Attendant] = []
        self.places: dict[str, Furnished] = {}
        # Who hears that a topic is no more, or not the one that it was.
        self.closed: list[Callable[[Furnished], None]] = []
        self._written = written
        self._grants = grants
        self._names = names
        self._known: frozenset[str] = frozenset()
        self._now = now
        self._clock = clock

    async def furnish(self, room: Room) -> None:
        """A topic is opened: its furniture is there before the first member is welcomed."""
        before = self.places.pop(room.name, None)
        if before is not None:
            self._close(before)
        place = Furnished(room, self._written(room.name), self._clock)
        place.attendants = self.attendants
        self.places[room.name] = place
        self._settle(place)

    def regranted(self, subject: str) -> None:
        """Somebody's grants are others now; an empty name, or everybody's, means all."""
        if subject in ("", "*") or subject.startswith(f"{PartyKind.SERVER}:"):
            for place in list(self.places.values()):
                self._settle(place)

    def look(self, rooms: Mapping[str, Room]) -> None:
        """See which servers there are now, whose time is over, and which topics are no more."""
        names, now = frozenset(self._names()), self._clock()
        are_others, self._known = names != self._known, names
        for topic, place in list(self.places.items()):
            if rooms.get(topic) is not place.room:
                del self.places[topic]
                self._close(place)
            elif are_others or (place.until is not None and place.until <= now):
                self._settle(place)

    def _close(self, place: Furnished) -> None:
        for hear in self.closed:
            hear(place)

    def _settle(self, place: Furnished) -> None:
        """A node that cannot know what is granted mounts nothing."""
        try:
            access = self._grants.access
        except Unavailable:
            place.settle((), self._now)
            place.until = self._clock()
            return
        found, ends = list[str](), list[datetime]()
        for name in self._names():
            is_written = name in place.furniture.mounts
            judged = mounted(access, name, place.topic, self._clock(), is_written=is_written)
            if judged.is_so:
                found.append(name)
            if judged.until is not None:
                ends.append(judged.until)
        place.until = min(ends, default=None)
        place.settle(found, self._now)
