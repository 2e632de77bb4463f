"""The tools that somebody may call, as an OpenAPI 3.1 document. (REG, D-87)

Each tool has a path of its own beside the one path of the registry's document, so that its schema
is the request's. A tool's schema is a stranger's text: within it only what stays inside of it may
be referred to, and what could reach farther is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from comity.rules.openapi_frame import OWN_SCHEMAS, PATHS, RESPONSES, SCHEMAS, body, operation
from comity.rules.signatures import CATALOGUE_VERSION, Schema

type Tool = Mapping[str, Any]

OPENAPI: Final = "3.1.0"
TITLE: Final = "Comity tool registry"
LONGEST_SUMMARY: Final = 120
DEEPEST: Final = 64

_DATA: Final = frozenset({"const", "enum", "default", "examples", "example"})
_BY_NAME: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
_NAMING: Final = ("$id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef", "id")


@dataclass(slots=True)
class Document:
    """A document in the making: one tool after the other, so that others have their turn."""

    paths: Schema = field(default_factory=lambda: dict(PATHS))
    schemas: Schema = field(default_factory=lambda: dict(OWN_SCHEMAS))
    tags: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, tool: Tool) -> None:
        self.paths |= _paths_of(tool)
        self.schemas |= _schemas_of(tool)
        self.tags |= dict.fromkeys(tool["tags"][:1])

    def whole(self, *, is_open: bool, following: str | None = None) -> Schema:
        """The document; `following` is where the next one is, if these are not all tools."""
        whole: Schema = {
            "openapi": OPENAPI,
            "info": {"title": TITLE, "version": CATALOGUE_VERSION},
            "servers": [{"url": "/"}],
            "security": [{}, {"bearer": []}] if is_open else [{"bearer": []}],
            "tags": [{"name": tag} for tag in self.tags],
            "paths": self.paths,
            "components": {
                "schemas": self.schemas,
                "responses": RESPONSES,
                "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            },
        }
        return whole if following is None else {**whole, "x-next": following}


def embedded(schema: object, home: str) -> object:
    """A tool's schema as it can stand at `home` in another document."""
    if not isinstance(schema, dict) or _names_itself(cast("Schema", schema), 0):
        return {"type": "object"}
    return _moved(cast("Schema", schema), home)


def _moved(schema: Schema, home: str) -> Schema:
    moved: Schema = {}
    for key, said in schema.items():
        if key == "$schema":
            continue
        if key == "$ref" and isinstance(said, str):
            moved[key] = home + said[1:]
        elif key in _DATA:
            moved[key] = said
        elif key in _BY_NAME and isinstance(said, dict):
            inner = cast("Schema", said)
            moved[key] = {name: _moved_part(part, home) for name, part in inner.items()}
        else:
            moved[key] = _moved_part(said, home)
    return _as_today(moved)


def _moved_part(said: object, home: str) -> object:
    if isinstance(said, dict):
        return _moved(cast("Schema", said), home)
    if isinstance(said, list):
        return [_moved_part(each, home) for each in cast("list[object]", said)]
    return said


def _as_today(schema: Schema) -> Schema:
    """What older drafts say otherwise, in the words of 2020-12."""
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema.pop("additionalItems")
    for limit, beyond in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(beyond), bool) and schema.pop(beyond) and limit in schema:
            schema[beyond] = schema.pop(limit)
    return schema


def _names_itself(said: object, depth: int) -> bool:
    """Whether something in it has an address of its own, or refers to one out of the document.

    It may take names of fields for keywords; then a schema is left out that could have stood.
    """
    if depth > DEEPEST:
        return True
    if isinstance(said, list):
        return any(_names_itself(each, depth + 1) for each in cast("list[object]", said))
    if not isinstance(said, dict):
        return False
    table = cast("Schema", said)
    pointer = table.get("$ref")
    if isinstance(pointer, str) and pointer != "#" and not pointer.startswith("#/"):
        return True
    if any(isinstance(table.get(name), str) for name in _NAMING):
        return True
    return any(_names_itself(each, depth + 1) for each in table.values())


def _schemas_of(tool: Tool) -> Schema:
    name: str = tool["name"]
    found: Schema = {
        f"{name}.input": embedded(tool["inputSchema"], f"{SCHEMAS}{name}.input"),
    }
    if tool.get("outputSchema") is not None:
        output = embedded(tool["outputSchema"], f"{SCHEMAS}{name}.output")
        content = {"$ref": f"{SCHEMAS}Content"}
        found[f"{name}.output"] = output
        found[f"{name}.wrapped"] = {
            "type": "object",
            "properties": {
                "content": {"type": "array", "items": content},
                "structuredContent": {"$ref": f"{SCHEMAS}{name}.output"},
            },
            "required": ["content"],
        }
    return found


def _paths_of(tool: Tool) -> Schema:
    name: str = tool["name"]
    given = f"{name}.wrapped" if tool.get("outputSchema") is not None else "ToolOutput"
    shown = operation(f"call_{name}", _summary(tool), f"{name}.input", given)
    tried = operation(f"validate_{name}", f"Check arguments of {name}", f"{name}.input", "Validity")
    told: Schema = {"tags": tool["tags"][:1]}
    description = tool.get("description")
    if description:
        told["description"] = description
    if tool.get("deprecated"):
        told["deprecated"] = True
    # Whether arguments pass is what is asked here, so all of them are taken.
    tried["requestBody"] = body("ToolInput")
    return {
        f"/tools/{name}": {"post": {**shown, **told}},
        f"/tools/{name}/validate": {"post": {**tried, "tags": tool["tags"][:1]}},
    }


def _summary(tool: Tool) -> str:
    first = str(tool.get("description") or "").strip().partition("\n")[0]
    return first[:LONGEST_SUMMARY] or f"Call {tool['name']}"
