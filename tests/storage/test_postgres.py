"""PostgreSQL tells of changes by others, also after connections were cut, or does not answer."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest

from comity.app.records import RecordStores, open_store
from comity.errors import Unavailable
from comity.identity.principals import Principal
from comity.storage import postgres, stores
from comity.storage.changes import RecordChange, RecordKind
from tests.contracts.stores import a_database, run_on

pytestmark = pytest.mark.integration

LONG = timedelta(seconds=30)
OTHERS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND backend_type = 'client backend'"
)
LISTENING = f"SELECT pid {OTHERS} AND query LIKE 'LISTEN%'"
CUT = f"SELECT pg_terminate_backend(pid) {OTHERS}"


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    async with a_database() as address:
        await stores.upgrade_store(address)
        yield address


@pytest.fixture
async def records(url: str) -> AsyncGenerator[RecordStores]:
    opened = open_store(url)
    assert isinstance(opened, RecordStores)
    await opened.open()
    await stirs(opened)
    yield opened
    await opened.close()


async def stirs(records: RecordStores) -> None:
    """Until it stirs; the wait for it would be longer."""
    async with asyncio.timeout(LONG.total_seconds() / 2):
        await records.changes.wait_for_change(LONG)


async def listens(url: str, but_not: list[Any] | None = None) -> list[Any]:
    async with asyncio.timeout(LONG.total_seconds()):
        while True:
            found = await run_on(url, LISTENING)
            if found and found != but_not:
                return found
            await asyncio.sleep(0.05)


async def test_a_change_by_another_process_stirs(url: str, records: RecordStores) -> None:
    other = open_store(url)
    before = (await records.changes.since(0)).version
    stirring = asyncio.ensure_future(stirs(records))
    await other.parties.put(Principal("agent:x"))
    await stirring
    news = await records.changes.since(before)
    assert news.changes == (RecordChange(RecordKind.PARTIES, "agent:x"),)
    await other.close()


async def test_a_cut_connection_is_made_again_and_what_was_missed_is_read(
    url: str, records: RecordStores
) -> None:
    listening = await listens(url)
    stirring = asyncio.ensure_future(stirs(records))
    await run_on(url, CUT)
    # It stirs once it listens again: whatever happened in between was told to nobody.
    await stirring
    await listens(url, listening)
    await records.parties.put(Principal("agent:x"))
    stirring = asyncio.ensure_future(stirs(records))
    other = open_store(url)
    await other.parties.put(Principal("agent:y"))
    await stirring
    assert len(await records.parties.page()) == 2
    await other.close()


async def test_a_look_over_a_cut_connection_counts_as_a_change(
    url: str, records: RecordStores
) -> None:
    look = records.changes.count_changes
    assert await look() == await look()
    await run_on(url, CUT)
    counted = await look()
    async with asyncio.timeout(LONG.total_seconds()):
        while (found := await look()) != counted:
            counted = found
            await asyncio.sleep(0.01)
    await records.parties.put(Principal("agent:x"))
    assert await look() != counted


async def test_a_cut_connection_of_the_pool_is_replaced_unseen(
    url: str, records: RecordStores
) -> None:
    await asyncio.gather(*(records.parties.page() for _ in range(3)))
    await run_on(url, CUT)
    assert await records.parties.page() == []


async def test_a_question_that_takes_too_long_is_given_up(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody holds the lock that every writer needs."""
    monkeypatch.setattr(postgres, "PATIENCE_SECONDS", 0.5)
    slow = open_store(url)
    blocker = postgres.product(url)
    async with blocker.engine.begin() as connection:
        await connection.exec_driver_sql("LOCK TABLE comity_version")
        with pytest.raises(Unavailable, match="does not answer"):
            await slow.parties.put(Principal("agent:x"))
    await slow.parties.put(Principal("agent:x"))
    await slow.close()
    await blocker.close()


async def test_a_store_that_loses_its_tables_does_not_answer(
    url: str, records: RecordStores
) -> None:
    await run_on(url, "DROP TABLE comity_version")
    with pytest.raises(Unavailable, match="does not exist"):
        await records.changes.since(0)
