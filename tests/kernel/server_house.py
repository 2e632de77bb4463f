"""Servers over scripted carriers, stopped again whatever happens."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from comity.kernel.catalog import Catalog
from comity.kernel.servers import Server, ServerOptions, Servers
from comity.rules.backoff import Backoff
from comity.wire.lifecycle import State
from tests.kernel.carriers import (
    AnySchema,
    Params,
    Script,
    until,
)

AT_ONCE = Backoff(first=timedelta(0), longest=timedelta(0))
LATER = Backoff(first=timedelta(hours=1), longest=timedelta(hours=1))


def options(
    start_ms: int = 5000, backoff: Backoff = LATER, own_process: bool = False
) -> ServerOptions:
    return ServerOptions(own_process, timedelta(milliseconds=start_ms), backoff)


class House:
    def __init__(self) -> None:
        self.catalog = Catalog()
        self.servers = Servers(self.catalog, AnySchema())

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
