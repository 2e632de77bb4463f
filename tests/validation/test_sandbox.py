"""What the validator `sandbox` makes of arguments; `tests/security/cases` has the named ones."""

import time

from comity.errors import VALIDATION_BLOCKED
from comity.validation import shell
from comity.validation.arguments import ToolDefinition
from comity.validation.rules import UNRULED, ValidationRules, Verdict
from comity.validation.shell import MOST_CHARACTERS, form_problem
from comity.validation.shell_parser import parse_command_words
from tests.pace import here
from tests.support.cases import loop_over


def examined(arguments: dict[str, object], rules: ValidationRules = UNRULED) -> Verdict:
    return shell.shell_refusal_reason(
        ToolDefinition("shell", "run"), arguments, rules, parse_command_words
    )


def test_a_refusal_says_which_argument_why_and_what_would_pass() -> None:
    verdict = examined({"command": "rm -rf /"})
    assert verdict is not None
    assert verdict.fault is VALIDATION_BLOCKED
    assert verdict.field == "command"
    assert "'rm' is not among the commands" in verdict.reason
    assert "These commands are allowed: arch, basename, cat" in verdict.suggestions[1]
    assert verdict.details == {"validator": "sandbox"}


def test_an_operator_says_what_an_argument_is() -> None:
    assert examined({"line": "List; the files"}) is not None
    assert (
        examined({"line": "List; the files"}, ValidationRules(arguments={"line": "text"})) is None
    )
    assert (
        examined({"line": "ls -l", "note": "ls"}, ValidationRules(arguments={"line": "command"}))
        is None
    )


def test_an_operator_widens_and_narrows_the_commands() -> None:
    rules = ValidationRules(more_commands=frozenset({"make"}), fewer_commands=frozenset({"git"}))
    assert examined({"command": "make test"}, rules) is None
    assert examined({"command": "git status"}, rules) is not None


def test_what_no_parser_should_see_is_refused_before() -> None:
    assert form_problem("ls") is None
    assert form_problem("ls " + "a" * MOST_CHARACTERS) is not None
    assert form_problem("ls\x00") == "it holds a control character"
    assert form_problem("ls \ue000") == "it holds a sign that cannot be seen"


@loop_over(
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


@loop_over(
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
    assert "hunter" not in f"{verdict.reason} {verdict.suggestions} {verdict.details}"
