"""A document that a person wrote, read so that every mistake is named by where it stands.

A mistake never quotes the value: it may be a secret in the wrong place.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

from comity.rules.positions import Place
from comity.wire.errors import Misconfigured

_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?) ?(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = timedelta(days=366)
_SHOWN_CHARACTERS = 80
# More would bury the first ones, and each costs a search for what was meant.
_SHOWN_STRANGERS = 20
_SHOWN_MISTAKES = 20


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong, where, and what to do about it; as one line that an editor can follow."""

    file: str
    place: Place
    keys: str
    problem: str
    line: int | None = None

    def __str__(self) -> str:
        at = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(filter(None, (at, self.keys, self.problem)))


@dataclass(slots=True)
class Mistakes:
    """All that is wrong, so that it can be put right in one go."""

    found: list[Mistake] = field(default_factory=list[Mistake])

    def __str__(self) -> str:
        """One by itself; of several, each on its line."""
        if len(self.found) == 1:
            return str(self.found[0])
        lines = [f"  {mistake}" for mistake in self.found[:_SHOWN_MISTAKES]]
        if len(self.found) > _SHOWN_MISTAKES:
            lines.append(f"  and {len(self.found) - _SHOWN_MISTAKES} more")
        return "\n".join([f"there are {len(self.found)} mistakes in the configuration", *lines])

    def read[T](self, read: Callable[[], T], otherwise: T) -> T:
        """What `read` gives; or, where that is a mistake, note it and go on with something else."""
        try:
            return read()
        except Misconfigured as problem:
            self.note(problem)
            return otherwise

    def note(self, *problems: Misconfigured) -> None:
        for problem in problems:
            said = problem.args[0]
            self.found += said.found if isinstance(said, Mistakes) else [said]


@dataclass(frozen=True, slots=True, repr=False)
class Written:
    """One value of the document: what it is, in which file, and where in it."""

    value: object
    file: str
    place: Place = ()
    # Where it stands in words, if they say more than the keys: `servers[search]` for `servers[0]`.
    known_as: str = ""

    @property
    def keys(self) -> str:
        return self.known_as or shown(self.place)

    def wrong(self, problem: str) -> Misconfigured:
        return Misconfigured(Mistake(self.file, self.place, self.keys, problem))

    def known(self, name: str) -> "Written":
        """The same, called by its name in what is said about it."""
        return Written(self.value, self.file, self.place, name)

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("must be a text; put it into quotes")
        if "\0" in self.value:
            raise self.wrong("holds a NUL character; remove it")
        return self.value

    def one_of(self, choices: Iterable[str]) -> str:
        said = self.text()
        if said not in choices:
            raise self.wrong(f"must be one of: {', '.join(choices)}")
        return said

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.wrong("must be true or false, without quotes")
        return self.value

    def number(self, at_least: int, at_most: int) -> int:
        value = self.value
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong("must be a whole number, without quotes")
        if not at_least <= value <= at_most:
            raise self.wrong(f"must be between {at_least} and {at_most}")
        return value

    def duration(self) -> timedelta:
        """Seconds, or a number with its unit; never nothing."""
        value, seconds = self.value, -1.0
        if isinstance(value, str) and (found := _DURATION.fullmatch(value)):
            seconds = float(found[1]) * _SECONDS[found[2]]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value
        # Written so that NaN, which TOML allows, is refused too.
        if not 0.001 <= seconds <= _LONGEST.total_seconds():
            raise self.wrong('must be a time of 1ms to 366d, as "500ms", "10s", "5m", "1h", "2d"')
        return timedelta(seconds=seconds)

    def duration_or_never(self) -> timedelta:
        """As `duration`, but 0 is allowed, and means never."""
        never = self.value == "0s" or (self.value == 0 and not isinstance(self.value, bool))
        return timedelta() if never else self.duration()

    def items(self) -> list["Written"]:
        value = self.value
        if not isinstance(value, list):
            raise self.wrong("must be a list, in [ ]")
        return [
            Written(each, self.file, (*self.place, number), f"{self.keys}[{number}]")
            for number, each in enumerate(cast("list[object]", value))
        ]

    def table(self) -> dict[str, "Written"]:
        value = self.value
        if not isinstance(value, dict):
            raise self.wrong("must be a table of names and values")
        table = cast("dict[str, object]", value)
        above = f"{self.keys}." if self.keys else ""
        return {
            name: Written(each, self.file, (*self.place, name), above + shown((name,)))
            for name, each in table.items()
        }

    def unknown(self, known: Iterable[str]) -> list[Misconfigured]:
        """Every key that nobody reads: misspelt, it would otherwise be silently without effect."""
        names = sorted(known)
        strange = [entry for key, entry in self.table().items() if key not in names]
        return [each.unknown_among(names) for each in strange[:_SHOWN_STRANGERS]]

    def unknown_among(self, known: Iterable[str]) -> Misconfigured:
        names = sorted(known)
        near = nearest(str(self.place[-1]), names)
        hint = f"did you mean {near!r}?" if near else f"known are: {', '.join(names)}"
        return self.wrong(f"there is no such key; {hint}")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one that was probably meant."""
    # By small letters: `mcpservers` is one slip and not three.
    by_letters = {each.casefold(): each for each in names}
    found = difflib.get_close_matches(name[:_SHOWN_CHARACTERS].casefold(), by_letters, n=1)
    return by_letters[found[0]] if found else None


def shown(place: Place) -> str:
    """The keys as a person would write them; what could upset a terminal is escaped."""
    text = ""
    for each in place:
        if isinstance(each, int):
            text += f"[{each}]"
        else:
            plain = each.isprintable() and each.strip() != ""
            name = each if plain else json.dumps(each)
            text += ("." if text else "") + name[:_SHOWN_CHARACTERS]
    return text
