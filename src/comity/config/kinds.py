"""The kinds of value that a setting may have: how each is read, and the same for an editor."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.rules.documents import Written

type Value = str | int | timedelta | tuple[object, ...] | Mapping[str, object]

_LONGEST: Final = timedelta(days=366)
_LENGTH: Final = r"^(?=.*[1-9])[0-9]{1,12}(\.[0-9]{1,9})? ?(ms|s|m|h|d)$"


@dataclass(frozen=True, slots=True)
class Kind:
    """How a value is read, and what JSON Schema says of it."""

    read: Callable[[Written], Value]
    schema: Mapping[str, object]


def number(at_least: int, at_most: int) -> Kind:
    schema = {"type": "integer", "minimum": at_least, "maximum": at_most}
    return Kind(lambda written: written.number(at_least, at_most), schema)


def one_of(*choices: str) -> Kind:
    return Kind(lambda written: written.one_of(choices), {"enum": list(choices)})


def texts(shape: str, example: str) -> Kind:
    """A list of texts that all have this shape."""

    def read(written: Written) -> tuple[str, ...]:
        for item in written.items():
            if not re.fullmatch(shape, item.text()):
                raise item.wrong(f"must be written as {example}")
        return tuple(item.text() for item in written.items())

    return Kind(read, {"type": "array", "items": {"type": "string", "pattern": f"^({shape})$"}})


def whole(unit: timedelta) -> Kind:
    """A whole number of this unit, as MGP writes a length of time."""
    at_most = _LONGEST // unit
    schema = {"type": "integer", "minimum": 1, "maximum": at_most}
    return Kind(lambda written: written.number(1, at_most) * unit, schema)


def _duration(*also: Mapping[str, object]) -> Mapping[str, object]:
    seconds = {"type": "number", "minimum": 0.001, "maximum": _LONGEST.total_seconds()}
    return {"anyOf": [seconds, {"type": "string", "pattern": _LENGTH}, *also]}


def table_of(members: Mapping[str, tuple[Kind, str]], **more: object) -> dict[str, object]:
    """What an editor knows of a table with these members, each with what it means."""
    properties = {
        name: {**kind.schema, "description": meaning} for name, (kind, meaning) in members.items()
    }
    return {"type": "object", "properties": properties, **more, "additionalProperties": False}


TEXT: Final = Kind(Written.text, {"type": "string"})
TRUTH: Final = Kind(Written.truth, {"type": "boolean"})
DURATION: Final = Kind(Written.duration, _duration())
DURATION_OR_NEVER: Final = Kind(Written.duration_or_never, _duration({"enum": [0, "0s"]}))


def plain(value: Value) -> str | int | list[object] | Mapping[str, object]:
    """A value as it would be written in a file."""
    if isinstance(value, tuple):
        return list(value)
    if not isinstance(value, timedelta):
        return value
    units = (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
    length = value // timedelta(milliseconds=1)
    if not length:
        return "0s"
    return next(f"{length // size}{unit}" for unit, size in units if length % size == 0)
