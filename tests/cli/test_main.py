"""The command itself: its words, its quickness, and how it ends."""

import re
import resource
import subprocess
import sys

import click
import pytest

from comity.cli.main import COMMANDS, comity
from tests.cli.program import COMITY, SECONDS, Desk
from tests.pace import here

HEAVY = {"uvicorn", "uvloop", "msgspec", "rich", "httptools", "jsonschema_rs", "asyncio"}
LISTING = """
import sys
from comity.cli.main import main
main(["--help"])
sys.stderr.write(" ".join(sorted(sys.modules)))
"""


def test_help_loads_nothing_that_it_does_not_need(desk: Desk) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LISTING], capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert "Commands:" in done.stdout
    assert HEAVY & set(done.stderr.split()) == set()


def test_help_takes_less_than_a_third_of_a_second_of_the_processor() -> None:
    def used() -> float:
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime

    taken: list[float] = []
    for _ in range(3):
        before = used()
        subprocess.run([COMITY, "--help"], stdout=subprocess.DEVNULL, timeout=SECONDS, check=True)
        taken.append(used() - before)
    # The least of three, since what else the machine does can only add to it.
    assert min(taken) < here(0.3)


def test_every_command_is_listed_with_its_own_first_sentence() -> None:
    context = click.Context(comity)
    for name, about in COMMANDS.items():
        command = comity.get_command(context, name)
        assert command is not None
        assert (command.name, command.get_short_help_str(200)) == (name, about)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(desk: Desk, name: str) -> None:
    ran = desk.run(name, "--help")
    assert (ran.status, ran.out.startswith(f"Usage: comity {name}")) == (0, True)


@pytest.mark.parametrize(
    "arguments", [(), ("dance",), ("--dance",), ("status", "--dance"), ("tools", "show")]
)
def test_a_command_that_cannot_be_is_explained(desk: Desk, arguments: tuple[str, ...]) -> None:
    ran = desk.run(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith("Usage: comity")


def test_a_misspelt_command_is_answered_with_the_one_that_was_meant(desk: Desk) -> None:
    assert "Did you mean 'serve'?" in desk.run("sevre").err


def test_the_version_is_told_and_nothing_is_run(desk: Desk) -> None:
    ran = desk.run("--version")
    assert (ran.status, ran.err) == (0, "")
    assert re.fullmatch(r"comity \d+\.\d+\.\d+\S* \(Python 3\.\d+\.\d+\)\n", ran.out)


def test_a_reader_that_goes_away_is_no_failure_to_be_told(desk: Desk, gateway: str) -> None:
    done = subprocess.run(
        ["bash", "-c", f'{COMITY} tools --url {gateway} | true; echo "${{PIPESTATUS[0]}}"'],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    # It may have finished before its reader was gone.
    assert (done.stderr, done.stdout.strip() in ("0", "141")) == ("", True)
