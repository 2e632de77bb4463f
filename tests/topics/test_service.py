"""The topics of a node: who gets in, what is in force, and when a place is given up. (MCPx §5)"""

import asyncio
from datetime import timedelta

import pytest

from comity.errors import (
    EXHAUSTED,
    RATE_LIMITED,
    Fault,
    MalformedMessage,
    Unavailable,
)
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, Actor
from comity.policy.administration import GrantAdmin
from comity.policy.grants import Effect, Grant, StaticRules
from comity.policy.snapshot import GrantSnapshot, PolicySnapshot, SnapshotFreshness
from comity.storage.changes import RecordKind
from comity.topics.rules import SEND
from comity.topics.rules import TopicAccess as Entrance
from comity.topics.service import (
    MAX_TOPICS_PER_PARTY,
    CapabilityAdmin,
    TopicLimits,
    TopicService,
)
from comity.topics.topic import UNENTITLED, Topic, TopicSettings
from tests.support.inline_store import inline_records
from tests.support.topic_house import (
    A_MINUTE,
    ANA,
    BEA,
    CI,
    NOON,
    USUAL,
    AllKnown,
    Granted,
    House,
    grant,
)

RESTRICTED = TopicSettings(Entrance.RESTRICTED, USUAL)


async def refused(house: House, party: str, topic: str = "ops") -> Fault:
    with pytest.raises(MalformedMessage) as error:
        await house.joins(party, topic=topic)
    return error.value.fault


async def test_a_topic_is_there_while_somebody_is_in_it() -> None:
    house = House()
    await house.joins(ANA)
    await house.joins(BEA)
    assert house.topics.member_count == 2
    house.goes(ANA)
    assert house.ears[BEA].presence[-1] == ("leave", ANA)
    assert list(house.topics.topics) == ["ops"]
    house.goes(BEA)
    assert not house.topics.topics
    assert not house.topics.memberships_of(BEA)


async def test_another_grant_is_in_force_at_once_and_told_by_a_new_welcome() -> None:
    house = House(RESTRICTED, Granted([grant(CI, "ops/chat")]))
    ci = await house.joins(CI)
    house.says(CI, "1", "mcp/request:tools/list")
    house.regrant(grant(CI, "ops/chat"), grant(CI, "ops/mcp/*"), party=CI)
    house.says(CI, "2", "mcp/request:tools/list")
    assert ci.errors[0]["error"] == "capability_violation"
    assert ci.said == ["2"]
    assert [each["you"]["capabilities"] for each in ci.welcomes] == [["chat"], ["chat", "mcp/*"]]
    house.regrant(grant(CI, "ops/chat"), grant(CI, "ops/mcp/*"), party="")
    assert len(ci.welcomes) == 2


async def test_who_may_be_there_no_more_has_to_go() -> None:
    house = House(RESTRICTED, Granted([grant(CI, "ops/chat"), grant(ANA, "ops/chat")]))
    ana, ci = await house.joins(ANA), await house.joins(CI)
    house.regrant(grant(ANA, "ops/chat"), party="*")
    assert ci.codes == [UNENTITLED]
    assert ana.presence[-1] == ("leave", CI)
    house.says(CI, "late")
    assert ana.said == []
    house.goes(CI)
    assert list(house.topics.topics["ops"].local_members) == [ANA]


async def test_a_grant_that_expires_is_over_at_its_time() -> None:
    house = House(RESTRICTED)
    ends = house.now + timedelta(seconds=30)
    house.regrant(grant(CI, "ops/chat"), grant(CI, "ops/mcp/*", expires_at=ends))
    ci = await house.joins(CI)
    house.pass_time(29)
    assert len(ci.welcomes) == 1
    house.pass_time(1)
    assert ci.welcomes[-1]["you"]["capabilities"] == ["chat"]
    assert ci.ended == []


async def test_credentials_that_expire_end_the_connection() -> None:
    house = House()
    ci = await house.joins(CI, expires_at=house.now + timedelta(seconds=30))
    house.pass_time(29)
    assert ci.ended == []
    house.pass_time(1)
    assert ci.ended == [(UNENTITLED, "your credentials are void")]
    assert not house.topics.topics


async def test_a_node_that_cannot_know_denies_and_looks_again() -> None:
    house = House(RESTRICTED, Granted([grant(CI, "ops/chat")]))
    ci = await house.joins(CI)
    house.grants.is_away = True
    house.topics.on_grants_changed("")
    assert ci.welcomes[-1]["you"]["capabilities"] == []
    with pytest.raises(Unavailable):
        await house.joins(ANA)
    house.grants.is_away = False
    house.pass_time(1)
    assert ci.welcomes[-1]["you"]["capabilities"] == ["chat"]
    assert ci.ended == []


async def test_a_cut_is_waited_for_and_nobody_sees_it() -> None:
    house = House()
    ana, _ = await house.joins(ANA), await house.joins(BEA)
    house.goes(BEA, is_clean=False)
    house.says(ANA, "1")
    house.says(ANA, "2")
    house.pass_time(4)
    bea = await house.joins(BEA)
    house.pass_time(60)
    assert ana.presence == [("join", ANA), ("join", BEA)]
    kinds = [each["kind"] for each in bea.heard()]
    assert kinds == ["system/welcome", "system/missed"]
    assert bea.heard("system/missed")[0]["payload"] == {
        "count": 2,
        "first": "1",
        "last": "2",
        "reason": "you were away for a moment",
    }


async def test_who_does_not_come_back_has_left() -> None:
    house = House()
    ana, _ = await house.joins(ANA), await house.joins(BEA)
    house.goes(BEA, is_clean=False)
    house.pass_time(4.9)
    assert ana.presence[-1] == ("join", BEA)
    house.pass_time(0.2)
    assert ana.presence[-1] == ("leave", BEA)


async def test_an_older_connection_that_ends_late_takes_nobody_along() -> None:
    house = House()
    await house.joins(ANA)
    older = house.seats[ANA]
    await house.joins(ANA)
    house.topics.on_disconnected("ops", older, is_clean=True)
    house.topics.receive("ops", older, b"{}")
    assert house.topics.topics["ops"].local_members[ANA] is house.seats[ANA]
    assert house.ears[ANA].errors == []


async def test_members_of_a_topic_are_bounded_and_whoever_is_there_may_come_again() -> None:
    house = House(TopicSettings(Entrance.PUBLIC, USUAL, max_members=2))
    await house.joins(ANA)
    await house.joins(BEA)
    assert await refused(house, CI) is EXHAUSTED
    await house.joins(BEA)
    house.goes(BEA)
    await house.joins(CI)


async def test_topics_of_one_party_are_bounded() -> None:
    house = House()
    for number in range(MAX_TOPICS_PER_PARTY):
        await house.joins(ANA, topic=f"t{number}")
    assert await refused(house, ANA, "more") is EXHAUSTED
    assert "more" not in house.topics.topics
    assert len(house.topics.memberships_of(ANA)) == MAX_TOPICS_PER_PARTY


async def test_who_goes_and_comes_again_may_not_for_that_say_more() -> None:
    house = House(pace=A_MINUTE)
    bea = await house.joins(BEA)
    for turn in range(3):
        await house.joins(ANA)
        for number in range(60):
            house.says(ANA, f"{turn}-{number}", "mcp/proposal:tools/call")
        house.goes(ANA, is_clean=turn % 2 == 0)
    assert len(bea.said) == 60
    house.pass_time(61)
    await house.joins(ANA)
    house.says(ANA, "again")
    assert bea.said[-1] == "again"


class Opening:
    """Who hears of a topic elsewhere: slowly, or not at all."""

    def __init__(self) -> None:
        self.may_go_on = asyncio.Event()
        self.is_broken = False
        self.entered: list[str] = []
        self.forgotten: list[str] = []

    async def subscribe(self, room: Topic) -> None:
        self.entered.append(room.name)
        await self.may_go_on.wait()
        if self.is_broken:
            raise Unavailable("no other node can be heard")

    def forget(self, topic: str) -> None:
        self.forgotten.append(topic)


async def test_a_topic_is_opened_once_however_many_come() -> None:
    house = House()
    opening = house.topics.interest_tracker = Opening()
    coming = [asyncio.ensure_future(house.joins(party)) for party in (ANA, BEA, CI)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in coming)
    opening.may_go_on.set()
    async with asyncio.timeout(5):
        await asyncio.gather(*coming)
    assert opening.entered == ["ops"]
    assert len(house.topics.topics["ops"].local_members) == 3


async def test_a_topic_that_cannot_be_opened_leaves_nothing_behind() -> None:
    house = House()
    opening = house.topics.interest_tracker = Opening()
    opening.may_go_on.set()
    opening.is_broken = True
    with pytest.raises(Unavailable):
        await house.joins(ANA)
    assert not house.topics.topics
    assert opening.forgotten == ["ops"]
    opening.is_broken = False
    await house.joins(ANA)
    assert opening.entered == ["ops", "ops"]


async def test_who_goes_away_while_a_topic_is_opened_leaves_nothing_behind() -> None:
    house = House()
    opening = house.topics.interest_tracker = Opening()
    coming = asyncio.ensure_future(house.joins(ANA))
    await asyncio.sleep(0)
    coming.cancel()
    await asyncio.gather(coming, return_exceptions=True)
    opening.may_go_on.set()
    async with asyncio.timeout(5):
        while house.topics.topics:
            await asyncio.sleep(0)
            house.pass_time(1)
    assert opening.forgotten == ["ops"]


async def test_what_was_taken_back_while_a_topic_was_opened_counts() -> None:
    house = House(RESTRICTED, Granted([grant(ANA, "ops/chat")]))
    opening = house.topics.interest_tracker = Opening()
    coming = asyncio.ensure_future(house.joins(ANA))
    await asyncio.sleep(0)
    house.regrant()
    opening.may_go_on.set()
    with pytest.raises(MalformedMessage):
        await coming
    assert not house.topics.topics


async def test_a_word_that_comes_after_the_topic_is_gone_goes_nowhere() -> None:
    house = House()
    await house.joins(ANA)
    seat = house.seats[ANA]
    house.goes(ANA)
    house.topics.receive("ops", seat, b"{}")
    house.topics.on_resumed("ops", seat)
    house.topics.on_disconnected("ops", seat, is_clean=True)
    assert not house.topics.topics


async def test_who_comes_and_goes_too_often_has_to_wait() -> None:
    house = House(pace=A_MINUTE)
    bea = await house.joins(BEA)
    for _ in range(60):
        await house.joins(ANA)
        house.goes(ANA, is_clean=True)
    with pytest.raises(Unavailable, match=r"too often; retry in 1\.0 s") as refused:
        await house.joins(ANA)
    assert refused.value.fault is RATE_LIMITED
    assert len(bea.heard("system/presence")) == 1 + 2 * 60
    house.pass_time(1.1)
    await house.joins(ANA)
    with pytest.raises(Unavailable, match="too often"):
        await house.joins(ANA)


ADMIN = Actor(ANA)
ADMINISTERS = tuple(Grant(ANA, verb, "*", Effect.ALLOW) for verb in (ADMIN_READ, ADMIN_WRITE))
OF_FILE = Grant(BEA, SEND, "ops/mcp/*", Effect.ALLOW)


class Scene:
    def __init__(self) -> None:
        self.records = inline_records()
        certainty = SnapshotFreshness()
        grants = GrantSnapshot(clock=lambda: NOON, freshness=certainty)
        self.snapshot = PolicySnapshot(
            self.records, grants, certainty, StaticRules((*ADMINISTERS, OF_FILE))
        )
        terms = TopicSettings(Entrance.RESTRICTED)
        self.topics = TopicService(
            grants, lambda _: terms, TopicLimits(), lambda: 0.0, lambda: NOON
        )
        self.snapshot.watch(RecordKind.GRANTS, self.topics.on_grants_changed)
        administration = GrantAdmin(
            self.records.grants, grants, self.snapshot.refresh, lambda: NOON
        )
        self.promotion = CapabilityAdmin(administration, self.topics, AllKnown())

    async def kept(self) -> list[tuple[str, str, str, str]]:
        found = await self.records.grants.page()
        return sorted((each.subject, each.target, each.effect, each.granted_by) for each in found)


@pytest.fixture
async def scene() -> Scene:
    made = Scene()
    await made.snapshot.refresh()
    return made


async def test_what_another_grant_would_still_give_is_denied(scene: Scene) -> None:
    changed = await scene.promotion.change(ADMIN, BEA, "ops", [], ["mcp/request:*"])
    assert changed.now == ("mcp/*",)
    assert await scene.kept() == [(BEA, "ops/mcp/request:*", "deny", ANA)]
    may = scene.topics.entitlement_of("ops", Actor(BEA)).capabilities
    assert (may.allows("mcp/request:x"), may.allows("mcp/proposal:x")) == (False, True)
    await scene.promotion.change(ADMIN, BEA, "ops", ["mcp/request:*"], [])
    assert scene.topics.entitlement_of("ops", Actor(BEA)).capabilities.allows("mcp/request:x")


async def test_what_stands_in_the_file_is_denied_where_it_is_removed(scene: Scene) -> None:
    changed = await scene.promotion.change(ADMIN, BEA, "ops", [], ["mcp/*"])
    assert (changed.before, changed.now) == (("mcp/*",), ())


async def test_a_grant_that_ends_is_replaced_by_one_that_does_not(scene: Scene) -> None:
    ends = NOON + timedelta(hours=1)
    await scene.records.grants.put(Grant(CI, SEND, "ops/chat", Effect.ALLOW, expires_at=ends))
    await scene.snapshot.refresh()
    await scene.promotion.change(ADMIN, CI, "ops", ["chat", "chat"], [])
    assert scene.topics.entitlement_of("ops", Actor(CI)).until is None
