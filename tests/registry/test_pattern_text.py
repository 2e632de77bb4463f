"""Texts for regular expressions: the plain ones fit, and no hostile one holds us up."""

import re
import time

from hypothesis import given
from hypothesis import strategies as st

from comity.registry.examples import MAX_TEXT_LENGTH, texts_like
from tests.support.cases import loop_over


@loop_over(
    "pattern",
    [
        "^[A-Z]{1,5}$",
        r"^\d{4}-\d{2}-\d{2}$",
        "^a|b$",
        "^(cat|dog)+$",
        r"^[\w.+-]+@[\w-]+\.[a-z]{2,}$",
        "^[^a]$",
        "^[^a-z0-9]{3}$",
        r"^\u0041\x42$",
        r"^(?:x(?:y(?:z)))?$",
        "^(?P<year>[0-9]{4})$",
        "^[a-]$",
        "^[]a]$",
        r"^\s\S\D\W$",
        "^a*?b+?c??$",
        "^$",
        "",
        ".",
        r"^(?=.*a)[a-c]+$",
        r"^#[0-9a-fA-F]{6}$",
        r"^\$\{[A-Z_]+\}$",
        "^a{3,}$",
        r"^\bword\b$",
        r"^[\d-]+$",
    ],
)
def test_a_text_fits_its_pattern(pattern: str) -> None:
    assert any(re.search(pattern, text) for text in texts_like(pattern))


def test_texts_of_several_lengths_are_offered() -> None:
    lengths = {len(text) for text in texts_like("^[a-z]*$")}
    assert {0, 1, 8, 64} <= lengths


@loop_over(
    "pattern",
    [
        "(" * 1000,
        "(?" * 500,
        "((((a{999}){999}){999}){999})",
        "(a*)*" * 100,
        "[" * 500,
        "[\\",
        "\\",
        "a{99999999999}",
        "(?<",
        "a" * 2000,
        r"[\u0000-\uffff]{500}",
        ")",
        "*",
        "|||||",
        r"\p{L}+",
        r"\p{",
        "\\ud800",
    ],
)
def test_a_hostile_pattern_ends_and_stays_within_bounds(pattern: str) -> None:
    began = time.process_time()
    assert all(len(text) <= MAX_TEXT_LENGTH for text in texts_like(pattern))
    assert time.process_time() - began < 2


@given(st.text(alphabet="()[]{}?*+|\\^$.-ab1d,:<>=!up", max_size=40))
def test_no_pattern_is_too_strange_to_be_read(pattern: str) -> None:
    assert all(len(text) <= MAX_TEXT_LENGTH for text in texts_like(pattern))
