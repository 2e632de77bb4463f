"""The topics of this node: who joins which, who may what there, and when nobody is left. (MCPx §5)

Rule 1: what a member may send follows from the grants, and another grant is in force at once.
Rule 2: a member whose connection was cut is waited for a moment, so that nobody is told that it
        left and came back.
Rule 3: topics, members of a topic and topics of a party are bounded. An empty topic is forgotten.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from comity.kernel.rooms import UNENTITLED, Chronicle, Clock, Room, Span, Terms
from comity.kernel.seats import NO_PACE, Now, Outlet, Pace, Seat, Spent
from comity.rules.access import Access
from comity.rules.capabilities import Capabilities
from comity.rules.entitlement import Entitled, entitled
from comity.rules.phrases import count_noun
from comity.rules.topics import Access as Entrance
from comity.rules.topics import Mode, is_topic
from comity.wire.errors import (
    EXHAUSTED,
    INVALID_PARAMS,
    JOINING_REFUSED,
    NOTHING_HERE,
    RATE_LIMITED,
    MalformedMessage,
    Unavailable,
)
from comity.wire.parties import Actor

MOST_OF_A_PARTY: Final = 200


class InForce(Protocol):
    """The grants that count now; raises Unavailable where that cannot be known."""

    @property
    def access(self) -> Access: ...


class Entering(Protocol):
    """Who sees to it that this node hears of a topic while somebody is in it."""

    async def enter(self, room: Room) -> None: ...
    def forget(self, topic: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much there may be of everything."""

    topics: int = 10_000
    pace: Pace = NO_PACE
    grace: float = 5.0


type TermsOf = Callable[[str], Terms]


class Topics:
    """Every topic in which somebody is, at this node."""

    def __init__(
        self,
        grants: InForce,
        terms_of: TermsOf,
        bounds: Bounds,
        now: Now,
        clock: Clock = lambda: datetime.now(UTC),
    ) -> None:
        self.rooms: dict[str, Room] = {}
        self.bounds = bounds
        self.span: Span | None = None
        self.entering: Entering | None = None
        self.chronicle: Chronicle | None = None
        # Called with each room that is opened: mounts and the inbox take their places there.
        self.furnish: list[Callable[[Room], Awaitable[None]]] = []
        # Whether the credentials still count by which somebody was let in.
        self.recognises: Callable[[Actor], bool] = lambda _: True
        self._grants = grants
        self._terms_of = terms_of
        self._now = now
        self._clock = clock
        self._of_party: dict[str, set[str]] = {}
        self._away: dict[tuple[str, str], Seat] = {}
        # Of those who have left: what they said lately still counts.
        self._spent: dict[tuple[str, str], Spent] = {}
        self._opening: dict[str, asyncio.Future[Room]] = {}

    def entitled(self, topic: str, actor: Actor) -> Entitled:
        """What somebody may send there; raises Unavailable where that cannot be known."""
        terms = self._terms_of(topic)
        access = self._grants.access
        return entitled(access, actor, topic, self._clock(), (terms.entrance, terms.usual))

    def check(self, topic: str, actor: Actor) -> Entitled:
        """What somebody may who wants to join; raises MalformedMessage where it may not."""
        if not is_topic(topic):
            raise MalformedMessage(
                "?topic= must name a topic: 1 to 64 of A-Z a-z 0-9 _ . -", INVALID_PARAMS
            )
        found = self.entitled(topic, actor)
        if found.is_admitted:
            self._find_room(topic, actor.party)
            self._hold_back(topic, actor.party)
            return found
        if self._terms_of(topic).entrance is Entrance.PRIVATE:
            raise MalformedMessage(f"there is no topic {topic!r} for you here", NOTHING_HERE)
        raise MalformedMessage(
            f"{actor.party or 'nobody'} was granted nothing in topic {topic!r}; an operator can: "
            f"comity topic caps {topic} {actor.party or 'PARTY'} --add chat",
            JOINING_REFUSED,
        )

    async def join(self, topic: str, actor: Actor, mode: Mode, outlet: Outlet) -> Seat:
        """Let somebody in; it has been welcomed when this returns."""
        self.check(topic, actor)
        room = await self._room(topic)
        # While this one waited others may have come and gone, and the topic with them.
        while self.rooms.get(topic) is not room:
            room = await self._room(topic)
        try:
            found = self.check(topic, actor)
        except (MalformedMessage, Unavailable):
            self._forget(room, actor.party)
            raise
        seat = Seat(actor, mode, outlet, secrets.token_hex(8))
        seat.may, seat.until = found.may, _earlier(found.until, actor.expires_at)
        seat.keep_to(self.bounds.pace, self._spent_by(room, actor.party))
        seat.came(self._now())
        self._of_party.setdefault(actor.party, set()).add(topic)
        self._away.pop((topic, actor.party), None)
        room.take(seat)
        return seat

    async def opened(self, topic: str) -> Room:
        """The topic, for the gateway to say something in; empty, it is forgotten again soon.

        Raises MalformedMessage where there can be none.
        """
        if not is_topic(topic):
            raise MalformedMessage(f"{topic!r:.80} is no name of a topic", INVALID_PARAMS)
        if topic not in self.rooms:
            self._find_room(topic, "")
        return await self._room(topic)

    def _spent_by(self, room: Room, party: str) -> Spent | None:
        """What a party has said here lately: who comes anew may not for that say more."""
        before = room.seats.get(party)
        return self._spent.pop((room.name, party), None) if before is None else before.spent

    async def _room(self, topic: str) -> Room:
        """The topic, opened by the first who comes; the others wait until all is known of it."""
        opening = self._opening.get(topic)
        if opening is None and topic in self.rooms:
            return self.rooms[topic]
        if opening is None:
            opening = self._opening[topic] = asyncio.ensure_future(self._open(topic))
            opening.add_done_callback(lambda _: self._opening.pop(topic, None))
        return await asyncio.shield(opening)

    async def _open(self, topic: str) -> Room:
        room = self.rooms[topic] = Room(topic, self._terms_of(topic), self._clock)
        room.chronicle = self.chronicle
        room.span = self.span
        try:
            if self.entering is not None:
                await self.entering.enter(room)
            for furnish in self.furnish:
                await furnish(room)
        except BaseException:
            self._close(room)
            raise
        return room

    def _find_room(self, topic: str, party: str) -> None:
        """Raise where a topic is full, there are too many, or it has another of that name."""
        room = self.rooms.get(topic)
        if room is None and len(self.rooms) >= self.bounds.topics:
            raise _too_many(
                f"no more than {count_noun(self.bounds.topics, 'topic')} may be open here"
            )
        if room is not None and not room.has(party) and room.members >= room.terms.members:
            raise _too_many(
                f"topic {topic!r} has {count_noun(room.terms.members, 'member')} already"
            )
        here = None if room is None else room.seats.get(party)
        if here is not None and here.is_built_in:
            # Two who answer to one name could not be told apart by those who listen.
            raise MalformedMessage(
                f"{party} is a member of the gateway's own in topic {topic!r}", JOINING_REFUSED
            )
        of_party = self._of_party.get(party, ())
        if topic not in of_party and len(of_party) >= MOST_OF_A_PARTY:
            raise _too_many(f"{party} is in {MOST_OF_A_PARTY} topics already")

    def _hold_back(self, topic: str, party: str) -> None:
        """Raise where somebody comes and goes too often: everybody is told of it each time."""
        room, rate = self.rooms.get(topic), self.bounds.pace.messages
        here = None if room is None else room.seats.get(party)
        spent = self._spent.get((topic, party)) if here is None else here.spent
        wait = 0.0 if rate is None or spent is None else rate.wait(spent.joins_due, self._now())
        if wait:
            raise Unavailable(
                f"{party} comes to topic {topic!r} too often; try again in {wait:.1f} s",
                RATE_LIMITED,
                timedelta(seconds=wait),
            )

    def say(self, topic: str, seat: Seat, data: bytes) -> int:
        """A member says something; gives how many envelopes that made."""
        room = self.rooms.get(topic)
        if room is None or room.seats.get(seat.party) is not seat:
            return 0
        return room.say(seat, data, self._now())

    def resumed(self, topic: str, seat: Seat) -> None:
        """A member that was too slow takes things again: tell it what it was not given."""
        room = self.rooms.get(topic)
        if room is not None:
            room.tell_missed(seat, "you took what is said here too slowly")

    def gone(self, topic: str, seat: Seat, *, is_clean: bool) -> None:
        """A connection has ended: by a word of its member, or it was cut."""
        room = self.rooms.get(topic)
        seat.outlet = None
        if room is None or room.seats.get(seat.party) is not seat:
            if room is not None and seat.party not in room.seats:
                # A newer connection of it is at another node.
                self._forget(room, seat.party)
            return
        if is_clean or not self.bounds.grace:
            self._leave(room, seat)
        else:
            seat.away_since = self._now()
            self._away[topic, seat.party] = seat

    def _leave(self, room: Room, seat: Seat) -> None:
        self._away.pop((room.name, seat.party), None)
        room.leave(seat)
        if seat.spent.is_owing(self._now()):
            self._spent[room.name, seat.party] = seat.spent
        self._forget(room, seat.party)

    def _forget(self, room: Room, party: str) -> None:
        of_party = self._of_party.get(party)
        if of_party is not None:
            of_party.discard(room.name)
            if not of_party:
                del self._of_party[party]
        if room.is_empty and self.rooms.get(room.name) is room:
            self._close(room)

    def _close(self, room: Room) -> None:
        del self.rooms[room.name]
        if self.entering is not None:
            self.entering.forget(room.name)

    def look(self) -> None:
        """Let those go who did not come back, and those whose time is over."""
        now, clock = self._now(), self._clock()
        for (topic, _), seat in list(self._away.items()):
            if now - seat.away_since >= self.bounds.grace and topic in self.rooms:
                self._leave(self.rooms[topic], seat)
        for key in [key for key, spent in self._spent.items() if not spent.is_owing(now)]:
            del self._spent[key]
        rooms = self.rooms.values()
        ended = [
            (room, seat)
            for room in rooms
            for seat in room.seats.values()
            if seat.until is not None and seat.until <= clock
        ]
        for room, seat in ended:
            self._reconsider(room, seat)
        # Who wanted to join may have gone away while it was opened.
        for room in [each for each in rooms if each.is_empty and each.name not in self._opening]:
            self._forget(room, "")

    def regranted(self, party: str) -> None:
        """Somebody's grants, or credentials, are others now; an empty name, or everybody's, means
        all."""
        if party and party != "*":
            named = self.seats_of(party)
        else:
            named = [
                (name, seat) for name, room in self.rooms.items() for seat in room.seats.values()
            ]
        for name, seat in named:
            if not seat.is_built_in:
                self._reconsider(self.rooms[name], seat)

    def _reconsider(self, room: Room, seat: Seat) -> None:
        try:
            is_known = self.recognises(seat.actor) and not self._is_over(seat.actor)
            found = self.entitled(room.name, seat.actor)
        except Unavailable:
            # A node that cannot know what is granted denies; it looks again before long.
            is_known = True
            found = Entitled(Capabilities(()), is_admitted=True, until=self._clock())
        if is_known and found.is_admitted:
            seat.until = _earlier(found.until, seat.actor.expires_at)
            room.reconsider(seat, found.may)
            return
        if seat.outlet is not None:
            words = (
                "you may not be in this topic any more" if is_known else "your credentials are void"
            )
            seat.outlet.end(UNENTITLED, words)
        self._leave(room, seat)

    def _is_over(self, actor: Actor) -> bool:
        return actor.expires_at is not None and actor.expires_at <= self._clock()

    def seats_of(self, party: str) -> Sequence[tuple[str, Seat]]:
        found = ((name, self.rooms.get(name)) for name in self._of_party.get(party, ()))
        return [
            (name, room.seats[party])
            for name, room in found
            if room is not None and party in room.seats
        ]

    @property
    def members(self) -> int:
        return sum(len(room.seats) for room in self.rooms.values())


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((each for each in (one, other) if each is not None), default=None)


def _too_many(because: str) -> MalformedMessage:
    return MalformedMessage(f"{because}; try again later, or ask an operator for more", EXHAUSTED)
