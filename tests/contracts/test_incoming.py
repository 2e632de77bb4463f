"""Once-only keys on every database: taken by one, finished once, forgotten."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from comity.app.records import RecordStores
from comity.errors import MalformedMessage
from comity.toolkit.jobs import KeyClaim, KeyState
from tests.contracts.stores import Open

NOW = datetime(2026, 7, 28, 12, 0, 0, 123456, tzinfo=UTC)
SOON = NOW + timedelta(seconds=30)
LATER = NOW + timedelta(hours=1)


async def test_of_all_who_take_a_deed_one_has_it(records: RecordStores, again: Open) -> None:
    others = [await again() for _ in range(3)]
    found = await asyncio.gather(
        *(each.incoming.take(["a", "b"], f"n{n}", NOW, SOON) for n, each in enumerate(others))
    )
    for place in range(2):
        states = sorted(each[place].state for each in found)
        assert states == [KeyState.BUSY, KeyState.BUSY, KeyState.OURS]
    assert [each.key for each in found[0]] == ["a", "b"]
    assert await records.incoming.take([], "n0", NOW, SOON) == []


async def test_what_was_settled_stays_so_with_its_note(records: RecordStores, again: Open) -> None:
    await records.incoming.take(["a"], "one", NOW, SOON)
    await records.incoming.finish("one", {"a": "conversation"}, NOW)
    await records.incoming.finish("one", {"a": "another"}, NOW)
    await records.incoming.finish("two", {"a": "another"}, NOW)
    await records.incoming.release("one", ["a"])
    other = (await again()).incoming
    assert await other.take(["a"], "two", LATER, None) == [
        KeyClaim("a", KeyState.DONE, "conversation")
    ]


async def test_one_that_lapsed_is_taken_by_another_and_its_holder_settles_nothing(
    records: RecordStores,
) -> None:
    kept = records.incoming
    await kept.take(["a", "b"], "one", NOW, SOON)
    found = await kept.take(["b", "a", "c"], "two", LATER, LATER + timedelta(seconds=1))
    assert [each.state for each in found] == [KeyState.OURS] * 3
    await kept.finish("one", {"a": "late"}, LATER)
    await kept.release("one", ["b"])
    found = await kept.take(["a", "b"], "three", LATER, None)
    assert [each.state for each in found] == [KeyState.BUSY] * 2


async def test_one_without_a_time_never_lapses(records: RecordStores) -> None:
    await records.incoming.take(["a"], "one", NOW, None)
    assert await records.incoming.take(["a"], "two", LATER, None) == [KeyClaim("a", KeyState.BUSY)]


async def test_what_was_released_can_be_taken_again(records: RecordStores) -> None:
    await records.incoming.take(["a", "b"], "one", NOW, None)
    await records.incoming.release("one", ["a"])
    await records.incoming.release("one", [])
    found = await records.incoming.take(["a", "b"], "two", NOW, None)
    assert [each.state for each in found] == [KeyState.OURS, KeyState.BUSY]


async def test_what_nobody_took_can_be_settled_for_good(records: RecordStores) -> None:
    await records.incoming.finish("one", {"own": "said here"}, NOW)
    await records.incoming.finish("one", {}, NOW)
    assert await records.incoming.take(["own"], "two", LATER, None) == [
        KeyClaim("own", KeyState.DONE, "said here")
    ]


async def test_what_is_old_is_forgotten(records: RecordStores) -> None:
    await records.incoming.take(["a"], "one", NOW, None)
    await records.incoming.finish("one", {"b": ""}, LATER)
    assert await records.incoming.forget(SOON) == 1
    found = await records.incoming.take(["a", "b"], "two", LATER, None)
    assert [each.state for each in found] == [KeyState.OURS, KeyState.DONE]


@pytest.mark.parametrize("key", ["", "\0", "\ud800", "k" * 2_000])
async def test_what_cannot_be_a_name_is_no_key(records: RecordStores, key: str) -> None:
    with pytest.raises(MalformedMessage):
        await records.incoming.take([key], "one", NOW, None)
    with pytest.raises(MalformedMessage):
        await records.incoming.finish("one", {key: ""}, NOW)
