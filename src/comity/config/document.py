"""A parsed configuration document: each value with its position, and all errors."""

import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, cast

from comity.errors import Misconfigured

type Place = tuple[str | int, ...]
"""The path of a value: the names of tables and the indexes of list items."""

# Deeper than any configuration. Values below this level have the line of their container.
MAX_DEPTH: Final = 24

# Matches every string as a whole, even an unterminated one, so that scanning takes linear time.
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
class SourcePositions:
    """The line of every key and list item, and of every duplicate key."""

    lines: Mapping[Place, int]
    repeated: Mapping[Place, int]

    def line_of(self, place: Place) -> int | None:
        """Return the line of a value, or of its nearest container."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place)


def positions_in_json(text: str) -> SourcePositions:
    scan = _KeyScanner(":", json.loads)
    for piece, line in _pieces(_JSON, text):
        scan.scan_token(piece, line)
    return scan.positions


def positions_in_toml(text: str) -> SourcePositions:
    scan = _TomlScan("=", lambda piece: tomllib.loads(f"name = {piece}")["name"])
    for piece, line in _pieces(_TOML, text):
        scan.scan_token(piece, line)
    return scan.positions


def strict_json(text: str) -> str:
    """Return JSON without comments and trailing commas. The line numbers do not change."""
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
class _OpenContainer:
    """A table or list that is still open, and the scan position in it."""

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
        """Advance to the next item or key."""
        self.number += 1
        self.names, self.at_value = [], False


class _KeyScanner:
    """Reads tokens one by one and records the positions of keys."""

    def __init__(self, assign: str, unquote: Callable[[str], object]) -> None:
        self._assign = assign
        self._unquote = unquote
        self._lines: dict[Place, int] = {}
        self._repeated: dict[Place, int] = {}
        # The whole document is the value of a table without a name.
        self._opens = [_OpenContainer((), at_value=True)]

    @property
    def positions(self) -> SourcePositions:
        return SourcePositions(self._lines, self._repeated)

    def scan_token(self, chunk: str, line: int) -> None:
        top = self._opens[-1]
        if chunk in ("}", "]"):
            self._close()
        elif chunk == ",":
            top.go_on()
        elif chunk == self._assign and not top.is_list:
            self._assigned(top)
        elif top.is_list or top.at_value:
            self._value(top, chunk, line)
        elif chunk != ".":
            top.names.append(self._name(chunk))
            top.line = line

    def _value(self, top: _OpenContainer, chunk: str, line: int) -> None:
        if top.is_list and not top.at_value:
            top.at_value = True
            self._lines.setdefault(top.inner, line)
        if chunk in ("{", "["):
            place = top.inner if len(top.inner) < MAX_DEPTH else top.place
            self._opens.append(_OpenContainer(place, is_list=chunk == "["))

    def _assigned(self, top: _OpenContainer) -> None:
        if top.at_value or not top.names:
            return
        top.at_value = True
        if top.inner in self._lines:
            self._repeated.setdefault(top.inner, top.line)
        self._remember(top.place, top.names, top.line)

    def _remember(self, place: Place, names: list[str], line: int) -> None:
        for name in names[:MAX_DEPTH]:
            place = (*place, name)
            self._lines.setdefault(place, line)

    def _close(self) -> None:
        if len(self._opens) > 1:
            self._opens.pop()

    def _name(self, chunk: str) -> str:
        if chunk[0] in "\"'":
            try:
                return str(self._unquote(chunk))
            except ValueError:
                pass
        return chunk


class _TomlScan(_KeyScanner):
    """Scans TOML, where a newline ends a pair and a header selects the table of the next pairs."""

    def __init__(self, assign: str, unquote: Callable[[str], object]) -> None:
        super().__init__(assign, unquote)
        self._opens = [_OpenContainer(())]
        self._header: list[str] | None = None
        self._is_item = False
        self._items: dict[Place, int] = {}

    def scan_token(self, chunk: str, line: int) -> None:
        top = self._opens[-1]
        at_statement = len(self._opens) == 1 and not top.at_value and not top.names
        if chunk == "\n":
            self._header = None
            if len(self._opens) == 1:
                top.go_on()
        elif chunk.startswith("#"):
            pass
        elif self._header is not None:
            self._in_header(self._header, chunk, line)
        elif chunk == "[" and at_statement:
            self._header, self._is_item = [], False
        else:
            super().scan_token(chunk, line)

    def _in_header(self, header: list[str], chunk: str, line: int) -> None:
        if chunk == "[":
            self._is_item = True
        elif chunk != "]":
            header.extend([] if chunk == "." else [self._name(chunk)])
        elif header:
            self._header = None
            self._enter(header[:MAX_DEPTH], line)

    def _enter(self, names: list[str], line: int) -> None:
        """Enter the table of a header. In a list of tables this is the latest item."""
        place: Place = ()
        for number, name in enumerate(names, start=1):
            place = (*place, name)
            self._lines.setdefault(place, line)
            if self._is_item and number == len(names):
                self._items[place] = self._items.get(place, -1) + 1
            if place in self._items:
                place = (*place, self._items[place])
                self._lines.setdefault(place, line)
        self._opens = [_OpenContainer(place)]


_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?) ?(ms|s|m|h|d)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_MAX_LENGTH = timedelta(days=366)
_SHOWN_CHARACTERS = 80
# More would hide the first ones, and each needs a search for the intended name.
_MAX_SHOWN_UNKNOWN = 20
_MAX_SHOWN_ERRORS = 20


@dataclass(frozen=True, slots=True)
class ConfigError:
    """One error: what is wrong, where, and the remedy, as one line that editors can follow."""

    file: str
    place: Place
    keys: str
    problem: str
    line: int | None = None

    def __str__(self) -> str:
        at = self.file if self.line is None else f"{self.file}:{self.line}"
        return ": ".join(filter(None, (at, self.keys, self.problem)))


@dataclass(slots=True)
class ConfigErrors:
    """Collects all errors, so that a user can correct them at once."""

    found: list[ConfigError] = field(default_factory=list[ConfigError])

    def __str__(self) -> str:
        """Return one error as it is, and several with one line each."""
        if len(self.found) == 1:
            return str(self.found[0])
        lines = [f"  {mistake}" for mistake in self.found[:_MAX_SHOWN_ERRORS]]
        if len(self.found) > _MAX_SHOWN_ERRORS:
            lines.append(f"  and {len(self.found) - _MAX_SHOWN_ERRORS} more")
        return "\n".join([f"there are {len(self.found)} mistakes in the configuration", *lines])

    def read[T](self, read: Callable[[], T], otherwise: T) -> T:
        """Return the result of `read`. If it raises Misconfigured, note it and use `otherwise`."""
        try:
            return read()
        except Misconfigured as problem:
            self.add(problem)
            return otherwise

    def add(self, *problems: Misconfigured) -> None:
        for problem in problems:
            said = problem.args[0]
            self.found += said.found if isinstance(said, ConfigErrors) else [said]


@dataclass(frozen=True, slots=True, repr=False)
class ConfigValue:
    """One value of the document, with its file and its path."""

    value: object
    file: str
    place: Place = ()
    # A readable path if it says more than the keys: `servers[search]` for `servers[0]`.
    known_as: str = ""

    @property
    def keys(self) -> str:
        return self.known_as or format_key_path(self.place)

    def wrong(self, problem: str) -> Misconfigured:
        return Misconfigured(ConfigError(self.file, self.place, self.keys, problem))

    def with_name(self, name: str) -> "ConfigValue":
        """Return the value with another name for error messages."""
        return ConfigValue(self.value, self.file, self.place, name)

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

    def number(self, at_least: int, maximum: int) -> int:
        value = self.value
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.wrong("must be a whole number, without quotes")
        if not at_least <= value <= maximum:
            raise self.wrong(f"must be between {at_least} and {maximum}")
        return value

    def duration(self) -> timedelta:
        """Return a duration from seconds or a number with a unit. Raises Misconfigured for zero."""
        value, seconds = self.value, -1.0
        if isinstance(value, str) and (found := _DURATION.fullmatch(value)):
            seconds = float(found[1]) * _SECONDS[found[2]]
        elif isinstance(value, int | float) and not isinstance(value, bool):
            seconds = value
        # This form of the comparison also refuses NaN, which TOML allows.
        if not 0.001 <= seconds <= _MAX_LENGTH.total_seconds():
            raise self.wrong('must be a time of 1ms to 366d, as "500ms", "10s", "5m", "1h", "2d"')
        return timedelta(seconds=seconds)

    def duration_or_never(self) -> timedelta:
        """Return a duration like `duration`, where 0 is allowed and means never."""
        never = self.value == "0s" or (self.value == 0 and not isinstance(self.value, bool))
        return timedelta() if never else self.duration()

    def items(self) -> list["ConfigValue"]:
        value = self.value
        if not isinstance(value, list):
            raise self.wrong("must be a list, in [ ]")
        return [
            ConfigValue(each, self.file, (*self.place, number), f"{self.keys}[{number}]")
            for number, each in enumerate(cast("list[object]", value))
        ]

    def table(self) -> dict[str, "ConfigValue"]:
        value = self.value
        if not isinstance(value, dict):
            raise self.wrong("must be a table of names and values")
        table = cast("dict[str, object]", value)
        above = f"{self.keys}." if self.keys else ""
        return {
            name: ConfigValue(
                each, self.file, (*self.place, name), above + format_key_path((name,))
            )
            for name, each in table.items()
        }

    def unknown_keys(self, known: Iterable[str]) -> list[Misconfigured]:
        """Return an error for every unknown key. A misspelt key would otherwise have no effect."""
        names = sorted(known)
        strange = [entry for key, entry in self.table().items() if key not in names]
        return [each.unknown_among(names) for each in strange[:_MAX_SHOWN_UNKNOWN]]

    def unknown_among(self, known: Iterable[str]) -> Misconfigured:
        names = sorted(known)
        near = nearest_name(str(self.place[-1]), names)
        hint = f"did you mean {near!r}?" if near else f"known keys: {', '.join(names)}"
        return self.wrong(f"there is no such key; {hint}")


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant, or None."""
    # Compared in lower case, so that `mcpservers` counts as one error and not three.
    by_letters = {each.casefold(): each for each in names}
    found = difflib.get_close_matches(name[:_SHOWN_CHARACTERS].casefold(), by_letters, n=1)
    return by_letters[found[0]] if found else None


def format_key_path(place: Place) -> str:
    """Return the path as a user writes it, with unsafe characters escaped for terminals."""
    text = ""
    for each in place:
        if isinstance(each, int):
            text += f"[{each}]"
        else:
            plain = each.isprintable() and each.strip() != ""
            name = each if plain else json.dumps(each)
            text += ("." if text else "") + name[:_SHOWN_CHARACTERS]
    return text


# Matches any `${`, so that a malformed reference is an error and never passes unchanged.
_REFERENCE = re.compile(
    r"\$?\$\{(?:secret:(?P<secret>[A-Za-z0-9_.-]{1,128})\}"
    r"|(?:env:)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})?"
)
SECRET_PREFIX: Final = "secret:"  # noqa: S105  # the prefix of a name
"""The prefix of `${secret:NAME}`, which is also the prefix of its name in the variables."""


def expand_variables(text: str, variables: Mapping[str, str]) -> str:
    """Replace every variable and secret once. The values are not searched for variables again."""
    return _REFERENCE.sub(lambda found: _value(found, variables), text)


def references_in(text: str) -> list[str]:
    """Return the name of each variable and secret that a text refers to, in its order."""
    return [
        f"{SECRET_PREFIX}{found['secret']}" if found["secret"] else found["name"]
        for found in _REFERENCE.finditer(text)
        if not found.group().startswith("$$") and (found["secret"] or found["name"])
    ]


def masked_text(text: str) -> str:
    """Return a text with its references, and an ellipsis for each other part of it."""
    shown, end = "", 0
    for found in _REFERENCE.finditer(text):
        for name in references_in(found.group()):
            shown += ("…" if found.start() > end else "") + f"${{{name}}}"
            end = found.end()
    return shown + ("…" if end < len(text) else "")


def _value(match: re.Match[str], variables: Mapping[str, str]) -> str:
    whole = match.group()
    if whole.startswith("$$"):
        return whole[1:]
    if match.string.startswith("input:", match.start() + 2):
        raise Misconfigured(
            "an ${input:...} is a prompt of an editor, which Comity cannot show; write ${NAME} "
            "and set that variable"
        )
    if secret := match["secret"]:
        return _secret(secret, variables)
    name: str | None = match["name"]
    default: str | None = match["default"]
    if name is None:
        raise Misconfigured(
            "a ${...} that is no variable; write ${NAME}, ${NAME:-default}, ${secret:NAME}, or $${ "
            "for a plain ${"
        )
    value = variables.get(name)
    if value or (default is None and value is not None):
        return value
    if default is None:
        raise Misconfigured(
            f"the variable {name} is not set; set it, or write ${{{name}:-default}}"
        )
    return default


def _secret(name: str, variables: Mapping[str, str]) -> str:
    found = variables.get(SECRET_PREFIX + name)
    if not found:
        raise Misconfigured(
            f"there is no secret {name}; add it to one of the `sources` in [secrets]"
        )
    return found
