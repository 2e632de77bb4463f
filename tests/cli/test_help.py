"""The help of every command: its summary, its examples, and its width."""

import shlex
from collections.abc import Iterator

import click
import pytest

from comity.cli.main import COMMANDS, comity
from comity.cli.options import GlobalOption, first_sentence
from comity.policy.grants import Effect

MAX_SUMMARY = 60
COLUMNS = 80


def every_command(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from every_command(inner, click.Context(inner, context, info_name=name))


FOUND = list(every_command(comity, click.Context(comity, info_name="comity")))[1:]
PATHS = [context.command_path for _, context in FOUND]


@pytest.mark.parametrize(("command", "context"), FOUND, ids=PATHS)
def test_help_has_a_short_summary_and_examples_and_fits_the_terminal(
    command: click.Command, context: click.Context
) -> None:
    summary = first_sentence(command)
    assert len(summary) <= MAX_SUMMARY, summary
    formatter = click.HelpFormatter(width=COLUMNS - 2)
    command.format_help(context, formatter)
    shown = formatter.getvalue()
    assert "..." not in shown.replace("]...", "").replace("COMMAND [ARGS]...", "")
    assert max(map(len, shown.splitlines())) <= COLUMNS
    assert "Examples:" in shown


def examples() -> Iterator[str]:
    for command, _ in FOUND:
        for line in (command.help or "").partition("Examples:")[2].splitlines():
            if line.strip().startswith("comity "):
                yield line.strip()


@pytest.mark.parametrize("line", sorted(set(examples())))
def test_an_example_is_a_command_that_exists(line: str) -> None:
    words = shlex.split(line.split(" > ", maxsplit=1)[0].split(" | ", maxsplit=1)[0])[1:]
    context = click.Context(comity, info_name="comity")
    command: click.Command = comity
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        if inner is None:
            break
        command, words = inner, words[1:]
        context = click.Context(command, context)
    if isinstance(command, click.Group):
        # A group that lists has the options of its list.
        listing = command.get_command(context, "list")
        assert listing is not None, line
        command = listing
    _, left, _ = command.make_parser(context).parse_args(words)
    assert left == [], line


def test_the_program_lists_its_commands_under_headings() -> None:
    shown = comity.get_help(click.Context(comity, info_name="comity"))
    for heading in ("Start:", "Access and approvals:", "Records:", "Build:"):
        assert heading in shown
    assert all(f"\n  {name} " in shown for name in COMMANDS)


def test_an_option_of_several_commands_has_one_definition() -> None:
    seen: dict[str, set[tuple[object, ...]]] = {}
    for command, context in FOUND:
        for each in command.get_params(context):
            if isinstance(each, GlobalOption):
                about = (tuple(each.opts), each.help, each.metavar)
                seen.setdefault(each.opts[-1], set()).add(about)
    assert {"--config", "--context", "--url", "--key-file", "--output", "--quiet"} <= set(seen)
    assert {"--no-color", "--offline", "--local"} <= set(seen)
    assert all(len(definitions) == 1 for definitions in seen.values())
    local = [path for path, (command, _) in zip(PATHS, FOUND, strict=True) if _has(command, "-c")]
    assert local, "the flag -c is for the configuration alone"


def _has(command: click.Command, flag: str) -> bool:
    owners = [each for each in command.params if flag in each.opts]
    assert all(isinstance(each, GlobalOption) for each in owners)
    return bool(owners)


def test_effects_of_grants_have_a_flag_each() -> None:
    (create,) = [
        command for command, context in FOUND if context.command_path.endswith("grants create")
    ]
    flags = {word for each in create.params for word in each.opts}
    assert {f"--{effect}" for effect in Effect if effect is not Effect.ALLOW} <= flags
