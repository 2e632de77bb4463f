"""A topic at several nodes: everything reaches everybody once, in order; what does not is told."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from comity.errors import MalformedMessage
from comity.http.api import ApiRouter
from comity.mcp.actors import LOCAL_OPERATOR, Actor
from comity.topics import cluster
from comity.topics.api import ParticipantsApi
from comity.topics.cluster import (
    ClusterTopicMessage,
    ClusterTopics,
    MemberArrival,
    MemberDeparture,
    MemberList,
    MemberListRequest,
    PeerAnswer,
    PeerQuestion,
    RemoteMemberInfo,
    TopicRelay,
)
from comity.topics.rules import FULL, DeliveryMode
from comity.topics.rules import TopicAccess as Entrance
from comity.topics.service import CapabilityAdmin, TopicLimits, TopicQuestion, TopicService
from comity.topics.topic import REPLACED, TopicMember, TopicSettings
from tests.support.carriers import Clock, settled
from tests.support.cases import loop_over
from tests.support.node_house import OneNode, some_nodes
from tests.support.topic_house import AllKnown, Ear, Granted, envelope


@dataclass
class Node:
    """One node of several, and the members that are connected to it."""

    node: OneNode
    topics: TopicService
    span: ClusterTopics
    ears: dict[str, Ear] = field(default_factory=dict[str, Ear])
    seats: dict[str, TopicMember] = field(default_factory=dict[str, TopicMember])

    async def joins(self, party: str, mode: DeliveryMode = DeliveryMode.ALL) -> Ear:
        ear = self.ears[party] = Ear()
        self.seats[party] = await self.topics.join("ops", Actor(party), mode, ear)
        await settled()
        return ear

    def says(self, party: str, id: str, kind: str = "chat", **more: Any) -> bytes:
        data = envelope(party, id, kind, **more)
        self.topics.receive("ops", self.seats[party], data)
        return data

    def goes(self, party: str) -> None:
        self.topics.on_disconnected("ops", self.seats[party], is_clean=True)


@asynccontextmanager
async def nodes(*names: str) -> AsyncGenerator[list[Node]]:
    clock = Clock()
    terms = TopicSettings(Entrance.PUBLIC, FULL, max_members=100)
    async with some_nodes(*names, clock=clock) as made:
        house: list[Node] = []
        for one in made:
            topics = TopicService(Granted(()), lambda _: terms, TopicLimits(), clock)
            span = ClusterTopics(one.bus, one.peers, topics)
            await span.open()
            house.append(Node(one, topics, span))
        await settled()
        yield house
        for each in house:
            await each.span.close()


async def test_what_is_said_at_one_node_reaches_every_other_as_the_very_bytes() -> None:
    async with nodes("a", "b", "c") as (a, b, c):
        outlets = [await each.joins(f"agent:{n}") for n, each in enumerate((a, b, c))]
        data = a.says("agent:0", "e1")
        await settled()
        assert all(outlet.texts[-1] == data for outlet in outlets)
        assert all(outlet.said == ["e1"] for outlet in outlets)


async def test_the_order_of_one_sender_is_kept() -> None:
    async with nodes("a", "b") as (a, b):
        await a.joins("agent:a")
        hears = await b.joins("agent:b")
        for number in range(200):
            a.says("agent:a", f"e{number}")
        await settled()
        assert hears.said == [f"e{number}" for number in range(200)]


async def test_who_joins_is_told_of_those_at_other_nodes_and_they_of_it() -> None:
    async with nodes("a", "b") as (a, b):
        first = await a.joins("agent:a")
        second = await b.joins("agent:b")
        (welcome,) = second.heard("system/welcome")
        assert welcome["payload"]["participants"] == [{"id": "agent:a", "capabilities": list(FULL)}]
        assert first.presence == [("join", "agent:a"), ("join", "agent:b")]
        b.goes("agent:b")
        await settled()
        assert first.presence[-1] == ("leave", "agent:b")


async def test_the_newest_connection_stays_wherever_it_is_and_nobody_sees_a_flicker() -> None:
    async with nodes("a", "b") as (a, b):
        watches = await b.joins("agent:w")
        older = await a.joins("agent:x")
        newer = await b.joins("agent:x")
        assert older.codes == [REPLACED]
        assert newer.codes == []
        a.topics.on_disconnected("ops", a.seats["agent:x"], is_clean=False)
        await settled()
        assert watches.presence == [("join", "agent:w"), ("join", "agent:x")]
        assert a.topics.topics == {}
        b.says("agent:x", "e1")
        assert newer.said == ["e1"]


async def test_the_members_of_a_node_that_died_have_left() -> None:
    async with nodes("a", "b") as (a, b):
        hears = await a.joins("agent:a")
        await b.joins("agent:b")
        await b.node.peers.close()
        await settled()
        assert hears.presence[-1] == ("leave", "agent:b")
        assert not a.topics.topics["ops"].remote_members
        (missed,) = hears.heard("system/missed")
        assert missed["payload"]["count"] == 0
        assert "died" in missed["payload"]["reason"]


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
        assert near.said == ["e0", "e1", "e2", "e3"]
        assert [each["payload"]["error"] for each in here.heard("system/error")] == 3 * [
            "unreachable"
        ]
        assert far.said == ["e0"]
        a.node.bus.rejoin()
        await settled()
        (missed,) = far.heard("system/missed")
        assert missed["payload"]["count"] == 3
        a.says("agent:a", "e4")
        await settled()
        assert far.said == ["e0", "e4"]
        assert len(far.heard("system/missed")) == 1


async def test_who_came_and_went_while_a_node_was_cut_off_is_told_when_it_is_back() -> None:
    async with nodes("a", "b") as (a, b):
        hears = await a.joins("agent:a")
        await b.joins("agent:old")
        a.node.bus.cut_off()
        b.goes("agent:old")
        await b.joins("agent:new")
        await settled()
        assert hears.presence[-1] == ("join", "agent:old")
        a.node.bus.rejoin()
        await settled()
        assert set(hears.presence[-2:]) == {("leave", "agent:old"), ("join", "agent:new")}


async def test_what_concerns_a_directed_member_finds_it_at_another_node() -> None:
    async with nodes("a", "b") as (a, b):
        await a.joins("agent:a")
        directed = await b.joins("agent:d", DeliveryMode.DIRECTED)
        a.says("agent:a", "for-it", to=["agent:d"])
        a.says("agent:a", "for-another", to=["agent:x"])
        a.says("agent:a", "for-all")
        await settled()
        assert directed.said == ["for-it", "for-all"]


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
        assert asks.said == ["q", "r"]
        assert liar.heard("system/error")[0]["payload"]["error"] == "unasked_response"


async def test_an_id_that_was_used_at_another_node_cannot_be_used_again() -> None:
    async with nodes("a", "b") as (a, b):
        await a.joins("agent:a")
        thief = await b.joins("agent:b")
        a.says("agent:a", "mine")
        await settled()
        b.says("agent:b", "mine")
        assert thief.heard("system/error")[0]["payload"]["error"] == "duplicate_id"


async def test_a_topic_of_which_nobody_is_left_here_is_heard_no_more() -> None:
    async with nodes("a", "b") as (a, b):
        await a.joins("agent:a")
        await b.joins("agent:b")
        b.goes("agent:b")
        await settled()
        assert b.topics.topics == {}
        a.says("agent:a", "e1")
        await settled()
        again = await b.joins("agent:b")
        a.says("agent:a", "e2")
        await settled()
        assert again.said == ["e2"]
        assert again.heard("system/missed") == []


async def test_an_operator_sees_a_topic_from_every_node_with_what_is_said_in_it() -> None:
    async with nodes("a", "b", "c") as (a, b, c):
        await a.joins("agent:a")
        await b.joins("agent:b")
        a.says("agent:a", "e1", payload={"text": "hello"})
        await settled()
        apis = [api_of(each) for each in (a, b, c)]
        for api in apis:
            listed = await api.answer("GET", "/api/topics", {}, LOCAL_OPERATOR)
            assert listed["topics"] == [{"topic": "ops", "members": 2}]
            shown: Any = await api.answer("GET", "/api/topics/ops", {}, LOCAL_OPERATOR)
            assert {each["participantId"] for each in shown["participants"]} == {
                "agent:a",
                "agent:b",
            }
            page: Any = await api.answer("GET", "/api/topics/ops/envelopes", {}, LOCAL_OPERATOR)
            assert [each["payload"]["text"] for each in page["envelopes"]] == ["hello"]
        # Node c has no member of the topic, so each member is on another node.
        elsewhere: Any = await apis[2].answer("GET", "/api/topics/ops", {}, LOCAL_OPERATOR)
        assert all("node" in each for each in elsewhere["participants"])
        with pytest.raises(MalformedMessage, match="no members"):
            await apis[2].answer("GET", "/api/topics/none", {}, LOCAL_OPERATOR)


def api_of(node: Node) -> ApiRouter:
    admin: Any = None
    made = ParticipantsApi(node.topics, CapabilityAdmin(admin, node.topics, AllKnown()))
    return ApiRouter(lambda _, __, ___: None, made.routes)


async def test_what_a_node_cannot_read_does_no_harm() -> None:
    async with nodes("a", "b") as (a, b):
        await a.joins("agent:a")
        hears = await b.joins("agent:b")
        subject = f"test.topic.{cluster.subject_part('ops')}"
        a.node.bus.publish(subject, b"nonsense")
        a.node.bus.publish("test.topics", b"nonsense", "test.nowhere")
        a.says("agent:a", "e1")
        await settled()
        assert hears.said == ["e1"]


REMOTE_ANA = RemoteMemberInfo("person:ana@example.org", ("chat",), "2026-01-01")
WORDS: list[ClusterTopicMessage] = [
    TopicRelay("ops", "n-1", 7, "e", "agent:a", "chat", ("agent:b",), "", b'{"x": 1}'),
    MemberArrival("ops", "n-1", REMOTE_ANA),
    MemberDeparture("ops", "n-1", "agent:a"),
    MemberList("ops", "n-1", 3, (REMOTE_ANA,)),
    MemberListRequest("ops", "n-1"),
    PeerQuestion("n-1", TopicQuestion("ops", 10, 3, "e1")),
    PeerAnswer("n-1", b"{}"),
]


@loop_over("said", WORDS, ids=lambda said: type(said).__name__)
def test_what_was_written_is_read_again(said: ClusterTopicMessage) -> None:
    assert cluster.decode_message(cluster.encode_message(said)) == said


@loop_over("data", [b"", b"{}", b"\xc1", b"\x92\xa4said\x01", b"\xff" * 100])
def test_what_is_no_word_of_a_node_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        cluster.decode_message(data)


def test_a_topic_is_one_part_of_a_subject_whatever_it_is_called() -> None:
    parts = {cluster.subject_part(topic) for topic in ("ops", "ops.eu", "ops-eu", "OPS")}
    assert len(parts) == 4
    assert all(part.isalnum() for part in parts)
