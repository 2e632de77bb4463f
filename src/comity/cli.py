"""The command: `comity serve CONFIG`."""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

from comity.app import assembled
from comity.config import Settings, load
from comity.surfaces.listener import Limits, event_loop, listen
from comity.surfaces.mcp_stdio import converse
from comity.wire.errors import Misconfigured

try:
    import resource
except ImportError:  # only Unix limits open files this way
    resource = None

GC_THRESHOLDS = (20_000, 20, 50)
STDIO_PATIENCE = timedelta(seconds=5)
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=_log_level(os.environ.get("LOG_LEVEL", "")),
        format="comity: %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    try:
        settings = _settings(options)
        # What stands now stands for good; looking through it again and again would cost every call.
        _allow_many_files()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        with asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(_serve_stdio(settings) if options.stdio else _serve(settings))
    except Misconfigured as error:
        sys.stderr.write(f"comity: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _log_level(name: str) -> int:
    """The level of that name; the variable is shared with other programs, who know other names."""
    return logging.getLevelNamesMapping().get(name.upper(), logging.WARNING)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="comity", description="One MCP endpoint in front of every tool server."
    )
    parser.add_argument("--version", action="version", version=version("comity"))
    commands = parser.add_subparsers(dest="command", required=True)
    serve = commands.add_parser("serve", help="stand in front of the servers of a configuration")
    serve.add_argument("config", type=Path, help='{"mcpServers": …} as JSON, or comity.toml')
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument(
        "--port", type=int, help="port to listen on (default 2664; 0 takes a free one)"
    )
    serve.add_argument("--stdio", action="store_true", help="speak MCP on stdin and stdout instead")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    settings = load(options.config, os.environ)
    if options.host is not None:
        settings = replace(settings, host=options.host)
    if options.port is not None:
        settings = replace(settings, port=options.port)
    if settings.host not in LOOPBACK and not options.stdio:
        raise Misconfigured(
            f"listening on {settings.host} would open every tool to the network, and this version "
            "knows no keys yet; use 127.0.0.1, or put an authenticating proxy in front"
        )
    return settings


async def _serve(settings: Settings) -> None:
    async with assembled(settings) as parts:
        await listen(
            parts.gateway,
            settings.host,
            settings.port,
            limits=_limits(settings),
            started=_tell,
            stopping=parts.sessions.end_streams,
        )


def _limits(settings: Settings) -> Limits:
    return Limits(
        connections=settings.max_connections,
        connections_per_address=settings.max_connections_per_address,
        header_time=settings.header_deadline,
        keep_alive=settings.keep_alive,
        grace=settings.shutdown_grace,
    )


def _allow_many_files() -> None:
    """Every connection is an open file; take as many as the system lets this process have."""
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):  # some systems refuse their own hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve_stdio(settings: Settings) -> None:
    async with assembled(settings) as parts:
        await parts.servers.first_tries(STDIO_PATIENCE)
        await converse(parts.everything, parts.sessions)


def _tell(address: str) -> None:
    sys.stderr.write(f"comity: listening on {address}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
