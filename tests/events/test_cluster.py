"""Events between nodes: only what is wanted elsewhere is sent, and each is heard once."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from comity.cluster.bus import BusMessage
from comity.errors import MalformedMessage
from comity.events import cluster
from comity.events.bus import EventBus
from comity.events.cluster import (
    ClusterEvents,
    decode_event,
    encode_event,
    to_cluster_event,
)
from comity.events.model import GatewayEvent, Severity
from comity.events.server_events import ServerEventSources
from comity.mcp import jsonrpc
from tests.events.event_house import CI, Ear, a_plane, event
from tests.events.test_server_events import asked_of, handshake, usage
from tests.support.carriers import Script, settled, until
from tests.support.cases import loop_over
from tests.support.desks import Front
from tests.support.node_house import OneNode, some_nodes
from tests.support.server_house import options


@dataclass
class Place:
    """A node with its plane of events, and perhaps a server that it alone runs."""

    node: OneNode
    events: EventBus
    servers: ServerEventSources
    span: ClusterEvents
    front: Front


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "GATHER_SECONDS", 0.0)


@asynccontextmanager
async def places(*scripts: Script | None) -> AsyncGenerator[list[Place]]:
    names = [f"node{number}" for number, _ in enumerate(scripts)]
    async with some_nodes(*names) as nodes, AsyncExitStack() as stack:
        made = [
            await stack.enter_async_context(_place(node, script))
            for node, script in zip(nodes, scripts, strict=True)
        ]
        for node in nodes:
            node.peers.beat(asks=True)
        await settled()
        yield made


@asynccontextmanager
async def _place(node: OneNode, script: Script | None) -> AsyncGenerator[Place]:
    front = Front({} if script is None else {"files": script}, how=options())
    events = a_plane()
    servers = ServerEventSources(events, front.servers)
    servers.is_only_here = lambda name: script is not None
    await front.ready()
    span = ClusterEvents(node.bus, node.peers, events, servers)
    await span.open()
    try:
        yield Place(node, events, servers, span, front)
    finally:
        await servers.stop()
        await span.close()
        await front.servers.stop()


async def said_on(place: Place) -> list[BusMessage]:
    """All that others publish from now on of what happened."""
    heard: list[BusMessage] = []
    await place.node.bus.subscribe("test.events.told", heard.append)
    return heard


async def test_what_happens_at_one_node_is_heard_at_another_that_wants_it() -> None:
    async with places(None, None) as (one, other):
        wire = await said_on(other)
        one.events.publish(event("0", party=CI.party))
        ear, here = Ear(), Ear()
        following = ear.follow(other.events, "tool.started")
        here.follow(one.events, "tool.*")
        await until(lambda: one.events.has_subscribers and not wire)
        await settled()
        one.events.publish(event("1", party=CI.party))
        one.events.publish(event("2", "tool.completed", party=CI.party))
        await until(lambda: ear.heard)
        await settled()
        assert (ear.ids, here.ids, len(wire)) == (["1"], ["1", "2"], 1)
        following.close()
        await settled()
        one.events.publish(event("3", party=CI.party))
        await settled()
        assert (ear.ids, len(wire)) == (["1"], 1)


async def test_where_nobody_follows_a_node_that_another_wants_to_hear_tells_all_the_same() -> None:
    async with places(None, None) as (one, other):
        ear = Ear()
        ear.follow(other.events, "tool.*")
        await until(lambda: one.events.has_subscribers)
        one.events.publish(event("1", party=CI.party))
        await until(lambda: ear.heard)
        assert not len(one.events)


async def test_what_may_be_heard_is_decided_where_it_is_heard() -> None:
    async with places(None, None) as (one, other):
        ear = Ear()
        ear.follow(other.events, "tool.*")
        await until(lambda: one.events.has_subscribers)
        one.events.publish(event("others", party="agent:other", server="files"))
        one.events.publish(event("own", party=CI.party))
        await until(lambda: ear.heard)
        assert ear.ids == ["own"]


async def test_a_server_that_one_node_runs_is_found_and_heard_from_the_other() -> None:
    async with places(handshake(), None) as (owner, other):
        ear = Ear()
        following = await ear.follow(other.events, "model.*").settled()
        assert following.subscribed == ("model.limit", "model.tool_budget", "model.usage")
        server = owner.front.scripts["files"].last
        assert asked_of(server) == [["model.*"]]
        server.says(usage("1", subscription_id="s-model.*"))
        await until(lambda: ear.heard)
        assert (ear.ids, ear.heard[0].source) == (["1"], "files")
        assert "model.usage" in {each.name for each in other.events.channels(CI)}
        following.close()
        await until(lambda: server.asked("mgp/events/unsubscribe"))
        assert not len(owner.servers)


async def test_a_server_that_each_node_has_is_not_asked_for_the_other() -> None:
    async with places(handshake(), handshake()) as (one, other):
        one.servers.is_only_here = other.servers.is_only_here = lambda name: False
        ear = Ear()
        await ear.follow(other.events, "model.usage").settled()
        assert not asked_of(one.front.scripts["files"].last)
        other.front.scripts["files"].last.says(usage("1"))
        assert ear.ids == ["1"]


async def test_what_a_node_wanted_that_has_died_is_wanted_no_more() -> None:
    async with places(handshake(), None) as (owner, other):
        await Ear().follow(other.events, "model.usage").settled()
        server = owner.front.scripts["files"].last
        assert len(owner.servers) == 1
        await other.node.peers.close()
        await until(lambda: not owner.events.has_subscribers)
        await until(lambda: not len(owner.servers))
        await until(lambda: server.asked("mgp/events/unsubscribe"))


async def test_a_node_that_was_cut_off_says_again_what_it_wants() -> None:
    async with places(None, None) as (one, other):
        other.node.bus.cut_off()
        ear = Ear()
        ear.follow(other.events, "tool.*")
        await settled()
        one.events.publish(event("lost", party=CI.party))
        assert not one.events.has_subscribers
        other.node.bus.rejoin()
        await until(lambda: one.events.has_subscribers)
        one.events.publish(event("1", party=CI.party))
        await until(lambda: ear.heard)
        assert ear.ids == ["1"]


async def test_what_no_node_says_is_passed_over() -> None:
    async with places(None, None) as (one, other):
        ear = Ear()
        ear.follow(other.events, "tool.*")
        await until(lambda: one.events.has_subscribers)
        for subject in ("told", "wanted"):
            one.node.bus.publish(f"test.events.{subject}", b"no message")
            one.node.bus.publish(f"test.events.{subject}", jsonrpc.to_json({"a": 1}))
        one.events.publish(event("1", party=CI.party))
        await until(lambda: ear.heard)
        assert ear.ids == ["1"]


AT = datetime(2026, 1, 1, 12, 30, 1, 500, tzinfo=UTC)


def test_an_event_comes_out_as_it_went_in() -> None:
    data = {"n": 1, "deep": {"list": [1.5, None, "x"]}, "tools": {"a": "b"}}
    original = GatewayEvent(
        "e", "tool.failed", AT, Severity.ERROR, data, "files", "read", "agent:ci", "mail"
    )
    said = decode_event(encode_event(to_cluster_event("a-1", original)))
    assert said.node == "a-1"
    assert said == to_cluster_event("a-1", original)
    assert said.event() == original  # type: ignore[union-attr]  # it is one that happened


@loop_over("value", [1 << 80, object()])
def test_what_cannot_be_said_between_nodes_is_no_bug(value: object) -> None:
    original = GatewayEvent("e", "a.b", AT, Severity.INFO, {"big": value})
    with pytest.raises(MalformedMessage):
        encode_event(to_cluster_event("a-1", original))
