"""The journal in memory forgets the oldest, and says so."""

import pytest

from comity.adapters.memory import journal
from comity.adapters.memory.journal import MemoryJournal
from comity.ports.journaling import Head
from comity.rules import chain
from comity.wire.journal import Checkpoint, Line, Segment
from tests.contracts.test_journal_store import NOW, after, chained, several


async def filled(store: MemoryJournal, count: int) -> list[Line]:
    lines = chained(await store.open("n"), *several(count))
    for each in lines:
        await store.append([each])
    return lines


async def test_the_oldest_are_forgotten_and_on_record_as_a_segment() -> None:
    store = MemoryJournal(remembered=4)
    lines = await filled(store, 10)
    assert await store.page("n") == lines[6:]
    assert await store.segments("n") == [
        Segment("n", 1, 6, chain.GENESIS, lines[5].hash, lines[5].at)
    ]
    assert await store.open("n") == after(lines)


async def test_large_entries_are_forgotten_sooner() -> None:
    store = MemoryJournal(remembered_bytes=100)
    (line,) = chained(Head("n", 0, chain.GENESIS), *several(1))
    await store.open("n")
    await store.append([line._replace(body=b"x" * 101)])
    assert await store.page("n") == []
    assert (await store.open("n")).seq == 1


async def test_what_is_forgotten_lengthens_what_was_dropped() -> None:
    store = MemoryJournal(remembered=4)
    lines = await filled(store, 4)
    await store.drop(Segment("n", 1, 2, chain.GENESIS, lines[1].hash, NOW))
    more = chained(after(lines), *several(4))
    await store.append(more)
    (segment,) = await store.segments("n")
    assert (segment.first, segment.last, segment.hash) == (1, 4, lines[3].hash)
    assert await store.page("n") == more


async def test_of_checkpoints_the_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "CHECKPOINTS", 2)
    store = MemoryJournal()
    for seq in (1, 2, 3):
        await store.keep(Checkpoint("n", seq, b"h", NOW, "00ff"))
    assert [each.seq for each in await store.checkpoints("n")] == [2, 3]
