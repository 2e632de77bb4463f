"""One topic: who is told what, how much a member may say, what is recorded. (MCPx §3-§6)"""

import json
from typing import Any

import pytest

from comity.audit.events import AuditEvent, AuditType
from comity.audit.log import MAX_EVENTS_AT_ONCE
from comity.errors import Unavailable
from comity.mcp.actors import Actor
from comity.toolkit.resilience import RateLimit
from comity.topics.rules import DeliveryMode
from comity.topics.rules import TopicAccess as Entrance
from comity.topics.topic import (
    FLOODING,
    MAX_HISTORY_BYTES,
    NO_RATE_LIMIT,
    REPLACED,
    MemberRateLimit,
    MemberRateState,
    MissedMessages,
    RemoteMember,
    TopicAuditLevel,
    TopicMember,
    TopicMessage,
    TopicSettings,
)
from tests.support.cases import loop_over
from tests.support.journals import FailingStore, kept
from tests.support.noted import Noted
from tests.support.topic_house import A_MINUTE, ANA, BEA, CI, USUAL, Ear, House, envelope


@loop_over(
    ("data", "error", "id"),
    [
        (envelope(BEA, "1"), "auth_violation", "1"),
        (envelope(ANA, "2", "system/welcome"), "reserved_kind", "2"),
        (envelope(ANA, "3", "presence"), "reserved_kind", "3"),
        (envelope(ANA, "4", "admin/reset"), "capability_violation", "4"),
        (envelope(ANA, "5", "mcp/reject"), "unknown_kind", "5"),
        (envelope(ANA, "6", "mcp/response:tools/call"), "unasked_response", "6"),
        (envelope(ANA, "7", protocol="mcp-x/v0"), "invalid_envelope", "7"),
        (b"[1, 2]", "invalid_envelope", ""),
        (b"\xff\xfe", "invalid_envelope", ""),
    ],
)
async def test_what_is_refused_is_told_to_its_sender_alone(
    data: bytes, error: str, id: str
) -> None:
    house = House()
    ana, bea = await house.joins(ANA), await house.joins(BEA)
    before = len(bea.texts)
    house.says_bytes(ANA, data)
    (told,) = ana.heard("system/error")
    assert told["payload"]["error"] == error
    assert told["payload"]["your_capabilities"] == [*USUAL]
    assert set(told["payload"]) == {"error", "message", "attempted_kind", "your_capabilities"}
    assert (told["to"], told.get("correlation_id", "")) == ([ANA], id)
    assert len(bea.texts) == before
    assert ana.said == []


async def test_directed_members_get_what_is_for_them_and_what_follows_from_their_own() -> None:
    house = House()
    ana = await house.joins(ANA, DeliveryMode.DIRECTED)
    bea = await house.joins(BEA)
    ci = await house.joins(CI, DeliveryMode.DIRECTED)
    house.says(BEA, "for all")
    house.says(BEA, "for ci", to=[CI])
    house.says(CI, "proposal", "mcp/proposal:tools/call", to=[BEA])
    house.says(BEA, "fulfilment", "mcp/request:tools/call", to=[ANA], correlation_id="proposal")
    house.says(ANA, "result", "mcp/response:tools/call", to=[BEA], correlation_id="fulfilment")
    assert bea.said == ["for all", "for ci", "proposal", "fulfilment", "result"]
    assert ci.said == ["for all", "for ci", "fulfilment", "result"]
    assert ana.said == ["for all", "fulfilment"]


async def test_who_joins_is_given_what_was_said_lately_where_that_is_kept() -> None:
    house = House(TopicSettings(Entrance.PUBLIC, USUAL, history=2))
    await house.joins(ANA)
    for id in ("1", "2", "3"):
        house.says(ANA, id)
    bea = await house.joins(BEA)
    assert [each["kind"] for each in bea.heard()[:3]] == ["system/welcome", "chat", "chat"]
    assert bea.said == ["2", "3"]
    house.says(ANA, "4", to=[ANA])
    ci = await house.joins(CI, DeliveryMode.DIRECTED)
    assert ci.said == ["3"]


async def test_what_is_kept_is_bounded_in_bytes_too() -> None:
    house = House(TopicSettings(Entrance.PUBLIC, USUAL, history=10_000))
    await house.joins(ANA)
    size = MAX_HISTORY_BYTES // 8
    for number in range(12):
        house.says(ANA, str(number), payload={"text": "x" * size})
    bea = await house.joins(BEA)
    assert sum(map(len, bea.texts)) < MAX_HISTORY_BYTES + 10_000
    assert bea.said == [str(number) for number in range(5, 12)]


async def test_a_slow_member_is_told_what_it_missed_and_nobody_else_waits() -> None:
    house = House()
    ana, bea = await house.joins(ANA), await house.joins(BEA)
    bea.is_full = True
    for id in ("1", "2", "3"):
        house.says(ANA, id)
    assert ana.said == ["1", "2", "3"]
    house.topics.on_resumed("ops", house.seats[BEA])
    assert house.seats[BEA].missed.count == 3
    bea.is_full = False
    house.topics.on_resumed("ops", house.seats[BEA])
    (told,) = bea.heard("system/missed")
    assert told["to"] == [BEA]
    assert told["payload"]["reason"] == "you read messages too slowly"
    del told["payload"]["reason"]
    assert told["payload"] == {"count": 3, "first": "1", "last": "3"}
    house.topics.on_resumed("ops", house.seats[BEA])
    assert len(bea.heard("system/missed")) == 1


async def test_what_comes_too_early_is_refused_and_told_now_and_then() -> None:
    house = House(pace=A_MINUTE)
    ana, bea = await house.joins(ANA), await house.joins(BEA)
    for number in range(200):
        house.says(ANA, str(number), "mcp/proposal:tools/call")
    assert len(bea.said) == 60
    told = [each["error"] for each in ana.errors]
    assert told == ["rate_limited"] * 15
    assert "try again in" in ana.errors[0]["message"]
    assert ana.ended == []


async def test_nonsense_counts_as_much_as_sense_and_its_errors_are_bounded() -> None:
    house = House(pace=A_MINUTE)
    ana = await house.joins(ANA)
    for _ in range(300):
        house.says_bytes(ANA, b"{")
    told = [each["error"] for each in ana.errors]
    assert told.count("invalid_envelope") == 60
    assert told.count("rate_limited") == 25
    assert len(told) == 85


async def test_who_goes_on_in_spite_of_being_told_has_to_go() -> None:
    house = House(pace=A_MINUTE)
    ana = await house.joins(ANA)
    for number in range(700):
        house.says(ANA, str(number), "mcp/proposal:tools/call")
    assert ana.codes[0] == FLOODING
    assert len(ana.errors) < 100


class Others:
    """Other nodes, as far as one is told of them."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.is_away = False

    def send(self, topic: str, message: TopicMessage) -> None:
        if self.is_away:
            raise Unavailable("NATS cannot be reached")
        self.told.append(message.envelope.id)

    def on_joined(self, topic: str, member: TopicMember) -> None:
        self.told.append(f"+{member.party}")

    def on_left(self, topic: str, party: str) -> None:
        self.told.append(f"-{party}")


async def test_other_nodes_are_told_and_where_they_cannot_be_the_sender_is() -> None:
    house = House()
    others = house.topics.remote_topic = Others()
    ana, bea = await house.joins(ANA), await house.joins(BEA)
    house.says(ANA, "1")
    others.is_away = True
    house.says(ANA, "2")
    assert others.told == [f"+{ANA}", f"+{BEA}", "1"]
    assert bea.said == ["1", "2"]
    (told,) = ana.heard("system/error")
    assert (told["payload"]["error"], told["correlation_id"]) == ("unreachable", "2")
    house.goes(BEA)
    assert others.told[-1] == f"-{BEA}"


async def test_members_at_other_nodes_come_and_go_like_others() -> None:
    house = House()
    ana = await house.joins(ANA)
    room = house.topics.topics["ops"]
    room.add_remote_member(BEA, RemoteMember("n-2", ("chat",), ""), is_newer=True)
    ci = await house.joins(CI)
    assert {"id": BEA, "capabilities": ["chat"]} in ci.welcomes[0]["participants"]
    room.remove_remote_member(BEA, "n-3")
    room.remove_remote_member(BEA, "n-2")
    assert ana.presence[1:] == [("join", BEA), ("join", CI), ("leave", BEA)]
    room.add_remote_member(CI, RemoteMember("n-2", (), ""), is_newer=False)
    assert ci.ended == []
    room.add_remote_member(CI, RemoteMember("n-2", (), ""), is_newer=True)
    assert ci.codes == [REPLACED]
    assert ana.presence[-1] == ("leave", BEA)
    room.send_missed_to_all(7, "node n-2 could not be heard")
    assert ana.heard("system/missed")[0]["payload"]["count"] == 7


async def test_who_is_built_in_is_no_member_and_has_no_pace() -> None:
    house = House(TopicSettings(Entrance.PUBLIC, USUAL, max_members=1), pace=A_MINUTE)
    ana = await house.joins(ANA)
    room, ear = house.topics.topics["ops"], Ear()
    inbox = TopicMember(Actor("system:approvals"), DeliveryMode.DIRECTED, ear, "built in")
    inbox.is_built_in = True
    inbox.may = house.seats[ANA].may
    room.add_member(inbox)
    assert room.member_count == 1
    for number in range(70):
        room.receive(
            inbox, envelope("system:approvals", str(number), "mcp/request:tools/list"), 0.0
        )
    assert len(ana.said) == 70
    house.says(ANA, "mine", to=["system:approvals"])
    assert ear.said[-1] == "mine"
    house.goes(ANA)
    assert not house.topics.topics


async def test_what_happens_is_written_down_once() -> None:
    house = House()
    noted = Noted()
    house.topics.audit = noted.journal
    await house.joins(CI)
    house.says(CI, "1", "mcp/proposal:x")
    house.says(CI, "1", "mcp/proposal:x")
    house.says_bytes(CI, b"{")
    await house.joins(CI)
    house.goes(CI)
    events = noted.take()
    assert [(each.type, each.details.get("error")) for each in events] == [
        (AuditType.TOPIC_JOINED, None),
        (AuditType.TOPIC_MESSAGE, None),
        (AuditType.TOPIC_REFUSED, "duplicate_id"),
        (AuditType.TOPIC_REFUSED, "invalid_envelope"),
        (AuditType.TOPIC_LEFT, None),
    ]
    assert {each.actor for each in events} == {CI}


def member_of(
    pace: MemberRateLimit = NO_RATE_LIMIT, spent: MemberRateState | None = None
) -> tuple[TopicMember, Ear]:
    ear = Ear()
    made = TopicMember(Actor(ANA), DeliveryMode.ALL, ear, "c-1")
    made.spent = spent or MemberRateState(pace)
    return made, ear


def test_of_what_nobody_knows_only_the_number_is_counted() -> None:
    missed = MissedMessages()
    missed.add("", 3)
    missed.add("e-9")
    missed.add("", 2)
    assert (missed.count, missed.first, missed.last) == (6, "e-9", "e-9")


def test_a_member_says_a_minutes_worth_at_once_and_then_as_it_is_earned() -> None:
    member, _ = member_of(A_MINUTE)
    assert all(not member.wait_for_rate("mcp/request:tools/list", 0.0) for _ in range(60))
    assert member.wait_for_rate("mcp/request:tools/list", 0.0) == pytest.approx(1.0)
    assert not member.wait_for_rate("mcp/request:tools/list", 1.0)
    assert member.wait_for_rate("mcp/request:tools/list", 1.0)


def test_chat_has_a_smaller_bound_of_its_own_and_counts_to_the_whole() -> None:
    member, _ = member_of(A_MINUTE)
    assert all(not member.wait_for_rate("chat", 0.0) for _ in range(10))
    assert member.wait_for_rate("chat", 0.0) == pytest.approx(6.0)
    assert all(not member.wait_for_rate("mcp/proposal:tools/call", 0.0) for _ in range(50))
    assert member.wait_for_rate("mcp/proposal:tools/call", 0.0)


def test_what_was_used_before_still_counts() -> None:
    spent = MemberRateState(MemberRateLimit(RateLimit(1, 60.0, 1), None))
    member, _ = member_of(spent=spent)
    assert not member.wait_for_rate("chat", 0.0)
    assert spent.is_limited(59.0)
    again, _ = member_of(spent=spent)
    assert again.wait_for_rate("chat", 30.0) == pytest.approx(30.0)
    assert not spent.is_limited(60.0)


SECRET = "a word that nobody keeps"


async def written(act: Any, what: TopicAuditLevel = TopicAuditLevel.MCP) -> list[AuditEvent]:
    """What is in the journal after this was done in a topic."""
    found: list[AuditEvent] = []
    async with kept(FailingStore()) as journal:
        journal.event_listeners.append(found.append)
        house = House(TopicSettings(Entrance.PUBLIC, USUAL, audit_level=what))
        house.topics.audit = journal
        await house.joins(ANA)
        await house.joins(CI)
        await act(house)
    return [each for each in found if "topic_" in each.type]


async def talk(house: House) -> None:
    payload = {"text": SECRET, "method": SECRET}
    house.says(ANA, "hello", payload=payload)
    house.says(CI, "wish", "mcp/proposal:tools/call:write", payload=payload, to=[BEA, ANA])
    house.says(ANA, "real", "mcp/request:tools/call:write", correlation_id="wish", payload=payload)
    house.says(CI, "bad", "admin/reset", payload=payload)
    house.goes(CI)


@loop_over(
    ("what", "ids"),
    [
        (TopicAuditLevel.NONE, []),
        (TopicAuditLevel.MCP, ["wish", "real"]),
        (TopicAuditLevel.ALL, ["hello", "wish", "real"]),
    ],
)
async def test_audit_level_says_which_envelopes_are_recorded_and_never_a_payload(
    what: TopicAuditLevel, ids: list[str]
) -> None:
    found = await written(talk, what)
    said = [each.details for each in found if each.type == AuditType.TOPIC_MESSAGE]
    assert [each["envelope"] for each in said] == ids
    assert all(each["correlation_id"] == "wish" for each in said if each["envelope"] == "real")
    assert SECRET not in json.dumps([dict(each.details) for each in found])


async def test_nobody_fills_the_journal_by_being_refused_or_coming_and_going() -> None:
    async def flood(house: House) -> None:
        for number in range(3 * MAX_EVENTS_AT_ONCE):
            house.says(CI, str(number), "admin/reset")
            await house.joins(BEA)
            house.goes(BEA)

    found = [each.type for each in await written(flood)]
    assert found.count(AuditType.TOPIC_REFUSED) == MAX_EVENTS_AT_ONCE
    assert found.count(AuditType.TOPIC_JOINED) == MAX_EVENTS_AT_ONCE + 2
    assert found.count(AuditType.TOPIC_LEFT) == MAX_EVENTS_AT_ONCE


async def test_what_others_chose_is_cut_to_a_length() -> None:
    async def long(house: House) -> None:
        everybody = [f"agent:{number}" for number in range(100)]
        house.says(CI, "1", "mcp/proposal:" + "x" * 600, to=everybody)

    (said,) = [each for each in await written(long) if each.type == AuditType.TOPIC_MESSAGE]
    assert said.details["kind"] == "mcp/proposal:" + "x" * 243
    assert said.details["to"] == [f"agent:{number}" for number in range(20)]


async def test_where_the_journal_is_full_nobody_waits() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        store.gate.clear()
        house = House()
        house.topics.audit = journal
        await house.joins(CI)
        for number in range(20_000):
            house.says(CI, str(number), "mcp/proposal:x")
            if not journal.has_room:
                break
        house.says(CI, "last", "mcp/proposal:x")
        assert house.ears[CI].said[-1] == "last"
        store.gate.set()
