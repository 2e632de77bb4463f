"""On which line of a JSON or TOML text each key stands, so that a mistake can be pointed at.

The parsers of the standard library tell no positions of what they have read. This finds them in a
text that was read already, so it judges nothing: of a text that is neither it finds what it can.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

type Place = tuple[str | int, ...]
"""The names of tables and numbers of list items that lead to a value."""

# Deeper than any configuration; what lies below is found at the line of what holds it.
DEEPEST: Final = 24

# Every string is taken whole, also one without an end: nothing is looked at twice.
_JSON: Final = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
_TOML: Final = re.compile(
    r"""
    \#[^\n]*                                        # a comment
    | \"{3} (?: [^"\\] | \\. | "{1,2}(?!") )*+ (?: "{3,5} | \\?\Z )
    | '{3} (?: [^'] | '{1,2}(?!') )*+ (?: '{3,5} | \Z )
    | " (?: [^"\\\n] | \\[^\n] )*+ "? | ' [^'\n]*+ '?
    | [\[\]{},=.\n]
    | [^\s\[\]{},=.\#"']+
    """,
    re.DOTALL | re.VERBOSE,
)
_STRING_OR_COMMENT: Final = re.compile(
    r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL
)
_STRING_OR_LAST_COMMA: Final = re.compile(
    r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))|,(?=\s*+[}\]])', re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Positions:
    """The line of every key and list item, and of every key that stood in its table before."""

    lines: Mapping[Place, int]
    repeated: Mapping[Place, int]

    def line_of(self, place: Place) -> int | None:
        """The line where it stands, or else where the nearest thing around it does."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place)


def positions_in_json(text: str) -> Positions:
    scan = _Scan(":", json.loads)
    for piece, line in _pieces(_JSON, text):
        scan.take(piece, line)
    return scan.positions


def positions_in_toml(text: str) -> Positions:
    scan = _TomlScan("=", lambda piece: tomllib.loads(f"name = {piece}")["name"])
    for piece, line in _pieces(_TOML, text):
        scan.take(piece, line)
    return scan.positions


def strict_json(text: str) -> str:
    """JSON as editors write it, without its comments and last commas; every line stays one."""
    for pattern in (_STRING_OR_COMMENT, _STRING_OR_LAST_COMMA):
        text = pattern.sub(lambda found: found[1] or re.sub(r"[^\n]", " ", found[0]), text)
    return text


def _pieces(pattern: re.Pattern[str], text: str) -> Iterator[tuple[str, int]]:
    line, end = 1, 0
    for found in pattern.finditer(text):
        line += text.count("\n", end, found.start())
        end = found.start()
        yield found.group(), line


@dataclass(slots=True)
class _Open:
    """A table or list whose end was not seen yet, and what is being read of it."""

    place: Place
    is_list: bool = False
    number: int = 0
    names: list[str] = field(default_factory=list[str])
    line: int = 0
    at_value: bool = False

    @property
    def inner(self) -> Place:
        return self.place + ((self.number,) if self.is_list else tuple(self.names))

    def go_on(self) -> None:
        """To the next item, or the next key."""
        self.number += 1
        self.names, self.at_value = [], False


class _Scan:
    """Reads pieces one by one and remembers where the keys among them stood."""

    def __init__(self, assign: str, unquote: Callable[[str], object]) -> None:
        self._assign = assign
        self._unquote = unquote
        self._lines: dict[Place, int] = {}
        self._repeated: dict[Place, int] = {}
        # The whole document is a value, of a table that has no name.
        self._opens = [_Open((), at_value=True)]

    @property
    def positions(self) -> Positions:
        return Positions(self._lines, self._repeated)

    def take(self, piece: str, line: int) -> None:
        top = self._opens[-1]
        if piece in ("}", "]"):
            self._close()
        elif piece == ",":
            top.go_on()
        elif piece == self._assign and not top.is_list:
            self._assigned(top)
        elif top.is_list or top.at_value:
            self._value(top, piece, line)
        elif piece != ".":
            top.names.append(self._name(piece))
            top.line = line

    def _value(self, top: _Open, piece: str, line: int) -> None:
        if top.is_list and not top.at_value:
            top.at_value = True
            self._lines.setdefault(top.inner, line)
        if piece in ("{", "["):
            place = top.inner if len(top.inner) < DEEPEST else top.place
            self._opens.append(_Open(place, is_list=piece == "["))

    def _assigned(self, top: _Open) -> None:
        if top.at_value or not top.names:
            return
        top.at_value = True
        if top.inner in self._lines:
            self._repeated.setdefault(top.inner, top.line)
        self._remember(top.place, top.names, top.line)

    def _remember(self, place: Place, names: list[str], line: int) -> None:
        for name in names[:DEEPEST]:
            place = (*place, name)
            self._lines.setdefault(place, line)

    def _close(self) -> None:
        if len(self._opens) > 1:
            self._opens.pop()

    def _name(self, piece: str) -> str:
        if piece[0] in "\"'":
            try:
                return str(self._unquote(piece))
            except ValueError:
                pass
        return piece


class _TomlScan(_Scan):
    """TOML: lines end a pair, and headers say which table the next ones belong to."""

    def __init__(self, assign: str, unquote: Callable[[str], object]) -> None:
        super().__init__(assign, unquote)
        self._opens = [_Open(())]
        self._header: list[str] | None = None
        self._is_item = False
        self._items: dict[Place, int] = {}

    def take(self, piece: str, line: int) -> None:
        top = self._opens[-1]
        at_statement = len(self._opens) == 1 and not top.at_value and not top.names
        if piece == "\n":
            self._header = None
            if len(self._opens) == 1:
                top.go_on()
        elif piece.startswith("#"):
            pass
        elif self._header is not None:
            self._in_header(self._header, piece, line)
        elif piece == "[" and at_statement:
            self._header, self._is_item = [], False
        else:
            super().take(piece, line)

    def _in_header(self, header: list[str], piece: str, line: int) -> None:
        if piece == "[":
            self._is_item = True
        elif piece != "]":
            header.extend([] if piece == "." else [self._name(piece)])
        elif header:
            self._header = None
            self._enter(header[:DEEPEST], line)

    def _enter(self, names: list[str], line: int) -> None:
        """Into the table of a header; a list of tables on its way is at its latest item."""
        place: Place = ()
        for number, name in enumerate(names, start=1):
            place = (*place, name)
            self._lines.setdefault(place, line)
            if self._is_item and number == len(names):
                self._items[place] = self._items.get(place, -1) + 1
            if place in self._items:
                place = (*place, self._items[place])
                self._lines.setdefault(place, line)
        self._opens = [_Open(place)]
