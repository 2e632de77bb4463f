"""`comity serve --workers N`: several nodes on one port, as processes of one supervisor.

The supervisor serves no request. It holds the port, runs a NATS server for the workers unless the
configuration names one, and starts a worker again when it dies. Each worker is a node of a cluster.
"""

import asyncio
import contextlib
import logging
import os
import platform
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Generator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from comity.app.checks.machine import require_free_port
from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.processes.local_bus import LocalNatsServer
from comity.app.records import open_store
from comity.app.reload import follow_settings
from comity.app.serve import (
    GatewayRecordFile,
    StartupReporter,
    listener_limits,
    scheme_of,
    tune_process,
)
from comity.app.settings import Settings, replace_settings
from comity.app.settings_reader import ConfigSource, LoadedConfig
from comity.audit.wiring import make_signer, signing_key_file
from comity.cli.api_client import new_token, prepare_folder
from comity.cli.exit_status import FAILED
from comity.errors import Misconfigured, Unavailable
from comity.http.server import ShutdownHooks, event_loop, run_http_server
from comity.http.tls import open_certificate
from comity.identity.wiring import is_pepper_given, pepper_for, refuse_open_gateway
from comity.storage.stores import file_of
from comity.telemetry.logging import configure_logging, log_announcement
from comity.toolkit.background import draw_delay, wait_for_change
from comity.toolkit.resilience import RetrySchedule
from comity.toolkit.service_manager import READY_STATE, STOPPING_STATE, ServiceManager

log = logging.getLogger(__name__)

READY: Final = b"ready\n"
RESTART_SCHEDULE: Final = RetrySchedule(first=timedelta(milliseconds=200))
STABLE_SECONDS: Final = 60.0
"""A process that ran this long does not crash in a loop, so the next pause is short again."""

KILL_SECONDS: Final = 20.0
"""How long a process may take to end, beside the grace period of its open requests."""

TEMPORARY_RETENTION: Final = timedelta(hours=1)
"""How long audit entries are kept in a store that ends with the supervisor."""

MAX_NODE_NAME: Final = 28
MAX_SERVER_WAIT: Final = timedelta(seconds=10)
"""How long a worker waits for its servers before it takes requests."""


class WorkerOrders(msgspec.Struct, frozen=True):
    """The orders of the supervisor to a worker, on its standard input. They hold secrets."""

    number: int
    config: str | None
    options: dict[str, str | int]
    """The options of the command line, by the full names of settings."""
    folder: str
    bus: str
    token: str
    reports_start: bool


def worker_settings(settings: Settings, orders: WorkerOrders) -> dict[str, Any]:
    """Return the settings of one worker that differ from those of the configuration."""
    folder, number = Path(orders.folder), orders.number
    changes: dict[str, Any] = {
        "cluster.node": node_name(settings, number),
        "cluster.single_replica": True,
    }
    if not settings.cluster.url:
        # The processes of one machine notice each other's death sooner than machines do.
        changes |= {
            "cluster.url": orders.bus,
            "cluster.heartbeat_interval": timedelta(milliseconds=500),
            "cluster.dead_after": timedelta(seconds=3),
            "cluster.lease_ttl": timedelta(seconds=6),
        }
    if not settings.store.url:
        changes["store.url"] = f"sqlite:///{folder / 'store.db'}"
        changes["audit.retention"] = settings.audit.retention or TEMPORARY_RETENTION
    file = file_of(changes.get("store.url", settings.store.url))
    if file is not None and not is_pepper_given(settings):
        changes["identity.pepper_file"] = str(file.with_name(f"{file.name}.pepper"))
    if number > 1:
        # Each worker writes a chain of its own. The first continues that of a gateway alone.
        key_file = signing_key_file(replace_settings(settings, changes))
        changes["audit.key_file"] = f"{key_file}-{number}"
        if settings.audit.node:
            changes["audit.node"] = f"{settings.audit.node}-{number}"
    return changes


def node_name(settings: Settings, number: int) -> str:
    name = settings.cluster.node or platform.node()
    return f"{name[:MAX_NODE_NAME]}-{number}"


def serve_workers(source: ConfigSource, loaded_config: LoadedConfig) -> int:
    """Run the workers until a signal stops them, and return the exit status."""
    settings = loaded_config.settings
    refuse_open_gateway(settings)
    require_free_port(settings)
    token = ""
    if settings.identity.mode == "local":
        prepare_folder()
        token = new_token()
    tune_process()
    with (
        _reserve_port(settings.host, settings.port, scheme_of(settings)) as origin,
        tempfile.TemporaryDirectory(prefix="comity-workers-") as folder,
        contextlib.closing(GatewayRecordFile(loaded_config.files[0], token)) as record,
    ):
        supervisor = WorkerSupervisor(source, settings, Path(folder), token)
        return asyncio.run(supervisor.supervise(origin, record))


class ChildProgram(Protocol):
    """A program that a `ProgramRunner` runs."""

    @property
    def name(self) -> str: ...

    async def start(self) -> Process: ...

    async def wait_until_ready(self, process: Process) -> bool:
        """Return whether the process became ready; otherwise it has ended."""
        ...


class WorkerProgram:
    """One worker: `comity serve` as a node of the cluster."""

    def __init__(self, name: str, orders: WorkerOrders) -> None:
        self.name = f"worker {name}"
        self._orders = orders

    async def start(self) -> Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "comity.cli",
            "serve",
            "--worker",
            stdin=PIPE,
            stdout=PIPE,
            # The supervisor alone gets the Ctrl-C of a terminal. A second signal would end the
            # grace period of a worker.
            start_new_session=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: its status tells
            # The pipe stays open. Its end tells the worker that the supervisor has died.
            process.stdin.write(msgspec.json.encode(self._orders) + b"\n")
            await process.stdin.drain()
        self._orders = msgspec.structs.replace(self._orders, reports_start=False)
        return process

    async def wait_until_ready(self, process: Process) -> bool:
        assert process.stdout is not None
        return await process.stdout.readline() == READY


class ProgramRunner:
    """Keeps a program running: starts it again, after a pause, whenever it ends."""

    def __init__(self, program: ChildProgram) -> None:
        self._program = program
        self._process: Process | None = None
        self.is_stopping = False
        self._woken = asyncio.Event()
        # Gets whether the first start succeeded, or else the exit status.
        self.first_start: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def keep_running(self) -> None:
        """Run the program until `request_stop` is called, or until its first start fails."""
        try:
            await self._run_again()
        finally:
            if not self.first_start.done():
                self.first_start.set_result(FAILED)

    async def _run_again(self) -> None:
        failures = 0
        while not self.is_stopping:
            began = time.monotonic()
            try:
                status = await self._run_once()
            except OSError as problem:  # too many processes, or it was not ready in time
                log.warning("%s does not start: %s", self._program.name, problem)
                status = FAILED
            if not self.first_start.done():
                self.first_start.set_result(status if status > 0 else FAILED)
                return
            if self.is_stopping:
                return
            failures = 1 if time.monotonic() - began > STABLE_SECONDS else failures + 1
            pause = draw_delay(RESTART_SCHEDULE, failures)
            ended = f"signal {-status}" if status < 0 else f"status {status}"
            log.error(
                "%s stopped with %s; it restarts in %.1f s",
                self._program.name,
                ended,
                pause.total_seconds(),
            )
            await wait_for_change(self._woken, pause)

    def send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                self._process.send_signal(number)

    def request_stop(self) -> None:
        """Ask the process to end, and start no other. A second call makes it hurry."""
        self.is_stopping = True
        self._woken.set()
        self.send_signal(signal.SIGTERM)

    async def _run_once(self) -> int:
        process = self._process = await self._program.start()
        try:
            if self.is_stopping:
                self.send_signal(signal.SIGTERM)
            is_ready = await self._program.wait_until_ready(process)
            if is_ready and not self.first_start.done():
                self.first_start.set_result(0)
            return await process.wait()
        finally:
            # Also when the supervisor itself fails: no process is left behind.
            if process.returncode is None:
                self.send_signal(signal.SIGKILL)
                await process.wait()
            self._process = None


class WorkerSupervisor:
    """Starts the bus and the workers, and stops them in order."""

    def __init__(self, source: ConfigSource, settings: Settings, folder: Path, token: str) -> None:
        self._source = source
        self._settings = settings
        self._folder = folder
        self._token = token
        self._runners: list[ProgramRunner] = []
        self._stop_requested = asyncio.Event()
        self._port = 0
        self._manager = ServiceManager()

    async def supervise(self, origin: str, record: GatewayRecordFile) -> int:
        """Supervise until a signal arrives, and return the exit status."""
        self._port = int(origin.rpartition(":")[2])
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        if not os.isatty(0):
            # A terminal may send it when it closes; then the workers notice that this process ends.
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        bus = None if self._settings.cluster.url else LocalNatsServer(self._folder)
        async with self._manager.feed_watchdog(), contextlib.AsyncExitStack() as ending:
            if bus is not None:
                status = await ending.enter_async_context(_kept_running(ProgramRunner(bus)))
                if status:
                    raise Unavailable(f"{bus.name} does not start: {bus.last_log_line()}")
            orders = self._orders("" if bus is None else bus.url)
            await self._prepare_store(orders[0])
            if self._stop_requested.is_set():
                return 0
            return await self._run_workers(orders, origin, record)

    async def _run_workers(
        self, orders: Sequence[WorkerOrders], origin: str, record: GatewayRecordFile
    ) -> int:
        self._runners = [
            ProgramRunner(WorkerProgram(node_name(self._settings, each.number), each))
            for each in orders
        ]
        tasks = [asyncio.ensure_future(runner.keep_running()) for runner in self._runners]
        try:
            statuses = await asyncio.gather(*(runner.first_start for runner in self._runners))
            if any(statuses) and not self._stop_requested.is_set():
                return max(statuses)
            if not self._stop_requested.is_set():
                record.write(origin)
                log_announcement(f"listening on {origin} with {len(orders)} workers")
                record.announce()
                self._manager.notify(READY_STATE, f"STATUS=Listening on {origin}")
            await self._stop_requested.wait()
            return 0
        finally:
            await self._end(tasks)

    async def _end(self, tasks: Sequence["asyncio.Task[None]"]) -> None:
        for runner in self._runners:
            if not runner.is_stopping:
                runner.request_stop()
        patience = self._settings.limits.shutdown_grace.total_seconds() + KILL_SECONDS
        _, late = await asyncio.wait(tasks, timeout=patience)
        for task in late:
            log.error("A worker did not stop within %.0f s and is killed", patience)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _orders(self, bus: str) -> list[WorkerOrders]:
        config = self._source.config_path
        first = WorkerOrders(
            number=1,
            config=None if config is None else str(config),
            options={**self._source.overrides, "port": self._port},
            folder=str(self._folder),
            bus=bus,
            token=self._token,
            reports_start=True,
        )
        others = (
            msgspec.structs.replace(first, number=number, reports_start=False)
            for number in range(2, self._settings.workers + 1)
        )
        return [first, *others]

    async def _prepare_store(self, orders: WorkerOrders) -> None:
        """Create the store, its pepper and the first key once, before the workers open them."""
        settings = self._settings
        store = worker_settings(settings, orders).get("store.url", settings.store.url)
        # Without the cluster, because the pepper beside a SQLite file serves all workers.
        alone = replace(settings, cluster=replace(settings.cluster, url=""))
        alone = replace_settings(alone, {"store.url": store})
        pepper_for(alone)
        make_signer(alone)
        records = open_store(store)
        try:
            await records.open()
        finally:
            await records.close()

    def _stop(self) -> None:
        if not self._stop_requested.is_set():
            log_announcement(f"stopping {self._settings.workers} workers")
            self._manager.notify(STOPPING_STATE)
        self._stop_requested.set()
        for runner in self._runners:
            runner.request_stop()

    def _reload(self) -> None:
        for runner in self._runners:
            runner.send_signal(signal.SIGHUP)


@contextlib.asynccontextmanager
async def _kept_running(runner: ProgramRunner) -> AsyncGenerator[int]:
    """Keep a process running until the context ends. Yields the status of its first start."""
    task = asyncio.ensure_future(runner.keep_running())
    try:
        yield await runner.first_start
    finally:
        runner.request_stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_SECONDS):
                await task
        await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def _reserve_port(host: str, port: int, scheme: str) -> Generator[str]:
    """Bind the port without listening, so that it stays with the workers. Yield the origin."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise Misconfigured("this system cannot share a port between workers; use --workers 1")
    with contextlib.ExitStack() as bound:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, address in dict.fromkeys(found):
                one = bound.enter_context(socket.socket(family, kind, protocol))
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind((address[0], port, *address[2:]))
                # A host of several addresses has the same port on each of them.
                port = one.getsockname()[1]
        except (OSError, OverflowError, UnicodeError) as problem:
            raise Misconfigured(
                f"cannot listen on {host} port {port}: {problem}; "
                "choose another with --host and --port, or end the program that holds it"
            ) from problem
        address = str(found[0][4][0])
        yield f"{scheme}://[{address}]:{port}" if ":" in address else f"{scheme}://{address}:{port}"


def serve_as_worker() -> None:
    """Run the gateway that the orders on standard input describe, until it is stopped."""
    try:
        orders = msgspec.json.decode(sys.stdin.buffer.readline(), type=WorkerOrders)
    except msgspec.DecodeError:
        raise Misconfigured("only `comity serve --workers` starts workers") from None
    config = None if orders.config is None else Path(orders.config)
    source = ConfigSource(Path(), Path.home(), os.environ, config, orders.options, needs_trust=True)
    settings = source.load().settings
    changes = worker_settings(settings, orders)
    source = replace(source, overrides={**orders.options, **changes})
    loaded_config = source.load()
    settings = loaded_config.settings
    if not settings.store.url:
        # A temporary store of this worker alone would miss what the others revoke and record.
        raise Misconfigured("a worker needs the store that all workers share; name one in [store]")
    level = os.environ.get("LOG_LEVEL", "")
    configure_logging(settings.telemetry.log_format, level, settings.cluster.node)
    tune_process()
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(_run_worker(source, loaded_config, orders))


async def _run_worker(
    source: ConfigSource, loaded_config: LoadedConfig, orders: WorkerOrders
) -> None:
    settings = loaded_config.settings
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _stop_without_supervisor)
    certificate = open_certificate(settings.tls.certificate_file, settings.tls.key_file)
    async with (
        assemble_gateway(settings, operator_token=orders.token) as parts,
        follow_settings(
            source,
            loaded_config,
            parts.config_state,
            parts.upstream_registry,
            log_announcement if orders.number == 1 else _say_nothing,
            parts.apply_settings,
            certificate,
        ),
    ):
        # A replaced worker would not stop the gateway.
        parts.set_shutdown_callback(lambda: os.kill(os.getppid(), signal.SIGTERM))
        report = asyncio.ensure_future(_report_start(parts, orders))
        # A worker without tools would refuse calls that the other workers can serve.
        await parts.servers.wait_for_first_starts(MAX_SERVER_WAIT)

        def listening(origin: str) -> None:
            parts.approval_components.set_origin(origin)
            os.write(sys.stdout.fileno(), READY)

        try:
            await run_http_server(
                parts.http_app,
                settings.host,
                settings.port,
                limits=listener_limits(settings),
                started=listening,
                shutdown=ShutdownHooks(parts.end_streams, parts.active_calls.interrupt),
                reuse_port=True,
                tls=None if certificate is None else certificate.context,
            )
        finally:
            report.cancel()
            await asyncio.gather(report, return_exceptions=True)


async def _report_start(parts: GatewayParts, orders: WorkerOrders) -> None:
    if orders.reports_start:
        await StartupReporter(parts).report_in_log()


def _stop_without_supervisor() -> None:
    """Stop in order at the end of standard input: the supervisor has died."""
    asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
    os.kill(os.getpid(), signal.SIGTERM)


def _say_nothing(message: str) -> None:
    """Leave a message to the first worker, which reads the same files."""
    del message
