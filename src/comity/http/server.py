"""The listening socket: opens it, serves it, and closes it within a time limit."""

import asyncio
import signal
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from comity.errors import Misconfigured
from comity.http.asgi_cycle import Application
from comity.http.connection import HttpServerConnection, ListenerGuard, ListenerLimits

try:
    from uvloop import new_event_loop as event_loop
except ImportError:  # not built for every platform; the standard loop serves as well, only slower
    from asyncio import new_event_loop as event_loop

__all__ = ["ListenerLimits", "event_loop", "run_http_server"]

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
    reuse_port: bool = False,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve `app` until it is cancelled or a SIGTERM or SIGINT arrives.

    `started` receives the address once connections are accepted. With `reuse_port`, other processes
    of this user may listen on the same port, and the kernel spreads the connections over them.
    """
    limits = limits or ListenerLimits()
    guard = ListenerGuard(limits, app, getattr(app, "serve", None))
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(
            lambda: HttpServerConnection(guard),
            host,
            port,
            backlog=2048,
            reuse_port=reuse_port,
            ssl=tls,
            # A client that does not finish its handshake is like one that sends no head.
            ssl_handshake_timeout=None if tls is None else limits.header_time.total_seconds(),
        )
    except (OSError, OverflowError, UnicodeError) as problem:
        raise Misconfigured(
            f"cannot listen on {host} port {port}: {problem}; "
            "choose another with --host and --port, or end the program that holds it"
        ) from problem
    sweeping = loop.create_task(guard.sweep(), name="listener sweep")
    with _signals_heard() as told_to_end:
        try:
            started(_address_of(server, "http" if tls is None else "https"))
            await told_to_end.acquire()
        finally:
            server.close()
            try:
                shutdown.begin()
                await _wind_down(guard, told_to_end, shutdown.interrupt)
            finally:
                sweeping.cancel()


def _address_of(server: asyncio.Server, scheme: str) -> str:
    host, port, *_ = server.sockets[0].getsockname()
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


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
    connections, tasks = guard.connections, guard.tasks
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
