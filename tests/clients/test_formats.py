"""The editors for JSON with comments, TOML and YAML: only what must change does."""

import json
import re
import tomllib
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from comity.clients.applications import CLIENTS, FORMATS, ClientApplication, Shape
from comity.clients.formats import TomlFormat
from comity.clients.json_format import JsonFormat, parse_json, plain_json
from comity.clients.yaml_format import YamlFormat
from comity.config.toml_writer import toml_text
from comity.errors import Misconfigured
from tests.clients.documents import json_with_comments
from tests.support.cases import loop_over

ENTRY = {"type": "http", "url": "http://127.0.0.1:2664/mcp"}
SECTION = ("mcpServers",)
JSON, TOML, YAML, LISTED = JsonFormat(), TomlFormat(), YamlFormat(), YamlFormat(is_list=True)
COMMENT = re.compile(r'"(?:[^"\\\r\n]|\\.)*"|(//[^\r\n]*|/\*.*?\*/)', re.DOTALL)


def comments_of(text: str) -> list[str]:
    return [found[1] for found in COMMENT.finditer(text) if found[1]]


@given(json_with_comments())
def test_an_entry_that_is_put_and_taken_leaves_every_byte_of_json(text: str) -> None:
    before = parse_json(text)
    edited = JSON.put(text, SECTION, "comity", ENTRY)
    servers = {**before.get("mcpServers", {}), "comity": ENTRY}
    assert parse_json(edited) == {**before, "mcpServers": servers}
    assert comments_of(edited) == comments_of(text)
    back, raw = JSON.take(edited, SECTION, "comity")
    assert json.loads(raw) == ENTRY
    if before.get("mcpServers"):
        assert back == text
    else:
        assert parse_json(back) == {**before, "mcpServers": {}}
        assert comments_of(back) == comments_of(text)


@given(json_with_comments(), st.randoms(use_true_random=False))
def test_any_server_can_be_taken_and_put_back(text: str, chance: Any) -> None:
    before = parse_json(text)
    names = list(before.get("mcpServers", {}))
    assume(names)
    chance.shuffle(names)
    edited, taken = text, dict[str, str]()
    for name in names:
        inside = len(comments_of(edited))
        edited, taken[name] = JSON.take(edited, SECTION, name)
        # Comments leave the file only inside the server that leaves it.
        assert len(comments_of(edited)) + len(comments_of(taken[name])) <= inside
        assert name not in JSON.read(edited, SECTION)
    for name, raw in taken.items():
        edited = JSON.put_back(edited, SECTION, name, raw)
    assert parse_json(edited) == before


WITH_COMMENTS = """\
// mine
{
  "mcpServers": {
    "a": {}, // about a
    // last
  },
}
"""
WITH_TABS = '{\r\n\t"mcpServers": {\r\n\t\t"a": {} // a\r\n\t}\r\n}'
LAYOUTS = [
    ('{"mcpServers": {"a": {}}}', '{"mcpServers": {"a": {}, "comity": {"u": 1}}}'),
    (
        WITH_COMMENTS,
        WITH_COMMENTS.replace("// last\n", '// last\n    "comity": {\n      "u": 1\n    },\n'),
    ),
    (
        WITH_TABS,
        WITH_TABS.replace("{} // a", '{}, // a\r\n\t\t"comity": {\r\n\t\t\t"u": 1\r\n\t\t}'),
    ),
    (
        '{\n  "mcpServers": {}\n}',
        '{\n  "mcpServers": {\n    "comity": {\n      "u": 1\n    }\n  }\n}',
    ),
    ("{\n    // none\n}\n", None),
    ("// only this\n", None),
]


@loop_over(("text", "wanted"), LAYOUTS)
def test_a_new_entry_has_the_layout_of_its_neighbours(text: str, wanted: str | None) -> None:
    edited = JSON.put(text, SECTION, "comity", {"u": 1})
    assert wanted is None or edited == wanted
    assert parse_json(edited)["mcpServers"]["comity"] == {"u": 1}


@loop_over(
    ("inside", "left"),
    [
        ('"x": {}, "b": 1', '"b": 1'),
        ('"a": 1, "x": {}', '"a": 1'),
        ('"a": 1, "x": {}, "b": 1,', '"a": 1, "b": 1,'),
        ('"x": {} /* keep */, "b": 1', ' /* keep */"b": 1'),
        ('"a": 1, // a\n"x": {}, "b": 1', '"a": 1, // a\n"b": 1'),
        ('"a": 1, // a\n"x": {} // x\n', '"a": 1 // a\n// x\n'),
        ('\n  // x\n  "x": {}, // of x\n  "b": 1\n', '\n  // x\n  // of x\n  "b": 1\n'),
        ('\n  "x": {},\n', ""),
        ('\n  // none left\n  "x": {},\n', "\n  // none left\n"),
    ],
)
def test_comments_around_a_server_stay_when_it_goes(inside: str, left: str) -> None:
    text = '{"mcpServers": {' + inside + "}}"
    assert JSON.take(text, SECTION, "x") == ('{"mcpServers": {' + left + "}}", "{}")


def test_an_entry_is_replaced_where_it_is() -> None:
    text = '{"mcpServers": {"comity": {"old": 1}, /* x */ "b": {}}}'
    edited = JSON.put(text, SECTION, "comity", {})
    assert edited == '{"mcpServers": {"comity": {}, /* x */ "b": {}}}'


@loop_over("text", ["", "  \n", "{}", '\ufeff{"mcpServers": {}}', '{"a": 1}', "// x", "/* x */ {}"])
def test_a_missing_section_is_made(text: str) -> None:
    edited = JSON.put(text, SECTION, "comity", ENTRY)
    assert JSON.read(edited, SECTION) == {"comity": ENTRY}
    assert edited.startswith("\ufeff") == text.startswith("\ufeff")
    nested = JSON.put(text, ("mcp", "servers"), "comity", ENTRY)
    assert JSON.read(nested, ("mcp", "servers")) == {"comity": ENTRY}


@loop_over(
    "text",
    [
        '{"mcpServers": {}, "mcpServers": {}}',
        '{"mcpServers": {"comity": {}, "comity": {}}}',
        "[]",
        '{"mcpServers": []}',
        '{"mcpServers": 5}',
        "{",
        "[" * 100_000,
        '{"a": tru}',
        '{"a": "\n"}',
    ],
)
def test_json_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured):
        JSON.put(text, SECTION, "comity", ENTRY)


def test_a_key_may_be_there_twice_where_nothing_changes() -> None:
    text = '{"a": 1, "a": 2, "mcpServers": {"x": {}}}'
    assert JSON.take(JSON.put(text, SECTION, "comity", ENTRY), SECTION, "comity")[0] == text


def test_comments_are_read_past_and_texts_are_left_alone() -> None:
    text = '{ // one "x"\n "url": "http://x/*no*/", /* two\n */ "a": [1, 2, /* three */ ], }'
    assert json.loads(plain_json(text)) == {"url": "http://x/*no*/", "a": [1, 2]}
    assert plain_json(text).count("\n") == text.count("\n")


@given(st.recursive(st.text() | st.integers() | st.none(), st.lists, max_leaves=8))
def test_json_without_comments_is_not_changed_by_reading_past_them(value: object) -> None:
    text = json.dumps({"value": value})
    assert json.loads(plain_json(text)) == {"value": value}


CODEX = """\
# My settings.
model = "o5"   # the good one

[mcp_servers.other]
command = "x"

# About the next one.
[mcp_servers."a.b"]
url = "https://example.org"
[mcp_servers."a.b".http_headers]
A = "b"

# The fast one.
[profiles.fast]
model = "o5-mini"
"""
TABLES = ("mcp_servers",)


@loop_over("text", [CODEX, CODEX.replace("\n", "\r\n"), CODEX + "\n\n", "", "model = 1"])
def test_toml_keeps_every_byte_of_the_rest(text: str) -> None:
    edited = TOML.put(text, TABLES, "comity", ENTRY)
    assert edited.startswith(text)
    assert tomllib.loads(edited)["mcp_servers"]["comity"] == ENTRY
    back, _ = TOML.take(edited, TABLES, "comity")
    assert back == text + ("\n" if text == "model = 1" else "")


def test_a_toml_server_takes_its_subtables_along_and_no_comment_of_another() -> None:
    edited, raw = TOML.take(CODEX, TABLES, "a.b")
    assert "# The fast one.\n[profiles.fast]" in edited
    assert "# About the next one." in edited
    assert raw.splitlines() == CODEX.splitlines()[7:11]
    assert tomllib.loads(TOML.put_back(edited, TABLES, "a.b", raw)) == tomllib.loads(CODEX)


def test_a_toml_table_is_replaced_where_it_is() -> None:
    old = '[mcp_servers.comity]\nurl = "old"\n[mcp_servers.comity.http_headers]\nA = "b"\n'
    edited = TOML.put(f"{old}\n# x\n[other]\nx = 1\n", TABLES, "comity", {"url": "new"})
    assert edited == '[mcp_servers.comity]\nurl = "new"\n\n# x\n[other]\nx = 1\n'


@loop_over(
    "text",
    [
        'mcp_servers = { other = { url = "x" } }',
        "[mcp_servers]\ncomity = { url = 'x' }",
        'text = """\n[mcp_servers.comity]\n[what follows]\n"""\n[mcp_servers.comity]\nx = 1',
        "not toml",
    ],
)
def test_toml_that_cannot_be_edited_by_its_lines_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured):
        TOML.put(text, TABLES, "comity", ENTRY)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_written_in_toml(text: str) -> None:
    assert tomllib.loads(f"x = {toml_text(text)}") == {"x": text}


GOOSE = """\
GOOSE_PROVIDER: openai  # mine
extensions:
  developer:
    enabled: true
    type: builtin
    description: |-
      Several
      # lines
    available_tools: []

  # About files.
  files:
    cmd: npx
    args:
    - -y
    - "a # b"   # c
    envs:
      TOKEN: 'it''s'
    timeout: 300

# The rest.
other: &anchor
  - *anything
"""
CONTINUE = """\
name: mine
mcpServers:
  - name: files
    command: npx
    args: ["-y", "x"]
  # the web
  - name: web
    type: sse
    url: https://example.org/sse   # old
rules:
  - |
    mcpServers: no
"""


def test_yaml_is_read_as_it_is_meant() -> None:
    assert YAML.read(GOOSE, ("extensions",)) == {
        "developer": {
            "enabled": True,
            "type": "builtin",
            "description": "Several\n# lines",
            "available_tools": [],
        },
        "files": {
            "cmd": "npx",
            "args": ["-y", "a # b"],
            "envs": {"TOKEN": "it's"},
            "timeout": 300,
        },
    }
    assert LISTED.read(CONTINUE, SECTION) == {
        "files": {"command": "npx", "args": ["-y", "x"]},
        "web": {"type": "sse", "url": "https://example.org/sse"},
    }


@loop_over(
    ("form", "text", "section"),
    [
        (YAML, GOOSE, ("extensions",)),
        (YAML, GOOSE.replace("\n", "\r\n"), ("extensions",)),
        (LISTED, CONTINUE, SECTION),
        (LISTED, "mcpServers:\n- name: a\n  url: x\n", SECTION),
    ],
)
def test_yaml_keeps_every_byte_of_the_rest(
    form: YamlFormat, text: str, section: tuple[str, ...]
) -> None:
    edited = form.put(text, section, "comity", ENTRY)
    assert form.read(edited, section)["comity"] == ENTRY
    assert form.take(edited, section, "comity")[0] == text
    for name, entry in form.read(text, section).items():
        rest, raw = form.take(text, section, name)
        assert name not in form.read(rest, section)
        assert form.read(form.put_back(rest, section, name, raw), section)[name] == entry
        assert [line for line in text.splitlines() if "#" in line and line not in raw] == [
            line for line in rest.splitlines() if "#" in line
        ]


@loop_over(
    "text",
    [
        "extensions: {a: {cmd: x}}\n",
        "extensions:\n  a: &x\n    cmd: y\n",
        "extensions:\n  a: *x\n",
        "extensions:\n  a:\n    <<: *x\n",
        "extensions:\n  ? a\n  : b\n",
        "extensions:\n  a: !tag x\n",
        "extensions:\n\ta: x\n",
        "extensions:\n  a: one\n    two\n",
        "extensions:\n  a:\n    cmd: 'x\n",
        "extensions:\n  a: {}\n  a: {}\n",
        "extensions: {}\nextensions: {}\n",
        "extensions:\n  - a\n",
        "{extensions: {}}\n",
        "a: 1\n---\nextensions: {}\n",
        "extensions:\n    a: {}\n  b: {}\n",
        "[",
    ],
)
def test_yaml_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured):
        YAML.put(text, ("extensions",), "comity", ENTRY)


YAML_TEXTS = st.text(max_size=12) | st.sampled_from(
    ["yes", "1", "a: b", "# x", "- x", "é", "", " x"]
)
YAML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | YAML_TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(YAML_TEXTS, inner, max_size=3),
    max_leaves=5,
)
YAML_SERVERS = st.dictionaries(
    st.sampled_from(["a", "b c", "on", "7"]),
    st.dictionaries(st.sampled_from(["cmd", "args", "envs"]), YAML_VALUES, max_size=3),
    max_size=3,
)


@given(YAML_SERVERS, YAML_VALUES, st.booleans())
def test_yaml_is_edited_rightly_or_refused(
    servers: dict[str, Any], other: object, listed: bool
) -> None:
    """A complete YAML parser judges what the narrow one has done."""
    form = LISTED if listed else YAML
    section: Any = [{"name": name, **entry} for name, entry in servers.items()]
    document = {"other": other, "section": section if listed else servers, "last": 1}
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    try:
        edited = form.put(text, ("section",), "comity", ENTRY)
    except Misconfigured:
        return
    wanted = yaml.safe_load(text)
    if listed:
        wanted["section"].append({"name": "comity", **ENTRY})
    else:
        wanted["section"]["comity"] = ENTRY
    assert yaml.safe_load(edited) == wanted
    assert form.take(edited, ("section",), "comity")[0] == text


@given(st.dictionaries(YAML_TEXTS, YAML_TEXTS | st.lists(YAML_TEXTS), max_size=3))
def test_what_is_written_in_yaml_means_what_it_should(entry: dict[str, Any]) -> None:
    text = YAML.render(("extensions",), "comity", {"x": 1, **entry})
    assert yaml.safe_load(text) == {"extensions": {"comity": {"x": 1, **entry}}}


@loop_over("shape", ["json", "toml", "yaml", "yaml-list"])
def test_what_was_made_from_nothing_is_nothing_again(shape: Shape) -> None:
    form = FORMATS[shape]
    made = form.put("", SECTION, "comity", ENTRY)
    assert not form.is_empty(made, SECTION)
    assert form.is_empty(form.take(made, SECTION, "comity")[0], SECTION)
    assert form.take("", SECTION, "comity") == ("", "")


@loop_over("client", CLIENTS, ids=lambda client: client.name)
def test_what_is_shown_to_be_pasted_is_what_would_have_been_written(
    client: ClientApplication,
) -> None:
    text = client.format.render(client.section, "comity", ENTRY)
    assert client.format.read(text, client.section) == {"comity": ENTRY}


@loop_over("client", CLIENTS, ids=lambda client: client.name)
def test_every_client_can_hold_a_key_that_is_hidden_when_shown(client: ClientApplication) -> None:
    entries = [client.stdio_entry(["comity", "serve"], "canary")]
    if client.called:
        entries.append(client.http_entry("http://x/mcp", "canary"))
    for entry in entries:
        assert client.key_of(entry) == "canary"
        assert "canary" not in json.dumps(client.hide_key(entry))
    bare = client.stdio_entry(["comity", "serve"])
    assert client.key_of(bare) == ""
    assert client.hide_key(bare) == bare
