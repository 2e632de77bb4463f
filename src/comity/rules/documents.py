"""A document that a person wrote, read so that every mistake is named by where it stands.

A mistake never quotes the value: it may be a secret in the wrong place.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

from comity.wire.errors import Misconfigured

_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?) ?(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST = timedelta(days=366)


@dataclass(frozen=True, slots=True, repr=False)
class Written:
    """One value of the document: what it is, in which file, and under which keys."""

    value: object
    file: str
    keys: str = ""

    def wrong(self, problem: str) -> Misconfigured:
        return Misconfigured(": ".join(filter(None, (self.file, self.keys, problem))))

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

    def items(self) -> list["Written"]:
        value = self.value
        if not isinstance(value, list):
            raise self.wrong("must be a list, in [ ]")
        return [
            Written(each, self.file, f"{self.keys}[{number}]")
            for number, each in enumerate(cast("list[object]", value))
        ]

    def table(self) -> dict[str, "Written"]:
        value = self.value
        if not isinstance(value, dict):
            raise self.wrong("must be a table of names and values")
        table = cast("dict[str, object]", value)
        above = f"{self.keys}." if self.keys else ""
        return {name: Written(each, self.file, above + name) for name, each in table.items()}

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """A misspelt key would otherwise be silently without effect."""
        names = sorted(known)
        for key, entry in self.table().items():
            if key not in names:
                near = difflib.get_close_matches(key, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(names)}"
                raise entry.wrong(f"there is no such key; {hint}")
