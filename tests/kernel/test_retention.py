"""Retention: old entries are sealed, on record, and gone; what is left is whole."""

from datetime import UTC, datetime, timedelta

import pytest

from comity.kernel import retention as room
from comity.kernel.retention import Retention
from comity.rules import chain
from comity.wire.audit import Event, Type, event_of
from tests.kernel.journals import FailingStore, kept

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def old(number: int) -> Event:
    return Event(Type.TOOL_EXECUTED, f"agent:{number}", LONG_AGO)


async def test_what_is_old_is_sealed_and_goes_and_what_is_left_is_whole() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        await journal.flush()
        first = Event(Type.TOOL_EXECUTED, "agent:new", datetime.now(UTC))
        thinning = Retention(journal, timedelta(days=1))
        assert await thinning.sweep() == 0
    store = FailingStore()
    async with kept(store) as journal:
        journal.clock = lambda: LONG_AGO
        for number in range(20):
            await journal.write(old(number))
        journal.clock = lambda: datetime.now(UTC)
        await journal.write(first)
        thinning = Retention(journal, timedelta(days=1))
        gone = 0
        while found := await thinning.sweep():
            gone += found
        assert gone >= 20
        segments = await store.segments("n-1")
        lines = await store.page("n-1")
    assert lines[0].seq == segments[-1].last + 1
    assert lines[0].hash == chain.link(segments[-1].hash, b"n-1", lines[0].seq, lines[0].body)
    kinds = [event_of(line.body).type for line in lines]
    assert Type.SEGMENT_SEALED in kinds


async def test_a_segment_has_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "AT_ONCE", 5)
    monkeypatch.setattr(room, "PAGE", 3)
    store = FailingStore()
    async with kept(store) as journal:
        for number in range(12):
            await journal.write(old(number))
        journal.clock = lambda: datetime.now(UTC) + timedelta(days=2)
        thinning = Retention(journal, timedelta(days=1))
        assert 0 < await thinning.sweep() <= 7


async def test_without_a_chain_nothing_is_done() -> None:
    store = FailingStore()
    store.failures = 10**6
    async with kept(store) as journal:
        assert await Retention(journal, timedelta(days=1)).sweep() == 0
