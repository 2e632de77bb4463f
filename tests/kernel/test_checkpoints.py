"""Checkpoints: signed after so many entries or so long, kept, and copied outside."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from comity.kernel.checkpoints import Checkpoints
from comity.rules.chain import signed_part
from comity.rules.proof_chain import CheckpointInterval
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
        signing = Checkpoints(
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


async def test_and_within_a_while_however_few_they_are() -> None:
    store, outside = FailingStore(), Outside()
    async with kept(store) as journal:
        signing = Checkpoints(
            journal, Signer(), [outside], CheckpointInterval(1000, timedelta(milliseconds=10))
        )
        await journal.write(happened())
        await until(lambda: bool(outside.told))
        await signing.close()


async def test_what_is_left_at_the_end_is_signed() -> None:
    store, outside = FailingStore(), Outside()
    async with kept(store) as journal:
        signing = Checkpoints(
            journal, Signer(), [outside], CheckpointInterval(1000, timedelta(seconds=5))
        )
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
        signing = Checkpoints(
            journal, Signer(), [broken, well], CheckpointInterval(1, timedelta(hours=1))
        )
        await journal.write(happened())
        await until(lambda: bool(well.told))
        await signing.close()
    assert "the disk is full" in caplog.text
    assert await store.checkpoints("n-1")


class LastSigned(Outside):
    """What was signed last, as it is kept beside the key."""

    def read(self, node: str) -> Checkpoint | None:
        return next((each for each in reversed(self.told) if each.node == node), None)

    def set_aside(self, node: str) -> str:
        return f"aside/{node}"


async def test_a_removed_signature_is_put_back_at_the_next_start() -> None:
    store, last = FailingStore(), LastSigned()
    every_entry = CheckpointInterval(1, timedelta(hours=1))
    async with kept(store) as journal:
        signing = Checkpoints(journal, Signer(), [], every_entry, last)
        await journal.write(happened())
        await until(lambda: bool(last.told))
        await signing.close()
    signed = last.told[-1]
    store = FailingStore()
    async with kept(store) as journal:
        for _ in range(signed.seq):
            await journal.write(happened())
        signing = Checkpoints(journal, Signer(), [], every_entry, last)
        await journal.write(happened())
        await signing.close()
    assert signed in await store.checkpoints("n-1")


async def test_lost_entries_are_told_at_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    store, last = FailingStore(), LastSigned()
    last.told.append(Checkpoint("n-1", 900, bytes(32), datetime.now(UTC), Signer.key))
    async with kept(store) as journal:
        signing = Checkpoints(journal, Signer(), [], CheckpointInterval(), last)
        await journal.write(happened())
        await signing.close()
    assert "entry 900 of n-1 was signed" in caplog.text
    assert "--checkpoints aside/n-1" in caplog.text
