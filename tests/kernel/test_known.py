"""How much is known of the records and how sure that is, as figures."""

from datetime import timedelta

from comity.adapters.memory.records import MemoryRecords
from comity.kernel.certainty import Certainty
from comity.kernel.grants import Grants
from comity.kernel.known import KnownFigures
from comity.kernel.snapshot import Snapshot
from comity.wire.grants import CALL, Effect, Grant
from comity.wire.parties import Party


def told(snapshot: Snapshot) -> dict[str, object]:
    return {
        " ".join([family.name, *(value for _, value in labels)]): figure
        for family in KnownFigures(snapshot)()
        for labels, figure in family.samples
    }


async def test_what_is_known_is_counted_and_has_an_age() -> None:
    now = 100.0
    certainty = Certainty(timedelta(seconds=30), lambda: now)
    records = MemoryRecords()
    snapshot = Snapshot(records, Grants(certainty=certainty), certainty)
    before = told(snapshot)
    assert before["comity_policy_known"] == 0
    assert "comity_policy_age_seconds" not in before
    await records.grants.put(Grant("agent:a", CALL, "*", Effect.ALLOW))
    await records.parties.put(Party("agent:a"), Party("agent:b"))
    await snapshot.refresh()
    now += 3
    assert told(snapshot) == {
        "comity_policy_known": 1,
        "comity_policy_age_seconds": 3.0,
        "comity_policy_version": 2,
        "comity_records grants": 1,
        "comity_records parties": 2,
        "comity_records keys": 0,
    }
    now += 28
    assert told(snapshot)["comity_policy_known"] == 0


async def test_what_is_in_memory_alone_does_not_grow_old() -> None:
    certainty = Certainty()
    snapshot = Snapshot(MemoryRecords(), Grants(certainty=certainty), certainty)
    await snapshot.refresh()
    assert told(snapshot)["comity_policy_known"] == 1
    assert "comity_policy_age_seconds" not in told(snapshot)
