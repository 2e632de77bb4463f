"""Servers over scripted carriers, stopped again whatever happens."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from comity.catalog.catalog import Catalog
from comity.mcp.mgp import ServerLifecycleState
from comity.servers.connections import BOTH_ERAS, ConnectionOptions
from comity.servers.lifecycle import HealthCheckSettings, RestartRules
from comity.servers.service import ServerService
from comity.servers.supervisor import ServerOptions, ServerTransition, UpstreamServer
from comity.toolkit.resilience import RetrySchedule
from tests.support.carriers import AnySchema, Params, Script, until

AT_ONCE = RetrySchedule(first=timedelta(0), max_delay=timedelta(0))
LATER = RetrySchedule(first=timedelta(hours=1), max_delay=timedelta(hours=1))


ENDLESSLY = RestartRules(max_restarts=None)
NEVER_ASKED = HealthCheckSettings(interval=timedelta(0))


def options(
    start_ms: int = 5000,
    backoff: RetrySchedule = LATER,
    own_process: bool = False,
    restarts: RestartRules = ENDLESSLY,
    probing: HealthCheckSettings = NEVER_ASKED,
    drain_ms: int = 5000,
) -> ServerOptions:
    links = ConnectionOptions(BOTH_ERAS, own_process, timedelta(milliseconds=start_ms), backoff)
    return ServerOptions(links, restarts, probing, timedelta(milliseconds=drain_ms))


class House:
    def __init__(self) -> None:
        self.catalog = Catalog()
        self.servers = ServerService(self.catalog, AnySchema())
        self.steps: list[ServerTransition] = []
        self.servers.watch(self.steps.append)

    @property
    def states(self) -> list[str]:
        """Every state that a server came to, in order."""
        return [str(step.state) for step in self.steps]

    def add(self, name: str, script: Script, how: ServerOptions | None = None) -> UpstreamServer:
        return self.servers.add(name, script, how or options())


@asynccontextmanager
async def standing() -> AsyncGenerator[House]:
    house = House()
    try:
        yield house
    finally:
        async with asyncio.timeout(10):
            await house.servers.stop()


async def connected(
    house: House, script: Script, how: ServerOptions | None = None
) -> UpstreamServer:
    server = house.add("srv", script, how)
    house.servers.start()
    await until(lambda: server.state is ServerLifecycleState.CONNECTED)
    return server


def tools(*names: str) -> Params:
    return {"tools": [{"name": name} for name in names]}
