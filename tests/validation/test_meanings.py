"""What an argument is to its tool."""

from comity.validation.arguments import ArgumentKind, argument_kind_of
from tests.support.cases import loop_over


@loop_over(
    ("name", "meaning"),
    [
        ("command", ArgumentKind.COMMAND),
        ("shell-command", ArgumentKind.COMMAND),
        ("commandLine", ArgumentKind.COMMAND),
        ("URL", ArgumentKind.URL),
        ("source_code", ArgumentKind.CODE),
        ("file_path", ArgumentKind.PATH),
        ("query", ArgumentKind.UNKNOWN),
        ("", ArgumentKind.UNKNOWN),
    ],
)
def test_a_name_says_what_an_argument_is(name: str, meaning: ArgumentKind) -> None:
    assert argument_kind_of(name, name, {}) is meaning


def test_the_operator_knows_better_than_a_name() -> None:
    told = {"steps.command": "text", "line": "command"}
    assert argument_kind_of("steps[3].command", "command", told) is ArgumentKind.TEXT
    assert argument_kind_of("a.line", "line", told) is ArgumentKind.COMMAND
    assert argument_kind_of("command", "command", told) is ArgumentKind.COMMAND
