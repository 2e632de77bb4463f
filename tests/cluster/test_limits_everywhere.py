"""One limit for three gateways on NATS and PostgreSQL, with a kill and a restart."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from tests.cluster.nats_cluster import NatsCluster
from tests.cluster.nodes import SECONDS, Node, Said, Setting, modern, some_nodes
from tests.cluster.postgres import Postgres

pytestmark = pytest.mark.timeout(300)

CALLERS = 6
"""How many calls each node has in progress at a time."""

RATES = """
[[limits.rates]]
target = "local/echo"
rate = "400/d"
[[limits.rates]]
target = "local/now"
quota = "1000/d"
"""
ARGUMENTS = {"echo": {"message": "a"}, "now": {}}


async def call(http: aiohttp.ClientSession, node: Node, tool: str) -> Said:
    params = {"name": f"local__{tool}", "arguments": ARGUMENTS[tool]}
    return await modern(http, node.origin, "tools/call", params)


async def count_passed(http: aiohttp.ClientSession, node: Node, tool: str, most: int) -> int:
    """Call a tool until so many calls passed, or a node refuses each of the callers."""
    passed = 0

    async def keep_calling() -> None:
        nonlocal passed
        while passed < most:
            said = await call(http, node, tool)
            if not said.text:
                limit = said.refusal["details"]["limit"]
                assert limit == (400 if tool == "echo" else 1000)
                return
            passed += 1

    await asyncio.gather(*(keep_calling() for _ in range(CALLERS)))
    return passed


async def count_at_all(
    http: aiohttp.ClientSession, nodes: Sequence[Node], tool: str, most: int
) -> int:
    async with asyncio.timeout(SECONDS):
        return sum(await asyncio.gather(*(count_passed(http, node, tool, most) for node in nodes)))


async def test_three_nodes_count_together_and_a_dead_one_loses_its_share_at_most(
    nats: NatsCluster, postgres: Postgres, tmp_path: Path
) -> None:
    setting = Setting(tmp_path, nats.urls, postgres.url, tables=RATES)
    async with aiohttp.ClientSession() as http:
        with some_nodes(setting, "a", "b", "c") as nodes:
            passed = await count_at_all(http, nodes, "echo", 1000)
            assert 392 <= passed <= 408
            before = await count_at_all(http, nodes, "now", 101)
            nodes[0].kill()
            after = await count_at_all(http, nodes[1:], "now", 1000)
            # Each node may hold the rest of a share of 5, and the dead one never returns it.
            assert 980 <= before + after <= 1000
        with some_nodes(setting, "b") as (node,):
            # The shares that the others returned when they stopped, and no more.
            assert passed + await count_passed(http, node, "echo", 1000) <= 408
            said = await call(http, node, "echo")
    assert said.refusal["details"]["limit"] == 400
