"""A temporary gateway in a thread of a CLI command, for as long as the command runs."""

import asyncio
import os
from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from comity.app.settings import Settings
from comity.app.settings_reader import ConfigSource
from comity.cli.api_client import ApiClient, new_token
from comity.http.server import event_loop, run_http_server
from comity.telemetry import logging


@contextmanager
def configured_gateway(
    config: Path | None, is_wanted: Callable[[str], bool]
) -> Generator[ApiClient]:
    """Yield a client of a temporary gateway of this configuration. Raises Misconfigured."""
    found = ConfigSource(Path.cwd(), Path.home(), os.environ, config, needs_trust=True).load()
    with temporary_gateway(found.settings, is_wanted) as gateway:
        yield gateway


@contextmanager
def temporary_gateway(settings: Settings, is_wanted: Callable[[str], bool]) -> Generator[ApiClient]:
    """Yield a client of a temporary gateway with the wanted servers, once each was tried."""
    logging.configure_logging("text", os.environ.get("LOG_LEVEL", "ERROR"))
    chosen = tuple(
        server for server in settings.servers if not server.disabled and is_wanted(server.id)
    )
    # The user who may start the servers of a file is its local user.
    mine = replace(
        settings,
        host="127.0.0.1",
        port=0,
        servers=chosen,
        identity=replace(settings.identity, mode="local"),
    )
    token = new_token()
    with _running(mine, token) as address:
        yield ApiClient(address, token=token)


@contextmanager
def _running(settings: Settings, token: str) -> Generator[str]:
    house = _LocalGatewayRunner(settings, token)
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


class _LocalGatewayRunner:
    """Runs a gateway on its own event loop."""

    def __init__(self, settings: Settings, token: str) -> None:
        self._settings = settings
        self._token = token
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serve_task: asyncio.Task[None] | None = None

    def run(self, url_future: "Future[str]") -> str:
        """Serve until the command ends. `url_future` gets the URL once every server was tried."""
        with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(self._serve(url_future))
        return "ended"

    def end(self) -> None:
        if self._loop is not None and self._serve_task is not None:
            # The gateway may have ended at this moment, and its event loop with it.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._serve_task.cancel)

    async def _serve(self, url_future: "Future[str]") -> None:
        # Imported here because the gateway loads slowly and most commands use a running one.
        from comity.app.gateway import assemble_gateway

        self._loop = asyncio.get_running_loop()
        self._serve_task = asyncio.current_task()
        settings = self._settings
        async with assemble_gateway(settings, operator_token=self._token) as parts:
            await parts.servers.wait_for_first_starts(
                settings.limits.start_timeout + timedelta(seconds=5)
            )

            def listening(origin: str) -> None:
                parts.approval_components.set_origin(origin)
                url_future.set_result(origin)

            await run_http_server(parts.http_app, settings.host, settings.port, started=listening)
