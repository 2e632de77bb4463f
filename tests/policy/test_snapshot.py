"""The snapshot of records by which calls are judged: changes, gaps, age, a store that fails."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.app.records import GatewaySnapshot, RecordStores, open_store
from comity.errors import POLICY_UNKNOWN, Misconfigured, Unavailable
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import CALL, Actor
from comity.policy.generation import PolicyGeneration
from comity.policy.grants import (
    DefaultPolicy,
    Effect,
    Grant,
    GrantIndex,
    GrantSet,
    GrantSource,
    Guardrail,
    StaticRules,
)
from comity.policy.snapshot import GrantSnapshot, PolicySnapshot, RecordCache, SnapshotFreshness
from comity.storage.changes import PAGE, RecordKind
from comity.storage.sqlite import BUSY_SECONDS
from comity.toolkit.bucket_map import BUCKETS
from tests.support.clock import ManualClock
from tests.support.inline_store import InlineBackend, InlineChain

NOW = datetime(2026, 11, 15, tzinfo=UTC)
AGE = timedelta(seconds=30)
GRANT = Grant("agent:ci", CALL, "files/read", Effect.ALLOW)
FIXED = Grant("agent:ci", CALL, "mail/*", Effect.ALLOW, source=GrantSource.FILE)
DECIDED = StaticRules((FIXED,), (Guardrail("*", "*", "bank/*"),), {"open": DefaultPolicy.ALLOW})


class Records(RecordStores):
    """A store that can be made to fail, and counts how often it is asked for what."""

    def __init__(self) -> None:
        product = InlineBackend()
        super().__init__(product, InlineChain(product.path, BUSY_SECONDS), asyncio.Event())
        self.problem: Exception | None = None
        self.asked: list[str] = []
        self.looks = 0
        self._look = self.changes.count_changes
        self.changes.count_changes = self._count_changes
        self._since, self._page = self.changes.since, self.grants.page
        self.changes.since = self._watched("since", self._since)
        self.grants.page = self._watched("grants", self._page)

    def _watched(self, name: str, deed: Callable[..., Any]) -> Any:
        async def watched(*args: Any, **named: Any) -> Any:
            self.asked.append(name)
            if self.problem is not None:
                raise self.problem
            return await deed(*args, **named)

        return watched

    async def _count_changes(self) -> int:
        """As the store itself: one that does not answer may have changed."""
        self.looks += 1
        return await self._look() if self.problem is None else 1_000 + self.looks

    async def open(self) -> None:
        self.asked.append("open")
        if self.problem is not None:
            raise self.problem

    async def close(self) -> None:
        self.asked.append("close")


def snapshot_of(
    records: RecordStores,
    decided: StaticRules = DECIDED,
    clock: Callable[[], float] = time.monotonic,
) -> GatewaySnapshot:
    certainty = SnapshotFreshness(AGE, clock)
    return PolicySnapshot(records, GrantSnapshot(freshness=certainty), certainty, decided)


def effect(snapshot: GatewaySnapshot, server: str, name: str, party: str = "agent:ci") -> Effect:
    return snapshot.grants.authorize(Actor(party), CALL, server, name).effect


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_records_and_what_the_operator_wrote_count_together() -> None:
    records = Records()
    await records.grants.put(GRANT, replace(GRANT, subject="agent:x", target="bank/pay"))
    snapshot = snapshot_of(records)
    with pytest.raises(Unavailable):
        effect(snapshot, "files", "read")
    await snapshot.refresh()
    assert effect(snapshot, "files", "read") is Effect.ALLOW
    assert effect(snapshot, "files", "write") is Effect.DENY
    assert effect(snapshot, "mail", "send") is Effect.ALLOW
    assert effect(snapshot, "bank", "pay", "agent:x") is Effect.DENY
    assert effect(snapshot, "open", "x", "agent:y") is Effect.ALLOW


async def test_of_a_change_only_its_subject_is_read_again() -> None:
    records = Records()
    many = [replace(GRANT, subject=f"agent:{number}") for number in range(1_000)]
    await records.grants.put(*many)
    snapshot = snapshot_of(records)
    await snapshot.refresh()
    before = snapshot.grants.latest
    records.asked.clear()
    await records.grants.put(replace(GRANT, subject="agent:7", effect=Effect.DENY))
    await records.grants.revoke("agent:8", CALL, "files/read")
    await snapshot.refresh()
    assert effect(snapshot, "files", "read", "agent:7") is Effect.DENY
    assert effect(snapshot, "files", "read", "agent:8") is Effect.DENY
    assert effect(snapshot, "files", "read", "agent:9") is Effect.ALLOW
    assert "agent:8" not in snapshot.grants.latest.subjects
    # Once for what is there, and once to see that there is no more.
    assert records.asked == ["since", "grants", "grants"]
    assert before.subjects["agent:9"] is snapshot.grants.latest.subjects["agent:9"]
    assert before.index_of("agent:7").grants[0].effect is Effect.ALLOW


async def test_what_the_operator_writes_anew_takes_the_place_of_the_old() -> None:
    records = Records()
    await records.grants.put(GRANT)
    snapshot = snapshot_of(records)
    await snapshot.replace_static_rules(DECIDED)
    await snapshot.refresh()
    await snapshot.replace_static_rules(StaticRules((replace(FIXED, target="post/*"),)))
    assert effect(snapshot, "mail", "send") is Effect.DENY
    assert effect(snapshot, "post", "send") is Effect.ALLOW
    assert effect(snapshot, "files", "read") is Effect.ALLOW
    await records.grants.put(replace(GRANT, target="files/write"))
    await snapshot.refresh()
    assert effect(snapshot, "post", "send") is Effect.ALLOW


async def test_many_changes_at_once_are_read_in_pieces_or_whole() -> None:
    records = Records()
    snapshot = snapshot_of(records)
    await snapshot.refresh()
    for count in (450, 1_500):
        grants = (replace(GRANT, subject=f"agent:{number}") for number in range(count))
        await records.grants.put(*grants)
        await snapshot.refresh()
        assert effect(snapshot, "files", "read", f"agent:{count - 1}") is Effect.ALLOW
        assert effect(snapshot, "mail", "send") is Effect.ALLOW


async def test_who_has_missed_too_much_reads_everything_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("comity.storage.database.REMEMBERED", 2)
    monkeypatch.setattr("comity.storage.database.PRUNED_EVERY", 1)
    records = Records()
    snapshot = snapshot_of(records)
    await snapshot.refresh()
    await records.grants.put(GRANT)
    for number in range(5):
        await records.parties.put(Principal(f"agent:{number}"))
    assert (await records.changes.since(1)).changes is None
    await snapshot.refresh()
    assert effect(snapshot, "files", "read") is Effect.ALLOW


async def test_keys_and_parties_are_known_by_their_ids() -> None:
    records = Records()
    ana, key = Principal("person:ana"), ApiKey("k1", "person:ana", b"m" * 32)
    await records.parties.put(ana)
    await records.keys.put(key, NOW)
    snapshot = snapshot_of(records)
    with pytest.raises(Unavailable):
        snapshot.keys.get("k1")
    await snapshot.refresh()
    assert (snapshot.keys.get("k1"), snapshot.parties.get("person:ana")) == (key, ana)
    await records.keys.revoke("k1", NOW)
    await records.parties.put(replace(ana, disabled=True), Principal("agent:new"))
    await snapshot.refresh()
    revoked, disabled = snapshot.keys.get("k1"), snapshot.parties.get("person:ana")
    assert revoked is not None
    assert revoked.revoked_at == NOW
    assert disabled is not None
    assert disabled.disabled
    assert snapshot.parties.get("agent:new") == Principal("agent:new")
    await records.parties.remove("person:ana")
    await records.parties.put(*(Principal(f"agent:{number}") for number in range(300)))
    await snapshot.refresh()
    assert snapshot.keys.get("k1") is None
    assert snapshot.parties.get("person:ana") is None
    assert snapshot.parties.get("agent:299") is not None


async def test_a_change_by_anybody_is_in_force_without_asking() -> None:
    records = Records()
    snapshot = snapshot_of(records)
    async with snapshot.follow():
        assert effect(snapshot, "files", "read") is Effect.DENY
        await records.grants.put(GRANT)
        await until(lambda: effect(snapshot, "files", "read") is Effect.ALLOW)
        version = snapshot.version
        # As another process would: without a stir.
        records.changes.wait_for_change = lambda timeout: asyncio.sleep(0.01, result=False)
        await records.grants.revoke("agent:ci", CALL, "files/read")
        await until(lambda: effect(snapshot, "files", "read") is Effect.DENY)
        assert snapshot.version == version + 1
    assert records.asked[-1] == "close"


async def test_while_nothing_changes_no_change_is_read() -> None:
    records = Records()
    snapshot = snapshot_of(records)
    async with snapshot.follow():
        records.asked.clear()
        looks = records.looks
        await until(lambda: records.looks > looks + 3)
        assert records.asked == []
        assert snapshot.is_fresh


async def test_watchers_hear_of_their_kind_alone_and_one_that_fails_stops_nobody() -> None:
    records = Records()
    snapshot = snapshot_of(records)
    heard: list[str] = []

    def fail(_: str) -> None:
        raise ValueError("broken")

    snapshot.watch(RecordKind.PARTIES, fail)
    snapshot.watch(RecordKind.PARTIES, heard.append)
    await snapshot.refresh()
    await records.parties.put(Principal("agent:x"))
    await records.grants.put(GRANT)
    await snapshot.refresh()
    assert heard == ["", "agent:x"]


async def test_a_store_that_does_not_answer_is_gone_by_until_it_is_too_long() -> None:
    records, clock = Records(), ManualClock(1000.0)
    await records.grants.put(GRANT)
    snapshot = snapshot_of(records, clock=clock)
    await snapshot.refresh()
    records.problem = Unavailable("gone")
    clock.now += 29
    with pytest.raises(Unavailable, match="gone"):
        await snapshot.refresh()
    assert effect(snapshot, "files", "read") is Effect.ALLOW
    clock.now += 2
    with pytest.raises(Unavailable, match="31 s ago"):
        effect(snapshot, "files", "read")
    with pytest.raises(Unavailable):
        snapshot.keys.get("k")
    records.problem = None
    await snapshot.refresh()
    assert effect(snapshot, "files", "read") is Effect.ALLOW


async def test_trouble_with_the_store_is_told_once_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "comity.policy.snapshot")
    records = Records()
    records.problem = Unavailable("the store does not answer: refused")
    snapshot = snapshot_of(records)
    async with snapshot.follow():
        await until(lambda: records.asked.count("open") > 3)
        with pytest.raises(Unavailable, match="not loaded yet"):
            effect(snapshot, "files", "read")
        records.problem = None
        await until(lambda: snapshot.freshness.is_fresh)
        await until(lambda: "available again" in caplog.text)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert caplog.text.count("does not answer") == 1


async def test_after_a_standstill_the_store_is_asked_at_once() -> None:
    records, clock = Records(), ManualClock(1000.0)
    await records.grants.put(GRANT)
    snapshot = snapshot_of(records, clock=clock)
    async with snapshot.follow():
        looks = records.looks
        await until(lambda: records.looks > looks)  # with its first sign of life
        clock.now += 5
        with pytest.raises(Unavailable, match="5 s ago"):
            effect(snapshot, "files", "read")
        await until(lambda: snapshot.freshness.is_fresh)
        assert effect(snapshot, "files", "read") is Effect.ALLOW


async def test_a_store_that_cannot_be_used_is_told_at_the_start() -> None:
    records = Records()
    records.problem = Misconfigured("run `comity db migrate`")
    snapshot = snapshot_of(records)
    with pytest.raises(Misconfigured, match="db migrate"):
        async with snapshot.follow():
            pytest.fail("it began all the same")
    assert records.asked == ["open", "close"]


async def test_a_bug_does_not_end_the_following(caplog: pytest.LogCaptureFixture) -> None:
    records = Records()
    snapshot = snapshot_of(records)
    async with snapshot.follow():
        records.problem = RuntimeError("a bug")
        await until(lambda: "Watching the records failed" in caplog.text)
        records.problem = None
        await records.grants.put(GRANT)
        await until(lambda: snapshot.is_fresh and _is_allowed(snapshot))


def _is_allowed(snapshot: GatewaySnapshot) -> bool:
    return effect(snapshot, "files", "read") is Effect.ALLOW


async def most_added_in_a_turn(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[], Awaitable[object]]
) -> int:
    """The most grants that are added to an index between two turns of the loop."""
    most = added = 0
    add = GrantIndex.add

    def count_and_add(index: GrantIndex, grants: Iterable[Grant]) -> None:
        nonlocal added
        page = tuple(grants)
        added += len(page)
        add(index, page)

    async def watch() -> None:
        nonlocal most, added
        while True:
            most, added = max(most, added), 0
            await asyncio.sleep(0)

    with monkeypatch.context() as patched:
        patched.setattr(GrantIndex, "add", count_and_add)
        watching = asyncio.ensure_future(watch())
        await work()
        watching.cancel()
    return max(most, added)


@pytest.mark.parametrize("subjects", [1, 2_000])
async def test_neither_reading_all_nor_a_change_holds_up_the_loop(
    subjects: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn of the loop adds one page at most, and a change copies one bucket of subjects."""
    records = open_store("")
    await records.open()
    await records.grants.put(
        *(replace(GRANT, subject=f"agent:{n % subjects}", target=f"s/{n}") for n in range(20_000))
    )
    snapshot = snapshot_of(records, StaticRules())
    assert await most_added_in_a_turn(monkeypatch, snapshot.refresh) == PAGE
    before = snapshot.grants.latest.subjects
    assert len(before) == subjects
    await records.grants.put(replace(GRANT, subject="agent:0", effect=Effect.ASK))
    assert await most_added_in_a_turn(monkeypatch, snapshot.refresh) <= PAGE
    after = snapshot.grants.latest.subjects
    assert effect(snapshot, "files", "read", "agent:0") is Effect.ASK
    pairs = zip(before.buckets, after.buckets, strict=True)
    copied = [new for old, new in pairs if old is not new]
    assert len(copied) == 1
    assert "agent:0" in copied[0]
    # The share of one bucket. The seed of the hash gives none of 1,024 ten times its share.
    assert len(copied[0]) <= 10 * (1 + subjects // BUCKETS)
    await records.close()


async def stood_still() -> tuple[Records, GatewaySnapshot, ManualClock[float]]:
    """What was known before a standstill of a second."""
    records, clock = Records(), ManualClock(1000.0)
    snapshot = snapshot_of(records, clock=clock)
    await records.grants.put(GRANT)
    await snapshot.refresh()
    snapshot.freshness.beat()
    clock.now += 1
    records.asked.clear()
    return records, snapshot, clock


async def test_all_who_wait_after_a_standstill_share_one_question_to_the_store() -> None:
    records, snapshot, _ = await stood_still()
    assert await records.grants.revoke("agent:ci", CALL, "files/read")
    assert not snapshot.is_fresh
    await asyncio.gather(*(snapshot.refresh_if_stale() for _ in range(20)))
    assert snapshot.is_fresh
    assert records.asked == ["since", "grants"]
    assert effect(snapshot, "files", "read") is Effect.DENY
    await snapshot.refresh_if_stale()
    assert records.asked == ["since", "grants"]


async def test_nobody_waits_for_a_store_that_is_known_not_to_answer() -> None:
    records, snapshot, clock = await stood_still()
    records.problem = Unavailable("the store does not answer")
    await snapshot.refresh_if_stale()
    assert not snapshot.is_fresh
    assert records.asked == ["since"]
    await snapshot.refresh_if_stale()
    assert records.asked == ["since"]
    with pytest.raises(Unavailable):
        effect(snapshot, "files", "read")
    assert clock.now == 1001.0


ACTOR = Actor("agent:ci")
ACCESS = GrantSet.from_grants([Grant("agent:ci", CALL, "files/*", Effect.ALLOW)])


def test_before_anything_is_known_nothing_is_judged() -> None:
    certainty = SnapshotFreshness(timedelta(seconds=30), ManualClock(1000.0))
    assert not certainty.is_fresh
    assert certainty.age == math.inf
    with pytest.raises(Unavailable, match="not loaded yet") as refused:
        certainty.require_fresh()
    assert refused.value.fault is POLICY_UNKNOWN
    assert refused.value.fault.retryable
    assert refused.value.retry_after == timedelta(seconds=1)


def test_age_counts_from_the_question_to_the_store() -> None:
    clock = ManualClock(1000.0)
    certainty = SnapshotFreshness(timedelta(seconds=1), clock)
    without_age = SnapshotFreshness(clock=clock)
    assert certainty.has_max_age
    assert not without_age.has_max_age
    asked, clock.now = clock.now, clock.now + 0.75
    for each in (certainty, without_age):
        assert not each.is_fresh
        each.confirm(asked)
    clock.now = asked + 1
    assert certainty.is_fresh
    certainty.require_fresh()
    clock.now = asked + 1.5
    assert not certainty.is_fresh
    with pytest.raises(Unavailable, match="last confirmed 2 s ago"):
        certainty.require_fresh()
    clock.now += 1e9
    assert without_age.is_fresh


def test_a_process_that_stood_still_knows_nothing_before_it_has_asked_again() -> None:
    clock = ManualClock(1000.0)
    certainty = SnapshotFreshness(timedelta(seconds=30), clock)
    certainty.confirm(clock.now)
    certainty.beat()
    clock.now += 0.5
    assert not certainty.beat()
    assert certainty.is_fresh
    asked, clock.now = clock.now, clock.now + 0.7
    assert not certainty.is_fresh
    # It was asked before, and what it answered then is of that time.
    certainty.confirm(asked)
    assert not certainty.is_fresh
    certainty.beat()
    assert not certainty.is_fresh
    certainty.confirm(clock.now)
    assert certainty.is_fresh
    clock.now += 5
    assert certainty.beat()
    with pytest.raises(Unavailable):
        certainty.require_fresh()


def test_signs_of_life_do_not_make_old_knowledge_young() -> None:
    clock = ManualClock(1000.0)
    certainty = SnapshotFreshness(timedelta(seconds=2), clock)
    certainty.confirm(clock.now)
    for _ in range(19):
        certainty.beat()
        clock.now += 0.1
        assert certainty.is_fresh
    for _ in range(3):
        certainty.beat()
        clock.now += 0.1
    assert not certainty.is_fresh


def test_grants_are_not_judged_by_before_they_are_known_nor_when_they_are_too_old() -> None:
    clock = ManualClock(1000.0)
    certainty = SnapshotFreshness(timedelta(seconds=30), clock)
    grants = GrantSnapshot(freshness=certainty)
    grants.replace(ACCESS)
    questions = (
        lambda: grants.authorize(ACTOR, CALL, "files", "read"),
        lambda: grants.may_know_server(ACTOR, "files"),
        lambda: grants.server_visibility(ACTOR, CALL, "files"),
        lambda: grants.visible_servers(ACTOR),
    )
    for question in questions:
        with pytest.raises(Unavailable):
            question()
    certainty.confirm(clock.now)
    assert grants.authorize(ACTOR, CALL, "files", "read").effect is Effect.ALLOW
    clock.now += 31
    for question in questions:
        with pytest.raises(Unavailable):
            question()


def test_nobody_is_unknown_by_a_book_that_cannot_be_relied_on() -> None:
    clock = ManualClock(1000.0)
    certainty = SnapshotFreshness(timedelta(seconds=30), clock)
    book = RecordCache[str](certainty, PolicyGeneration(), str)
    book.replace({"a": "A", "b": "B"})
    with pytest.raises(Unavailable):
        book.get("a")
    certainty.confirm(clock.now)
    book.put("c", "C")
    book.put("b", None)
    book.put("never", None)
    assert [book.get(id) for id in "abc"] == ["A", None, "C"]
    assert len(book) == 2
