"""A stranger's schema as people read it, and what they type as the schema wants it."""

import pytest

from comity.cli.schemas import Argument, arguments_of, example_of, read_arguments
from comity.wire.errors import Misconfigured

SCHEMA = {
    "type": "object",
    "required": ["city", "days"],
    "properties": {
        "city": {"type": "string", "description": "Where"},
        "days": {"type": "integer", "default": 3},
        "unit": {"enum": ["celsius", "kelvin"], "description": "How warm"},
        "exact": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"$ref": "#/$defs/place"},
    },
    "$defs": {
        "place": {
            "type": "object",
            "required": ["lat"],
            "properties": {"lat": {"type": "number"}, "again": {"$ref": "#/$defs/place"}},
        }
    },
}


def test_every_argument_is_told_with_its_type_and_meaning() -> None:
    told = {each.name: each for each in arguments_of(SCHEMA)}
    assert told["city"] == Argument("city", "string", True, "Where")
    assert told["days"].about == "(default 3)"
    assert told["unit"] == Argument("unit", "one of", False, "celsius, kelvin. How warm")
    assert told["exact"].kind == "boolean"
    assert told["tags"].kind == "array of string"
    assert (told["place"].kind, told["place.lat"].required) == ("object", True)


def test_a_schema_that_holds_itself_is_told_to_a_bounded_depth() -> None:
    assert 0 < len(arguments_of(SCHEMA)) < 30


@pytest.mark.parametrize(
    "schema",
    [
        None,
        5,
        [],
        {"properties": []},
        {"properties": {"x": None}},
        {"properties": {"x": {"type": 5, "enum": 5, "items": 5, "$ref": "#/a/b"}}, "required": 5},
        {"properties": {"x": {"anyOf": [5, None], "$ref": 5}}},
    ],
)
def test_whatever_a_schema_holds_it_is_read_to_its_end(schema: object) -> None:
    for argument in arguments_of(schema):
        assert argument.name == "x"


def test_a_schema_of_thousands_is_cut() -> None:
    huge = {"properties": {f"x{n}": {"type": "string"} for n in range(5000)}}
    assert len(arguments_of(huge)) == 200


def test_what_must_be_said_is_shown_as_it_is_typed() -> None:
    assert example_of(arguments_of(SCHEMA)) == "city=STRING days=INTEGER"


def test_a_value_is_read_as_its_schema_wants_it() -> None:
    typed = ["city=5", "days=5", "exact=true", 'tags=["a"]', "other=5", "more:=5", "text:=null"]
    assert read_arguments(typed, None, SCHEMA) == {
        "city": "5",
        "days": 5,
        "exact": True,
        "tags": ["a"],
        "other": "5",
        "more": 5,
        "text": None,
    }


def test_what_is_typed_stands_over_the_whole_object() -> None:
    assert read_arguments(["days=2"], '{"days": 1, "city": "Ulm"}', SCHEMA) == {
        "days": 2,
        "city": "Ulm",
    }


@pytest.mark.parametrize(
    ("pairs", "whole", "named"),
    [
        (["days"], None, "key=value"),
        (["=5"], None, "key=value"),
        ([":=5"], None, "key=value"),
        (["days=soon"], None, "integer"),
        (["days:=soon"], None, "JSON"),
        ([], "[]", "object"),
        ([], "{", "JSON"),
    ],
)
def test_what_cannot_be_an_argument_is_the_operators_mistake(
    pairs: list[str], whole: str | None, named: str
) -> None:
    with pytest.raises(Misconfigured, match=named):
        read_arguments(pairs, whole, SCHEMA)
