"""Topics as places of words: the gateway's own member speaks there, and hears what people say.

Rule 1: it is a member like the inbox: of the gateway's own, on each node, and it acts where an
        envelope came in. Nobody else can take its name in that topic.
Rule 2: what members of the gateway's own say is never answered, so that no two of them talk on
        and on.
Rule 3: a topic in which nobody is, is told what there is to say all the same; it is nobody's.
"""

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import msgspec

from comity.kernel.furnished import BuiltIn
from comity.kernel.rooms import Room
from comity.kernel.seats import Now, Said, Seat
from comity.kernel.topics import Topics
from comity.wire.audit import stamp
from comity.wire.envelope import CHAT, NOTICE, Envelope, Heading

log = logging.getLogger(__name__)

LONGEST_SAID: Final = 64 * 1024
_MAY: Final = ("chat",)

_NAMES: Final = uuid.UUID("0b8f5c1e-3a55-4c0e-8f43-6c1f9b7a2d10")
"""Within which the ids of envelopes follow from what they say."""


@dataclass(frozen=True, slots=True)
class Uttered:
    """What is said in a topic, by whom of the gateway's own; `key` names it for good."""

    key: str
    party: str
    text: str
    reply_to: str = ""
    more: Mapping[str, object] = field(default_factory=dict[str, object])


type Heard = Callable[[str, Seat, Envelope, str], None]
"""Told of each chat of a member's: the topic, who it was, the envelope, and its text."""


class _Chat(msgspec.Struct):
    text: str


_chat: Final = msgspec.json.Decoder(_Chat)


class TopicPlaces:
    """The members by which the gateway's model and its channels speak in topics."""

    def __init__(self, topics: Topics, furnished: Callable[[str], Iterable[str]], now: Now) -> None:
        self.heard: list[Heard] = []
        self._topics = topics
        self._furnished = furnished
        self._now = now
        self._members: dict[tuple[str, str], BuiltIn] = {}
        topics.furnish.append(self.furnish)

    def stop(self) -> None:
        if self.furnish in self._topics.furnish:
            self._topics.furnish.remove(self.furnish)

    async def furnish(self, room: Room) -> None:
        """A topic is opened: those who speak there are there before the first member."""
        for party in self._furnished(room.name):
            self._member(room, party)

    def _member(self, room: Room, party: str) -> BuiltIn:
        found = self._members.get((room.name, party))
        if found is not None and found.room is room:
            return found
        is_first = not any(
            topic == room.name and each.room is room for (topic, _), each in self._members.items()
        )
        self._forget_closed()
        member = self._members[room.name, party] = BuiltIn(room, party, _MAY, self._now)
        room.take(member.seat)
        if is_first:
            room.listeners.append(lambda said: self._hear(room, said))
        return member

    def _forget_closed(self) -> None:
        rooms = self._topics.rooms
        for key, each in list(self._members.items()):
            if rooms.get(key[0]) is not each.room:
                del self._members[key]

    async def say(self, topic: str, uttered: Uttered) -> str:
        """Say it as any member would; the id of what was said. Raises MalformedMessage where there
        can be no such topic, or it takes no such words."""
        room = await self._topics.opened(topic)
        id = str(uuid.uuid5(_NAMES, uttered.key))
        if id in room.trail:
            # Somebody who died before it was settled has said it.
            return id
        heading = Heading(id, stamp(datetime.now(UTC)), (), uttered.reply_to)
        payload = {"text": uttered.text[:LONGEST_SAID], "format": "plain", **uttered.more}
        self._member(room, uttered.party).say(heading, CHAT, payload)
        return id

    def tell(self, topic: str, party: str, message: str, about: str) -> None:
        """Tell one member what became of something it said."""
        room = self._topics.rooms.get(topic)
        seat = None if room is None else room.seats.get(party)
        if room is not None and seat is not None:
            room.tell(seat, NOTICE, {"notice": "turn", "message": message}, about)

    def _hear(self, room: Room, said: Said) -> None:
        envelope = said.envelope
        if envelope.kind != CHAT:
            return
        seat = room.seats.get(envelope.sender)
        if seat is None or seat.is_built_in:
            return
        try:
            text = _chat.decode(envelope.payload).text
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        for hear in self.heard:
            try:
                hear(room.name, seat, envelope, text)
            except Exception:
                log.exception("what was said in topic %r ended in a bug of ours", room.name)
