"""`comity tools`."""

import time
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from typing import Final

import click

from comity.app.administration import tool_client
from comity.cli.api_client import Answer, ApiClient
from comity.cli.arguments import CliToolArgument, arguments_of, example_of
from comity.cli.completion import complete_servers, complete_tools
from comity.cli.exit_status import DONE, FAILED, NOT_FOUND, suggest_name
from comity.cli.options import (
    DefaultListGroup,
    exit_code_option,
    gateway_options,
    limit_option,
    tool_options,
)
from comity.cli.output import (
    build_table,
    first_line,
    line_text,
    paragraph_text,
    show_document,
    show_hint,
    show_output,
    show_spinner,
)
from comity.cli.target import connect_gateway
from comity.errors import Misconfigured, Unavailable
from comity.mcp.protocol import SEPARATOR, public_prefix
from comity.toolkit.text import count_noun, object_members

MAX_COMPARED_TOOLS = 50
MAX_START_WAIT: Final = timedelta(seconds=20)
STATE_DESCRIPTIONS = {
    "new": "is new, and waits to be accepted",
    "changed": "has changed since it was accepted",
    "suspect": "may deceive its readers",
    "unreadable": "has no unambiguous definition",
    "disabled": "is disabled by the configuration",
    "unknown": "cannot be reviewed, because the database does not answer",
}


@click.group(
    "tools",
    cls=DefaultListGroup,
    lazy_commands={"call": "comity.catalog.call_command:call_command"},
)
def tools_command() -> None:
    """List, search, call and review tools.

    \b
    Examples:
      comity tools
      comity tools search read a file
      comity tools show files__read
      comity tools diff
    """


@tools_command.command("diff")
@click.argument("server", required=False, shell_complete=complete_servers)
@click.argument("tool", required=False)
@exit_code_option("a tool is new or has changed")
@gateway_options
def diff(server: str | None, tool: str | None, *, exit_code: bool) -> int:
    """Show tool definitions that are not accepted yet.

    Clients cannot use these tools until you accept them.

    \b
    Examples:
      comity tools diff
      comity tools diff files read
      comity tools diff --exit-code
    """
    gateway = connect_gateway()
    query = {} if server is None else {"server": server}
    listed: list[Answer] = gateway.get("definitions", **query)["tools"]
    waiting = [each for each in listed if tool in (None, each["tool"])]
    if tool is not None and server is not None and not waiting:
        waiting = [gateway.get("definitions", server, tool)]
    compared = [
        gateway.get("definitions", each["server"], each["tool"])
        for each in waiting[:MAX_COMPARED_TOOLS]
    ]

    def print_table() -> None:
        if not compared:
            show_output(line_text("Every tool is accepted as it is now."))
        for each in compared:
            _print_tool_changes(each)
        left_out = len(waiting) - len(compared)
        if left_out:
            show_output(line_text(f"and {left_out} more"))
            show_hint("Name a server to see its tools only.")

    names = [f"{each['server']}/{each['tool']}" for each in compared]
    show_document({"tools": compared}, print_table, names)
    has_changes = any(each["state"] != "accepted" for each in compared)
    return FAILED if exit_code and has_changes else DONE


def _print_tool_changes(tool: Answer) -> None:
    told = STATE_DESCRIPTIONS.get(tool["state"], tool["state"])
    show_output(
        line_text(f"{tool['server']} {tool['tool']}", "bold"), line_text(f"{told}", "yellow")
    )
    findings = [*tool["findings"], *tool["shadows"]]
    if findings:
        rows = [(each["look"], each["where"], each["what"]) for each in findings]
        show_output(build_table(("FINDING", "LOCATION", "DETAILS"), rows))
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


@tools_command.command("accept")
@click.argument("server", shell_complete=complete_servers)
@click.argument("tools", nargs=-1, metavar="[TOOL]...")
@click.option("--all", "everything", is_flag=True, help="All tools of the server that wait.")
@gateway_options
def accept(server: str, tools: tuple[str, ...], *, everything: bool) -> int:
    """Accept tools of a server as they are defined now.

    Look at `comity tools diff` first. Exits with 1 if a tool was not accepted.

    \b
    Examples:
      comity tools accept files read write
      comity tools accept files --all
    """
    gateway = connect_gateway()
    waiting: list[Answer] = gateway.get("definitions", server=server)["tools"]
    named = {each["tool"]: each["digest"] for each in waiting}
    if not tools and not everything:
        raise Misconfigured(
            f"name the tools of {server} to accept, or use --all; `comity tools diff {server}` "
            "lists those that wait"
        )
    chosen = {tool: digest for tool, digest in named.items() if everything or tool in tools}
    missing = [tool for tool in tools if tool not in named]
    found = gateway.post("definitions", "accept", body={"server": server, "tools": chosen})

    def print_table() -> None:
        accepted = ", ".join(found["accepted"]) or "nothing"
        show_output(line_text(f"Accepted of {server}: {accepted}"))
        if missing:
            show_output(line_text(f"Not waiting to be accepted: {', '.join(missing)}"))

    show_document(found, print_table, [f"{server}/{each}" for each in found["accepted"]])
    return DONE if len(found["accepted"]) == len(chosen) and not missing else FAILED


@tools_command.command("search")
@click.argument("words", nargs=-1, required=True, metavar="QUERY")
@click.option(
    "--strategy",
    type=click.Choice(("hybrid", "keyword", "semantic", "category")),
    default="hybrid",
    show_default=True,
    help="Search by keywords, by meaning, by both, or list a category.",
)
@limit_option(8, 100)
@tool_options
def search(words: tuple[str, ...], strategy: str, limit: int) -> None:
    """Find tools for a task in your own words.

    The search returns only tools that you may call.

    \b
    Examples:
      comity tools search read a file
      comity tools search -n 3 --strategy keyword issue
    """
    query = {"query": " ".join(words), "strategy": strategy, "limit": str(limit)}
    with tool_client(lambda _: True) as gateway:
        found = gateway.get("search", **query)
    show_document(found, lambda: _print_found(found), [tool["name"] for tool in found["tools"]])


def _print_found(found: Answer) -> None:
    if found["tools"]:
        columns = ("SCORE", "TOOL", "SERVER", "REASON", "DESCRIPTION")
        rows = [_search_row(tool) for tool in found["tools"]]
        show_output(build_table(columns, rows, cut="DESCRIPTION", extra=("SERVER", "REASON")))
    else:
        callable_tools = count_noun(found["total_available"], "tool")
        show_output(line_text(f"No tool matches, of {callable_tools} that you may call."))
    if found["fallback_strategy"]:
        show_hint("Keyword search only: semantic search is not installed or still indexing.")


def _search_row(tool: Answer) -> tuple[str, str, str, str, str]:
    why = ", ".join(
        f"{part} {share:.2f}" for part, share in object_members(tool["score_parts"]).items()
    )
    about = first_line(tool["description"]) or tool["title"] or ""
    return f"{tool['relevance_score']:.2f}", tool["name"], tool["server"], why, about


@tools_command.command("list")
@click.argument("words", nargs=-1, metavar="[WORD]...")
@click.option("--server", metavar="NAME", shell_complete=complete_servers, help="Only this server.")
@limit_option()
@tool_options
def list_tools(words: tuple[str, ...], server: str | None, limit: int | None) -> None:
    """List tools, or those whose text has every WORD.

    \b
    Examples:
      comity tools list
      comity tools list file --server github
      comity tools list --local -c mcp.json
    """
    query = {"search": " ".join(words)} if words else {}
    if server is not None:
        query["server"] = server
    with tool_client(lambda id: server in (None, id)) as gateway:
        tools = list(islice(gateway.tools(**query), limit))

    def print_table() -> None:
        if tools:
            columns, rows = ("TOOL", "HINTS", "DESCRIPTION"), [_tool_row(tool) for tool in tools]
            show_output(build_table(columns, rows, cut="DESCRIPTION"))
        else:
            show_output(line_text("No tool matches." if query else "There are no tools."))
            show_hint("`comity servers` shows the state of the servers.")

    show_document({"tools": tools}, print_table, [tool["name"] for tool in tools])


def _tool_row(tool: Answer) -> tuple[str, str, str]:
    about = first_line(tool["description"]) or tool["title"] or ""
    return tool["name"], _format_hints(tool["annotations"]), about


def _format_hints(annotations: object) -> str:
    """Return what the server claims about its tool. It is no proof."""
    said = object_members(annotations)
    if said.get("readOnlyHint") is True:
        return "read-only"
    return "destructive" if said.get("destructiveHint") is True else ""


@tools_command.command("show")
@click.argument("name", shell_complete=complete_tools)
@tool_options
def show_tool(name: str) -> None:
    """Show the description and schema of a tool.

    \b
    Examples:
      comity tools show files__read
      comity tools show files__read -o json
    """
    with tool_client(lambda id: may_own_tool(id, name)) as gateway:
        tool = require_tool(gateway, name)
    show_document(tool, lambda: _print_tool(tool), [tool["name"]])


def may_own_tool(server: str, tool: str) -> bool:
    """Return whether a tool of that name may belong to this server. Other servers need no start."""
    prefixes = (server + SEPARATOR, public_prefix(server) + SEPARATOR)
    return SEPARATOR not in tool or tool.startswith(prefixes)


def require_tool(api_client: ApiClient, name: str) -> Answer:
    """Return the tool with its definition. Raises Misconfigured with a suggestion.

    A server that starts may have the tool, so the command waits for it.
    """
    deadline = time.monotonic() + MAX_START_WAIT.total_seconds()
    while True:
        try:
            return _read_tool(api_client, name)
        except Unavailable as problem:
            if problem.retry_after is None or time.monotonic() > deadline:
                raise
            with show_spinner("a server starts"):
                time.sleep(min(problem.retry_after, MAX_START_WAIT).total_seconds())


def _read_tool(api_client: ApiClient, name: str) -> Answer:
    try:
        return api_client.get("tools", name)
    except Misconfigured as refusal:
        if refusal.exit_status != NOT_FOUND:
            raise
        if failure := _server_failure(api_client, name):
            raise Misconfigured(failure, NOT_FOUND) from None
        names = [each["name"] for each in api_client.tools()]
        hint = suggest_name(name, names) or "`comity tools` lists the tools that you may use."
        raise Misconfigured(
            f"there is no tool {name!r}, or you may not use it. {hint}", NOT_FOUND
        ) from None


def _server_failure(api_client: ApiClient, tool: str) -> str:
    """Return why the server of a tool has none; empty if it is not known here."""
    with suppress(Misconfigured, Unavailable):
        for server in api_client.get("servers")["servers"]:
            if server["state"] == "error" and tool.startswith(
                public_prefix(server["id"]) + SEPARATOR
            ):
                return f"server {server['id']!r} has failed: {server['reason']}"
    return ""


def _print_tool(tool: Answer) -> None:
    definition: Answer = tool["definition"]
    show_output(line_text(tool["name"], "bold"))
    show_output(line_text(f"{tool['tool']} of the server {tool['server']}", "dim"))
    for said in (definition.get("title"), definition.get("description")):
        if isinstance(said, str) and said.strip():
            show_output("", paragraph_text(said.strip()))
    hints = _format_hints(definition.get("annotations"))
    if hints:
        show_output("", line_text(f"Its server says that it is {hints}.", "dim"))
    taken = arguments_of(definition.get("inputSchema"))
    _print_fields("Arguments", taken)
    _print_fields("Result", arguments_of(definition.get("outputSchema")))
    show_output("", line_text(f"comity call {tool['name']} {example_of(taken)}".rstrip(), "cyan"))


def _print_fields(heading: str, fields: list[CliToolArgument]) -> None:
    if fields:
        rows = [
            (line_text(each.name, "" if each.required else "dim"), each.kind, each.about)
            for each in fields
        ]
        show_output("", build_table((heading.upper(), "TYPE", "DESCRIPTION"), rows))
