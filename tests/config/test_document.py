"""Values of a configuration file, the lines on which they stand, and variables in them."""

import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.config.document import (
    MAX_DEPTH,
    ConfigError,
    ConfigErrors,
    ConfigValue,
    Place,
    expand_variables,
    format_key_path,
    nearest_name,
    positions_in_json,
    positions_in_toml,
    strict_json,
)
from comity.config.secret_files import FileVariables
from comity.errors import Misconfigured
from tests.support.cases import loop_over

SECRET = "hunter2"


def value_of(value: object) -> ConfigValue:
    return ConfigValue(value, "comity.toml", ("limits", "it"))


@pytest.mark.parametrize(
    ("value", "length"),
    [
        (1, timedelta(seconds=1)),
        (0.5, timedelta(milliseconds=500)),
        ("500ms", timedelta(milliseconds=500)),
        ("10s", timedelta(seconds=10)),
        ("1.5 m", timedelta(seconds=90)),
        ("2h", timedelta(hours=2)),
        ("366d", timedelta(days=366)),
    ],
)
def test_a_duration_is_read(value: object, length: timedelta) -> None:
    assert value_of(value).duration() == length


NO_DURATIONS: tuple[object, ...] = (
    *(0, -1, 1e300, float("nan"), float("inf"), True, None, [1]),
    *("", "0s", "10", "s", "10 weeks", "367d", "9" * 40 + "s", "-1s", " 1s ", "1\u0663s"),
)


@loop_over("value", NO_DURATIONS)
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(Misconfigured, match=r"comity.toml: limits.it: must be a time"):
        value_of(value).duration()


@loop_over("value", [True, "7", 7.0, None, [7]])
def test_only_whole_numbers_are_numbers(value: object) -> None:
    with pytest.raises(Misconfigured, match="whole number"):
        value_of(value).number(0, 10)


@loop_over(("value", "fits"), [(1, True), (9, True), (0, False), (10, False)])
def test_number_stays_within_its_bounds(value: int, fits: bool) -> None:
    if fits:
        assert value_of(value).number(1, 9) == value
    else:
        with pytest.raises(Misconfigured, match="between 1 and 9"):
            value_of(value).number(1, 9)


@loop_over("value", ["yes", 1, 0, None])
def test_only_true_and_false_are_truths(value: object) -> None:
    with pytest.raises(Misconfigured, match="true or false"):
        value_of(value).truth()
    assert value_of(value=True).truth()


def test_a_text_may_hold_anything_but_nul() -> None:
    assert value_of("a\nb").text() == "a\nb"
    with pytest.raises(Misconfigured, match="NUL"):
        value_of("a\0b").text()


def test_a_choice_is_one_of_those_offered() -> None:
    assert value_of("b").one_of(("a", "b")) == "b"
    with pytest.raises(Misconfigured, match="one of: a, b"):
        value_of("c").one_of(("a", "b"))


def test_parts_know_where_they_stand() -> None:
    document = ConfigValue({"servers": [{"env": {"KEY": 1.5}}]}, "comity.toml")
    value = document.table()["servers"].items()[0].table()["env"].table()["KEY"]
    assert value.keys == "servers[0].env.KEY"


@pytest.mark.parametrize(
    ("key", "hint"), [("prot", "did you mean 'port'"), ("zzz", "known keys: host, port")]
)
def test_an_unknown_key_is_told_with_the_nearest_known_one(key: str, hint: str) -> None:
    (problem,) = ConfigValue({key: 1, "port": 1}, "f").unknown_keys({"host", "port"})
    assert str(problem).startswith(f"f: {key}: there is no such key; {hint}")


def test_of_very_many_unknown_keys_the_first_are_told() -> None:
    document = ConfigValue({f"k{number}": 1 for number in range(5000)} | {"x" * 100_000: 1}, "f")
    assert len(document.unknown_keys({"host", "port"})) == 20


@pytest.mark.parametrize(
    ("name", "near"), [("mcpservers", "mcpServers"), ("mcp_servers", "mcpServers"), ("zzz", None)]
)
def test_what_was_meant_is_found_in_spite_of_letters(name: str, near: str | None) -> None:
    assert nearest_name(name, ("mcpServers", "theme")) == near


def test_a_mistake_is_a_line_that_an_editor_can_follow() -> None:
    mistake = ConfigError("a.toml", ("x",), "x", "is odd; change it")
    assert str(mistake) == "a.toml: x: is odd; change it"
    assert str(replace(mistake, line=3)) == "a.toml:3: x: is odd; change it"


def test_several_mistakes_are_a_list_and_one_is_a_line() -> None:
    mistakes = [ConfigError("a.toml", (), "", f"is odd {number}") for number in range(22)]
    assert str(ConfigErrors(mistakes[:1])) == "a.toml: is odd 0"
    assert str(ConfigErrors(mistakes[:2])).splitlines()[1:] == [
        "  a.toml: is odd 0",
        "  a.toml: is odd 1",
    ]
    assert str(ConfigErrors(mistakes)).splitlines()[-2:] == ["  a.toml: is odd 19", "  and 2 more"]


def test_reading_goes_on_after_a_mistake() -> None:
    mistakes = ConfigErrors()
    assert mistakes.read(value_of(1).text, "otherwise") == "otherwise"
    assert mistakes.read(value_of("b").text, "otherwise") == "b"
    mistakes.add(value_of(1).wrong("no"), value_of(1).wrong("neither"))
    assert [each.problem.split(";")[0] for each in mistakes.found] == [
        "must be a text",
        "no",
        "neither",
    ]


def test_a_value_can_be_known_by_a_better_name() -> None:
    entry = value_of([{"a": 1}]).items()[0].with_name("servers[search]")
    assert entry.table()["a"].keys == "servers[search].a"
    assert entry.table()["a"].place == ("limits", "it", 0, "a")


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (("a", 0, "b"), "a[0].b"),
        (("My Server!", "x"), "My Server!.x"),
        (("a\nb",), '"a\\nb"'),
        (("\x1b[2J",), '"\\u001b[2J"'),
        ((" ",), '" "'),
        (("x" * 1000,), "x" * 80),
    ],
)
def test_keys_are_shown_as_they_are_unless_that_could_upset_a_terminal(
    place: Place, text: str
) -> None:
    assert format_key_path(place) == text


@pytest.mark.parametrize(
    ("value", "length"), [(0, timedelta()), ("0s", timedelta()), ("1s", timedelta(seconds=1))]
)
def test_a_length_may_be_never_where_that_is_offered(value: object, length: timedelta) -> None:
    assert value_of(value).duration_or_never() == length


@pytest.mark.parametrize("value", [False, "0", "never", -1, None])
def test_what_is_neither_a_length_nor_never_is_refused(value: object) -> None:
    with pytest.raises(Misconfigured, match="must be a time"):
        value_of(value).duration_or_never()


READERS: list[Callable[[ConfigValue], object]] = [
    ConfigValue.text,
    ConfigValue.truth,
    ConfigValue.duration,
    ConfigValue.duration_or_never,
    ConfigValue.items,
    ConfigValue.table,
    lambda value: value.number(0, 1),
    lambda value: value.one_of(("a",)),
]


def complaint(read: Callable[[ConfigValue], object], value: object) -> str:
    try:
        read(value_of(value))
    except Misconfigured as problem:
        return str(problem)
    return ""


@loop_over("read", READERS)
@loop_over("value", [SECRET, [SECRET], {SECRET: SECRET}, 4711.5])
def test_a_mistake_never_quotes_the_value(
    read: Callable[[ConfigValue], object], value: object
) -> None:
    told = complaint(read, value)
    assert SECRET not in told
    assert "4711" not in told
    assert SECRET not in repr(value_of(value))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(ANYTHING, st.sampled_from(READERS))
def test_any_value_is_read_or_refused(value: object, read: Callable[[ConfigValue], object]) -> None:
    told = complaint(read, value)
    assert told == "" or told.startswith("comity.toml: limits.it: ")


VARIABLES = {"KEY": "k3y", "EMPTY": "", "ODD": "${KEY} $${KEY}"}


@loop_over(
    ("text", "expanded"),
    [
        ("", ""),
        ("plain", "plain"),
        ("${KEY}", "k3y"),
        ("a${KEY}b${KEY}c", "ak3ybk3yc"),
        ("${env:KEY}", "k3y"),
        ("${EMPTY}", ""),
        ("${EMPTY:-other}", "other"),
        ("${MISSING:-other}", "other"),
        ("${MISSING:-}", ""),
        ("${KEY:-other}", "k3y"),
        ("${ODD}", "${KEY} $${KEY}"),
        ("$${KEY}", "${KEY}"),
        ("$${", "${"),
        ("pa$$word$1$KEY", "pa$$word$1$KEY"),
        ("{KEY}", "{KEY}"),
    ],
)
def test_a_text_becomes(text: str, expanded: str) -> None:
    assert expand_variables(text, VARIABLES) == expanded


def test_a_missing_variable_is_named_and_no_other() -> None:
    with pytest.raises(Misconfigured, match=r"variable MISSING is not set.*\$\{MISSING:-default\}"):
        expand_variables("${KEY} ${MISSING}", VARIABLES)


@pytest.mark.parametrize("text", ["${", "${}", "${KEY", "${KEY:other}", "${1}"])
def test_what_looks_like_a_variable_and_is_none_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured, match="no variable"):
        expand_variables(text, VARIABLES)


@given(st.text().filter(lambda text: "${" not in text))
def test_a_text_without_variables_is_left_alone(text: str) -> None:
    assert expand_variables(text, VARIABLES) == text


@given(st.text())
def test_a_value_arrives_as_it_is(value: str) -> None:
    assert expand_variables("<${V}>", {"V": value}) == f"<{value}>"


def test_a_variable_may_be_in_the_file_that_its_name_with_file_names(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hush\n")
    file.chmod(0o600)
    named = FileVariables({"TOKEN_FILE": str(file)})
    assert expand_variables("Bearer ${TOKEN}", named) == "Bearer hush"
    assert expand_variables("${TOKEN:-none}", named) == "hush"
    with pytest.raises(Misconfigured, match="TOKEN is set too"):
        expand_variables("${TOKEN}", FileVariables({**named, "TOKEN": "spoken"}))


def test_a_variable_in_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("hush")
    file.chmod(0o644)
    with pytest.raises(Misconfigured, match="TOKEN_FILE: other users can read") as refused:
        expand_variables("${TOKEN:-none}", FileVariables({"TOKEN_FILE": str(file)}))
    assert "hush" not in str(refused.value)
    file.write_bytes(b"\xff\xfe")
    file.chmod(0o600)
    with pytest.raises(Misconfigured, match="is not UTF-8"):
        expand_variables("${TOKEN}", FileVariables({"TOKEN_FILE": str(file)}))


def test_what_an_editor_would_ask_for_is_refused_with_what_to_write() -> None:
    with pytest.raises(Misconfigured, match=r"which Comity cannot show; write \$\{NAME\}"):
        expand_variables("Bearer ${input:token}", VARIABLES)


TOML = """\
# [x]
host = "a" # = [
"a b".'c.d' = [ # ]
  1, "]",
  { x = 1, y = \"\"\"
  }"]\"\"\"\"\" },
]
[limits]
max_depth = 07:32:00
d = 1979-05-27 07:32:00Z
e = 0xff

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
    ("limits", "max_depth"): 9,
    ("limits", "d"): 10,
    ("limits", "e"): 11,
    ("servers",): 13,
    ("servers", 0): 13,
    ("servers", 0, "id"): 14,
    ("servers", 0, "env"): 15,
    ("servers", 0, "env", "K"): 16,
    ("servers", 1): 19,
    ("servers", 1, "id"): 20,
    ("servers", 1, "x"): 21,
    ("servers", 1, "x", 0): 21,
    ("servers", 1, "x", 0, "qa"): 22,
    ("servers", 1, "x", 1): 23,
    ("servers", 1, "x", 1, "q"): 24,
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
    depth = MAX_DEPTH + 10
    text = '{"k":\n' * depth + "1" + "}" * depth
    found = positions_in_json(text)
    assert found.line_of(("k",) * (MAX_DEPTH - 1)) == MAX_DEPTH - 1
    assert found.line_of(("k",) * depth) == MAX_DEPTH
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
