"""Where words go to: topics, and channels of servers; each once for each turn. (MCPL §14.3, D-71)

Rule 1: it is written down that something is about to be said at a place before it is, and that it
        was said after. What a crash hid is not said again, unless its connector tells twice from
        once by itself.
Rule 2: what was said at a place is said at those that mirror it, once for the same turn.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from comity.kernel.live.channel_observing import Observing
from comity.kernel.live.channel_publishing import UNSURE, Publishing, Words
from comity.kernel.live.channel_topics import TopicPlaces, Uttered
from comity.kernel.live.channels import Channels
from comity.kernel.live.parts import Saying
from comity.ports.incoming import IncomingRecords, Standing
from comity.rules import channels as rules
from comity.rules.channels import HOST, Place, Route
from comity.wire.contents import Content, text_of
from comity.wire.errors import MalformedMessage, Unavailable

log = logging.getLogger(__name__)

OWN: Final = "own"
"""What is noted of a message that came of words of ours."""

_MOST_ASKED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Once:
    """Where it is remembered what was done, and who does it."""

    records: IncomingRecords
    holder: str
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Ways:
    """By which words go out."""

    channels: Channels
    publishing: Publishing
    observing: Observing
    topics: TopicPlaces


class LivePlaces:
    """Says what is to be said (`kernel.live.parts.Places`)."""

    def __init__(self, ways: Ways, once: Once, routes: Sequence[Route]) -> None:
        self.ways = ways
        self.once = once
        self._routes = routes
        self._mirrored = frozenset(each.mirror for each in routes if each.mirror)
        # What a turn answers in a topic: the envelope that asked, by inference and topic.
        self._asked: OrderedDict[tuple[str, str], tuple[str, str]] = OrderedDict()

    def route_of(self, place: Place) -> Route | None:
        return rules.route_of(self._routes, place.server, place.id)

    def mirrors(self, place: Place) -> list[Place]:
        """Where the same is said as there."""
        topic = place.id if place.is_topic else self._mirror_of(place)
        if topic not in self._mirrored:
            return []
        group = [Place(topic)]
        group += [each for each in self.ways.channels.places() if self._mirror_of(each) == topic]
        return [each for each in group if each != place]

    def _mirror_of(self, place: Place) -> str:
        route = self.route_of(place)
        return "" if route is None else route.mirror

    def answers(self, inference: str, topic: str, envelope: str, party: str) -> None:
        """A turn answers something that was said in a topic, as this party."""
        self._asked[inference, topic] = (envelope, party)
        if len(self._asked) > _MOST_ASKED:
            self._asked.popitem(last=False)

    # What the parts of the live plane know of it

    def candidates(self) -> Sequence[str]:
        topics = [Place(each) for each in sorted(self._mirrored)]
        return [str(each) for each in (*topics, *self.ways.channels.places())]

    def piece(self, saying: Saying, index: int, delta: str) -> None:
        del index  # Observers have a numbering of their own: words are held back.
        try:
            self.ways.observing.piece(saying, rules.place_in(saying.place), delta)
        except MalformedMessage as error:
            log.info("nobody watches %r: %s", saying.place, error)

    async def say(self, saying: Saying, content: Content) -> None:
        place = rules.place_in(saying.place)
        await self._say_once(saying, place, content)
        for mirror in self.mirrors(place):
            try:
                await self._say_once(saying, mirror, content)
            except (MalformedMessage, Unavailable) as error:
                log.warning("what was said at %s is not said at %s: %s", place, mirror, error)

    async def think(self, saying: Saying, text: str) -> None:
        self.ways.observing.think(saying, text)

    # How it is done once

    async def _say_once(self, saying: Saying, place: Place, content: Content) -> None:
        key, route = rules.saying_key(saying.inference, place), self.route_of(place)
        records, holder, now = self.once.records, self.once.holder, self.once.clock()
        # Who says a turn's words again has it from one that is gone. In a topic, and by a connector
        # that knows what it has said, twice is once; elsewhere nobody could tell.
        is_safe = place.is_topic or (route is not None and route.repeats)
        until = now if is_safe else None
        (deed,) = await records.take([key], holder, now, until)
        if deed.standing is Standing.DONE:
            return
        if deed.standing is Standing.BUSY:
            raise Unavailable(f"nobody knows whether it was said at {place}", UNSURE)
        try:
            done = await self._deliver(saying, place, content, key)
        except MalformedMessage:
            await records.release(holder, [key])
            raise
        except Unavailable as error:
            if error.fault is not UNSURE:
                await records.release(holder, [key])
            raise
        own = {} if place.is_topic or not done else {_own_key(place, done): OWN}
        await records.settle(holder, {key: done, **own}, self.once.clock())

    async def _deliver(self, saying: Saying, place: Place, content: Content, key: str) -> str:
        moderated = await self.ways.publishing.moderated(content)
        if place.is_topic:
            done = await self._in_topic(saying, place, moderated, key)
        else:
            is_streamed = self.ways.observing.has_streamed(saying, place)
            words = Words(key, saying.conversation, moderated, is_streamed=is_streamed)
            done = await self.ways.publishing.publish(place, words, self.route_of(place))
        self.ways.observing.complete(saying, place, moderated)
        return done

    async def _in_topic(self, saying: Saying, place: Place, moderated: Content, key: str) -> str:
        envelope, party = self._asked.pop((saying.inference, place.id), ("", HOST))
        more = {"inference": saying.inference, "conversation": saying.conversation}
        uttered = Uttered(key, party, text_of(moderated), envelope, more)
        return await self.ways.topics.say(place.id, uttered)

    async def pass_on(
        self, place: Place, words: Words, more: dict[str, object] | None = None
    ) -> str:
        """Say what somebody else has said, at a mirror or where they want it; gives its id there.
        Raises MalformedMessage, Unavailable."""
        if place.is_topic:
            moderated = await self.ways.publishing.moderated(words.content)
            uttered = Uttered(words.id, HOST, text_of(moderated), more=more or {})
            return await self.ways.topics.say(place.id, uttered)
        message = await self.ways.publishing.publish(place, words, self.route_of(place))
        if message:
            await self.remember(place, message)
        return message

    async def remember(self, place: Place, message: str) -> None:
        """A message there is ours: should it come in, nothing follows from it."""
        own = {_own_key(place, message): OWN}
        await self.once.records.settle(self.once.holder, own, self.once.clock())


def _own_key(place: Place, message: str) -> str:
    return rules.message_key(place.server, place.id, message)
