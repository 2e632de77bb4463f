"""Pins of tools and registered servers as every store keeps them."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from comity.app.records import RecordStores
from comity.catalog.definitions import AcceptedTool, RegistrationRecord
from comity.errors import MalformedMessage
from tests.contracts.stores import Open

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
PIN = AcceptedTool("files", "read", "sha256:00", b'{"name":"read"}\x00\xff', "person:ana", NOW)
REGISTRATION = RegistrationRecord(
    "search",
    {"url": "https://example.org/mcp", "depth": [1, {"é": None}], "big": 10**400, "nul": "\0"},
    "person:ana",
    NOW,
    "asked for",
)


async def test_a_pin_comes_back_as_it_was_written(records: RecordStores, again: Open) -> None:
    await records.accepted_tools.put(PIN, replace(PIN, tool="write"), replace(PIN, server="other"))
    other = await again()
    assert await other.accepted_tools.get("files", "read") == PIN
    assert {pin.tool for pin in await other.accepted_tools.list_for("files")} == {"read", "write"}


async def test_a_pin_is_replaced_and_removed(records: RecordStores) -> None:
    await records.accepted_tools.put(PIN, replace(PIN, tool="write"))
    await records.accepted_tools.put(replace(PIN, digest="sha256:01"))
    assert (await records.accepted_tools.get("files", "read") or PIN).digest == "sha256:01"
    assert await records.accepted_tools.remove("files", "read")
    assert not await records.accepted_tools.remove("files", "read")
    assert [pin.tool for pin in await records.accepted_tools.list_for("files")] == ["write"]


async def test_all_pins_of_a_server_go_at_once(records: RecordStores) -> None:
    await records.accepted_tools.put(PIN, replace(PIN, tool="write"), replace(PIN, server="other"))
    assert await records.accepted_tools.remove("files")
    assert not await records.accepted_tools.remove("files")
    assert await records.accepted_tools.list_for("files") == []
    assert len(await records.accepted_tools.list_for("other")) == 1


@pytest.mark.parametrize("changed", [{"tool": "a\0"}, {"server": "\ud800"}, {"tool": ""}], ids=str)
async def test_a_pin_that_no_store_could_keep_is_refused(
    records: RecordStores, changed: dict[str, str]
) -> None:
    with pytest.raises(MalformedMessage):
        await records.accepted_tools.put(PIN, replace(PIN, **changed))
    assert await records.accepted_tools.list_for("files") == []
    assert (
        await records.accepted_tools.get(changed.get("server", "files"), changed.get("tool", "x"))
        is None
    )
    assert not await records.accepted_tools.remove("\0", "x")


async def test_a_registered_server_comes_back_as_it_was_written(
    records: RecordStores, again: Open
) -> None:
    await records.registrations.put(REGISTRATION)
    other = await again()
    assert await other.registrations.get("search") == REGISTRATION
    assert await other.registrations.all() == [REGISTRATION]
    assert await other.registrations.get("\0") is None


async def test_a_registered_server_is_replaced_and_removed(records: RecordStores) -> None:
    await records.registrations.put(REGISTRATION)
    await records.registrations.put(replace(REGISTRATION, entry={}))
    assert await records.registrations.all() == [replace(REGISTRATION, entry={})]
    assert await records.registrations.remove("search")
    assert not await records.registrations.remove("search")
    assert not await records.registrations.remove("\ud800")


@pytest.mark.parametrize("entry", [{"a": "\ud800"}, {"a": object()}, {"a": "x" * 5_000_000}])
async def test_an_entry_that_is_no_json_is_refused(
    records: RecordStores, entry: dict[str, object]
) -> None:
    with pytest.raises(MalformedMessage):
        await records.registrations.put(replace(REGISTRATION, entry=entry))
