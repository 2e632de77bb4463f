"""The options of one command that do no harm, and how a command line is held against them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_MANY: Final = 100_000


def words(*texts: str) -> frozenset[str]:
    """A set of words, written as they are read."""
    return frozenset(word for text in texts for word in text.split())


def named(option: str) -> str:
    """An option without its value, which may be a secret."""
    return option.partition("=")[0][:40] if option.startswith("--") else option[:2]


@dataclass(frozen=True, slots=True)
class Options:
    """`plain` letters stand alone, `valued` ones take a value; long options are spelt out.

    `numbers` is whether `-5` is one, `most` how many operands there may be.
    """

    plain: str = ""
    valued: str = ""
    long: frozenset[str] = frozenset()
    numbers: bool = False
    most: int = _MANY

    def operands(self, line: Sequence[str]) -> list[str] | str:
        """What is left beside the options; or, as a text, what is not allowed."""
        operands: list[str] = []
        waiting = iter(line)
        for word in waiting:
            if word == "--":
                operands += waiting
            elif word == "-" or not word.startswith("-"):
                operands.append(word)
            else:
                takes_next = self._takes_next(word)
                if takes_next is None:
                    return f"the option {named(word)!r} is not among those that are allowed"
                if takes_next:
                    next(waiting, None)
        if len(operands) > self.most:
            return f"more than {self.most} operands are not allowed"
        return operands

    def _takes_next(self, word: str) -> bool | None:
        """Whether the next word is the value of this one; None where it is not allowed."""
        if word.startswith("--"):
            return False if word[2:].partition("=")[0] in self.long else None
        letters = word[1:]
        if self.numbers and letters.isascii() and letters.isdigit():
            return False
        for place, letter in enumerate(letters):
            if letter in self.valued:
                return place == len(letters) - 1
            if letter not in self.plain:
                return None
        return False
