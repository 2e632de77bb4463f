"""`comity views`: the views of the gateway, their tools, and suggestions for new ones."""

import click

from comity.cli.api_client import Answer
from comity.cli.completion import complete_views
from comity.cli.exit_status import DONE, FAILED
from comity.cli.options import DefaultListGroup, check_option, gateway_options
from comity.cli.output import (
    build_table,
    line_text,
    paragraph_text,
    show_document,
    show_hint,
    show_output,
)
from comity.cli.target import connect_gateway
from comity.toolkit.text import count_noun

VIEWS_PATH = "views"


@click.group("views", cls=DefaultListGroup)
def views_command() -> None:
    """List, show and suggest views of tools.

    A view is a named subset of tools with its own endpoint, /views/NAME/mcp. [[views]] in the
    configuration declares it.

    \b
    Examples:
      comity views
      comity views show payments
      comity views suggest agent:ci
    """


@views_command.command("list")
@check_option("a view has a problem")
@gateway_options
def list_views(*, check: bool) -> int:
    """List views with their tools and problems.

    \b
    Examples:
      comity views list
      comity views list --check
    """
    answer = connect_gateway().get(VIEWS_PATH)
    found: list[Answer] = answer["views"]

    def print_table() -> None:
        if not found:
            show_output(line_text("There are no views. Declare one in [[views]]."))
            return
        columns = ("NAME", "ENDPOINT", "TOOLS", "PROBLEMS", "TITLE")
        rows = [
            (
                each["name"],
                each["path"],
                _tool_count(each),
                str(len(each["problems"]) or ""),
                each["title"],
            )
            for each in found
        ]
        show_output(build_table(columns, rows, cut="TITLE"))

    show_document(answer, print_table, [each["name"] for each in found])
    return FAILED if check and any(each["problems"] for each in found) else DONE


@views_command.command("show")
@click.argument("name", shell_complete=complete_views)
@check_option("the view has a problem")
@gateway_options
def show_view(name: str, *, check: bool) -> int:
    """Show the tools of a view, its changes and their drift.

    \b
    Examples:
      comity views show payments
      comity views show payments --check
    """
    answer = connect_gateway().get(VIEWS_PATH, name)

    def print_table() -> None:
        show_output(
            line_text(answer["title"] or answer["name"], "bold"),
            line_text(f"{answer['path']}, {count_noun(answer['served'], 'tool')}", "dim"),
        )
        if answer["items"]:
            rows = [
                (
                    each["name"],
                    f"{each['server']}/{each['tool']}",
                    each["state"],
                    _changes_text(each["changes"]),
                )
                for each in answer["items"]
            ]
            columns = ("NAME", "TOOL", "STATE", "CHANGES")
            show_output("", build_table(columns, rows, cut="CHANGES"))
        reasons = [
            f"{each['server']}/{each['tool']}: {each['reason']}"
            for each in answer["items"]
            if each["state"] == "quarantined"
        ]
        if answer["problems"] or reasons:
            show_output("", line_text("Problems", "bold"))
        for said in (*answer["problems"], *reasons):
            show_output(paragraph_text(said))

    show_document(answer, print_table, [each["name"] for each in answer["items"]])
    has_problem = answer["problems"] or answer["served"] < answer["tools"]
    return FAILED if check and has_problem else DONE


@views_command.command("suggest")
@click.argument("principal")
@click.option("--name", default="", metavar="NAME", help="Name of the suggested view.")
@click.option(
    "--days", default=30, type=click.IntRange(1, 366), metavar="DAYS", help="Days of calls to read."
)
@gateway_options
def suggest_view(principal: str, name: str, days: int) -> None:
    """Print a view of the tools that a principal really calls.

    Comity counts the calls in the audit log. The output is an entry of the configuration.

    \b
    Examples:
      comity views suggest agent:ci
      comity views suggest agent:ci --name builds --days 7
    """
    query = {"days": str(days), **({"name": name} if name else {})}
    answer = connect_gateway().get(VIEWS_PATH, "suggestions", principal, **query)

    def print_table() -> None:
        if not answer["tools"]:
            show_output(line_text(f"{principal} called no tools in {count_noun(days, 'day')}."))
            return
        click.echo(answer["config"], nl=False)
        if not answer["is_complete"]:
            show_hint("Only the latest calls were counted. Use fewer --days to count all.")

    names = [f"{each['server']}/{each['tool']}" for each in answer["tools"]]
    show_document(answer, print_table, names)


def _tool_count(view: Answer) -> str:
    served, tools = view["served"], view["tools"]
    return str(tools) if served == tools else f"{served} of {tools}"


def _changes_text(changes: Answer) -> str:
    """Return the changes to a tool in one line: `region = eu; description`."""
    fixed = [f"{name} = {value}" for name, value in changes.get("arguments", {}).items()]
    defaults = [f"{name} ~ {value}" for name, value in changes.get("defaults", {}).items()]
    hints = [f"{name}: {value}".lower() for name, value in changes.get("annotations", {}).items()]
    texts = [name for name in ("title", "description") if name in changes]
    return "; ".join((*fixed, *defaults, *hints, *texts))
