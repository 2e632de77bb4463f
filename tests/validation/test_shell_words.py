"""One simple command is read as bash reads it; `tests/security` has the named cases."""

from comity.validation.shell import UnparsableCommand
from comity.validation.shell_parser import parse_command_words
from tests.support.cases import loop_over


@loop_over(
    ("text", "line"),
    [
        ("ls -la", ("ls", "-la")),
        ("  ls  ", ("ls",)),
        ("echo 'a b' \"c d \"", ("echo", "a b", "c d ")),
        ("cat x'y'\"z\"", ("cat", "xyz")),
        ("echo ''", ("echo", "")),
        ("git show HEAD~1", ("git", "show", "HEAD~1")),
    ],
)
def test_words_are_read_without_their_quotes(text: str, line: tuple[str, ...]) -> None:
    assert parse_command_words(text) == line


@loop_over("text", ["", "a | b", "$x", "a; b", "~", "echo ~", "if", "/bin/ls", "a=b c"])
def test_anything_more_is_unreadable(text: str) -> None:
    assert isinstance(parse_command_words(text), UnparsableCommand)
