"""`kernel/history.py`: the journal read again, as a story's entries and as an export."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from comity.adapters.memory.records import MemoryRecords
from comity.adapters.signing import verify
from comity.kernel import history
from comity.kernel.ask_ids import ask_named
from comity.kernel.history import History, Place
from comity.ports.journaling import Sought
from comity.rules.proof import Proof, Report
from comity.wire.asks import Ask, Kind
from comity.wire.audit import Event, Type, body_of
from comity.wire.errors import MalformedMessage
from comity.wire.journal import Segment
from tests.rules.journals import BEGAN, Journal, chained, event, signed

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
TRACE, OTHER = "a" * 32, "b" * 32
ASK = "0" * 26


@pytest.fixture
async def records() -> MemoryRecords:
    records = MemoryRecords()
    await records.open()
    return records


async def _keep(records: MemoryRecords, journal: Journal) -> None:
    await records.journal.open(journal.lines[0].node)
    await records.journal.append(journal.lines)
    for checkpoint in journal.checkpoints:
        await records.journal.keep(checkpoint)
    await records.journal.close()


async def _proved(read: History) -> Report:
    proof = Proof(verify)
    async for line in read.export():
        proof.take(line)
    return proof.finish()


async def test_an_export_of_several_nodes_is_whole_whatever_the_pages(
    records: MemoryRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node, size in (("one", 30), ("two", 25), ("two~2", 7)):
        await _keep(records, Journal.of(size, node=node))
    for size in (1, 3, 10, 25, 1000):
        monkeypatch.setattr(history, "AT_ONCE", size)
        report = await _proved(History(records.journal))
        assert report.is_whole, report.findings
        assert [(each.node, each.last, each.signed_to) for each in report.nodes] == [
            ("one", 30, 30),
            ("two", 25, 25),
            ("two~2", 7, 7),
        ]


async def test_what_is_added_meanwhile_breaks_nothing(
    records: MemoryRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "AT_ONCE", 10)
    whole = Journal.of(30, node="one")
    await records.journal.open("one")
    await records.journal.append(whole.lines[:15])
    await records.journal.keep(whole.checkpoints[0])
    # What came after the first signature is younger than the next one has to be.
    read = History(records.journal, clock=lambda: BEGAN + timedelta(seconds=18))
    proof = Proof(verify)
    part = await read.part(None)
    for number in range(15, 30):
        for line in part.lines:
            proof.take(line)
        await records.journal.append([whole.lines[number]])
        for checkpoint in whole.checkpoints:
            if checkpoint.seq == number + 1:
                await records.journal.keep(checkpoint)
        if part.next is None:
            break
        part = await read.part(part.next)
    while part.next is not None:
        part = await read.part(part.next)
        for line in part.lines:
            proof.take(line)
    assert proof.finish().is_whole


async def test_what_was_sealed_is_in_its_place(records: MemoryRecords) -> None:
    events = [*(event(number) for number in range(1, 20))]
    events.append(Event(Type.SEGMENT_SEALED, "system:gateway", NOW, details={"last": 12}))
    lines = chained([(each, body_of(each)) for each in events], "one", bytes(32), 1)
    await _keep(records, Journal(lines, [signed(lines[4]), signed(lines[-1])]))
    segment = Segment("one", 1, 12, bytes(32), lines[11].hash, NOW)
    await records.journal.drop(segment)
    report = await _proved(History(records.journal))
    assert report.is_whole, report.findings
    assert (report.nodes[0].sealed, report.nodes[0].first) == (12, 13)


async def test_of_an_empty_journal_there_is_a_header_and_an_end(records: MemoryRecords) -> None:
    report = await _proved(History(records.journal))
    assert report.is_whole
    assert report.entries == 0


async def test_a_place_that_is_nowhere_ends_at_once(records: MemoryRecords) -> None:
    await _keep(records, Journal.of(3, node="one"))
    part = await History(records.journal).part(Place("zzz", 5, 3))
    assert part.next is None
    assert len(part.lines) == 1


def _event(type: Type, seconds: int, trace: str, call: str = "", **details: object) -> Event:
    at = NOW + timedelta(seconds=seconds)
    return Event(type, "agent:ci", at, trace=trace, call=call, details=details)


@pytest.fixture
async def told(records: MemoryRecords) -> History:
    """A call that waited for an answer in one trace, and used it in another."""
    events = [
        _event(Type.ASK_OPENED, 0, TRACE, ask=ASK),
        _event(Type.KEY_ISSUED, 1, "c" * 32),
        _event(Type.ASK_ANSWERED, 2, TRACE, ask=ASK),
        _event(Type.CALL_INTENDED, 3, OTHER, "run-1", answered_by=ASK),
        _event(Type.TOOL_EXECUTED, 4, OTHER, "run-1"),
    ]
    lines = chained([(each, body_of(each)) for each in events], "one", bytes(32), 1)
    await _keep(records, Journal(lines, []))
    await records.asks.open(
        Ask(
            *(ASK, Kind.CONFIRM, "agent:ci", "files", "write", "d" * 64, "Write?", {"path": "x"}),
            *(datetime.now(UTC), datetime.now(UTC) + timedelta(hours=1)),
            trace=TRACE,
        )
    )
    return History(records.journal, partial(ask_named, records.asks))


@pytest.mark.parametrize("name", [OTHER, "run-1"])
async def test_a_trace_or_a_call_is_told_with_the_asks_that_it_used(
    told: History, name: str
) -> None:
    assert [line.seq for line in await told.about(name)] == [1, 3, 4, 5]


async def test_a_trace_may_be_written_as_mgp_writes_it(told: History) -> None:
    written = "-".join((OTHER[:8], OTHER[8:12], OTHER[12:16], OTHER[16:20], OTHER[20:])).upper()
    assert len(await told.about(written)) == 4


async def test_an_ask_is_told_by_its_id(told: History) -> None:
    assert [line.seq for line in await told.about(ASK)] == [1, 3]


@pytest.mark.parametrize("name", [ASK[:4], ASK[:8], ASK[:8].upper(), ASK[:-1]])
async def test_an_ask_is_told_by_the_beginning_of_its_id(told: History, name: str) -> None:
    assert [line.seq for line in await told.about(name)] == [1, 3]


async def test_a_beginning_that_several_asks_share_is_refused(
    told: History, records: MemoryRecords
) -> None:
    await records.asks.open(
        Ask(
            *(f"{ASK[:-1]}z", Kind.CONFIRM, "agent:ci", "files", "write", "e" * 64, "?", {"a": 1}),
            *(datetime.now(UTC), datetime.now(UTC) + timedelta(hours=1)),
        )
    )
    with pytest.raises(MalformedMessage, match="several asks begin with"):
        await told.about(ASK[:8])
    assert [line.seq for line in await told.about(ASK)] == [1, 3]


@pytest.mark.parametrize("name", ["", "nothing", ASK[:3], "f" * 32, "1" * 26])
async def test_where_nothing_is_that_is_said(told: History, name: str) -> None:
    with pytest.raises(MalformedMessage, match="nothing is written down"):
        await told.about(name)


async def test_entries_are_found(told: History) -> None:
    found = await told.find(Sought(types=(Type.KEY_ISSUED,)), 10)
    assert [line.seq for line in found] == [2]
