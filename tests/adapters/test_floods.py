"""A server that says far more than anybody asked for is read slowly; its answers are not held."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from comity.adapters.upstream.http import HttpReach
from comity.adapters.upstream.pool import Pool
from comity.ports import Carrier
from comity.rules.allowance import BURST, EACH_SECOND, FEE
from comity.wire import jsonrpc
from comity.wire.mcp import Era
from tests.adapters.hearer import SECONDS, Hearer
from tests.adapters.test_stdio import running
from tests.surfaces.upstream import Exchange, encode, scripted

NOTE = {"method": "notifications/message", "params": {"level": "info"}}
PIECE = 64 * 1024
"""What one read of a pipe can bring beyond the measure."""

FLOOD = """
import os
flood = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}\\n' * 500
while True:
    os.write(%d, flood)
"""
ANSWERS = """
import sys
for number in range(40):
    text = "x" * 2**20
    sys.stdout.write('{"jsonrpc":"2.0","id":%d,"result":"%s"}\\n' % (number, text))
    sys.stdout.flush()
input()
"""
LAST_WORDS = """
import os
os.write(1, b'{"jsonrpc":"2.0","method":"notifications/message"}\\n' * 20000)
os.write(1, b'{"jsonrpc":"2.0","method":"the/last"}\\n')
"""


def most_heard(seconds: float) -> float:
    """How many notices can have been heard in that time, whatever the speed of the machine."""
    return (BURST + EACH_SECOND * seconds) / FEE + PIECE / 50


def _pipe(carrier: Carrier, name: str) -> Any:
    """One of the outputs of the carrier's process."""
    return getattr(carrier._process, name)  # type: ignore[attr-defined]


async def test_a_flood_on_stdout_is_heard_no_faster_than_it_may_be() -> None:
    began = time.monotonic()
    async with running(FLOOD % 1) as (_, hearer):
        await hearer.until(lambda: len(hearer.messages) > BURST / FEE / 2)
        async with asyncio.timeout(SECONDS):
            while time.monotonic() < began + 1:
                await asyncio.sleep(0.05)
        assert len(hearer.messages) <= most_heard(time.monotonic() - began)


async def test_a_flood_that_was_paused_is_heard_on() -> None:
    async with running(FLOOD % 1) as (_, hearer):
        await hearer.until(lambda: len(hearer.messages) > BURST / FEE * 1.5)


async def test_a_flood_on_stderr_is_paused_and_heard_on() -> None:
    code = "import os\nwhile True: os.write(2, b'x' * 60000 + b'\\n')"
    async with running(code) as (carrier, _):
        transport = _pipe(carrier, "_stderr").transport
        async with asyncio.timeout(SECONDS):
            for is_reading in (False, True, False):
                while transport.is_reading() is not is_reading:
                    await asyncio.sleep(0)


async def test_answers_of_any_size_are_not_held_up() -> None:
    async with running(ANSWERS) as (carrier, hearer):
        await hearer.until(lambda: len(hearer.messages) == 40)
        assert not _pipe(carrier, "_stdout").allowance.is_spent


async def test_the_last_words_of_a_flood_are_heard_without_a_rest() -> None:
    async with running(LAST_WORDS) as (_, hearer):
        await hearer.until(lambda: hearer.closings)
        assert hearer.messages[-1][0]["method"] == "the/last"
        assert len(hearer.messages) == 20_001


@asynccontextmanager
async def listening(flood: bytes) -> AsyncGenerator[Hearer]:
    """A carrier whose server pours into the standing stream."""
    async with scripted() as server:

        @server.act("GET")
        async def pour(exchange: Exchange) -> None:
            await exchange.stream()
            while True:
                await exchange.say(flood)

        pool, hearer = Pool(), Hearer()
        carrier = HttpReach(pool, server.url, {}).carrier(Era.HANDSHAKE)
        await carrier.open(hearer)
        carrier.send(jsonrpc.request(1, "initialize", {"protocolVersion": "2025-11-25"}), 1)
        await hearer.answer(1)
        carrier.speaks("2025-11-25")
        carrier.listen()
        try:
            yield hearer
        finally:
            await carrier.close()
            await pool.close()


async def test_a_flood_on_a_standing_stream_is_heard_no_faster_than_it_may_be() -> None:
    event = b"data: " + encode(NOTE) + b"\n\n"
    began = time.monotonic()
    async with listening(event * 500) as hearer:
        await hearer.until(lambda: len(hearer.messages) > BURST / FEE / 2)
        async with asyncio.timeout(SECONDS):
            while time.monotonic() < began + 1:
                await asyncio.sleep(0.05)
        # A socket may bring more at once than a pipe.
        assert len(hearer.messages) <= most_heard(time.monotonic() - began) + 4 * PIECE / 50
