"""Values that the user types: tool arguments as `name=value`, and times."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from comity.config.document import ConfigValue
from comity.errors import Misconfigured
from comity.toolkit.text import object_members

type Schema = dict[str, Any]

MAX_FIELDS: Final = 200
MAX_DEPTH: Final = 6


@dataclass(frozen=True, slots=True)
class CliToolArgument:
    """One field of a tool's input or output; a dot separates an object from its member."""

    name: str
    kind: str
    required: bool
    about: str


def arguments_of(schema: object) -> list[CliToolArgument]:
    root = object_members(schema)
    found: list[CliToolArgument] = []
    for argument in _fields(root, root, "", MAX_DEPTH):
        found.append(argument)
        if len(found) >= MAX_FIELDS:
            break
    return found


def example_of(arguments: Sequence[CliToolArgument]) -> str:
    """The required arguments, as a user types them after `comity call`."""
    needed = [each for each in arguments if each.required and "." not in each.name]
    return " ".join(f"{each.name}={each.kind.upper()}" for each in needed)


def read_arguments(pairs: Sequence[str], whole: str | None, schema: object) -> Schema:
    """Parse the arguments of `comity call`: `key=value`, `key:=json`, and a JSON object.

    A value is read by the schema's type for its key: text where text is wanted, JSON elsewhere.
    """
    arguments = _object(whole) if whole is not None else {}
    properties = object_members(object_members(schema).get("properties"))
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.rstrip(":"):
            raise Misconfigured(f"{pair!r:.200} is not an argument; write key=value or key:=JSON")
        if key.endswith(":"):
            arguments[key[:-1]] = _json(key[:-1], value)
        else:
            arguments[key] = _parse_value(key, value, _kinds(object_members(properties.get(key))))
    return arguments


def _object(text: str) -> Schema:
    found = _json("--json-args", text)
    if not isinstance(found, dict):
        raise Misconfigured('--json-args must be an object, as {"key": "value"}')
    return cast("Schema", found)


def _json(key: str, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise Misconfigured(f"the value of {key} is not JSON; text needs quotes there") from None


def _parse_value(key: str, value: str, kinds: set[str]) -> object:
    if not kinds or "string" in kinds:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        wanted = " or ".join(sorted(kinds))
        raise Misconfigured(f"{key} must be {_with_article(wanted)}, got {value!r:.100}") from None


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind[:1] in "aeio" else f"a {kind}"


def _fields(schema: Schema, root: Schema, above: str, depth: int) -> Iterator[CliToolArgument]:
    required = schema.get("required")
    needed = cast("list[object]", required) if isinstance(required, list) else []
    for name, raw in object_members(schema.get("properties")).items():
        field = _resolve_reference(object_members(raw), root)
        path = f"{above}{name}"
        yield CliToolArgument(path, _kind(field), name in needed, _about(field))
        inner = (
            _resolve_reference(object_members(field.get("items")), root)
            if "items" in field
            else field
        )
        if depth:
            mark = "[]." if "items" in field else "."
            yield from _fields(inner, root, f"{path}{mark}", depth - 1)


def _resolve_reference(schema: Schema, root: Schema) -> Schema:
    """Follow one reference within the same document; a second in a row is not followed."""
    pointer = schema.get("$ref")
    if not isinstance(pointer, str) or not pointer.startswith("#/"):
        return schema
    found: object = root
    for part in pointer[2:].split("/"):
        found = object_members(found).get(part)
    return {
        **object_members(found),
        **{key: value for key, value in schema.items() if key != "$ref"},
    }


def _kinds(schema: Schema) -> set[str]:
    said = schema.get("type")
    if isinstance(said, str):
        return {said}
    if isinstance(said, list):
        return {str(each) for each in cast("list[object]", said)}
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            return set[str]().union(*(_kinds(object_members(each)) for each in schema[key]))
    return set()


def _kind(schema: Schema) -> str:
    if isinstance(schema.get("enum"), list):
        return "one of"
    kinds = " or ".join(sorted(_kinds(schema) - {"null"})) or "any"
    if kinds == "array":
        inner = " or ".join(sorted(_kinds(object_members(schema.get("items")))))
        return f"array of {inner}" if inner else "array"
    return kinds


def _about(schema: Schema) -> str:
    about = str(schema.get("description") or schema.get("title") or "")
    if isinstance(schema.get("enum"), list):
        choices = ", ".join(_brief(each) for each in cast("list[object]", schema["enum"]))
        about = f"{choices}. {about}" if about else choices
    if "default" in schema:
        about = f"{about} (default {_brief(schema['default'])})".strip()
    return about


def _brief(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)[:60]


def parse_expiry(text: str | None) -> str | None:
    """Return an ISO time for a duration such as 90d or a date such as 2027-01-31."""
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        length = ConfigValue(text, "--expires").duration()
        return (datetime.now(UTC) + length).isoformat()
    return (at if at.tzinfo is not None else at.astimezone()).isoformat()
