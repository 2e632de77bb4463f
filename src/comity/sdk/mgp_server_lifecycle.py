"""Health, shutdown and transports of a tool server. (MGP §11)"""

import asyncio
import logging
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self, cast

import uvicorn
from mcp.server import Server
from mcp.server.mcpserver import MCPServer
from mcp.server.stdio import stdio_server

from comity.errors import INVALID_PARAMS, SERVER_DRAINING
from comity.mcp import jsonrpc, mgp
from comity.mcp.jsonrpc import UNSET
from comity.mcp.mgp import (
    HealthStatus,
    MgpExtension,
    ServerLifecycleState,
    ShutdownReason,
    format_timestamp,
)
from comity.sdk.mgp_negotiation import MgpClientConnection, MgpRequest

log = logging.getLogger(__name__)

CHECK_SECONDS: Final = 2.0
"""The time limit of all checks together, well within the 5 seconds of a ping."""

MOST_CHECKS: Final = 64
USUAL_DRAIN_MS: Final = 30_000
LONGEST_DRAIN: Final = timedelta(minutes=10)
LAST_WORDS_SECONDS: Final = 0.25
"""The wait before the close: the SDK does not report when a result was written."""

_A_CALL_MS: Final = 1_000
"""The estimated time until a running call ends."""

type Check = Callable[[], Awaitable[bool]]
type Resource = Callable[[], int]


class MgpServerLifecycle:
    """The lifecycle of a server. `closed` is set when the transport must be closed."""

    def __init__(self, server_id: str) -> None:
        self.closed = asyncio.Event()
        self.checks: dict[str, Check] = {}
        self.resources: dict[str, Resource] = {}
        self.state = ServerLifecycleState.CONNECTED
        self.peers: set[MgpClientConnection] = set()
        self._id = server_id
        self._began = datetime.now(UTC)
        self.unhealthy_reason = ""
        self._running: set[MgpRequest] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self, request: MgpRequest) -> AsyncGenerator[None]:
        """Track a request until it ends. Raises if the server is shutting down."""
        if self.state is not ServerLifecycleState.CONNECTED:
            raise request.refused(SERVER_DRAINING, "this server is shutting down")
        self._running.add(request)
        self._idle.clear()
        try:
            yield
        finally:
            self._running.discard(request)
            if not self._running:
                self._idle.set()

    async def ping(self, request: MgpRequest) -> dict[str, object]:
        now = datetime.now(UTC)
        checks = await self._checked()
        return {
            "status": self._status(checks),
            "timestamp": format_timestamp(now),
            "uptime_secs": int((now - self._began).total_seconds()),
            "server_id": self._id,
        }

    async def status(self, tools: tuple[int, int]) -> dict[str, object]:
        checks = await self._checked()
        return {
            "status": self._status(checks),
            "uptime_secs": int((datetime.now(UTC) - self._began).total_seconds()),
            "tools_available": tools[0] if self.state is ServerLifecycleState.CONNECTED else 0,
            "tools_total": tools[1],
            "pending_requests": len(self._running),
            "resources": {name: read() for name, read in self.resources.items()},
            "checks": checks,
        }

    async def shut_down(self, request: MgpRequest) -> dict[str, object]:
        params = request.params
        reason, given = params.get("reason"), params.get("timeout_ms", USUAL_DRAIN_MS)
        if reason not in ShutdownReason or not isinstance(given, int | float) or given < 0:
            raise request.refused(INVALID_PARAMS, "a shutdown has a reason and a timeout_ms")
        within = min(timedelta(milliseconds=min(given, 1e9)), LONGEST_DRAIN)
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain(str(reason), within))
        guess = min(len(self._running) * _A_CALL_MS, int(within / timedelta(milliseconds=1)))
        return {
            "accepted": True,
            "pending_requests": len(self._running),
            "estimated_drain_ms": guess,
        }

    async def _drain(self, reason: str, timeout: timedelta) -> None:
        await self._enter(ServerLifecycleState.DRAINING, reason)
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d calls were not done when the time was over", len(self._running))
        await self._enter(ServerLifecycleState.DISCONNECTED, reason)
        await asyncio.sleep(LAST_WORDS_SECONDS)
        self.closed.set()

    async def _enter(self, state: ServerLifecycleState, reason: str) -> None:
        before, self.state = self.state, state
        told = mgp.state_change_notification(self._id, before, state, reason, datetime.now(UTC))
        assert told.params is not UNSET
        params = cast("dict[str, object]", jsonrpc.decode_value(told.params))
        for peer in [each for each in self.peers if MgpExtension.LIFECYCLE in each.extensions]:
            try:
                await peer.tell(mgp.CHANGED, params)
            except Exception:
                # Somebody who cannot be told any more does not keep the server from its end.
                log.exception("A change of state could not be sent")

    def _status(self, checks: Mapping[str, bool]) -> HealthStatus:
        if self.unhealthy_reason:
            return HealthStatus.UNHEALTHY
        well = all(checks.values()) and self.state is ServerLifecycleState.CONNECTED
        return HealthStatus.HEALTHY if well else HealthStatus.DEGRADED

    async def _checked(self) -> dict[str, bool]:
        """Every check at once; one that is late counts as failed."""
        tasks = {name: asyncio.ensure_future(check()) for name, check in self.checks.items()}
        if tasks:
            await asyncio.wait(tasks.values(), timeout=CHECK_SECONDS)
        found = {name: _passed(name, task) for name, task in tasks.items()}
        for task in tasks.values():
            task.cancel()
        return found


def _passed(name: str, task: "asyncio.Future[bool]") -> bool:
    if not task.done() or task.cancelled():
        return False
    if (problem := task.exception()) is not None:
        log.warning("the check %r broke", name, exc_info=problem)
        return False
    return bool(task.result())


CHUNK: Final = 64 * 1024
LONGEST_LINE: Final = 16 * 1024 * 1024
PARTING_SECONDS: Final = 1.0
_MAX_WAITING: Final = 64


class DescriptorLineReader:
    """The lines of a descriptor, read by a thread that ends with the process."""

    def __init__(self, descriptor: int = 0) -> None:
        # What tools and their children read from now on is empty, as the SDK has it too.
        self._own = os.dup(descriptor)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, descriptor)
        os.close(nothing)
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(_MAX_WAITING)
        threading.Thread(target=self._read, daemon=True).start()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        line = None if self._is_over else await self._lines.get()
        if line is None:
            raise StopAsyncIteration
        return line

    def end(self) -> None:
        """No more lines, as if the other side had closed the pipe."""
        self._is_over = True
        if self._lines.empty():
            self._lines.put_nowait(None)

    def _read(self) -> None:
        held = b""
        while chunk := self._chunk():
            *whole, held = (held + chunk).split(b"\n")
            for line in whole:
                self._give(line.decode(errors="replace"))
            if len(held) > LONGEST_LINE:
                break
        self._give(None)

    def _chunk(self) -> bytes:
        try:
            return os.read(self._own, CHUNK)
        except OSError:
            return b""

    def _give(self, line: str | None) -> None:
        try:
            asyncio.run_coroutine_threadsafe(self._lines.put(line), self._loop).result()
        except RuntimeError:
            # The loop is closed: there is nobody left to read.
            return


async def serve_pipes(server: Server[Any] | MCPServer[Any], closed: asyncio.Event) -> None:
    # The SDK's own server within has no public name.
    inner: Server[Any] = (
        server if isinstance(server, Server) else cast("Any", server)._lowlevel_server
    )
    lines = DescriptorLineReader()
    serving = asyncio.ensure_future(_serve(inner, lines))
    closing = asyncio.ensure_future(closed.wait())
    try:
        await asyncio.wait({serving, closing}, return_when=asyncio.FIRST_COMPLETED)
        lines.end()
        # The SDK waits for calls that nobody waits for any more.
        await asyncio.wait({serving}, timeout=PARTING_SECONDS)
    finally:
        closing.cancel()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    if not serving.cancelled():
        serving.result()


async def _serve(server: Server[Any], lines: DescriptorLineReader) -> None:
    async with stdio_server(stdin=cast("Any", lines)) as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_port(
    server: Server[Any] | MCPServer[Any], closed: asyncio.Event, host: str, port: int
) -> None:
    app = server.streamable_http_app(host=host)
    shell = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning"))

    async def close() -> None:
        await closed.wait()
        shell.should_exit = True

    closing = asyncio.ensure_future(close())
    try:
        await shell.serve()
    finally:
        closing.cancel()
