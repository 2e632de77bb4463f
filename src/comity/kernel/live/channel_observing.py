"""Who watches what is said: moderated words while they come and when all are there. (MCPL §14.3)

Rule 1: it is advice, never delivery: who is told so delivers nothing. (D-71)
Rule 2: the server of a channel is told, and others only where they were told of it by name.
Rule 3: a secret is not shown for being cut in two.
Rule 4: who hears too slowly is told less; nobody waits for it.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from comity.kernel.chores import Chores
from comity.kernel.live.channels import enabled_sets
from comity.kernel.live.hosting import Hosted, Hosting
from comity.kernel.live.parts import Saying
from comity.rules import channels as rules
from comity.rules.channels import Place, Veil
from comity.wire import channels as wire
from comity.wire.contents import Content, said, to_wire
from comity.wire.features import Use

log = logging.getLogger(__name__)

MOST_STREAMS: Final = 1_000
MOST_WAITING: Final = 256
"""So many words of ours may be on their way to one server."""


@dataclass(slots=True)
class _Stream:
    veil: Veil
    index: int = 0
    has_begun: bool = False


class Observing:
    """Tells observers of outgoing words."""

    def __init__(self, hosting: Hosting, hide: Callable[[str], str]) -> None:
        self._hosting = hosting
        self._hide = hide
        self._streams: OrderedDict[tuple[str, str], _Stream] = OrderedDict()
        self._chores: dict[str, Chores] = {}

    def stop(self) -> None:
        for each in self._chores.values():
            each.cancel()

    def piece(self, saying: Saying, place: Place, delta: str) -> None:
        watchers = self._watchers(place)
        if not watchers:
            return
        stream = self._stream(saying, place)
        self._tell_piece(saying, place, stream, stream.veil.add(delta), watchers)

    def complete(self, saying: Saying, place: Place, moderated: Content) -> None:
        """All is there: what was held back, and then the whole."""
        watchers = self._watchers(place)
        stream = self._streams.pop((saying.inference, str(place)), None)
        if stream is not None:
            self._tell_piece(saying, place, stream, stream.veil.end(), watchers)
        for each in watchers:
            told = {**_named(saying, place, each), "content": to_wire(moderated)}
            self._tell(each, wire.OUTGOING_COMPLETE, told)

    def has_streamed(self, saying: Saying, place: Place) -> bool:
        """Whether the place's own server was told pieces of it before. (D-73)"""
        stream = self._streams.get((saying.inference, str(place)))
        is_seen = any(each.server == place.server for each in self._watchers(place))
        return stream is not None and stream.has_begun and is_seen

    def think(self, saying: Saying, text: str) -> None:
        """Let those see it who were granted that by name; never with secrets."""
        content = to_wire(said(self._hide(text)))
        for each in self._hosting.having(Use.OBSERVE):
            named, scopes = each.policy.enabled, each.policy.scopes
            if rules.sees_thoughts(enabled_sets(each), named, scopes):
                told: dict[str, object] = {
                    "inferenceId": saying.inference,
                    "conversationId": saying.conversation,
                    "channelId": wire.THINKING,
                    "content": content,
                }
                self._tell(each, wire.OUTGOING_COMPLETE, told)

    def _watchers(self, place: Place) -> list[Hosted]:
        return [
            each
            for each in self._hosting.having(Use.OBSERVE)
            if rules.sees(place, each.server, enabled_sets(each), each.policy.scopes)
        ]

    def _stream(self, saying: Saying, place: Place) -> _Stream:
        key = (saying.inference, str(place))
        if key not in self._streams:
            self._streams[key] = _Stream(Veil(self._hide))
            if len(self._streams) > MOST_STREAMS:
                self._streams.popitem(last=False)
        return self._streams[key]

    def _tell_piece(
        self,
        saying: Saying,
        place: Place,
        stream: _Stream,
        shown: str,
        watchers: Iterable[Hosted],
    ) -> None:
        if not shown:
            return
        stream.has_begun = True
        for each in watchers:
            named = _named(saying, place, each)
            self._tell(each, wire.OUTGOING_CHUNK, {**named, "index": stream.index, "delta": shown})
        stream.index += 1

    def _tell(self, hosted: Hosted, method: str, told: dict[str, object]) -> None:
        chores = self._chores.setdefault(hosted.server, Chores("observers"))
        if len(chores) >= MOST_WAITING:
            log.info("server %r hears too slowly to be told %s", hosted.server, method)
            return
        chores.start(hosted.tell(method, told), at_once=True)


def _named(saying: Saying, place: Place, watcher: Hosted) -> dict[str, object]:
    """An id alone is understood by its own server only. (D-72)"""
    is_own = place.server == watcher.server
    return {
        "inferenceId": saying.inference,
        "conversationId": saying.conversation,
        "channelId": place.id if is_own else place.shown,
    }
