"""How it is told that an argument does not fit its schema: which one, why, and what would pass.

The value itself is never repeated: it may be a secret in the wrong place. What the schema says is
its author's, and is shortened.
"""

import string
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, cast

import msgspec

from comity.rules.phrases import count_noun
from comity.rules.refusals import Refusal
from comity.wire.errors import INVALID_TOOL_ARGS

MOST_OPTIONS: Final = 20
SHOWN: Final = 100
_REASON: Final = 300
_KNOWN: Final = {
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


class Problem(NamedTuple):
    """What does not fit."""

    field: str
    reason: str
    suggestions: tuple[str, ...] = ()


def problem(
    path: Sequence[str | int], message: str, kind: str, told: Mapping[str, object]
) -> Problem:
    """One failed keyword in words; `told` is what the keyword demands."""
    where = _dotted(path)
    if kind == "required":
        missing = shortened(told.get("property"))
        where = f"{where}.{missing.strip(chr(34))}" if where else missing.strip('"')
    return Problem(where[:_REASON], _printable(message)[:_REASON], _suggestions(kind, told))


def refusal(found: Problem) -> Refusal:
    """The refusal that a caller gets for it."""
    said = f"the argument {found.field} is wrong: " if found.field else "the arguments are wrong: "
    return Refusal(
        INVALID_TOOL_ARGS,
        said + found.reason,
        field=found.field,
        suggestions=found.suggestions,
    )


def _suggestions(kind: str, told: Mapping[str, object]) -> tuple[str, ...]:
    if kind == "enum":
        options = _list(told.get("options"))
        more = (
            f", or one of {len(options) - MOST_OPTIONS} more" if len(options) > MOST_OPTIONS else ""
        )
        shown = ", ".join(shortened(each) for each in options[:MOST_OPTIONS])
        return (f"Give one of: {shown}{more}.",)
    if kind == "type":
        return (f"Give a value of type {' or '.join(map(str, _list(told.get('types'))))}.",)
    if kind in ("additionalProperties", "unevaluatedProperties"):
        names = ", ".join(shortened(each) for each in _list(told.get("unexpected"))[:MOST_OPTIONS])
        return (f"Leave out {names}.",)
    limit = told.get("limit")
    if kind in _COUNTED and isinstance(limit, int | float):
        bound, noun = _COUNTED[kind]
        return (f"Give {bound} {count_noun(limit, noun)}.",)
    words = _KNOWN.get(kind, "")
    named = {each for _, each, _, _ in string.Formatter().parse(words) if each}
    # A pattern that was given up says only that it was.
    if not words or not named <= told.keys():
        return ("Look at the tool's input schema.",)
    return (words.format_map({name: shortened(told[name]) for name in named}),)


def shortened(value: object) -> str:
    """A value of the schema's as JSON, of at most a line's length."""
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return "…"
    text = _printable(text)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _dotted(path: Sequence[str | int]) -> str:
    where = ""
    for step in path[:64]:
        where += f"[{step}]" if isinstance(step, int) else f".{_printable(step[:SHOWN])}"
    return where.removeprefix(".")


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text[: 4 * SHOWN])


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []
