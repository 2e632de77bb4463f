"""Which options of a command line are let through."""

import pytest

from comity.rules.options import Options, words

SOME = Options("ab", "n", words("all lines"), numbers=True, most=2)


@pytest.mark.parametrize(
    ("line", "operands"),
    [
        (["x"], ["x"]),
        (["-ab", "x"], ["x"]),
        (["-n", "5", "x"], ["x"]),
        (["-an5", "x"], ["x"]),
        (["-5"], []),
        (["--all", "--lines=5"], []),
        (["--", "-z"], ["-z"]),
        (["-"], ["-"]),
        (["-n"], []),
    ],
)
def test_operands_are_what_is_left_beside_options(line: list[str], operands: list[str]) -> None:
    assert SOME.operands(line) == operands


@pytest.mark.parametrize("line", [["-c"], ["-ac"], ["--al"], ["--allx"], ["a", "b", "c"], ["-٣"]])
def test_what_is_not_named_is_not_let_through(line: list[str]) -> None:
    assert isinstance(SOME.operands(line), str)
