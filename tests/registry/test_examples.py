"""Examples made from schemas: they pass, they are the same each time, and they have an end."""

import time
from typing import Any

import jsonschema_rs
from hypothesis import given
from hypothesis import strategies as st

from comity.registry.examples import MAX_EXAMPLE_DEPTH, generate_candidates
from tests.support.cases import loop_over

TIDES = {
    "type": "object",
    "properties": {
        "harbour": {"type": "string", "pattern": "^[A-Z]{1,5}$", "maxLength": 5},
        "days": {"type": "integer", "minimum": 1, "maximum": 365},
        "datum": {"enum": ["mean", "lowest"], "default": "mean"},
    },
    "required": ["harbour", "days"],
    "additionalProperties": False,
}


def held(schema: object) -> dict[str, Any]:
    return {"type": "object", "properties": {"it": schema}, "required": ["it"]}


def test_a_tool_has_examples() -> None:
    made = list(generate_candidates(TIDES))
    assert made[0] == {"harbour": "A", "days": 1}
    assert made[1] == {"harbour": "A", "days": 365, "datum": "lowest"}
    assert all(jsonschema_rs.is_valid(TIDES, each) for each in made)


def test_what_the_schema_itself_gives_as_an_example_comes_first() -> None:
    own = {"harbour": "BREST", "days": 90}
    assert next(generate_candidates({**TIDES, "examples": [own, "no object"]})) == own


def test_the_same_schema_has_the_same_examples() -> None:
    assert list(generate_candidates(TIDES)) == list(generate_candidates(TIDES))


@loop_over(
    "schema",
    [
        {"type": "string", "minLength": 30, "maxLength": 31},
        {"type": "string", "maxLength": 0},
        {"type": "string", "pattern": "^[a-z]*$", "minLength": 12},
        *({"type": "string", "format": each} for each in ("date-time", "email", "uuid", "ipv6")),
        {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 6},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "integer", "multipleOf": 7, "minimum": 15},
        {"type": "integer", "maximum": -3},
        {"type": "number", "multipleOf": 0.25, "minimum": 0.3},
        {"type": "integer", "multipleOf": 1e-300},
        {"type": "array", "items": {"type": "integer"}, "minItems": 3, "uniqueItems": True},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}], "items": False},
        {"type": "array", "contains": {"const": 7}},
        {"type": ["null", "integer"]},
        {"const": {"a": [1]}},
        {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 3}]},
        {"oneOf": [{"type": "string", "format": "uri"}, {"type": "boolean"}]},
        {"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"const": 1}}}]},
        {"type": "object", "minProperties": 2, "additionalProperties": {"type": "integer"}},
        {"type": "object", "required": ["x"]},
        {"minimum": 3},
        {},
        True,
    ],
)
def test_an_example_is_made_that_passes(schema: object) -> None:
    whole = held(schema)
    made = list(generate_candidates(whole))
    assert any(jsonschema_rs.is_valid(whole, each, validate_formats=True) for each in made)


def test_references_within_the_document_are_followed() -> None:
    schema = {
        **held({"$ref": "#/$defs/a~1b/anyOf/1"}),
        "$defs": {"a/b": {"anyOf": [{}, {"type": "integer", "minimum": 5}]}},
    }
    assert next(generate_candidates(schema)) == {"it": 5}


@loop_over("pointer", ["http://127.0.0.1:9/x", "#/nowhere", "#/a/999999999", "#x"])
def test_a_reference_that_leads_nowhere_is_anything(pointer: str) -> None:
    assert next(generate_candidates(held({"$ref": pointer}))) == {"it": "text"}


@loop_over(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#"}, "b": {"$ref": "#"}}},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"type": "object", "required": [f"k{number}" for number in range(5000)]},
        held({"type": "array", "minItems": 10**9, "items": {"type": "string"}}),
        held({"type": "string", "minLength": 10**12}),
        held({"type": "object", "minProperties": 10**9}),
        held({"type": "integer", "minimum": 10**400}),
        held({"type": "string", "pattern": "(a{999}){999}"}),
        {
            "type": "object",
            "$defs": {
                f"d{n}": {"type": "array", "minItems": 9, "items": {"$ref": f"#/$defs/d{n + 1}"}}
                for n in range(20)
            },
            "properties": {"a": {"$ref": "#/$defs/d0"}},
            "required": ["a"],
        },
    ],
)
def test_a_hostile_schema_ends_and_stays_small(schema: object) -> None:
    began = time.process_time()
    for made in generate_candidates(schema):
        assert len(repr(made)) < 100_000
        assert depth(made) <= MAX_EXAMPLE_DEPTH + 1
    assert time.process_time() - began < 2


def depth(value: object) -> int:
    held_in: Any = value.values() if isinstance(value, dict) else value  # type: ignore[union-attr]
    is_holder = isinstance(value, dict | list)
    return 1 + max((depth(each) for each in held_in), default=0) if is_holder else 0


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "required",
                    "items",
                    "enum",
                    "const",
                    "default",
                    "examples",
                    "anyOf",
                    "allOf",
                    "oneOf",
                    "$ref",
                    "minimum",
                    "maximum",
                    "multipleOf",
                    "minLength",
                    "maxLength",
                    "pattern",
                    "minItems",
                    "uniqueItems",
                    "exclusiveMinimum",
                    "prefixItems",
                    "minProperties",
                    "additionalProperties",
                    "format",
                ]
            ),
            inner | st.sampled_from(["object", "array", "integer", "string", "#", "#/properties"]),
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(json)
def test_no_schema_is_too_strange_to_be_read(schema: object) -> None:
    for made in generate_candidates(schema):
        assert isinstance(made, dict)
