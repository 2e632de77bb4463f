"""`comity serve`: the gateway over HTTP, or the pipes of a client that is joined to it."""

import importlib
import os
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, cast

import click

from comity.adapters.log_lines import announce, configure
from comity.config import Found, Source


class _Serving(Protocol):
    """How a gateway is run; loaded only where this process is one."""

    def serve(self, source: Source, found: Found, idle: timedelta | None) -> None: ...


class _Piping(Protocol):
    """How a client's pipes are joined to a gateway; that loads no gateway."""

    def join_gateway(self, source: Source, found: Found) -> None: ...


@click.command("serve")
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--host", metavar="ADDRESS", help="The address to listen on; 127.0.0.1 unless given.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="The port to listen on; 2664 unless given, and 0 takes a free one.",
)
@click.option(
    "--stdio",
    is_flag=True,
    help="Speak MCP on stdin and stdout: join the running gateway, or start one.",
)
@click.option(
    "--discovery",
    is_flag=True,
    help="List a few tools only; clients find the others by searching.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar="COMITY_LOG_FORMAT",
    help="How a line of the log is written; text unless given.",
)
@click.option("--end-when-idle", metavar="SECONDS", type=click.FloatRange(min=0), hidden=True)
def command(config: Path | None, *, stdio: bool, end_when_idle: float | None, **said: Any) -> None:
    """Stand in front of the servers of a configuration.

    CONFIG is a JSON file with "mcpServers", as most MCP clients have it, a comity.toml, or an
    mgp.toml. Without it the first of these is taken: comity.toml, mcp.json and .mcp.json in this
    folder; then the file that MGP_CONFIG_PATH names, or else mgp.toml in this folder over
    ~/.config/mgp/servers.toml.

    With --stdio the client is joined to the gateway that runs with this configuration. If none
    runs, one is started in the background; it ends a while after its last client has left.
    """
    level = os.environ.get("LOG_LEVEL", "")
    configure(said["log_format"] or "text", level)
    said["discovery_mode"] = "on" if said.pop("discovery") else None
    over = {name: value for name, value in said.items() if value is not None}
    source = Source(Path(), Path.home(), os.environ, config, over)
    found = source.find()
    configure(found.settings.log_format, level)
    if config is None:
        for line in found.told():
            announce(line)
    if stdio:
        piping = cast("_Piping", importlib.import_module("comity.cli.stdio"))
        piping.join_gateway(source, found)
    else:
        serving = cast("_Serving", importlib.import_module("comity.cli.serving"))
        idle = None if end_when_idle is None else timedelta(seconds=end_when_idle)
        serving.serve(source, found, idle)
