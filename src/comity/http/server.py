"""The listening socket: opens it, serves it, and closes it within a time limit.

uvicorn's own server polls ten times a second, exits the process when a port is taken, and waits
for open streams without limit. Comity uses only its protocol class.
"""

import asyncio
import math
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from comity.errors import Misconfigured
from comity.http.connection import HttpServerConnection, ListenerGuard, ListenerLimits

try:
    from uvloop import new_event_loop as event_loop
except ImportError:  # not built for every platform; the standard loop serves as well, only slower
    from asyncio import new_event_loop as event_loop

__all__ = ["ListenerLimits", "event_loop", "run_http_server", "uvicorn_config"]

type Application = Callable[..., Any]

LAST_WORDS_SECONDS = 1.0


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class ShutdownHooks:
    """The callbacks of a shutdown.

    `begin` is called first, so that long streams end properly instead of being cut. `interrupt` is
    called after the grace period and answers open requests before connections are closed.
    """

    begin: Callable[[], None] = _nothing
    interrupt: Callable[[], None] = _nothing


_AS_IT_IS = ShutdownHooks()


async def run_http_server(
    app: Application,
    host: str,
    port: int,
    *,
    limits: ListenerLimits | None = None,
    started: Callable[[str], None],
    shutdown: ShutdownHooks = _AS_IT_IS,
) -> None:
    """Serve `app` until it is cancelled or a SIGTERM or SIGINT arrives.

    `started` receives the address once connections are accepted.
    """
    limits = limits or ListenerLimits()
    config = uvicorn_config(app, limits)
    guard = ListenerGuard(limits, ServerState(), getattr(app, "serve", None))
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(
            lambda: HttpServerConnection(config, guard), host, port, backlog=2048
        )
    except (OSError, OverflowError, UnicodeError) as problem:
        raise Misconfigured(
            f"cannot listen on {host} port {port}: {problem}; "
            "choose another with --host and --port, or end the program that holds it"
        ) from problem
    sweeping = loop.create_task(guard.sweep(), name="listener sweep")
    with _signals_heard() as told_to_end:
        try:
            started(_address_of(server))
            await told_to_end.acquire()
        finally:
            server.close()
            try:
                shutdown.begin()
                await _wind_down(guard, told_to_end, shutdown.interrupt)
            finally:
                sweeping.cancel()


def uvicorn_config(app: Application, limits: ListenerLimits) -> Config:
    config = Config(
        app,
        interface="asgi3",
        lifespan="off",
        ws="none",
        workers=1,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        access_log=False,
        log_config=None,
        # At a lower level uvicorn logs every malformed request, so that a peer could fill a disk.
        log_level="error",
        timeout_keep_alive=math.ceil(limits.keep_alive.total_seconds()),
    )
    config.load()
    return config


def _address_of(server: asyncio.Server) -> str:
    host, port, *_ = server.sockets[0].getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def _signals_heard() -> Generator[asyncio.Semaphore]:
    """Yield a semaphore that each SIGTERM or SIGINT releases, where signals are available."""
    told = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()
    heard: list[signal.Signals] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, told.release)
        except (ValueError, RuntimeError, NotImplementedError):
            break  # not the main thread, or a platform without signals: the caller cancels instead
        heard.append(number)
    try:
        yield told
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


async def _wind_down(
    guard: ListenerGuard, told_to_end: asyncio.Semaphore, interrupt: Callable[[], None]
) -> None:
    """Let open requests finish within the grace period. A second signal or cancellation ends it."""
    connections, tasks = guard.state.connections, guard.state.tasks
    try:
        for connection in list(connections):
            connection.shutdown()
        if connections:
            guard.emptied.clear()
            impatience = asyncio.ensure_future(told_to_end.acquire())
            emptied = asyncio.ensure_future(guard.emptied.wait())
            try:
                await asyncio.wait(
                    (emptied, impatience),
                    timeout=guard.limits.grace.total_seconds(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                emptied.cancel()
                impatience.cancel()
    finally:
        interrupt()
        if connections:
            # The last answers must still be written, some of them after they are on disk.
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await guard.emptied.wait()
        for connection in list(connections):
            connection.transport.abort()
        # An application that notices the disconnection ends by itself. The others are cancelled.
        if tasks:
            await asyncio.wait(list(tasks), timeout=LAST_WORDS_SECONDS)
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(list(tasks), timeout=LAST_WORDS_SECONDS)
