"""What a tool is about, read from whatever its server wrote."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.search_words import Field
from comity.rules.tool_facts import (
    MOST_CATEGORIES,
    MOST_KEYWORDS,
    MOST_PARAMETERS,
    category_of,
    facts_of,
    holders_of,
    permissions_of,
    texts_of,
)


def facts(name: str = "tool", **definition: Any) -> Any:
    return facts_of(name, json.dumps(definition).encode())


def test_a_definition_is_read_by_its_fields() -> None:
    found = facts(
        "read_file",
        title="Read",
        description="Read a file.",
        inputSchema={"properties": {"path": {"description": "where it is"}, "odd": 3}},
    )
    assert found.title == "Read"
    assert found.description == "Read a file."
    assert found.parameters == (("path", "where it is"), ("odd", ""))
    assert found.categories == ("filesystem/read",)
    texts = dict(texts_of("read_file", found, "Files", "All files of this machine"))
    assert texts[Field.NAME] == "read_file"
    assert texts[Field.PARAMETERS] == "path odd"
    assert texts[Field.SERVER_TITLE] == "Files"


def test_a_title_may_stand_among_the_annotations() -> None:
    assert facts(annotations={"title": "Read"}).title == "Read"


@pytest.mark.parametrize(
    ("name", "description", "category"),
    [
        ("delete_event", "", "calendar/delete"),
        ("search", "Search the web for pages", "web/search"),
        ("search", "", "other/search"),
        ("frobnicate", "", "other"),
        ("get_weather", "Give the forecast.", "weather/read"),
    ],
)
def test_categories_are_guessed_from_words(name: str, description: str, category: str) -> None:
    assert facts(name, description=description).categories == (category,)


def test_what_is_declared_comes_before_what_is_needed_and_what_is_guessed() -> None:
    found = facts(
        "read_file",
        _meta={"dev.comity/category": "Office / Papers"},
        security={"permissions_required": ["filesystem.read", "network.outbound"]},
    )
    assert found.categories == ("office/papers", "filesystem/read", "network/outbound")


def test_permissions_stand_in_either_place_where_sdks_leave_them() -> None:
    needs = {"permissions_required": ["a.b", 3]}
    assert permissions_of({"security": needs}) == ("a.b",)
    assert permissions_of({"_meta": {"dev.comity/security": needs}}) == ("a.b",)
    assert permissions_of({}) == ()


def test_keywords_come_from_metadata() -> None:
    found = facts(_meta={"dev.comity/tags": ["a", " b  c "], "dev.comity/keywords": ["a", "", 1]})
    assert found.keywords == ("a", "b c")


def test_a_category_lies_in_those_that_hold_it() -> None:
    assert list(holders_of("a/b/c")) == ["a/b/c", "a/b", "a"]
    assert category_of("Web > Search::Deep/er/too deep") == "web/search/deep/er"
    assert category_of(" / ") == ""


def test_a_server_that_writes_without_end_is_cut_short() -> None:
    parameters = {f"p{n}" * 50: {"description": "w " * 9_999} for n in range(200)}
    found = facts(
        "x" * 10_000,
        title="t" * 10_000,
        description="d " * 500_000,
        inputSchema={"properties": parameters},
        _meta={
            "dev.comity/tags": [f"tag {n}" for n in range(1_000)],
            "dev.comity/category": [f"c{n}/" * 50 for n in range(1_000)],
        },
    )
    assert len(found.parameters) == MOST_PARAMETERS
    assert len(found.keywords) == MOST_KEYWORDS
    assert len(found.categories) == MOST_CATEGORIES
    size = sum(len(text) for _, text in texts_of("x", found, "", ""))
    assert size < 40_000


MEMBERS = st.text() | st.sampled_from(
    (
        *("name", "description", "inputSchema", "properties", "_meta", "security", "annotations"),
        *("dev.comity/category", "dev.comity/tags", "permissions_required"),
    )
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(MEMBERS, inner),
    max_leaves=30,
)


@given(ANYTHING)
def test_no_definition_breaks_it(definition: object) -> None:
    found = facts_of("any_name", json.dumps(definition).encode())
    assert found.categories
    list(texts_of("any_name", found, "", ""))


@pytest.mark.parametrize("definition", [b"", b"{", b"[]", b"\xff", b'{"description": 5}'])
def test_what_cannot_be_read_is_a_tool_with_a_name(definition: bytes) -> None:
    assert facts_of("send_mail", definition).categories == ("mail/send",)
