"""`comity servers`: the servers of a running gateway, what they say, and whether they run."""

import json
import sys
import time
from datetime import timedelta
from typing import Final

import click
from rich.text import Text

from comity.adapters.upstream.stderr import harmless
from comity.cli.asking import Answer, Gateway
from comity.cli.completing import complete_servers
from comity.cli.ends import FINE, SOMETHING_WRONG
from comity.cli.options import Listing, json_option, url_option
from comity.cli.show import (
    paragraphs,
    plain,
    short_reason,
    show,
    show_json,
    since,
    state,
    table,
    waiting,
    width,
)
from comity.rules.phrases import count_noun
from comity.wire.lifecycle import Reason

LOOK_EVERY: Final = timedelta(milliseconds=300)
LAST_LINES: Final = 10
WIDE: Final = 115
OPERATOR_REQUEST: Final = str(Reason.OPERATOR_REQUEST)


@click.group("servers", cls=Listing)
def command() -> None:
    """Show the servers of a running gateway; restart, stop and start them."""


@command.command("list")
@url_option
@json_option
def list_servers(url: str, as_json: bool) -> int:
    """List every server with its state and what it offers; the same as `comity servers`.

    The exit status is 1 if one of them has failed.
    """
    servers = Gateway(url).get("servers")
    if as_json:
        show_json(servers)
    elif not servers["servers"]:
        show(plain("The gateway has no servers; add some to its configuration, or `comity init`."))
    else:
        _show_all(servers["servers"])
    return SOMETHING_WRONG if any(is_troubled(each) for each in servers["servers"]) else FINE


def is_troubled(server: Answer) -> bool:
    """Whether it is not as it should be: it failed, and perhaps is about to be tried again."""
    return bool(server["reason"]) and server["state"] not in ("connected", "disconnected")


def _show_all(servers: list[Answer]) -> None:
    columns = ["SERVER", "STATE", "TOOLS", "OVER", "SINCE", "RESTARTS"]
    reasons = [(server["id"], short_reason(server["reason"])) for server in servers]
    reasons = [(id, reason) for id, reason in reasons if reason]
    # A narrow terminal has no room for reasons beside all the rest.
    is_wide = bool(reasons) and width() >= WIDE
    brought = any(server.get("registered_by") for server in servers)
    rows = [
        (
            server["id"],
            state(server["state"], server["reason"]),
            str(server["tools"]),
            server["transport"],
            since(server["since"]),
            str(server["restarts"]),
            *([server.get("registered_by", "")] if brought else []),
            *([short_reason(server["reason"])] if is_wide else []),
        )
        for server in servers
    ]
    columns += [*(["REGISTERED BY"] if brought else []), *(["REASON"] if is_wide else [])]
    show(table(columns, rows))
    if reasons and not is_wide:
        show("", table(("SERVER", "REASON"), reasons))
    if any(is_troubled(server) for server in servers):
        show("", plain("`comity servers show NAME` tells more.", "dim"))


@command.command("show")
@click.argument("name", shell_complete=complete_servers)
@url_option
@json_option
def show_server(name: str, url: str, as_json: bool) -> int:
    """Show all that is known of the server NAME."""
    server = Gateway(url).get("servers", name)
    if as_json:
        show_json(server)
    else:
        _show_one(server)
    return SOMETHING_WRONG if is_troubled(server) else FINE


def _show_one(server: Answer) -> None:
    info: Answer = server["info"] or {}
    said = " ".join(str(info[key]) for key in ("title", "name", "version") if info.get(key))
    facts = {
        "state": state(server["state"], server["reason"]),
        "reason": plain(server["reason"]),
        "since": plain(since(server["since"])),
        "restarts": plain(server["restarts"] or ""),
        "registered by": plain(server.get("registered_by", "")),
        "reached": plain(f"{server['reached']} ({server['transport']})"),
        "eras": plain(", ".join(server["eras"])),
        "names itself": plain(said),
        "offers": plain(_offers(server)),
        "says of itself": plain(told_account(server.get("account") or {})),
    }
    show(plain(server["label"], "bold"))
    rows = [(plain(name, "dim"), fact) for name, fact in facts.items() if fact]
    show(table(("", ""), rows))
    if server["set_aside"]:
        show("", plain("Set aside, because clients could not use them:", "bold"))
        show(table(("TOOL", "WHY"), server["set_aside"].items()))
    if server.get("permissions"):
        show("", plain("What it needs to do its work:", "bold"))
        needs = [
            (each["permission"], each["decision"], each["because"])
            for each in server["permissions"]
        ]
        show(table(("PERMISSION", "DECISION", "BECAUSE"), needs))
    _show_last_words(server)


def _show_last_words(server: Answer) -> None:
    if server["lines"]:
        show("", plain("What it last said on its error output:", "bold"))
        show(paragraphs("\n".join(server["lines"][-LAST_LINES:])))


def told_account(account: Answer) -> str:
    """A server's own word of its health; which checks it has is its own affair."""
    if "problem" in account:
        return str(account["problem"])
    failed = [name for name, passed in account.get("checks", {}).items() if passed is not True]
    told: Answer = account.get("told", {})
    words = [account.get("status") or "", f"not well: {', '.join(failed)}" if failed else ""]
    words.append(f"{told['new_state']}: {told['reason']}" if told else "")
    return "; ".join(word for word in words if word)


def _offers(server: Answer) -> str:
    counts = {noun: server[f"{noun}s"] for noun in ("tool", "prompt", "resource")}
    return ", ".join(count_noun(count, noun) for noun, count in counts.items() if count)


def _order(deed: str, told: str) -> None:
    """Make the command for one thing that can be ordered of a server."""

    @command.command(deed, help=f"{told} The exit status is 1 if that did not succeed.")
    @click.argument("name", shell_complete=complete_servers)
    @click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        default=90.0,
        show_default=True,
        help="How long to wait until it is done; it is done all the same.",
    )
    @url_option
    @json_option
    def order(name: str, timeout: float, url: str, *, as_json: bool) -> int:
        gateway = Gateway(url)
        ends = time.monotonic() + timeout
        server = gateway.post("servers", name, deed)
        with waiting(f"{deed} {name}"):
            while not is_settled(server) and time.monotonic() < ends:
                time.sleep(LOOK_EVERY.total_seconds())
                server = gateway.get("servers", name)
        if as_json:
            show_json(server)
        else:
            show(table(("", "", ""), [_brief(server)]))
            if is_troubled(server):
                _show_last_words(server)
        well = "disconnected" if deed == "stop" else "connected"
        return FINE if server["state"] == well else SOMETHING_WRONG


def _brief(server: Answer) -> tuple[str, Text, str]:
    told = _offers(server) if server["state"] == "connected" else server["reason"]
    return server["id"], state(server["state"], server["reason"]), told


def is_settled(server: Answer) -> bool:
    """Whether nothing follows at once: what waits for its next try has failed this one."""
    if server["state"] == "restarting":
        return server["reason"] != OPERATOR_REQUEST
    return server["state"] in ("connected", "disconnected", "error")


_order("restart", "Let the calls of the server NAME finish, end it and start it again.")
_order("stop", "Let the calls of the server NAME finish and end it, until it is started again.")
_order("start", "Start the server NAME, which was stopped or has failed.")


@command.command("logs")
@click.argument("name", shell_complete=complete_servers)
@click.option("--follow", "-f", is_flag=True, help="Wait for more, until interrupted.")
@url_option
@json_option
def show_logs(name: str, follow: bool, url: str, as_json: bool) -> None:
    """Show what the server NAME last said on its error output.

    Values of variables that its configuration sets are shown by their names.
    """
    gateway = Gateway(url)
    logs = gateway.get("servers", name, "logs")
    if as_json and not follow:
        show_json(logs)
        return
    if not logs["lines"] and not follow:
        sys.stderr.write(f"comity: {name} has said nothing on its error output\n")
    _print(logs["lines"], as_json)
    while follow:
        time.sleep(LOOK_EVERY.total_seconds())
        before, logs = logs, gateway.get("servers", name, "logs")
        _print(fresh(before["lines"], logs["lines"]), as_json)


def _print(lines: list[str], as_json: bool) -> None:
    for line in lines:
        sys.stdout.write(f"{json.dumps(line) if as_json else harmless(line)}\n")
    sys.stdout.flush()


def fresh(before: list[str], now: list[str]) -> list[str]:
    """The lines that are new in the second look at a tail that keeps only so many."""
    # The last line of the first look may have been half a line.
    for seen in (before, before[:-1]):
        for start in range(len(seen)):
            if now[: len(seen) - start] == seen[start:]:
                return now[len(seen) - start :]
    return now
