"""Writes docs/reference/commands.md from the commands themselves; run it after a change of them.

.venv/bin/python -m tests.cli.reference
"""

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from comity.cli.exit_status import EXIT_STATUSES
from comity.cli.main import COMMANDS, comity

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"

HEAD = """# Commands

Written from the commands themselves: `comity COMMAND --help` says the same.

Every command prints a table for people, or with `--json` one JSON document for programs; messages
and mistakes go to standard error. On a terminal there are colours, unless `NO_COLOR` is set. Piped,
a table is as wide as `COLUMNS` says, or as it needs. What a running gateway is asked goes over its
[operator API](operator-api.md), whose answers `--json` prints.

`comity --version` prints the version, and that of Python.
"""

ENVIRONMENT = """## Variables

| variable | |
|---|---|
| `COMITY_URL` | the gateway that commands ask, where `--url` is not given |
| `COMITY_STATE_DIR` | the folder for records of running gateways, with their operator tokens |
| `COMITY_KEY`, `COMITY_KEY_FILE` | the key that commands show to a gateway, or the file it is in |
| `COMITY_PEPPER` | the secret by which `serve` and `keys` recognise keys, where no file holds it |
| `COMITY_HOST`, `COMITY_PORT` | where `serve` listens, where no option says it |
| `COMITY_STORE_URL` | where records are kept, whatever the configuration says |
| `LOG_LEVEL` | how much `serve` logs: `DEBUG`, `INFO`, `WARNING` (unless given) or `ERROR` |
| `COMITY_LOG_FORMAT` | how `serve` writes its log, where no option says it: `text` or `json` |
| `OTEL_EXPORTER_OTLP_ENDPOINT` … | where traces go; see [Observe](../operate/observe.md) |
| `NO_COLOR` | no colours, whatever the terminal |
| `COLUMNS` | the width of tables that are piped |
"""


def page() -> str:
    parts = [HEAD, _statuses()]
    context = click.Context(comity, info_name="comity")
    for name in COMMANDS:
        command = comity.get_command(context, name)
        assert command is not None
        parts += _sections(command, click.Context(command, context, info_name=name))
    return "\n".join([*parts, ENVIRONMENT])


def _statuses() -> str:
    rows = [f"| {status} | {_in_a_cell(meaning)} |" for status, meaning in EXIT_STATUSES.items()]
    return "\n".join(["## Exit status", "", "| status | meaning |", "|---|---|", *rows, ""])


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
    rows = [record for each in command.get_params(context) if (record := _row(each, context))]
    if rows:
        lines += ["| | |", "|---|---|", *rows, ""]
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
