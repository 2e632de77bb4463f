"""Checkpoints: signed after so many entries or so long, kept, and copied outside."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from comity.kernel.checkpoints import Checkpoints
from comity.rules.chain import signed_part
from comity.wire.audit import Event, Type
from comity.wire.journal import Checkpoint
from tests.kernel.carriers import until
from tests.kernel.journals import FailingStore, kept


class Signer:
    key = "ab" * 32

    def sign(self, data: bytes) -> bytes:
        return b"signed:" + data


class Outside:
    def __init__(self) -> None:
        self.told: list[Checkpoint] = []
        self.broken = False
        self.closed = False

    async def tell(self, checkpoint: Checkpoint) -> None:
        if self.broken:
            raise OSError("the disk is full")
        self.told.append(checkpoint)

    async def close(self) -> None:
        self.closed = True


def happened() -> Event:
    return Event(Type.TOOL_EXECUTED, "agent:a", datetime.now(UTC))


async def test_a_chain_is_signed_after_so_many_entries() -> None:
    store, outside = FailingStore(), Outside()
    async with kept(store) as journal:
        signing = Checkpoints(journal, Signer(), [outside], 10, timedelta(hours=1))
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


async def test_and_within_a_while_however_few_they_are() -> None:
    store, outside = FailingStore(), Outside()
    async with kept(store) as journal:
        signing = Checkpoints(journal, Signer(), [outside], 1000, timedelta(milliseconds=10))
        await journal.write(happened())
        await until(lambda: bool(outside.told))
        await signing.close()


async def test_what_is_left_at_the_end_is_signed() -> None:
    store, outside = FailingStore(), Outside()
    async with kept(store) as journal:
        signing = Checkpoints(journal, Signer(), [outside], 1000, timedelta(seconds=5))
        await journal.write(happened())
        async with asyncio.timeout(10):
            await signing.close()
    assert len(outside.told) == 1


async def test_a_witness_that_fails_is_told_in_the_log_and_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, broken, well = FailingStore(), Outside(), Outside()
    broken.broken = True
    async with kept(store) as journal:
        signing = Checkpoints(journal, Signer(), [broken, well], 1, timedelta(hours=1))
        await journal.write(happened())
        await until(lambda: bool(well.told))
        await signing.close()
    assert "the disk is full" in caplog.text
    assert await store.checkpoints("n-1")
