"""What an argument is to its tool."""

import pytest

from comity.rules.meanings import Meaning, meaning_of


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("command", Meaning.COMMAND),
        ("shell-command", Meaning.COMMAND),
        ("commandLine", Meaning.COMMAND),
        ("URL", Meaning.URL),
        ("source_code", Meaning.CODE),
        ("file_path", Meaning.PATH),
        ("query", Meaning.UNKNOWN),
        ("", Meaning.UNKNOWN),
    ],
)
def test_a_name_says_what_an_argument_is(name: str, meaning: Meaning) -> None:
    assert meaning_of(name, name, {}) is meaning


def test_the_operator_knows_better_than_a_name() -> None:
    told = {"steps.command": "text", "line": "command"}
    assert meaning_of("steps[3].command", "command", told) is Meaning.TEXT
    assert meaning_of("a.line", "line", told) is Meaning.COMMAND
    assert meaning_of("command", "command", told) is Meaning.COMMAND
