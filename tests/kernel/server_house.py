"""Servers over scripted carriers, stopped again whatever happens."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from comity.kernel.catalog import Catalog
from comity.kernel.reached import BOTH_ERAS, LinkOptions
from comity.kernel.servers import Server, ServerOptions, Servers, Transition
from comity.rules.backoff import Backoff
from comity.rules.health import Probing
from comity.rules.restarts import Restarts
from comity.wire.lifecycle import State
from tests.kernel.carriers import (
    AnySchema,
    Params,
    Script,
    until,
)

AT_ONCE = Backoff(first=timedelta(0), longest=timedelta(0))
LATER = Backoff(first=timedelta(hours=1), longest=timedelta(hours=1))


ENDLESSLY = Restarts(most=None)
NEVER_ASKED = Probing(every=timedelta(0))


def options(
    start_ms: int = 5000,
    backoff: Backoff = LATER,
    own_process: bool = False,
    restarts: Restarts = ENDLESSLY,
    probing: Probing = NEVER_ASKED,
    drain_ms: int = 5000,
) -> ServerOptions:
    links = LinkOptions(BOTH_ERAS, own_process, timedelta(milliseconds=start_ms), backoff)
    return ServerOptions(links, restarts, probing, timedelta(milliseconds=drain_ms))


class House:
    def __init__(self) -> None:
        self.catalog = Catalog()
        self.servers = Servers(self.catalog, AnySchema())
        self.steps: list[Transition] = []
        self.servers.watch(self.steps.append)

    @property
    def states(self) -> list[str]:
        """Every state that a server came to, in order."""
        return [str(step.state) for step in self.steps]

    def add(self, name: str, script: Script, how: ServerOptions | None = None) -> Server:
        return self.servers.add(name, script, how or options())


@asynccontextmanager
async def standing() -> AsyncGenerator[House]:
    house = House()
    try:
        yield house
    finally:
        async with asyncio.timeout(10):
            await house.servers.stop()


async def connected(house: House, script: Script, how: ServerOptions | None = None) -> Server:
    server = house.add("srv", script, how)
    house.servers.start()
    await until(lambda: server.state is State.CONNECTED)
    return server


def tools(*names: str) -> Params:
    return {"tools": [{"name": name} for name in names]}
