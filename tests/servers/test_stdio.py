"""The stdio transport with a real process, and servers that send too much."""

import asyncio
import json
import logging
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from comity.errors import Unavailable
from comity.mcp import jsonrpc
from comity.mcp.protocol import UNKNOWN, Era
from comity.servers.process.process import ServerCommand
from comity.servers.transports.stdio import StdioTransportFactory
from comity.sessions.upstream import UpstreamTransport
from comity.toolkit.resilience import BURST, EACH_SECOND, FEE
from tests.servers.hearer import SECONDS, Hearer
from tests.support.cases import loop_over

pytestmark = pytest.mark.integration


def reach_of(code: str, env: dict[str, str]) -> StdioTransportFactory:
    return StdioTransportFactory("child", ServerCommand((sys.executable, "-S", "-c", code), env))


@asynccontextmanager
async def running(code: str, **env: str) -> AsyncGenerator[tuple[UpstreamTransport, Hearer]]:
    carrier = reach_of(code, env).create_transport(Era.HANDSHAKE)
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
        frame = jsonrpc.decode_frame(
            b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":\r\n "b"}}'
        )
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
        assert any("no licence" in hint for hint in carrier.stderr_lines())
        assert not any("canary" in hint for hint in carrier.stderr_lines())
        with pytest.raises(Unavailable):
            carrier.send(jsonrpc.make_notification("late"), UNKNOWN)


async def test_closing_ends_the_process_and_tells_nobody() -> None:
    async with running(ECHO) as (carrier, hearer):
        carrier.send(jsonrpc.make_notification("here"), UNKNOWN)
        await hearer.until(lambda: hearer.messages)
        async with asyncio.timeout(SECONDS):
            await carrier.close()
        with pytest.raises(Unavailable):
            carrier.send(jsonrpc.make_notification("late"), UNKNOWN)


async def test_nothing_can_be_sent_before_the_start() -> None:
    carrier = reach_of(ECHO, {}).create_transport(Era.HANDSHAKE)
    with pytest.raises(Unavailable, match="has not been started"):
        carrier.send(jsonrpc.make_notification("early"), UNKNOWN)
    assert list(carrier.stderr_lines()) == []
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


@loop_over(
    ("code", "well"),
    [("pass", True), ("raise SystemExit(3)", False), ("import os; os.kill(os.getpid(), 9)", False)],
    ids=["status 0", "status 3", "a signal"],
)
async def test_only_exit_status_zero_is_a_clean_end(code: str, well: bool) -> None:
    async with running(code) as (carrier, hearer):
        await hearer.until(lambda: hearer.closings)
        assert carrier.has_exited_cleanly is well


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


def _pipe(carrier: UpstreamTransport, name: str) -> Any:
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
        # It goes on after a pause.
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
        assert not _pipe(carrier, "_stdout").byte_budget.is_exhausted


async def test_the_last_words_of_a_flood_are_heard_without_a_rest() -> None:
    async with running(LAST_WORDS) as (_, hearer):
        await hearer.until(lambda: hearer.closings)
        assert hearer.messages[-1][0]["method"] == "the/last"
        assert len(hearer.messages) == 20_001
