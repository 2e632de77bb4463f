"""Writes docs/reference/commands.md from the commands themselves; run it after a change of them.

.venv/bin/python -m tests.cli.reference
"""

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from comity.cli.exit_status import EXIT_STATUSES
from comity.cli.main import COMMANDS, comity
from comity.cli.options import GlobalOption

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"

HEAD = """# Commands

This page is generated from the commands. `comity COMMAND --help` prints the same text.

A command prints a table. With `-o json`, `-o yaml` or `-o name` it prints
[a document for programs](command-output.md). Messages and errors go to standard error. Tables have
colors at a terminal, unless `--no-color` or `NO_COLOR` is set. In a pipe a table has the width of
`COLUMNS`, or the width it needs.

A group without a command lists: `comity servers` is `comity servers list`.

`comity --version` prints the version, and that of Python.

## The gateway of a command

A command that talks to a gateway takes the first of these:

1. `--url URL`
2. `--context NAME`, one of `comity context list`
3. `-c FILE`: the gateway that serves this configuration
4. `COMITY_URL`
5. `COMITY_CONTEXT`
6. the gateway of the configuration in this folder, or else the port in its `comity.toml`
7. the current context of `comity context use`
8. `http://127.0.0.1:2664`

The key is the one in `--key-file`, in the key file of the context, in `COMITY_KEY_FILE` or in
`COMITY_KEY`. If no gateway answers, the command fails with exit status 3. It uses the database only
with `--offline`, and starts a temporary gateway only with `--local`.
"""

GLOBAL = """## Global options

These options have the same meaning in every command that takes them.
"""

ENVIRONMENT = """## Variables

| variable | |
|---|---|
| `COMITY_URL` | URL of the gateway |
| `COMITY_CONTEXT` | name of a context |
| `COMITY_KEY`, `COMITY_KEY_FILE` | your API key, or the file with it |
| `XDG_CONFIG_HOME` | folder of `comity/contexts.toml`; the default is `~/.config` |
| `COMITY_STATE_DIR` | folder for default databases and for records of running gateways |
| `COMITY_PEPPER` | the secret by which `serve` and `keys` recognise keys, if no file holds it |
| `COMITY_PORT` … | [any setting](settings.md#settings-in-the-environment) |
| `PORT`, `HOST`, `DATABASE_URL`, `NATS_URL` | settings that neither a file nor `COMITY_*` has |
| `LOG_LEVEL` | log level of `serve`: `DEBUG`, `INFO`, `WARNING` (default) or `ERROR` |
| `COMITY_LOG_FORMAT` | log format of `serve`: `text` or `json`; an option overrides it |
| `OTEL_EXPORTER_OTLP_ENDPOINT` … | target of [traces](../operate/monitoring.md#traces) |
| `NO_COLOR` | no colors |
| `COLUMNS` | width of tables in a pipe |
"""


def page() -> str:
    context = click.Context(comity, info_name="comity")
    parts = [HEAD, _statuses(), _global_options()]
    for name in COMMANDS:
        command = comity.get_command(context, name)
        assert command is not None
        parts += _sections(command, click.Context(command, context, info_name=name))
    return "\n".join([*parts, ENVIRONMENT])


def _statuses() -> str:
    rows = [f"| {status} | {_in_a_cell(meaning)} |" for status, meaning in EXIT_STATUSES.items()]
    return "\n".join(["## Exit status", "", "| status | meaning |", "|---|---|", *rows, ""])


def _global_options() -> str:
    everywhere = {option.name: option for option in _every_global_option(comity)}
    context = click.Context(comity)
    rows = [_row(option, context) for option in everywhere.values()]
    return "\n".join([GLOBAL, "| | |", "|---|---|", *rows, ""])


def _every_global_option(command: click.Command) -> Iterator[click.Parameter]:
    context = click.Context(command)
    yield from (each for each in command.get_params(context) if isinstance(each, GlobalOption))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _every_global_option(inner)


def _sections(command: click.Command, context: click.Context) -> Iterator[str]:
    yield _section(command, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _sections(inner, click.Context(inner, context, info_name=name))


def _section(command: click.Command, context: click.Context) -> str:
    level = "##" if context.command_path.count(" ") == 1 else "###"
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    told = _fenced(inspect.cleandoc(command.help or ""))
    lines = [f"{level} `{context.command_path}`", "", "```text", usage, "```", "", told, ""]
    own = [each for each in command.get_params(context) if not isinstance(each, GlobalOption)]
    rows = [record for each in own if (record := _row(each, context))]
    if rows:
        lines += ["| | |", "|---|---|", *rows, ""]
    shared = [
        each.opts[-1] for each in command.get_params(context) if isinstance(each, GlobalOption)
    ]
    if shared:
        named = ", ".join(f"`{each}`" for each in shared)
        lines += [f"[Global options](#global-options): {named}", ""]
    return "\n".join(lines)


def _fenced(told: str) -> str:
    """Paragraphs, of which click is told by a mark to leave some as they are written."""
    paragraphs = told.split("\n\n")
    return "\n\n".join(
        f"```text\n{each.removeprefix('\b\n')}\n```" if each.startswith("\b") else each
        for each in paragraphs
    )


def _row(parameter: click.Parameter, context: click.Context) -> str:
    record = parameter.get_help_record(context)
    if record is None or isinstance(parameter, click.Argument) or "--help" in parameter.opts:
        return ""
    names, about = (_in_a_cell(each) for each in record)
    return f"| `{names}` | {about.replace('  [', ' [')} |"


def _in_a_cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
