"""What the validator `sandbox` makes of arguments; `tests/security/cases` has the named ones."""

import time

import pytest

from comity.adapters.shell_words import read
from comity.rules import sandbox
from comity.rules.sandbox import MOST_CHARACTERS, form_problem
from comity.rules.validators import UNRULED, Rules, Verdict
from comity.wire.errors import VALIDATION_BLOCKED
from comity.wire.tools import Tool
from tests.pace import here


def examined(arguments: dict[str, object], rules: Rules = UNRULED) -> Verdict:
    return sandbox.examine(Tool("shell", "run"), arguments, rules, read)


def test_a_refusal_says_which_argument_why_and_what_would_pass() -> None:
    verdict = examined({"command": "rm -rf /"})
    assert verdict is not None
    assert verdict.fault is VALIDATION_BLOCKED
    assert verdict.field == "command"
    assert "'rm' is not among the commands" in verdict.because
    assert "These commands are allowed: arch, basename, cat" in verdict.suggestions[1]
    assert verdict.details == {"validator": "sandbox"}


def test_an_operator_says_what_an_argument_is() -> None:
    assert examined({"line": "List; the files"}) is not None
    assert examined({"line": "List; the files"}, Rules(arguments={"line": "text"})) is None
    assert examined({"line": "ls -l", "note": "ls"}, Rules(arguments={"line": "command"})) is None


def test_an_operator_widens_and_narrows_the_commands() -> None:
    rules = Rules(more_commands=frozenset({"make"}), fewer_commands=frozenset({"git"}))
    assert examined({"command": "make test"}, rules) is None
    assert examined({"command": "git status"}, rules) is not None


def test_what_no_parser_should_see_is_refused_before() -> None:
    assert form_problem("ls") is None
    assert form_problem("ls " + "a" * MOST_CHARACTERS) is not None
    assert form_problem("ls\x00") == "it holds a control character"
    assert form_problem("ls \ue000") == "it holds a sign that cannot be seen"


@pytest.mark.parametrize(
    "arguments",
    [
        {"steps": [{"command": "'a' " * 2000} for _ in range(30)]},
        {"command": "ls", "note": "rm " * 80_000},
        {"command": "<<a " * 2000},
        {"command": ["x"] * 9000},
    ],
)
def test_no_arguments_take_long_to_look_at(arguments: dict[str, object]) -> None:
    before = time.thread_time()
    examined(arguments)
    assert time.thread_time() - before < here(0.1)


@pytest.mark.parametrize(
    "arguments",
    [
        {"token": "hunter"},
        {"token": "hunter two"},
        {"command": "ls --password=hunter"},
        {"command": "ls -phunter"},
        {"command": "git --token=hunter"},
        {"command": "sort -ohunter x"},
        {"command": "ls 'hunter"},
    ],
)
def test_no_value_is_repeated_in_a_refusal(arguments: dict[str, object]) -> None:
    verdict = examined(arguments)
    assert verdict is not None
    assert "hunter" not in f"{verdict.because} {verdict.suggestions} {verdict.details}"
