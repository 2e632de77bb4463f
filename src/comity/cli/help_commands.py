"""`comity help` and `comity version`, for users who try a verb before an option."""

import platform
from importlib.metadata import version

import click

from comity.cli.options import VERSION_MESSAGE, CliCommand, output_options
from comity.cli.output import line_text, show_document, show_output


@click.command("help", cls=CliCommand)
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
def help_command(words: tuple[str, ...]) -> None:
    """Show the help of a command.

    \b
    Examples:
      comity help
      comity help servers add
    """
    context = click.get_current_context().find_root()
    for word in words:
        if not isinstance(context.command, click.Group):
            raise click.UsageError(f"{context.command_path!r} has no commands.")
        name, command, _ = context.command.resolve_command(context, [word])
        assert command is not None  # an unknown word is refused
        context = click.Context(command, info_name=name, parent=context)
    click.echo(context.get_help())


@click.command("version", cls=CliCommand)
@output_options
def version_command() -> None:
    """Print the version.

    \b
    Examples:
      comity version
      comity version -o json
    """
    found = version("comity")
    document = {"version": found, "python": platform.python_version()}
    text = line_text(VERSION_MESSAGE % document)
    show_document(document, lambda: show_output(text), [found])
