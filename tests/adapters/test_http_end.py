"""How a session with an HTTP server is ended."""

import asyncio

import pytest

from comity.wire import jsonrpc
from comity.wire.mcp import UNKNOWN
from tests.adapters.hearer import SECONDS
from tests.adapters.test_http import reaching
from tests.surfaces.upstream import Exchange


async def test_a_session_is_ended_only_when_what_was_told_in_it_has_been_taken() -> None:
    taken = asyncio.Event()
    async with reaching() as scene:
        await scene.greet()

        @scene.server.act("notifications/cancelled")
        async def hesitate(exchange: Exchange) -> None:
            await taken.wait()
            await exchange.respond(202, b"")

        scene.carrier.send(jsonrpc.notification("notifications/cancelled"), UNKNOWN)
        await scene.server.arrival("notifications/cancelled")
        closing = asyncio.ensure_future(scene.carrier.close())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await scene.server.arrival("DELETE")
        taken.set()
        async with asyncio.timeout(SECONDS):
            await scene.server.arrival("DELETE")
            await closing
