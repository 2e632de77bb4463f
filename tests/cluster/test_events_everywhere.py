"""Two gateways on NATS and PostgreSQL: what happens at one is heard at the other, and once."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cli.program import EXAMPLE
from tests.cluster.nats_cluster import NatsCluster
from tests.cluster.nodes import SECONDS, Node, Setting, some_nodes, until
from tests.cluster.postgres import Postgres
from tests.conformance.ways import Frame, House, Talk
from tests.interop.peers import ROOT
from tests.interop.processes import operator_headers

pytestmark = pytest.mark.timeout(300)
BOTH: Frame = {"mgp": {"version": "0.3.0", "extensions": ["bidirectional"]}}
NOTICE = "notifications/mgp.event"
SERVERS = "tests.conformance.servers"


@dataclass(frozen=True)
class Told(Setting):
    """Nodes with a server of each's own, one that tells and one that asks, which run once."""

    def text(self, name: str, nats: str) -> str:
        example = ", ".join(f'"{each}"' for each in EXAMPLE["args"])
        once = "\n".join(_once(module) for module in ("eventful", "questioner"))
        return f"""
[store]
url = "{self.store}"
[policy]
require_approval = "never"
[cluster]
url = "{nats}"
node = "{name}"
heartbeat_interval = "300ms"
dead_after = "2s"
lease_ttl = "8s"
[[servers]]
id = "local"
command = "{EXAMPLE["command"]}"
args = [{example}]
{once}
"""


def _once(module: str) -> str:
    return f"""
[[servers]]
id = "{module}"
command = "{sys.executable}"
args = ["-m", "{SERVERS}.{module}"]
env = {{ PYTHONPATH = "{ROOT}" }}
replicas = "single"
"""


@pytest.fixture(scope="module")
def nodes(
    nats: NatsCluster, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Generator[list[Node]]:
    setting = Told(tmp_path_factory.mktemp("told"), nats.urls, postgres.url)
    with some_nodes(setting, "a", "b") as started:
        yield started


@asynccontextmanager
async def at(node: Node, server: str) -> AsyncGenerator[Talk]:
    async with House(node.origin, Path()).among_all(server).talk(BOTH) as talk:
        await talk.client.listen()
        yield talk


async def subscribed(talk: Talk, *channels: str) -> list[str]:
    asked = {"channels": list(channels)}
    answer = await talk.client.request("mgp/events/subscribe", asked)
    return answer.result["subscribed"]


async def heard_until(talk: Talk, trace: str) -> list[Frame]:
    """All events up to the end of the call of that trace."""
    told: list[Frame] = []
    async with asyncio.timeout(SECONDS):
        while not told or (told[-1]["channel"], _trace(told[-1])) != ("tool.completed", trace):
            told.append((await talk.told(NOTICE))["params"])
    return told


def _trace(told: Frame) -> str:
    return told["data"].get("trace_id", "").replace("-", "")


@pytest.mark.requirement("MGP-13.3-event", "MGP-13.5-tool")
async def test_a_call_at_one_node_is_heard_of_at_each_and_once(nodes: list[Node]) -> None:
    one, other = nodes
    async with at(one, "local") as caller, at(other, "local") as ear, at(one, "local") as here:
        for talk in (ear, here):
            assert "tool.started" in await subscribed(talk, "tool.*")
        await until_heard(caller, ear)
        await ear_is_empty(ear)
        await ear_is_empty(here)
        trace = "0af7651916cd43dd8448eb211c80319c"
        parent = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
        await caller.call("echo", {"message": "last"}, _meta=parent)
        for talk in (ear, here):
            told = await heard_until(talk, trace)
            mine = [each for each in told if _trace(each) == trace]
            assert [each["channel"] for each in mine] == ["tool.started", "tool.completed"]
            assert len({each["id"] for each in told}) == len(told)


async def until_heard(caller: Talk, ear: Talk) -> None:
    """Call until the other node has heard that somebody there wants to know of it."""

    async def is_heard() -> bool:
        await caller.call("echo", {"message": "first"})
        return not ear.client.standalone.empty()

    await until(is_heard)


async def ear_is_empty(ear: Talk) -> None:
    while not ear.client.standalone.empty():
        ear.client.standalone.get_nowait()


@pytest.mark.requirement("MGP-13.3-event", "MGP-13.5-model")
async def test_what_a_server_tells_that_one_node_runs_is_heard_at_the_others(
    nodes: list[Node],
) -> None:
    usage = {"channel": "model.token_usage", "data": {"tokens_used": 7}}
    for first, second in (nodes, nodes[::-1]):
        async with at(first, "eventful") as talk, at(second, "eventful") as other:
            for each in (talk, other):
                assert await subscribed(each, "model.token_usage") == ["model.token_usage"]
            emitted = [{**usage, "id": f"{first.name}-{number}"} for number in range(3)]
            told = await talk.call("emit", {"events": emitted})
            # Subscribed to once, whoever follows it at whichever node.
            assert told.result["structuredContent"]["told"] == 3
            for each in (talk, other):
                heard = [(await each.told(NOTICE))["params"] for _ in emitted]
                assert [event["id"] for event in heard] == [event["id"] for event in emitted]
                assert {event["server_id"] for event in heard} == {"eventful"}
                assert [event["data"] for event in heard] == [usage["data"]] * 3


@pytest.mark.requirement("MGP-13.4-callback", "MGP-13.4-respond")
@pytest.mark.parametrize("spoken", [{}, BOTH], ids=["plain", "mgp"])
@pytest.mark.parametrize("kind", ["confirmation", "input", "selection"])
async def test_a_callback_at_one_node_is_answered_at_the_other(
    nodes: list[Node], kind: str, spoken: Frame
) -> None:
    """Whichever of them runs the server, and whatever the client speaks."""
    asked: Frame = {"callback_id": f"cb-{kind}", "type": kind, "message": "Go on?"}
    asked |= {"options": ["left", "right"]} if kind == "selection" else {}
    given: dict[str, Any] = {
        "confirmation": ({}, "confirm"),
        "input": ({"text": "words"}, "words"),
        "selection": ({"choice": "right"}, "right"),
    }
    content, answer = given[kind]
    for one, other in (nodes, nodes[::-1]):
        async with (
            House(one.origin, Path()).among_all("questioner").talk(spoken) as talk,
            aiohttp.ClientSession() as http,
        ):
            calling = asyncio.ensure_future(talk.call("back", {"callbacks": [asked]}))
            (ask,) = await until(partial(pending, http, other))
            said = {"verdict": "accept", "content": content}
            url, shown = (
                f"{other.origin}/api/approvals/{ask['id']}/answer",
                operator_headers(other.origin),
            )
            async with http.post(url, json=said, headers=shown) as reply:
                assert reply.status == 200, await reply.text()
            (told,) = (await calling).result["structuredContent"]["answers"]
            assert (told["callback_id"], told["response"]) == (f"cb-{kind}", answer)


async def pending(http: aiohttp.ClientSession, node: Node) -> Any:
    shown = operator_headers(node.origin)
    async with http.get(f"{node.origin}/api/approvals?state=pending", headers=shown) as reply:
        return (await reply.json())["approvals"]
