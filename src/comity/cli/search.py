"""`comity search`: the tools that fit what somebody wants to do, and why they were found."""

from pathlib import Path

import click

from comity.cli.asking import Answer, members
from comity.cli.inprocess import asked_gateway, config_option
from comity.cli.options import json_option, url_option
from comity.cli.show import first_line, plain, show, show_json, table
from comity.rules.phrases import count_noun


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
def command(
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
    with asked_gateway(url, config, lambda _: True) as gateway:
        found = gateway.get("search", **query)
    if as_json:
        show_json(found)
        return
    if found["tools"]:
        columns = ("SCORE", "TOOL", "SERVER", "WHY", "ABOUT")
        show(table(columns, [_row(tool) for tool in found["tools"]], cut="ABOUT"))
    else:
        callable_tools = count_noun(found["total_available"], "tool")
        show(plain(f"No tool fits, of {callable_tools} that you may call."))
    if found["fallback_strategy"]:
        show(plain("Found by words alone: meanings are not known here, or not yet.", "dim"))


def _row(tool: Answer) -> tuple[str, str, str, str, str]:
    why = ", ".join(f"{part} {share:.2f}" for part, share in members(tool["why"]).items())
    about = first_line(tool["description"]) or tool["title"] or ""
    return f"{tool['relevance_score']:.2f}", tool["name"], tool["server"], why, about
