"""Values that are valid for a JSON Schema: enough of it for the documents of public APIs."""

import re
from typing import Any

Schema = dict[str, Any]
_TEXTS = {
    "date-time": "2026-01-02T03:04:05Z",
    "date": "2026-01-02",
    "uri": "https://example.org/a",
    "url": "https://example.org/a",
    "uuid": "7f2b1c9e-0d5a-4a57-9f3e-2b8f5f0c1d2e",
    "email": "a@example.org",
    "ipv4": "192.0.2.1",
    "binary": "aGVsbG8=",
    "byte": "aGVsbG8=",
}
_CANDIDATES = (
    *("a", "abc", "main", "1", "12", "0", "a1b2c3", "Ab1", "2026-01-02", "1.2.3.4", "#ffffff"),
    *("a@example.org", "https://example.org/a", "https://example.org/a.png", "nyc1", "a-b", "a.b"),
    *("4e48c4bc-5a5f-4a5c-8b5c-5a5f4a5c8b5c", "a" * 40, "0" * 40, "a" * 32, "/a", "10mb", "0.5"),
    *("do:space:a", "do:droplet:12", "USD", "0 0 * * *", "*", "a/b", "_x", "X", "10:00", "1.2.3"),
    *("refs/heads/a", f"sha256:{'a' * 64}"),
)


class SampleMaker:
    """Makes one value for a schema and its `$defs`."""

    def __init__(self, root: Schema, *, is_full: bool) -> None:
        self._definitions = root.get("$defs", {})
        self._is_full = is_full

    def make(self, schema: Schema, depth: int = 0) -> Any:
        if depth > 12:
            return {}
        if "$ref" in schema:
            return self.make(self._definitions[schema["$ref"].rpartition("/")[2]], depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        parts = [self.make(part, depth + 1) for part in schema.get("allOf", ())]
        choices = [schema[name] for name in ("anyOf", "oneOf") if name in schema]
        parts += [self.make(_first_real(each), depth + 1) for each in choices]
        if "type" not in schema and "properties" not in schema and parts:
            return _joined(parts)
        own = self._typed(schema, depth)
        return _joined([*parts, own]) if parts and isinstance(own, dict) else own

    def _typed(self, schema: Schema, depth: int) -> Any:
        is_object = "properties" in schema or "required" in schema
        kinds = schema.get("type", "object" if is_object else "string")
        kind = kinds if isinstance(kinds, str) else next(k for k in kinds if k != "null")
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            count = max(schema.get("minItems", 0), 1 if self._is_full and depth < 6 else 0)
            return [self.make(schema.get("items", {"type": "string"}), depth + 1)] * count
        if kind in ("integer", "number"):
            return _number(schema)
        if kind == "boolean":
            return True
        return _text(schema) if kind == "string" else None

    def _object(self, schema: Schema, depth: int) -> Schema:
        members, required = schema.get("properties", {}), set(schema.get("required", ()))
        chosen = [
            name
            for number, name in enumerate(members)
            if name in required or (self._is_full and depth < 3 and number < 6)
        ]
        return {name: self.make(members[name], depth + 1) for name in chosen}


def _first_real(parts: list[Schema]) -> Schema:
    return next(each for each in parts if each != {"type": "null"})


def _joined(parts: list[Any]) -> Any:
    objects: list[Schema] = [each for each in parts if isinstance(each, dict)]
    if len(objects) != len(parts):
        return next(each for each in parts if not isinstance(each, dict))
    return {name: value for each in objects for name, value in each.items()}


def _number(schema: Schema) -> int | float:
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
    high = schema.get("maximum", schema.get("exclusiveMaximum", low + 2) - 1)
    step = schema.get("multipleOf", 1)
    return max(low, min(high, 1)) if step == 1 else -(-max(low, step) // step) * step


def _text(schema: Schema) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", 10_000)
    if "pattern" in schema:
        fitting = (
            each
            for each in _CANDIDATES
            if least <= len(each) <= most and re.search(schema["pattern"], each)
        )
        return next(fitting, "a")
    text = _TEXTS.get(schema.get("format", ""), "a b/c?d&e=ü"[:most] if most < 50 else "a b&c=d")
    return text if least <= len(text) <= most else "x" * max(least, min(most, 3))
