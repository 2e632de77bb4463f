"""What a carrier tells of a server that fails as a whole, and of one that left in peace."""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from comity.adapters.upstream.command import Command
from comity.adapters.upstream.http import HttpReach
from comity.adapters.upstream.pool import Pool
from comity.adapters.upstream.stdio import StdioReach
from comity.ports import Carrier
from comity.wire import jsonrpc
from comity.wire.mcp import Era
from tests.adapters.hearer import Hearer
from tests.interop.processes import free_port
from tests.surfaces.upstream import Exchange, Upstream, encode, scripted


@asynccontextmanager
async def reaching(url: str) -> AsyncGenerator[tuple[Carrier, Hearer]]:
    pool, hearer = Pool(), Hearer()
    carrier = HttpReach(pool, url, {}).carrier(Era.HANDSHAKE)
    await carrier.open(hearer)
    try:
        yield carrier, hearer
    finally:
        await carrier.close()
        await pool.close()


def ask(carrier: Carrier) -> None:
    carrier.send(jsonrpc.request(1, "tools/call", {"name": "look"}), 1)


async def test_a_server_that_cannot_be_reached_falters_in_the_call() -> None:
    async with reaching(f"http://127.0.0.1:{free_port()}/mcp") as (carrier, hearer):
        ask(carrier)
        assert "cannot be reached" in await hearer.ending(1)
        ((why, in_a_call),) = hearer.falterings
        assert in_a_call
        assert "cannot be reached" in why


async def test_a_server_that_hangs_up_instead_of_answering_falters() -> None:
    async with scripted() as server, reaching(server.url) as (carrier, hearer):

        @server.act("look")
        async def hang_up(exchange: Exchange) -> None:
            exchange.hang_up()

        ask(carrier)
        await hearer.ending(1)
        assert [in_a_call for _, in_a_call in hearer.falterings] == [True]


def answering(server: Upstream, status: int, body: bytes = b"") -> None:
    @server.act("look")
    async def respond(exchange: Exchange) -> None:
        await exchange.respond(status, body)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_an_error_of_the_whole_server_is_a_faltering(status: int) -> None:
    async with scripted() as server, reaching(server.url) as (carrier, hearer):
        answering(server, status, b"<html>Bad Gateway</html>")
        ask(carrier)
        assert str(status) in await hearer.ending(1)
        ((why, in_a_call),) = hearer.falterings
        assert (str(status) in why, in_a_call) == (True, True)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429])
async def test_a_refusal_is_none(status: int) -> None:
    async with scripted() as server, reaching(server.url) as (carrier, hearer):
        answering(server, status)
        ask(carrier)
        await hearer.ending(1)
        assert hearer.falterings == []


async def test_an_error_that_answers_the_call_is_none() -> None:
    async with scripted() as server, reaching(server.url) as (carrier, hearer):
        answering(server, 500, encode({"id": 1, "error": {"code": -32603, "message": "oops"}}))
        ask(carrier)
        await hearer.answer(1)
        assert hearer.falterings == []


async def test_a_standing_stream_that_breaks_is_a_faltering_beside_any_call() -> None:
    async with scripted() as server, reaching(server.url) as (carrier, hearer):

        @server.act("GET")
        async def break_off(exchange: Exchange) -> None:
            await exchange.say(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
            exchange.writer.transport.abort()

        carrier.send(jsonrpc.request(1, "initialize", {"protocolVersion": "2025-11-25"}), 1)
        await hearer.answer(1)
        carrier.listen()
        await hearer.until(lambda: hearer.falterings)
        assert not hearer.falterings[0][1]


@pytest.mark.parametrize(
    ("code", "well"),
    [("pass", True), ("raise SystemExit(3)", False), ("import os; os.kill(os.getpid(), 9)", False)],
    ids=["status 0", "status 3", "a signal"],
)
async def test_only_who_exits_with_status_zero_has_left_in_peace(code: str, well: bool) -> None:
    command = Command((sys.executable, "-S", "-c", code), {})
    carrier, hearer = StdioReach("child", command).carrier(Era.HANDSHAKE), Hearer()
    await carrier.open(hearer)
    await hearer.until(lambda: hearer.closings)
    assert carrier.ended_well is well
    await carrier.close()
