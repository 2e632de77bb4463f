"""`rules/safe_text.py`: what a database refuses and a terminal obeys is spelled out."""

import pytest

from comity.rules.safe_text import safe


@pytest.mark.parametrize(
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
    assert safe(said) == kept


def test_what_is_safe_stays_so() -> None:
    everything = "".join(map(chr, [*range(0x3000), *range(0xD700, 0xE100), 0xE0001, 0x1F600]))
    once = safe(everything)
    assert safe(once) == once
    assert once.encode()
    assert "\x00" not in once
    assert "😀" in once
