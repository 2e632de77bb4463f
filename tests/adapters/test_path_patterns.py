"""Patterns of paths as scopes use them."""

import time

import pytest

from comity.adapters.path_patterns import matches
from tests.pace import here


@pytest.mark.parametrize(
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
    assert matches(pattern, path, False) == matched


def test_capitals_count_unless_told_otherwise() -> None:
    assert not matches("/a/.env", "/a/.ENV", False)
    assert matches("/a/.env", "/a/.ENV", True)


@pytest.mark.parametrize("pattern", ["**/*a*a*a*b", "**/a/**/a/**/b", "/*a*a*a*a*a*b"])
def test_no_path_takes_long(pattern: str) -> None:
    for path in ("/" + "a" * 255, "/a" * 120, "/" + "aa/" * 1000):
        before = time.thread_time()
        matches(pattern, path[:4096], True)
        assert time.thread_time() - before < here(0.1)
