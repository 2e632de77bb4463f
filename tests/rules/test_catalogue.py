"""A tool in the catalogue: from its own definition, cut to size, whatever that holds."""

import json
from typing import Any

import pytest

from comity.rules.catalogue import (
    LONGEST_TAG,
    MOST_TAGS,
    entry,
    metadata_of,
    read_tool,
    tags_of,
    words_in,
    wrapped,
)

TOOL = {
    "name": "finance__get_stockPrice",
    "description": "Tells a price.",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True, "destructiveHint": False, "title": "Price"},
    "_meta": {"dev.comity/tags": ["quotes"], "dev.comity/category": "markets"},
}


def test_an_entry_has_the_registrys_four_members() -> None:
    assert entry("finance", "get_stockPrice", TOOL) == {
        "name": "finance__get_stockPrice",
        "description": "Tells a price.",
        "inputSchema": {"type": "object"},
        "tags": ["finance", "quotes", "read-only", "stock", "price"],
    }


def test_tags_are_few_short_and_printable() -> None:
    own = ["a\nb", "\x1b[2J", "", 7, "x" * 500, *(f"tag{number}" for number in range(50))]
    tags = tags_of("srv", "t", {"_meta": {"dev.comity/tags": own}})
    assert len(tags) == MOST_TAGS
    assert all(tag.isprintable() and len(tag) <= LONGEST_TAG for tag in tags)
    assert tags[:2] == ["srv", "a b"]


@pytest.mark.parametrize(
    ("tool", "about", "metadata"),
    [
        (TOOL, {"name": "quotes", "version": "2.1"}, ("markets", "2.1", False, "quotes")),
        ({"inputSchema": {"deprecated": True}}, {}, ("srv", "1.0.0", True, "srv")),
        ({"annotations": {"deprecated": True}}, {"version": 3}, ("srv", "1.0.0", True, "srv")),
        ({"_meta": [], "annotations": 1}, {"name": ""}, ("srv", "1.0.0", False, "srv")),
    ],
)
def test_what_is_known_of_a_tool_has_four_members(
    tool: Any, about: Any, metadata: tuple[object, ...]
) -> None:
    found = metadata_of("srv", tool, about)
    assert list(found) == ["category", "version", "deprecated", "author"]
    assert tuple(found.values()) == metadata


@pytest.mark.parametrize("definition", [b"[]", b"{", b"7", b'{"a":1,"a":2}', b"\xff"])
def test_a_definition_that_is_none_is_an_empty_one(definition: bytes) -> None:
    assert read_tool(definition) == {}


def text(said: str) -> dict[str, object]:
    return {"type": "text", "text": said}


@pytest.mark.parametrize(
    ("result", "output"),
    [
        ({"content": [text("hi")]}, {"content": [text("hi")]}),
        (
            {"content": [text(' {"a": 1}')]},
            {"content": [text(' {"a": 1}')], "structuredContent": {"a": 1}},
        ),
        ({"content": [text('{"a": 1')]}, {"content": [text('{"a": 1')]}),
        ({"content": [text('{"a":1,"a":2}')]}, {"content": [text('{"a":1,"a":2}')]}),
        (
            {"structuredContent": {"a": 1}},
            {"content": [text('{"a":1}')], "structuredContent": {"a": 1}},
        ),
        (
            {"content": [text("x"), text('{"a":1}')], "structuredContent": {"b": 2}},
            {"content": [text("x"), text('{"a":1}')], "structuredContent": {"b": 2}},
        ),
        ({"content": "no list", "isError": False}, {"content": []}),
        ({"content": [7], "_meta": {"a": 1}}, {"content": [7], "_meta": {"a": 1}}),
        ({}, {"content": []}),
    ],
)
def test_an_output_has_both_forms_where_it_can(result: Any, output: object) -> None:
    assert json.loads(json.dumps(wrapped(result))) == output


def test_what_a_result_says_is_its_texts() -> None:
    result = {"content": [text("one"), {"type": "image"}, 7, text("two")]}
    assert words_in(result) == "one\ntwo"
