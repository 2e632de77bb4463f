"""A budget that three nodes draw on at once: 33 requesters, and not one token beyond it."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from comity.app.records import RecordStores, open_store
from comity.inference.model import BudgetAccount
from tests.cluster.nats_cluster import NatsCluster
from tests.cluster.nodes import Node, Setting, modern, some_nodes
from tests.cluster.postgres import Postgres
from tests.interop.peers import ROOT
from tests.live.model_server import ModelServer, serving
from tests.live.model_speech import Asked, Said
from tests.pace import at_length, here

pytestmark = pytest.mark.timeout(900)

REQUESTERS = 33
WORDS = "some words to think about "
SAYS = 200
"""Tokens that a model may say, and in the worst case does."""

SETS = {"memory.x": {"description": "asks", "uses": ["inferenceRequest"]}}


@dataclass(frozen=True)
class Spenders(Setting):
    """Nodes that each run a server which asks a model."""

    model: str = ""
    tokens: int = 0

    def text(self, name: str, nats: str) -> str:
        sets = json.dumps(json.dumps(SETS))
        return f"""
[store]
url = "{self.store}"
[cluster]
url = "{nats}"
node = "{name}"
[inference]
timeout = "10m"
[[models]]
id = "fast"
api = "openai"
url = "{self.model}/v1"
[[budgets]]
principal = "server:*"
tokens_per_day = {self.tokens}
on_exceeded = "refuse"
[[servers]]
id = "asker"
command = "{sys.executable}"
args = ["-m", "tests.live.pushing_server"]
cwd = "{ROOT}"
env = {{ PUSHING_SETS = {sets} }}
[servers.live]
enabled = ["memory.*"]
"""


@pytest.fixture
async def records(postgres: Postgres) -> AsyncGenerator[RecordStores]:
    opened = open_store(postgres.url)
    await opened.open()
    yield opened
    await opened.close()


async def asked(http: aiohttp.ClientSession, node: Node, count: int) -> list[dict[str, Any]]:
    """What one node answers to so many requests of its server at once."""
    params = {
        "featureSet": "memory.x",
        "messages": [{"role": "user", "content": WORDS}],
        "preferences": {"maxTokens": SAYS},
    }
    frames = [{"method": "inference/request", "params": params}] * count
    async with asyncio.timeout(here(120)):
        arguments = {"name": "asker__ask", "arguments": {"frames": frames}}
        said = await modern(http, node.origin, "tools/call", arguments)
    return json.loads(said.text)


async def account_of(records: RecordStores) -> BudgetAccount:
    (account,) = await records.budgets.accounts(datetime.now(UTC).date())
    return account


async def everybody(
    http: aiohttp.ClientSession, nodes: Sequence[Node], each: int = REQUESTERS // 3
) -> list[dict[str, Any]]:
    answers = await asyncio.gather(*(asked(http, node, each) for node in nodes))
    return [answer for of_node in answers for answer in of_node]


def greedy(request: Asked) -> Said:
    """Says as much as it may, and reads as many tokens as the words can be."""
    return Said("x", usage=(len(WORDS) // 3, int(request.body["max_tokens"])))


async def all_at_once(models: ModelServer, count: int) -> None:
    """Until so many are asked and none is answered; then all are."""
    async with asyncio.timeout(here(120)):
        while models.underway < count:
            await asyncio.sleep(0.01)
    models.release()


@pytest.mark.requirement("MCPL-13.1-mitigate")
async def test_a_budget_is_not_exceeded_by_many_requesters_on_three_nodes(
    nats: NatsCluster, postgres: Postgres, records: RecordStores, tmp_path: Path
) -> None:
    # Room for the first round, and for some more.
    limit = REQUESTERS * 300
    held = [Said("x", hold=True, usage=(8, SAYS)) for _ in range(REQUESTERS)]
    async with serving(*held) as models, aiohttp.ClientSession() as http:
        setting = Spenders(tmp_path, nats.urls, postgres.url, models.url, limit)
        with some_nodes(setting, "a", "b", "c") as nodes:
            first = asyncio.ensure_future(everybody(http, nodes))
            await all_at_once(models, REQUESTERS)
            answers = await first
            assert [each for each in answers if "error" in each] == []
            refused, most = 0, at_length(40, 15)
            models.answer = greedy
            for _ in range(most):
                answers = await everybody(http, nodes)
                refused = sum("error" in each for each in answers)
                if refused == REQUESTERS:
                    break
            account = await account_of(records)
            used = account.spent.tokens
            print(f"limit {limit}, spent {used}, overrun {max(0, used - limit)}")
            assert refused == REQUESTERS
            assert account.held.tokens == 0
            # It is used as far as it goes: what is left is less than one request may cost.
            assert limit - (SAYS + len(WORDS) + 40) < used <= limit
            error = answers[0]["error"]
            assert error["data"]["error_type"] == "budget_exceeded"
            assert "resets at" in error["message"]
            asked_of_model = len(models.requests)
            await everybody(http, nodes, 1)
            assert len(models.requests) == asked_of_model


async def test_what_a_killed_node_had_held_is_not_spent_again(
    nats: NatsCluster, postgres: Postgres, records: RecordStores, tmp_path: Path
) -> None:
    before = await records.budgets.accounts(datetime.now(UTC).date())
    limit = sum(each.spent.tokens for each in before) + 2_000
    held = [Said("x", hold=True, usage=(8, SAYS)) for _ in range(4)]
    async with serving(*held) as models, aiohttp.ClientSession() as http:
        setting = Spenders(tmp_path, nats.urls, postgres.url, models.url, limit)
        with some_nodes(setting, "d", "e") as (first, second):
            doomed = asyncio.ensure_future(asked(http, first, 4))
            async with asyncio.timeout(here(120)):
                while models.underway < 4:
                    await asyncio.sleep(0.01)
            first.kill()
            await asyncio.gather(doomed, return_exceptions=True)
            models.release()
            models.answer = greedy
            for _ in range(at_length(20, 8)):
                answers = await asked(http, second, 4)
                if all("error" in each for each in answers):
                    break
            account = await account_of(records)
            assert account.held.tokens >= 4 * SAYS
            assert account.spent.tokens + account.held.tokens <= limit
