"""A channel that is also a topic: what is said in one is said in the other, and never comes back.

Rule 1: what is passed on is said by the gateway's own member, or published by it; neither is passed
        on again.
Rule 2: at each place things are said in the order in which they came, and so many may wait.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from comity.kernel.chores import Chores
from comity.kernel.live.channel_places import LivePlaces
from comity.kernel.live.channel_publishing import Words
from comity.rules import channels as rules
from comity.rules.channels import Place
from comity.rules.safe_text import safe
from comity.wire.channels import Incoming
from comity.wire.contents import Content, said, text_of
from comity.wire.errors import MalformedMessage, Unavailable

log = logging.getLogger(__name__)

MOST_WAITING: Final = 1_000


class Mirroring:
    """Passes on what is said in mirrored places."""

    def __init__(self, places: LivePlaces) -> None:
        self._places = places
        self._chores = Chores("mirrors")
        self._turns: dict[Place, asyncio.Lock] = {}
        self._waiting: dict[Place, int] = {}

    def stop(self) -> None:
        self._chores.cancel()

    async def settle(self) -> None:
        """Until all is passed on that was said before."""
        await self._chores.finish()

    def came_in(self, server: str, message: Incoming) -> None:
        """Something came from a channel: its mirrors are to say it too."""
        found = self._places.mirrors(Place(message.channel, server))
        if found:
            key, content, testimony = _worded(server, message)
            self._pass_on(found, key, str(Place(message.channel, server)), content, testimony)

    async def say_in(self, place: Place, server: str, message: Incoming) -> None:
        """Say what came from a channel in a topic. Raises MalformedMessage, Unavailable."""
        key, content, testimony = _worded(server, message)
        words = Words(_key_at(key, place), str(Place(message.channel, server)), content)
        await self._places.pass_on(place, words, testimony)

    def was_said(self, topic: str, party: str, envelope: str, text: str) -> None:
        """A member of a topic said something."""
        place = Place(topic)
        found = self._places.mirrors(place)
        if found:
            content = said(f"{safe(party)[:120]}: {text}")
            key = f"out:{rules.digest(topic, party, envelope)}"
            self._pass_on(found, key, str(place), content, {})

    def _pass_on(
        self,
        found: list[Place],
        key: str,
        conversation: str,
        content: Content,
        more: Mapping[str, object],
    ) -> None:
        for each in found:
            if self._waiting.get(each, 0) >= MOST_WAITING:
                log.warning("%s takes too long: something is not said there", each)
                continue
            self._waiting[each] = self._waiting.get(each, 0) + 1
            words = Words(_key_at(key, each), conversation, content)
            self._chores.start(self._say(each, words, dict(more)), at_once=True)

    async def _say(self, place: Place, words: Words, more: dict[str, object]) -> None:
        lock = self._turns.setdefault(place, asyncio.Lock())
        try:
            async with lock:
                await self._places.pass_on(place, words, more)
        except (MalformedMessage, Unavailable) as error:
            log.warning("something is not said at %s: %s", place, error)
        finally:
            self._waiting[place] -= 1
            if not self._waiting[place]:
                del self._waiting[place]
                self._turns.pop(place, None)


def _key_at(key: str, place: Place) -> str:
    return f"{key}:{rules.digest(str(place))[:8]}"


def _worded(server: str, message: Incoming) -> tuple[str, Content, dict[str, object]]:
    """What came from outside, as it is said here: by what it is known, in words, and by whom."""
    author, place = rules.author_of(message), Place(message.channel, server)
    content = said(f"{author} ({place.shown[:120]}): {text_of(message.content)}")
    testimony = {
        "server": server,
        "channel": message.channel,
        "message": message.id,
        "author": author,
        "author_id": message.author_id,
        "is_testimony": True,
    }
    return rules.message_key(server, message.channel, message.id), content, {"said_by": testimony}
