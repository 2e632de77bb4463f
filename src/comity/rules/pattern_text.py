"""A text that a regular expression describes, made without ever matching anything.

The pattern is a stranger's: it is read once from left to right, within bounds of length, depth and
what is written. What is not understood is passed over; whoever uses the text tries it first.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

LONGEST_PATTERN: Final = 1024
LONGEST_TEXT: Final = 512
DEEPEST: Final = 16

_CLASSES: Final = {
    "d": "0123456789",
    "w": "abcdefghijklmnopqrstuvwxyz0123456789_",
    "s": " ",
    "D": "ab",
    "W": "-.",
    "S": "ab",
}
_LITERALS: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0"}
_NOWHERE: Final = frozenset("bBAZz")
_ANYTHING: Final = "abcdefghijklmnopqrstuvwxyz"
_CANDIDATES: Final = "a0A_-. bcdxyz129BXZ@/:é"
_PLAIN_REPEATS: Final = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def texts_like(pattern: str) -> Iterator[str]:
    """Texts for a pattern, the plainest first; none for one that is too long."""
    if len(pattern) > LONGEST_PATTERN:
        return
    seen: set[str] = set()
    for extra in (1, 0, 2, 4, 8, 16, 32, 64, 128, 256):
        text = _Reading(pattern, extra).text()
        if text is not None and text not in seen:
            seen.add(text)
            yield text


@dataclass(slots=True)
class _Reading:
    """One pass over a pattern; whatever may be repeated is, about `extra` times."""

    pattern: str
    extra: int
    place: int = 0
    written: int = 0

    def text(self) -> str | None:
        made = self._choice(0)
        return made if self.place >= len(self.pattern) and len(made) <= LONGEST_TEXT else None

    def _choice(self, depth: int) -> str:
        """The first of the alternatives; the others are read and dropped."""
        made = self._row(depth)
        while self._take("|"):
            self._row(depth)
        return made

    def _row(self, depth: int) -> str:
        made = ""
        while self.place < len(self.pattern) and self.pattern[self.place] not in "|)":
            piece = self._piece(depth)
            least, most = self._repeats()
            times = max(least, min(self.extra, least + self.extra if most is None else most))
            room = LONGEST_TEXT + 1 - len(made)
            for _ in range(min(times, room) if piece else 0):
                made += piece[:room]
            made = made[: LONGEST_TEXT + 1]
        return made

    def _piece(self, depth: int) -> str:
        found = self.pattern[self.place]
        self.place += 1
        if found == "(":
            return self._group(depth + 1)
        if found == "[":
            return self._one_of()
        if found == "\\":
            return self._escape()[:1]
        if found in "^$":
            return ""
        return "a" if found == "." else found

    def _group(self, depth: int) -> str:
        if depth > DEEPEST:
            self.place = len(self.pattern) + 1
            return ""
        emits = True
        if self._take("?"):
            emits = self._is_written()
        made = self._choice(depth)
        if not self._take(")"):
            self.place = len(self.pattern) + 1
        return made if emits else ""

    def _is_written(self) -> bool:
        """Whether a group stands for text, or only looks around; its mark is passed over."""
        rest = self.pattern[self.place : self.place + 2]
        if rest[:1] in ("=", "!") or rest in ("<=", "<!"):
            self.place += 1 if rest[0] in "=!" else 2
            return False
        end = ">" if rest[:1] in ("<", "P") else ":"
        found = self.pattern.find(end, self.place)
        self.place = len(self.pattern) + 1 if found < 0 else found + 1
        return True

    def _one_of(self) -> str:
        """A character of a class; of one that is negated, one that it does not name."""
        negated = self._take("^")
        named = ""
        first = True
        while self.place < len(self.pattern) and (first or self.pattern[self.place] != "]"):
            named += self._member()
            first = False
        self._take("]")
        if not negated:
            return named[:1]
        return next((each for each in _CANDIDATES if each not in named), "")

    def _member(self) -> str:
        low = self._character()
        if self.pattern[self.place : self.place + 1] != "-" or self.pattern[
            self.place + 1 : self.place + 2
        ] in ("]", ""):
            return low
        self.place += 1
        high = self._character()
        if len(low) != 1 or len(high) != 1 or not ord(low) <= ord(high):
            return low + high
        return "".join(chr(code) for code in range(ord(low), min(ord(high), ord(low) + 255) + 1))

    def _character(self) -> str:
        found = self.pattern[self.place]
        self.place += 1
        return self._escape() if found == "\\" else found

    def _escape(self) -> str:
        if self.place >= len(self.pattern):
            return ""
        found = self.pattern[self.place]
        self.place += 1
        if found in "ux":
            return self._coded(4 if found == "u" else 2)
        if found in "pP" and self._take("{"):
            self.place = (self.pattern.find("}", self.place) + 1) or len(self.pattern) + 1
            return _ANYTHING
        if found in _NOWHERE:
            return ""
        return _CLASSES.get(found) or _LITERALS.get(found, found)

    def _coded(self, digits: int) -> str:
        said = self.pattern[self.place : self.place + digits]
        self.place += len(said)
        try:
            code = int(said, 16)
        except ValueError:
            return ""
        return "" if 0xD800 <= code <= 0xDFFF else chr(code)

    def _repeats(self) -> tuple[int, int | None]:
        mark = self.pattern[self.place : self.place + 1]
        counted: tuple[int, int | None] | None = _PLAIN_REPEATS.get(mark)
        if counted is not None:
            self.place += 1
        elif mark == "{":
            counted = self._counted()
        if counted is None:
            return 1, 1
        # Whether it is greedy or not, the text is the same.
        _ = self._take("?") or self._take("+")
        return counted

    def _counted(self) -> tuple[int, int | None] | None:
        end = self.pattern.find("}", self.place)
        least, comma, most = self.pattern[self.place + 1 : max(end, 0)].partition(",")
        if end < 0 or not (least.isdecimal() and len(least) <= 6 and len(most) <= 6):
            return None
        if most and not most.isdecimal():
            return None
        self.place = end + 1
        low = int(least)
        return low, (low if not comma else int(most) if most else None)

    def _take(self, expected: str) -> bool:
        if self.pattern[self.place : self.place + 1] != expected:
            return False
        self.place += 1
        return True
