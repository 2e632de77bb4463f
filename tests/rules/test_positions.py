"""Where keys stand: known cases, documents whose lines are known, and texts that are nothing."""

import json
import tomllib
from collections.abc import Iterator
from datetime import date
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.positions import (
    DEEPEST,
    Place,
    positions_in_json,
    positions_in_toml,
    strict_json,
)

TOML = """\
# [x]
host = "a" # = [
"a b".'c.d' = [ # ]
  1, "]",
  { x = 1, y = \"\"\"
  }"]\"\"\"\"\" },
]
[limits]
depth = 07:32:00
d = 1979-05-27 07:32:00Z

[[servers]]
id = "a"
  [servers.env]
  K = '''
[a]
'''
[[servers]]
id = 'b'
[[servers.x]]
"q\\u0061" = 1
[[servers.x]]
q = 2
"""
TOML_LINES: dict[Place, int] = {
    ("host",): 2,
    ("a b",): 3,
    ("a b", "c.d"): 3,
    ("a b", "c.d", 0): 4,
    ("a b", "c.d", 1): 4,
    ("a b", "c.d", 2): 5,
    ("a b", "c.d", 2, "x"): 5,
    ("a b", "c.d", 2, "y"): 5,
    ("limits",): 8,
    ("limits", "depth"): 9,
    ("limits", "d"): 10,
    ("servers",): 12,
    ("servers", 0): 12,
    ("servers", 0, "id"): 13,
    ("servers", 0, "env"): 14,
    ("servers", 0, "env", "K"): 15,
    ("servers", 1): 18,
    ("servers", 1, "id"): 19,
    ("servers", 1, "x"): 20,
    ("servers", 1, "x", 0): 20,
    ("servers", 1, "x", 0, "qa"): 21,
    ("servers", 1, "x", 1): 22,
    ("servers", 1, "x", 1, "q"): 23,
}


def test_every_form_of_toml_is_followed() -> None:
    assert set(places_of(tomllib.loads(TOML))) == TOML_LINES.keys()
    assert positions_in_toml(TOML).lines == TOML_LINES


JSON = """{"a": {
  "b": [1, {"c":
    2}, "x: {"], "a\\"b": "}",
  "b": 2
}}"""


def test_json_is_followed_and_what_stands_twice_is_seen() -> None:
    found = positions_in_json(JSON)
    assert found.lines == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "b", 0): 2,
        ("a", "b", 1): 2,
        ("a", "b", 1, "c"): 2,
        ("a", "b", 2): 3,
        ("a", 'a"b'): 3,
    }
    assert found.repeated == {("a", "b"): 4}


def test_what_is_not_there_is_found_where_it_would_be() -> None:
    found = positions_in_json('{\n"a": {\n"b": 1}}')
    assert found.line_of(("a", "b")) == 3
    assert found.line_of(("a", "missing", 0)) == 2
    assert found.line_of(("missing",)) is None
    assert found.line_of(()) is None


def test_below_the_deepest_the_line_of_what_holds_it_is_given() -> None:
    depth = DEEPEST + 10
    text = '{"k":\n' * depth + "1" + "}" * depth
    found = positions_in_json(text)
    assert found.line_of(("k",) * (DEEPEST - 1)) == DEEPEST - 1
    assert found.line_of(("k",) * depth) == DEEPEST
    header = ".".join("k" * depth)
    assert positions_in_toml(f"[{header}]\nx = 1").line_of(("k",) * depth) == 1


def test_comments_and_last_commas_become_blanks() -> None:
    text = '{"a": "//,]", // x "\n"b": [1, /* ,\n */ ], }'
    strict = strict_json(text)
    assert json.loads(strict) == {"a": "//,]", "b": [1]}
    assert (len(strict), strict.count("\n")) == (len(text), text.count("\n"))


NAMES = st.text(min_size=1, max_size=5) | st.sampled_from(["a", "b.c", '"', "\\", "[x]", "#"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


def places_of(value: object, above: Place = ()) -> Iterator[Place]:
    if isinstance(value, dict):
        pairs = list(cast("dict[str, object]", value).items())
    elif isinstance(value, list):
        pairs = list(enumerate(cast("list[object]", value)))
    else:
        pairs = []
    for name, inner in pairs:
        yield (*above, name)
        yield from places_of(inner, (*above, name))


@given(VALUES, st.sampled_from([None, 0, 2]), st.booleans())
def test_every_key_of_any_json_is_found_on_its_line(
    value: object, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert strict_json(text) == text
    found = positions_in_json(text)
    places = list(places_of(value))
    assert found.lines.keys() == set(places)
    assert found.repeated == {}
    lines = text.split("\n")
    for place in places:
        if isinstance(place[-1], str):
            written = json.dumps(place[-1], ensure_ascii=ascii_only)
            assert f"{written}:" in lines[found.lines[place] - 1]
    if indent is not None:
        # Dumped with an indent, each key and item has a line of its own, in this very order.
        assert sorted(found.lines.values()) == [found.lines[place] for place in places]
        assert len(set(found.lines.values())) == len(places)


SCALARS = st.sampled_from(
    [
        *("1", "-1.5e+3", "true", "'[x]'", '"a # = \\" ]"', "07:32:00", "1979-05-27 07:32:00Z"),
        *('"""\n]\n[x]\nk = 1\n"" \\""""', "''''\n[[y]]\n'''", '"""a"""""', "[1, # ]\n [2,\n], ]"),
        *("{ q = [ { z = 1 } ], w.v = 2 }", "[{ q = 1 },\n { q = 2 }]"),
    ]
)
KEYS = st.sampled_from(["a", "b-c", "1", "true", '"x y"', "'#'", '"]"', "d.e", "f . 'g.h'"])
BLANKS = st.sampled_from(["", " # [c]\n", "\n", " # k = 'x\n\n"])
# In orders that TOML allows: a table once, in a list after its item.
HEADERS = st.sampled_from(
    [
        ("[t]", "[ u . 'v' ]", "[[l]]", "[l.in]", "[[l]]", "[[l.deep]]", "[[l.deep]]"),
        ("[[l]]", "[[ l.deep ]]", "[l.deep.er]", '[["l".deep]]', "[l.deep.er]", "[[l]]"),
        ("[a.b.c]", "[a]", "[a.b]", "[x.l]", "[[x.m]]", "[x.m.in]"),
    ]
)


@st.composite
def toml_texts(draw: st.DrawFn) -> str:
    """Tables and lists of tables, with every kind of key and value that could mislead."""
    lines: list[str] = []
    for number, header in enumerate(["", *draw(HEADERS)]):
        lines.append(header + draw(BLANKS))
        keys = draw(st.lists(KEYS, unique=True, max_size=3))
        lines += [f"k{number}.{key} = {draw(SCALARS)}{draw(BLANKS)}" for key in keys]
    return "\n".join(lines)


@given(toml_texts())
def test_every_key_of_any_toml_is_found_on_a_line_that_names_it(text: str) -> None:
    found = positions_in_toml(text)
    places = list(places_of(tomllib.loads(text)))
    assert found.lines.keys() == set(places)
    lines = text.split("\n")
    for place in places:
        if isinstance(place[-1], str):
            assert place[-1] in lines[found.lines[place] - 1]


def test_dates_and_strange_values_are_passed_over() -> None:
    text = "d = 1979-05-27\nf = 1.5\ni = inf\nx.y = 0xff"
    assert tomllib.loads(text)["d"] == date(1979, 5, 27)
    assert positions_in_toml(text).lines == {
        ("d",): 1,
        ("f",): 2,
        ("i",): 3,
        ("x",): 4,
        ("x", "y"): 4,
    }


PIECES = st.text("{}[]:,=.\"'\\#/* \nab1", max_size=60) | st.text(max_size=30)


@given(PIECES)
def test_of_a_text_that_is_nothing_is_found_what_can_be(text: str) -> None:
    for found in (positions_in_json(text), positions_in_toml(text)):
        assert all(1 <= line <= text.count("\n") + 1 for line in found.lines.values())
    assert len(strict_json(text)) == len(text)


@pytest.mark.parametrize("piece", ['"\\', '"\\"', ",/*", '"""\\', "'''", "[[a]]\n", "a.", '{"a":'])
def test_nothing_of_a_long_text_is_looked_at_again_and_again(piece: str) -> None:
    """Where it is, so many pieces take hours, and the test's time is over before."""
    text = piece * 30_000
    positions_in_json(text)
    positions_in_toml(text)
    strict_json(text)
