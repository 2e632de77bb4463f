"""What is suggested from the records, who may decide about it, and what is written down of that."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.adapters.memory.records import MemoryRecords
from comity.kernel.administration import Administration
from comity.kernel.certainty import Certainty
from comity.kernel.grants import Grants
from comity.kernel.journal import Journal, Pace
from comity.kernel.precedents import Past, Precedents
from comity.kernel.snapshot import Snapshot
from comity.ports.journaling import Sought
from comity.rules.access import Decided
from comity.rules.precedents import Became, Known, Measure
from comity.wire.asks import ANSWER_OWN, Verdict
from comity.wire.audit import Event, Result, Type, event_of
from comity.wire.errors import ACCESS_DENIED, NOTHING_HERE, MalformedMessage
from comity.wire.grants import CALL, Effect, Forbid, Grant
from comity.wire.parties import Actor, PartyKind
from tests.kernel.decisions import ANA, BEN, Decisions

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
OPERATOR = Actor("person:ops@example.org", PartyKind.PERSON)
ADMIN = tuple(
    Grant(OPERATOR.party, verb, "*", Effect.ALLOW) for verb in ("admin/read", "admin/write")
)
ASKS = Grant("agent:x", CALL, "fs/*", Effect.ASK)
DECIDED = Decisions(now=NOW, days=9)


@dataclass
class Scene:
    """Records, the grants in force, and the suggestions that follow from them."""

    records: MemoryRecords = field(default_factory=MemoryRecords)
    known: Known | None = field(default_factory=lambda: Known("d1"))
    now: datetime = NOW
    journal: Journal = field(init=False)
    precedents: Precedents = field(init=False)
    snapshot: Snapshot = field(init=False)

    async def open(self, decided: Decided) -> None:
        certainty = Certainty()
        grants = Grants(clock=lambda: self.now, certainty=certainty)
        self.snapshot = Snapshot(self.records, grants, certainty, decided)
        await self.snapshot.refresh()
        administration = Administration(
            self.records.grants, grants, self.snapshot.refresh, lambda: self.now
        )
        pace = Pace(timedelta(milliseconds=1))
        self.journal = Journal(self.records.journal, "n-1", pace, lambda: self.now)
        past = Past(self.records.asks, self.records.journal, lambda server, tool: self.known)
        self.precedents = Precedents(
            past, administration, self.journal, Measure(), lambda: self.now
        )

    async def told(self, *types: str) -> list[Event]:
        lines = await self.records.journal.find(Sought(types=types))
        return [event_of(line.body) for line in lines]

    async def blocked(self, path: str, trace: str = "f" * 32) -> None:
        """A call that was refused, in the journal."""
        await self.journal.write(
            Event(
                *(Type.TOOL_BLOCKED, "agent:x", self.now, PartyKind.AGENT, "fs", "read_file"),
                *(Result.BLOCKED, trace, "", {"arguments": {"path": path}}),
            )
        )


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    made = Scene()
    await made.open(Decided((*ADMIN, ASKS)))
    async with made.journal.kept():
        yield made


async def _ids(scene: Scene) -> list[str]:
    return [each.suggestion.id for each in (await scene.precedents.found(OPERATOR)).shown]


async def test_decisions_of_the_records_become_a_suggestion_with_a_dry_run(scene: Scene) -> None:
    await DECIDED.put(scene.records, 23)
    for number in range(4):
        await scene.blocked(f"/project/refused/{number}", f"{number:032x}")
    await scene.blocked("/etc/passwd")
    (shown,) = (await scene.precedents.found(OPERATOR)).shown
    assert shown.suggestion.words == (
        "always allow `fs__read_file` under /project for agent:x: 23 of 23 approved by two people "
        "in 9 days"
    )
    assert shown.is_whole
    assert shown.rehearsal.sentence == (
        "would have allowed 23; would also have allowed 4 that were never asked; would not have "
        "covered 1"
    )
    assert [each.arguments for each in shown.rehearsal.listed] == [{"path": "/etc/passwd"}]


async def test_a_refused_call_that_was_asked_about_is_counted_once(scene: Scene) -> None:
    await DECIDED.put(scene.records, 12)
    (silent,) = await Decisions(now=NOW, days=0.5).put(scene.records, 1, verdict=None)
    await scene.blocked("/project/0.txt", silent.trace)
    (shown,) = (await scene.precedents.found(OPERATOR)).shown
    assert shown.rehearsal.covered == {Became.APPROVED: 12, Became.UNANSWERED: 1}


async def test_what_is_older_than_the_window_does_not_count(scene: Scene) -> None:
    await DECIDED.put(scene.records, 12)
    scene.now = NOW + timedelta(days=40)
    assert await _ids(scene) == []


async def test_a_no_in_the_window_holds_it_back_with_the_reason(scene: Scene) -> None:
    await DECIDED.put(scene.records, 20)
    await Decisions(now=NOW, days=2).put(scene.records, 1, verdict=Verdict.DECLINE)
    found = await scene.precedents.found(OPERATOR)
    assert found.shown == ()
    assert [each.why for each in found.held_back] == ["a person has said no to such a call as well"]


@pytest.mark.parametrize(
    "known", [None, Known("d2"), Known(""), Known("d1", "what it does cannot be undone")]
)
async def test_a_changed_or_irreversible_tool_is_not_suggested(
    scene: Scene, known: Known | None
) -> None:
    await DECIDED.put(scene.records, 20)
    scene.known = known
    assert await _ids(scene) == []


async def test_what_is_accepted_is_granted_in_the_persons_name_and_answers(scene: Scene) -> None:
    await DECIDED.put(scene.records, 12)
    (id,) = await _ids(scene)
    grant = await scene.precedents.accept(OPERATOR, id, "they only read")
    assert (grant.subject, grant.target, grant.effect) == ("agent:x", "fs/read_file", Effect.ALLOW)
    assert grant.granted_by == OPERATOR.party
    assert grant.justification.startswith("always allow `fs__read_file` under /project for agent:x")
    assert grant.justification.endswith("(they only read)")
    answers = scene.snapshot.grants.standing_answer
    called = (Actor("agent:x"), "fs", "read_file")
    assert answers(*called, {"path": "/project/new.txt"}, "d1") == grant
    assert answers(*called, {"path": "/project/new.txt"}, "d2") is None
    assert answers(*called, {"path": "/etc/passwd"}, "d1") is None
    assert answers(Actor("agent:y"), *called[1:], {"path": "/project/new.txt"}, "d1") is None
    (event,) = await scene.told(Type.SUGGESTION_ACCEPTED)
    assert (event.actor, event.server, event.tool) == (OPERATOR.party, "fs", "read_file")
    assert event.details["grant"] == grant.id
    assert event.details["people"] == [ANA, BEN]
    # What is granted is not suggested once more.
    assert await _ids(scene) == []


async def test_a_dismissed_one_comes_back_with_twice_the_evidence(scene: Scene) -> None:
    await DECIDED.put(scene.records, 10)
    (id,) = await _ids(scene)
    await scene.precedents.dismiss(OPERATOR, id, "not yet")
    (event,) = await scene.told(Type.SUGGESTION_DISMISSED)
    assert (event.details["reason"], event.details["decisions"]) == ("not yet", 10)
    assert await _ids(scene) == []
    await replace(DECIDED, days=4.5).put(scene.records, 9)
    assert await _ids(scene) == []
    # Also where nothing is remembered but what the journal tells.
    forgetful = Scene(scene.records)
    await forgetful.open(Decided((*ADMIN, ASKS)))
    assert await _ids(forgetful) == []
    await replace(DECIDED, days=1.3).put(scene.records, 1)
    assert len(await _ids(scene)) == len(await _ids(forgetful)) == 1


@pytest.mark.parametrize(
    "actor",
    [
        Actor(OPERATOR.party, PartyKind.AGENT),
        Actor(OPERATOR.party, PartyKind.SERVER),
        Actor(OPERATOR.party, PartyKind.SYSTEM),
        Actor("person:eve@example.org", PartyKind.PERSON),
        Actor("", PartyKind.PERSON),
        replace(OPERATOR, permissions=(("admin/read", "*"),)),
        replace(OPERATOR, permissions=()),
    ],
)
async def test_only_a_person_who_may_write_grants_decides(scene: Scene, actor: Actor) -> None:
    await DECIDED.put(scene.records, 12)
    (id,) = await _ids(scene)
    for decide in (scene.precedents.accept, scene.precedents.dismiss):
        with pytest.raises(MalformedMessage) as refused:
            await decide(actor, id)
        assert refused.value.fault is ACCESS_DENIED
    assert await scene.records.grants.page() == []
    assert await _ids(scene) == [id]


async def test_nobody_accepts_what_it_asked_for_itself_unless_that_was_granted() -> None:
    asker = replace(DECIDED, asker=OPERATOR.party)
    own = Grant(OPERATOR.party, ANSWER_OWN, "*", Effect.ALLOW)
    everything = Grant(OPERATOR.party, "*", "*", Effect.ALLOW)
    asks = replace(ASKS, subject=OPERATOR.party)
    for grants, may in (
        ((*ADMIN, asks), False),
        ((everything, asks), False),
        ((*ADMIN, asks, own), True),
    ):
        scene = Scene()
        await scene.open(Decided(grants))
        async with scene.journal.kept():
            await asker.put(scene.records, 12)
            (id,) = await _ids(scene)
            if may:
                assert (await scene.precedents.accept(OPERATOR, id)).where is not None
            else:
                with pytest.raises(MalformedMessage, match="for itself"):
                    await scene.precedents.accept(OPERATOR, id)


async def test_only_what_is_suggested_now_can_be_accepted(scene: Scene) -> None:
    await DECIDED.put(scene.records, 12)
    (id,) = await _ids(scene)
    for wrong in ("", "nope", id.upper(), id[:-1]):
        with pytest.raises(MalformedMessage) as refused:
            await scene.precedents.accept(OPERATOR, wrong)
        assert refused.value.fault is NOTHING_HERE
    # Somebody has said no in the meantime.
    await Decisions(now=NOW, days=0.01).put(scene.records, 1, verdict=Verdict.DECLINE)
    with pytest.raises(MalformedMessage, match="not any more"):
        await scene.precedents.accept(OPERATOR, id)


async def test_another_condition_has_another_id(scene: Scene) -> None:
    await DECIDED.put(scene.records, 12)
    (id,) = await _ids(scene)

    def elsewhere(number: int) -> dict[str, Any]:
        return {"path": f"/project2/{number}.txt"}

    await replace(DECIDED, days=3).put(scene.records, 3, elsewhere)
    # Both trees have only the root in common.
    assert await _ids(scene) == []
    with pytest.raises(MalformedMessage):
        await scene.precedents.accept(OPERATOR, id)


@pytest.mark.parametrize(
    "decided",
    [
        Decided(ADMIN),
        Decided((*ADMIN, replace(ASKS, effect=Effect.DENY))),
        Decided((*ADMIN, replace(ASKS, target="fs/read_file", effect=Effect.ALLOW))),
        Decided((*ADMIN, ASKS), (Forbid("agent:*", CALL, "fs/*"),)),
    ],
)
async def test_what_is_denied_or_granted_already_is_not_suggested(decided: Decided) -> None:
    scene = Scene()
    await scene.open(decided)
    await DECIDED.put(scene.records, 12)
    assert await _ids(scene) == []


async def test_whoever_may_not_read_grants_is_told_nothing(scene: Scene) -> None:
    with pytest.raises(MalformedMessage):
        await scene.precedents.found(Actor("agent:x"))
