"""A server put into a client's configuration and taken out again, with all else as it was."""

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.cli.clients import CLIENTS, Shape
from comity.cli.edits import entries_of, holds_nothing, snippet, with_entry, without_entry
from comity.cli.jsonc import plain_json
from comity.cli.writing import toml_text
from comity.wire.errors import Misconfigured

ENTRY = {"type": "http", "url": "http://127.0.0.1:2664/mcp"}
OTHER = '{\n    "zebra": 1.5,\n    "mcpServers": {\n        "other": {"command": "x"}\n    }\n}\n'
CODEX = """\
# My settings.
model = "o5"   # the good one

[mcp_servers.other]
command = "x"

[mcp_servers."a.b"]
url = "https://example.org"

[profiles.fast]
model = "o5-mini"
"""


def test_all_that_was_there_stays_in_its_order() -> None:
    edited = with_entry(OTHER, "json", "mcpServers", "comity", ENTRY)
    found = json.loads(edited)
    assert list(found) == ["zebra", "mcpServers"]
    assert found["mcpServers"] == {"other": {"command": "x"}, "comity": ENTRY}
    assert '\n    "zebra"' in edited
    assert edited.endswith("}\n")


def test_what_is_taken_out_leaves_what_was_there() -> None:
    edited = with_entry(OTHER, "json", "mcpServers", "comity", ENTRY)
    assert json.loads(without_entry(edited, "json", "mcpServers", "comity")) == json.loads(OTHER)


@pytest.mark.parametrize("text", ["", "  \n", "{}", '\ufeff{"mcpServers": {}}', '{"a": 1}'])
def test_an_empty_place_is_made_where_there_is_none(text: str) -> None:
    edited = with_entry(text, "json", "mcpServers", "comity", ENTRY)
    assert entries_of(edited, "json", "mcpServers") == {"comity": ENTRY}
    assert edited.startswith("\ufeff") == text.startswith("\ufeff")


@pytest.mark.parametrize(
    "text",
    [
        "// mine\n{}",
        '{"a": 1,}',
        '{"a": 1, "a": 2}',
        "[]",
        '{"mcpServers": []}',
        "{",
        "[" * 100_000,
    ],
)
def test_what_could_not_be_kept_is_not_touched(text: str) -> None:
    with pytest.raises(Misconfigured):
        with_entry(text, "json", "mcpServers", "comity", ENTRY)


def test_comments_are_read_past_and_texts_are_left_alone() -> None:
    text = '{ // one "x"\n "url": "http://x/*no*/", /* two\n */ "a": [1, 2, /* three */ ], }'
    assert json.loads(plain_json(text)) == {"url": "http://x/*no*/", "a": [1, 2]}
    assert plain_json(text).count("\n") == text.count("\n")


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists, max_leaves=8))
def test_json_without_comments_is_not_changed_by_reading_past_them(value: object) -> None:
    text = json.dumps({"value": value})
    assert json.loads(plain_json(text)) == {"value": value}


def test_toml_keeps_every_byte_of_the_rest() -> None:
    edited = with_entry(CODEX, "toml", "mcp_servers", "comity", ENTRY)
    assert edited.startswith(CODEX.rstrip("\n"))
    assert tomllib.loads(edited)["mcp_servers"]["comity"] == ENTRY
    assert without_entry(edited, "toml", "mcp_servers", "comity").rstrip() == CODEX.rstrip()


def test_a_table_of_ours_is_replaced_with_those_inside_it() -> None:
    old = '[mcp_servers.comity]\nurl = "old"\n[mcp_servers.comity.http_headers]\nA = "b"\n'
    edited = with_entry(f"{old}\n[other]\nx = 1\n", "toml", "mcp_servers", "comity", ENTRY)
    assert tomllib.loads(edited) == {"mcp_servers": {"comity": ENTRY}, "other": {"x": 1}}


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers = { other = { url = "x" } }',
        "[mcp_servers]\ncomity = { url = 'x' }",
        'text = """\n[mcp_servers.comity]\n"""',
        'text = """\n[mcp_servers.comity]\n[what follows]\n"""',
        "not toml",
    ],
)
def test_toml_that_cannot_be_edited_by_its_lines_is_not_touched(text: str) -> None:
    with pytest.raises(Misconfigured):
        with_entry(text, "toml", "mcp_servers", "comity", ENTRY)


@pytest.mark.parametrize("shape", ["json", "toml"])
def test_what_was_made_from_nothing_is_nothing_again(shape: Shape) -> None:
    made = with_entry("", shape, "mcpServers", "comity", ENTRY)
    assert not holds_nothing(made, shape, "mcpServers")
    assert holds_nothing(without_entry(made, shape, "mcpServers", "comity"), shape, "mcpServers")


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_what_is_shown_to_be_pasted_is_what_would_have_been_written(client: object) -> None:
    found = next(each for each in CLIENTS if each is client)
    text = snippet(found.shape, found.key, "comity", ENTRY)
    assert entries_of(text, found.shape, found.key) == {"comity": ENTRY}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_written_in_toml(text: str) -> None:
    assert tomllib.loads(f"x = {toml_text(text)}") == {"x": text}
