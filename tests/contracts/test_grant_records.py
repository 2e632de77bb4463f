"""Grants as every store keeps them: one for a subject, a verb and a target."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from comity.app.records import RecordStores
from comity.errors import MalformedMessage
from comity.mcp.actors import CALL
from comity.policy.grants import PERMISSION_VERB, Effect, Grant, GrantSource
from comity.storage.changes import PAGE
from comity.storage.values import NAME_BYTES
from tests.contracts.stores import Open

NOW = datetime(2026, 11, 15, 8, 30, 1, 123456, tzinfo=UTC)
GRANT = Grant(
    "agent:ci",
    CALL,
    "files/read",
    Effect.ALLOW,
    granted_by="person:ana",
    justification="tests need it\nßæ 漢 🙂",
    granted_at=NOW,
    expires_at=NOW + timedelta(days=1),
)


async def test_a_grant_comes_back_as_it_was_written(records: RecordStores, again: Open) -> None:
    (stored,) = await records.grants.put(GRANT)
    assert replace(stored, id="") == GRANT
    assert stored.id
    other = await again()
    assert await other.grants.get("agent:ci", CALL, "files/read") == stored
    assert await other.grants.page() == [stored]


async def test_another_about_the_same_takes_its_place_and_its_id(records: RecordStores) -> None:
    (first,) = await records.grants.put(GRANT)
    (second,) = await records.grants.put(replace(GRANT, effect=Effect.DENY, expires_at=None))
    assert second.id == first.id
    assert await records.grants.page() == [second]


APPROVAL = Grant(
    "server:files",
    PERMISSION_VERB,
    "filesystem.read",
    Effect.ALLOW,
    granted_at=NOW,
    expires_at=NOW + timedelta(days=1),
    reach=("/srv/ß 漢", "~/project"),
)


async def test_an_approval_comes_back_with_its_places(records: RecordStores, again: Open) -> None:
    (stored,) = await records.grants.put(APPROVAL)
    assert stored.reach == APPROVAL.reach
    assert await (await again()).grants.page() == [stored]
    (narrowed,) = await records.grants.put(replace(APPROVAL, reach=()))
    assert await records.grants.page() == [narrowed]


async def test_an_approval_that_extends_another_has_the_places_of_both(
    records: RecordStores,
) -> None:
    first = await records.grants.extend(APPROVAL)
    more = replace(APPROVAL, expires_at=None, reach=("/opt", "~/project"))
    second = await records.grants.extend(more)
    assert (second.id, second.reach) == (first.id, ("/srv/ß 漢", "~/project", "/opt"))
    assert second.expires_at == APPROVAL.expires_at, "a place is not approved for longer"
    assert await records.grants.page() == [second]
    longer = await records.grants.extend(replace(more, reach=()))
    assert (longer.reach, longer.expires_at) == (second.reach, None)


@pytest.mark.parametrize(
    "void",
    [
        replace(APPROVAL, expires_at=NOW),
        replace(APPROVAL, effect=Effect.DENY, reach=()),
    ],
)
async def test_an_approval_takes_no_place_from_a_void_one(
    records: RecordStores, void: Grant
) -> None:
    await records.grants.put(void)
    extended = await records.grants.extend(replace(APPROVAL, reach=("/opt",)))
    assert (extended.reach, extended.expires_at) == (("/opt",), APPROVAL.expires_at)


async def test_approvals_at_the_same_time_lose_no_place(records: RecordStores) -> None:
    places = [f"/srv/{number}" for number in range(8)]
    approvals = [replace(APPROVAL, reach=(place,)) for place in places]
    await asyncio.gather(*map(records.grants.extend, approvals))
    (stored,) = await records.grants.page()
    assert sorted(stored.reach) == places


@pytest.mark.parametrize(
    "wrong",
    [
        replace(APPROVAL, verb=CALL, target="files/read"),
        replace(APPROVAL, effect=Effect.DENY),
        replace(APPROVAL, reach=tuple(f"/srv/{number}" for number in range(101))),
        replace(APPROVAL, reach=("/srv\n/x",)),
        replace(APPROVAL, reach=("",)),
    ],
)
async def test_a_reach_that_no_grant_can_have_is_refused(
    records: RecordStores, wrong: Grant
) -> None:
    with pytest.raises(MalformedMessage):
        await records.grants.put(wrong)
    with pytest.raises(MalformedMessage):
        await records.grants.extend(wrong)


async def test_two_in_one_write_about_the_same_are_one(records: RecordStores) -> None:
    await records.grants.put(GRANT, replace(GRANT, effect=Effect.ASK))
    assert [grant.effect for grant in await records.grants.page()] == [Effect.ASK]


async def test_what_a_file_grants_is_kept_as_a_record(records: RecordStores) -> None:
    (stored,) = await records.grants.put(replace(GRANT, source=GrantSource.FILE, id="mine"))
    assert (stored.source, stored.id == "mine") == (GrantSource.RECORDS, False)


async def test_a_revoked_grant_is_gone_and_only_once(records: RecordStores) -> None:
    await records.grants.put(GRANT, replace(GRANT, target="files/*"))
    assert await records.grants.revoke("agent:ci", CALL, "files/read")
    assert not await records.grants.revoke("agent:ci", CALL, "files/read")
    assert [grant.target for grant in await records.grants.page()] == ["files/*"]
    assert await records.grants.get("agent:ci", CALL, "files/read") is None


async def test_pages_lead_through_all_and_tell_none_twice(records: RecordStores) -> None:
    grants = [
        replace(GRANT, subject=f"agent:{number % 7}", target=f"s/{number}") for number in range(230)
    ]
    stored = await records.grants.put(*grants)
    seen: list[Grant] = []
    while page := await records.grants.page(seen[-1].id if seen else "", 50):
        seen += page
    assert {grant.id for grant in seen} == {grant.id for grant in stored}
    assert len(seen) == 230
    assert PAGE >= 50


async def test_those_of_some_subjects_are_found_alone(records: RecordStores) -> None:
    subjects = ("agent:a", "agent:b", "agent:c", "agent:a\0")
    await records.grants.put(*(replace(GRANT, subject=each) for each in subjects[:3]))
    found = await records.grants.page(subjects=["agent:a", "agent:c", "agent:a\0", "\ud800"])
    assert {grant.subject for grant in found} == {"agent:a", "agent:c"}
    assert await records.grants.page(subjects=[]) == []


async def test_a_time_comes_back_in_utc(records: RecordStores) -> None:
    here = timezone(timedelta(hours=5, minutes=30))
    await records.grants.put(replace(GRANT, expires_at=NOW.astimezone(here)))
    (found,) = await records.grants.page()
    assert found.expires_at == NOW
    assert found.expires_at is not None
    assert found.expires_at.utcoffset() == timedelta()


@pytest.mark.parametrize("field", ["subject", "verb", "target"])
@pytest.mark.parametrize(
    "name", ["", "a\0b", "a\ud800", "a\nb", "x" * (NAME_BYTES + 1), "é" * (NAME_BYTES // 2 + 1)]
)
async def test_a_name_that_no_store_could_keep_is_refused(
    records: RecordStores, field: str, name: str
) -> None:
    changed = replace(GRANT, **{field: name})
    with pytest.raises(MalformedMessage):
        await records.grants.put(GRANT, changed)
    assert await records.grants.page() == []
    named = (changed.subject, changed.verb, changed.target)
    assert await records.grants.get(*named) is None
    assert not await records.grants.revoke(*named)


async def test_the_longest_names_are_kept(records: RecordStores) -> None:
    # Such that nothing can be compressed, and so that an index has to hold them as they are.
    longest = "".join(chr(0x4E00 + number * 37 % 20_000) for number in range(NAME_BYTES // 3))
    grant = replace(GRANT, subject=longest, verb=longest, target=longest)
    (stored,) = await records.grants.put(grant)
    assert await records.grants.page(subjects=[longest]) == [stored]


async def test_words_that_a_database_refuses_are_made_harmless(records: RecordStores) -> None:
    await records.grants.put(replace(GRANT, justification="a\0b\ud800c", granted_by="\udfff"))
    (found,) = await records.grants.page()
    assert (found.justification, found.granted_by) == ("a\ufffdb\ufffdc", "\ufffd")


async def test_many_writers_at_once_lose_nothing(records: RecordStores, again: Open) -> None:
    other = await again()
    writers = [
        (records if number % 2 else other).grants.put(replace(GRANT, target=f"s/{number}"))
        for number in range(40)
    ]
    before = (await records.changes.since(0)).version
    await asyncio.wait_for(asyncio.gather(*writers), 30)
    assert len(await records.grants.page()) == 40
    assert (await records.changes.since(before)).version == before + 40
