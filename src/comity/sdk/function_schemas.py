"""A Python function as the definition of a tool."""

import dataclasses
import enum
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, Union, cast, get_args, get_origin

from msgspec import UNSET

from comity.catalog.signatures import InputField, OutputField, Schema, Signature, ValueConstraints
from comity.errors import Misconfigured

_PARAMETER: Final = re.compile(r":param\s+(?:[^\s:]+\s+)?(\w+)\s*:\s*(.*)")
_SECTION: Final = re.compile(
    r"(Args|Arguments|Parameters|Returns|Yields|Raises|Example|Examples|Notes?)\s*:"
)
_TAKES: Final = frozenset({"Args", "Arguments", "Parameters"})
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^()]*\))?\s*:\s*(.*)")
_FIELD: Final = re.compile(r":\w+[^:]*:")


@dataclass(slots=True)
class DocstringContent:
    """The content of a docstring: the description, and a text for each parameter."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict[str, str])


def parse_docstring(docstring: str | None) -> DocstringContent:
    told = DocstringContent()
    lines = inspect.cleandoc(docstring or "").splitlines()
    about: list[str] = []
    section = ""
    current: str | None = None
    for line in lines:
        heading = _SECTION.fullmatch(line)
        if heading is not None:
            section, current = heading[1], None
        elif _FIELD.match(line):
            section, current = "fields", _parameter(line, told)
        elif section == "" or (line.strip() and not line[0].isspace() and section != "fields"):
            section = ""
            about.append(line)
        elif section in _TAKES or section == "fields":
            current = _entry(line, section, current, told)
    told.description = "\n".join(about).strip()
    return told


def _parameter(line: str, docs: DocstringContent) -> str | None:
    found = _PARAMETER.match(line)
    if found is None:
        return None
    docs.parameters[found[1]] = found[2].strip()
    return found[1]


def _entry(line: str, section: str, current: str | None, docs: DocstringContent) -> str | None:
    """Read a line of a section: a new parameter, or more about the one before."""
    found = _ENTRY.fullmatch(line.strip()) if section in _TAKES else None
    indent = len(line) - len(line.lstrip())
    if found is not None and (current is None or indent <= INDENT):
        docs.parameters[found[1]] = found[2].strip()
        return found[1]
    if current is not None and line.strip():
        docs.parameters[current] = f"{docs.parameters[current]} {line.strip()}".strip()
    return current


INDENT: Final = 4


type Function = Callable[..., object]
type Held = tuple[Any, ...]

_PLAIN: Final[dict[object, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
}
_LISTS: Final = (list, Sequence)
_TABLES: Final = (dict, Mapping)
_UNIONS: Final = (Union, types.UnionType)
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_JSON: Final = (str, int, float, bool, type(None))
RESULT: Final = "result"
"""The field that holds the return value of a function if it is no object."""


def read_function(function: Function, name: str | None = None) -> Signature:
    """The signature of a function; raises Misconfigured if JSON Schema cannot express it."""
    own = name or getattr(function, "__name__", "")
    told = parse_docstring(function.__doc__)
    hints = _hints(function, own)
    inputs = tuple(
        _input(parameter, hints, told, own)
        for parameter in inspect.signature(function).parameters.values()
    )
    given = hints.get("return", inspect.Parameter.empty)
    outputs = _outputs(given, f"{own}: the result")
    return Signature(own, told.description, inputs, outputs, is_closed=True)


def schema_for(annotation: Any, where: str, holders: Held = ()) -> Schema:
    """The JSON Schema of an annotation. Raises Misconfigured for an unknown one."""
    try:
        plain = _PLAIN.get(annotation)
    except TypeError:  # it cannot be a key
        plain = None
    if plain is not None:
        return {**plain}
    origin = get_origin(annotation)
    if origin is not None:
        return _composed(origin, annotation, where, holders)
    if isinstance(annotation, type):
        return _class(annotation, where, holders)
    raise _unknown(annotation, where)


def build_value(annotation: Any, value: Any) -> Any:
    """Build a value of the annotated type from JSON that its schema accepts."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return build_value(parts[0], value)
    if origin in _UNIONS:
        return _built_choice(parts, value)
    if origin in _LISTS and parts and type(value) is list:
        return [build_value(parts[0], item) for item in cast("list[Any]", value)]
    table = _table(value)
    if origin in _TABLES and parts and table is not None:
        return {key: build_value(parts[1], item) for key, item in table.items()}
    return _built_class(annotation, value) if isinstance(annotation, type) else value


def to_json_value(value: Any) -> object:
    """The JSON of a value that a function returned: the inverse of `build_value`."""
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = dataclasses.fields(value)
        return {each.name: to_json_value(getattr(value, each.name)) for each in held}
    if hasattr(value, "_asdict"):
        return to_json_value(cast("Any", value)._asdict())
    if isinstance(value, Mapping):
        table = cast("Mapping[Any, object]", value)
        return {str(key): to_json_value(item) for key, item in table.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(item) for item in cast("Sequence[object]", value)]
    return value


def _hints(described: object, where: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(described, include_extras=True)
    except Exception as error:
        # An annotation that is written as text can raise any exception.
        raise Misconfigured(f"{where}: an annotation cannot be read: {error}") from error


def _input(
    parameter: inspect.Parameter, hints: Mapping[str, Any], docs: DocstringContent, owner: str
) -> InputField:
    where = f"{owner}: {parameter.name}"
    if parameter.kind not in _NAMED:
        raise Misconfigured(f"{where}: a tool's arguments have names; take a named parameter")
    if parameter.name not in hints:
        raise Misconfigured(f"{where} has no annotation; write its type, as {parameter.name}: str")
    schema = schema_for(hints[parameter.name], where)
    about = docs.parameters.get(parameter.name) or str(schema.pop("description", ""))
    needed = parameter.default is inspect.Parameter.empty
    default = UNSET if needed else _default(parameter.default)
    return InputField(parameter.name, schema, about, default=default, required=needed)


def _default(value: object) -> object:
    """The default as JSON; UNSET if JSON cannot express it."""
    said = to_json_value(value)
    return said if type(said) in (*_JSON, list, dict) else UNSET


def _outputs(value: object, where: str) -> tuple[OutputField, ...]:
    if value in (inspect.Parameter.empty, None, type(None), Any):
        return ()
    schema = schema_for(value, where)
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return (OutputField(RESULT, schema),)
    required = cast("list[str]", schema.get("required", []))
    table = cast("dict[str, Schema]", properties)
    return tuple(OutputField(name, kind, required=name in required) for name, kind in table.items())


def _composed(origin: Any, annotation: Any, where: str, holders: Held) -> Schema:
    parts = get_args(annotation)
    if origin is Annotated:
        return _annotated(parts, where, holders)
    if origin is Literal:
        return _choice(list(parts), annotation, where)
    if origin in _UNIONS:
        return {"anyOf": [schema_for(part, where, holders) for part in parts]}
    if origin in _LISTS:
        return {"type": "array", "items": schema_for(parts[0], where, holders)}
    if origin in _TABLES and parts[0] is str:
        return {"type": "object", "additionalProperties": schema_for(parts[1], where, holders)}
    raise _unknown(annotation, where)


def _annotated(parts: tuple[Any, ...], where: str, holders: Held) -> Schema:
    schema = schema_for(parts[0], where, holders)
    for said in parts[1:]:
        if isinstance(said, ValueConstraints):
            schema = said.imposed_on(schema, where)
        elif isinstance(said, str):
            schema["description"] = said
    return schema


def _choice(values: list[object], annotation: object, where: str) -> Schema:
    if not all(isinstance(value, _JSON) for value in values):
        raise _unknown(annotation, where)
    kinds = {_PLAIN[type(value)]["type"] for value in values}
    return {"enum": values} if len(kinds) > 1 else {"type": kinds.pop(), "enum": values}


def _class(annotation: Any, where: str, holders: Held) -> Schema:
    if annotation in holders:
        raise Misconfigured(f"{where}: {annotation.__name__} holds itself; write it flat")
    if issubclass(annotation, enum.Enum):
        return _choice([member.value for member in annotation], annotation, where)
    optional = _optional_fields(annotation)
    if optional is None:
        raise _unknown(annotation, where)
    inside = (*holders, annotation)
    hints = _hints(annotation, where)
    return {
        "type": "object",
        "properties": {
            name: schema_for(_unmarked(hint), f"{where}.{name}", inside)
            for name, hint in hints.items()
        },
        "required": [name for name in hints if name not in optional],
    }


def _optional_fields(annotation: Any) -> frozenset[str] | None:
    """The optional fields of a record type; None if the type is no record."""
    if dataclasses.is_dataclass(annotation):
        return frozenset(
            each.name for each in dataclasses.fields(annotation) if not _is_needed(each)
        )
    if typing.is_typeddict(annotation):
        return annotation.__optional_keys__
    return frozenset(annotation._field_defaults) if hasattr(annotation, "_asdict") else None


def _is_needed(held: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return held.default is missing and held.default_factory is missing


def _unmarked(hint: object) -> object:
    """The type of a field without `Required` or `NotRequired`."""
    marked = get_origin(hint) in (typing.Required, typing.NotRequired)
    return get_args(hint)[0] if marked else hint


def _built_choice(parts: tuple[Any, ...], value: object) -> Any:
    """Build a value of the first type of a union that fits it."""
    for part in parts:
        try:
            made = build_value(part, value)
        except (TypeError, ValueError, KeyError):
            continue
        if made is not value or _is_of(part, value):
            return made
    return value


def _is_of(annotation: object, value: object) -> bool:
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and isinstance(value, kind)


def _built_class(annotation: Any, value: Any) -> Any:
    if issubclass(annotation, enum.Enum):
        return annotation(value)
    if annotation is int and isinstance(value, float):
        # To JSON Schema 2.0 is an integer; the function asked for one.
        return int(value)
    table = _table(value)
    if _optional_fields(annotation) is None or table is None:
        return value
    hints = _hints(annotation, annotation.__name__)
    made = {name: build_value(_unmarked(hints[name]), item) for name, item in table.items()}
    return made if typing.is_typeddict(annotation) else annotation(**made)


def _table(value: object) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _unknown(annotation: object, where: str) -> Misconfigured:
    return Misconfigured(
        f"{where}: JSON has no type for {annotation!r:.100}; use str, int, float, bool, list[…], "
        "dict[str, …], a Literal, an Enum, a dataclass, TypedDict or NamedTuple"
    )
