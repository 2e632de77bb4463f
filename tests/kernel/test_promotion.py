"""Capabilities as operators change them: written as grants, in force and told at once."""

from datetime import timedelta

import pytest

from comity.adapters.memory.records import MemoryRecords
from comity.kernel.administration import Administration
from comity.kernel.certainty import Certainty
from comity.kernel.grants import Grants
from comity.kernel.promotion import MOST_AT_ONCE, Promotion
from comity.kernel.rooms import Terms
from comity.kernel.snapshot import Snapshot
from comity.kernel.topics import Bounds, Topics
from comity.ports import Kept
from comity.rules.access import Decided
from comity.rules.entitlement import SEND
from comity.rules.topics import Access as Entrance
from comity.rules.topics import Mode
from comity.wire.errors import ACCESS_DENIED, INVALID_PARAMS, MalformedMessage
from comity.wire.grants import ADMIN_READ, ADMIN_WRITE, Effect, Grant
from comity.wire.parties import Actor
from tests.kernel.topic_house import ANA, BEA, CI, NOON, Ear

ADMIN = Actor(ANA)
ADMINISTERS = tuple(Grant(ANA, verb, "*", Effect.ALLOW) for verb in (ADMIN_READ, ADMIN_WRITE))
OF_FILE = Grant(BEA, SEND, "ops/mcp/*", Effect.ALLOW)


class Scene:
    def __init__(self) -> None:
        self.records = MemoryRecords()
        certainty = Certainty()
        grants = Grants(clock=lambda: NOON, certainty=certainty)
        self.snapshot = Snapshot(self.records, grants, certainty, Decided((*ADMINISTERS, OF_FILE)))
        terms = Terms(Entrance.RESTRICTED)
        self.topics = Topics(grants, lambda _: terms, Bounds(), lambda: 0.0, lambda: NOON)
        self.snapshot.watch(Kept.GRANTS, self.topics.regranted)
        administration = Administration(
            self.records.grants, grants, self.snapshot.refresh, lambda: NOON
        )
        self.promotion = Promotion(administration, self.topics)

    async def kept(self) -> list[tuple[str, str, str, str]]:
        found = await self.records.grants.page()
        return sorted((each.subject, each.target, each.effect, each.granted_by) for each in found)


@pytest.fixture
async def scene() -> Scene:
    made = Scene()
    await made.snapshot.refresh()
    return made


async def test_what_is_added_is_a_grant_by_whoever_added_it(scene: Scene) -> None:
    changed = await scene.promotion.change(ADMIN, CI, "ops", ["mcp/proposal:*", "chat"], [])
    assert (changed.party, changed.before) == (CI, ())
    assert set(changed.now) == {"mcp/proposal:*", "chat"}
    assert await scene.kept() == [
        (CI, "ops/chat", "allow", ANA),
        (CI, "ops/mcp/proposal:*", "allow", ANA),
    ]


async def test_who_is_there_is_told_at_once(scene: Scene) -> None:
    await scene.promotion.change(ADMIN, CI, "ops", ["chat"], [])
    ear = Ear()
    await scene.topics.join("ops", Actor(CI), Mode.ALL, ear)
    await scene.promotion.change(ADMIN, CI, "*", ["mcp/request:tools/*"], [])
    assert set(ear.welcomes[-1]["you"]["capabilities"]) == {"chat", "mcp/request:tools/*"}
    assert set(scene.promotion.of(CI, "*")) == {"chat", "mcp/request:tools/*"}
    await scene.promotion.change(ADMIN, CI, "*", [], ["mcp/request:tools/*"])
    assert ear.welcomes[-1]["you"]["capabilities"] == ["chat"]


async def test_what_another_grant_would_still_give_is_denied(scene: Scene) -> None:
    changed = await scene.promotion.change(ADMIN, BEA, "ops", [], ["mcp/request:*"])
    assert changed.now == ("mcp/*",)
    assert await scene.kept() == [(BEA, "ops/mcp/request:*", "deny", ANA)]
    may = scene.topics.entitled("ops", Actor(BEA)).may
    assert (may.cover("mcp/request:x"), may.cover("mcp/proposal:x")) == (False, True)
    await scene.promotion.change(ADMIN, BEA, "ops", ["mcp/request:*"], [])
    assert scene.topics.entitled("ops", Actor(BEA)).may.cover("mcp/request:x")


async def test_what_stands_in_the_file_is_denied_where_it_is_removed(scene: Scene) -> None:
    changed = await scene.promotion.change(ADMIN, BEA, "ops", [], ["mcp/*"])
    assert (changed.before, changed.now) == (("mcp/*",), ())


async def test_only_operators_change_capabilities(scene: Scene) -> None:
    with pytest.raises(MalformedMessage) as error:
        await scene.promotion.change(Actor(BEA), CI, "ops", ["chat"], [])
    assert error.value.fault is ACCESS_DENIED
    assert await scene.kept() == []


@pytest.mark.parametrize(
    ("topic", "add", "remove"),
    [
        ("ops", ["with space"], []),
        ("ops", [], [""]),
        ("ops", ["x" * 257], []),
        ("ops", ["ché"], []),
        ("o/ps", ["chat"], []),
        ("", ["chat"], []),
        ("ops", [f"k{number}" for number in range(MOST_AT_ONCE + 1)], []),
    ],
)
async def test_what_is_no_capability_or_no_topic_changes_nothing(
    scene: Scene, topic: str, add: list[str], remove: list[str]
) -> None:
    with pytest.raises(MalformedMessage) as error:
        await scene.promotion.change(ADMIN, CI, topic, add, remove)
    assert error.value.fault is INVALID_PARAMS
    assert await scene.kept() == []


async def test_a_grant_that_ends_is_replaced_by_one_that_does_not(scene: Scene) -> None:
    ends = NOON + timedelta(hours=1)
    await scene.records.grants.put(Grant(CI, SEND, "ops/chat", Effect.ALLOW, expires_at=ends))
    await scene.snapshot.refresh()
    await scene.promotion.change(ADMIN, CI, "ops", ["chat", "chat"], [])
    assert scene.topics.entitled("ops", Actor(CI)).until is None
