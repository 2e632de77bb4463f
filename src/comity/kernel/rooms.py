"""One topic on this node: who sits there, and how what one says reaches the others. (MCPx §3, §6)

Rule 1: what is said is given on in the order in which it came, as the very bytes that came.
Rule 2: who takes everything is in one list and who takes what concerns it in a table, so that an
        envelope costs nothing for members that it does not concern.
Rule 3: what is refused is told to its sender alone, with the id that it gave.
Rule 4: of the payload nothing is read. (§4.2)
"""

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from comity.kernel.seats import Said, Seat
from comity.rules import topics
from comity.rules.capabilities import Capabilities
from comity.rules.topics import Mode, Refusal, Violation
from comity.rules.trails import Trail
from comity.wire import envelope as wire
from comity.wire.audit import stamp
from comity.wire.envelope import Envelope, Heading, Limits
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.parties import GATEWAY

REPLACED: Final = 4001
UNENTITLED: Final = 4003
FLOODING: Final = 1008
MOST_KEPT_BYTES: Final = 4 * 1024 * 1024
"""So much of a topic is kept at most for whoever joins, where something is kept at all."""

type Clock = Callable[[], datetime]


class Span(Protocol):
    """The same topic on other nodes."""

    def say(self, topic: str, said: Said) -> None:
        """Raises Unavailable where the others cannot be reached just now."""
        ...

    def joined(self, topic: str, seat: Seat) -> None: ...
    def left(self, topic: str, party: str) -> None: ...


class Chronicle(Protocol):
    """Who writes down what happens in topics; never the payload. (D-48)"""

    def said(self, topic: str, envelope: Envelope) -> None: ...
    def refused(self, topic: str, seat: Seat, envelope: Envelope | None, why: Refusal) -> None: ...
    def joined(self, topic: str, seat: Seat) -> None: ...
    def left(self, topic: str, party: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds in one topic."""

    entrance: topics.Access = topics.Access.PUBLIC
    usual: tuple[str, ...] = ()
    members: int = 50
    history: int = 0
    is_strict: bool = True
    limits: Limits = wire.LIMITS


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A member that is at another node."""

    node: str
    capabilities: tuple[str, ...]
    stamp: str


class Room:
    """One topic."""

    def __init__(self, name: str, terms: Terms, clock: Clock = lambda: datetime.now(UTC)) -> None:
        self.name = name
        self.terms = terms
        self.seats: dict[str, Seat] = {}
        self.elsewhere: dict[str, Elsewhere] = {}
        self.span: Span | None = None
        self.chronicle: Chronicle | None = None
        # Those who have to do with every envelope, whoever sits here: mounts, and the inbox.
        self.listeners: list[Callable[[Said], None]] = []
        self.trail = Trail()
        self._clock = clock
        self._everything: dict[str, Seat] = {}
        self._directed: dict[str, Seat] = {}
        # Parts of the gateway: every node has them, and the one acts where an envelope came in.
        self._built_in: dict[str, Seat] = {}
        self._history: deque[Said] = deque()
        self._history_bytes = 0

    # Who is here

    @property
    def is_empty(self) -> bool:
        return len(self.seats) == len(self._built_in)

    @property
    def members(self) -> int:
        return len(self.seats) - len(self._built_in) + len(self.elsewhere)

    def has(self, party: str) -> bool:
        """Whether somebody is here, at whichever node."""
        return party in self.seats or party in self.elsewhere

    def take(self, seat: Seat) -> bool:
        """Let a member sit; whether it was here before. Its older connection ends. (D-50)"""
        before, there = self.seats.get(seat.party), self.elsewhere.pop(seat.party, None)
        was_here = before is not None or there is not None
        seat.joined_at = seat.joined_at or self._clock()
        # Newer than what it takes the place of, whatever the clock of another node says.
        older = "" if there is None else f"{there.stamp}~"
        seat.stamp = max(seat.joined_at.isoformat(), older)
        if before is not None:
            self._stand(before)
            seat.missed = before.missed
            if before.outlet is not None:
                before.outlet.end(REPLACED, "replaced by a newer connection of the same party")
        self.seats[seat.party] = seat
        self._table_of(seat)[seat.party] = seat
        self.greet(seat)
        for said in self._history:
            if topics.receives(said.envelope, seat.party, seat.mode, frozenset()):
                seat.give(said)
        if not was_here:
            self._announce(wire.JOIN, seat.party, seat.may.listed)
        if self.span is not None:
            self.span.joined(self.name, seat)
        if self.chronicle is not None and not was_here:
            self.chronicle.joined(self.name, seat)
        self.tell_missed(seat, "you were away for a moment")
        return was_here

    def _table_of(self, seat: Seat) -> dict[str, Seat]:
        if seat.is_built_in:
            return self._built_in
        return self._everything if seat.mode is Mode.ALL else self._directed

    def _stand(self, seat: Seat) -> None:
        self._table_of(seat).pop(seat.party, None)

    def leave(self, seat: Seat) -> None:
        """A member has gone for good."""
        if self.seats.get(seat.party) is not seat:
            return
        del self.seats[seat.party]
        self._stand(seat)
        self._announce(wire.LEAVE, seat.party, None)
        if self.span is not None:
            self.span.left(self.name, seat.party)
        if self.chronicle is not None:
            self.chronicle.left(self.name, seat.party)

    # Those at other nodes

    def came_elsewhere(self, party: str, there: Elsewhere, *, is_newer: bool) -> None:
        """Somebody sits at another node; whoever is newest stays. (D-50)"""
        here = self.seats.get(party)
        if here is not None:
            if not is_newer:
                return
            del self.seats[party]
            self._stand(here)
            if here.outlet is not None:
                here.outlet.end(REPLACED, "replaced by a newer connection of the same party")
        was_here = here is not None or party in self.elsewhere
        self.elsewhere[party] = there
        if not was_here:
            self._announce(wire.JOIN, party, there.capabilities)

    def went_elsewhere(self, party: str, node: str) -> None:
        found = self.elsewhere.get(party)
        if found is not None and found.node == node:
            del self.elsewhere[party]
            self._announce(wire.LEAVE, party, None)

    # What is said

    def say(self, seat: Seat, data: bytes, now: float) -> int:
        """A member says something: it is given on, or its sender is told why not.

        Gives how many envelopes that made.
        """
        if seat.spent.strikes and seat.is_early(now):
            # Of one who was told and goes on, nothing is read: that would cost more than it did.
            self._is_in_time(seat, Heading("", ""), "", now)
            return 1
        try:
            envelope = wire.decode(data, self.terms.limits)
        except MalformedMessage as error:
            id, kind = wire.named(data)
            if self._is_in_time(seat, Heading(id, ""), kind, now):
                self._refuse(seat, Refusal(Violation.INVALID, str(error)), id, kind)
            return 1
        if not self._is_in_time(seat, envelope, envelope.kind, now):
            return 1
        terms = self.terms
        because = topics.why_not(
            envelope, seat.party, seat.may, self.trail, is_strict=terms.is_strict
        )
        if because is not None:
            self._refuse(seat, because, envelope.id, envelope.kind, envelope)
            return 1
        said = Said(data, envelope)
        given = self.deliver(said)
        if self.chronicle is not None:
            self.chronicle.said(self.name, envelope)
        self._tell_others(seat, said)
        return given

    def _tell_others(self, seat: Seat, said: Said) -> None:
        if self.span is None:
            return
        try:
            self.span.say(self.name, said)
        except Unavailable as error:
            because = Refusal(Violation.UNREACHABLE, f"only members at this node got it: {error}")
            self._refuse(seat, because, said.envelope.id, said.envelope.kind)

    def _is_in_time(self, seat: Seat, said: Envelope | Heading, kind: str, now: float) -> bool:
        """Whether it does not come too early; whoever goes on though it was told has to go."""
        wait = 0.0 if seat.is_built_in else seat.hasten(kind, now)
        if not wait:
            return True
        strikes = seat.strike()
        if strikes > seat.patience and seat.outlet is not None:
            seat.outlet.end(FLOODING, "too much, too fast, in spite of being told")
        elif strikes == 1 or strikes % 10 == 0:
            because = Refusal(Violation.RATE, f"too much in a minute; try again in {wait:.1f} s")
            envelope = said if isinstance(said, Envelope) else None
            self._refuse(seat, because, said.id, kind, envelope)
        return False

    def deliver(self, said: Said) -> int:
        """Give an envelope, from wherever it came, to those of this node whom it is for.

        Gives how many they are.
        """
        envelope = said.envelope
        for seat in self._everything.values():
            seat.give(said)
        given = len(self._everything)
        if self._directed:
            for seat in _concerned(envelope, self._directed, self.trail):
                seat.give(said)
                given += 1
        self.trail.add(envelope)
        if self.terms.history:
            self._remember(said)
        if said.is_from_here:
            self._act(said)
        return given

    def _remember(self, said: Said) -> None:
        kept = self._history
        kept.append(said)
        self._history_bytes += len(said.text)
        while len(kept) > self.terms.history or self._history_bytes > MOST_KEPT_BYTES:
            self._history_bytes -= len(kept.popleft().text)

    def _act(self, said: Said) -> None:
        """Let the gateway's own members do what they do about it: at one node, not at each."""
        for seat in _concerned(said.envelope, self._built_in, self.trail):
            seat.give(said)
        for hear in self.listeners:
            hear(said)

    # What the gateway says itself

    def greet(self, seat: Seat) -> None:
        """Tell a member who it is, what it may, and who else is here. (§3.5.1, D-51)"""
        others = [
            wire.described(other.party, other.may.listed)
            for other in self.seats.values()
            if other is not seat
        ]
        others += [
            wire.described(party, there.capabilities) for party, there in self.elsewhere.items()
        ]
        you = wire.described(seat.party, seat.may.listed)
        self.tell(seat, wire.WELCOME, wire.welcome(you, others))

    def reconsider(self, seat: Seat, may: Capabilities) -> None:
        """What a member may is another thing from now on: it is told, and so are other nodes."""
        if may == seat.may:
            return
        seat.may = may
        self.greet(seat)
        if self.span is not None:
            self.span.joined(self.name, seat)

    def tell_missed(self, seat: Seat, because: str) -> None:
        missed = seat.missed
        if missed.count and seat.outlet is not None:
            payload = wire.missed(missed.count, missed.first, missed.last, because)
            # Where there is no room for the notice either, it is told the next time.
            if seat.outlet.give(self.made(wire.MISSED, payload, (seat.party,))):
                seat.missed = type(missed)()

    def tell_all_missed(self, count: int, because: str) -> None:
        """So many envelopes never came from another node; zero: nobody knows how many."""
        for seat in self.seats.values():
            self.tell(seat, wire.MISSED, wire.missed(count, "", "", because))

    def tell(
        self, seat: Seat, kind: str, payload: Mapping[str, Any], correlation_id: str = ""
    ) -> None:
        """Something of the gateway's own, for one member."""
        seat.give(self.made(kind, payload, (seat.party,), correlation_id))

    def made(
        self,
        kind: str,
        payload: Mapping[str, Any],
        to: tuple[str, ...] = (),
        correlation_id: str = "",
    ) -> Said:
        heading = Heading(str(uuid.uuid4()), stamp(self._clock()), to, correlation_id)
        envelope = wire.written(heading, GATEWAY, kind, payload)
        return Said(wire.encode(envelope), envelope)

    def _announce(self, event: str, party: str, capabilities: Iterable[str] | None) -> None:
        payload = wire.presence(event, wire.participant(party, capabilities))
        said = self.made(wire.PRESENCE, payload)
        for seat in self.seats.values():
            seat.give(said)

    def _refuse(
        self, seat: Seat, why: Refusal, id: str, kind: str, envelope: Envelope | None = None
    ) -> None:
        payload = {
            "error": why.error,
            "message": why.message,
            "attempted_kind": kind,
            "your_capabilities": seat.may.listed,
        }
        self.tell(seat, wire.ERROR, payload, id)
        if self.chronicle is not None:
            self.chronicle.refused(self.name, seat, envelope, why)


def _concerned(envelope: Envelope, seats: dict[str, Seat], trail: Trail) -> Iterable[Seat]:
    """Those of them whom an envelope is for; copied, since what follows may change the table."""
    if not seats:
        return ()
    if envelope.is_for_all:
        return list(seats.values())
    named = set(envelope.to)
    if envelope.correlation_id:
        named |= trail.concerned(envelope)
    return [seats[party] for party in named if party in seats]
