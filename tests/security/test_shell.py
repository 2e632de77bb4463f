"""Attack 12 of `docs/design/security.md` §1.5: what a shell makes of a command line."""

import subprocess

from hypothesis import given, settings
from hypothesis import strategies as st

from comity.errors import VALIDATION_BLOCKED
from comity.validation import shell
from comity.validation.arguments import ToolDefinition
from comity.validation.rules import UNRULED, ValidationRules, Verdict
from comity.validation.shell import UnparsableCommand
from comity.validation.shell_parser import parse_command_words
from tests.security.corpus import is_few, section
from tests.support.cases import loop_over

HOSTILE = section("shell.toml", "hostile")
HARMLESS = section("shell.toml", "harmless")
ARGUMENTS = section("arguments.toml", "hostile-sandbox")
HARMLESS_ARGUMENTS = section("arguments.toml", "harmless-sandbox")


def examined(arguments: dict[str, object], rules: ValidationRules = UNRULED) -> Verdict:
    return shell.shell_refusal_reason(
        ToolDefinition("files", "run"), arguments, rules, parse_command_words
    )


@loop_over("name", HOSTILE)
def test_attack_12_a_hostile_command_is_blocked(name: str) -> None:
    verdict = examined({"command": HOSTILE[name]})
    assert verdict is not None
    assert verdict.fault is VALIDATION_BLOCKED
    assert verdict.field == "command"


@loop_over("name", ARGUMENTS)
def test_attack_12_a_hostile_command_is_blocked_wherever_it_stands(name: str) -> None:
    assert examined(ARGUMENTS[name]) is not None


def test_attack_12_harmless_commands_pass() -> None:
    alarms = [text for text in HARMLESS.values() if examined({"command": text}) is not None]
    alarms += [name for name, each in HARMLESS_ARGUMENTS.items() if examined(each) is not None]
    assert is_few(alarms, HARMLESS | HARMLESS_ARGUMENTS), alarms


def as_bash_reads(text: str) -> list[str]:
    """What bash hands to a program, of words that nobody runs."""
    command = ["bash", "--norc", "--noprofile", "-c", f"printf '%s\\0' {text}"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=20, env={"HOME": "/"})
    return done.stdout.decode().split("\0")[:-1]


@loop_over("text", HARMLESS.values())
def test_the_words_that_are_judged_are_those_that_bash_would_run(text: str) -> None:
    line = parse_command_words(text)
    assert not isinstance(line, UnparsableCommand)
    assert as_bash_reads(text) == list(line)


@settings(deadline=None, max_examples=150)
@given(st.text("ab 'x\"-=~#./:%5é\\$`;&|<>(){}*?[]!\n\t^,@+", max_size=12))
def test_whatever_is_read_is_read_as_bash_does(text: str) -> None:
    line = parse_command_words(f"echo {text}")
    if not isinstance(line, UnparsableCommand):
        assert as_bash_reads(f"echo {text}") == list(line)
