"""`comity status`: how a running gateway is doing, on a few lines."""

from collections import Counter

import click

from comity.cli.asking import Answer, Gateway
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.options import json_option, url_option
from comity.cli.show import plain, short_reason, show, show_json, since, state, state_name, table


@click.command("status")
@url_option
@json_option
def command(url: str, as_json: bool) -> int:
    """Show how a running gateway is doing.

    The exit status is 1 if one of its servers has failed.
    """
    gateway = Gateway(url)
    status = gateway.status()
    if as_json:
        show_json({"url": gateway.url, **status})
    else:
        _show(gateway.url, status)
    return SOMETHING_WRONG if status["troubled"] else FINE


def _show(url: str, status: Answer) -> None:
    version, age = status.get("version"), since(status.get("started"))
    show(plain(f"Comity {version} at {url}, up for {age}", "bold"))
    if not status["ready"]:
        show(plain("Some servers are starting for the first time.", "yellow"))
    states = _states(status)
    counted = ", ".join(f"{count} {name}" for name, count in states.items())
    servers = f"{sum(states.values())} ({counted})" if states else "none"
    facts = (
        ("servers", servers),
        ("tools", str(status["tools"])),
        ("sessions", str(status["sessions"])),
        ("calls", f"{status['calls']} under way"),
        ("clients go to", f"{url}/mcp"),
    )
    show(*(plain(f"{name:<14} {fact}") for name, fact in facts))
    if status["troubled"]:
        rows = [
            (each["id"], state(each["state"], each["reason"]), short_reason(each["reason"]))
            for each in status["troubled"]
        ]
        show("", table(("SERVER", "STATE", "REASON"), rows))
        show("", plain("`comity servers show NAME` tells more.", "dim"))


def _states(status: Answer) -> Counter[str]:
    """How many servers are in each state, as people are shown it."""
    states = Counter[str](status["servers"])
    for each in status["troubled"]:
        states[each["state"]] -= 1
        states[state_name(each["state"], each["reason"])] += 1
    return +states
