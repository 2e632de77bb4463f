"""The socket that clients arrive at: opened, served, and closed within a bound.

uvicorn's own server polls ten times a second, exits the process when a port is taken and waits
for open streams without limit; only its protocol is used here.
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

from comity.surfaces.connection import Connection
from comity.surfaces.guard import Guard, Limits
from comity.wire.errors import Misconfigured

try:
    from uvloop import new_event_loop as event_loop
except ImportError:  # not built for every platform; the standard loop serves as well, only slower
    from asyncio import new_event_loop as event_loop

__all__ = ["Limits", "event_loop", "listen"]

type Application = Callable[..., Any]

LAST_WORDS_SECONDS = 1.0


def _nothing() -> None: ...


@dataclass(frozen=True, slots=True)
class Shutdown:
    """What a gateway does as it ends.

    `begin` is called first, so that long streams are finished instead of cut. `interrupt` is called
    after the grace: it answers what is still open, before connections are closed.
    """

    begin: Callable[[], None] = _nothing
    interrupt: Callable[[], None] = _nothing


_AS_IT_IS = Shutdown()


async def listen(
    app: Application,
    host: str,
    port: int,
    *,
    limits: Limits | None = None,
    started: Callable[[str], None],
    shutdown: Shutdown = _AS_IT_IS,
) -> None:
    """Serve `app` until cancelled or told by SIGTERM or SIGINT to end.

    `started` receives the address once connections are accepted.
    """
    limits = limits or Limits()
    config = _uvicorn_config(app, limits)
    guard = Guard(limits, ServerState(), getattr(app, "serve", None))
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(
            lambda: Connection(config, guard), host, port, backlog=2048
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


def _uvicorn_config(app: Application, limits: Limits) -> Config:
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
        # Below this uvicorn writes one line for every malformed request: a peer could fill a disk.
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
    """A semaphore released by each SIGTERM or SIGINT; silent where signals cannot be heard."""
    told = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()
    heard: list[signal.Signals] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, told.release)
        except (ValueError, RuntimeError, NotImplementedError):
            break  # not the main thread, or a platform without them: the caller cancels instead
        heard.append(number)
    try:
        yield told
    finally:
        for number in heard:
            loop.remove_signal_handler(number)


async def _wind_down(
    guard: Guard, told_to_end: asyncio.Semaphore, interrupt: Callable[[], None]
) -> None:
    """Let open requests finish within the grace; a second signal, or cancellation, ends it."""
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
            # What was just answered has to be written, and some of it to be on disk before.
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await guard.emptied.wait()
        for connection in list(connections):
            connection.transport.abort()
        # An application that heeds the disconnection ends by itself; any other is cancelled.
        if tasks:
            await asyncio.wait(list(tasks), timeout=LAST_WORDS_SECONDS)
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(list(tasks), timeout=LAST_WORDS_SECONDS)
