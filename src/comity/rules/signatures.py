"""What a tool takes and gives, as typed fields; said in JSON Schema and as a tool of MCP. (REG)

Rule 1: a constraint stands only where it has a meaning; elsewhere the registration is refused.
Rule 2: what the signature says of a field is all there in the schema: also its enum, its default
        and its limits on items, which the registry's own sample leaves out. (D-80)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from msgspec import UNSET, UnsetType

from comity.wire.errors import Misconfigured

type Schema = dict[str, object]

CATALOGUE_VERSION: Final = "1.0.0"
"""What a tool, and the catalogue, is said to be a version of where nobody says otherwise."""

_SAID_AS: Final = {
    "min_length": "minLength",
    "max_length": "maxLength",
    "pattern": "pattern",
    "min_value": "minimum",
    "max_value": "maximum",
    "min_items": "minItems",
    "max_items": "maxItems",
    "enum": "enum",
}
_ABOUT: Final = {
    **dict.fromkeys(("min_length", "max_length", "pattern"), frozenset({"string"})),
    **dict.fromkeys(("min_value", "max_value"), frozenset({"integer", "number"})),
    **dict.fromkeys(("min_items", "max_items"), frozenset({"array"})),
}
_LIMITS: Final = (("min_length", "max_length"), ("min_value", "max_value"))
_SIZES: Final = ("min_length", "max_length", "min_items", "max_items")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """What a value must be beside its type; in Python it stands in `Annotated[str, …]`."""

    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    min_value: float | None = None
    max_value: float | None = None
    min_items: int | None = None
    max_items: int | None = None
    enum: tuple[object, ...] | None = None

    def imposed_on(self, schema: Mapping[str, object], where: str) -> Schema:
        """The schema with these constraints; raises Misconfigured where one has no meaning."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        given = {name: value for name, value in named.items() if value is not None}
        for name in given:
            meant = _ABOUT.get(name)
            if meant is not None and not meant & _types_of(schema):
                kinds = " or ".join(sorted(meant))
                raise Misconfigured(f"{where}: {name} is for {kinds}; take it away")
        self._check(where)
        said = {_SAID_AS[name]: value for name, value in given.items()}
        return {**schema, **said, **({"enum": list(self.enum)} if self.enum is not None else {})}

    def _check(self, where: str) -> None:
        if any((getattr(self, name) or 0) < 0 for name in _SIZES):
            raise Misconfigured(f"{where}: a length or a number of items cannot be negative")
        for least, most in (*_LIMITS, ("min_items", "max_items")):
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


NOTHING_MORE: Final = Constraints()


@dataclass(frozen=True, slots=True)
class InputField:
    """One thing that a tool takes; `kind` is the schema of its type."""

    name: str
    kind: Mapping[str, object]
    description: str = ""
    constraints: Constraints = NOTHING_MORE
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
        """A default makes a field one that may be left out."""
        return self.required and isinstance(self.default, UnsetType)


class OutputField(InputField):
    """One thing that a tool gives."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Signature:
    """A tool as it is registered: its name, what it takes and gives, and what it is about."""

    name: str
    description: str = ""
    inputs: tuple[InputField, ...] = ()
    outputs: tuple[OutputField, ...] = ()
    tags: tuple[str, ...] = ()
    hints: Mapping[str, bool] = field(default_factory=dict[str, bool])
    # Whether it takes what it names and nothing else, as a function does.
    is_closed: bool = False

    def to_json_schema(self) -> Schema:
        """What the arguments must be."""
        schema = schema_of(self.inputs, self.name)
        return {**schema, "additionalProperties": False} if self.is_closed else schema

    def to_mcp_tool(self) -> Schema:
        """The definition that MCP knows the tool by."""
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
"""Where a tool's definition says what it is about, for the catalogue."""


def schema_of(held: tuple[InputField, ...], owner: str) -> Schema:
    """An object with these fields; raises Misconfigured where two have one name."""
    names = [each.name for each in held]
    if len(names) != len(set(names)):
        raise Misconfigured(f"{owner}: two fields have the same name; rename one")
    return {
        "type": "object",
        "properties": {each.name: each.schema for each in held},
        "required": [each.name for each in held if each.is_required],
    }


def _types_of(schema: Mapping[str, object]) -> set[str]:
    """The JSON types a schema allows, also one beside null."""
    said = schema.get("type")
    kinds = {said} if isinstance(said, str) else set[str]()
    choices = schema.get("anyOf")
    if isinstance(choices, list):
        for choice in choices:  # type: ignore[misc]  # of anything
            if isinstance(choice, dict):
                kinds |= _types_of(choice)  # type: ignore[arg-type]  # JSON has only texts for keys
    return kinds
