"""What every store tells of its changes, and how soon another process hears of them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.ports import Change, Kept, News, Records
from comity.wire.grants import CALL, Effect, Grant
from comity.wire.parties import Key, Party
from comity.wire.pins import Pin, Registration
from tests.contracts.stores import REMEMBERED, Open

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
GRANT = Grant("agent:ci", CALL, "files/read", Effect.ALLOW)
SOON = timedelta(milliseconds=200)

type Deed = Callable[[Records], Awaitable[object]]

DEEDS: dict[str, tuple[Deed, Change]] = {
    "a grant": (lambda it: it.grants.put(GRANT), Change(Kept.GRANTS, "agent:ci")),
    "a party": (lambda it: it.parties.put(Party("agent:x")), Change(Kept.PARTIES, "agent:x")),
    "a key": (
        lambda it: it.keys.put(Key("k", "agent:x", b"m" * 32), NOW),
        Change(Kept.KEYS, "k"),
    ),
    "a pin": (lambda it: it.pins.put(Pin("s", "t", "d", b"{}")), Change(Kept.PINS, "s")),
    "a server": (
        lambda it: it.registrations.put(Registration("s", {}, "me")),
        Change(Kept.REGISTRATIONS, "s"),
    ),
}


@pytest.mark.parametrize("what", DEEDS)
async def test_every_change_makes_a_new_version_and_is_told(
    records: Records, again: Open, what: str
) -> None:
    deed, change = DEEDS[what]
    before = (await records.changes.since(0)).version
    await deed(records)
    other = await again()
    assert await other.changes.since(before) == News(before + 1, (change,))
    assert await other.changes.since(before + 1) == News(before + 1, ())


async def test_what_changes_nothing_is_no_news(records: Records) -> None:
    before = await records.changes.since(0)
    assert not await records.grants.revoke("agent:ci", CALL, "files/read")
    assert not await records.keys.revoke("k", NOW)
    assert not await records.pins.remove("s")
    await records.grants.put()
    await records.parties.put()
    assert (await records.changes.since(0)).version == before.version


async def test_a_subject_that_changed_often_is_told_once(records: Records) -> None:
    before = (await records.changes.since(0)).version
    for number in range(5):
        await records.grants.put(replace(GRANT, target=f"s/{number}"))
    await records.grants.revoke("agent:ci", CALL, "s/0")
    told = await records.changes.since(before)
    assert told == News(before + 6, (Change(Kept.GRANTS, "agent:ci"),))


async def test_too_many_at_once_are_told_as_all_of_them(records: Records) -> None:
    before = (await records.changes.since(0)).version
    await records.grants.put(*(replace(GRANT, subject=f"agent:{n}") for n in range(1_001)))
    assert (await records.changes.since(before)).changes == (Change(Kept.GRANTS, ""),)


async def test_who_missed_too_much_is_told_to_read_everything(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("comity.adapters.sql.database.REMEMBERED", REMEMBERED)
    before = (await records.changes.since(0)).version
    for number in range(REMEMBERED + 150):
        await records.pins.put(Pin("s", "t", str(number), b"{}"))
    assert (await records.changes.since(before)).changes is None
    recent = await records.changes.since(before + REMEMBERED + 100)
    assert recent.changes == (Change(Kept.PINS, "s"),)


async def test_who_knows_more_than_the_store_is_told_to_read_everything(records: Records) -> None:
    """As after a store was put back from a copy."""
    version = (await records.changes.since(0)).version
    assert await records.changes.since(version + 5) == News(version, None)


async def test_a_change_of_ones_own_stirs_at_once(records: Records) -> None:
    await records.changes.stirred(SOON)
    await records.grants.put(GRANT)
    async with asyncio.timeout(10):
        await records.changes.stirred(timedelta(seconds=60))


async def test_without_a_change_the_wait_ends_by_itself(records: Records) -> None:
    # A new listener may stir once, since something may have changed before it listened.
    await records.changes.stirred(SOON)
    async with asyncio.timeout(10):
        await records.changes.stirred(SOON)
        await records.changes.stirred(SOON)
