"""Counts with their nouns, and the beginnings of sentences."""

import pytest

from comity.rules.phrases import count_noun, start_sentence


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 tools"), (1, "1 tool"), (2, "2 tools"), (1200, "1,200 tools"), (1.0, "1 tool")],
)
def test_a_noun_agrees_with_its_count(count: float, said: str) -> None:
    assert count_noun(count, "tool") == said


def test_a_plural_that_is_no_regular_one_is_named() -> None:
    assert count_noun(2, "entry", "entries") == "2 entries"
    assert count_noun(1, "entry", "entries") == "1 entry"
    assert count_noun(0.25, "second") == "0.25 seconds"


@pytest.mark.parametrize(
    ("words", "begun"),
    [
        ("you can approve it", "You can approve it"),
        ("rate limited: agent:ci may not", "Rate limited: agent:ci may not"),
        ("timeout: nothing came", "Timeout: nothing came"),
        ("server 'files' is gone", "Server 'files' is gone"),
        ("person:local declined this call", "person:local declined this call"),
        ("files__read is not there", "files__read is not there"),
        ("", ""),
    ],
)
def test_a_sentence_begins_with_a_capital_but_an_id_keeps_its_letters(
    words: str, begun: str
) -> None:
    assert start_sentence(words) == begun
