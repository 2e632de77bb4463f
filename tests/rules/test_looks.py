"""What a definition hides is found wherever it stands; the cases are in `tests/security/cases`."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.looks import (
    LONGEST_TEXT,
    MOST_FINDINGS,
    Look,
    finding_of_name,
    findings_in,
    hidden_in,
    is_hidden,
    revealed,
)

TOOL = {"description": "x\u200b", "inputSchema": {"a/b": [{"t~\u202e": "y"}, 1, None, "z\x07"]}}


def test_what_is_hidden_is_found_at_every_place_of_a_definition() -> None:
    found = {(each.look, each.where): each.what for each in findings_in(TOOL)}
    assert found == {
        (Look.HIDDEN, "/description"): r"1 of them: \u{200b}",
        (Look.HIDDEN, r"/inputSchema/a~1b/0/t~0\u{202e}"): r"1 of them: \u{202e}",
        (Look.HIDDEN, "/inputSchema/a~1b/3"): r"1 of them: \u{7}",
    }


def test_a_text_that_nobody_would_read_to_its_end_is_found() -> None:
    (found,) = findings_in({"description": "word " * LONGEST_TEXT})
    assert (found.look, found.where) == (Look.LONG, "/description")


def test_not_every_finding_is_told() -> None:
    assert len(findings_in({str(n): "\u200b" for n in range(100)})) == MOST_FINDINGS


@given(st.text(string.printable.replace("\x0b", "").replace("\x0c", "")))
def test_plain_text_hides_nothing(text: str) -> None:
    assert hidden_in(text) == ""
    assert revealed(text) == text


@given(st.text())
def test_a_revealed_text_hides_nothing(text: str) -> None:
    shown = revealed(text)
    assert shown == text or not any(map(is_hidden, shown))


@given(st.text(min_size=1), st.sampled_from("\u200b\u202e\x00\U000e0041\u00ad\ue000"))
def test_a_hidden_character_is_found_in_any_text(text: str, hidden: str) -> None:
    assert hidden in hidden_in(text + hidden + text)


def test_white_space_that_people_write_is_not_hidden() -> None:
    assert not any(map(is_hidden, "\n\t\r \u00a0"))
    assert is_hidden("\ud800")


@pytest.mark.parametrize(
    ("name", "because"),
    [
        ("read\u200b", r"nobody sees: 'read\\\\u{200b}'"),
        (" read", "nobody sees"),
        ("a" * 257, "257 characters"),
        ("read_*", "a pattern"),
        ("../read", "a path"),
        ("mgp.tools", "the gateway's own"),
        ("\uff52ead", "dressed up"),
        ("re\u0430d", "letters of CYRILLIC and LATIN"),
    ],
)
def test_an_odd_name_is_told_by_what_is_odd(name: str, because: str) -> None:
    found = finding_of_name(name)
    assert found is not None
    assert found.look is Look.NAME
    assert because.replace("\\\\", "\\") in found.what
