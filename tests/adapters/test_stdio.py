"""The stdio carrier with a real process on its pipes."""

import asyncio
import json
import logging
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from comity.adapters.upstream.command import Command
from comity.adapters.upstream.stdio import StdioReach
from comity.ports import Carrier
from comity.wire import jsonrpc
from comity.wire.errors import Unavailable
from comity.wire.mcp import UNKNOWN, Era
from tests.adapters.hearer import SECONDS, Hearer


def reach_of(code: str, env: dict[str, str]) -> StdioReach:
    return StdioReach("child", Command((sys.executable, "-S", "-c", code), env))


@asynccontextmanager
async def running(code: str, **env: str) -> AsyncGenerator[tuple[Carrier, Hearer]]:
    carrier = reach_of(code, env).carrier(Era.HANDSHAKE)
    hearer = Hearer()
    await carrier.open(hearer)
    try:
        yield carrier, hearer
    finally:
        async with asyncio.timeout(SECONDS):
            await carrier.close()


ECHO = """
import sys
for line in sys.stdin:
    sys.stdout.write(line)
    sys.stdout.flush()
"""


async def test_a_message_is_one_line_each_way() -> None:
    async with running(ECHO) as (carrier, hearer):
        frame = jsonrpc.decode(b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":\r\n "b"}}')
        carrier.send(frame, UNKNOWN)
        ((heard, stream, status),) = await hearer.until(lambda: hearer.messages)
        assert heard == {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"a": "b"}}
        assert (stream, status) == (UNKNOWN, 200)


async def test_what_a_server_prints_that_is_no_message_is_passed_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    code = """
print("Welcome, canary!")
print()
print("[]")
print('{"jsonrpc":"2.0","method":"ready"}', flush=True)
input()
"""
    async with running(code) as (_, hearer):
        await hearer.until(lambda: hearer.messages)
        assert [frame["method"] for frame, _, _ in hearer.messages] == ["ready"]
    assert "canary" not in caplog.text


async def test_a_line_over_the_limit_is_dropped_and_the_next_one_heard() -> None:
    code = """
import sys
sys.stdout.write('{"x":"' + "y" * (5 * 2**20) + '"}\\n{"jsonrpc":"2.0","method":"next"}\\n')
sys.stdout.flush()
input()
"""
    async with running(code) as (_, hearer):
        await hearer.until(lambda: hearer.messages)
        assert [frame["method"] for frame, _, _ in hearer.messages] == ["next"]


async def test_a_server_that_dies_is_told_of_once_with_its_last_words() -> None:
    code = "import sys; sys.stderr.write('no licence: canary\\n'); sys.exit(7)"
    async with running(code, SECRET="canary") as (carrier, hearer):
        (because,) = await hearer.until(lambda: hearer.closings)
        assert "7" in because
        assert any("no licence" in hint for hint in carrier.hints())
        assert not any("canary" in hint for hint in carrier.hints())
        with pytest.raises(Unavailable):
            carrier.send(jsonrpc.notification("late"), UNKNOWN)


async def test_closing_ends_the_process_and_tells_nobody() -> None:
    async with running(ECHO) as (carrier, hearer):
        carrier.send(jsonrpc.notification("here"), UNKNOWN)
        await hearer.until(lambda: hearer.messages)
        async with asyncio.timeout(SECONDS):
            await carrier.close()
        with pytest.raises(Unavailable):
            carrier.send(jsonrpc.notification("late"), UNKNOWN)


async def test_nothing_can_be_sent_before_the_start() -> None:
    carrier = reach_of(ECHO, {}).carrier(Era.HANDSHAKE)
    with pytest.raises(Unavailable, match="has not been started"):
        carrier.send(jsonrpc.notification("early"), UNKNOWN)
    assert list(carrier.hints()) == []
    await carrier.close()


async def test_each_carrier_is_a_process_of_its_own() -> None:
    code = """
import json, os
print(json.dumps({"jsonrpc": "2.0", "method": "pid", "params": {"pid": os.getpid()}}), flush=True)
input()
"""
    pids: set[int] = set()
    for _ in range(2):
        async with running(code) as (_, hearer):
            ((frame, _, _),) = await hearer.until(lambda: hearer.messages)
            pids.add(json.loads(json.dumps(frame))["params"]["pid"])
    assert len(pids) == 2
