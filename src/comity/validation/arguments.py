"""Strings in arguments, the kinds of arguments, and schema errors as sentences."""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

import msgspec

from comity.errors import INVALID_TOOL_ARGS
from comity.mcp.refusals import Refusal
from comity.toolkit.text import count_noun

MAX_VALUES: Final = 10_000
MOST_CHARACTERS: Final = 256 * 1024
"""The number of characters that validators can examine without blocking the event loop."""

_MAX_SHOWN_VALUE: Final = 120

type _Waiting = tuple[str, str, object, int]


class ArgumentText(NamedTuple):
    """One string in the arguments. `listed` is the number of lists around it below its name."""

    where: str
    name: str
    text: str
    listed: int = 0


def collect_texts(
    arguments: object, most_characters: int | None = MOST_CHARACTERS
) -> list[ArgumentText] | None:
    """Return every string, including the names of inner members, or None if there are too many.

    A caller that reads only the beginnings of strings sets no limit of characters.
    """
    found: list[ArgumentText] = []
    values = characters = 0
    waiting: list[_Waiting] = [("", "", arguments, 0)]
    while waiting:
        where, name, value, listed = waiting.pop()
        values += 1
        if isinstance(value, str):
            characters += len(value)
            found.append(ArgumentText(where, name, value, listed))
        elif isinstance(value, dict | list):
            waiting += _inside(where, name, cast("dict[str, object] | list[object]", value), listed)
        if values + len(waiting) > MAX_VALUES:
            return None
        if most_characters is not None and characters > most_characters:
            return None
    return found


def _inside(
    where: str, name: str, value: dict[str, object] | list[object], listed: int
) -> list[_Waiting]:
    """Return the contents of an object or a list, the last one first."""
    if isinstance(value, list):
        numbered = enumerate(value)
        inner = [
            (f"{where}[{number}]"[:_MAX_SHOWN_VALUE], name, each, listed + 1)
            for number, each in numbered
        ]
        return inner[::-1]
    inside: list[_Waiting] = []
    for key, each in value.items():
        inside.append(((f"{where}.{key}" if where else key)[:_MAX_SHOWN_VALUE], key, each, 0))
        if where:  # top-level names are the tool author's; names in a map are the caller's
            inside.append((where, "", key, 0))
    return inside[::-1]


MAX_OPTIONS: Final = 20
MAX_SHOWN_NAMES: Final = 100
_REASON: Final = 300
_HINTS: Final = {
    "maximum": "Give a number of at most {limit}.",
    "minimum": "Give a number of at least {limit}.",
    "exclusiveMaximum": "Give a number below {limit}.",
    "exclusiveMinimum": "Give a number above {limit}.",
    "multipleOf": "Give a multiple of {multiple_of}.",
    "pattern": "Give a text that matches {pattern}.",
    "format": "Give a text that is a valid {format}.",
    "required": "Add the argument {property}.",
    "const": "Give {expected_value}.",
    "uniqueItems": "Give each item once.",
}

_COUNTED: Final = {
    "maxLength": ("at most", "character"),
    "minLength": ("at least", "character"),
    "maxItems": ("at most", "item"),
    "minItems": ("at least", "item"),
    "maxProperties": ("at most", "member"),
    "minProperties": ("at least", "member"),
}


class ArgumentError(NamedTuple):
    """An argument that does not match the schema."""

    field: str
    reason: str
    suggestions: tuple[str, ...] = ()


def to_argument_error(
    path: Sequence[str | int], message: str, kind: str, params: Mapping[str, object]
) -> ArgumentError:
    """Return one failed keyword as an error. `params` holds the requirement of the keyword."""
    where = _dotted(path)
    if kind == "required":
        missing = shorten_value(params.get("property"))
        where = f"{where}.{missing.strip(chr(34))}" if where else missing.strip('"')
    return ArgumentError(where[:_REASON], _printable(message)[:_REASON], _suggestions(kind, params))


def argument_refusal(found: ArgumentError) -> Refusal:
    """Return the refusal for an argument error."""
    said = f"the argument {found.field} is wrong: " if found.field else "the arguments are wrong: "
    return Refusal(
        INVALID_TOOL_ARGS,
        said + found.reason,
        field=found.field,
        suggestions=found.suggestions,
    )


def _suggestions(kind: str, params: Mapping[str, object]) -> tuple[str, ...]:
    if kind == "enum":
        options = _list(params.get("options"))
        more = (
            f", or one of {len(options) - MAX_OPTIONS} more" if len(options) > MAX_OPTIONS else ""
        )
        shown = ", ".join(shorten_value(each) for each in options[:MAX_OPTIONS])
        return (f"Give one of: {shown}{more}.",)
    if kind == "type":
        return (f"Give a value of type {' or '.join(map(str, _list(params.get('types'))))}.",)
    if kind in ("additionalProperties", "unevaluatedProperties"):
        names = ", ".join(
            shorten_value(each) for each in _list(params.get("unexpected"))[:MAX_OPTIONS]
        )
        return (f"Leave out {names}.",)
    limit = params.get("limit")
    if kind in _COUNTED and isinstance(limit, int | float):
        bound, noun = _COUNTED[kind]
        return (f"Give {bound} {count_noun(limit, noun)}.",)
    words = _HINTS.get(kind, "")
    named = {each for _, each, _, _ in string.Formatter().parse(words) if each}
    # A pattern that hit its step limit reports only that.
    if not words or not named <= params.keys():
        return ("Look at the tool's input schema.",)
    return (words.format_map({name: shorten_value(params[name]) for name in named}),)


def shorten_value(value: object) -> str:
    """Return a value of the schema as JSON of at most one line."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return "…"
    text = _printable(text)
    return text if len(text) <= MAX_SHOWN_NAMES else f"{text[:MAX_SHOWN_NAMES]}…"


def _dotted(path: Sequence[str | int]) -> str:
    where = ""
    for step in path[:64]:
        where += f"[{step}]" if isinstance(step, int) else f".{_printable(step[:MAX_SHOWN_NAMES])}"
    return where.removeprefix(".")


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text[: 4 * MAX_SHOWN_NAMES])


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


_MAX_LENGTH: Final = 120
_SEPARATORS: Final = re.compile(r"[\s_.-]+")
_NUMBERS: Final = re.compile(r"\[\d+\]")


class ArgumentKind(StrEnum):
    """The role of an argument for its tool."""

    COMMAND = "command"
    WORDS = "words"
    CODE = "code"
    SQL = "sql"
    PATH = "path"
    URL = "url"
    HOST = "host"
    METHOD = "method"
    MODE = "mode"
    ACTION = "action"
    TEXT = "text"
    UNKNOWN = "unknown"


_NAMES: Final[Mapping[ArgumentKind, str]] = {
    ArgumentKind.COMMAND: (
        "command cmd commandline shell shellcommand bash exec execute run cmdline"
    ),
    ArgumentKind.WORDS: "args arguments argv parameters flags options cmdargs commandargs",
    ArgumentKind.CODE: "code source sourcecode script program python pythoncode snippet pycode",
    ArgumentKind.SQL: "sql statement sqlquery sqlstatement",
    ArgumentKind.PATH: (
        "path file filename filepath cwd directory dir folder root workdir workingdirectory "
        "paths files destination dest target src filenames filepaths directories outputpath"
    ),
    ArgumentKind.URL: (
        "url uri href link endpoint urls links uris webhook callback callbackurl baseurl"
    ),
    ArgumentKind.HOST: (
        "host hostname address ip ipaddress domain server hosts addresses remote proxy"
    ),
    ArgumentKind.METHOD: "method httpmethod verb requestmethod",
    ArgumentKind.MODE: "mode openmode filemode accessmode",
    ArgumentKind.ACTION: "action operation op",
}
MEANINGS: Final = {name: meaning for meaning, names in _NAMES.items() for name in names.split()}


def argument_kind_of(where: str, name: str, params: Mapping[str, str]) -> ArgumentKind:
    """Return the kind by the operator's setting for its dotted path or name, else by its name."""
    if params:
        said = params.get(_NUMBERS.sub("", where)) or params.get(name)
        if said is not None:
            return ArgumentKind(said)
    return _by_name(name[:_MAX_LENGTH])


@lru_cache(4096)
def _by_name(name: str) -> ArgumentKind:
    return MEANINGS.get(_SEPARATORS.sub("", name).casefold(), ArgumentKind.UNKNOWN)


NO_ARGUMENTS: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool: its server, its own name there, and its whole untrusted definition."""

    server: str
    name: str
    definition: Mapping[str, object] = field(default_factory=lambda: NO_ARGUMENTS)
