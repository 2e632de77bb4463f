"""Two whole gateways in one process, joined by a bus in memory: what the settings make of them."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest

from comity.adapters.memory.bus import Hub, MemoryBus
from comity.adapters.memory.leases import LeaseBook, MemoryLeases
from comity.app import assembly, live_pushes
from comity.app.assembly import Parts, assembled
from comity.app.clustering import Cluster, make_cluster
from comity.app.recognising import VARIABLE
from comity.config import ServerSettings, Settings
from comity.wire.errors import Misconfigured
from comity.wire.exposition import encode
from comity.wire.lifecycle import Reason, State
from tests.interop.processes import ROOT

SECONDS = 60.0
PEPPER = b"pepper" * 8
SETTINGS = Settings(cluster_url="nats://memory", cluster_lease=timedelta(seconds=6))


@pytest.fixture(autouse=True)
def pepper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PEPPER.decode())


@dataclass
class Node:
    parts: Parts
    bus: MemoryBus

    @property
    def cluster(self) -> Cluster:
        assert self.parts.residents.cluster is not None
        return self.parts.residents.cluster

    @property
    def state(self) -> State:
        return self.parts.servers.need("fenced").state

    @property
    def runs(self) -> bool:
        return self.cluster.leasing.place("fenced").is_here

    def figures(self) -> str:
        return b"".join(encode(self.cluster.figures())).decode()


def fenced(notes: Path) -> ServerSettings:
    return ServerSettings(
        "fenced",
        "fenced",
        "stdio",
        command=sys.executable,
        args=("-m", "tests.cluster.fenced_server", str(notes)),
        env={"PYTHONPATH": str(ROOT)},
        placement="one",
    )


@asynccontextmanager
async def some(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, number: int = 2
) -> AsyncGenerator[list[Node]]:
    def _no_firsts(_: object) -> None: ...

    hub, book, buses = Hub(), LeaseBook(timedelta(seconds=6)), list[MemoryBus]()

    def make(told: Settings, _: bytes) -> Cluster:
        buses.append(MemoryBus(hub))
        return Cluster(told, buses[-1], MemoryLeases(book, buses[-1]))

    monkeypatch.setattr(assembly, "make_cluster", make)
    # Repeats of pushes are known sooner by JetStream, which no bus in memory has.
    monkeypatch.setattr(live_pushes, "open_firsts", _no_firsts)
    async with AsyncExitStack() as stack:
        nodes: list[Node] = []
        for place in range(number):
            named = replace(settings, cluster_node=f"n{place}")
            parts = await stack.enter_async_context(assembled(named))
            nodes.append(Node(parts, buses[place]))
        yield nodes


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():
            await asyncio.sleep(0.02)


def starts(notes: Path) -> list[str]:
    lines = notes.read_text("utf-8").splitlines() if notes.exists() else []
    return [each["node"][:2] for each in map(json.loads, lines) if each["kind"] == "start"]


async def test_one_of_them_runs_the_server_and_the_other_takes_over_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    async with some(monkeypatch, replace(SETTINGS, servers=(fenced(notes),))) as (a, b):
        await until(lambda: a.state is State.CONNECTED and b.state is State.CONNECTED)
        assert (a.runs, b.runs) == (True, False)
        assert starts(notes) == ["n0"]
        assert "comity_cluster_leases 1\n" in a.figures()
        assert "comity_cluster_leases 0\n" in b.figures()
        assert "comity_cluster_nodes 1\n" in b.figures()
        # As when an operator takes it out of one node's file.
        await a.parts.residents.dismiss("fenced", Reason.OPERATOR_REQUEST)
        await until(lambda: b.runs and b.state is State.CONNECTED)
        assert starts(notes) == ["n0", "n1"]


async def test_one_that_is_stopped_by_order_is_not_started_elsewhere_nor_taken_over_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    async with some(monkeypatch, replace(SETTINGS, servers=(fenced(notes),))) as (a, b):
        await until(lambda: a.state is State.CONNECTED and b.state is State.CONNECTED)
        await b.parts.servers.halt("fenced")
        a.bus.cut_off()
        await until(lambda: not a.runs)
        # It is ended where it ran, and waits there for its lease.
        await until(lambda: a.state is not State.CONNECTED)
        assert starts(notes) == ["n0"]
        await b.parts.servers.begin("fenced")
        await until(lambda: b.runs and b.state is State.CONNECTED)
        assert starts(notes) == ["n0", "n1"]


async def test_a_server_that_each_node_runs_from_now_on_is_nobodys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, servers=(fenced(tmp_path / "notes"),))
    async with some(monkeypatch, settings, 1) as (a,):
        await until(lambda: a.state is State.CONNECTED)
        each = replace(settings.servers[0], placement="each")
        await a.parts.residents.let_go("fenced", Reason.CONFIGURATION_CHANGE)
        a.parts.residents.admit(each, a.parts.residents.reach(each))
        await until(lambda: a.state is State.CONNECTED)
        await until(lambda: not list(a.cluster.leasing))


async def test_sessions_are_named_after_their_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async with some(monkeypatch, SETTINGS, 1) as (a,):
        session = a.parts.sessions.begin("")
        assert session.id.startswith(a.cluster.peers.me.epoch)
        a.cluster.look(0.0)


def test_without_an_address_a_gateway_is_alone() -> None:
    assert make_cluster(Settings(), PEPPER) is None
    assert make_cluster(replace(SETTINGS, cluster_url="nats://127.0.0.1:1"), PEPPER) is not None


def test_an_open_nats_beyond_this_machine_is_refused_unless_allowed() -> None:
    settings = replace(SETTINGS, cluster_url="nats://10.0.0.1:4222")
    with pytest.raises(Misconfigured, match="allow_open_nats"):
        make_cluster(settings, PEPPER)
    assert make_cluster(replace(settings, cluster_allow_open_nats=True), PEPPER) is not None


async def test_nodes_without_a_pepper_of_their_own_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each would make a secret of its own, and understand no other."""
    monkeypatch.delenv(VARIABLE)
    for store in ("", f"sqlite:///{tmp_path / 'comity.db'}"):
        with pytest.raises(Misconfigured, match="a pepper that every node has"):
            async with assembled(replace(SETTINGS, store_url=store)):
                pass


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (replace(SETTINGS, cluster_dead_after=timedelta(seconds=2)), "three heartbeats"),
        (replace(SETTINGS, cluster_lease=timedelta(seconds=5)), "6s at least"),
    ],
)
def test_a_rhythm_in_which_nobody_could_live_is_refused(settings: Settings, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        make_cluster(settings, PEPPER)
