"""`comity features`: what live servers would do by themselves, and what they are let."""

import click
from rich.text import Text

from comity.cli.asking import Answer, Gateway
from comity.cli.completing import complete_servers
from comity.cli.options import Listing, json_option, url_option
from comity.cli.show import plain, show, show_json, table

ROOM = "features"


@click.group("features", cls=Listing)
def command() -> None:
    """Show what live servers would do by themselves; enable it, or disable it.

    A feature set is enabled by the table `live` of its server, or here; what is disabled here is,
    whatever the configuration says.
    """


@command.command("list")
@click.option(
    "--server", metavar="NAME", shell_complete=complete_servers, help="Only of this server."
)
@url_option
@json_option
def list_features(server: str | None, url: str, *, as_json: bool) -> None:
    """List every feature set of every live server; the same as `comity features`."""
    query = {} if server is None else {"server": server}
    _told(Gateway(url).get(ROOM, **query), as_json=as_json)


def _told(found: Answer, *, as_json: bool) -> None:
    servers: list[Answer] = found["servers"]
    if as_json:
        show_json(found)
    elif servers:
        rows = [_row(each["server"], one) for each in servers for one in each["features"]]
        columns = ("SERVER", "FEATURE SET", "STANDS", "BY", "USES", "BECAUSE")
        show(table(columns, rows))
    else:
        show(plain("No live server is there; plain MCP servers have no feature sets."))
        show(plain("One that still starts is there soon: `comity servers` shows it."))


def _row(server: str, each: Answer) -> tuple[str | Text, ...]:
    is_on = each["enabled"]
    stands = plain("enabled" if is_on else "disabled", "green" if is_on else "yellow")
    uses = ", ".join(each["uses"])
    return (server, each["feature"], stands, each["by"], uses, "; ".join(_reasons(each)))


def _reasons(each: Answer) -> list[str]:
    """Why it stands so, until when, and how far it reaches."""
    said = [each["because"]]
    if each["until"]:
        said.append(f"until {each['until'][:16]}")
    if each["enabled"] and "whitelist" in each:
        never = [f"never {pattern}" for pattern in each["blacklist"]]
        said.append(f"reaches {', '.join([*each['whitelist'], *never])}, else asks")
    elif each["enabled"] and each["scoped"]:
        said.append("asks how far it may reach")
    return said


def _order(deed: str, told: str) -> None:
    """Make the command for one decision."""

    @command.command(deed, help=told)
    @click.argument("server", shell_complete=complete_servers)
    @click.argument("feature")
    @click.option("--because", metavar="TEXT", default="", help="Why; it is kept with it.")
    @url_option
    @json_option
    def order(server: str, feature: str, because: str, url: str, *, as_json: bool) -> None:
        body = {"server": server, "feature": feature, "justification": because}
        _told(Gateway(url).post(ROOM, deed, body=body), as_json=as_json)


_order("enable", "Let the server SERVER use its feature set FEATURE, or a family as 'memory.*'.")
_order("disable", "Do not let the server SERVER use its feature set FEATURE.")
_order("forget", "Forget what was decided here of SERVER's FEATURE; its configuration decides.")
