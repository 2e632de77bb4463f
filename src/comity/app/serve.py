"""`comity serve`: starts a gateway in this process, records it for other commands, and stops it."""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from datetime import timedelta
from pathlib import Path
from typing import Final, TextIO, cast, override

import click
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from comity.app.bootstrap import bootstrap_admin
from comity.app.checks.machine import require_free_port
from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.processes.idle_shutdown import IdleShutdownApp
from comity.app.reload import follow_settings
from comity.app.settings import Settings
from comity.app.settings_reader import ConfigSource, LoadedConfig
from comity.catalog.catalog import Catalog
from comity.cli.api_client import new_token, prepare_folder, remove_record, write_record
from comity.cli.output import line_text, paragraph_text, state_text
from comity.console.endpoint import is_console_built
from comity.errors import Misconfigured
from comity.http.connection import ListenerLimits
from comity.http.server import ShutdownHooks, event_loop, run_http_server
from comity.http.tls import open_certificate
from comity.http.trusted_proxies import TrustedProxies
from comity.identity.login.api import link_path
from comity.identity.wiring import refuse_open_gateway
from comity.mcp.entries import EntryKind
from comity.mcp.mgp import ServerLifecycleState
from comity.servers.process.process import LAST_OUTPUT
from comity.servers.supervisor import UpstreamServer
from comity.telemetry.logging import LogFormat, log_announcement
from comity.toolkit.service_manager import READY_STATE, STOPPING_STATE, ServiceManager
from comity.toolkit.text import count_noun

REDRAW_INTERVAL_SECONDS: Final = 0.1
MAX_STDERR_LINES: Final = 3
MAX_TABLE_ROWS: Final = 200
REMEDY: Final = (
    "`comity servers show NAME` shows why a server failed. `comity doctor` suggests a fix."
)


@contextlib.asynccontextmanager
async def report_startup(
    parts: GatewayParts, form: LogFormat
) -> AsyncGenerator[Callable[[str], None]]:
    """Yield a function that the caller tells the URL at which the gateway accepts connections."""
    telling: list[asyncio.Task[None]] = []
    at_a_terminal = form == "text" and sys.stderr.isatty()
    start = StartupReporter(parts)

    def tell(address: str) -> None:
        parts.upstream_registry.on_listening(address)
        log_announcement(f"listening on {address}")
        if at_a_terminal and parts.authenticator.is_local and is_console_built():
            # Printed and not logged, because it is a credential. The link has a line of its own,
            # so that a terminal of 80 columns does not break it.
            token, _ = parts.login.make_link()
            click.echo("Open the console with this link, once within ten minutes:", err=True)
            click.echo(f"{address}{link_path(token)}", err=True)
        work = start.report_in_table(address) if at_a_terminal else start.report_in_log()
        telling.append(asyncio.ensure_future(work))

    try:
        yield tell
    finally:
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)


class StartupReporter:
    """Reports the first start of every configured server."""

    def __init__(self, parts: GatewayParts) -> None:
        self._servers = list(parts.servers)
        self._catalog = parts.catalog
        self._started_at = time.monotonic()
        self._start_seconds: dict[str, float] = {}
        self._is_ascii_only = False
        self._spinner = Spinner("line")

    async def report_in_log(self) -> None:
        """Log one line for each server after its first start."""
        await asyncio.gather(*(self._log_server(server) for server in self._servers))
        if self._has_failed:
            log_announcement(REMEDY)

    async def _log_server(self, server: UpstreamServer) -> None:
        await server.first_start_tried.wait()
        took = time.monotonic() - self._started_at
        if server.state is ServerLifecycleState.CONNECTED:
            offered = _catalog_counts(self._catalog, server)
            log_announcement(f"server {server.name!r} is ready after {took:.1f} s: {offered}")
            return
        for line in _last_stderr_lines(server):
            log_announcement(f"server {server.name!r} wrote: {line}")
        log_announcement(f"server {server.name!r} is not ready")

    @property
    def _has_failed(self) -> bool:
        return any(server.state is not ServerLifecycleState.CONNECTED for server in self._servers)

    async def report_in_table(self, address: str) -> None:
        """Redraw the table of servers until every server was tried, then print the final table."""
        if not self._servers:
            log_announcement(
                "there are no servers; add some to the configuration, or run `comity init`"
            )
            return
        console = Console(stderr=True, highlight=False)
        self._is_ascii_only = console.options.ascii_only
        self._spinner = Spinner("line" if self._is_ascii_only else "dots")
        terminal = sys.stderr
        living = Live(console=console, auto_refresh=False, transient=True)
        with living as live, _print_logs_above(terminal):
            while not all(server.first_start_tried.is_set() for server in self._servers):
                # The redrawn table must fit on the screen.
                live.update(self._table(max(1, console.height - 4)), refresh=True)
                await asyncio.sleep(REDRAW_INTERVAL_SECONDS)
        console.print(self._table(MAX_TABLE_ROWS), self._summary(address))

    def _table(self, rows: int) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        for server in self._servers[:rows]:
            table.add_row(
                self._status_mark(server), line_text(server.name), *self._status_texts(server)
            )
        more = len(self._servers) - rows
        if more > 0:
            table.add_row("", line_text(f"and {more} more", "dim"), "", "")
        return table

    def _status_mark(self, server: UpstreamServer) -> Spinner | Text:
        if not server.first_start_tried.is_set():
            return self._spinner
        self._start_seconds.setdefault(server.name, time.monotonic() - self._started_at)
        if server.state is ServerLifecycleState.CONNECTED:
            return line_text("+" if self._is_ascii_only else "✓", "green")
        return line_text("!" if self._is_ascii_only else "✗", "bold red")

    def _status_texts(self, server: UpstreamServer) -> tuple[Text, Text]:
        if not server.first_start_tried.is_set():
            return line_text(f"{time.monotonic() - self._started_at:.0f} s", "dim"), line_text(
                "starting", "dim"
            )
        took = line_text(f"{self._start_seconds.get(server.name, 0):.1f} s", "dim")
        if server.state is ServerLifecycleState.CONNECTED:
            return took, line_text(_catalog_counts(self._catalog, server))
        said = "\n".join([server.reason, *_last_stderr_lines(server)])
        return state_text(server.state, server.reason), paragraph_text(said)

    def _summary(self, address: str) -> Text:
        ready = sum(server.state is ServerLifecycleState.CONNECTED for server in self._servers)
        tools = sum(self._catalog.count(server.name, EntryKind.TOOL) for server in self._servers)
        servers = count_noun(len(self._servers), "server")
        counted = f"{ready} of {servers} ready, {count_noun(tools, 'tool')}."
        remedy = f"{REMEDY}\n" if self._has_failed else ""
        how = "Connect a client: `comity clients connect NAME`, or give it "
        return Text.assemble("\n", (counted, "bold"), "\n", remedy, how, (f"{address}/mcp", "cyan"))


def _catalog_counts(catalog: Catalog, server: UpstreamServer) -> str:
    kinds = {EntryKind.TOOL: "tool", EntryKind.PROMPT: "prompt", EntryKind.RESOURCE: "resource"}
    counts = {noun: catalog.count(server.name, kind) for kind, noun in kinds.items()}
    told = ", ".join(count_noun(count, noun) for noun, count in counts.items() if count)
    return told or "has no tools, resources or prompts"


def _last_stderr_lines(server: UpstreamServer) -> list[str]:
    """Return the last lines of the server's error output, unless its reason has the best one."""
    if LAST_OUTPUT in server.reason:
        return []
    return [
        line
        for line in list(server.stderr_lines())[-MAX_STDERR_LINES:]
        if line not in server.reason
    ]


@contextlib.contextmanager
def _print_logs_above(terminal: TextIO) -> Generator[None]:
    """Print log lines above the table, without those that repeat what the table shows."""
    streams = [each for each in logging.getLogger().handlers if _writes_to(each, terminal)]
    handlers = cast("list[logging.StreamHandler[TextIO]]", streams)
    quiet = _ServerLogFilter()
    for handler in handlers:
        # While the table is live, rich redirects this stream to print above the table.
        handler.setStream(sys.stderr)
        handler.addFilter(quiet)
    try:
        yield
    finally:
        for handler in handlers:
            handler.setStream(terminal)
            handler.removeFilter(quiet)


def _writes_to(handler: logging.Handler, stream: TextIO) -> bool:
    return getattr(handler, "stream", None) is stream


class _ServerLogFilter(logging.Filter):
    @override
    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("server %r")


log = logging.getLogger(__name__)


try:
    import resource
except ImportError:  # only Unix limits open files this way
    resource = None

GC_THRESHOLDS = (20_000, 20, 50)


def serve_gateway(
    source: ConfigSource,
    loaded_config: LoadedConfig,
    idle: timedelta | None,
    *,
    should_bootstrap: bool = False,
) -> None:
    """Run a gateway until it is stopped or, with `idle`, until it was unused for that long."""
    settings = loaded_config.settings
    refuse_open_gateway(settings)
    require_free_port(settings)
    if settings.identity.mode == "local":
        # The folder holds the operator token, without which the gateway has no operator.
        prepare_folder()
    tune_process()
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(_serve(source, loaded_config, idle, should_bootstrap=should_bootstrap))


async def _serve(
    source: ConfigSource,
    loaded_config: LoadedConfig,
    idle: timedelta | None,
    *,
    should_bootstrap: bool,
) -> None:
    settings = loaded_config.settings
    token = new_token() if settings.identity.mode == "local" else ""
    record = GatewayRecordFile(loaded_config.files[0], token)
    manager = ServiceManager()
    certificate = open_certificate(settings.tls.certificate_file, settings.tls.key_file)
    async with (
        manager.feed_watchdog(),
        assemble_gateway(settings, operator_token=token) as parts,
        follow_settings(
            source,
            loaded_config,
            parts.config_state,
            parts.upstream_registry,
            log_announcement,
            parts.apply_settings,
            certificate,
        ),
        report_startup(parts, settings.telemetry.log_format) as started,
    ):
        parts.set_shutdown_callback(_stop_process)
        # In local mode, the operator token makes the local user an administrator.
        if should_bootstrap and settings.identity.mode == "required":
            await bootstrap_admin(parts)
        idling = IdleShutdownApp(parts.http_app, lambda: _is_needed(parts))

        def listening(origin: str) -> None:
            parts.approval_components.set_origin(origin)
            record.write(origin)
            started(origin)
            record.announce()
            manager.notify(READY_STATE, f"STATUS=Listening on {origin}")
            if idle is not None and record.file is not None:
                idling.watch(record.file, idle, _stop_process)

        with contextlib.closing(record), contextlib.closing(idling):
            # Only a gateway that stops when idle counts its requests.
            await run_http_server(
                parts.http_app if idle is None else idling,
                settings.host,
                settings.port,
                limits=listener_limits(settings),
                started=listening,
                shutdown=ShutdownHooks(
                    lambda: _begin_shutdown(parts, manager), parts.active_calls.interrupt
                ),
                tls=None if certificate is None else certificate.context,
            )


def _stop_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _begin_shutdown(parts: GatewayParts, manager: ServiceManager) -> None:
    manager.notify(STOPPING_STATE)
    running = sum(server.state is ServerLifecycleState.CONNECTED for server in parts.servers)
    log_announcement(f"stopping {count_noun(running, 'server')}" if running else "stopping")
    parts.end_streams()


def _is_needed(parts: GatewayParts) -> bool:
    """Return whether a call runs, or an approval request waits that only this process may hold."""
    return bool(len(parts.active_calls)) or parts.approval_components.approvals.has_open


class GatewayRecordFile:
    """The record that tells other processes of this user where this gateway listens."""

    def __init__(self, config: Path, token: str) -> None:
        self._config = config
        self._token = token
        self.file: Path | None = None

    def write(self, origin: str) -> None:
        try:
            self.file = write_record(origin, self._config, self._token)
        except Misconfigured as problem:
            if self._token:
                raise
            # Keys and tokens work without the record. Commands then need the URL of the gateway.
            log.warning("Commands cannot find this gateway by its configuration: %s", problem)

    def announce(self) -> None:
        if self.file is not None and self._token:
            log_announcement(f"the operator token for `comity` commands is in {self.file}")

    def close(self) -> None:
        if self.file is not None:
            remove_record(self.file)


def scheme_of(settings: Settings) -> str:
    return "https" if settings.tls.certificate_file else "http"


def listener_limits(settings: Settings) -> ListenerLimits:
    return ListenerLimits(
        connections=settings.limits.max_connections,
        connections_per_address=settings.limits.max_connections_per_address,
        proxies=TrustedProxies(settings.trusted_proxies),
        header_time=settings.limits.header_timeout,
        keep_alive=settings.limits.keep_alive_timeout,
        grace=settings.limits.shutdown_grace,
    )


def tune_process() -> None:
    """Set the garbage collector for long runs, and raise the limit of open files."""
    # `gc.freeze` excludes the loaded modules from collections, which would slow down every call.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    # Every connection needs a file.
    if resource is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):  # some systems refuse their own hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
