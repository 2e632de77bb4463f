"""A live server that one node runs, asked at all of them: one host, and the same bounds."""

import json
import sys
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.cluster.nats_cluster import NatsCluster
from tests.cluster.nodes import Node, Setting, modern, some_nodes
from tests.cluster.postgres import Postgres
from tests.interop.peers import ROOT
from tests.live.talker_scene import BOUNDS, DECLARED, TOOLS, Scene, meanwhile, until

pytestmark = pytest.mark.timeout(600)

ERAS = ("handshake", "modern")


@dataclass(frozen=True)
class Live(Setting):
    """Nodes before one live server of each era, which only one of them runs."""

    def text(self, name: str, nats: str) -> str:
        shared = f'[store]\nurl = "{self.store}"\n[cluster]\nurl = "{nats}"\nnode = "{name}"\n'
        return shared + "\n".join(_server(era) for era in ERAS)


def _server(era: str) -> str:
    env = {"ERA": era, "MCPL": json.dumps(DECLARED), "TOOLS": json.dumps(TOOLS)}
    told = ", ".join(f"{name} = {json.dumps(each)}" for name, each in env.items())
    return f"""
[[servers]]
id = "{era}"
command = "{sys.executable}"
args = ["-m", "tests.live.live_talker"]
env = {{ {told}, PYTHONPATH = "{ROOT}" }}
replicas = "single"
[servers.tools."*"]
risk = "safe"
[servers.live]
enabled = ["files.edit"]
{BOUNDS}
"""


@pytest.fixture(scope="module")
def nodes(
    nats: NatsCluster, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Generator[list[Node]]:
    setting = Live(tmp_path_factory.mktemp("live-nodes"), nats.urls, postgres.url)
    with some_nodes(setting, "a", "b") as started:
        yield started


@pytest.fixture(params=ERAS)
async def each(
    nodes: list[Node], request: pytest.FixtureRequest
) -> AsyncGenerator[tuple[Scene, Scene]]:
    """The same server at the node that runs it, and at the other."""
    async with aiohttp.ClientSession() as http:
        found = [
            Scene(node.origin, Path(), lambda _: "", http, server=request.param) for node in nodes
        ]

        async def hosts() -> list[Scene] | None:
            shown = [(await at.api("features", server=request.param))["servers"] for at in found]
            here = [at for at, servers in zip(found, shown, strict=True) if servers]
            return here or None

        (owner,) = await until(hosts)
        (other,) = [at for at in found if at is not owner]
        yield owner, other


async def test_only_the_node_that_runs_it_is_its_host(each: tuple[Scene, Scene]) -> None:
    owner, other = each
    # Both are asked, so that both have spoken with it.
    for at in each:
        assert await at.call("plain", {}) is not None
    assert (await other.api("features", server=other.server))["servers"] == []
    assert len(await owner.updates()) == 1


async def test_what_is_not_enabled_or_denied_is_refused_at_every_node(
    each: tuple[Scene, Scene],
) -> None:
    for at in each:
        for tool, path in (("read_file", "/project/x"), ("edit_file", "/project/.env")):
            asked = {"name": f"{at.server}__{tool}", "arguments": {"path": path}}
            said = await modern(at.http, at.origin, "tools/call", asked)
            assert "not enabled" in str(said.body) or "may not reach" in str(said.body)
        seen = [frame["params"] for frame in await at.seen("tools/call")]
        assert [each for each in seen if each["name"] == "read_file" or ".env" in str(each)] == []


async def test_a_call_bears_its_scope_from_every_node_and_one_answer_is_good_for_all(
    each: tuple[Scene, Scene],
) -> None:
    owner, other = each
    for at in each:
        told = await at.call("edit_file", {"path": "/project/x"})
        assert told["scope"]["label"] == "/project/x"
    path = f"/etc/{owner.server}"
    async with meanwhile(other.call("edit_file", {"path": path})) as call:
        ask = await owner.open_ask()
        await owner.say(ask, "accept")
        assert (await call)["scope"]["label"] == path
    assert (await owner.call("edit_file", {"path": path}))["scope"]["label"] == path
