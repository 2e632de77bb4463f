"""`comity tools`: what clients are offered, and how each tool wants to be called."""

import importlib
from pathlib import Path

import click

from comity.cli.asking import Answer, Gateway, members
from comity.cli.completing import complete_servers, complete_tools
from comity.cli.definitions import accept, changes
from comity.cli.ends import suggestion
from comity.cli.inprocess import asked_gateway, config_option, may_hold
from comity.cli.options import Listing, json_option, url_option
from comity.cli.schemas import Argument, arguments_of, example_of
from comity.cli.show import first_line, paragraphs, plain, show, show_json, table
from comity.wire.errors import Misconfigured


@click.group("tools", cls=Listing)
def command() -> None:
    """Show the tools that clients are offered."""


command.add_command(changes)
command.add_command(accept)


@command.command("list")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option(
    "--server", metavar="NAME", shell_complete=complete_servers, help="Only of this server."
)
@url_option
@config_option
@json_option
def list_tools(
    words: tuple[str, ...], server: str | None, url: str, config: Path | None, *, as_json: bool
) -> None:
    """List the tools in whose name or description every WORD stands; the same as `comity tools`."""
    query = {"search": " ".join(words)} if words else {}
    if server is not None:
        query["server"] = server
    with asked_gateway(url, config, lambda each: server in (None, each.id)) as gateway:
        tools = list(gateway.tools(**query))
    if as_json:
        show_json({"tools": tools})
    elif tools:
        show(table(("TOOL", "HINTS", "ABOUT"), [_row(tool) for tool in tools], cut="ABOUT"))
    else:
        sought = "that fit" if query else "at all"
        show(plain(f"There are no tools {sought}; `comity servers` shows how the servers are."))


def _row(tool: Answer) -> tuple[str, str, str]:
    about = first_line(tool["description"]) or tool["title"] or ""
    return tool["name"], _hints(tool["annotations"]), about


def _hints(annotations: object) -> str:
    """What a server says of a tool of its own; testimony, and no proof."""
    said = members(annotations)
    if said.get("readOnlyHint") is True:
        return "reads"
    return "destroys" if said.get("destructiveHint") is True else ""


@command.command("serve")
@click.argument("module")
def serve_functions(module: str) -> None:
    """Offer the functions of a Python MODULE as a tool server, on stdin and stdout.

    MODULE is `package.module`, `package.module:function,other` or a file, as `tools.py`. Each
    function is a tool: its annotations are its schema, its docstring is its description.
    """
    importlib.import_module("comity.cli.functions").serve(module)


@command.command("show")
@click.argument("name", shell_complete=complete_tools)
@url_option
@config_option
@json_option
def show_tool(name: str, url: str, config: Path | None, *, as_json: bool) -> None:
    """Show the tool NAME: what it does, what it takes, and what it gives."""
    with asked_gateway(url, config, lambda server: may_hold(server, name)) as gateway:
        tool = tool_of(gateway, name)
    if as_json:
        show_json(tool)
    else:
        _show(tool)


def tool_of(gateway: Gateway, name: str) -> Answer:
    """The tool with its definition; raises Misconfigured, with what was probably meant."""
    try:
        return gateway.get("tools", name)
    except Misconfigured:
        names = [each["name"] for each in gateway.tools()]
        hint = suggestion(name, names) or "`comity tools` lists those that there are."
        raise Misconfigured(f"there is no tool {name!r}. {hint}") from None


def _show(tool: Answer) -> None:
    definition: Answer = tool["definition"]
    show(plain(tool["name"], "bold"))
    show(plain(f"{tool['tool']} of the server {tool['server']}", "dim"))
    for said in (definition.get("title"), definition.get("description")):
        if isinstance(said, str) and said.strip():
            show("", paragraphs(said.strip()))
    hints = _hints(definition.get("annotations"))
    if hints:
        show("", plain(f"Its server says that it {hints}.", "dim"))
    taken = arguments_of(definition.get("inputSchema"))
    _show_fields("Takes", taken)
    _show_fields("Gives", arguments_of(definition.get("outputSchema")))
    show("", plain(f"comity call {tool['name']} {example_of(taken)}".rstrip(), "cyan"))


def _show_fields(heading: str, fields: list[Argument]) -> None:
    if fields:
        rows = [
            (plain(each.name, "" if each.required else "dim"), each.kind, each.about)
            for each in fields
        ]
        show("", table((heading.upper(), "TYPE", "ABOUT"), rows))
