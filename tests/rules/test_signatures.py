"""Typed fields become JSON Schema; what cannot be said in it is refused when it is registered."""

import pytest

from comity.rules.signatures import (
    Constraints,
    InputField,
    OutputField,
    Signature,
    map_type,
)
from comity.wire.errors import Misconfigured

ANALYZER = Signature(
    "FinancialAnalyzer",
    "Analyzes stock data and returns investment recommendations",
    (
        InputField(
            "ticker_symbol",
            "String",
            "Stock ticker symbol (e.g., AAPL)",
            Constraints(min_length=1, max_length=5, pattern="^[A-Z]{1,5}$"),
        ),
        InputField("period_days", "u32", "Days", Constraints(min_value=1, max_value=365)),
        InputField(
            "analysis_type",
            "String",
            constraints=Constraints(enum=("technical", "fundamental", "sentiment")),
            default="technical",
        ),
        InputField("notes", {"type": "array", "items": {"type": "string"}}, required=False),
    ),
    (OutputField("score", "f64"),),
    ("finance",),
    {"readOnlyHint": True},
)


def test_a_signature_becomes_the_documents_own_definition() -> None:
    assert ANALYZER.to_mcp_tool() == {
        "name": "FinancialAnalyzer",
        "description": "Analyzes stock data and returns investment recommendations",
        "inputSchema": {
            "type": "object",
            "properties": {
                "ticker_symbol": {
                    "type": "string",
                    "description": "Stock ticker symbol (e.g., AAPL)",
                    "pattern": "^[A-Z]{1,5}$",
                    "minLength": 1,
                    "maxLength": 5,
                },
                "period_days": {
                    "type": "integer",
                    "description": "Days",
                    "minimum": 1,
                    "maximum": 365,
                },
                "analysis_type": {
                    "type": "string",
                    "enum": ["technical", "fundamental", "sentiment"],
                    "default": "technical",
                },
                "notes": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["ticker_symbol", "period_days"],
        },
        "outputSchema": {
            "type": "object",
            "properties": {"score": {"type": "number"}},
            "required": ["score"],
        },
        "annotations": {"readOnlyHint": True},
        "_meta": {"dev.comity/tags": ["finance"]},
    }


@pytest.mark.requirement("REG-map-types", "REG-map-default")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        *(("String", "string"), ("bool", "boolean")),
        *((name, "integer") for name in ("i32", "i64", "u32", "u64")),
        *((name, "number") for name in ("f32", "f64")),
        *((name, "string") for name in ("Vec<u8>", "", "string", "I32", "HashMap")),
    ],
)
def test_a_type_is_known_by_its_name_in_rust_and_any_other_is_text(name: str, said: str) -> None:
    assert map_type(name) == said


def test_limits_on_items_are_said_of_a_list() -> None:
    field = InputField("all", {"type": "array"}, constraints=Constraints(min_items=1, max_items=3))
    assert field.schema == {"type": "array", "minItems": 1, "maxItems": 3}


def test_a_constraint_reaches_what_may_be_left_null() -> None:
    kind = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    field = InputField("word", kind, constraints=Constraints(max_length=3))
    assert field.schema == {**kind, "maxLength": 3}


@pytest.mark.parametrize(
    ("kind", "constraints"),
    [
        ("u32", Constraints(min_length=1)),
        ("String", Constraints(min_value=1)),
        ("String", Constraints(max_items=1)),
        ("bool", Constraints(pattern="x")),
        ("String", Constraints(min_length=3, max_length=2)),
        ("String", Constraints(min_length=-1)),
        ("i64", Constraints(min_value=2, max_value=1)),
        ("String", Constraints(pattern="(")),
        ("String", Constraints(enum=())),
    ],
)
def test_a_constraint_without_a_meaning_is_refused(kind: str, constraints: Constraints) -> None:
    with pytest.raises(Misconfigured, match=r"^word: "):
        _ = InputField("word", kind, constraints=constraints).schema


def test_two_fields_of_one_name_are_refused() -> None:
    twice = Signature("twin", inputs=(InputField("a", "String"), InputField("a", "u32")))
    with pytest.raises(Misconfigured, match="two fields"):
        twice.to_json_schema()


def test_a_default_makes_a_field_one_that_may_be_left_out() -> None:
    schema = Signature("tool", inputs=(InputField("a", "String", default=None),)).to_json_schema()
    assert schema == {
        "type": "object",
        "properties": {"a": {"type": "string", "default": None}},
        "required": [],
    }
