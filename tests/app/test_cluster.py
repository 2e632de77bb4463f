"""Two whole gateways in one process, joined by a bus in memory: what the settings make of them."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from comity.app import gateway
from comity.app.cluster import LocalClusterNode, make_cluster
from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.settings import ServerSettings, Settings
from comity.cluster.in_process import LeaseBook, MemoryBus, MemoryBusHub, MemoryLeases
from comity.cluster.settings import ClusterSettings
from comity.errors import Misconfigured
from comity.identity.wiring import VARIABLE
from comity.live import wiring
from comity.mcp.mgp import ServerLifecycleState, ShutdownReason
from comity.telemetry.metrics import encode_metrics
from tests.interop.peers import ROOT
from tests.support.cases import loop_over

SECONDS = 60.0
PEPPER = b"pepper" * 8
SETTINGS = Settings(cluster=ClusterSettings(url="nats://memory", lease_ttl=timedelta(seconds=6)))


@pytest.fixture(autouse=True)
def pepper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, PEPPER.decode())


@dataclass
class Node:
    parts: GatewayParts
    bus: MemoryBus

    @property
    def cluster(self) -> LocalClusterNode:
        assert self.parts.upstream_registry.cluster is not None
        return self.parts.upstream_registry.cluster

    @property
    def state(self) -> ServerLifecycleState:
        return self.parts.servers.require("fenced").state

    @property
    def runs(self) -> bool:
        return self.cluster.placement.place("fenced").is_here

    def figures(self) -> str:
        return b"".join(encode_metrics(self.cluster.metric_families())).decode()


def fenced(notes: Path) -> ServerSettings:
    return ServerSettings(
        "fenced",
        "fenced",
        "stdio",
        command=sys.executable,
        sandbox="none",
        args=("-m", "tests.cluster.fenced_server", str(notes)),
        env={"PYTHONPATH": str(ROOT)},
        replicas="single",
    )


@asynccontextmanager
async def some(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, number: int = 2
) -> AsyncGenerator[list[Node]]:
    def _no_firsts(_: object) -> None: ...

    hub, book, buses = MemoryBusHub(), LeaseBook(timedelta(seconds=6)), list[MemoryBus]()

    def make(told: Settings, _: bytes) -> LocalClusterNode:
        buses.append(MemoryBus(hub))
        return LocalClusterNode(told, buses[-1], MemoryLeases(book, buses[-1]))

    monkeypatch.setattr(gateway, "make_cluster", make)
    # Repeats of pushes are known sooner by JetStream, which no bus in memory has.
    monkeypatch.setattr(wiring, "open_firsts", _no_firsts)
    async with AsyncExitStack() as stack:
        nodes: list[Node] = []
        for place in range(number):
            named = replace(settings, cluster=replace(settings.cluster, node=f"n{place}"))
            parts = await stack.enter_async_context(assemble_gateway(named))
            nodes.append(Node(parts, buses[place]))
        yield nodes


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():
            await asyncio.sleep(0.02)


def starts(notes: Path) -> list[str]:
    lines = notes.read_text("utf-8").splitlines() if notes.exists() else []
    return [each["node"][:2] for each in map(json.loads, lines) if each["kind"] == "start"]


def both_connected(a: Node, b: Node) -> bool:
    return a.state is b.state is ServerLifecycleState.CONNECTED


async def test_another_node_takes_over_the_server_of_a_node_that_ends_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    async with some(monkeypatch, replace(SETTINGS, servers=(fenced(notes),))) as (a, b):
        await until(lambda: both_connected(a, b))
        assert (a.runs, b.runs) == (True, False)
        assert starts(notes) == ["n0"]
        assert "comity_cluster_leases 1\n" in a.figures()
        assert "comity_cluster_leases 0\n" in b.figures()
        assert "comity_cluster_nodes 1\n" in b.figures()
        # As when an operator takes it out of one node's file.
        await a.parts.upstream_registry.remove("fenced", ShutdownReason.OPERATOR_REQUEST)
        await until(lambda: b.runs and b.state is ServerLifecycleState.CONNECTED)
        assert starts(notes) == ["n0", "n1"]


async def test_server_stopped_by_order_is_started_by_no_node(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    async with some(monkeypatch, replace(SETTINGS, servers=(fenced(notes),))) as (a, b):
        await until(lambda: both_connected(a, b))
        await b.parts.servers.stop_server("fenced")
        a.bus.cut_off()
        await until(lambda: not a.runs)
        # It is ended where it ran, and waits there for its lease.
        await until(lambda: a.state is not ServerLifecycleState.CONNECTED)
        assert starts(notes) == ["n0"]
        await b.parts.servers.start_server("fenced")
        await until(lambda: b.runs and b.state is ServerLifecycleState.CONNECTED)
        assert starts(notes) == ["n0", "n1"]


async def test_a_server_that_each_node_runs_from_now_on_is_nobodys(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = replace(SETTINGS, servers=(fenced(tmp_path / "notes"),))
    async with some(monkeypatch, settings, 1) as (a,):
        await until(lambda: a.state is ServerLifecycleState.CONNECTED)
        each = replace(settings.servers[0], replicas="per_node")
        await a.parts.upstream_registry.stop_for_replacement(
            "fenced", ShutdownReason.CONFIGURATION_CHANGE
        )
        a.parts.upstream_registry.add(each, a.parts.upstream_registry.transport_factory(each))
        await until(lambda: a.state is ServerLifecycleState.CONNECTED)
        await until(lambda: not list(a.cluster.placement))


async def test_sessions_are_named_after_their_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async with some(monkeypatch, SETTINGS, 1) as (a,):
        session = a.parts.sessions.begin("")
        assert session.id.startswith(a.cluster.members.me.epoch)
        a.cluster.check(0.0)


def with_cluster(**changes: Any) -> Settings:
    return replace(SETTINGS, cluster=replace(SETTINGS.cluster, **changes))


def test_gateway_without_an_address_of_nats_has_no_cluster() -> None:
    assert make_cluster(Settings(), PEPPER) is None
    for joined in (
        with_cluster(url="nats://127.0.0.1:1"),
        with_cluster(url="nats://10.0.0.1:4222", allow_open_nats=True),
    ):
        assert make_cluster(joined, PEPPER) is not None


@loop_over(
    ("settings", "told"),
    [
        # An open NATS beyond this machine.
        (with_cluster(url="nats://10.0.0.1:4222"), "allow_open_nats"),
        (with_cluster(dead_after=timedelta(seconds=2)), "three heartbeats"),
        (with_cluster(lease_ttl=timedelta(seconds=5)), "6s at least"),
    ],
)
def test_unsafe_cluster_settings_are_refused(settings: Settings, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        make_cluster(settings, PEPPER)


async def test_nodes_without_a_pepper_of_their_own_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each would make a secret of its own, and understand no other."""
    monkeypatch.delenv(VARIABLE)
    for store in ("", f"sqlite:///{tmp_path / 'comity.db'}"):
        settings = replace(SETTINGS, store=replace(SETTINGS.store, url=store))
        with pytest.raises(Misconfigured, match="a pepper that every node has"):
            async with assemble_gateway(settings):
                pass
