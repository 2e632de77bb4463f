"""Translation of OpenAPI schemas to JSON Schema 2020-12, within limits.

Only known keywords with usable values are copied, so that the result is always a valid schema. A
reference becomes an entry of `$defs`, which also carries recursive schemas. Where the definitions
of one tool exceed its budget, the ones farthest from its root are reduced to their type.
"""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from comity.servers.openapi.document import ApiDocument, Table, as_list, as_table, as_text

MAX_LEVELS: Final = 24
"""How deeply one definition may be nested. Comity accepts schemas with 32 levels."""
MAX_TEXT_LENGTH: Final = 400
MAX_ENUM_ENTRIES: Final = 1_000
MAX_ENUM_BYTES: Final = 8 * 1024
MAX_ALTERNATIVES: Final = 100
MAX_PATTERN_LENGTH: Final = 500
MAX_PROPERTIES: Final = 1_000
MAX_DEFINITIONS: Final = 400
_TYPES: Final = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})
_COUNTS: Final = (
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)
_BOUNDS: Final = ("minimum", "maximum")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_.-]+")

type Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SchemaDefinition:
    """A translated schema, the definitions that it refers to, and its encoded size."""

    schema: Schema
    references: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class AssembledSchema:
    """A schema with its definitions, and whether some of them were reduced to their type."""

    schema: Schema
    is_reduced: bool


class SchemaTranslator:
    """Translates the schemas of one document, for requests or for responses."""

    def __init__(self, document: ApiDocument, *, is_request: bool) -> None:
        self._document = document
        self._is_request = is_request
        self._pointer_by_name: dict[str, str] = {}
        self._name_by_pointer: dict[str, str] = {}
        self._definitions: dict[str, SchemaDefinition] = {}

    def translate(self, schema: object) -> SchemaDefinition:
        """Translate one schema. Its references name definitions of this translator."""
        references: dict[str, None] = {}
        found = self._translate(schema, references, 0)
        return SchemaDefinition(found, tuple(references), encoded_size(found))

    def assemble(self, root: Schema, references: Iterable[str], max_bytes: int) -> AssembledSchema:
        """Return the schema with all definitions that it needs, nearest first, within a budget."""
        waiting, left = deque(dict.fromkeys(references)), max_bytes - encoded_size(root)
        definitions: dict[str, Schema] = {}
        is_reduced = False
        while waiting:
            name = waiting.popleft()
            if name in definitions:
                continue
            found = self._definition(name)
            if found.size > left or len(definitions) >= MAX_DEFINITIONS:
                definitions[name] = reduce_schema(found.schema)
                is_reduced = True
            else:
                definitions[name] = found.schema
                waiting.extend(found.references)
                left -= found.size
            left -= len(name)
        if definitions:
            root = {**root, "$defs": definitions}
        return AssembledSchema(root, is_reduced)

    def _definition(self, name: str) -> SchemaDefinition:
        known = self._definitions.get(name)
        if known is None:
            target = self._document.find(self._pointer_by_name[name])
            known = self._definitions[name] = self.translate(target)
        return known

    def _name(self, pointer: str) -> str:
        known = self._name_by_pointer.get(pointer)
        if known is None:
            base = _UNFIT.sub("_", pointer.rpartition("/")[2])[:100] or "schema"
            known, number = base, 2
            while known in self._pointer_by_name:
                known, number = f"{base}_{number}", number + 1
            self._pointer_by_name[known] = pointer
            self._name_by_pointer[pointer] = known
        return known

    def _translate(self, schema: object, references: dict[str, None], level: int) -> Schema:
        if schema is False:
            return {"not": {}}
        if not isinstance(schema, dict) or level > MAX_LEVELS:
            return {}
        table = cast("dict[str, Any]", schema)
        found: Schema = {}
        pointer = table.get("$ref")
        if pointer is not None:
            if self._document.find(pointer) is None:
                # A reference that leads nowhere, or out of the document, restricts nothing.
                return {}
            name = self._name(pointer)
            references[name] = None
            found["$ref"] = f"#/$defs/{name}"
            if not self._document.is_31:
                return found
        self._copy_scalars(table, found)
        self._copy_object(table, found, references, level)
        self._copy_combinations(table, found, references, level)
        return self._with_null(table, found)

    def _copy_scalars(self, table: Table, found: Schema) -> None:
        kinds = [kind for kind in _as_kinds(table.get("type")) if kind in _TYPES]
        if kinds:
            found["type"] = kinds[0] if len(kinds) == 1 else kinds
        if self._is_request and (text := as_text(table.get("description"))):
            found["description"] = shorten(text, MAX_TEXT_LENGTH)
        _copy_limits(table, found)
        choices = as_list(table.get("enum"))
        if choices and _is_usable_enum(choices):
            found["enum"] = choices
        if self._document.is_31 and "const" in table and _is_scalar(table["const"]):
            found["const"] = table["const"]
        if self._is_request and "default" in table and _is_scalar(table["default"]):
            found["default"] = table["default"]

    def _copy_object(
        self, table: Table, found: Schema, references: dict[str, None], level: int
    ) -> None:
        members = as_table(table.get("properties"))
        hidden: set[str] = set()
        if 0 < len(members) <= MAX_PROPERTIES:
            hidden = {name for name, each in members.items() if self._is_hidden(each)}
            found["properties"] = {
                name: self._translate(each, references, level + 2)
                for name, each in members.items()
                if name not in hidden
            }
        required = dict.fromkeys(
            name
            for name in as_list(table.get("required"))[:MAX_PROPERTIES]
            if isinstance(name, str) and name not in hidden
        )
        if required:
            found["required"] = list(required)
        more = table.get("additionalProperties")
        if len(members) > MAX_PROPERTIES:
            more = None
        if isinstance(more, bool):
            found["additionalProperties"] = more
        elif isinstance(more, dict):
            found["additionalProperties"] = self._translate(
                as_table(table["additionalProperties"]), references, level + 1
            )
        if isinstance(table.get("items"), dict | bool):
            found["items"] = self._translate(table["items"], references, level + 1)
        if self._document.is_31 and (first := as_list(table.get("prefixItems"))):
            found["prefixItems"] = [
                self._translate(each, references, level + 2) for each in first[:MAX_ALTERNATIVES]
            ]

    def _copy_combinations(
        self, table: Table, found: Schema, references: dict[str, None], level: int
    ) -> None:
        for name in ("allOf", "anyOf", "oneOf"):
            parts = as_list(table.get(name))
            if not 0 < len(parts) <= MAX_ALTERNATIVES:
                continue
            # The discriminator chooses one of several schemas that may all match.
            key = "anyOf" if name == "oneOf" and "discriminator" in table else name
            if key in found:
                continue
            found[key] = [self._translate(each, references, level + 2) for each in parts]
        if isinstance(table.get("not"), dict):
            found["not"] = self._translate(table["not"], references, level + 1)

    def _with_null(self, table: Table, found: Schema) -> Schema:
        """Return the schema with null allowed, if OpenAPI 3.0 says that the value is nullable."""
        if self._document.is_31 or table.get("nullable") is not True:
            return found
        if "enum" in found and None not in found["enum"]:
            found["enum"] = [*found["enum"], None]
        kind = found.get("type")
        if isinstance(kind, str):
            return {**found, "type": [kind, "null"]}
        if found.keys() & {"allOf", "anyOf", "oneOf", "not"}:
            return {"anyOf": [found, {"type": "null"}]}
        return found

    def _is_hidden(self, member: object) -> bool:
        """Return whether a property belongs to the other direction only."""
        table = as_table(member)
        if "$ref" in table and not self._document.is_31:
            table = as_table(self._document.find(table["$ref"]))
        return table.get("readOnly" if self._is_request else "writeOnly") is True


def encoded_size(schema: Schema) -> int:
    return len(msgspec.json.encode(schema))


def reduce_schema(schema: Schema) -> Schema:
    """Return the type of a schema alone."""
    kind = schema.get("type")
    return {} if kind is None else {"type": kind}


def shorten(text: str, length: int) -> str:
    plain = " ".join(text.split()) if length <= MAX_TEXT_LENGTH else text.strip()
    return plain if len(plain) <= length else f"{plain[: length - 1]}…"


def _as_kinds(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return list(dict.fromkeys(each for each in as_list(value) if isinstance(each, str)))


def _copy_limits(table: Table, found: Schema) -> None:
    for name in _COUNTS:
        if type(table.get(name)) is int and 0 <= table[name] < 2**31:
            found[name] = table[name]
    for name in _BOUNDS:
        _copy_bound(table, found, name)
    if _is_number(table.get("multipleOf")) and table["multipleOf"] > 0:
        found["multipleOf"] = table["multipleOf"]
    if table.get("uniqueItems") is True:
        found["uniqueItems"] = True
    if _is_usable_pattern(table.get("pattern")):
        found["pattern"] = table["pattern"]
    if 0 < len(kind := as_text(table.get("format"))) <= 64:
        found["format"] = kind


def _copy_bound(table: Table, found: Schema, name: str) -> None:
    """Copy a bound. In OpenAPI 3.0 a boolean says whether it is exclusive."""
    exclusive = f"exclusive{name.capitalize()}"
    said, value = table.get(exclusive), table.get(name)
    if _is_number(said):
        found[exclusive] = said
    if _is_number(value):
        found[exclusive if said is True else name] = value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_scalar(value: object) -> bool:
    return value is None or (
        isinstance(value, str | int | float | bool) and len(str(value)) <= MAX_TEXT_LENGTH
    )


def _is_usable_enum(choices: list[Any]) -> bool:
    return (
        len(choices) <= MAX_ENUM_ENTRIES
        and all(_is_scalar(each) for each in choices)
        and sum(len(str(each)) for each in choices) <= MAX_ENUM_BYTES
    )


def _is_usable_pattern(pattern: object) -> bool:
    if not isinstance(pattern, str) or len(pattern) > MAX_PATTERN_LENGTH:
        return False
    try:
        # Compiles in linear time, and refuses what the validator would refuse too.
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True
