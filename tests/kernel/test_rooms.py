"""One topic: who is told what, in which order and in which bytes. (MCPx §3, §4.2, §6.3, §6.4)"""

import json

import pytest

from comity.kernel.rooms import FLOODING, MOST_KEPT_BYTES, REPLACED, Elsewhere, Terms
from comity.kernel.seats import Said, Seat
from comity.rules.topics import Access as Entrance
from comity.rules.topics import Mode, Refusal
from comity.wire.envelope import Envelope
from comity.wire.errors import Unavailable
from comity.wire.parties import Actor
from tests.kernel.topic_house import A_MINUTE, ANA, BEA, CI, USUAL, Ear, House, envelope

ODD = (
    b' {"payload" :\n{"text":"h\\u00e9", "n": 1.0e2, "text":"twice"}, "x-more": [1,\t2],'
    b'"kind":"chat","from":"person:ana@example.org" ,"id":"odd\\u002d1","protocol":"mcpx/v0.1"}\r\n'
)


async def test_who_joins_is_welcomed_first_and_then_everybody_is_told() -> None:
    house = House()
    ana = await house.joins(ANA)
    bea = await house.joins(BEA)
    kinds = [each["kind"] for each in bea.heard()]
    assert kinds == ["system/welcome", "system/presence"]
    (welcome,) = bea.heard("system/welcome")
    assert (welcome["from"], welcome["to"]) == ("system:gateway", [BEA])
    assert welcome["payload"]["you"] == {"id": BEA, "capabilities": [*USUAL]}
    assert welcome["payload"]["participants"] == [{"id": ANA, "capabilities": [*USUAL]}]
    assert bea.presence == [("join", BEA)]
    assert ana.presence == [("join", ANA), ("join", BEA)]
    joined = ana.heard("system/presence")[-1]
    assert "to" not in joined
    assert joined["payload"]["participant"]["capabilities"] == [*USUAL]


async def test_what_is_said_reaches_everybody_as_the_very_bytes() -> None:
    house = House()
    ana, bea = await house.joins(ANA), await house.joins(BEA)
    house.says_bytes(ANA, ODD)
    assert ana.texts[-1] == bea.texts[-1] == ODD
    assert ana.frames[-1] is bea.frames[-1]


async def test_a_payload_is_not_read() -> None:
    house = House()
    bea = await house.joins(BEA)
    await house.joins(ANA)
    house.says(ANA, "1", "mcp/request:tools/call:safe", payload={"method": 3, "jsonrpc": "1.0"})
    house.says(ANA, "2", "mcp/request:nonsense", payload={})
    assert bea.said == ["1", "2"]


@pytest.mark.parametrize(
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


async def test_an_id_is_used_once() -> None:
    house = House()
    ana = await house.joins(ANA)
    await house.joins(BEA)
    house.says(BEA, "same")
    house.says(ANA, "same")
    assert ana.errors[0]["error"] == "duplicate_id"
    assert ana.said == ["same"]


async def test_only_whoever_was_asked_answers() -> None:
    house = House()
    ana, bea, ci = [await house.joins(party) for party in (ANA, BEA, CI)]
    house.says(ANA, "ask", "mcp/request:tools/call", to=[BEA])
    house.says(CI, "forged", "mcp/response:tools/call", correlation_id="ask", to=[ANA])
    house.says(BEA, "true", "mcp/response:tools/call", correlation_id="ask", to=[ANA])
    assert ci.errors[0]["error"] == "unasked_response"
    assert ana.said == bea.said == ["ask", "true"]
    house.says(ANA, "anyone", "mcp/request:tools/list")
    house.says(CI, "me", "mcp/response:tools/list", correlation_id="anyone")
    assert ana.said[-1] == "me"


async def test_directed_members_get_what_is_for_them_and_what_follows_from_their_own() -> None:
    house = House()
    ana = await house.joins(ANA, Mode.DIRECTED)
    bea = await house.joins(BEA)
    ci = await house.joins(CI, Mode.DIRECTED)
    house.says(BEA, "for all")
    house.says(BEA, "for ci", to=[CI])
    house.says(CI, "proposal", "mcp/proposal:tools/call", to=[BEA])
    house.says(BEA, "fulfilment", "mcp/request:tools/call", to=[ANA], correlation_id="proposal")
    house.says(ANA, "result", "mcp/response:tools/call", to=[BEA], correlation_id="fulfilment")
    assert bea.said == ["for all", "for ci", "proposal", "fulfilment", "result"]
    assert ci.said == ["for all", "for ci", "fulfilment", "result"]
    assert ana.said == ["for all", "fulfilment"]


async def test_the_newest_connection_stays_and_nobody_notices() -> None:
    house = House()
    bea = await house.joins(BEA)
    older = await house.joins(ANA)
    heard = len(bea.texts)
    newer = await house.joins(ANA)
    assert older.codes == [REPLACED]
    assert len(bea.texts) == heard
    house.says(BEA, "e-1")
    assert (older.said, newer.said) == ([], ["e-1"])
    assert newer.presence == []


async def test_later_kinds_are_there_where_a_topic_has_them() -> None:
    house = House(Terms(Entrance.PUBLIC, USUAL, is_strict=False))
    ana = await house.joins(ANA)
    house.says(ANA, "1", "mcp/proposal:tools/call")
    house.says(ANA, "2", "mcp/withdraw", correlation_id="1")
    assert ana.said == ["1", "2"]


async def test_who_joins_is_given_what_was_said_lately_where_that_is_kept() -> None:
    house = House(Terms(Entrance.PUBLIC, USUAL, history=2))
    await house.joins(ANA)
    for id in ("1", "2", "3"):
        house.says(ANA, id)
    bea = await house.joins(BEA)
    assert [each["kind"] for each in bea.heard()[:3]] == ["system/welcome", "chat", "chat"]
    assert bea.said == ["2", "3"]
    house.says(ANA, "4", to=[ANA])
    ci = await house.joins(CI, Mode.DIRECTED)
    assert ci.said == ["3"]


async def test_what_is_kept_is_bounded_in_bytes_too() -> None:
    house = House(Terms(Entrance.PUBLIC, USUAL, history=10_000))
    await house.joins(ANA)
    size = MOST_KEPT_BYTES // 8
    for number in range(12):
        house.says(ANA, str(number), payload={"text": "x" * size})
    bea = await house.joins(BEA)
    assert sum(map(len, bea.texts)) < MOST_KEPT_BYTES + 10_000
    assert bea.said == [str(number) for number in range(5, 12)]


async def test_without_history_nothing_is_kept() -> None:
    house = House()
    await house.joins(ANA)
    house.says(ANA, "1")
    assert (await house.joins(BEA)).said == []


async def test_a_slow_member_is_told_what_it_missed_and_nobody_else_waits() -> None:
    house = House()
    ana, bea = await house.joins(ANA), await house.joins(BEA)
    bea.is_full = True
    for id in ("1", "2", "3"):
        house.says(ANA, id)
    assert ana.said == ["1", "2", "3"]
    house.topics.resumed("ops", house.seats[BEA])
    assert house.seats[BEA].missed.count == 3
    bea.is_full = False
    house.topics.resumed("ops", house.seats[BEA])
    (told,) = bea.heard("system/missed")
    assert told["to"] == [BEA]
    assert told["payload"]["because"] == "you took what is said here too slowly"
    del told["payload"]["because"]
    assert told["payload"] == {"count": 3, "first": "1", "last": "3"}
    house.topics.resumed("ops", house.seats[BEA])
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

    def say(self, topic: str, said: Said) -> None:
        if self.is_away:
            raise Unavailable("NATS cannot be reached")
        self.told.append(said.envelope.id)

    def joined(self, topic: str, seat: Seat) -> None:
        self.told.append(f"+{seat.party}")

    def left(self, topic: str, party: str) -> None:
        self.told.append(f"-{party}")


async def test_other_nodes_are_told_and_where_they_cannot_be_the_sender_is() -> None:
    house = House()
    others = house.topics.span = Others()
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
    room = house.topics.rooms["ops"]
    room.came_elsewhere(BEA, Elsewhere("n-2", ("chat",), ""), is_newer=True)
    ci = await house.joins(CI)
    assert {"id": BEA, "capabilities": ["chat"]} in ci.welcomes[0]["participants"]
    room.went_elsewhere(BEA, "n-3")
    room.went_elsewhere(BEA, "n-2")
    assert ana.presence[1:] == [("join", BEA), ("join", CI), ("leave", BEA)]
    room.came_elsewhere(CI, Elsewhere("n-2", (), ""), is_newer=False)
    assert ci.ended == []
    room.came_elsewhere(CI, Elsewhere("n-2", (), ""), is_newer=True)
    assert ci.codes == [REPLACED]
    assert ana.presence[-1] == ("leave", BEA)
    room.tell_all_missed(7, "node n-2 could not be heard")
    assert ana.heard("system/missed")[0]["payload"]["count"] == 7


async def test_who_is_built_in_is_no_member_and_has_no_pace() -> None:
    house = House(Terms(Entrance.PUBLIC, USUAL, members=1), pace=A_MINUTE)
    ana = await house.joins(ANA)
    room, ear = house.topics.rooms["ops"], Ear()
    inbox = Seat(Actor("system:inbox"), Mode.DIRECTED, ear, "built in")
    inbox.is_built_in = True
    inbox.may = house.seats[ANA].may
    room.take(inbox)
    assert room.members == 1
    for number in range(70):
        room.say(inbox, envelope("system:inbox", str(number), "mcp/request:tools/list"), 0.0)
    assert len(ana.said) == 70
    house.says(ANA, "mine", to=["system:inbox"])
    assert ear.said[-1] == "mine"
    house.goes(ANA)
    assert not house.topics.rooms


class Notes:
    """Who writes down what happens."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def said(self, topic: str, envelope: Envelope) -> None:
        self.notes.append(f"said {envelope.id}")

    def refused(self, topic: str, seat: Seat, envelope: Envelope | None, why: Refusal) -> None:
        self.notes.append(f"refused {'' if envelope is None else envelope.id}{why.error}")

    def joined(self, topic: str, seat: Seat) -> None:
        self.notes.append(f"joined {seat.party}")

    def left(self, topic: str, party: str) -> None:
        self.notes.append(f"left {party}")


async def test_what_happens_is_written_down_once() -> None:
    house = House()
    notes = house.topics.chronicle = Notes()
    await house.joins(CI)
    house.says(CI, "1")
    house.says(CI, "1")
    house.says_bytes(CI, b"{")
    await house.joins(CI)
    house.goes(CI)
    assert notes.notes == [
        *(f"joined {CI}", "said 1", "refused 1duplicate_id"),
        *("refused invalid_envelope", f"left {CI}"),
    ]


async def test_system_words_are_envelopes_like_others() -> None:
    house = House()
    ana = await house.joins(ANA)
    for text in ana.texts:
        told = json.loads(text)
        assert (told["protocol"], told["from"]) == ("mcpx/v0.1", "system:gateway")
        assert told["ts"].startswith("2026-01-01T12:00:00")
        assert len(told["id"]) == 36
