"""`comity context`."""

from dataclasses import replace
from pathlib import Path

import click

from comity.cli.api_client import ApiClient
from comity.cli.contexts import (
    ContextFile,
    GatewayContext,
    contexts_path,
    parse_context_name,
    read_contexts,
    write_contexts,
)
from comity.cli.options import DefaultListGroup, output_options
from comity.cli.output import (
    build_table,
    line_text,
    shorten_path,
    show_document,
    show_hint,
    show_output,
)
from comity.errors import Misconfigured


def complete_contexts(_: click.Context, __: click.Parameter, typed: str) -> list[str]:
    try:
        return [name for name in read_contexts().contexts if name.startswith(typed)]
    except Misconfigured:
        return []


@click.group("context", cls=DefaultListGroup)
def context_command() -> None:
    """Manage named gateways.

    A context has a URL and the path of a key file, never a key. `--context NAME` and COMITY_CONTEXT
    select a context for one command. The current context is the default in a folder without a
    configuration.

    \b
    Examples:
      comity context add prod --url https://comity.example.org --key-file prod.key
      comity context use prod
      comity servers --context prod
    """


@context_command.command("list")
@output_options
def list_contexts() -> None:
    """List contexts and mark the current one.

    \b
    Examples:
      comity context list
    """
    file = read_contexts()

    def print_table() -> None:
        if not file.contexts:
            show_output(line_text("There are no contexts."))
            show_hint("`comity context add NAME --url URL` adds one.")
            return
        rows = [
            ("*" if name == file.current else "", name, each.url, each.key_file)
            for name, each in file.contexts.items()
        ]
        show_output(build_table(("CURRENT", "NAME", "URL", "KEY FILE"), rows))

    contexts = [
        {
            "name": name,
            "url": each.url,
            "key_file": each.key_file or None,
            "is_current": name == file.current,
        }
        for name, each in file.contexts.items()
    ]
    document = {"file": str(contexts_path()), "contexts": contexts}
    show_document(document, print_table, file.contexts)


@context_command.command("add")
@click.argument("name")
@click.option("--url", metavar="URL", required=True, help="URL of the gateway.")
@click.option(
    "--key-file", metavar="FILE", type=click.Path(path_type=Path), help="File with your API key."
)
@output_options
def add_context(name: str, url: str, key_file: Path | None) -> None:
    """Add a context, or replace one.

    \b
    Examples:
      comity context add local --url http://127.0.0.1:2664
      comity context add prod --url https://comity.example.org --key-file prod.key
    """
    # A relative path would change its meaning with the folder.
    path = "" if key_file is None else str(key_file.expanduser().absolute())
    context = GatewayContext(ApiClient(url, key="").url, path)
    file = read_contexts()
    contexts = {**file.contexts, parse_context_name(name): context}
    _write(replace(file, contexts=contexts), name, f"Added context {name}.")


@context_command.command("use")
@click.argument("name", shell_complete=complete_contexts)
@output_options
def use_context(name: str) -> None:
    """Make a context the current one.

    \b
    Examples:
      comity context use prod
    """
    file = read_contexts()
    context = file.find(name)
    _write(replace(file, current=name), name, f"The current context is {name}: {context.url}")


@context_command.command("remove")
@click.argument("name", shell_complete=complete_contexts)
@output_options
def remove_context(name: str) -> None:
    """Remove a context. The key file remains.

    \b
    Examples:
      comity context remove prod
    """
    file = read_contexts()
    file.find(name)
    contexts = {other: each for other, each in file.contexts.items() if other != name}
    current = "" if file.current == name else file.current
    _write(ContextFile(contexts, current), name, f"Removed context {name}.")


def _write(file: ContextFile, name: str, done: str) -> None:
    path = write_contexts(file)
    document = {"file": str(path), "name": name, "current": file.current or None}

    def print_table() -> None:
        show_output(line_text(done, "green"))
        show_hint(f"Wrote {shorten_path(path)}.")

    show_document(document, print_table, [name])
