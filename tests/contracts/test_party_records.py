"""Parties and their keys as every store keeps them."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.app.records import RecordStores
from comity.errors import MalformedMessage, Misconfigured
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import PrincipalKind
from comity.storage.changes import RecordChange, RecordKind
from tests.contracts.stores import Open

NOW = datetime(2026, 11, 15, 8, 30, 1, 123456, tzinfo=UTC)
ANA = Principal(
    "person:ana",
    PrincipalKind.PERSON,
    "Ana",
    created_by="person:local",
    created_at=NOW,
    groups=("on call", "sré"),
)
KEY = ApiKey(
    "k1",
    "person:ana",
    bytes(range(32)),
    "laptop",
    ("tools/call:files/*", "admin/read:*"),
    60,
    2**40,
    "person:local",
    NOW,
    NOW,
    NOW + timedelta(days=90),
)


async def test_a_party_comes_back_as_it_was_written(records: RecordStores, again: Open) -> None:
    await records.parties.put(ANA, Principal("agent:ci"))
    other = await again()
    assert await other.parties.get("person:ana") == ANA
    assert {party.id for party in await other.parties.page()} == {"person:ana", "agent:ci"}


async def test_the_groups_of_a_party_are_stored_in_one_form(records: RecordStores) -> None:
    written = ("sre\u0301", "on call", "sr\u00e9", "SRE")
    await records.parties.put(replace(ANA, groups=written))
    found = await records.parties.get("person:ana")
    assert found is not None
    assert found.groups == ("SRE", "on call", "sr\u00e9")


@pytest.mark.parametrize(
    "groups",
    [
        ("",),
        (" sre",),
        ("sre\n",),
        ("a\u2028b",),
        ("\ud800",),
        ("g" * 201,),
        tuple(f"g{number}" for number in range(201)),
    ],
)
async def test_a_malformed_group_is_refused(records: RecordStores, groups: tuple[str, ...]) -> None:
    with pytest.raises(MalformedMessage, match="group"):
        await records.parties.put(replace(ANA, groups=groups))


async def test_no_party_has_the_id_of_a_group(records: RecordStores) -> None:
    with pytest.raises(MalformedMessage, match="group:"):
        await records.parties.put(Principal("group:sre"))


async def test_a_party_can_be_changed_and_removed(records: RecordStores) -> None:
    await records.parties.put(ANA)
    await records.parties.put(replace(ANA, disabled=True))
    assert await records.parties.page() == [replace(ANA, disabled=True)]
    assert await records.parties.remove("person:ana")
    assert not await records.parties.remove("person:ana")
    assert await records.parties.get("person:ana") is None


async def test_a_party_that_is_removed_takes_its_keys_along(records: RecordStores) -> None:
    await records.parties.put(ANA)
    await records.keys.put(KEY, NOW)
    await records.keys.put(replace(KEY, id="k2", party="agent:ci"), NOW)
    before = (await records.changes.since(0)).version
    await records.parties.remove("person:ana")
    assert [key.id for key in await records.keys.page()] == ["k2"]
    told = (await records.changes.since(before)).changes
    assert set(told or ()) == {
        RecordChange(RecordKind.PARTIES, "person:ana"),
        RecordChange(RecordKind.KEYS, "k1"),
    }


async def test_parties_are_paged_in_one_order(records: RecordStores) -> None:
    await records.parties.put(*(Principal(f"agent:{number}") for number in range(105)))
    seen: list[Principal] = []
    while page := await records.parties.page(seen[-1].id if seen else "", 20):
        seen += page
    assert len(seen) == len({party.id for party in seen}) == 105


async def test_a_key_comes_back_as_it_was_written(records: RecordStores, again: Open) -> None:
    await records.keys.put(KEY, NOW)
    other = await again()
    assert await other.keys.get("k1") == KEY
    assert await other.keys.list_of_party("person:ana") == [KEY]
    assert await other.keys.page() == [KEY]
    assert await other.keys.page("k1") == []


async def test_a_party_has_at_most_two_keys_in_use(records: RecordStores) -> None:
    await records.keys.put(KEY, NOW)
    await records.keys.put(replace(KEY, id="k2"), NOW)
    with pytest.raises(Misconfigured, match="k1 and k2; revoke one"):
        await records.keys.put(replace(KEY, id="k3"), NOW)
    await records.keys.put(replace(KEY, id="k2", label="other"), NOW)
    await records.keys.put(replace(KEY, id="k3", party="agent:ci"), NOW)
    assert await records.keys.revoke("k1", NOW)
    await records.keys.put(replace(KEY, id="k4"), NOW)
    later = NOW + timedelta(days=91)
    unending = replace(KEY, id="k5", expires_at=None)
    await records.keys.put(unending, later)
    assert await records.keys.get("k5") == unending


async def test_two_at_once_are_not_one_too_many(records: RecordStores, again: Open) -> None:
    other = await again()
    await records.keys.put(KEY, NOW)
    tried = (
        (records if number % 2 else other).keys.put(replace(KEY, id=f"n{number}"), NOW)
        for number in range(6)
    )
    ended = await asyncio.wait_for(asyncio.gather(*tried, return_exceptions=True), 30)
    assert [type(each) for each in ended if each is not None] == [Misconfigured] * 5
    assert len(await records.keys.page()) == 2


async def test_a_key_is_revoked_once_and_stays_on_record(records: RecordStores) -> None:
    await records.keys.put(KEY, NOW)
    assert await records.keys.revoke("k1", NOW)
    assert not await records.keys.revoke("k1", NOW + timedelta(seconds=1))
    assert not await records.keys.revoke("nobody's", NOW)
    assert await records.keys.get("k1") == replace(KEY, revoked_at=NOW)


async def test_when_keys_were_used_is_no_news(records: RecordStores) -> None:
    await records.keys.put(KEY, NOW)
    before = await records.changes.since(0)
    await records.keys.touch({"k1": NOW + timedelta(hours=1), "gone": NOW})
    await records.keys.touch({})
    assert await records.keys.get("k1") == replace(KEY, last_used=NOW + timedelta(hours=1))
    assert (await records.changes.since(0)).version == before.version


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "a\0"},
        {"party": "\ud800"},
        {"mac": b""},
        {"permissions": ("a\0",)},
        {"requests_per_hour": -1},
        {"requests_per_minute": 2**64},
        {"expires_at": datetime(2026, 1, 1)},  # noqa: DTZ001
    ],
    ids=str,
)
async def test_a_key_that_no_store_could_keep_is_refused(
    records: RecordStores, changed: dict[str, object]
) -> None:
    with pytest.raises(MalformedMessage):
        await records.keys.put(replace(KEY, **changed), NOW)
    assert await records.keys.page() == []


async def test_nobody_is_found_by_a_name_that_cannot_be(records: RecordStores) -> None:
    for name in ("", "a\0", "\ud800"):
        assert await records.parties.get(name) is None
        assert not await records.parties.remove(name)
        assert await records.keys.get(name) is None
        assert await records.keys.list_of_party(name) == []
        assert not await records.keys.revoke(name, NOW)
