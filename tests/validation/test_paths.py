"""What a scope says of a path, and which patterns it may hold."""

from comity.validation.paths import (
    PathScope,
    PathVerdict,
    collapse_slashes,
    judge_path,
    path_refusal_reason,
    pattern_problem,
)
from comity.validation.shell_parser import is_glob_match
from tests.support.cases import loop_over

SCOPE = PathScope(("/project/**", "/data/*.csv"), ("**/.env", "/project/private/**"))


@loop_over(
    ("path", "ruling"),
    [
        ("/project/a/b", PathVerdict.ALLOWED),
        ("/project", PathVerdict.ALLOWED),
        ("/data/x.csv", PathVerdict.ALLOWED),
        ("/data/a/x.csv", PathVerdict.OUTSIDE),
        ("/etc/passwd", PathVerdict.OUTSIDE),
        ("/project/.env", PathVerdict.DENIED),
        ("/project/private", PathVerdict.DENIED),
        ("/project/Private/x", PathVerdict.DENIED),
        ("/Project/x", PathVerdict.OUTSIDE),
    ],
)
def test_a_scope_says_what_it_says(path: str, ruling: PathVerdict) -> None:
    assert judge_path(path, SCOPE, is_glob_match) is ruling


def test_why_a_path_is_refused_is_told() -> None:
    assert path_refusal_reason("/project/x", SCOPE, is_glob_match) is None
    assert (
        path_refusal_reason("/project/.env", SCOPE, is_glob_match)
        == "the path is denied to this tool"
    )
    assert "outside" in (path_refusal_reason("/etc/passwd", SCOPE, is_glob_match) or "")
    assert "absolute" in (path_refusal_reason("x", SCOPE, is_glob_match) or "")


def test_slashes_are_counted_once() -> None:
    assert collapse_slashes("/a//b///c/") == "/a/b/c"
    assert collapse_slashes("/") == "/"


@loop_over("pattern", ["/a/**", "**/.env", "/a/*/b?.txt", "/a"])
def test_a_plain_pattern_may_stand_in_a_scope(pattern: str) -> None:
    assert pattern_problem(pattern) is None


@loop_over("pattern", ["a/**", "/a/../b", "/a/[bc]", "/*a*b*c*d*e*f*g", "/a\\b", ""])
def test_any_other_may_not(pattern: str) -> None:
    assert pattern_problem(pattern) is not None
