"""Patterns of paths and channels: what one star reaches, what two do, and that none takes long."""

import re
import time

from hypothesis import example, given, settings
from hypothesis import strategies as st

from comity.toolkit.patterns import is_glob_match
from tests.pace import here
from tests.support.cases import loop_over

PATTERNS = st.text(alphabet="ab/*?.", max_size=12)
TEXTS = st.text(alphabet="ab/.", max_size=12)


@loop_over(
    ("pattern", "text", "does"),
    [
        ("/project/**", "/project/src/main.ts", True),
        ("/project/**", "/project", True),
        ("/project/**", "/projects/x", False),
        ("**/.env", ".env", True),
        ("**/.env", "/.env", True),
        ("**/.env", "/a/b/.env", True),
        ("**/.env", "/a/x.env", False),
        ("**/secrets/**", "/a/secrets", True),
        ("**/secrets/**", "/a/secrets/b/c", True),
        ("**/secrets/**", "/a/secretsauce/b", False),
        ("#dev-*", "#dev-ops", True),
        ("#dev-*", "#dev-ops/x", False),
        ("#dev-*", "#admin", False),
        ("/a/*/c", "/a/b/c", True),
        ("/a/*/c", "/a/b/b/c", False),
        ("/a/**/b", "/a/b", True),
        ("/a/**/b", "/a/x/y/b", True),
        ("/a/**/b", "/ab", False),
        ("**/**/x", "x", True),
        ("**", "a/b", True),
        ("a***b", "a/x/b", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("/a//b", "/a/b", True),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("", "", True),
        ("", "x", False),
    ],
)
def test_a_pattern_is_about_what_it_says(pattern: str, text: str, does: bool) -> None:
    assert is_glob_match(pattern, text) is does


def in_other_words(pattern: str) -> str:
    """The same as a regular expression, which may take long and needs no bits."""
    pattern = re.sub(r"/{2,}", "/", pattern)
    for widest in (r"\*{3,}",):
        pattern = re.sub(widest, "**", pattern)
    said, place = "", 0
    while place < len(pattern):
        if pattern.startswith("**/", place) and (place == 0 or pattern[place - 1] == "/"):
            said, place = said + r"(?:.*/)?", place + 3
        elif pattern.startswith("/**", place) and place + 3 == len(pattern) and place > 0:
            said, place = said + r"(?:/.*)?", place + 3
        elif pattern.startswith("**", place):
            said, place = said + ".*", place + 2
        else:
            one = {"*": "[^/]*", "?": "[^/]"}.get(pattern[place], re.escape(pattern[place]))
            said, place = said + one, place + 1
    return said


@settings(max_examples=2000)
@given(PATTERNS, TEXTS)
@example("**/.a", "b.a")
def test_it_matches_what_a_regular_expression_of_the_same_meaning_does(
    pattern: str, text: str
) -> None:
    assert is_glob_match(pattern, text) is (re.fullmatch(in_other_words(pattern), text) is not None)


@given(st.text(alphabet="ab", max_size=5), st.text(alphabet="ab", max_size=5), TEXTS)
def test_one_star_never_reaches_across_a_folder(before: str, after: str, amid: str) -> None:
    found = is_glob_match(f"{before}*{after}", f"{before}{amid}{after}")
    assert found is ("/" not in amid)


@given(st.text(alphabet="ab./", max_size=20))
def test_two_stars_reach_everything(text: str) -> None:
    assert is_glob_match("**", text)


def test_no_pattern_takes_longer_for_being_cruel() -> None:
    began = time.thread_time()
    assert not is_glob_match("**/a*a*a*a*a*a*a*a*/" * 20 + "b", "a/" * 2000)
    assert time.thread_time() - began < here(2)
