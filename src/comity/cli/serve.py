"""`comity serve`: the gateway itself, over HTTP or on standard input and output."""

import asyncio
import contextlib
import gc
import os
import signal
from datetime import timedelta
from pathlib import Path

import click

from comity.adapters.log_lines import LogFormat, announce, configure
from comity.adapters.telemetry import is_asked_for
from comity.app.assembly import assembled
from comity.app.recognising import refuse_an_open_door
from comity.app.reload import followed
from comity.cli.met import refuse_a_taken_port
from comity.cli.starting import shown_start
from comity.config import Settings, Source
from comity.surfaces.listener import Limits, event_loop, listen
from comity.surfaces.mcp_stdio import converse

try:
    import resource
except ImportError:  # only Unix limits open files this way
    resource = None

GC_THRESHOLDS = (20_000, 20, 50)
STDIO_PATIENCE = timedelta(seconds=5)


@click.command("serve")
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--host", metavar="ADDRESS", help="The address to listen on; 127.0.0.1 unless given.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    help="The port to listen on; 2664 unless given, and 0 takes a free one.",
)
@click.option("--stdio", is_flag=True, help="Speak MCP on stdin and stdout, and open no port.")
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
def command(
    config: Path | None,
    host: str | None,
    port: int | None,
    stdio: bool,
    discovery: bool,
    log_format: LogFormat | None,
) -> None:
    """Stand in front of the servers of a configuration.

    CONFIG is a JSON file with "mcpServers", as most MCP clients have it, a comity.toml, or an
    mgp.toml. Without it the first of these is taken: comity.toml, mcp.json and .mcp.json in this
    folder; then the file that MGP_CONFIG_PATH names, or else mgp.toml in this folder over
    ~/.config/mgp/servers.toml.
    """
    level = os.environ.get("LOG_LEVEL", "")
    configure(log_format or "text", level)
    said = {"host": host, "port": port, "log_format": log_format}
    said["discovery_mode"] = "on" if discovery else None
    said["traces"] = is_asked_for(os.environ) or None
    over = {name: value for name, value in said.items() if value is not None}
    source = Source(Path(), Path.home(), os.environ, config, over)
    found = source.find()
    settings = found.settings
    configure(settings.log_format, level)
    if config is None:
        for line in found.told():
            announce(line)
    if not stdio:
        refuse_an_open_door(settings)
        refuse_a_taken_port(settings)
    # What stands now stands for good; looking through it again and again would cost every call.
    allow_many_files()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run((_serve_stdio if stdio else _serve)(settings, source))


async def _serve(settings: Settings, source: Source) -> None:
    async with (
        assembled(settings) as parts,
        followed(source, parts.residents, announce, parts.governance.decide),
        shown_start(parts, settings.log_format) as started,
    ):
        parts.end_by(lambda: os.kill(os.getpid(), signal.SIGTERM))

        def listening(origin: str) -> None:
            parts.asking.listens_at(origin)
            started(origin)

        await listen(
            parts.gateway,
            settings.host,
            settings.port,
            limits=_limits(settings),
            started=listening,
            stopping=parts.end_streams,
        )


def _limits(settings: Settings) -> Limits:
    return Limits(
        connections=settings.max_connections,
        connections_per_address=settings.max_connections_per_address,
        header_time=settings.header_deadline,
        keep_alive=settings.keep_alive,
        grace=settings.shutdown_grace,
    )


def allow_many_files() -> None:
    """Every connection is an open file; take as many as the system lets this process have."""
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):  # some systems refuse their own hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve_stdio(settings: Settings, source: Source) -> None:
    async with (
        assembled(settings) as parts,
        followed(source, parts.residents, announce, parts.governance.decide),
    ):
        await parts.servers.first_tries(STDIO_PATIENCE)
        await converse(parts.everything, parts.sessions, parts.auth)
