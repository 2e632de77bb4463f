"""What calls are judged by follows the records: changes, gaps, and a store that does not answer."""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from comity.adapters.memory.records import MemoryRecords
from comity.cli.serving import GC_THRESHOLDS
from comity.kernel.certainty import Certainty
from comity.kernel.grants import Grants
from comity.kernel.snapshot import Snapshot
from comity.ports import Kept
from comity.rules.access import Decided, DefaultPolicy
from comity.wire.errors import Misconfigured, Unavailable
from comity.wire.grants import CALL, Effect, Forbid, Grant, Source
from comity.wire.parties import Actor, Key, Party
from tests.pace import here

NOW = datetime(2026, 11, 15, tzinfo=UTC)
AGE = timedelta(seconds=30)
GRANT = Grant("agent:ci", CALL, "files/read", Effect.ALLOW)
FIXED = Grant("agent:ci", CALL, "mail/*", Effect.ALLOW, source=Source.FILE)
DECIDED = Decided((FIXED,), (Forbid("*", "*", "bank/*"),), {"open": DefaultPolicy.OPT_OUT})


class Records(MemoryRecords):
    """A store that can be made to fail, and counts how often it is asked for what."""

    def __init__(self) -> None:
        super().__init__()
        self.problem: Exception | None = None
        self.asked: list[str] = []
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

    async def open(self) -> None:
        self.asked.append("open")
        if self.problem is not None:
            raise self.problem

    async def close(self) -> None:
        self.asked.append("close")


class Hands:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def snapshot_of(
    records: MemoryRecords, decided: Decided = DECIDED, clock: Callable[[], float] = time.monotonic
) -> Snapshot:
    certainty = Certainty(AGE, clock)
    return Snapshot(records, Grants(certainty=certainty), certainty, decided)


def effect(snapshot: Snapshot, server: str, name: str, party: str = "agent:ci") -> Effect:
    return snapshot.grants.judge(Actor(party), CALL, server, name).effect


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def following(snapshot: Snapshot) -> AsyncGenerator[None]:
    async with snapshot.followed():
        yield


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
    assert before.entries("agent:7").grants[0].effect is Effect.ALLOW


async def test_what_the_operator_wrote_stays_when_records_of_its_subject_go() -> None:
    records = Records()
    await records.grants.put(GRANT)
    snapshot = snapshot_of(records)
    await snapshot.refresh()
    await records.grants.revoke("agent:ci", CALL, "files/read")
    await snapshot.refresh()
    assert effect(snapshot, "files", "read") is Effect.DENY
    assert effect(snapshot, "mail", "send") is Effect.ALLOW


async def test_what_the_operator_writes_anew_takes_the_place_of_the_old() -> None:
    records = Records()
    await records.grants.put(GRANT)
    snapshot = snapshot_of(records)
    await snapshot.decide(DECIDED)
    await snapshot.refresh()
    await snapshot.decide(Decided((replace(FIXED, target="post/*"),)))
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


async def test_who_has_missed_too_much_reads_everything_again() -> None:
    records = Records()
    snapshot = snapshot_of(records)
    await snapshot.refresh()
    for number in range(10_050):
        records.changes.note(Kept.PINS, [str(number)])
    await records.grants.put(GRANT)
    for number in range(10_050):
        records.changes.note(Kept.PINS, [str(number)])
    await snapshot.refresh()
    assert effect(snapshot, "files", "read") is Effect.ALLOW


async def test_keys_and_parties_are_known_by_their_ids() -> None:
    records = Records()
    ana, key = Party("person:ana"), Key("k1", "person:ana", b"m" * 32)
    await records.parties.put(ana)
    await records.keys.put(key, NOW)
    snapshot = snapshot_of(records)
    with pytest.raises(Unavailable):
        snapshot.keys.get("k1")
    await snapshot.refresh()
    assert (snapshot.keys.get("k1"), snapshot.parties.get("person:ana")) == (key, ana)
    await records.keys.revoke("k1", NOW)
    await records.parties.put(replace(ana, disabled=True), Party("agent:new"))
    await snapshot.refresh()
    revoked, disabled = snapshot.keys.get("k1"), snapshot.parties.get("person:ana")
    assert revoked is not None
    assert revoked.revoked_at == NOW
    assert disabled is not None
    assert disabled.disabled
    assert snapshot.parties.get("agent:new") == Party("agent:new")
    await records.parties.remove("person:ana")
    await records.parties.put(*(Party(f"agent:{number}") for number in range(300)))
    await snapshot.refresh()
    assert snapshot.keys.get("k1") is None
    assert snapshot.parties.get("person:ana") is None
    assert snapshot.parties.get("agent:299") is not None


async def test_a_change_by_anybody_is_in_force_without_asking() -> None:
    records = Records()
    snapshot = snapshot_of(records)
    async with following(snapshot):
        assert effect(snapshot, "files", "read") is Effect.DENY
        await records.grants.put(GRANT)
        await until(lambda: effect(snapshot, "files", "read") is Effect.ALLOW)
        version = snapshot.version
        # As another process would: without a stir.
        records.changes.stirred = lambda within: asyncio.sleep(0.01)
        await records.grants.revoke("agent:ci", CALL, "files/read")
        await until(lambda: effect(snapshot, "files", "read") is Effect.DENY)
        assert snapshot.version == version + 1
    assert records.asked[-1] == "close"


async def test_watchers_hear_of_their_kind_alone_and_one_that_fails_stops_nobody() -> None:
    records = Records()
    snapshot = snapshot_of(records)
    heard: list[str] = []

    def fail(_: str) -> None:
        raise ValueError("broken")

    snapshot.watch(Kept.PARTIES, fail)
    snapshot.watch(Kept.PARTIES, heard.append)
    await snapshot.refresh()
    await records.parties.put(Party("agent:x"))
    await records.grants.put(GRANT)
    await snapshot.refresh()
    assert heard == ["", "agent:x"]


async def test_a_store_that_does_not_answer_is_gone_by_until_it_is_too_long() -> None:
    records, clock = Records(), Hands()
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
    caplog.set_level(logging.INFO, "comity.kernel.snapshot")
    records = Records()
    records.problem = Unavailable("the store does not answer: refused")
    snapshot = snapshot_of(records)
    async with following(snapshot):
        await until(lambda: records.asked.count("open") > 3)
        with pytest.raises(Unavailable, match="not known yet"):
            effect(snapshot, "files", "read")
        records.problem = None
        await until(lambda: snapshot.certainty.holds)
        await until(lambda: "answers again" in caplog.text)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert caplog.text.count("does not answer") == 1


async def test_after_a_standstill_the_store_is_asked_at_once() -> None:
    records, clock = Records(), Hands()
    await records.grants.put(GRANT)
    snapshot = snapshot_of(records, clock=clock)
    async with following(snapshot):
        await asyncio.sleep(0)  # its first sign of life
        records.changes.stirred = lambda within: asyncio.sleep(3600)
        await until(lambda: records.asked.count("since") > 1)
        clock.now += 5
        with pytest.raises(Unavailable, match="5 s ago"):
            effect(snapshot, "files", "read")
        await until(lambda: snapshot.certainty.holds)
        assert effect(snapshot, "files", "read") is Effect.ALLOW


async def test_a_store_that_cannot_be_used_is_told_at_the_start() -> None:
    records = Records()
    records.problem = Misconfigured("run `comity store upgrade`")
    snapshot = snapshot_of(records)
    with pytest.raises(Misconfigured, match="store upgrade"):
        async with following(snapshot):
            pytest.fail("it began all the same")
    assert records.asked == ["open", "close"]


async def test_a_bug_does_not_end_the_following(caplog: pytest.LogCaptureFixture) -> None:
    records = Records()
    snapshot = snapshot_of(records)
    async with following(snapshot):
        records.problem = RuntimeError("a bug")
        await until(lambda: "ended in a bug" in caplog.text)
        records.problem = None
        await records.grants.put(GRANT)
        await until(lambda: effect(snapshot, "files", "read") is Effect.ALLOW)


@pytest.fixture
def as_the_gateway_collects_garbage() -> Generator[None]:
    """What stands is not looked through again and again."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("as_the_gateway_collects_garbage")
@pytest.mark.parametrize("subjects", [1, 2_000])
async def test_neither_reading_all_nor_a_change_holds_up_the_loop(subjects: int) -> None:
    """By the CPU time between two turns of the loop: how busy the machine is does not count."""
    records = MemoryRecords()
    await records.grants.put(
        *(replace(GRANT, subject=f"agent:{n % subjects}", target=f"s/{n}") for n in range(20_000))
    )
    snapshot = snapshot_of(records)
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest, last = max(longest, now - last), now

    watching = asyncio.ensure_future(watch())
    await snapshot.refresh()
    await records.grants.put(replace(GRANT, subject="agent:0", effect=Effect.ASK))
    await snapshot.refresh()
    watching.cancel()
    assert effect(snapshot, "files", "read", "agent:0") is Effect.ASK
    assert longest < here(0.05)


async def stood_still() -> tuple[Records, Snapshot, Hands]:
    """What was known before a standstill of a second."""
    records, clock = Records(), Hands()
    snapshot = snapshot_of(records, clock=clock)
    await records.grants.put(GRANT)
    await snapshot.refresh()
    snapshot.certainty.stay_awake()
    clock.now += 1
    records.asked.clear()
    return records, snapshot, clock


async def test_after_a_standstill_all_who_wait_share_one_question_to_the_store() -> None:
    records, snapshot, _ = await stood_still()
    assert not snapshot.holds
    await asyncio.gather(*(snapshot.settle() for _ in range(20)))
    assert snapshot.holds
    assert records.asked == ["since"]
    assert effect(snapshot, "files", "read") is Effect.ALLOW
    await snapshot.settle()
    assert records.asked == ["since"]


async def test_after_a_standstill_what_was_revoked_meanwhile_is_not_judged_by() -> None:
    records, snapshot, _ = await stood_still()
    assert await records.grants.revoke("agent:ci", CALL, "files/read")
    await snapshot.settle()
    assert effect(snapshot, "files", "read") is Effect.DENY


async def test_nobody_waits_for_a_store_that_is_known_not_to_answer() -> None:
    records, snapshot, clock = await stood_still()
    records.problem = Unavailable("the store does not answer")
    await snapshot.settle()
    assert not snapshot.holds
    assert records.asked == ["since"]
    await snapshot.settle()
    assert records.asked == ["since"]
    with pytest.raises(Unavailable):
        effect(snapshot, "files", "read")
    assert clock.now == 1001.0
