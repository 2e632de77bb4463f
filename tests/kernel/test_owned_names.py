"""A name stays with who took it first: in memory, in the records, and within a bound."""

from datetime import UTC, datetime, timedelta

from comity.adapters.memory.records import MemoryRecords
from comity.kernel.owned_names import NAMES_OF_ONE, OwnedNames
from comity.wire.registration import Wanted


class Ticking:
    """A clock of which every look is a second later."""

    def __init__(self) -> None:
        self.at = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.at += timedelta(seconds=1)
        return self.at


async def test_a_name_outlives_its_server_and_who_reads_anew_knows_it() -> None:
    records = MemoryRecords().registrations
    names = OwnedNames(records, Ticking())
    await names.take(Wanted("dynamic.a", "x"), "agent:a", is_kept=False)
    await names.end("dynamic.a", "agent:a")
    again = OwnedNames(records)
    assert not again.is_loaded
    (found,) = await again.load()
    assert (found.entry, again.owners) == ({}, {"dynamic.a": "agent:a"})
    await again.free("dynamic.a")
    assert await records.all() == []


async def test_what_is_kept_is_kept_whole() -> None:
    records = MemoryRecords().registrations
    wish = Wanted("dynamic.a", "x", ("y",), permissions=("network.outbound",))
    await OwnedNames(records).take(wish, "agent:a", is_kept=True)
    (found,) = await records.all()
    assert found.entry["command"] == "x"
    assert list(found.entry["args"]) == ["y"]  # type: ignore[call-overload]  # it is a list


async def test_whoever_takes_many_names_loses_its_own_oldest_and_nobody_elses() -> None:
    names = OwnedNames(MemoryRecords().registrations, Ticking())
    await names.take(Wanted("dynamic.first", "x"), "agent:quiet", is_kept=False)
    for number in range(NAMES_OF_ONE + 3):
        await names.take(Wanted(f"dynamic.n{number}", "x"), "agent:busy", is_kept=False)
    own = [id for id, owner in names.owners.items() if owner == "agent:busy"]
    assert own == [f"dynamic.n{number}" for number in range(3, NAMES_OF_ONE + 3)]
    assert names.owners["dynamic.first"] == "agent:quiet"
    await names.changed()
    assert len(names.owners) == NAMES_OF_ONE + 1
