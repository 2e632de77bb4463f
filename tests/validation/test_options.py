"""Which options of a command line are let through."""

from comity.toolkit.text import word_set
from comity.validation.shell import CommandOptions
from tests.support.cases import loop_over

SOME = CommandOptions("ab", "n", word_set("all lines"), numbers=True, most=2)


@loop_over(
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


@loop_over("line", [["-c"], ["-ac"], ["--al"], ["--allx"], ["a", "b", "c"], ["-٣"]])
def test_what_is_not_named_is_not_let_through(line: list[str]) -> None:
    assert isinstance(SOME.operands(line), str)
