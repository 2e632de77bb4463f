"""Declaration of settings, and the types by which they are read.

A table of the configuration is a frozen dataclass. `setting` creates each of its fields and is the
only declaration of that setting. The reader, the JSON Schema and the reference page derive from it.
The name of the field is the name that a user writes.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import timedelta
from functools import cache
from types import NoneType
from typing import Any, Final, Literal, TypeAliasType, cast, get_args, get_origin

from comity.config.document import ConfigErrors, ConfigValue, expand_variables
from comity.errors import Misconfigured

type Members = Mapping[str, tuple[FieldType, str]]
"""The names that a table may hold, each with its type and its description."""

_MAX_LENGTH: Final = timedelta(days=366)
_LENGTH: Final = r"^(?=.*[1-9])[0-9]{1,12}(\.[0-9]{1,9})? ?(ms|s|m|h|d)$"


@dataclass(frozen=True, slots=True)
class FieldType:
    """How a value is parsed, and its JSON Schema."""

    read: Callable[[ConfigValue], Any]
    schema: Mapping[str, object]


def number_type(at_least: int, maximum: int) -> FieldType:
    schema = {"type": "integer", "minimum": at_least, "maximum": maximum}
    return FieldType(lambda written: written.number(at_least, maximum), schema)


def one_of(*choices: str) -> FieldType:
    return FieldType(lambda written: written.one_of(choices), {"enum": list(choices)})


def text_list_type(shape: str, example: str) -> FieldType:
    """Return the type of a list of strings that match a pattern."""

    def read(written: ConfigValue) -> tuple[str, ...]:
        for item in written.items():
            if not re.fullmatch(shape, item.text()):
                raise item.wrong(f"must be written as {example}")
        return tuple(item.text() for item in written.items())

    return FieldType(
        read, {"type": "array", "items": {"type": "string", "pattern": f"^({shape})$"}}
    )


def unit_count_type(unit: timedelta) -> FieldType:
    """Return the type of a whole number of this unit, as MGP writes durations."""
    at_most = _MAX_LENGTH // unit
    schema = {"type": "integer", "minimum": 1, "maximum": at_most}
    return FieldType(lambda written: written.number(1, at_most) * unit, schema)


def _duration(*also: Mapping[str, object]) -> Mapping[str, object]:
    seconds = {"type": "number", "minimum": 0.001, "maximum": _MAX_LENGTH.total_seconds()}
    return {"anyOf": [seconds, {"type": "string", "pattern": _LENGTH}, *also]}


def table_of(members: Members, **more: object) -> dict[str, object]:
    """Return the JSON Schema of a table with these members."""
    properties = {
        name: {**kind.schema, "description": meaning} for name, (kind, meaning) in members.items()
    }
    return {"type": "object", "properties": properties, **more, "additionalProperties": False}


TEXT: Final = FieldType(ConfigValue.text, {"type": "string"})
TRUTH: Final = FieldType(ConfigValue.truth, {"type": "boolean"})
DURATION: Final = FieldType(ConfigValue.duration, _duration())
DURATION_OR_NEVER: Final = FieldType(ConfigValue.duration_or_never, _duration({"enum": [0, "0s"]}))


COUNT: Final = number_type(1, 10_000_000)


def to_config_value(value: Any) -> object:
    """Return a value as a user writes it in a file."""
    if isinstance(value, tuple):
        return list(cast("tuple[object, ...]", value))
    if not isinstance(value, timedelta):
        return value
    units = (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
    length = value // timedelta(milliseconds=1)
    if not length:
        return "0s"
    return next(f"{length // size}{unit}" for unit, size in units if length % size == 0)


@dataclass(frozen=True, slots=True)
class UrlField:
    """The `url` of one table: its pattern and the rule that an error tells."""

    table: str
    shape: str
    rule: str

    @property
    def kind(self) -> FieldType:
        return FieldType(self._read, {"type": "string", "pattern": rf"{self.shape}|\$\{{"})

    def _read(self, value: ConfigValue) -> str:
        text = value.text()
        if "${" not in text and not re.search(self.shape, text):
            raise value.wrong(self.rule)
        return text

    def resolve(self, told: str, environ: Mapping[str, str], mistakes: ConfigErrors) -> str:
        """Return the URL of a file with its variables replaced."""
        named = ConfigValue(None, self.table, ("url",))
        try:
            url = expand_variables(told, environ)
        except Misconfigured as problem:
            mistakes.add(named.wrong(str(problem)))
            return ""
        if not re.search(self.shape, url):
            mistakes.add(named.wrong(self.rule))
        return url


def amount_type(at_most: float) -> FieldType:
    """Return the type of an amount of money, or of any other number with fractions."""

    def read(written: ConfigValue) -> float:
        said = written.value
        if isinstance(said, bool) or not isinstance(said, int | float) or not 0 <= said <= at_most:
            raise written.wrong(f"must be a number between 0 and {at_most:g}")
        return float(said)

    return FieldType(read, {"type": "number", "minimum": 0, "maximum": at_most})


def members_of(entry: ConfigValue, known: Members, needed: Iterable[str] = ()) -> dict[str, Any]:
    """Return the members of an entry. Raises Misconfigured with all errors in it."""
    mistakes = ConfigErrors()
    table = entry.table()
    mistakes.add(*entry.unknown_keys(known))
    for name in needed:
        if name not in table:
            mistakes.add(entry.wrong(f"needs its {name}: {known[name][1]}"))
    said: dict[str, Any] = {}
    for name, written in table.items():
        if name in known:
            kind = known[name][0]
            said[name] = mistakes.read(lambda kind=kind, it=written: kind.read(it), None)
    if mistakes.found:
        raise Misconfigured(mistakes)
    return said


def pattern_type(shape: str, example: str) -> FieldType:
    """Return the type of a string that matches a pattern."""

    def read(written: ConfigValue) -> str:
        if not re.fullmatch(shape, written.text()):
            raise written.wrong(f"must be written as {example}")
        return written.text()

    return FieldType(read, {"type": "string", "pattern": f"^({shape})$"})


def all_of[T](
    read: Callable[[ConfigValue], T], maximum: int, hint: str = ""
) -> Callable[[ConfigValue], tuple[T, ...]]:
    """Return a reader for a list of entries. It raises Misconfigured with all errors in it."""

    def read_all(written: ConfigValue) -> tuple[T, ...]:
        entries = written.items()
        if len(entries) > maximum:
            raise written.wrong(f"holds more than {maximum}{hint}")
        mistakes = ConfigErrors()
        found = [mistakes.read(lambda each=each: read(each), None) for each in entries]
        if mistakes.found:
            raise Misconfigured(mistakes)
        return tuple(each for each in found if each is not None)

    return read_all


@dataclass(frozen=True, slots=True)
class ConfigField:
    """One setting, as a class of settings declares it."""

    name: str
    kind: FieldType
    description: str
    default: Any
    # Whether a running gateway applies a new value.
    is_live: bool

    @property
    def is_required(self) -> bool:
        return self.default is MISSING


def setting(
    default: Any,
    description: str,
    kind: FieldType | None = None,
    *,
    is_live: bool = False,
    is_secret: bool = False,
    is_compared: bool = True,
) -> Any:
    """Declare one setting of a table.

    `kind` says how to parse it. The default follows from the annotation of the field for a string,
    a boolean, a duration or a choice. `is_secret` keeps the value out of the repr. A change of a
    setting without `is_compared` does not make its table unequal.
    """
    metadata = {"description": description, "kind": kind, "is_live": is_live}
    shown = not is_secret
    if isinstance(default, dict):
        copied = cast("dict[str, object]", default).copy
        return field(default_factory=copied, repr=shown, compare=is_compared, metadata=metadata)
    return field(default=default, repr=shown, compare=is_compared, metadata=metadata)


REQUIRED: Final = MISSING
"""The default of a setting that a table must have."""


@cache
def fields_of(table: type) -> Mapping[str, ConfigField]:
    """Return the settings that a class declares, by name, without its other fields."""
    return {
        each.name: ConfigField(
            each.name,
            each.metadata["kind"] or _kind_of(each.type),
            each.metadata["description"],
            each.default if each.default_factory is MISSING else each.default_factory(),
            each.metadata["is_live"],
        )
        for each in fields(table)
        if "description" in each.metadata
    }


def _kind_of(annotation: object) -> FieldType:
    if isinstance(annotation, TypeAliasType):
        return _kind_of(annotation.__value__)
    if get_origin(annotation) is Literal:
        return one_of(*get_args(annotation))
    choices = [each for each in get_args(annotation) if each is not NoneType]
    if len(choices) == 1 and NoneType in get_args(annotation):
        return _kind_of(choices[0])
    return {str: TEXT, bool: TRUTH, timedelta: DURATION}[cast("type", annotation)]


def members_in(table: type) -> Members:
    return {name: (each.kind, each.description) for name, each in fields_of(table).items()}


def read_table[T](value: ConfigValue, table: type[T]) -> T:
    """Parse a table into its class. Raises Misconfigured with all errors in it."""
    needed = [each.name for each in fields_of(table).values() if each.is_required]
    return table(**members_of(value, members_in(table), needed))
