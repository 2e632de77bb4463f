"""Fixtures on virtual time: a gateway for each module, and a server and a client for each test.

`tests.kit.marks` has the three lines of a module that uses them.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from tests.kit.clients import Client
from tests.kit.gateway import TestGateway, running_gateway
from tests.kit.servers import ScriptedServer

type GetGateway = Callable[[], Awaitable[TestGateway]]


@pytest.fixture(scope="module")
def gateway_settings() -> dict[str, Any]:
    """What a module gives to `running_gateway`, where it overrides this."""
    return {}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def usable_gateway(gateway_settings: dict[str, Any]) -> AsyncGenerator[GetGateway]:
    async with AsyncExitStack() as stack:
        gateways: list[TestGateway] = []

        async def get_gateway() -> TestGateway:
            if not gateways or gateways[-1].is_spoiled:
                running = running_gateway(**gateway_settings)
                gateways.append(await stack.enter_async_context(running))
            return gateways[-1]

        yield get_gateway


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(usable_gateway: GetGateway) -> TestGateway:
    """The gateway of the module, or a new one where a test before has spoiled it."""
    return await usable_gateway()


@pytest_asyncio.fixture(loop_scope="module")
async def server(
    gateway: TestGateway, request: pytest.FixtureRequest
) -> AsyncGenerator[ScriptedServer]:
    """A modern server with one tool, `t`. At the end of the test every call has to be settled."""
    server = ScriptedServer(process=getattr(request, "param", "http") == "stdio")
    await gateway.add(server)
    yield server
    await gateway.becomes_quiet()
    await gateway.remove(server)


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: TestGateway, server: ScriptedServer) -> Client:
    """A legacy client of that server. It declares nothing."""
    return await gateway.connect(to=server)
