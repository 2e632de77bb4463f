"""A form is flat and bounded, and what is filled in fits it or is refused."""

from typing import Any

import pytest

from comity.rules.forms import MOST_CHOICES, MOST_FIELDS, choices_of, form_in, why_unfit

FIELDS: dict[str, Any] = {
    "database": {"type": "string", "enum": ["staging", "production"]},
    "name": {"type": "string", "minLength": 1, "maxLength": 9, "description": "Yours"},
    "mail": {"type": "string", "format": "email"},
    "page": {"type": "string", "format": "uri"},
    "day": {"type": "string", "format": "date"},
    "moment": {"type": "string", "format": "date-time"},
    "share": {"type": "number", "minimum": 0, "maximum": 0.5},
    "count": {"type": "integer", "minimum": 1, "maximum": 10},
    "sure": {"type": "boolean", "default": False},
    "tone": {"type": "string", "oneOf": [{"const": "#f00", "title": "Red"}]},
    "some": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "maxItems": 1},
}
SCHEMA = {"type": "object", "properties": FIELDS, "required": ["database"]}
FORM = form_in(SCHEMA)
NOTHING: dict[str, object] = {}


def of(**field: object) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": field}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database", "staging"),
        ("name", "ana"),
        ("mail", "a@example.org"),
        ("page", "https://example.org/"),
        ("day", "2026-02-28"),
        ("moment", "2026-02-28T12:00:00Z"),
        ("share", 0.25),
        ("share", 0),
        ("count", 10),
        ("sure", True),
        ("tone", "#f00"),
        ("some", ["a"]),
        ("some", []),
    ],
)
def test_what_fits_is_taken(name: str, value: object) -> None:
    assert why_unfit(FORM, {"database": "production", name: value}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("database", "elsewhere"),
        ("database", ["staging"]),
        ("name", ""),
        ("name", "0123456789"),
        ("name", None),
        ("mail", "nobody"),
        ("page", "nowhere"),
        ("page", "http://["),
        ("day", "28.2.2026"),
        ("moment", "2026-02-28T12:00:00"),
        ("moment", "noon"),
        ("share", 0.6),
        ("share", "0.1"),
        ("share", True),
        ("count", 0),
        ("count", 1.5),
        ("sure", "yes"),
        ("tone", "Red"),
        ("some", "a"),
        ("some", ["c"]),
        ("some", ["a", "b"]),
        ("some", [NOTHING]),
        ("more", 1),
    ],
)
def test_what_does_not_fit_is_refused_without_repeating_it(name: str, value: object) -> None:
    because = why_unfit(FORM, {"database": "production", name: value})
    assert because is not None
    assert "elsewhere" not in because


def test_what_is_required_has_to_be_filled_in() -> None:
    assert why_unfit(FORM, {}) == "the field 'database' has to be filled in"


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [1],
        NOTHING,
        {"type": "array", "properties": FIELDS},
        {"type": "object", "properties": NOTHING},
        {"type": "object", "properties": [1]},
        {"type": "object", "properties": {"x": 1}},
        of(type="object", properties={}),
        of(type=["string", "null"]),
        of(),
        of(type="array", items={"type": "string"}),
        of(type="array", items={"type": "integer", "enum": ["a"]}),
        of(type="array"),
        of(type="string", enum=[]),
        of(type="string", enum=[1]),
        of(type="string", enum=["a\x1b"]),
        of(type="string", oneOf=[{"title": "x"}]),
        of(type="string", enum=[str(number) for number in range(MOST_CHOICES + 1)]),
        {**SCHEMA, "required": ["other"]},
        {**SCHEMA, "required": [NOTHING]},
        {**SCHEMA, "required": "database"},
        {"type": "object", "properties": {"a\nb": {"type": "string"}}},
        {"type": "object", "properties": {"": {"type": "string"}}},
        {
            "type": "object",
            "properties": {str(n): {"type": "string"} for n in range(MOST_FIELDS + 1)},
        },
    ],
)
def test_what_is_no_flat_form_is_refused(schema: object) -> None:
    with pytest.raises(ValueError, match=r"form|field"):
        form_in(schema)


def test_only_what_is_understood_is_kept_and_words_are_made_safe() -> None:
    kept = form_in(of(type="string", pattern="(a+)+$", title="A\x1b[2J", description="b" * 9000))
    field: Any = kept["properties"]
    assert field["x"].keys() == {"type", "title", "description"}
    assert "\x1b" not in field["x"]["title"]
    assert len(field["x"]["description"]) == 2000


def test_choices_are_found_in_each_of_their_spellings() -> None:
    assert choices_of({"enum": ["a", 1, "b"]}) == ("a", "b")
    assert choices_of({"anyOf": [{"const": "a"}, {"const": 1}]}) == ("a",)
    assert choices_of({"type": "string"}) == ()
