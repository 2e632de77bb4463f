"""A Python function becomes a signature, and what JSON says becomes what it takes."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict, cast

import pytest

from comity.rules.annotations import build, plain, read_function, schema_for
from comity.rules.signatures import Constraints
from comity.wire.errors import Misconfigured


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: int = 0


class Loose(TypedDict):
    word: str
    more: NotRequired[list[int]]


@dataclass
class Parcel:
    to: Annotated[str, Constraints(min_length=1), "Where it goes"]
    at: Point
    colours: list[Colour] = field(default_factory=list[Colour])


@dataclass
class Knot:
    inside: "Knot | None" = None


PARCEL = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "minLength": 1, "description": "Where it goes"},
        "at": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
            "required": ["x"],
        },
        "colours": {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}},
    },
    "required": ["to", "at"],
}


def deliver(parcel: Parcel, way: Literal["air", "sea"], copies: int = 1) -> Loose:
    """Sends a parcel.

    Args:
        parcel: What to send.
    """
    raise NotImplementedError


def test_a_function_is_a_signature() -> None:
    tool = read_function(deliver).to_mcp_tool()
    assert tool == {
        "name": "deliver",
        "description": "Sends a parcel.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "parcel": {**PARCEL, "description": "What to send."},
                "way": {"type": "string", "enum": ["air", "sea"]},
                "copies": {"type": "integer", "default": 1},
            },
            "required": ["parcel", "way"],
            "additionalProperties": False,
        },
        "outputSchema": {
            "type": "object",
            "properties": {
                "word": {"type": "string"},
                "more": {"type": "array", "items": {"type": "integer"}},
            },
            "required": ["word"],
        },
    }


def test_a_parameter_without_a_type_is_refused_with_what_to_write() -> None:
    def send(parcel: Parcel, since=None) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(Misconfigured, match=r"send: since has no annotation; write its type"):
        read_function(cast("Any", send))


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list, {"type": "array"}),
        (dict, {"type": "object"}),
        (Any, {}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (Sequence[bool], {"type": "array", "items": {"type": "boolean"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Mapping[str, Any], {"type": "object", "additionalProperties": {}}),
        (Optional[str], {"anyOf": [{"type": "string"}, {"type": "null"}]}),  # noqa: UP045
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Literal["a", 1], {"enum": ["a", 1]}),
        (Literal[1, 2], {"type": "integer", "enum": [1, 2]}),
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (Parcel, PARCEL),
        (
            Annotated[list[int], Constraints(max_items=2)],
            {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        ),
    ],
)
def test_an_annotation_has_its_schema(annotation: object, schema: object) -> None:
    assert schema_for(annotation, "it") == schema


@pytest.mark.parametrize(
    "annotation",
    [
        datetime,
        bytes,
        object,
        set[int],
        tuple[int, ...],
        dict[int, str],
        type,
        "str",
        Literal[b"raw"],
        complex,
        Knot,
        list[datetime],
        Annotated[int, Constraints(pattern="x")],
    ],
)
def test_an_annotation_without_a_meaning_in_json_is_refused(annotation: object) -> None:
    with pytest.raises(Misconfigured, match=r"^it"):
        schema_for(annotation, "it")


def test_a_function_with_nameless_arguments_is_refused() -> None:
    def some(*words: str) -> None: ...
    def more(**words: str) -> None: ...
    def first(word: str, /) -> None: ...

    for function in (some, more, first):
        with pytest.raises(Misconfigured, match="a tool's arguments have names"):
            read_function(function)


def test_an_annotation_that_names_nothing_is_refused() -> None:
    def lost(word: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(Misconfigured, match="lost: an annotation cannot be read"):
        read_function(cast("Any", lost))


def test_what_is_no_object_is_given_under_one_name() -> None:
    def add(one: int, other: int) -> int:
        return one + other

    def silent() -> None: ...

    assert read_function(add, "plus").to_mcp_tool()["outputSchema"] == {
        "type": "object",
        "properties": {"result": {"type": "integer"}},
        "required": ["result"],
    }
    assert "outputSchema" not in read_function(silent).to_mcp_tool()


def test_a_default_is_said_where_json_can_say_it() -> None:
    def paint(colour: Colour = Colour.RED, at: object = None, by: Any = object()) -> None: ...  # noqa: B008

    paint.__annotations__["at"] = Point | None
    schema = read_function(paint).to_json_schema()
    properties: Any = schema["properties"]
    assert schema["required"] == []
    assert (properties["colour"]["default"], properties["at"]["default"]) == ("red", None)
    assert "default" not in properties["by"]


def test_json_becomes_what_the_annotation_names_and_back() -> None:
    said = {"to": "Ana", "at": {"x": 1, "y": 2}, "colours": ["blue"]}
    parcel = build(Parcel, said)
    assert parcel == Parcel("Ana", Point(1, 2), [Colour.BLUE])
    assert plain(parcel) == said


@pytest.mark.parametrize(
    ("annotation", "said", "made"),
    [
        (Point | None, None, None),
        (Point | None, {"x": 3}, Point(3)),
        (Colour | int, 3, 3),
        (Colour | int, "red", Colour.RED),
        (str | int, 4, 4),
        (int, 4.0, 4),
        (dict[str, Colour], {"a": "blue"}, {"a": Colour.BLUE}),
        (Annotated[list[Point], "places"], [{"x": 1}], [Point(1)]),
        (Loose, {"word": "a", "more": [1]}, {"word": "a", "more": [1]}),
        (Any, [1], [1]),
        (Literal["a"], "a", "a"),
    ],
)
def test_json_is_made_into_each_kind_of_type(annotation: object, said: object, made: Any) -> None:
    assert build(annotation, said) == made
