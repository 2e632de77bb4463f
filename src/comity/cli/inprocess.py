"""A gateway for one command: started in a thread of this process, asked, and ended with it."""

import asyncio
import os
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from comity.adapters import log_lines
from comity.app.assembly import assembled
from comity.cli.asking import Gateway
from comity.cli.gateway_records import new_token
from comity.cli.gateway_url import running_gateway
from comity.config import ServerSettings, Settings, Source
from comity.rules.names import SEPARATOR
from comity.surfaces.listener import event_loop, listen

type Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

config_option: Final[Decorator] = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    is_eager=True,
    help="Ask the gateway of this file; where none runs, start its servers for the purpose.",
)


@contextmanager
def asked_gateway(
    url: str, config: Path | None, wanted: Callable[[ServerSettings], bool]
) -> Generator[Gateway]:
    """The gateway at the address; or, where none runs with a file, one of its own for it."""
    running = None if config is None else running_gateway(config)
    if config is None or running is not None:
        yield Gateway(url if running is None else running.url)
        return
    found = Source(Path.cwd(), Path.home(), os.environ, config).find()
    with gateway_before(found.settings, wanted) as gateway:
        yield gateway


@contextmanager
def gateway_before(
    settings: Settings, wanted: Callable[[ServerSettings], bool]
) -> Generator[Gateway]:
    """A gateway before the wanted servers of these settings, once each was tried."""
    log_lines.configure("text", os.environ.get("LOG_LEVEL", "ERROR"))
    chosen = tuple(server for server in settings.servers if not server.disabled and wanted(server))
    # Whoever may start the servers of a file is its local user.
    mine = replace(settings, host="127.0.0.1", port=0, servers=chosen, identity_mode="local")
    token = new_token()
    with _running(mine, token) as address:
        yield Gateway(address, token=token)


def may_hold(server: ServerSettings, tool: str) -> bool:
    """Whether a tool of that name may be this server's: the others need not be started for it."""
    return SEPARATOR not in tool or tool.startswith(server.id + SEPARATOR)


@contextmanager
def _running(settings: Settings, token: str) -> Generator[str]:
    house = _House(settings, token)
    with ThreadPoolExecutor(1, "gateway") as threads:
        begun: Future[str] = Future()
        ended = threads.submit(house.run, begun)
        ended.add_done_callback(lambda _: begun.cancel())
        try:
            wait((begun, ended), return_when=FIRST_COMPLETED)
            if ended.done():
                ended.result()
            yield begun.result()
        finally:
            house.end()


class _House:
    """A gateway on a loop of its own, from its first breath to its last."""

    def __init__(self, settings: Settings, token: str) -> None:
        self._settings = settings
        self._token = token
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None

    def run(self, begun: "Future[str]") -> str:
        """Serve until told to end; `begun` has the address once every server has been tried."""
        with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(self._serve(begun))
        return "ended"

    def end(self) -> None:
        if self._loop is not None and self._serving is not None:
            # It may have ended by itself in this very moment, and its loop with it.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._serving.cancel)

    async def _serve(self, begun: "Future[str]") -> None:
        self._loop = asyncio.get_running_loop()
        self._serving = asyncio.current_task()
        settings = self._settings
        async with assembled(settings, operator_token=self._token) as parts:
            await parts.servers.first_tries(settings.start_deadline + timedelta(seconds=5))

            def listening(origin: str) -> None:
                parts.asking.listens_at(origin)
                begun.set_result(origin)

            await listen(parts.gateway, settings.host, settings.port, started=listening)
