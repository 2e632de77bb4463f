"""Unsafe characters, counts with their nouns, and sentences."""

from comity.toolkit.text import count_noun, escape_unsafe, start_sentence
from tests.support.cases import loop_over


@loop_over(
    ("said", "kept"),
    [
        ("plain text, ünïcode and 漢字", "plain text, ünïcode and 漢字"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("a\x00b", "a\\x00b"),
        ("half \ud83d of one", "half \\ud83d of one"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\x9b2Jgone", "\\x9b2Jgone"),
        ("over\rwritten", "over\\rwritten"),
        ("abc\u202egnp.exe", "abc\\u202egnp.exe"),
        ("in\u200bvisible", "in\\u200bvisible"),
        ("tag\U000e0041ged", "tag\\U000e0041ged"),
        ("line\u2028end", "line\\u2028end"),
    ],
)
def test_what_is_unsafe_is_spelled_out(said: str, kept: str) -> None:
    assert escape_unsafe(said) == kept


def test_what_is_safe_stays_so() -> None:
    everything = "".join(map(chr, [*range(0x3000), *range(0xD700, 0xE100), 0xE0001, 0x1F600]))
    once = escape_unsafe(everything)
    assert escape_unsafe(once) == once
    assert once.encode()
    assert "\x00" not in once
    assert "😀" in once


@loop_over(
    ("count", "said"),
    [(0, "0 tools"), (1, "1 tool"), (2, "2 tools"), (1200, "1,200 tools"), (1.0, "1 tool")],
)
def test_a_noun_agrees_with_its_count(count: float, said: str) -> None:
    assert count_noun(count, "tool") == said


def test_a_plural_that_is_no_regular_one_is_named() -> None:
    assert count_noun(2, "entry", "entries") == "2 entries"
    assert count_noun(1, "entry", "entries") == "1 entry"
    assert count_noun(0.25, "second") == "0.25 seconds"


@loop_over(
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
