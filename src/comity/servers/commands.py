"""`comity servers`, `comity status` and `comity nodes`."""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import click
from rich.text import Text

from comity.cli.api_client import Answer, ApiClient
from comity.cli.completion import complete_servers
from comity.cli.exit_status import DONE, FAILED
from comity.cli.options import (
    CliCommand,
    DefaultListGroup,
    check_option,
    current_options,
    gateway_options,
)
from comity.cli.output import (
    build_table,
    describe_age,
    line_text,
    output_width,
    paragraph_text,
    short_reason,
    show_document,
    show_hint,
    show_output,
    show_spinner,
    state_name,
    state_text,
)
from comity.cli.target import connect_gateway
from comity.mcp.mgp import ShutdownReason
from comity.servers.process.stderr import sanitize_line
from comity.toolkit.text import count_noun

POLL_INTERVAL: Final = timedelta(milliseconds=300)
MAX_STDERR_LINES: Final = 10
MIN_WIDE_COLUMNS: Final = 115
OPERATOR_REQUEST: Final = str(ShutdownReason.OPERATOR_REQUEST)
_WORDS_BY_REASON: Final[Mapping[str, str]] = {
    OPERATOR_REQUEST: "an operator restarted or stopped it",
    ShutdownReason.CONFIGURATION_CHANGE: "the configuration changed",
    ShutdownReason.RESOURCE_LIMIT: "it exceeded a limit of its resources",
    ShutdownReason.IDLE_TIMEOUT: "nobody used it",
    ShutdownReason.KERNEL_SHUTDOWN: "the gateway stopped",
}


@click.group(
    "servers",
    cls=DefaultListGroup,
    lazy_commands={
        "permissions": "comity.policy.commands:permissions_command",
        "features": "comity.live.commands:features_command",
        "state": "comity.live.commands:state_command",
        "search": "comity.servers.mcp_registry.commands:search_command",
        "add": "comity.servers.entries.commands:add_command",
        "remove": "comity.servers.entries.commands:remove_command",
        "update": "comity.servers.packages.commands:update_command",
        "add-api": "comity.servers.openapi.commands:add_api_command",
        "learn": "comity.servers.sandbox.learning.commands:learn_command",
    },
)
def servers_command() -> None:
    """Manage servers and their permissions, features and state.

    \b
    Examples:
      comity servers
      comity servers show files
      comity servers logs -f files
      comity servers restart files
      comity servers add files -- npx -y @example/files-server ~/notes
      comity servers add search --url https://search.example.org/mcp
      comity servers add io.github.owner/name
      comity servers remove files
      comity servers add-api shop ./shop.yaml
      comity servers update
    """


@servers_command.command("list")
@check_option("a server has failed")
@gateway_options
def list_servers(*, check: bool) -> int:
    """List servers with their state and number of tools.

    \b
    Examples:
      comity servers list
      comity servers list --check
      comity servers list -o json
    """
    gateway = connect_gateway()
    answer = gateway.get("servers")
    servers: list[Answer] = answer["servers"]

    def print_table() -> None:
        if servers:
            _print_servers(servers)
        else:
            show_output(line_text(_describe_no_servers(gateway)))
            show_hint("`comity servers add` adds one. `comity init` imports those of your clients.")

    show_document(answer, print_table, [each["id"] for each in servers])
    return FAILED if check and any(has_failed(each) for each in servers) else DONE


def _describe_no_servers(gateway: ApiClient) -> str:
    """Say what a gateway without servers does instead. It may only take webhooks."""
    settings = gateway.get("config")["settings"]
    hooks: list[str] = []
    for setting in settings:
        if setting["name"] == "inbound_webhooks":
            hooks = setting["value"]
    if not hooks:
        return "The gateway has no servers."
    return f"No servers are configured. The gateway takes the webhooks {', '.join(hooks)}."


def has_failed(server: Answer) -> bool:
    """Whether it is not as it should be: it failed, and perhaps is about to be tried again."""
    return bool(server["reason"]) and server["state"] not in ("connected", "disconnected")


def _print_servers(servers: list[Answer]) -> None:
    columns = ["SERVER", "STATE", "TOOLS", "TRANSPORT", "SINCE", "RESTARTS"]
    reasons = [(each["id"], short_reason(describe_reason(each["reason"]))) for each in servers]
    reasons = [(id, reason) for id, reason in reasons if reason]
    # A narrow terminal has no room for reasons beside all the rest.
    is_wide = bool(reasons) and output_width() >= MIN_WIDE_COLUMNS
    brought = any(server.get("registered_by") for server in servers)
    confined = any(server.get("sandbox") not in (None, "none") for server in servers)
    rows = [
        (
            server["id"],
            state_text(server["state"], server["reason"]),
            str(server["tools"]),
            server["transport"],
            describe_age(server["since"]),
            str(server["restarts"]),
            *([server.get("sandbox") or ""] if confined else []),
            *([server["registered_by"] or ""] if brought else []),
            *([short_reason(describe_reason(server["reason"]))] if is_wide else []),
        )
        for server in servers
    ]
    columns += ["SANDBOX"] if confined else []
    columns += [*(["REGISTERED BY"] if brought else []), *(["REASON"] if is_wide else [])]
    show_output(build_table(columns, rows))
    if reasons and not is_wide:
        show_output("", build_table(("SERVER", "REASON"), reasons))
    if any(has_failed(server) for server in servers):
        show_hint("`comity servers show NAME` shows the details.")


@servers_command.command("show")
@click.argument("name", shell_complete=complete_servers)
@gateway_options
def show_server(name: str) -> None:
    """Show the details of a server.

    \b
    Examples:
      comity servers show files
      comity servers show files -o json
    """
    server = connect_gateway().get("servers", name)
    show_document(server, lambda: _print_server(server), [server["id"]])


def _print_server(server: Answer) -> None:
    info: Answer = server["info"] or {}
    said = " ".join(str(info[key]) for key in ("title", "name", "version") if info.get(key))
    facts = {
        "state": state_text(server["state"], server["reason"]),
        "reason": line_text(describe_reason(server["reason"])),
        "since": line_text(describe_age(server["since"])),
        "restarts": line_text(server["restarts"] or ""),
        "registered by": line_text(server["registered_by"] or ""),
        "address": line_text(f"{server['reached']} ({server['transport']})"),
        "sandbox": line_text(server.get("sandbox") or ""),
        "MCP versions": line_text(", ".join(server["protocol_versions"])),
        "reports as": line_text(said),
        "provides": line_text(_catalog_counts(server)),
        "health": line_text(describe_report(server.get("account") or {})),
    }
    show_output(line_text(server["label"], "bold"))
    rows = [(line_text(name, "dim"), fact) for name, fact in facts.items() if fact]
    show_output(build_table(("", ""), rows))
    if server["quarantined"]:
        show_output("", line_text("Quarantined tools, which clients cannot use:", "bold"))
        show_output(build_table(("TOOL", "REASON"), server["quarantined"].items()))
    if server.get("permissions"):
        show_output("", line_text("Permissions it needs:", "bold"))
        needs = [
            (each["permission"], each["decision"], each["reason"]) for each in server["permissions"]
        ]
        show_output(build_table(("PERMISSION", "STATUS", "REASON"), needs))
    _print_stderr(server)


def _print_stderr(server: Answer) -> None:
    if server["lines"]:
        show_output("", line_text("Last lines of its error output:", "bold"))
        show_output(paragraph_text("\n".join(server["lines"][-MAX_STDERR_LINES:])))


def describe_report(report: Answer) -> str:
    """A server's own word of its health; which checks it has is its own affair."""
    if "problem" in report:
        return str(report["problem"])
    failed = [name for name, passed in report.get("checks", {}).items() if passed is not True]
    told: Answer = report.get("reported", {})
    words = [report.get("status") or "", f"not well: {', '.join(failed)}" if failed else ""]
    words.append(f"{told['new_state']}: {told['reason']}" if told else "")
    return "; ".join(word for word in words if word)


def describe_reason(reason: str) -> str:
    """Return why a server is in its state, in words instead of the names of MGP."""
    return _WORDS_BY_REASON.get(reason, reason)


def _catalog_counts(server: Answer) -> str:
    counts = {noun: server[f"{noun}s"] for noun in ("tool", "prompt", "resource")}
    return ", ".join(count_noun(count, noun) for noun, count in counts.items() if count)


def _make_order_command(action: str, help_text: str) -> None:
    """Make the command for one action on a server."""

    @servers_command.command(
        action, help=f"{help_text}\n\n\b\nExamples:\n  comity servers {action} files"
    )
    @click.argument("name", shell_complete=complete_servers)
    @click.option(
        "--timeout",
        metavar="SECONDS",
        type=click.FloatRange(min=0),
        default=90.0,
        show_default=True,
        help="How long to wait. The gateway continues after that.",
    )
    @gateway_options
    def order(name: str, timeout: float) -> int:
        gateway = connect_gateway()
        ends = time.monotonic() + timeout
        server = gateway.post("servers", name, action)
        with show_spinner(f"{action} {name}"):
            while not is_settled(server) and time.monotonic() < ends:
                time.sleep(POLL_INTERVAL.total_seconds())
                server = gateway.get("servers", name)
        show_document(server, lambda: _print_outcome(server), [server["id"]])
        well = "disconnected" if action == "stop" else "connected"
        return DONE if server["state"] == well else FAILED


def _print_outcome(server: Answer) -> None:
    show_output(build_table(("", "", ""), [_status_row(server)]))
    if has_failed(server):
        _print_stderr(server)


def _status_row(server: Answer) -> tuple[str, Text, str]:
    is_connected = server["state"] == "connected"
    told = _catalog_counts(server) if is_connected else describe_reason(server["reason"])
    return server["id"], state_text(server["state"], server["reason"]), told


def is_settled(server: Answer) -> bool:
    """Whether nothing follows at once: what waits for its next try has failed this one."""
    if server["state"] == "restarting":
        return server["reason"] != OPERATOR_REQUEST
    return server["state"] in ("connected", "disconnected", "error")


_make_order_command(
    "restart", "Restart a server. Its running calls finish first. Exits with 1 if it fails."
)
_make_order_command(
    "stop",
    "Stop a server until you start it. Its running calls finish first. Exits with 1 if it fails.",
)
_make_order_command(
    "start", "Start a server that was stopped or has failed. Exits with 1 if it fails."
)


@servers_command.command("logs")
@click.argument("name", shell_complete=complete_servers)
@click.option("--follow", "-f", is_flag=True, help="Print new lines until you press Ctrl-C.")
@gateway_options
def show_logs(name: str, *, follow: bool) -> None:
    """Show the error output of a server.

    Comity replaces the values of variables that the configuration sets by their names.

    \b
    Examples:
      comity servers logs files
      comity servers logs -f files
    """
    gateway = connect_gateway()
    logs = gateway.get("servers", name, "logs")
    if not follow:
        show_document(logs, lambda: _print_logs(logs), [name])
        return
    as_json = current_options().is_for_programs
    _print_lines(logs["lines"], as_json)
    while True:
        time.sleep(POLL_INTERVAL.total_seconds())
        before, logs = logs, gateway.get("servers", name, "logs")
        _print_lines(find_new_lines(before["lines"], logs["lines"]), as_json)


def _print_logs(logs: Answer) -> None:
    if not logs["lines"]:
        sys.stderr.write(f"comity: {logs['id']} has no error output\n")
    _print_lines(logs["lines"], as_json=False)


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


@click.command("status", cls=CliCommand)
@check_option("a server has failed")
@gateway_options
def status_command(*, check: bool) -> int:
    """Show the health of a gateway.

    \b
    Examples:
      comity status
      comity status --check
      comity status --url https://comity.example.org
    """
    gateway = connect_gateway()
    status = gateway.status()
    document = {"url": gateway.url, **status}
    show_document(document, lambda: _print_status(gateway.url, status), [gateway.url])
    return FAILED if check and status["troubled"] else DONE


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
        ("calls", f"{status['calls']} running"),
        ("endpoint", f"{url}/mcp"),
    )
    show_output(*(line_text(f"{name:<14} {fact}") for name, fact in facts))
    if status["troubled"]:
        rows = [
            (each["id"], state_text(each["state"], each["reason"]), short_reason(each["reason"]))
            for each in status["troubled"]
        ]
        show_output("", build_table(("SERVER", "STATE", "REASON"), rows))
        show_hint("`comity servers show NAME` shows the details.")


def _count_states(status: Answer) -> Counter[str]:
    """How many servers are in each state, as people are shown it."""
    states = Counter[str](status["servers"])
    for each in status["troubled"]:
        states[each["state"]] -= 1
        states[state_name(each["state"], each["reason"])] += 1
    return +states


@click.command("nodes", cls=CliCommand)
@check_option("a node is silent or this node is isolated")
@gateway_options
def nodes_command(*, check: bool) -> int:
    """Show the nodes of a cluster.

    RUNS lists the servers that only this node runs. All other servers run on every node.

    \b
    Examples:
      comity nodes
      comity nodes --check
    """
    found = connect_gateway().get("nodes")
    nodes: list[Answer] = found["nodes"]
    problems = [
        *(
            [f"This node cannot reach the others: {found['isolated']}."]
            if found["isolated"]
            else []
        ),
        *(
            [f"{count_noun(found['silent'], 'node')} stopped without leaving the cluster."]
            if found["silent"]
            else []
        ),
    ]

    def print_table() -> None:
        rows = [
            (
                each["name"],
                "*" if each["is_self"] else "",
                each["version"],
                describe_age(each["started"]),
                ", ".join(each["runs"]),
            )
            for each in nodes
        ]
        show_output(build_table(("NODE", "THIS", "VERSION", "UP FOR", "RUNS"), rows))
        if problems:
            show_output(*(line_text(each, "yellow") for each in problems))

    show_document(found, print_table, [each["id"] for each in nodes])
    return FAILED if check and problems else DONE
