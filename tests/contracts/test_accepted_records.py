"""Pins of tools and registered servers as every store keeps them."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from comity.ports import Records
from comity.wire.errors import MalformedMessage
from comity.wire.pins import Pin, Registration
from tests.contracts.stores import Open

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
PIN = Pin("files", "read", "sha256:00", b'{"name":"read"}\x00\xff', "person:ana", NOW)
REGISTRATION = Registration(
    "search",
    {"url": "https://example.org/mcp", "depth": [1, {"é": None}], "big": 10**400, "nul": "\0"},
    "person:ana",
    NOW,
    "asked for",
)


async def test_a_pin_comes_back_as_it_was_written(records: Records, again: Open) -> None:
    await records.pins.put(PIN, replace(PIN, tool="write"), replace(PIN, server="other"))
    other = await again()
    assert await other.pins.get("files", "read") == PIN
    assert {pin.tool for pin in await other.pins.of("files")} == {"read", "write"}


async def test_a_pin_is_replaced_and_removed(records: Records) -> None:
    await records.pins.put(PIN, replace(PIN, tool="write"))
    await records.pins.put(replace(PIN, digest="sha256:01"))
    assert (await records.pins.get("files", "read") or PIN).digest == "sha256:01"
    assert await records.pins.remove("files", "read")
    assert not await records.pins.remove("files", "read")
    assert [pin.tool for pin in await records.pins.of("files")] == ["write"]


async def test_all_pins_of_a_server_go_at_once(records: Records) -> None:
    await records.pins.put(PIN, replace(PIN, tool="write"), replace(PIN, server="other"))
    assert await records.pins.remove("files")
    assert not await records.pins.remove("files")
    assert await records.pins.of("files") == []
    assert len(await records.pins.of("other")) == 1


@pytest.mark.parametrize("changed", [{"tool": "a\0"}, {"server": "\ud800"}, {"tool": ""}], ids=str)
async def test_a_pin_that_no_store_could_keep_is_refused(
    records: Records, changed: dict[str, str]
) -> None:
    with pytest.raises(MalformedMessage):
        await records.pins.put(PIN, replace(PIN, **changed))
    assert await records.pins.of("files") == []
    assert await records.pins.get(changed.get("server", "files"), changed.get("tool", "x")) is None
    assert not await records.pins.remove("\0", "x")


async def test_a_registered_server_comes_back_as_it_was_written(
    records: Records, again: Open
) -> None:
    await records.registrations.put(REGISTRATION)
    other = await again()
    assert await other.registrations.get("search") == REGISTRATION
    assert await other.registrations.all() == [REGISTRATION]
    assert await other.registrations.get("\0") is None


async def test_a_registered_server_is_replaced_and_removed(records: Records) -> None:
    await records.registrations.put(REGISTRATION)
    await records.registrations.put(replace(REGISTRATION, entry={}))
    assert await records.registrations.all() == [replace(REGISTRATION, entry={})]
    assert await records.registrations.remove("search")
    assert not await records.registrations.remove("search")
    assert not await records.registrations.remove("\ud800")


@pytest.mark.parametrize("entry", [{"a": "\ud800"}, {"a": object()}, {"a": "x" * 5_000_000}])
async def test_an_entry_that_is_no_json_is_refused(
    records: Records, entry: dict[str, object]
) -> None:
    with pytest.raises(MalformedMessage):
        await records.registrations.put(replace(REGISTRATION, entry=entry))
