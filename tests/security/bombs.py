"""Schemas and arguments that are small to write and large to check, each made by its name."""

from typing import Any

type Bomb = tuple[dict[str, Any], dict[str, Any]]


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def doubled(levels: int) -> Bomb:
    """Each definition names the next one twice."""
    definitions: dict[str, Any] = {
        f"a{level}": {"allOf": [{"$ref": f"#/$defs/a{level + 1}"}] * 2} for level in range(levels)
    }
    definitions[f"a{levels}"] = {"type": "object"}
    return {"type": "object", "$defs": definitions, "$ref": "#/$defs/a0"}, {"a": 1}


def unevaluated(levels: int) -> Bomb:
    schema, arguments = doubled(levels)
    return {**schema, "unevaluatedProperties": False}, arguments


def recursive(depth: int) -> Bomb:
    """Every level of the arguments is visited twice by the level above it."""
    again = {"properties": {"a": {"$ref": "#/$defs/t"}}}
    definition = {"allOf": [again, {**again, "minProperties": 0}]}
    return {"type": "object", "$defs": {"t": definition}, "$ref": "#/$defs/t"}, _nested(depth)


def recursive_any(depth: int) -> Bomb:
    again = [{"properties": {"a": {"$ref": "#/$defs/t"}}, "required": [name]} for name in "xyz"]
    definition = {"anyOf": [*again, {"type": "string"}]}
    return {"type": "object", "$defs": {"t": definition}, "$ref": "#/$defs/t"}, _nested(depth)


def _nested(depth: int) -> dict[str, Any]:
    inside: dict[str, Any] = {}
    for _ in range(depth):
        inside = {"a": inside}
    return inside


def nested(levels: int) -> Bomb:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(min(levels, 400)):  # as deep as can be encoded at all
        schema = {"allOf": [schema], "type": "object"}
    return schema, {}


def large(members: int) -> Bomb:
    return _object(**{f"a{number}": {"type": "string"} for number in range(members)}), {"a1": "x"}


def pattern(pattern: str, text: str, times: int, after: str) -> Bomb:
    return _object(a={"type": "string", "pattern": pattern}), {"a": text * times + after}


def patterns(count: int, times: int) -> Bomb:
    several = [{"pattern": f"^(\\w{{1,20}}){{1,10}}x{number}$"} for number in range(count)]
    return _object(a={"type": "string", "anyOf": several}), {"a": "a" * times}


def names(pattern: str, text: str, times: int, after: str) -> Bomb:
    return {"type": "object", "patternProperties": {pattern: {}}}, {text * times + after: 1}


def unique(items: int) -> Bomb:
    several = [{"a": number, "b": [number]} for number in range(items)]
    return _object(a={"type": "array", "uniqueItems": True}), {"a": several}


def enum(options: int, times: int) -> Bomb:
    several = [{"a": [number] * 2} for number in range(options)]
    return _object(a={"enum": several}), {"a": {"a": [options]} if times else None}


def deep_arguments(depth: int) -> Bomb:
    return {"type": "object"}, _nested(depth)


def wide_arguments(members: int) -> Bomb:
    return {"type": "object", "additionalProperties": {"type": "integer"}}, {
        f"a{number}": number for number in range(members)
    }


def long_text(times: int) -> Bomb:
    return _object(a={"type": "string", "pattern": "^[a-z]+$", "maxLength": times}), {
        "a": "a" * times
    }
