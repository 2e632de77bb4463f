"""Typed fields become JSON Schema; what cannot be said in it is refused when it is registered."""

import pytest

from comity.catalog.signatures import InputField, OutputField, Signature, ValueConstraints
from comity.errors import Misconfigured
from tests.support.cases import loop_over

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}

FORECAST = Signature(
    "TideForecast",
    "Says when the water of a harbour is high",
    (
        InputField(
            "harbour",
            TEXT,
            "The harbour, in capitals",
            ValueConstraints(min_length=1, max_length=5, pattern="^[A-Z]{1,5}$"),
        ),
        InputField("days", WHOLE, "Days", ValueConstraints(min_value=1, max_value=365)),
        InputField(
            "datum",
            TEXT,
            constraints=ValueConstraints(enum=("mean", "lowest", "highest")),
            default="mean",
        ),
        InputField("notes", {"type": "array", "items": {"type": "string"}}, required=False),
    ),
    (OutputField("score", {"type": "number"}),),
    ("sea",),
    {"readOnlyHint": True},
)


def test_a_signature_becomes_the_definition_of_a_tool() -> None:
    assert FORECAST.to_mcp_tool() == {
        "name": "TideForecast",
        "description": "Says when the water of a harbour is high",
        "inputSchema": {
            "type": "object",
            "properties": {
                "harbour": {
                    "type": "string",
                    "description": "The harbour, in capitals",
                    "pattern": "^[A-Z]{1,5}$",
                    "minLength": 1,
                    "maxLength": 5,
                },
                "days": {
                    "type": "integer",
                    "description": "Days",
                    "minimum": 1,
                    "maximum": 365,
                },
                "datum": {
                    "type": "string",
                    "enum": ["mean", "lowest", "highest"],
                    "default": "mean",
                },
                "notes": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["harbour", "days"],
        },
        "outputSchema": {
            "type": "object",
            "properties": {"score": {"type": "number"}},
            "required": ["score"],
        },
        "annotations": {"readOnlyHint": True},
        "_meta": {"dev.comity/tags": ["sea"]},
    }


def test_limits_on_items_are_said_of_a_list() -> None:
    field = InputField(
        "all", {"type": "array"}, constraints=ValueConstraints(min_items=1, max_items=3)
    )
    assert field.schema == {"type": "array", "minItems": 1, "maxItems": 3}


def test_a_constraint_reaches_what_may_be_left_null() -> None:
    kind = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    field = InputField("word", kind, constraints=ValueConstraints(max_length=3))
    assert field.schema == {**kind, "maxLength": 3}


@loop_over(
    ("kind", "constraints"),
    [
        (WHOLE, ValueConstraints(min_length=1)),
        (TEXT, ValueConstraints(min_value=1)),
        (TEXT, ValueConstraints(max_items=1)),
        ({"type": "boolean"}, ValueConstraints(pattern="x")),
        (TEXT, ValueConstraints(min_length=3, max_length=2)),
        (TEXT, ValueConstraints(min_length=-1)),
        (WHOLE, ValueConstraints(min_value=2, max_value=1)),
        (TEXT, ValueConstraints(pattern="(")),
        (TEXT, ValueConstraints(enum=())),
    ],
)
def test_a_constraint_without_a_meaning_is_refused(
    kind: dict[str, object], constraints: ValueConstraints
) -> None:
    with pytest.raises(Misconfigured, match=r"^word: "):
        _ = InputField("word", kind, constraints=constraints).schema


def test_two_fields_of_one_name_are_refused() -> None:
    twice = Signature("twin", inputs=(InputField("a", TEXT), InputField("a", WHOLE)))
    with pytest.raises(Misconfigured, match="two fields"):
        twice.to_json_schema()


def test_a_default_makes_a_field_one_that_may_be_left_out() -> None:
    schema = Signature("tool", inputs=(InputField("a", TEXT, default=None),)).to_json_schema()
    assert schema == {
        "type": "object",
        "properties": {"a": {"type": "string", "default": None}},
        "required": [],
    }
