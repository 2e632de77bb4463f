"""What a scope says of a path, and which patterns it may hold."""

import pytest

from comity.adapters.path_patterns import matches
from comity.rules.paths import Ruling, Scope, collapsed, examine, judge, pattern_problem

SCOPE = Scope(("/project/**", "/data/*.csv"), ("**/.env", "/project/private/**"))


@pytest.mark.parametrize(
    ("path", "ruling"),
    [
        ("/project/a/b", Ruling.ALLOWED),
        ("/project", Ruling.ALLOWED),
        ("/data/x.csv", Ruling.ALLOWED),
        ("/data/a/x.csv", Ruling.OUTSIDE),
        ("/etc/passwd", Ruling.OUTSIDE),
        ("/project/.env", Ruling.DENIED),
        ("/project/private", Ruling.DENIED),
        ("/project/Private/x", Ruling.DENIED),
        ("/Project/x", Ruling.OUTSIDE),
    ],
)
def test_a_scope_says_what_it_says(path: str, ruling: Ruling) -> None:
    assert judge(path, SCOPE, matches) is ruling


def test_why_a_path_is_refused_is_told() -> None:
    assert examine("/project/x", SCOPE, matches) is None
    assert examine("/project/.env", SCOPE, matches) == "the path is denied to this tool"
    assert "outside" in (examine("/etc/passwd", SCOPE, matches) or "")
    assert "absolute" in (examine("x", SCOPE, matches) or "")


def test_slashes_are_counted_once() -> None:
    assert collapsed("/a//b///c/") == "/a/b/c"
    assert collapsed("/") == "/"


@pytest.mark.parametrize("pattern", ["/a/**", "**/.env", "/a/*/b?.txt", "/a"])
def test_a_plain_pattern_may_stand_in_a_scope(pattern: str) -> None:
    assert pattern_problem(pattern) is None


@pytest.mark.parametrize("pattern", ["a/**", "/a/../b", "/a/[bc]", "/*a*b*c*d*e*f*g", "/a\\b", ""])
def test_any_other_may_not(pattern: str) -> None:
    assert pattern_problem(pattern) is not None
