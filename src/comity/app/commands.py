"""`comity serve`."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from comity.app.settings_reader import ConfigSource, LoadedConfig
from comity.cli.options import CliCommand, current_options, file_options
from comity.telemetry.logging import configure_logging, log_announcement


@click.command("serve", cls=CliCommand)
@click.option("--host", metavar="ADDRESS", help="Address to listen on. Default: 127.0.0.1.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="Port to listen on. Default: 2664. 0 chooses a free port.",
)
@click.option(
    "--workers",
    metavar="COUNT",
    type=click.IntRange(1, 64),
    help="Number of processes that serve the port. Default: 1.",
)
@click.option(
    "--stdio",
    is_flag=True,
    help="Speak MCP on stdin and stdout, through the running gateway.",
)
@click.option("--view", default="", metavar="NAME", help="With --stdio, the view to serve.")
@click.option(
    "--discovery",
    is_flag=True,
    help="List a few tools only. Clients search for the others.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    envvar="COMITY_LOG_FORMAT",
    help="Format of the log. Default: text.",
)
@click.option(
    "--bootstrap-admin",
    is_flag=True,
    envvar="COMITY_BOOTSTRAP_ADMIN",
    help="If the store has no key and no administrator yet, create one and print its key once.",
)
@click.option("--end-when-idle", metavar="SECONDS", type=click.FloatRange(min=0), hidden=True)
@click.option("--worker", is_flag=True, hidden=True)
@file_options
def serve_command(
    *,
    stdio: bool,
    view: str,
    bootstrap_admin: bool,
    end_when_idle: float | None,
    worker: bool,
    **said: Any,
) -> int:
    """Start the gateway.

    The configuration is a comity.toml, an mgp.toml, or a JSON file with "mcpServers".

    With --stdio the client joins the gateway that runs with this configuration. If none runs, the
    command starts one in the background. It ends some time after its last client has left.

    \b
    Examples:
      comity serve
      comity serve mcp.json --port 8080
      comity serve --stdio -c comity.toml
    """
    config = current_options().config
    level = os.environ.get("LOG_LEVEL", "")
    configure_logging(said["log_format"] or "text", level)
    if worker:
        # Loaded only in a worker, which gets its options from its supervisor.
        from comity.app.processes.workers import serve_as_worker

        serve_as_worker()
        return 0
    _refuse_options(stdio=stdio, view=view, workers=said["workers"])
    said["discovery.mode"] = "on" if said.pop("discovery") else None
    said["telemetry.log_format"] = said.pop("log_format")
    over = {name: value for name, value in said.items() if value is not None}
    source = ConfigSource(Path(), Path.home(), os.environ, config, over, needs_trust=True)
    found = _load_config(source, may_ask=not stdio)
    configure_logging(found.settings.telemetry.log_format, level)
    if config is None:
        for line in found.describe():
            log_announcement(line)
    if stdio:
        # Loaded only now: a client on pipes waits for no gateway to be imported.
        from comity.app.processes.stdio_bridge import join_gateway

        join_gateway(source, found, view)
    elif found.settings.workers > 1 and end_when_idle is None:
        # Loaded only where this process supervises workers.
        from comity.app.processes.workers import serve_workers

        if bootstrap_admin:
            raise click.UsageError("--bootstrap-admin is for one process, so leave out --workers.")
        return serve_workers(source, found)
    else:
        # Loaded only where this process is the gateway.
        from comity.app.serve import serve_gateway

        idle = None if end_when_idle is None else timedelta(seconds=end_when_idle)
        serve_gateway(source, found, idle, should_bootstrap=bootstrap_admin)
    return 0


def _load_config(source: ConfigSource, *, may_ask: bool) -> LoadedConfig:
    if may_ask:
        # Loaded only where a person may be asked.
        from comity.config.commands import ask_for_trust

        ask_for_trust(source)
    return source.load()


def _refuse_options(*, stdio: bool, view: str, workers: int | None) -> None:
    """Raise UsageError for options that do not go together."""
    if stdio and workers is not None:
        raise click.UsageError("--workers is for a gateway with a port, so leave out --stdio.")
    if view and not stdio:
        raise click.UsageError("--view goes with --stdio. Each view has a path of its own.")
