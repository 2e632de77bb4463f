"""One simple command is read as bash reads it; `tests/security` has the named cases."""

import pytest

from comity.adapters.shell_words import read
from comity.rules.sandbox import Unreadable


@pytest.mark.parametrize(
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
    assert read(text) == line


@pytest.mark.parametrize(
    "text", ["", "a | b", "$x", "a; b", "~", "echo ~", "if", "/bin/ls", "a=b c"]
)
def test_anything_more_is_unreadable(text: str) -> None:
    assert isinstance(read(text), Unreadable)
