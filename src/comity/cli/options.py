"""The options that commands share, and the classes that write help.

This module is the only place that defines a shared option. A shared option has the same meaning in
every command. A command reads the values with `current_options`.
"""

import importlib
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

import click

type Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
type OutputFormat = Literal["table", "wide", "json", "yaml", "name"]

OUTPUT_FORMATS: Final = ("table", "wide", "json", "yaml", "name")
_META_PREFIX: Final = "comity."
VERSION_MESSAGE: Final = f"comity %(version)s (Python {platform.python_version()})"


@dataclass(frozen=True, slots=True)
class CliOptions:
    """The values of the shared options of one command."""

    config: Path | None = None
    context: str = ""
    url: str = ""
    key_file: Path | None = None
    output: OutputFormat = "table"
    quiet: bool = False
    no_color: bool = False
    offline: bool = False
    local: bool = False

    @property
    def is_for_programs(self) -> bool:
        return self.output in ("json", "yaml", "name")


def current_options() -> CliOptions:
    """Return the options of the command that runs."""
    context = click.get_current_context(silent=True)
    return CliOptions() if context is None else options_in(context)


def options_in(context: click.Context) -> CliOptions:
    # Click shares `meta` between a command and its groups.
    found = {each.name: context.meta.get(_META_PREFIX + each.name) for each in fields(CliOptions)}
    return CliOptions(**{name: value for name, value in found.items() if value is not None})


class GlobalOption(click.Option):
    """A shared option. Help lists it below the options of the command."""


def _keep(context: click.Context, parameter: click.Parameter, value: object) -> None:
    if value is None or value is False:
        return
    if parameter.name == "no_color":
        context.color = False
    context.meta[f"{_META_PREFIX}{parameter.name}"] = value


def _global(*names: str, **attributes: Any) -> Decorator:
    return click.option(
        *names, cls=GlobalOption, expose_value=False, callback=_keep, is_eager=True, **attributes
    )


_config: Final = _global(
    "-c",
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Configuration file. Default: the one in this folder.",
)


def _keep_file(context: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is None:
        return
    # Options are read before arguments.
    if _META_PREFIX + "config" in context.meta:
        raise click.UsageError("Name the configuration file once: as FILE, or after -c.", context)
    context.meta[_META_PREFIX + "config"] = value


_file: Final[Decorator] = click.argument(
    "file",
    required=False,
    expose_value=False,
    callback=_keep_file,
    type=click.Path(path_type=Path),
)
_context: Final = _global(
    "--context", metavar="NAME", help="Use this context of `comity context list`."
)
_url: Final = _global("--url", metavar="URL", help="URL of the gateway.")
_key_file: Final = _global(
    "--key-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File with your API key.",
)
_output: Final = _global(
    "-o",
    "--output",
    type=click.Choice(OUTPUT_FORMATS),
    metavar="FORMAT",
    help=f"Output format: {', '.join(OUTPUT_FORMATS[:-1])} or {OUTPUT_FORMATS[-1]}.",
)
_quiet: Final = _global("-q", "--quiet", is_flag=True, help="Print no hints and no progress.")
_no_color: Final = _global("--no-color", is_flag=True, help="Print without colors.")
_offline: Final = _global(
    "--offline", is_flag=True, help="Work on the database. No gateway may run."
)
_local: Final = _global("--local", is_flag=True, help="Start a temporary gateway for this command.")


def _combine(*options: Decorator) -> Decorator:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_of_output: Final = (_output, _quiet, _no_color)
_of_gateway: Final = (_config, _context, _url, _key_file)

output_options: Final = _combine(*_of_output)
"""For a command that needs neither a configuration nor a gateway."""

config_options: Final = _combine(_config, *_of_output)
"""For a command that reads a configuration."""

file_options: Final = _combine(_file, _config, *_of_output)
"""For a command about one configuration, whose file can be its argument."""

gateway_options: Final = _combine(*_of_gateway, *_of_output)
"""For a command that talks to a gateway."""

store_options: Final = _combine(*_of_gateway, _offline, *_of_output)
"""For a command that talks to a gateway, or works on its database."""

tool_options: Final = _combine(*_of_gateway, _local, *_of_output)
"""For a command that uses the tools of a gateway, which it can start itself."""

reason_option: Final[Decorator] = click.option(
    "--reason", metavar="TEXT", help="Reason. Comity stores it."
)
expires_option: Final[Decorator] = click.option(
    "--expires", metavar="TIME", help="End, such as 8h, 90d or 2027-01-31T18:00:00+01:00."
)
yes_option: Final[Decorator] = click.option(
    "-y", "--yes", is_flag=True, help="Do not ask for confirmation."
)
dry_run_option: Final[Decorator] = click.option(
    "--dry-run", is_flag=True, help="Show the changes, but do not make them."
)
server_filter: Final[Decorator] = click.option("--server", metavar="NAME", help="Only this server.")


def limit_option(default: int | None = None, maximum: int | None = None) -> Decorator:
    return click.option(
        "-n",
        "--limit",
        metavar="N",
        type=click.IntRange(1, maximum),
        default=default,
        show_default=default is not None,
        help="Maximum number of entries.",
    )


def check_option(meaning: str) -> Decorator:
    return click.option("--check", is_flag=True, help=f"Exit with status 1 if {meaning}.")


def exit_code_option(meaning: str) -> Decorator:
    return click.option("--exit-code", is_flag=True, help=f"Exit with status 1 if {meaning}.")


def confirm(question: str, *, yes: bool) -> None:
    """Ask at a terminal before a change that cannot be undone. A script is not asked."""
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        click.confirm(question, default=False, abort=True, err=True)


def first_sentence(command: click.Command) -> str:
    """Return the summary of a command: the first sentence of its help."""
    paragraph = " ".join((command.help or "").split("\n\n", 1)[0].split())
    return paragraph.partition(". ")[0].removesuffix(".") + "."


class CliCommand(click.Command):
    """A command whose help lists shared options below its own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(self, ctx, formatter)


def write_options(
    command: click.Command, ctx: click.Context, formatter: click.HelpFormatter
) -> None:
    """Write the options of a command, and below them those that it shares with others."""
    for title, is_global in (("Options", False), ("Global options", True)):
        records = [
            record
            for each in command.get_params(ctx)
            if not isinstance(each, click.Argument)
            and (isinstance(each, GlobalOption) or "--help" in each.opts) is is_global
            and (record := each.get_help_record(ctx)) is not None
        ]
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


class CliGroup(click.Group):
    """A group whose help shows the whole summary of each command.

    `lazy_commands` are imported when they run: a name with `module:attribute` for each of them.
    """

    command_class = CliCommand
    group_class = type

    def __init__(
        self, *arguments: Any, lazy_commands: Mapping[str, str] | None = None, **attributes: Any
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.lazy_commands = lazy_commands or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = [*self.commands, *self.lazy_commands]
        return sorted(names, key=lambda name: ("list", "show", name).index(name))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = self.lazy_commands.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = place.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        write_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, first_sentence(each)) for name, each in commands if each is not None]
            )


class DefaultListGroup(CliGroup):
    """A group that lists if the user names none of its commands."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names = (*self.list_commands(ctx), *ctx.help_option_names)
        named = bool(args) and args[0] in names
        # For a shell that completes the next word, the group itself lists its commands.
        completing = ctx.resilient_parsing and not args
        return super().parse_args(ctx, args if named or completing else ["list", *args])
