"""`comity serve`."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from comity.app.settings_reader import ConfigSource
from comity.telemetry.logging import configure_logging, log_announcement


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
def serve_command(
    config: Path | None, *, stdio: bool, end_when_idle: float | None, **said: Any
) -> None:
    """Stand in front of the servers of a configuration.

    CONFIG is a JSON file with "mcpServers", as most MCP clients have it, a comity.toml, or an
    mgp.toml. Without it the first of these is taken: comity.toml, mcp.json and .mcp.json in this
    folder; then the file that MGP_CONFIG_PATH names, or else mgp.toml in this folder over
    ~/.config/mgp/servers.toml.

    With --stdio the client is joined to the gateway that runs with this configuration. If none
    runs, one is started in the background; it ends a while after its last client has left.
    """
    level = os.environ.get("LOG_LEVEL", "")
    configure_logging(said["log_format"] or "text", level)
    said["discovery.mode"] = "on" if said.pop("discovery") else None
    said["telemetry.log_format"] = said.pop("log_format")
    over = {name: value for name, value in said.items() if value is not None}
    source = ConfigSource(Path(), Path.home(), os.environ, config, over)
    found = source.load()
    configure_logging(found.settings.telemetry.log_format, level)
    if config is None:
        for line in found.describe():
            log_announcement(line)
    if stdio:
        # Loaded only now: a client on pipes waits for no gateway to be imported.
        from comity.app.stdio_bridge import join_gateway

        join_gateway(source, found)
    else:
        # Loaded only where this process is the gateway.
        from comity.app.serve import serve_gateway

        idle = None if end_when_idle is None else timedelta(seconds=end_when_idle)
        serve_gateway(source, found, idle)
