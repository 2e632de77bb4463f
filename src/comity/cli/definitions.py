"""`comity tools changes` and `accept`: definitions that nobody accepted yet, and accepting them."""

import click

from comity.cli.asking import Answer, Gateway
from comity.cli.completing import complete_servers
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.options import json_option, url_option
from comity.cli.show import plain, show, show_json, table
from comity.wire.errors import Misconfigured

MOST_COMPARED = 50
STATES = {
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
    gateway = Gateway(url)
    query = {} if server is None else {"server": server}
    listed: list[Answer] = gateway.get("pins", **query)["tools"]
    waiting = [each for each in listed if tool in (None, each["tool"])]
    if tool is not None and server is not None and not waiting:
        waiting = [gateway.get("pins", server, tool)]
    compared = [
        gateway.get("pins", each["server"], each["tool"]) for each in waiting[:MOST_COMPARED]
    ]
    if as_json:
        show_json({"tools": compared})
    elif not compared:
        show(plain("Every tool is as it was accepted."))
    for each in [] if as_json else compared:
        _show(each)
    if len(waiting) > MOST_COMPARED and not as_json:
        show("", plain(f"and {len(waiting) - MOST_COMPARED} more; name a server to see its own"))
    return SOMETHING_WRONG if any(each["state"] != "accepted" for each in compared) else FINE


def _show(tool: Answer) -> None:
    told = STATES.get(tool["state"], tool["state"])
    show(plain(f"{tool['server']} {tool['tool']}", "bold"), plain(f"{told}", "yellow"))
    findings = [*tool["findings"], *tool["shadows"]]
    if findings:
        rows = [(each["look"], each["where"], each["what"]) for each in findings]
        show(table(("FINDING", "WHERE", "WHAT"), rows))
    if tool["changes"]:
        rows = [(e["at"], _side(e["before"]), _side(e["after"])) for e in tool["changes"]]
        show(table(("CHANGED AT", "BEFORE", "AFTER"), rows))
    elif tool["state"] == "new":
        show(plain(tool["shown"]))
    show("")


def _side(value: str | None) -> str:
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
    gateway = Gateway(url)
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
        show(plain(f"Accepted of {server}: {told}"))
        if missing:
            show(plain(f"Not waiting to be accepted: {', '.join(missing)}"))
    return FINE if len(found["accepted"]) == len(chosen) and not missing else SOMETHING_WRONG
