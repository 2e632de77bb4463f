"""One node at its size: 10,000 idle sessions, and 100 servers with 1,000 tools each.

Memory is told per session and per tool and must grow in a straight line; what a call costs must
depend on neither. Cost is the gateway's own processor time, in rounds that alternate with an empty
gateway's, so a busy machine slows both alike and decides nothing.
"""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.pace import at_length
from tests.scale.gateway import (
    Gateway,
    calling,
    cost_of_calls,
    gateway,
    many_servers,
    open_sessions,
)
from tests.support.figures import Tell

pytestmark = pytest.mark.timeout(600)

SESSIONS = (2_500, 5_000, 10_000)
SERVERS = at_length((25, 50, 100), (10, 20, 40))
TOOLS = 1_000
ROUNDS = 15
CALLS = 150
MOST_RATIO = 3.0
"""What looks at each session or tool costs a hundred times more; a busy core, half more."""
STRAIGHT = 1.6
"""How much steeper a straight line may seem in its second half: memory is taken in pieces."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with many_servers(TOOLS) as origin:
        yield origin


def slopes(sizes: Sequence[int], memory: Sequence[int]) -> tuple[float, float]:
    """Bytes for each one more, in the first and in the second half."""
    (one, two, three), (low, middle, high) = sizes, memory
    return (middle - low) / (two - one), (high - middle) / (three - two)


async def ratio(loaded: Gateway, empty: Gateway, door: str, tool: str) -> tuple[float, float]:
    """What a call costs, against the same call through an empty gateway; and its microseconds."""
    async with calling(loaded, door) as (here,), calling(empty, door) as (there,):
        for caller in (here, there):
            await caller.begin_session()
            for _ in range(CALLS):
                await caller.call(tool)
        costs: list[tuple[float, float]] = []
        for _ in range(ROUNDS):
            mine = await cost_of_calls(loaded, here, tool, CALLS)
            costs.append((mine, await cost_of_calls(empty, there, tool, CALLS)))
    middle = statistics.median(mine / other for mine, other in costs)
    return middle, statistics.median(mine for mine, _ in costs) * 1e6


@pytest.mark.parametrize(
    ("door", "tool", "most_bytes"),
    [("/mcp", "server-0__tool-0", 12_000), ("/servers/server-0/mcp", "tool-0", 24_000)],
    ids=["all-servers", "one-server"],
)
async def test_ten_thousand_idle_sessions_cost_memory_alone(
    upstream: str, tmp_path: Path, tell: Tell, door: str, tool: str, most_bytes: int
) -> None:
    with (
        gateway(upstream, 1, tmp_path / "loaded") as loaded,
        gateway(upstream, 1, tmp_path / "empty") as empty,
    ):
        memory: list[int] = []
        opened = 0
        for count in SESSIONS:
            await open_sessions(loaded, door, count - opened)
            opened = count
            memory.append(loaded.memory())
        first, second = slopes(SESSIONS, memory)
        tell(f"{opened} idle sessions at {door}: {second:.0f} bytes each ({first:.0f} before)")
        times, micros = await ratio(loaded, empty, door, tool)
        tell(f"a call beside them takes {micros:.0f} us, {times:.2f} of an empty gateway's")
    assert second <= STRAIGHT * max(first, 1024)
    assert second <= most_bytes
    assert times <= MOST_RATIO


async def test_many_thousand_tools_cost_memory_alone(
    upstream: str, tmp_path: Path, tell: Tell
) -> None:
    memory: list[int] = []
    for servers in SERVERS[:-1]:
        with gateway(upstream, servers, tmp_path / str(servers)) as some:
            memory.append(some.memory())
    with (
        gateway(upstream, SERVERS[-1], tmp_path / "loaded") as loaded,
        gateway(upstream, 1, tmp_path / "empty") as empty,
    ):
        memory.append(loaded.memory())
        first, second = slopes([servers * TOOLS for servers in SERVERS], memory)
        tell(f"{SERVERS[-1] * TOOLS} tools: {second:.0f} bytes each ({first:.0f} before)")
        for door, tool in (("/mcp", "server-0__tool-0"), ("/servers/server-0/mcp", "tool-0")):
            times, micros = await ratio(loaded, empty, door, tool)
            tell(f"a call at {door} takes {micros:.0f} us, {times:.2f} of an empty gateway's")
            assert times <= MOST_RATIO
    assert second <= STRAIGHT * max(first, 256)
    assert second <= 4_000
