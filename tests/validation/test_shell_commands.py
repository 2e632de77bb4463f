"""Which commands are run, as the operator widens and narrows what is known to read only."""

from comity.validation.shell import NEVER, READERS, WRITERS, AllowedCommands, only_reads
from tests.support.cases import loop_over


def test_an_operator_adds_a_command_and_its_harmful_options_stay_out() -> None:
    commands = AllowedCommands(more=frozenset({"rm", "make", "tar"}))
    assert commands.problem(["rm", "x"]) is None
    assert commands.problem(["make", "test"]) is None
    for line in (
        ["rm", "-r", "x"],
        ["rm", "/"],
        ["rm", "x/"],
        ["tar", "--checkpoint-action=exec=id"],
    ):
        assert commands.problem(line) is not None


def test_an_operator_takes_a_command_away() -> None:
    commands = AllowedCommands(fewer=frozenset({"git"}))
    assert commands.problem(["git", "status"]) is not None
    assert "git" not in commands.names()
    assert commands.problem(["ls"]) is None


@loop_over("name", sorted(NEVER))
def test_what_runs_others_is_never_let_through(name: str) -> None:
    assert AllowedCommands(more=frozenset({name})).problem([name, "x"]) is not None


def test_a_command_is_either_known_to_read_or_to_write() -> None:
    assert READERS.keys() & WRITERS.keys() == set()
    assert (READERS.keys() | WRITERS.keys()) & NEVER == set()
    assert only_reads(["cp", "a", "b"]) is not None
    assert only_reads(["git", "log"]) is None
    assert AllowedCommands().problem([]) is not None
