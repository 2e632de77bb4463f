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

MOST_WAITING: Final = 500


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

    def came_in(self, server: str, message: Incoming, to: Place | None = None) -> None:
        """Something came from a channel: for its mirrors, and for the topic that it is to go to."""
        place = Place(message.channel, server)
        found = self._places.mirrors(place)
        if to is not None and to not in found:
            found.append(to)
        author = rules.author_of(message)
        content = said(f"{author} ({place.shown[:120]}): {text_of(message.content)}")
        key = rules.message_key(server, message.channel, message.id)
        testimony = {
            "said_by": {
                "server": server,
                "channel": message.channel,
                "message": message.id,
                "author": author,
                "author_id": message.author_id,
                "is_testimony": True,
            }
        }
        self._pass_on(found, key, str(place), content, testimony)

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
            words = Words(f"{key}:{rules.digest(str(each))[:8]}", conversation, content)
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
