"""Checkpoints are signed and copied outside; old entries are sealed and removed."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from comity.audit import chain, integrity
from comity.audit.chain import ChainCheckpoint, signed_part
from comity.audit.events import AuditEvent, AuditType, event_of
from comity.audit.integrity import AuditCheckpointer, AuditRetention
from comity.audit.verify import CheckpointInterval
from tests.support.carriers import until
from tests.support.journals import FailingStore, kept


class Signer:
    key = "ab" * 32

    def sign(self, data: bytes) -> bytes:
        return b"signed:" + data


class Outside:
    def __init__(self) -> None:
        self.told: list[ChainCheckpoint] = []
        self.broken = False
        self.closed = False

    async def write(self, checkpoint: ChainCheckpoint) -> None:
        if self.broken:
            raise OSError("the disk is full")
        self.told.append(checkpoint)

    async def close(self) -> None:
        self.closed = True


def happened() -> AuditEvent:
    return AuditEvent(AuditType.TOOL_EXECUTED, "agent:a", datetime.now(UTC))


async def test_chain_is_signed_after_so_many_entries() -> None:
    store, outside = FailingStore(), Outside()
    async with kept(store) as journal:
        signing = AuditCheckpointer(
            journal, Signer(), [outside], CheckpointInterval(10, timedelta(hours=1))
        )
        for _ in range(25):
            await journal.write(happened())
        await until(lambda: len(outside.told) == 2)
        await signing.close()
    last = outside.told[-1]
    lines = {line.seq: line for line in await store.page("n-1")}
    assert all(lines[each.seq].hash == each.hash for each in outside.told)
    assert last.signature == b"signed:" + signed_part(last._replace(signature=b""))
    assert [each.seq for each in await store.checkpoints("n-1")] == [
        each.seq for each in outside.told
    ]
    assert outside.closed


@pytest.mark.parametrize("waits", [True, False], ids=["after a while", "at the end"])
async def test_few_entries_are_signed_after_a_while_and_at_the_end(waits: bool) -> None:
    store, outside = FailingStore(), Outside()
    pause = timedelta(milliseconds=10) if waits else timedelta(seconds=5)
    async with kept(store) as journal:
        signing = AuditCheckpointer(journal, Signer(), [outside], CheckpointInterval(1000, pause))
        await journal.write(happened())
        if waits:
            await until(lambda: bool(outside.told))
        async with asyncio.timeout(10):
            await signing.close()
    assert outside.told


async def test_a_witness_that_fails_is_told_in_the_log_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, broken, well = FailingStore(), Outside(), Outside()
    broken.broken = True
    async with kept(store) as journal:
        signing = AuditCheckpointer(
            journal, Signer(), [broken, well], CheckpointInterval(1, timedelta(hours=1))
        )
        await journal.write(happened())
        await until(lambda: bool(well.told))
        await signing.close()
    assert "the disk is full" in caplog.text
    assert await store.checkpoints("n-1")


class LastSigned(Outside):
    """What was signed last, as it is kept beside the key."""

    def read(self, node: str) -> ChainCheckpoint | None:
        return next((each for each in reversed(self.told) if each.node == node), None)

    def set_aside(self, node: str) -> str:
        return f"aside/{node}"


async def test_a_removed_signature_is_put_back_at_the_next_start() -> None:
    store, last = FailingStore(), LastSigned()
    every_entry = CheckpointInterval(1, timedelta(hours=1))
    async with kept(store) as journal:
        signing = AuditCheckpointer(journal, Signer(), [], every_entry, last)
        await journal.write(happened())
        await until(lambda: bool(last.told))
        await signing.close()
    signed = last.told[-1]
    store = FailingStore()
    async with kept(store) as journal:
        for _ in range(signed.seq):
            await journal.write(happened())
        signing = AuditCheckpointer(journal, Signer(), [], every_entry, last)
        await journal.write(happened())
        await signing.close()
    assert signed in await store.checkpoints("n-1")


async def test_lost_entries_are_told_at_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    store, last = FailingStore(), LastSigned()
    last.told.append(ChainCheckpoint("n-1", 900, bytes(32), datetime.now(UTC), Signer.key))
    async with kept(store) as journal:
        signing = AuditCheckpointer(journal, Signer(), [], CheckpointInterval(), last)
        await journal.write(happened())
        await signing.close()
    assert "entry 900 of n-1 was signed" in caplog.text
    assert "--checkpoints aside/n-1" in caplog.text


LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def old(number: int) -> AuditEvent:
    return AuditEvent(AuditType.TOOL_EXECUTED, f"agent:{number}", LONG_AGO)


async def test_what_is_old_is_sealed_and_goes_and_what_is_left_is_whole() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        await journal.flush()
        first = AuditEvent(AuditType.TOOL_EXECUTED, "agent:new", datetime.now(UTC))
        thinning = AuditRetention(journal, timedelta(days=1))
        assert await thinning.sweep() == 0
    store = FailingStore()
    async with kept(store) as journal:
        journal.clock = lambda: LONG_AGO
        for number in range(20):
            await journal.write(old(number))
        journal.clock = lambda: datetime.now(UTC)
        await journal.write(first)
        thinning = AuditRetention(journal, timedelta(days=1))
        gone = 0
        while found := await thinning.sweep():
            gone += found
        assert gone >= 20
        segments = await store.segments("n-1")
        lines = await store.page("n-1")
    assert lines[0].seq == segments[-1].last + 1
    assert lines[0].hash == chain.entry_hash(segments[-1].hash, b"n-1", lines[0].seq, lines[0].body)
    kinds = [event_of(line.body).type for line in lines]
    assert AuditType.SEGMENT_SEALED in kinds


async def test_a_segment_has_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "AT_ONCE", 5)
    monkeypatch.setattr(integrity, "PAGE", 3)
    store = FailingStore()
    async with kept(store) as journal:
        for number in range(12):
            await journal.write(old(number))
        journal.clock = lambda: datetime.now(UTC) + timedelta(days=2)
        thinning = AuditRetention(journal, timedelta(days=1))
        assert 0 < await thinning.sweep() <= 7


async def test_without_a_chain_nothing_is_done() -> None:
    store = FailingStore()
    store.failures = 10**6
    async with kept(store) as journal:
        assert await AuditRetention(journal, timedelta(days=1)).sweep() == 0
