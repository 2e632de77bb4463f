"""The journal: group commit, order, a store that fails, and what an earlier run left in doubt."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from comity.kernel import journal as room
from comity.kernel.journal import Journal, Pace
from comity.rules import chain
from comity.wire.audit import Event, Result, Type
from comity.wire.errors import JOURNAL_AWAY, Unavailable
from tests.kernel.journals import QUICK, FailingStore, events, kept

AT = datetime(2026, 11, 15, tzinfo=UTC)


def happened(name: str, type: str = Type.TOOL_EXECUTED, call: str = "") -> Event:
    return Event(type, name, AT, call=call)


async def named(store: FailingStore) -> list[str]:
    return [each.actor for each in await events(store) if each.actor != "system:gateway"]


async def test_what_is_noted_is_kept_in_its_order_without_anybody_waiting() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        for number in range(100):
            journal.note(happened(f"agent:{number}"))
        assert journal.waiting == 101
        await journal.flush()
        assert journal.waiting == 0
    assert await named(store) == [f"agent:{number}" for number in range(100)]


async def test_every_entry_is_linked_to_the_one_before_it() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        for number in range(10):
            await journal.write(happened(f"agent:{number}"))
    before = chain.GENESIS
    lines = await store.page("n-1")
    for seq, line in enumerate(lines, 1):
        assert line.seq == seq
        assert line.hash == chain.link(before, b"n-1", seq, line.body)
        before = line.hash
    assert len(lines) == 12


async def test_those_who_come_while_a_commit_runs_share_the_next_one() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        await journal.flush()
        store.commits.clear()
        store.gate.clear()
        first = journal.write(happened("agent:0"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        rest = [journal.write(happened(f"agent:{number}")) for number in range(1, 33)]
        store.gate.set()
        await asyncio.gather(first, *rest)
        assert len(store.commits) <= 2
        assert sum(store.commits) == 33


async def test_a_commit_takes_a_bounded_number_and_the_rest_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "AT_ONCE", 10)
    store = FailingStore()
    async with kept(store) as journal:
        waiters = [journal.write(happened(f"agent:{number}")) for number in range(35)]
        await asyncio.gather(*waiters)
    assert max(store.commits) <= 10
    assert await named(store) == [f"agent:{number}" for number in range(35)]


async def test_whoever_wrote_waits_until_the_store_is_back() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        await journal.flush()
        store.failures = 3
        async with asyncio.timeout(10):
            await journal.write(happened("agent:late"))
    assert await named(store) == ["agent:late"]


async def test_a_commit_of_unknown_fate_is_looked_up_and_never_repeated() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        await journal.flush()
        store.lies = 1
        async with asyncio.timeout(10):
            await journal.write(happened("agent:once"))
        async with asyncio.timeout(10):
            await journal.write(happened("agent:after"))
    assert await named(store) == ["agent:once", "agent:after"]


async def test_whoever_insists_is_told_when_the_store_stays_away_and_its_entry_stays() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        await journal.flush()
        store.failures = 10**6
        with pytest.raises(Unavailable) as refused:
            async with asyncio.timeout(10):
                await journal.insist(happened("agent:refused"))
        assert refused.value.fault is JOURNAL_AWAY
        assert refused.value.retry_after is not None
        # From now on nobody waits in vain.
        with pytest.raises(Unavailable):
            await asyncio.wait_for(journal.insist(happened("agent:at-once")), 1)
        store.failures = 0
        async with asyncio.timeout(10):
            await journal.flush()
            await journal.insist(happened("agent:back"))
    assert await named(store) == ["agent:refused", "agent:at-once", "agent:back"]


async def test_there_is_room_up_to_a_bound_while_the_store_is_away() -> None:
    store = FailingStore()
    store.failures = 10**6
    async with kept(store, Pace(timedelta(0), timedelta(milliseconds=20), 5)) as journal:
        for number in range(3):
            journal.note(happened(f"agent:{number}"))
        assert journal.has_room
        journal.note(happened("agent:3"))
        assert not journal.has_room
        store.failures = 0
        await journal.flush()
        assert journal.has_room


async def test_what_is_told_to_listeners_was_kept_before() -> None:
    store, heard = FailingStore(), list[tuple[str, int]]()
    async with kept(store) as journal:

        def listen(event: Event) -> None:
            heard.append((event.actor, sum(store.commits)))

        def fail(event: Event) -> None:
            raise ValueError("a listener's bug")

        journal.listeners += [fail, listen]
        await journal.write(happened("agent:a"))
        assert next(count for actor, count in heard if actor == "agent:a") >= 2


async def test_what_an_earlier_run_left_in_doubt_is_unknown_before_anything_else() -> None:
    store = FailingStore()
    first = Journal(store, "n-1", QUICK)
    async with first.kept():
        await first.insist(happened("agent:a", Type.CALL_INTENDED, "run-1"))
        await first.insist(happened("agent:b", Type.CALL_INTENDED, "run-2"))
        await first.write(happened("agent:b", call="run-2"))
    doubted = list[Event]()
    second = Journal(store, "n-1", QUICK)
    second.doubted.append(doubted.extend)
    async with second.kept():
        await second.flush()
    assert [intent.call for intent in doubted] == ["run-1"]
    unknown = [each for each in await events(store) if each.type == Type.OUTCOME_UNKNOWN]
    assert [(each.call, each.actor, each.result) for each in unknown] == [
        ("run-1", "agent:a", Result.UNKNOWN)
    ]
    third = Journal(store, "n-1", QUICK)
    async with third.kept():
        await third.flush()
    found = [each for each in await events(store) if each.type == Type.OUTCOME_UNKNOWN]
    assert len(found) == 1


async def test_calls_under_way_are_not_in_doubt_when_the_store_comes_back() -> None:
    store = FailingStore()
    async with kept(store) as journal:
        await journal.insist(happened("agent:a", Type.CALL_INTENDED, "run-1"))
        store.failures = 2
        await journal.write(happened("agent:b"))
        await journal.write(happened("agent:a", call="run-1"))
    assert Type.OUTCOME_UNKNOWN not in [each.type for each in await events(store)]
    assert store.opened >= 2


async def test_the_end_of_a_run_is_written_down() -> None:
    store = FailingStore()
    async with kept(store):
        pass
    assert [each.type for each in await events(store)] == [
        Type.JOURNAL_OPENED,
        Type.JOURNAL_CLOSED,
    ]


async def test_a_store_that_is_away_at_the_end_does_not_hold_up_the_way_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FailingStore()
    store.failures = 10**6
    async with asyncio.timeout(10):
        async with kept(store) as journal:
            journal.note(happened("agent:lost"))
    assert "the journal lacks 3 entries" in caplog.text


@pytest.mark.parametrize(
    "details", [{"half": "\ud800"}, {"what": object()}], ids=["half", "object"]
)
async def test_what_cannot_be_written_keeps_nothing_else_from_being_kept(
    details: dict[str, object],
) -> None:
    store = FailingStore()
    async with kept(store) as journal:
        journal.note(Event(Type.TOOL_EXECUTED, "agent:\ud800", AT, details=details))
        async with asyncio.timeout(10):
            await journal.write(happened("agent:next"))
    found = [each for each in await events(store) if each.type == Type.TOOL_EXECUTED]
    assert [dict(each.details) for each in found] == [{"unreadable": True}, {}]
