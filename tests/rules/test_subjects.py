"""Subjects and patterns, and which of them meet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules import subjects

PARTS = st.text("abzAZ09_-", min_size=1, max_size=4)
SUBJECTS = st.lists(PARTS, min_size=1, max_size=5).map(".".join)
WITHOUT_REST = st.lists(PARTS | st.just("*"), min_size=1, max_size=5).map(".".join)
PATTERNS = WITHOUT_REST | WITHOUT_REST.map("{}.>".format)


def _meet(pattern: list[str], subject: list[str]) -> bool:
    """The rule in other words, for comparison."""
    if not pattern or not subject:
        return not pattern and not subject
    if pattern[0] == ">":
        return True
    return pattern[0] in ("*", subject[0]) and _meet(pattern[1:], subject[1:])


@given(SUBJECTS, PATTERNS)
def test_a_pattern_meets_the_subjects_that_it_says(subject: str, pattern: str) -> None:
    assert subjects.is_subject(subject)
    assert subjects.is_pattern(pattern)
    found = subjects.compiled(pattern).fullmatch(subject) is not None
    assert found == _meet(pattern.split("."), subject.split("."))


@given(SUBJECTS)
def test_a_subject_is_a_pattern_that_meets_itself_alone(subject: str) -> None:
    assert subjects.is_plain(subject)
    assert subjects.compiled(subject).fullmatch(subject)
    assert not subjects.compiled(subject).fullmatch(f"{subject}.a")


@given(st.text(max_size=12))
def test_no_subject_holds_anything_that_a_protocol_could_read(text: str) -> None:
    if subjects.is_subject(text):
        assert text.isascii()
        assert not set(text) & set(" \t\r\n*>/")


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a b", "a\n", "a*", "\u00e4", "a/b"])
def test_what_is_neither_is_refused(text: str) -> None:
    assert not subjects.is_subject(text)
    assert not subjects.is_pattern(text)


@pytest.mark.parametrize("text", ["a.>.b", ">.a", "a>", "**"])
def test_a_wildcard_stands_for_whole_parts_only(text: str) -> None:
    assert not subjects.is_pattern(text)


def test_a_subject_has_an_end() -> None:
    assert subjects.is_subject("a" * subjects.LONGEST)
    assert not subjects.is_subject("a" * (subjects.LONGEST + 1))
    assert not subjects.is_pattern("*." * subjects.LONGEST + "a")
