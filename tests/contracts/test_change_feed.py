"""What every store tells of its changes, and how soon another process hears of them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.app.records import RecordStores
from comity.catalog.definitions import AcceptedTool, RegistrationRecord
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import CALL
from comity.policy.grants import Effect, Grant
from comity.storage.changes import ChangeBatch, RecordChange, RecordKind
from tests.contracts.stores import Open

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
GRANT = Grant("agent:ci", CALL, "files/read", Effect.ALLOW)
SOON = timedelta(milliseconds=200)
REMEMBERED = 200

type Deed = Callable[[RecordStores], Awaitable[object]]

DEEDS: dict[str, tuple[Deed, RecordChange]] = {
    "a grant": (lambda it: it.grants.put(GRANT), RecordChange(RecordKind.GRANTS, "agent:ci")),
    "a party": (
        lambda it: it.parties.put(Principal("agent:x")),
        RecordChange(RecordKind.PARTIES, "agent:x"),
    ),
    "a key": (
        lambda it: it.keys.put(ApiKey("k", "agent:x", b"m" * 32), NOW),
        RecordChange(RecordKind.KEYS, "k"),
    ),
    "a pin": (
        lambda it: it.accepted_tools.put(AcceptedTool("s", "t", "d", b"{}")),
        RecordChange(RecordKind.PINS, "s"),
    ),
    "a server": (
        lambda it: it.registrations.put(RegistrationRecord("s", {}, "me")),
        RecordChange(RecordKind.REGISTRATIONS, "s"),
    ),
}


@pytest.mark.parametrize("what", DEEDS)
async def test_every_change_makes_a_new_version_and_is_told(
    records: RecordStores, again: Open, what: str
) -> None:
    deed, change = DEEDS[what]
    before = (await records.changes.since(0)).version
    await deed(records)
    other = await again()
    assert await other.changes.since(before) == ChangeBatch(before + 1, (change,))
    assert await other.changes.since(before + 1) == ChangeBatch(before + 1, ())


async def test_what_changes_nothing_is_no_news(records: RecordStores) -> None:
    before = await records.changes.since(0)
    assert not await records.grants.revoke("agent:ci", CALL, "files/read")
    assert not await records.keys.revoke("k", NOW)
    assert not await records.accepted_tools.remove("s")
    await records.grants.put()
    await records.parties.put()
    assert (await records.changes.since(0)).version == before.version


async def test_a_subject_that_changed_often_is_told_once(records: RecordStores) -> None:
    before = (await records.changes.since(0)).version
    for number in range(5):
        await records.grants.put(replace(GRANT, target=f"s/{number}"))
    await records.grants.revoke("agent:ci", CALL, "s/0")
    told = await records.changes.since(before)
    assert told == ChangeBatch(before + 6, (RecordChange(RecordKind.GRANTS, "agent:ci"),))


async def test_too_many_at_once_are_told_as_all_of_them(records: RecordStores) -> None:
    before = (await records.changes.since(0)).version
    await records.grants.put(*(replace(GRANT, subject=f"agent:{n}") for n in range(1_001)))
    assert (await records.changes.since(before)).changes == (RecordChange(RecordKind.GRANTS, ""),)


async def test_who_missed_too_much_is_told_to_read_everything(
    records: RecordStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.storage.database.REMEMBERED", REMEMBERED)
    before = (await records.changes.since(0)).version
    for number in range(REMEMBERED + 150):
        await records.accepted_tools.put(AcceptedTool("s", "t", str(number), b"{}"))
    assert (await records.changes.since(before)).changes is None
    recent = await records.changes.since(before + REMEMBERED + 100)
    assert recent.changes == (RecordChange(RecordKind.PINS, "s"),)


async def test_who_knows_more_than_the_store_is_told_to_read_everything(
    records: RecordStores,
) -> None:
    """As after a store was put back from a copy."""
    version = (await records.changes.since(0)).version
    assert await records.changes.since(version + 5) == ChangeBatch(version, None)


async def test_a_change_of_ones_own_stirs_at_once(records: RecordStores) -> None:
    await records.changes.wait_for_change(SOON)
    await records.grants.put(GRANT)
    async with asyncio.timeout(10):
        await records.changes.wait_for_change(timedelta(seconds=60))


async def test_without_a_change_the_wait_ends_by_itself(records: RecordStores) -> None:
    # A new listener may stir once, since something may have changed before it listened.
    await records.changes.wait_for_change(SOON)
    async with asyncio.timeout(10):
        await records.changes.wait_for_change(SOON)
        await records.changes.wait_for_change(SOON)
