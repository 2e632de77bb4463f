"""Words on their way to a channel: moderated, acknowledged, tried again within bounds. (MCPL §14.3)

Rule 1: nothing leaves before what is secret in it is hidden. (§14.5)
Rule 2: what surely was not delivered is tried again, a few times. What may have been is not, unless
        its connector is known to recognise a publication by its id.
Rule 3: what comes back of our own words is known by its id, or while that is not known by its
        words, and starts nothing.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from msgspec.structs import replace as with_text

from comity.kernel.live.channels import Channels
from comity.kernel.live.hosting import Hosted
from comity.kernel.live.noting import Deed
from comity.rules.backoff import Backoff
from comity.rules.channels import Place, Route
from comity.wire import channels as wire
from comity.wire.audit import Result, Type
from comity.wire.channels import Published
from comity.wire.contents import Block, Content, text_of
from comity.wire.errors import (
    CHANNEL_UNKNOWN,
    FEATURE_NOT_ENABLED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    SCOPE_NOT_PERMITTED,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    MalformedMessage,
    Unavailable,
)

log = logging.getLogger(__name__)

LONG: Final = 64 * 1024
"""How long a text may be that is looked through for secrets while others wait."""

_FINAL: Final = frozenset(
    fault.code
    for fault in (
        *(CHANNEL_UNKNOWN, SCOPE_NOT_PERMITTED, FEATURE_NOT_ENABLED),
        *(INVALID_PARAMS, METHOD_NOT_FOUND),
    )
)
UNSURE: Final = UPSTREAM_SLOW
"""The fault of what may have been delivered, or not."""

_LONG_ENOUGH: Final = 24
"""Who says so many characters exactly as we said them repeats us."""

_MOST_CHANCES: Final = 3
"""And who says again and again what we said before, however short, as well."""

_AGAIN: Final = Backoff(timedelta(milliseconds=250), timedelta(seconds=5))


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a connector may take, and how often it is tried."""

    within: timedelta = timedelta(seconds=30)
    tries: int = 4
    again: Backoff = _AGAIN
    # How long our own words are known by themselves.
    echo_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Words:
    """What is to be said, in which conversation; `id` names this saying for good."""

    id: str
    conversation: str
    content: Content
    is_streamed: bool = False


@dataclass(slots=True)
class _Uttered:
    text: str
    at: float
    message: str | None = None


type Hide = Callable[[str], str]


class Publishing:
    """Who brings words to channels."""

    MOST_REMEMBERED: Final = 256
    MOST_CHANNELS: Final = 10_000

    def __init__(self, channels: Channels, hide: Hide, pace: Pace | None = None) -> None:
        self._channels = channels
        self._hide = hide
        self._pace = pace or Pace()
        self._uttered: dict[tuple[str, str], deque[_Uttered]] = {}
        self._echoed: dict[tuple[str, str], tuple[int, float]] = {}

    async def moderated(self, content: Content) -> Content:
        """Without secrets; what is long is looked through beside everybody else's work."""
        if sum(block.size for block in content) > LONG:
            return await asyncio.to_thread(self._moderated, content)
        return self._moderated(content)

    def _moderated(self, content: Content) -> Content:
        return tuple(self._block(block) for block in content)

    def _block(self, block: Block) -> Block:
        return with_text(block, text=self._hide(block.text), uri=self._hide(block.uri))

    async def publish(self, place: Place, words: Words, route: Route | None = None) -> str:
        """The message's id there, where the connector gives one. Raises MalformedMessage and
        Unavailable where it was not delivered, the latter as UNSURE where it may be."""
        route = route or Route(place.server)
        words = replace(words, content=await self.moderated(words.content))
        uttered = self._utter(place, words)
        try:
            uttered.message = await self._tried(place, words, route)
        except MalformedMessage:
            self._unsaid(place, uttered)
            raise
        except Unavailable as error:
            if error.fault is not UNSURE:
                self._unsaid(place, uttered)
            raise
        finally:
            self._noted(place, words, uttered)
        return uttered.message

    async def _tried(self, place: Place, words: Words, route: Route) -> str:
        failed: MalformedMessage | Unavailable = Unavailable("it was never tried")
        for tried in range(1, self._pace.tries + 1):
            try:
                return await self._try(place, words, route)
            except MalformedMessage as error:
                if error.fault.code in _FINAL:
                    raise
                failed = error
            except Unavailable as error:
                if error.fault is UNSURE and not route.repeats:
                    raise
                failed = error
            if tried < self._pace.tries:
                pause = self._pace.again.delay(tried, random.random())  # noqa: S311  # no secret
                await asyncio.sleep(pause.total_seconds())
        if isinstance(failed, Unavailable):
            raise failed
        raise Unavailable(str(failed), UPSTREAM_FAILED)

    async def _try(self, place: Place, words: Words, route: Route) -> str:
        # Whether it may go there is seen each time: its server may come back between two tries.
        hosted, channel = self._channels.outlet(place)
        params = wire.publication(
            *(words.conversation, channel.id, words.content),
            is_streamed=words.is_streamed,
            id=words.id,
        )
        if not route.acknowledges:
            await hosted.tell(wire.PUBLISH, params)
            return ""
        answered = await _asked(lambda: self._acknowledged(hosted, params), place)
        if not answered.delivered:
            raise Unavailable(f"{place.shown!r:.200}: it was not delivered", UPSTREAM_FAILED)
        return answered.message

    async def _acknowledged(self, hosted: Hosted, params: dict[str, object]) -> Published:
        return wire.published_in(await hosted.ask(wire.PUBLISH, params, self._pace.within))

    def _noted(self, place: Place, words: Words, uttered: _Uttered) -> None:
        is_said = uttered.message is not None
        deed = Deed(
            place.server,
            wire.PUBLISH,
            outcome="ok" if is_said else "failed",
            by="system:gateway",
            details={
                "channel": place.id,
                "conversation": words.conversation,
                "publication": words.id,
                "message": uttered.message or "",
            },
        )
        noting = self._channels.hosting.noting
        noting.note(Type.FEATURE_USED, deed, Result.SUCCESS if is_said else Result.FAILURE)

    # What comes back

    def _utter(self, place: Place, words: Words) -> _Uttered:
        """Remember what is said from the moment on at which it may come back."""
        key = (place.server, place.id)
        kept = self._uttered.setdefault(key, deque(maxlen=self.MOST_REMEMBERED))
        while len(self._uttered) > self.MOST_CHANNELS:
            del self._uttered[next(iter(self._uttered))]
        kept.append(_Uttered(text_of(words.content).strip(), asyncio.get_running_loop().time()))
        return kept[-1]

    def _unsaid(self, place: Place, uttered: _Uttered) -> None:
        kept = self._uttered.get((place.server, place.id))
        if kept is not None and uttered in kept:
            kept.remove(uttered)

    def is_echo(self, place: Place, message: str, content: Content) -> bool:
        """Whether this is what we said there ourselves."""
        key = (place.server, place.id)
        kept, now = self._uttered.get(key), asyncio.get_running_loop().time()
        while kept and now - kept[0].at > self._pace.echo_seconds:
            kept.popleft()
        if not kept:
            self._uttered.pop(key, None)
            return False
        text = text_of(content).strip()
        same = next((each for each in kept if message and each.message == message), None)
        found = same or next((each for each in kept if each.text == text), None)
        if found is None:
            return False
        seen = self._seen(key, now)
        if same is not None or len(text) >= _LONG_ENOUGH or seen > _MOST_CHANCES:
            return True
        # A short text may well be somebody's own: what was acknowledged comes back by its id, and
        # of what was not, one.
        if not found.message:
            kept.remove(found)
        return not found.message

    def _seen(self, key: tuple[str, str], now: float) -> int:
        """Count what came back of a channel lately, whether or not it was somebody's own."""
        seen, since = self._echoed.get(key, (0, now))
        if now - since > self._pace.echo_seconds:
            seen, since = 0, now
        self._echoed[key] = (seen + 1, since)
        return seen + 1


async def _asked[T](ask: Callable[[], Awaitable[T]], place: Place) -> T:
    """What was asked and not answered may have been done."""
    try:
        return await ask()
    except Unavailable as error:
        because = f"{place.shown!r:.200}: nobody knows whether it was delivered: {error}"
        raise Unavailable(because[:500], UNSURE) from None
