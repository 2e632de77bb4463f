"""Typed inputs and outputs of a tool, and the JSON Schema and MCP definition made from them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from msgspec import UNSET, UnsetType

from comity.errors import Misconfigured

type Schema = dict[str, object]

CATALOGUE_VERSION: Final = "1.0.0"
"""The version of the catalogue, and of each tool whose server states none."""

_SCHEMA_KEYWORDS: Final = {
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
    "min_value": "minimum",
    "max_value": "maximum",
    "min_items": "minItems",
    "max_items": "maxItems",
    "enum": "enum",
}
_TYPE_BY_CONSTRAINT: Final = {
    **dict.fromkeys(("min_length", "max_length", "pattern"), frozenset({"string"})),
    **dict.fromkeys(("min_value", "max_value"), frozenset({"integer", "number"})),
    **dict.fromkeys(("min_items", "max_items"), frozenset({"array"})),
}
_LIMIT_PAIRS: Final = (("min_length", "max_length"), ("min_value", "max_value"))
_SIZE_CONSTRAINTS: Final = ("min_length", "max_length", "min_items", "max_items")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueConstraints:
    """Constraints on a value beyond its type; Python code writes them in `Annotated[str, …]`."""

    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    min_value: float | None = None
    max_value: float | None = None
    min_items: int | None = None
    max_items: int | None = None
    enum: tuple[object, ...] | None = None

    def imposed_on(self, schema: Mapping[str, object], where: str) -> Schema:
        """Return the schema with these constraints.

        Raises Misconfigured if a constraint does not apply to the type or contradicts another.
        """
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        given = {name: value for name, value in named.items() if value is not None}
        for name in given:
            meant = _TYPE_BY_CONSTRAINT.get(name)
            if meant is not None and not meant & _types_of(schema):
                kinds = " or ".join(sorted(meant))
                raise Misconfigured(f"{where}: {name} is for {kinds}; take it away")
        self._check(where)
        said = {_SCHEMA_KEYWORDS[name]: value for name, value in given.items()}
        return {**schema, **said, **({"enum": list(self.enum)} if self.enum is not None else {})}

    def _check(self, where: str) -> None:
        if any((getattr(self, name) or 0) < 0 for name in _SIZE_CONSTRAINTS):
            raise Misconfigured(f"{where}: a length or a number of items cannot be negative")
        for least, most in (*_LIMIT_PAIRS, ("min_items", "max_items")):
            low, high = getattr(self, least), getattr(self, most)
            if low is not None and high is not None and low > high:
                raise Misconfigured(f"{where}: {least} is above {most}; nothing would pass")
        if self.enum is not None and not self.enum:
            raise Misconfigured(f"{where}: an empty enum lets nothing pass")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise Misconfigured(f"{where}: the pattern cannot be read: {error}") from None


NO_CONSTRAINTS: Final = ValueConstraints()


@dataclass(frozen=True, slots=True)
class InputField:
    """One input of a tool; `kind` is the schema of its type."""

    name: str
    kind: Mapping[str, object]
    description: str = ""
    constraints: ValueConstraints = NO_CONSTRAINTS
    default: object = UNSET
    required: bool = True

    @property
    def schema(self) -> Schema:
        said = self.constraints.imposed_on(self.kind, self.name)
        if self.description:
            said["description"] = self.description
        if not isinstance(self.default, UnsetType):
            said["default"] = self.default
        return said

    @property
    def is_required(self) -> bool:
        """Whether a caller must give the field; a default makes it optional."""
        return self.required and isinstance(self.default, UnsetType)


class OutputField(InputField):
    """One member of a tool's output."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Signature:
    """A tool as it is registered: name, description, inputs, outputs and tags."""

    name: str
    description: str = ""
    inputs: tuple[InputField, ...] = ()
    outputs: tuple[OutputField, ...] = ()
    tags: tuple[str, ...] = ()
    hints: Mapping[str, bool] = field(default_factory=dict[str, bool])
    # Whether the tool rejects arguments that it does not name, as a function does.
    is_closed: bool = False

    def to_json_schema(self) -> Schema:
        """Return the schema of the arguments."""
        schema = schema_of(self.inputs, self.name)
        return {**schema, "additionalProperties": False} if self.is_closed else schema

    def to_mcp_tool(self) -> Schema:
        """Return the definition of the tool in MCP's form."""
        tool: Schema = {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.to_json_schema(),
        }
        if self.outputs:
            tool["outputSchema"] = schema_of(self.outputs, self.name)
        if self.hints:
            tool["annotations"] = dict(self.hints)
        if self.tags:
            tool["_meta"] = {TAGS_KEY: list(self.tags)}
        return tool


TAGS_KEY: Final = "dev.comity/tags"
"""The `_meta` key under which a definition lists the tags for the catalogue."""


def schema_of(object_fields: tuple[InputField, ...], owner: str) -> Schema:
    """Return the schema of an object with these fields.

    Raises Misconfigured if two fields have the same name.
    """
    names = [each.name for each in object_fields]
    if len(names) != len(set(names)):
        raise Misconfigured(f"{owner}: two fields have the same name; rename one")
    return {
        "type": "object",
        "properties": {each.name: each.schema for each in object_fields},
        "required": [each.name for each in object_fields if each.is_required],
    }


def _types_of(schema: Mapping[str, object]) -> set[str]:
    """Return the JSON types that a schema allows, including those in `anyOf`."""
    said = schema.get("type")
    kinds = {said} if isinstance(said, str) else set[str]()
    choices = schema.get("anyOf")
    if isinstance(choices, list):
        for choice in choices:  # type: ignore[misc]  # of anything
            if isinstance(choice, dict):
                kinds |= _types_of(choice)  # type: ignore[arg-type]  # JSON has only texts for keys
    return kinds
