"""A topic at several nodes: everything reaches everybody once, in order; what does not is told."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from comity.kernel.rooms import REPLACED, Terms
from comity.kernel.seats import Said, Seat
from comity.kernel.topic_span import TopicSpan
from comity.kernel.topics import Bounds, Topics
from comity.rules.access import Access
from comity.rules.capabilities import FULL
from comity.rules.topics import Access as Entrance
from comity.rules.topics import Mode
from comity.wire import spanning
from comity.wire.parties import Actor
from tests.kernel.carriers import Clock, settled
from tests.kernel.node_house import OneNode, some_nodes

type Heard = dict[str, Any]


class Outlet:
    """A member that takes everything, and remembers it."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.ended = 0

    def give(self, said: Said) -> bool:
        self.texts.append(said.text)
        return True

    def end(self, code: int, because: str) -> None:
        del because
        self.ended = code

    @property
    def heard(self) -> list[Heard]:
        return [json.loads(text) for text in self.texts]

    def of(self, kind: str) -> list[Heard]:
        return [each for each in self.heard if each["kind"] == kind]

    def events(self) -> list[tuple[str, str]]:
        said = [each["payload"] for each in self.of("system/presence")]
        return [(each["event"], each["participant"]["id"]) for each in said]


class Granted:
    access = Access()


@dataclass
class Node:
    node: OneNode
    topics: Topics
    span: TopicSpan
    outlets: dict[str, Outlet] = field(default_factory=dict[str, Outlet])
    seats: dict[str, Seat] = field(default_factory=dict[str, Seat])
    ids: int = 0

    async def joins(self, party: str, mode: Mode = Mode.ALL) -> Outlet:
        outlet = self.outlets[party] = Outlet()
        self.seats[party] = await self.topics.join("ops", Actor(party), mode, outlet)
        await settled()
        return outlet

    def says(self, party: str, id: str, kind: str = "chat", **more: Any) -> bytes:
        said: dict[str, Any] = {
            "protocol": "mcpx/v0.1",
            "id": id,
            "from": party,
            "kind": kind,
            "payload": {},
        }
        data = json.dumps({**said, **more}, indent=1).encode()
        self.topics.say("ops", self.seats[party], data)
        return data

    def goes(self, party: str) -> None:
        self.topics.gone("ops", self.seats[party], is_clean=True)


@asynccontextmanager
async def nodes(*names: str) -> AsyncGenerator[list[Node]]:
    clock = Clock()
    terms = Terms(Entrance.PUBLIC, FULL, members=100)
    async with some_nodes(*names, clock=clock) as made:
        house: list[Node] = []
        for one in made:
            topics = Topics(Granted(), lambda _: terms, Bounds(), clock)
            span = TopicSpan(one.bus, one.peers, topics)
            await span.open()
            house.append(Node(one, topics, span))
        await settled()
        yield house
        for each in house:
            await each.span.close()


def ids(outlet: Outlet, kind: str = "chat") -> list[str]:
    return [each["id"] for each in outlet.of(kind)]


async def test_what_is_said_at_one_node_reaches_every_other_as_the_very_bytes() -> None:
    async with nodes("a", "b", "c") as (a, b, c):
        outlets = [await each.joins(f"agent:{n}") for n, each in enumerate((a, b, c))]
        data = a.says("agent:0", "e1")
        await settled()
        assert all(outlet.texts[-1] == data for outlet in outlets)
        assert all(ids(outlet) == ["e1"] for outlet in outlets)


async def test_the_order_of_one_sender_is_kept() -> None:
    async with nodes("a", "b") as (a, b):
        await a.joins("agent:a")
        hears = await b.joins("agent:b")
        for number in range(200):
            a.says("agent:a", f"e{number}")
        await settled()
        assert ids(hears) == [f"e{number}" for number in range(200)]


async def test_who_joins_is_told_of_those_at_other_nodes_and_they_of_it() -> None:
    async with nodes("a", "b") as (a, b):
        first = await a.joins("agent:a")
        second = await b.joins("agent:b")
        (welcome,) = second.of("system/welcome")
        assert welcome["payload"]["participants"] == [{"id": "agent:a", "capabilities": list(FULL)}]
        assert first.events() == [("join", "agent:a"), ("join", "agent:b")]
        b.goes("agent:b")
        await settled()
        assert first.events()[-1] == ("leave", "agent:b")


async def test_the_newest_connection_stays_wherever_it_is_and_nobody_sees_a_flicker() -> None:
    async with nodes("a", "b") as (a, b):
        watches = await b.joins("agent:w")
        older = await a.joins("agent:x")
        newer = await b.joins("agent:x")
        assert older.ended == REPLACED
        assert newer.ended == 0
        a.topics.gone("ops", a.seats["agent:x"], is_clean=False)
        await settled()
        assert watches.events() == [("join", "agent:w"), ("join", "agent:x")]
        assert a.topics.rooms == {}
        b.says("agent:x", "e1")
        assert ids(newer) == ["e1"]


async def test_the_members_of_a_node_that_died_have_left() -> None:
    async with nodes("a", "b") as (a, b):
        hears = await a.joins("agent:a")
        await b.joins("agent:b")
        await b.node.peers.close()
        await settled()
        assert hears.events()[-1] == ("leave", "agent:b")
        assert not a.topics.rooms["ops"].elsewhere
        (missed,) = hears.of("system/missed")
        assert missed["payload"]["count"] == 0
        assert "died" in missed["payload"]["because"]


async def test_a_node_that_is_cut_off_serves_its_own_and_says_what_others_did_not_get() -> None:
    async with nodes("a", "b") as (a, b):
        here, near = await a.joins("agent:a"), await a.joins("agent:n")
        far = await b.joins("agent:b")
        a.says("agent:a", "e0")
        await settled()
        a.node.bus.cut_off()
        for number in (1, 2, 3):
            a.says("agent:a", f"e{number}")
        await settled()
        assert ids(near) == ["e0", "e1", "e2", "e3"]
        assert [each["payload"]["error"] for each in here.of("system/error")] == 3 * ["unreachable"]
        assert ids(far) == ["e0"]
        a.node.bus.rejoin()
        await settled()
        (missed,) = far.of("system/missed")
        assert missed["payload"]["count"] == 3
        a.says("agent:a", "e4")
        await settled()
        assert ids(far) == ["e0", "e4"]
        assert len(far.of("system/missed")) == 1


async def test_who_came_and_went_while_a_node_was_cut_off_is_told_when_it_is_back() -> None:
    async with nodes("a", "b") as (a, b):
        hears = await a.joins("agent:a")
        await b.joins("agent:old")
        a.node.bus.cut_off()
        b.goes("agent:old")
        await b.joins("agent:new")
        await settled()
        assert hears.events()[-1] == ("join", "agent:old")
        a.node.bus.rejoin()
        await settled()
        assert set(hears.events()[-2:]) == {("leave", "agent:old"), ("join", "agent:new")}


async def test_what_concerns_a_directed_member_finds_it_at_another_node() -> None:
    async with nodes("a", "b") as (a, b):
        await a.joins("agent:a")
        directed = await b.joins("agent:d", Mode.DIRECTED)
        a.says("agent:a", "for-it", to=["agent:d"])
        a.says("agent:a", "for-another", to=["agent:x"])
        a.says("agent:a", "for-all")
        await settled()
        assert ids(directed) == ["for-it", "for-all"]


async def test_a_request_at_one_node_is_answered_from_another_by_whom_it_names_alone() -> None:
    async with nodes("a", "b") as (a, b):
        asks = await a.joins("agent:a")
        await b.joins("agent:b")
        liar = await b.joins("agent:liar")
        a.says("agent:a", "q", "mcp/request:tools/call:x", to=["agent:b"])
        await settled()
        answer = "mcp/response:tools/call:x"
        b.says("agent:liar", "lie", answer, correlation_id="q")
        b.says("agent:b", "r", answer, correlation_id="q", to=["agent:a"])
        await settled()
        assert ids(asks, answer) == ["r"]
        assert liar.of("system/error")[0]["payload"]["error"] == "unasked_response"


async def test_an_id_that_was_used_at_another_node_cannot_be_used_again() -> None:
    async with nodes("a", "b") as (a, b):
        await a.joins("agent:a")
        thief = await b.joins("agent:b")
        a.says("agent:a", "mine")
        await settled()
        b.says("agent:b", "mine")
        assert thief.of("system/error")[0]["payload"]["error"] == "duplicate_id"


async def test_a_topic_of_which_nobody_is_left_here_is_heard_no_more() -> None:
    async with nodes("a", "b") as (a, b):
        await a.joins("agent:a")
        await b.joins("agent:b")
        b.goes("agent:b")
        await settled()
        assert b.topics.rooms == {}
        a.says("agent:a", "e1")
        await settled()
        again = await b.joins("agent:b")
        a.says("agent:a", "e2")
        await settled()
        assert ids(again) == ["e2"]
        assert again.of("system/missed") == []


async def test_what_a_node_cannot_read_does_no_harm() -> None:
    async with nodes("a", "b") as (a, b):
        await a.joins("agent:a")
        hears = await b.joins("agent:b")
        subject = f"test.topic.{spanning.part('ops')}"
        a.node.bus.publish(subject, b"nonsense")
        a.node.bus.publish("test.topics", b"nonsense", "test.nowhere")
        a.says("agent:a", "e1")
        await settled()
        assert ids(hears) == ["e1"]
