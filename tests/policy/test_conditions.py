"""A condition covers what it says, in one reading only; whatever else comes is not covered."""

import unicodedata
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.errors import MalformedMessage
from comity.policy.conditions import (
    MAX_DEPTH,
    MAX_VALUES,
    Condition,
    canonical_condition,
    flatten_arguments,
    is_same_json,
    is_too_wide,
    parse_condition,
    parse_or_none,
)
from tests.support.cases import loop_over

TREE = "/srv/project"
HOME = "/home/ana"
IN_TREE = parse_condition({"paths": {"/path": {"under": TREE}}, "only": ["path"]})
AT_HOST = parse_condition({"paths": {"/url": {"host": "api.example.org"}}, "only": ["url"]})

_OUT = ("../etc/passwd", "..", "../project2/x", "a/../../x", "a/../b", "./a", ".", "a/.", "a/./b")
_DOTS = (
    "%2e%2e/x",
    "%2E%2E/x",
    ".%2e/x",
    "%2e./x",
    "%252e%252e/x",
    "..%2fx",
    "..%5cx",
    "%u002e%u002e/x",
    "&#46;&#46;/x",
    "\uff0e\uff0e/x",
    "\u2024\u2024/x",
    "\u2025/x",
    "\u2026/x",
    "..\u2215x",
    "..\uff0fx",
    "..\u2044x",
    "\u3002\u3002/x",
    "\ufe52\ufe52/x",
    ".../x",
    "..../x",
    "a.../x",
)
_SIGNS = ("\0", "\n", "\r", "\t", "\x1b", "\x7f", "\x85", "\u2028", "\u2029", "\u200b", "\u202e")
_ODD = (
    *(f"a{sign}b" for sign in _SIGNS),
    *(f"{sign}/etc/passwd" for sign in _SIGNS),
    *(f"a/{sign}../../x" for sign in _SIGNS),
    *("a\\..\\..\\x", "..\\x", "\\x", "a ", " a", "a./b", "a. /b", "a%00", "a%0a", "a\ud800"),
    *("\ufeffa", "a\u00adb", "e\u0301", "\u1100\u1161", "a\U000e0041b", "A\u030a", "%2f..%2fx"),
)
_HIDDEN = (".env", ".git/config", "a/.ssh/id_rsa", "a/b/.npmrc", ".", ".hidden/x", "//.env")
_BESIDE = (
    *("/srv/project2/x", "/srv/projec", "/srv", "/", "/srv/Project/x", "/SRV/project/x", "/etc/x"),
    *("srv/project/x", "./srv/project/x", "../srv/project/x", "//srv/project/x", "~/x", "~root/x"),
    *("file:///srv/project/x", "C:\\srv\\project\\x", "c:/srv/project/x", "\\\\srv\\project\\x"),
    *("/proc/self/cwd/x", "/srv/./project/x", "/srv/../srv/project/x", "/srv//../project/x"),
    *(" /srv/project/x", "\t/srv/project/x", "/srv /project/x", "/srv/project /x", ""),
    *(
        "/srv%2fproject/x",
        "%2fsrv/project/x",
        "/srv\\project/x",
        "/srv/project\0/x",
        "/srv/project.",
    ),
    *(
        "\uff0fsrv/project/x",
        "/\u017frv/project/x",
        "/srv/proj\u0435ct/x",
        "/srv/project" + "/a" * 200,
    ),
    "/srv/project/" + "a" * 5000,
)
HOSTILE_PATHS = [
    *(f"{TREE}/{tail}" for tail in (*_OUT, *_DOTS, *_ODD, *_HIDDEN)),
    *(f"{TREE}/a/b/{tail}" for tail in (*_DOTS, *_ODD)),
    *_BESIDE,
]
HOSTILE_URLS = [
    *("http://api.example.org/", "HTTPS://api.example.org/", "https:/api.example.org/"),
    *("https:api.example.org", "//api.example.org/", "api.example.org", "https://API.example.org/"),
    *("https://api.example.org./", "https://api.example.org:8443/", "https://api.example.org:/"),
    *(
        "https://api.example.org:080/",
        "https://user@api.example.org/",
        "https://:@api.example.org/",
    ),
    *("https://api.example.org@evil.example/", "https://api.example.org:443@evil.example/"),
    *("https://api.example.org%40evil.example/", "https://evil.example#@api.example.org/"),
    *("https://evil.example/https://api.example.org/", "https://evil.example?api.example.org"),
    *("https://api.example.org\\@evil.example/", "https://api.example.org\\.evil.example/"),
    *(
        "https://api.example.org\t.evil.example/",
        "https://api.example.org\n/",
        " https://api.example.org/",
    ),
    *(
        "https://api.example.org.evil.example/",
        "https://evilapi.example.org/",
        "https://example.org/",
    ),
    *("https://x.api.example.org/", "https://api%2eexample.org/", "https://api\u3002example.org/"),
    *(
        "https://\uff41pi.example.org/",
        "https://[::1]/",
        "https://127.0.0.1/",
        "https:///api.example.org",
    ),
    *("https://api.example.org/\u0000", "https://api.example.org/ x", 'https://api.example.org/"'),
    *(
        "https://api.example.org/<x>",
        "https://api.example.org/{x}",
        "javascript:https://api.example.org/",
    ),
    *(
        "https:////api.example.org/",
        "https://api.example.org\u2028",
        "https://api.example.org/\u202e",
    ),
    *(
        "ftp://api.example.org/",
        "https://api.example.org:65536/",
        "https://api.example.org:443443/",
    ),
]


def test_there_are_hundreds_of_hostile_cases() -> None:
    assert len(set(HOSTILE_PATHS)) + len(set(HOSTILE_URLS)) > 200


@loop_over("path", HOSTILE_PATHS, ids=ascii)
def test_no_hostile_path_is_covered(path: str) -> None:
    assert not IN_TREE.covers({"path": path})


@loop_over("url", HOSTILE_URLS, ids=ascii)
def test_no_hostile_url_is_covered(url: str) -> None:
    assert not AT_HOST.covers({"url": url})


@loop_over(
    "path",
    [
        TREE,
        f"{TREE}/",
        f"{TREE}/a",
        f"{TREE}/a/b.txt",
        f"{TREE}//a",
        f"{TREE}/a..b",
        f"{TREE}/é/漢",
    ],
)
def test_what_is_in_the_tree_is_covered(path: str) -> None:
    assert IN_TREE.covers({"path": path})


@loop_over(
    "url",
    [
        *("https://api.example.org", "https://api.example.org/", "https://api.example.org:443/v1"),
        *("https://api.example.org/a@b?c=d#e", "https://api.example.org?q=%20"),
    ],
)
def test_a_url_of_the_host_is_covered(url: str) -> None:
    assert AT_HOST.covers({"url": url})


def test_http_is_covered_only_where_the_condition_says_so() -> None:
    plain = parse_condition(
        {"paths": {"/url": {"host": "api.example.org", "scheme": "http"}}, "only": ["url"]}
    )
    assert plain.covers({"url": "http://api.example.org:80/x"})
    assert not plain.covers({"url": "https://api.example.org/x"})
    assert not plain.covers({"url": "http://api.example.org:443/x"})


@loop_over(
    "arguments",
    [
        *(None, [], "x", 1, {}, {"path": None}, {"path": 1}, {"path": [f"{TREE}/a"]}),
        *({"path": {"path": f"{TREE}/a"}}, {"Path": f"{TREE}/a"}, {"path ": f"{TREE}/a"}),
        *({"path": f"{TREE}/a", "mode": "w"}, {"path": f"{TREE}/a", "": ""}, {"path": True}),
        *({"path": f"{TREE}/a", "more": {}}, {"path": f"{TREE}/a", "more": None}),
    ],
)
def test_what_was_not_named_is_not_covered(arguments: object) -> None:
    assert not IN_TREE.covers(arguments)


_EXACT: list[Any] = [0, 1, -1, 1.0, 0.0, True, False, None, "", "1", "true", [], {}, [1], ["1"]]


@loop_over(("said", "given_"), list(product(_EXACT, _EXACT)), ids=repr)
def test_only_the_very_same_value_of_the_same_type_is_covered(said: Any, given_: Any) -> None:
    exact = parse_condition({"paths": {"/a": {"is": said}}, "only": ["a"]})
    assert exact.covers({"a": given_}) is (type(said) is type(given_) and said == given_)


def test_values_deep_in_the_arguments_are_tested_where_they_stand() -> None:
    where = {
        "paths": {"/a/b~1c": {"in": ["x", "y"]}, "/a/d": {"is": [1, {"e": 2}]}},
        "only": ["a"],
    }
    condition = parse_condition(where)
    assert condition.covers({"a": {"b/c": "y", "d": [1, {"e": 2}]}})
    assert not condition.covers({"a": {"b/c": "y", "d": [1, {"e": True}]}})
    assert not condition.covers({"a": {"b/c": "y", "d": [1, {"e": 2}], "f": 1}})
    assert not condition.covers({"a": {"b": {"c": "y"}, "d": [1, {"e": 2}]}})


def test_arguments_too_many_or_too_deep_are_not_covered() -> None:
    deep: dict[str, Any] = {"a": 1}
    for _ in range(MAX_DEPTH):
        deep = {"a": deep}
    assert flatten_arguments(deep) is None
    assert flatten_arguments({str(number): 1 for number in range(MAX_VALUES + 1)}) is None


_NO_TESTS: list[Any] = [
    *({}, None, 1, {"is": 1, "in": [1]}, {"in": []}, {"in": "x"}, {"in": [1] * 17}),
    *({"under": 1}, {"under": ""}, {"under": "project"}, {"under": "/srv/../x"}),
    *({"under": "/srv/project/"}, {"under": "/srv//project"}, {"under": "/"}),
    *(
        {"under": "/home/ana"},
        {"under": "/etc"},
        {"under": "/Users/ana"},
        {"under": "/ETC"},
    ),
    *({"host": "EXAMPLE.org"}, {"host": "example.org:443"}, {"host": "*.example.org"}),
    *({"host": "localhost"}, {"host": "127.0.0.1"}, {"host": "example.org", "scheme": "x"}),
    *({"host": "example.org", "port": 1}, {"any": True}, {"is": "\ud800"}),
    *({"is": [[[[[[[[[[1]]]]]]]]]]}, {"is": "x" * 20_000}, {"is": object()}),
]
UNREADABLE: list[Any] = [
    *(None, [], "x", {}, {"paths": {}}, {"only": []}, {"paths": [], "only": []}),
    *({"paths": {}, "only": ["a"]}, {"paths": {"/a": {"is": 1}}, "only": []}),
    {"paths": {"/a": {"is": 1}}, "only": ["a", "b"]},
    {"paths": {"a": {"is": 1}}, "only": ["a"]},
    {"paths": {"/a": {"is": 1}}, "only": ["a"], "more": 1},
    {"paths": {"/a": {"is": 1}}, "only": [1]},
    {"paths": {"/a": {"is": 1}}, "only": ["a"], "definition": 1},
    *({"paths": {"/a": test}, "only": ["a"]} for test in _NO_TESTS),
    {"paths": {f"/{n}": {"is": 1} for n in range(33)}, "only": [str(n) for n in range(33)]},
]


@loop_over("where", UNREADABLE)
def test_what_is_no_condition_is_told_and_covers_nothing(where: Any) -> None:
    assert parse_or_none(where) is None
    with pytest.raises(MalformedMessage):
        parse_condition(where)


@loop_over(
    ("tree", "wide"),
    [
        *(
            (each, True)
            for each in ("/", "/etc", "/root", "/home", "/Users", "/var", "/usr", "/tmp")
        ),
        *((each, True) for each in ("/home/ana", "/Users/ana", "/USERS/Ana", "/usr/local")),
        *((each, False) for each in ("/project", f"{HOME}/work", "/var/log", "/srv/project")),
    ],
)
def test_a_tree_of_the_system_or_a_whole_home_is_too_wide(tree: str, wide: bool) -> None:
    assert is_too_wide(tree) is wide


@loop_over(
    ("where", "told"),
    [
        ({"paths": {}, "only": []}, "without arguments"),
        ({"paths": {"/p": {"under": "/a/b"}}, "only": ["p"]}, "under /a/b"),
        (
            {"paths": {"/p": {"under": "/a"}, "/mode": {"in": ["r", "rb"]}}, "only": ["p", "mode"]},
            "under /a, with mode r or rb",
        ),
        (
            {"paths": {"/p": {"under": "/a"}, "/q": {"under": "/b"}}, "only": ["p", "q"]},
            "with p under /a, q under /b",
        ),
        ({"paths": {"/u": {"host": "a.org"}}, "only": ["u"]}, "with u at https://a.org"),
        ({"paths": {"/o/n": {"is": None}}, "only": ["o"]}, "with o.n null"),
        ({"paths": {"/n": {"is": "a\nb"}}, "only": ["n"]}, "with n 'a\\nb'"),
    ],
)
def test_a_condition_is_told_in_words(where: dict[str, object], told: str) -> None:
    assert parse_condition(where).describe() == told


def test_a_condition_is_written_in_one_way() -> None:
    one = {"only": ["a"], "paths": {"/a": {"is": 1}}}
    other = {"paths": {"/a": {"is": 1}}, "only": ["a"]}
    assert canonical_condition(one) == canonical_condition(other)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(_json, _json)
def test_sameness_is_of_types_as_well_and_goes_both_ways(one: object, other: object) -> None:
    assert is_same_json(one, other) == is_same_json(other, one)
    if is_same_json(one, other):
        assert type(one) is type(other)
        assert one == other


@given(st.text(max_size=30))
def test_nothing_outside_of_the_tree_is_ever_covered(tail: str) -> None:
    for path in (f"{TREE}/{tail}", tail, f"/{tail}", f"{TREE}{tail}"):
        if IN_TREE.covers({"path": path}):
            parts = path.split("/")
            assert parts[1:3] == ["srv", "project"]
            assert not {".", ".."} & set(parts)
            assert not any(part.startswith(".") for part in parts)
            assert unicodedata.normalize("NFC", path) == path
            assert "\\" not in path
            assert "\0" not in path


@given(st.text(max_size=30))
def test_only_urls_that_python_reads_the_same_are_covered(tail: str) -> None:
    for url in (f"https://api.example.org{tail}", f"https://{tail}", tail):
        if AT_HOST.covers({"url": url}):
            rest = url.removeprefix("https://api.example.org").removeprefix(":443")
            assert rest == "" or rest[0] in "/?#"
            assert rest.isascii()


@given(st.dictionaries(st.text(max_size=3), _json, max_size=4))
def test_a_condition_never_raises_whatever_it_is_shown(arguments: dict[str, object]) -> None:
    for condition in (IN_TREE, AT_HOST, Condition({}, frozenset())):
        assert condition.covers(arguments) in (True, False)
    assert Condition({}, frozenset()).covers(arguments) is (arguments == {})
