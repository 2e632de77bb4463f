"""One topic at several nodes: what is said at one reaches the others, and so does who is there.

Rule 1: each node numbers what it says in a topic, also what it could not send: so the others know
        how much they never got, and tell their members.
Rule 2: who is there is told when it changes, and all of it again whenever somebody may have missed
        something: after a node appeared, and after this one could not be heard for a while.
Rule 3: of two connections of one party the newer stays, wherever it is. (D-50)
Rule 4: the members of a node that has died have left.
"""

import asyncio
import logging
from itertools import batched
from typing import Final

import msgspec

from comity.kernel.chores import Chores
from comity.kernel.peers import Peers
from comity.kernel.rooms import Elsewhere, Room
from comity.kernel.seats import Said, Seat
from comity.kernel.topics import Topics
from comity.ports.clustering import Bus, Heard, Interest
from comity.wire import spanning
from comity.wire.envelope import PROTOCOL, Envelope
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.spanning import Called, Came, Passed, Roll, There, Went

log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 1.0
AT_ONCE: Final = 100
_NOTHING_READ: Final = msgspec.Raw(b"{}")
"""Of a payload nobody reads anything here; its bytes are in the text."""


class TopicSpan:
    """The way of every topic between nodes."""

    def __init__(self, bus: Bus, peers: Peers, topics: Topics) -> None:
        self._bus = bus
        self._peers = peers
        self._topics = topics
        self._me = peers.me.id
        self._interests: dict[str, Interest] = {}
        # How much this node has said in each topic, and how much it has heard of each other.
        self._said: dict[str, int] = {}
        self._heard: dict[str, dict[str, int]] = {}
        self._calls: Interest | None = None
        self._chores = Chores("topics at other nodes")

    async def open(self) -> None:
        self._topics.span = self._topics.entering = self
        self._calls = await self._bus.subscribe(f"{self._peers.prefix}.topics", self._asked)
        self._bus.watch(self._changed)
        self._peers.watch(self._appeared)

    async def close(self) -> None:
        self._chores.cancel()
        for interest in (self._calls, *self._interests.values()):
            if interest is not None:
                await interest.close()

    # What happens here

    async def enter(self, room: Room) -> None:
        """Hear of a topic from now on, and know who is in it elsewhere."""
        topic = room.name
        if topic in self._interests:
            return
        try:
            self._interests[topic] = await self._bus.subscribe(self._subject(topic), self._hear)
            await self._call(room)
        except Unavailable as error:
            # It is a topic of this node alone until the others can be heard again.
            log.warning("topic %r is only known here for now: %s", topic, error)

    def forget(self, topic: str) -> None:
        interest = self._interests.pop(topic, None)
        self._said.pop(topic, None)
        self._heard.pop(topic, None)
        if interest is not None:
            self._chores.start(interest.close())

    def say(self, topic: str, said: Said) -> None:
        number = self._said[topic] = self._said.get(topic, 0) + 1
        if not len(self._peers) and self._bus.is_connected:
            return
        envelope = said.envelope
        heading = (envelope.id, envelope.sender, envelope.kind, envelope.to)
        passed = Passed(topic, self._me, number, *heading, envelope.correlation_id, said.text)
        self._bus.publish(self._subject(topic), spanning.encode(passed))

    def joined(self, topic: str, seat: Seat) -> None:
        if not seat.is_built_in:
            self._tell(topic, Came(topic, self._me, _there(seat)))

    def left(self, topic: str, party: str) -> None:
        self._tell(topic, Went(topic, self._me, party))

    def _tell(self, topic: str, told: Came | Went | Roll) -> None:
        try:
            self._bus.publish(self._subject(topic), spanning.encode(told))
        except Unavailable as error:
            # All of it is told again as soon as somebody can hear it.
            log.debug("the other nodes do not hear of topic %r: %s", topic, error)

    async def _call(self, room: Room) -> None:
        """Ask every node who is in a topic, and wait for each, but not for ever."""
        waited_for = {peer.node.id for peer in self._peers}
        if not waited_for:
            return
        all_here = asyncio.Event()

        def hear(heard: Heard) -> None:
            roll = _read(heard)
            if isinstance(roll, Roll) and roll.topic == room.name:
                self._take_roll(room, roll)
                waited_for.discard(roll.node)
                if not waited_for:
                    all_here.set()

        inbox = self._bus.inbox()
        interest = await self._bus.subscribe(inbox, hear)
        try:
            called = spanning.encode(Called(room.name, self._me))
            self._bus.publish(f"{self._peers.prefix}.topics", called, inbox)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await all_here.wait()
        except TimeoutError:
            log.info("nodes %s say nothing of topic %r", sorted(waited_for), room.name)
        finally:
            await interest.close()

    # What is heard

    def _asked(self, heard: Heard) -> None:
        called = _read(heard)
        if not isinstance(called, Called) or not heard.reply:
            return
        try:
            self._bus.publish(heard.reply, spanning.encode(self._roll(called.topic)))
        except Unavailable as error:
            log.debug("a node cannot be answered: %s", error)

    def _roll(self, topic: str) -> Roll:
        room = self._topics.rooms.get(topic)
        seats = () if room is None else room.seats.values()
        members = tuple(_there(seat) for seat in seats if not seat.is_built_in)
        return Roll(topic, self._me, self._said.get(topic, 0), members)

    def _hear(self, heard: Heard) -> None:
        told = _read(heard)
        room = None if told is None else self._topics.rooms.get(told.topic)
        if told is None or room is None or told.node == self._me:
            return
        match told:
            case Passed():
                self._pass(room, told)
            case Came():
                self._come(room, told.node, told.who)
            case Went():
                room.went_elsewhere(told.party, told.node)
            case Roll():
                self._take_roll(room, told)
            case _:
                pass

    def _pass(self, room: Room, passed: Passed) -> None:
        self._count(room, passed.node, passed.number - 1)
        self._heard[room.name][passed.node] = passed.number
        if passed.id in room.trail:
            # What a node that has died said of a push, its heir says again.
            return
        envelope = Envelope(
            *(PROTOCOL, passed.id, passed.sender, passed.kind, _NOTHING_READ),
            *(passed.to, passed.correlation_id),
        )
        room.deliver(Said(passed.text, envelope, is_from_here=False))

    def _count(self, room: Room, node: str, number: int) -> None:
        """See whether all came that a node had said until now."""
        heard = self._heard.setdefault(room.name, {})
        known = heard.get(node)
        if known is not None and number > known:
            because = f"node {node.rpartition('-')[0]} could not be heard for a while"
            room.tell_all_missed(number - known, because)
        if known is None or number > known:
            heard[node] = number

    def _come(self, room: Room, node: str, who: There) -> None:
        here = room.seats.get(who.party)
        is_newer = here is None or who.stamp > here.stamp
        there = Elsewhere(node, who.capabilities, who.stamp)
        known = room.elsewhere.get(who.party)
        if known is not None and known.stamp > who.stamp:
            return
        room.came_elsewhere(who.party, there, is_newer=is_newer)
        if here is not None and not is_newer:
            self.joined(room.name, here)

    def _take_roll(self, room: Room, roll: Roll) -> None:
        self._count(room, roll.node, roll.number)
        named = {who.party for who in roll.members}
        for party, there in list(room.elsewhere.items()):
            if there.node == roll.node and party not in named:
                room.went_elsewhere(party, roll.node)
        for who in roll.members:
            self._come(room, roll.node, who)

    # Whom can be heard

    def _appeared(self, node: str, is_alive: bool) -> None:
        if is_alive:
            self._chores.start(self._tell_all())
            return
        for room in list(self._topics.rooms.values()):
            self._bury(room, node)

    def _bury(self, room: Room, node: str) -> None:
        gone = [party for party, there in room.elsewhere.items() if there.node == node]
        was_heard = self._heard.get(room.name, {}).pop(node, None) is not None
        if gone or was_heard:
            # What it said last may have got nowhere, and nobody can count it.
            name = node.rpartition("-")[0]
            room.tell_all_missed(0, f"node {name} has died; what was said there last may be lost")
        for party in gone:
            room.went_elsewhere(party, node)

    def _changed(self, is_connected: bool) -> None:
        if is_connected:
            self._chores.start(self._tell_all(and_ask=True))

    async def _tell_all(self, *, and_ask: bool = False) -> None:
        """Tell who is here in every topic, and ask for the same, a few at a time."""
        try:
            for some in batched(list(self._topics.rooms.values()), AT_ONCE):
                # Together: a node that says nothing is waited for once for all of them.
                await asyncio.gather(*(self._renew(room, and_ask=and_ask) for room in some))
                await self._bus.drained()
        except Unavailable as error:
            log.debug("the other nodes are not told of the topics here: %s", error)

    async def _renew(self, room: Room, *, and_ask: bool) -> None:
        if room.name not in self._interests:
            await self.enter(room)
        elif and_ask:
            await self._call(room)
        self._tell(room.name, self._roll(room.name))

    def _subject(self, topic: str) -> str:
        return f"{self._peers.prefix}.topic.{spanning.part(topic)}"


def _there(seat: Seat) -> There:
    return There(seat.party, seat.may.listed, seat.stamp)


def _read(heard: Heard) -> spanning.Spanned | None:
    try:
        return spanning.decode(heard.data)
    except MalformedMessage as error:
        log.warning("%s", error)
        return None
