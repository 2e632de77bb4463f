"""Patterns of paths as scopes use them."""

import time

from comity.validation.shell_parser import is_glob_match
from tests.pace import here
from tests.support.cases import loop_over


@loop_over(
    ("pattern", "path", "matched"),
    [
        ("/a/**", "/a/b/.c/d", True),
        ("/a/*", "/a/b/c", False),
        ("**/.env", "/a/.b/.env", True),
        ("/a/?.txt", "/a/b.txt", True),
        ("/a/**", "/ab/c", False),
    ],
)
def test_a_star_stays_in_its_part_and_two_go_across(pattern: str, path: str, matched: bool) -> None:
    assert is_glob_match(pattern, path, False) == matched


def test_capitals_count_unless_told_otherwise() -> None:
    assert not is_glob_match("/a/.env", "/a/.ENV", False)
    assert is_glob_match("/a/.env", "/a/.ENV", True)


@loop_over("pattern", ["**/*a*a*a*b", "**/a/**/a/**/b", "/*a*a*a*a*a*b"])
def test_no_path_takes_long(pattern: str) -> None:
    for path in ("/" + "a" * 255, "/a" * 120, "/" + "aa/" * 1000):
        # A match that takes long does so each time. What else a core does lengthens one of them.
        assert min(_seconds_of_match(pattern, path[:4096]) for _ in range(5)) < here(0.1)


def _seconds_of_match(pattern: str, path: str) -> float:
    before = time.thread_time()
    is_glob_match(pattern, path, True)
    return time.thread_time() - before
