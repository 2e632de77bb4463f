"""`comity servers` and `comity status`."""

import json
import sys
import time
from collections import Counter
from datetime import timedelta
from typing import Final

import click
from rich.text import Text

from comity.cli.api_client import Answer, ApiClient
from comity.cli.completion import complete_servers
from comity.cli.exit_status import FINE, SOMETHING_WRONG
from comity.cli.options import DefaultListGroup, json_option, url_option
from comity.cli.output import (
    build_table,
    describe_age,
    line_text,
    output_width,
    paragraph_text,
    short_reason,
    show_json,
    show_output,
    show_spinner,
    state_name,
    state_text,
)
from comity.mcp.mgp import ShutdownReason
from comity.servers.process.stderr import sanitize_line
from comity.toolkit.text import count_noun

POLL_INTERVAL: Final = timedelta(milliseconds=300)
MAX_STDERR_LINES: Final = 10
MIN_WIDE_COLUMNS: Final = 115
OPERATOR_REQUEST: Final = str(ShutdownReason.OPERATOR_REQUEST)


@click.group("servers", cls=DefaultListGroup)
def servers_command() -> None:
    """Show the servers of a running gateway; restart, stop and start them."""


@servers_command.command("list")
@url_option
@json_option
def list_servers(url: str, as_json: bool) -> int:
    """List every server with its state and what it offers; the same as `comity servers`.

    The exit status is 1 if one of them has failed.
    """
    servers = ApiClient(url).get("servers")
    if as_json:
        show_json(servers)
    elif not servers["servers"]:
        show_output(
            line_text(
                "The gateway has no servers; add some to its configuration, or `comity init`."
            )
        )
    else:
        _print_servers(servers["servers"])
    return SOMETHING_WRONG if any(has_failed(each) for each in servers["servers"]) else FINE


def has_failed(server: Answer) -> bool:
    """Whether it is not as it should be: it failed, and perhaps is about to be tried again."""
    return bool(server["reason"]) and server["state"] not in ("connected", "disconnected")


def _print_servers(servers: list[Answer]) -> None:
    columns = ["SERVER", "STATE", "TOOLS", "OVER", "SINCE", "RESTARTS"]
    reasons = [(server["id"], short_reason(server["reason"])) for server in servers]
    reasons = [(id, reason) for id, reason in reasons if reason]
    # A narrow terminal has no room for reasons beside all the rest.
    is_wide = bool(reasons) and output_width() >= MIN_WIDE_COLUMNS
    brought = any(server.get("registered_by") for server in servers)
    rows = [
        (
            server["id"],
            state_text(server["state"], server["reason"]),
            str(server["tools"]),
            server["transport"],
            describe_age(server["since"]),
            str(server["restarts"]),
            *([server.get("registered_by", "")] if brought else []),
            *([short_reason(server["reason"])] if is_wide else []),
        )
        for server in servers
    ]
    columns += [*(["REGISTERED BY"] if brought else []), *(["REASON"] if is_wide else [])]
    show_output(build_table(columns, rows))
    if reasons and not is_wide:
        show_output("", build_table(("SERVER", "REASON"), reasons))
    if any(has_failed(server) for server in servers):
        show_output("", line_text("`comity servers show NAME` tells more.", "dim"))


@servers_command.command("show")
@click.argument("name", shell_complete=complete_servers)
@url_option
@json_option
def show_server(name: str, url: str, as_json: bool) -> int:
    """Show all that is known of the server NAME."""
    server = ApiClient(url).get("servers", name)
    if as_json:
        show_json(server)
    else:
        _print_server(server)
    return SOMETHING_WRONG if has_failed(server) else FINE


def _print_server(server: Answer) -> None:
    info: Answer = server["info"] or {}
    said = " ".join(str(info[key]) for key in ("title", "name", "version") if info.get(key))
    facts = {
        "state": state_text(server["state"], server["reason"]),
        "reason": line_text(server["reason"]),
        "since": line_text(describe_age(server["since"])),
        "restarts": line_text(server["restarts"] or ""),
        "registered by": line_text(server.get("registered_by", "")),
        "reached": line_text(f"{server['reached']} ({server['transport']})"),
        "eras": line_text(", ".join(server["eras"])),
        "names itself": line_text(said),
        "offers": line_text(_catalog_counts(server)),
        "says of itself": line_text(describe_report(server.get("account") or {})),
    }
    show_output(line_text(server["label"], "bold"))
    rows = [(line_text(name, "dim"), fact) for name, fact in facts.items() if fact]
    show_output(build_table(("", ""), rows))
    if server["set_aside"]:
        show_output("", line_text("Set aside, because clients could not use them:", "bold"))
        show_output(build_table(("TOOL", "WHY"), server["set_aside"].items()))
    if server.get("permissions"):
        show_output("", line_text("What it needs to do its work:", "bold"))
        needs = [
            (each["permission"], each["decision"], each["because"])
            for each in server["permissions"]
        ]
        show_output(build_table(("PERMISSION", "DECISION", "BECAUSE"), needs))
    _print_stderr(server)


def _print_stderr(server: Answer) -> None:
    if server["lines"]:
        show_output("", line_text("What it last said on its error output:", "bold"))
        show_output(paragraph_text("\n".join(server["lines"][-MAX_STDERR_LINES:])))


def describe_report(report: Answer) -> str:
    """A server's own word of its health; which checks it has is its own affair."""
    if "problem" in report:
        return str(report["problem"])
    failed = [name for name, passed in report.get("checks", {}).items() if passed is not True]
    told: Answer = report.get("told", {})
    words = [report.get("status") or "", f"not well: {', '.join(failed)}" if failed else ""]
    words.append(f"{told['new_state']}: {told['reason']}" if told else "")
    return "; ".join(word for word in words if word)


def _catalog_counts(server: Answer) -> str:
    counts = {noun: server[f"{noun}s"] for noun in ("tool", "prompt", "resource")}
    return ", ".join(count_noun(count, noun) for noun, count in counts.items() if count)


def _make_order_command(action: str, past_participle: str) -> None:
    """Make the command for one thing that can be ordered of a server."""

    @servers_command.command(
        action, help=f"{past_participle} The exit status is 1 if that did not succeed."
    )
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
        gateway = ApiClient(url)
        ends = time.monotonic() + timeout
        server = gateway.post("servers", name, action)
        with show_spinner(f"{action} {name}"):
            while not is_settled(server) and time.monotonic() < ends:
                time.sleep(POLL_INTERVAL.total_seconds())
                server = gateway.get("servers", name)
        if as_json:
            show_json(server)
        else:
            show_output(build_table(("", "", ""), [_status_row(server)]))
            if has_failed(server):
                _print_stderr(server)
        well = "disconnected" if action == "stop" else "connected"
        return FINE if server["state"] == well else SOMETHING_WRONG


def _status_row(server: Answer) -> tuple[str, Text, str]:
    told = _catalog_counts(server) if server["state"] == "connected" else server["reason"]
    return server["id"], state_text(server["state"], server["reason"]), told


def is_settled(server: Answer) -> bool:
    """Whether nothing follows at once: what waits for its next try has failed this one."""
    if server["state"] == "restarting":
        return server["reason"] != OPERATOR_REQUEST
    return server["state"] in ("connected", "disconnected", "error")


_make_order_command(
    "restart", "Let the calls of the server NAME finish, end it and start it again."
)
_make_order_command(
    "stop", "Let the calls of the server NAME finish and end it, until it is started again."
)
_make_order_command("start", "Start the server NAME, which was stopped or has failed.")


@servers_command.command("logs")
@click.argument("name", shell_complete=complete_servers)
@click.option("--follow", "-f", is_flag=True, help="Wait for more, until interrupted.")
@url_option
@json_option
def show_logs(name: str, follow: bool, url: str, as_json: bool) -> None:
    """Show what the server NAME last said on its error output.

    Values of variables that its configuration sets are shown by their names.
    """
    gateway = ApiClient(url)
    logs = gateway.get("servers", name, "logs")
    if as_json and not follow:
        show_json(logs)
        return
    if not logs["lines"] and not follow:
        sys.stderr.write(f"comity: {name} has said nothing on its error output\n")
    _print_lines(logs["lines"], as_json)
    while follow:
        time.sleep(POLL_INTERVAL.total_seconds())
        before, logs = logs, gateway.get("servers", name, "logs")
        _print_lines(find_new_lines(before["lines"], logs["lines"]), as_json)


def _print_lines(lines: list[str], as_json: bool) -> None:
    for line in lines:
        sys.stdout.write(f"{json.dumps(line) if as_json else sanitize_line(line)}\n")
    sys.stdout.flush()


def find_new_lines(before: list[str], now: list[str]) -> list[str]:
    """The lines that are new in the second look at a tail that keeps only so many."""
    # The last line of the first look may have been half a line.
    for seen in (before, before[:-1]):
        for start in range(len(seen)):
            if now[: len(seen) - start] == seen[start:]:
                return now[len(seen) - start :]
    return now


@click.command("status")
@url_option
@json_option
def status_command(url: str, as_json: bool) -> int:
    """Show how a running gateway is doing.

    The exit status is 1 if one of its servers has failed.
    """
    gateway = ApiClient(url)
    status = gateway.status()
    if as_json:
        show_json({"url": gateway.url, **status})
    else:
        _print_status(gateway.url, status)
    return SOMETHING_WRONG if status["troubled"] else FINE


def _print_status(url: str, status: Answer) -> None:
    version, age = status.get("version"), describe_age(status.get("started"))
    show_output(line_text(f"Comity {version} at {url}, up for {age}", "bold"))
    if not status["ready"]:
        show_output(line_text("Some servers are starting for the first time.", "yellow"))
    states = _count_states(status)
    counted = ", ".join(f"{count} {name}" for name, count in states.items())
    servers = f"{sum(states.values())} ({counted})" if states else "none"
    facts = (
        ("servers", servers),
        ("tools", str(status["tools"])),
        ("sessions", str(status["sessions"])),
        ("calls", f"{status['calls']} under way"),
        ("clients go to", f"{url}/mcp"),
    )
    show_output(*(line_text(f"{name:<14} {fact}") for name, fact in facts))
    if status["troubled"]:
        rows = [
            (each["id"], state_text(each["state"], each["reason"]), short_reason(each["reason"]))
            for each in status["troubled"]
        ]
        show_output("", build_table(("SERVER", "STATE", "REASON"), rows))
        show_output("", line_text("`comity servers show NAME` tells more.", "dim"))


def _count_states(status: Answer) -> Counter[str]:
    """How many servers are in each state, as people are shown it."""
    states = Counter[str](status["servers"])
    for each in status["troubled"]:
        states[each["state"]] -= 1
        states[state_name(each["state"], each["reason"])] += 1
    return +states
