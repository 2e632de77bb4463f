"""URI templates: what fits is what a slow and plain reading says fits, and nothing takes long."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from comity.rules.templates import LONGEST, Index, Template

GAPS = ("{x}", "{+x}", "{?q}", "{/p*}")
pieces = st.one_of(st.sampled_from(GAPS), st.text(alphabet="ab/", min_size=1, max_size=2))
templates = st.lists(pieces, max_size=7).map("".join)
uris = st.text(alphabet="ab/?", max_size=9)


def slow_fits(template: str, uri: str) -> bool:
    """The same question put to a backtracking matcher, which small inputs can afford."""
    parts = re.split(r"(\{[^{}]*\})", template)
    pattern = "".join(
        re.escape(part)
        if not part.startswith("{")
        else (".*" if part[1] in "+#./;?&" else "[^/?#]*")
        for part in parts
    )
    return re.fullmatch(pattern, uri, re.DOTALL) is not None


@given(templates, uris)
@example("{+x}b{x}", "b/b")
@example("{x}a{x}/a", "aa/a")
@example("{+x}a{x}a{+x}", "a/a/aba")
def test_what_fits_is_what_a_slow_reading_says(template: str, uri: str) -> None:
    assert Template.parse(template).fits(uri) is slow_fits(template, uri)


@pytest.mark.parametrize(
    ("template", "uri", "fits"),
    [
        ("file:///a", "file:///a", True),
        ("file:///a", "file:///ab", False),
        ("file:///{name}", "file:///a.txt", True),
        ("file:///{name}", "file:///a/b", False),
        ("file:///{+path}", "file:///a/b", True),
        ("notes://{user}/{id}.md", "notes://ann/7.md", True),
        ("notes://{user}/{id}.md", "notes://ann/7.txt", False),
        ("web://x{?q,lang}", "web://x?q=1&lang=de", True),
        ("web://x{?q,lang}", "web://y?q=1", False),
        ("{a}{b}", "ab", True),
        ("a{x}a", "a", False),
        ("a{", "a{", True),
    ],
)
def test_a_template_fits_what_it_can_make(template: str, uri: str, fits: bool) -> None:
    assert Template.parse(template).fits(uri) is fits


def test_two_gaps_side_by_side_are_one_that_holds_what_either_may() -> None:
    assert Template.parse("a{x}{+y}b") == Template.parse("a{+z}b")


def test_a_uri_beyond_the_longest_fits_nothing() -> None:
    assert not Template.parse("{+x}").fits("a" * (LONGEST + 1))
    assert Template.parse("{+x}").fits("a" * LONGEST)


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("{x}a" * (LONGEST // 4), "a" * LONGEST),
        ("{+x}a{x}b" * (LONGEST // 9), "ab/" * (LONGEST // 3)),
        ("{x}" + "a" * 4000 + "b{y}", "a" * LONGEST),
        ("{" * LONGEST, "{" * LONGEST),
    ],
    ids=["many gaps", "mixed gaps", "a long literal", "no gap at all"],
)
@pytest.mark.timeout(20)
def test_a_hostile_template_takes_no_longer_than_an_honest_one(template: str, uri: str) -> None:
    """Each of these would keep a backtracking matcher busy for longer than anybody lives."""
    parsed = Template.parse(template)
    for _ in range(3):
        parsed.fits(uri + "!"[: LONGEST - len(uri)])


def test_an_index_finds_the_owner_with_the_longest_beginning() -> None:
    index: Index[str] = Index()
    index.add("file:///{+path}", "all")
    index.add("file:///home/{+path}", "home")
    assert index.find("file:///home/x") == "home"
    assert index.find("file:///etc/x") == "all"
    assert index.find("http://x") is None
    assert index.find("file:///" + "x" * LONGEST) is None


def test_a_template_that_was_removed_is_not_found() -> None:
    index: Index[str] = Index()
    index.add("file:///{a}", "one")
    index.add("file:///{b}", "other")
    index.add("a{x}", "short")
    index.remove("file:///{a}", "one")
    assert index.find("file:///x") == "other"
    index.remove("file:///{b}", "other")
    assert index.find("file:///x") is None
    assert index.find("ab") == "short"
    index.remove("never added {x}", "nobody")
    index.remove("file:///{b}", "other")
    assert index.find("ab") == "short"


owned = st.tuples(templates, st.integers(0, 3))


@given(st.lists(st.tuples(st.booleans(), owned), max_size=12), uris)
def test_an_index_knows_what_was_added_and_not_removed(
    steps: list[tuple[bool, tuple[str, int]]], uri: str
) -> None:
    index: Index[tuple[str, int]] = Index()
    held: list[tuple[str, int]] = []
    for adds, owner in steps:
        if adds:
            index.add(owner[0], owner)
            held.append(owner)
        else:
            index.remove(owner[0], owner)
            held = [each for each in held if each != owner]
    found = index.find(uri)
    fitting = [owner for owner in held if slow_fits(owner[0], uri)]
    assert (found in fitting) if fitting else (found is None)
