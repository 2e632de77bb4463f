"""Words of turns while they come: shown as far as they may be, and to whoever follows them.

Rule 1: what may still be changed, because somebody looks at it first, is shown in the end.
Rule 2: what was shown is taken back by nobody; where the end turns out otherwise, no more is shown.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from comity.kernel.live.turn_steps import BETWEEN
from comity.ports.models import Piece
from comity.rules import turns

MOST_FOLLOWED: Final = 1_000
_LEAST: Final = 60

type Show = Callable[[int, str], None]
"""Hears the pieces, each with its number."""


class Words:
    """What one turn has said so far."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        self.shown = ""
        self.is_over = False
        self.show: list[Show] = []
        # Whether it is shown before its end.
        self.is_open = True
        self._hide = hide
        self._text = ""
        self._looked = 0
        self._pieces = 0
        self._stirred = asyncio.Event()

    def heard(self, piece: Piece) -> None:
        if piece.is_thinking or not self.is_open:
            return
        self._text += piece.text
        # Ever more at once: to look through all of it for every word would take ever longer.
        if len(self._text) - self._looked >= max(_LEAST, len(self._text) // 20):
            self._looked = len(self._text)
            self._tell(turns.presentable(self._text, self.shown, self._hide))

    def pause(self) -> None:
        """The model uses tools; what it says then stands apart."""
        if self._text:
            self._text += BETWEEN

    def finish(self, text: str) -> None:
        """This is what goes out; the rest of it is shown."""
        if text.startswith(self.shown):
            self._tell(text[len(self.shown) :])
        self.end()

    def end(self) -> None:
        self.is_over = True
        self._stirred.set()

    async def more_than(self, known: int, seconds: float) -> None:
        """Until more is shown than that, or it is over; but not longer."""
        try:
            async with asyncio.timeout(seconds):
                while len(self.shown) <= known and not self.is_over:
                    self._stirred.clear()
                    await self._stirred.wait()
        except TimeoutError:
            pass

    async def over(self) -> None:
        """Until it has ended, in whatever way."""
        while not self.is_over:
            self._stirred.clear()
            await self._stirred.wait()

    def _tell(self, delta: str) -> None:
        if not delta:
            return
        self.shown += delta
        for show in self.show:
            show(self._pieces, delta)
        self._pieces += 1
        self._stirred.set()


class Followed:
    """The words of the last turns of this node, for those who follow them."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        self._hide = hide
        self._words: dict[str, Words] = {}

    def of(self, inference: str) -> Words:
        """Those of a turn that is taken here, or about to be."""
        found = self._words.get(inference)
        if found is None or found.is_over:
            found = self._words[inference] = Words(self._hide)
        while len(self._words) > MOST_FOLLOWED:
            del self._words[next(iter(self._words))]
        return found

    def known(self, inference: str) -> Words | None:
        return self._words.get(inference)
