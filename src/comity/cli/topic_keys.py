"""What a terminal sends, read as keys; and the line that somebody types with them.

Rule 1: what is pasted is text, whatever it holds: no key is ever read from it.
Rule 2: what is typed holds only what can be seen, and line breaks.
"""

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from rich.cells import cell_len

LONGEST_LINE: Final = 16_000
LONGEST_PASTE: Final = 64_000
MOST_REMEMBERED: Final = 100
LINE_BREAK: Final = "⏎"
_LONGEST_SEQUENCE: Final = 32
_PASTE, _PASTED = "\x1b[200~", "\x1b[201~"
_SEQUENCE: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.)", re.DOTALL)
_PLAIN: Final = re.compile(r"[^\x00-\x1f\x7f]+")


class Key(Enum):
    ENTER = auto()
    TAB = auto()
    BACK_TAB = auto()
    ESCAPE = auto()
    UP = auto()
    DOWN = auto()
    LEFT = auto()
    RIGHT = auto()
    HOME = auto()
    END = auto()
    BACKSPACE = auto()
    DELETE = auto()
    ERASE_WORD = auto()
    ERASE_LINE = auto()
    ERASE_REST = auto()
    END_OF_INPUT = auto()
    REDRAW = auto()


@dataclass(frozen=True, slots=True)
class Typed:
    """Characters; those of one paste are together."""

    text: str
    is_pasted: bool = False


type Stroke = Key | Typed

_CONTROLS: Final = {
    "\r": Key.ENTER,
    "\n": Key.ENTER,
    "\t": Key.TAB,
    "\x7f": Key.BACKSPACE,
    "\b": Key.BACKSPACE,
    "\x01": Key.HOME,
    "\x05": Key.END,
    "\x02": Key.LEFT,
    "\x06": Key.RIGHT,
    "\x10": Key.UP,
    "\x0e": Key.DOWN,
    "\x0b": Key.ERASE_REST,
    "\x15": Key.ERASE_LINE,
    "\x17": Key.ERASE_WORD,
    "\x04": Key.END_OF_INPUT,
    "\x0c": Key.REDRAW,
}
_ENDS: Final = {
    "A": Key.UP,
    "B": Key.DOWN,
    "C": Key.RIGHT,
    "D": Key.LEFT,
    "H": Key.HOME,
    "F": Key.END,
    "Z": Key.BACK_TAB,
    "1~": Key.HOME,
    "7~": Key.HOME,
    "4~": Key.END,
    "8~": Key.END,
    "3~": Key.DELETE,
}


class Strokes:
    """The bytes of a terminal as they come, and what is not whole yet."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._pasted: str | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a key may be Escape, or the beginning of another."""
        return self._pasted is None and self._rest.startswith("\x1b")

    def feed(self, data: bytes) -> list[Stroke]:
        self._rest += self._decoder.decode(data)
        found: list[Stroke] = []
        while self._rest:
            stroke = self._next() if self._pasted is None else self._paste()
            if stroke is None:
                break
            found += stroke
        return found

    def give_up(self) -> list[Stroke]:
        """Nothing followed: it was Escape alone."""
        self._rest = ""
        return [Key.ESCAPE]

    def _next(self) -> list[Stroke] | None:
        """The next strokes, perhaps none; None where more has to come first."""
        if self._rest.startswith(_PASTE):
            self._take(len(_PASTE))
            self._pasted = ""
            return []
        if self._rest.startswith("\x1b"):
            return self._sequence()
        plain = _PLAIN.match(self._rest)
        if plain is not None:
            return [Typed(self._take(plain.end()))]
        known = _CONTROLS.get(self._take(1))
        return [] if known is None else [known]

    def _sequence(self) -> list[Stroke] | None:
        whole = _SEQUENCE.match(self._rest)
        if whole is not None:
            known = _ENDS.get(self._take(whole.end())[2:])
            return [] if known is None else [known]
        if len(self._rest) == 1 or (self._rest[1] in "[O" and len(self._rest) < _LONGEST_SEQUENCE):
            return None
        # A letter typed with Alt, or right after Escape: it means neither of the two alone.
        self._take(2)
        return [Key.ESCAPE]

    def _paste(self) -> list[Stroke] | None:
        text, end, rest = self._rest.partition(_PASTED)
        if not end:
            # The end itself may have come in part.
            kept = len(self._rest) - len(_PASTED)
            if kept > 0:
                self._pasted = f"{self._pasted}{self._take(kept)}"[:LONGEST_PASTE]
            return None
        whole, self._pasted, self._rest = f"{self._pasted}{text}"[:LONGEST_PASTE], None, rest
        return [Typed(whole, is_pasted=True)]

    def _take(self, count: int) -> str:
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken


class LineEditor:
    """One line as it is typed, and those that were typed before it."""

    def __init__(self) -> None:
        self.text = ""
        self.place = 0
        self._before: list[str] = []
        self._looked_at = 0
        self._unsent = ""

    def press(self, stroke: Stroke) -> str | None:
        """The line, once it is whole."""
        if isinstance(stroke, Typed):
            self._insert(stroke.text)
        elif stroke is Key.ENTER:
            return self._done()
        elif stroke in (Key.UP, Key.DOWN):
            self._look(-1 if stroke is Key.UP else 1)
        elif stroke in _MOVES:
            self.place = min(max(_MOVES[stroke](self), 0), len(self.text))
        elif stroke in _ERASES:
            first, last = _ERASES[stroke](self)
            self.text = self.text[: max(first, 0)] + self.text[last:]
            self.place = max(first, 0)
        return None

    def put(self, text: str) -> None:
        """Let this stand there instead."""
        self.text, self.place = text, len(text)

    def before_word(self) -> int:
        return self.text[: self.place].rstrip().rfind(" ") + 1

    def shown(self, width: int) -> tuple[str, str, str]:
        """What stands before, under and after the cursor, as much as fits around it."""
        text = self.text.replace("\n", LINE_BREAK)
        before, under, after = text[: self.place][-width:], text[self.place :][:1] or " ", ""
        while cell_len(before) > max(width - cell_len(under), 0):
            before = before[1:]
        for each in text[self.place + 1 :]:
            if cell_len(before + under + after + each) > width:
                break
            after += each
        return before, under, after

    def _insert(self, text: str) -> None:
        seen = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", " ")
        kept = "".join(each for each in seen if each == "\n" or each.isprintable())
        kept = kept[: LONGEST_LINE - len(self.text)]
        self.text = self.text[: self.place] + kept + self.text[self.place :]
        self.place += len(kept)

    def _done(self) -> str:
        line = self.text
        if line.strip() and self._before[-1:] != [line]:
            self._before = [*self._before, line][-MOST_REMEMBERED:]
        self._looked_at, self._unsent = len(self._before), ""
        self.put("")
        return line

    def _look(self, way: int) -> None:
        """At a line that was typed earlier, or back to the one that is not sent yet."""
        if self._looked_at == len(self._before):
            self._unsent = self.text
        self._looked_at = min(max(self._looked_at + way, 0), len(self._before))
        at_last = self._looked_at == len(self._before)
        self.put(self._unsent if at_last else self._before[self._looked_at])


_MOVES: Final[dict[Stroke, Callable[[LineEditor], int]]] = {
    Key.LEFT: lambda line: line.place - 1,
    Key.RIGHT: lambda line: line.place + 1,
    Key.HOME: lambda _: 0,
    Key.END: lambda line: len(line.text),
}
_ERASES: Final[dict[Stroke, Callable[[LineEditor], tuple[int, int]]]] = {
    Key.BACKSPACE: lambda line: (line.place - 1, line.place),
    Key.DELETE: lambda line: (line.place, line.place + 1),
    Key.ERASE_WORD: lambda line: (line.before_word(), line.place),
    Key.ERASE_LINE: lambda line: (0, line.place),
    Key.ERASE_REST: lambda line: (line.place, len(line.text)),
}
