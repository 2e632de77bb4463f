"""`comity tools` and `comity search`."""

from pathlib import Path

import click

from comity.app.local_gateway import config_option, gateway_client, may_own_tool
from comity.cli.api_client import Answer, ApiClient
from comity.cli.arguments import CliToolArgument, arguments_of, example_of
from comity.cli.completion import complete_servers, complete_tools
from comity.cli.exit_status import FINE, SOMETHING_WRONG, suggest_name
from comity.cli.options import DefaultListGroup, json_option, url_option
from comity.cli.output import (
    build_table,
    first_line,
    line_text,
    paragraph_text,
    show_json,
    show_output,
)
from comity.errors import Misconfigured
from comity.toolkit.text import count_noun, object_members

MAX_COMPARED_TOOLS = 50
STATE_DESCRIPTIONS = {
    "new": "seen for the first time, and waits to be accepted",
    "changed": "has changed since it was accepted",
    "suspect": "may deceive its readers",
    "unreadable": "cannot be read in one way only",
    "disabled": "is switched off by the configuration",
    "unknown": "cannot be judged, while the store does not answer",
}


@click.command("changes")
@click.argument("server", required=False, shell_complete=complete_servers)
@click.argument("tool", required=False)
@url_option
@json_option
def changes(server: str | None, tool: str | None, url: str, *, as_json: bool) -> int:
    """Show the tools that cannot be used as they are described now, and what is other in them.

    The exit status is 1 if there are any.
    """
    gateway = ApiClient(url)
    query = {} if server is None else {"server": server}
    listed: list[Answer] = gateway.get("pins", **query)["tools"]
    waiting = [each for each in listed if tool in (None, each["tool"])]
    if tool is not None and server is not None and not waiting:
        waiting = [gateway.get("pins", server, tool)]
    compared = [
        gateway.get("pins", each["server"], each["tool"]) for each in waiting[:MAX_COMPARED_TOOLS]
    ]
    if as_json:
        show_json({"tools": compared})
    elif not compared:
        show_output(line_text("Every tool is as it was accepted."))
    for each in [] if as_json else compared:
        _print_tool_changes(each)
    if len(waiting) > MAX_COMPARED_TOOLS and not as_json:
        show_output(
            "",
            line_text(
                f"and {len(waiting) - MAX_COMPARED_TOOLS} more; name a server to see its own"
            ),
        )
    return SOMETHING_WRONG if any(each["state"] != "accepted" for each in compared) else FINE


def _print_tool_changes(tool: Answer) -> None:
    told = STATE_DESCRIPTIONS.get(tool["state"], tool["state"])
    show_output(
        line_text(f"{tool['server']} {tool['tool']}", "bold"), line_text(f"{told}", "yellow")
    )
    findings = [*tool["findings"], *tool["shadows"]]
    if findings:
        rows = [(each["look"], each["where"], each["what"]) for each in findings]
        show_output(build_table(("FINDING", "WHERE", "WHAT"), rows))
    if tool["changes"]:
        rows = [
            (e["at"], _format_side(e["before"]), _format_side(e["after"])) for e in tool["changes"]
        ]
        show_output(build_table(("CHANGED AT", "BEFORE", "AFTER"), rows))
    elif tool["state"] == "new":
        show_output(line_text(tool["shown"]))
    show_output("")


def _format_side(value: str | None) -> str:
    return "(nothing)" if value is None else value


@click.command("accept")
@click.argument("server", shell_complete=complete_servers)
@click.argument("tools", nargs=-1, metavar="[TOOL]...")
@click.option("--all", "everything", is_flag=True, help="Every tool of it that waits.")
@url_option
@json_option
def accept(
    server: str, tools: tuple[str, ...], url: str, *, everything: bool, as_json: bool
) -> int:
    """Accept each TOOL of SERVER as it is described now; look at `comity tools changes` first.

    The exit status is 1 if one of them was not accepted.
    """
    gateway = ApiClient(url)
    waiting: list[Answer] = gateway.get("pins", server=server)["tools"]
    named = {each["tool"]: each["digest"] for each in waiting}
    if not tools and not everything:
        raise Misconfigured(
            f"say which tools of {server} to accept, or --all; `comity tools changes {server}` "
            "shows those that wait"
        )
    chosen = {tool: digest for tool, digest in named.items() if everything or tool in tools}
    missing = [tool for tool in tools if tool not in named]
    found = gateway.post("pins", "accept", body={"server": server, "tools": chosen})
    if as_json:
        show_json(found)
    else:
        told = ", ".join(found["accepted"]) or "nothing"
        show_output(line_text(f"Accepted of {server}: {told}"))
        if missing:
            show_output(line_text(f"Not waiting to be accepted: {', '.join(missing)}"))
    return FINE if len(found["accepted"]) == len(chosen) and not missing else SOMETHING_WRONG


@click.command("search")
@click.argument("words", nargs=-1, required=True, metavar="QUERY")
@click.option(
    "--strategy",
    type=click.Choice(("hybrid", "keyword", "semantic", "category")),
    default="hybrid",
    show_default=True,
    help="By words and meaning, by one of them, or all of a category.",
)
@click.option(
    "--most",
    type=click.IntRange(1, 100),
    default=8,
    show_default=True,
    metavar="N",
    help="No more tools than these.",
)
@url_option
@config_option
@json_option
def search_command(
    words: tuple[str, ...],
    strategy: str,
    most: int,
    url: str,
    config: Path | None,
    *,
    as_json: bool,
) -> None:
    """Find the tools that fit what you want to do.

    QUERY says that in your own words, as `comity search read a file`. Only tools that you may call
    are found.
    """
    query = {"query": " ".join(words), "strategy": strategy, "most": str(most)}
    with gateway_client(url, config, lambda _: True) as gateway:
        found = gateway.get("search", **query)
    if as_json:
        show_json(found)
        return
    if found["tools"]:
        columns = ("SCORE", "TOOL", "SERVER", "WHY", "ABOUT")
        show_output(
            build_table(columns, [_search_row(tool) for tool in found["tools"]], cut="ABOUT")
        )
    else:
        callable_tools = count_noun(found["total_available"], "tool")
        show_output(line_text(f"No tool fits, of {callable_tools} that you may call."))
    if found["fallback_strategy"]:
        show_output(
            line_text("Found by words alone: meanings are not known here, or not yet.", "dim")
        )


def _search_row(tool: Answer) -> tuple[str, str, str, str, str]:
    why = ", ".join(f"{part} {share:.2f}" for part, share in object_members(tool["why"]).items())
    about = first_line(tool["description"]) or tool["title"] or ""
    return f"{tool['relevance_score']:.2f}", tool["name"], tool["server"], why, about


@click.group("tools", cls=DefaultListGroup)
def tools_command() -> None:
    """Show the tools that clients are offered."""


tools_command.add_command(changes)
tools_command.add_command(accept)


@tools_command.command("list")
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
    with gateway_client(url, config, lambda each: server in (None, each.id)) as gateway:
        tools = list(gateway.tools(**query))
    if as_json:
        show_json({"tools": tools})
    elif tools:
        show_output(
            build_table(
                ("TOOL", "HINTS", "ABOUT"), [_tool_row(tool) for tool in tools], cut="ABOUT"
            )
        )
    else:
        sought = "that fit" if query else "at all"
        show_output(
            line_text(f"There are no tools {sought}; `comity servers` shows how the servers are.")
        )


def _tool_row(tool: Answer) -> tuple[str, str, str]:
    about = first_line(tool["description"]) or tool["title"] or ""
    return tool["name"], _format_hints(tool["annotations"]), about


def _format_hints(annotations: object) -> str:
    """What a server says of a tool of its own; testimony, and no proof."""
    said = object_members(annotations)
    if said.get("readOnlyHint") is True:
        return "reads"
    return "destroys" if said.get("destructiveHint") is True else ""


@tools_command.command("serve")
@click.argument("module")
def serve_functions(module: str) -> None:
    """Offer the functions of a Python MODULE as a tool server, on stdin and stdout.

    MODULE is `package.module`, `package.module:function,other` or a file, as `tools.py`. Each
    function is a tool: its annotations are its schema, its docstring is its description.
    """
    # Loaded only where this process is that server.
    from comity.sdk import module_server

    module_server.serve_functions(module)


@tools_command.command("show")
@click.argument("name", shell_complete=complete_tools)
@url_option
@config_option
@json_option
def show_tool(name: str, url: str, config: Path | None, *, as_json: bool) -> None:
    """Show the tool NAME: what it does, what it takes, and what it gives."""
    with gateway_client(url, config, lambda server: may_own_tool(server, name)) as gateway:
        tool = require_tool(gateway, name)
    if as_json:
        show_json(tool)
    else:
        _print_tool(tool)


def require_tool(api_client: ApiClient, name: str) -> Answer:
    """The tool with its definition; raises Misconfigured, with what was probably meant."""
    try:
        return api_client.get("tools", name)
    except Misconfigured:
        names = [each["name"] for each in api_client.tools()]
        hint = suggest_name(name, names) or "`comity tools` lists those that there are."
        raise Misconfigured(f"there is no tool {name!r}. {hint}") from None


def _print_tool(tool: Answer) -> None:
    definition: Answer = tool["definition"]
    show_output(line_text(tool["name"], "bold"))
    show_output(line_text(f"{tool['tool']} of the server {tool['server']}", "dim"))
    for said in (definition.get("title"), definition.get("description")):
        if isinstance(said, str) and said.strip():
            show_output("", paragraph_text(said.strip()))
    hints = _format_hints(definition.get("annotations"))
    if hints:
        show_output("", line_text(f"Its server says that it {hints}.", "dim"))
    taken = arguments_of(definition.get("inputSchema"))
    _print_fields("Takes", taken)
    _print_fields("Gives", arguments_of(definition.get("outputSchema")))
    show_output("", line_text(f"comity call {tool['name']} {example_of(taken)}".rstrip(), "cyan"))


def _print_fields(heading: str, fields: list[CliToolArgument]) -> None:
    if fields:
        rows = [
            (line_text(each.name, "" if each.required else "dim"), each.kind, each.about)
            for each in fields
        ]
        show_output("", build_table((heading.upper(), "TYPE", "ABOUT"), rows))
