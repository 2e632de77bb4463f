"""A hundred thousand grants of ten thousand parties: read, judged by, and one of them changed."""

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from comity.app.records import RecordStores, open_store
from comity.app.serve import GC_THRESHOLDS
from comity.identity.principals import ApiKey, Principal
from comity.mcp.actors import CALL, Actor
from comity.policy import grants as access
from comity.policy.grants import Effect, Grant, GrantSet
from comity.policy.snapshot import GrantSnapshot, PolicySnapshot, SnapshotFreshness
from comity.storage import stores
from tests.contracts.stores import a_database
from tests.pace import at_length

GRANTS, PARTIES = at_length((100_000, 10_000), (40_000, 4_000))
IN_FORCE_SECONDS = 1.0
STALL_SECONDS = 0.05
JUDGES = 16

pytestmark = pytest.mark.timeout(600)


def grants(count: int) -> list[Grant]:
    return [
        Grant(f"agent:{number % PARTIES}", CALL, f"s{number % 97}/t{number}", Effect.ALLOW)
        for number in range(count)
    ]


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'many.db'}"
        return
    async with a_database() as address:
        yield address


@pytest.fixture
def as_the_gateway_collects_garbage() -> Generator[None]:
    """What is read at its start is there to stay, and is not looked through again and again."""
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    yield
    gc.enable()
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@asynccontextmanager
async def opened(url: str) -> AsyncGenerator[RecordStores]:
    records = open_store(url)
    await records.open()
    try:
        yield records
    finally:
        await records.close()


async def fill(url: str) -> None:
    await stores.upgrade_store(url)
    async with opened(url) as records:
        await records.grants.put(*grants(GRANTS))
        await records.parties.put(*(Principal(f"agent:{number}") for number in range(PARTIES)))
        await records.keys.put(ApiKey("k", "agent:7", b"m" * 32), datetime.now(UTC))


@dataclass
class Watched:
    """The longest that the loop was held up by itself: CPU time, not that of busy neighbours."""

    stall: float = 0.0
    judged: int = 0


@asynccontextmanager
async def judging(grants: GrantSnapshot, watched: Watched) -> AsyncGenerator[None]:
    """Calls that are judged all the time, and never wait."""

    async def judge(number: int) -> None:
        actor = Actor(f"agent:{number}")
        while True:
            grants.authorize(actor, CALL, f"s{number % 97}", f"t{number}")
            watched.judged += 1
            await asyncio.sleep(0.005)

    async def watch() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            watched.stall, last = max(watched.stall, now - last), now

    work = [asyncio.ensure_future(judge(number)) for number in range(100, 100 + JUDGES)]
    work.append(asyncio.ensure_future(watch()))
    try:
        yield
    finally:
        for each in work:
            each.cancel()
        ends = await asyncio.gather(*work, return_exceptions=True)
    assert [end for end in ends if not isinstance(end, asyncio.CancelledError)] == []


@pytest.mark.usefixtures("as_the_gateway_collects_garbage")
async def test_many_grants_are_read_and_one_changes_within_a_second_and_nothing_stalls(
    url: str,
) -> None:
    await fill(url)
    certainty = SnapshotFreshness(timedelta(seconds=600))
    held = GrantSnapshot(GrantSet.from_grants([]), freshness=certainty)
    snapshot = PolicySnapshot(open_store(url), held, certainty)
    reading, changing = Watched(), Watched()
    gc.disable()  # at the start of a gateway there is nobody whom it could hold up
    began = time.monotonic()
    async with judging(held, reading):
        await snapshot.refresh()
    read = time.monotonic() - began
    gc.freeze()
    gc.enable()
    assert sum(len(each.grants) for each in held.latest.subjects.values()) == GRANTS
    assert snapshot.keys.get("k") is not None
    assert len(snapshot.parties) == PARTIES
    async with snapshot.follow(), opened(url) as elsewhere, judging(held, changing):
        took = [await change(held, elsewhere) for _ in range(5)]
    print(
        f"{GRANTS} grants are read in {read:.1f} s, {reading.stall * 1000:.0f} ms of CPU at once; "
        f"a change is in force after at most {max(took) * 1000:.0f} ms, "
        f"{changing.stall * 1000:.0f} ms of CPU at once, over {changing.judged} judgements"
    )
    assert max(took) < IN_FORCE_SECONDS
    assert max(reading.stall, changing.stall) < STALL_SECONDS


async def change(held: GrantSnapshot, elsewhere: RecordStores) -> float:
    """Revoke a grant and give it again; how long the slower took to be in force."""
    target, took = Grant("agent:7", CALL, "s7/t7", Effect.ALLOW), 0.0
    for wanted in (Effect.DENY, Effect.ALLOW):
        if wanted is Effect.DENY:
            assert await elsewhere.grants.revoke("agent:7", CALL, "s7/t7")
        else:
            await elsewhere.grants.put(target)
        changed = time.monotonic()
        async with asyncio.timeout(30):
            while held.authorize(Actor("agent:7"), CALL, "s7", "t7").effect is not wanted:
                await asyncio.sleep(0)
        took = max(took, time.monotonic() - changed)
    return took


def test_a_judgement_looks_at_as_few_grants_among_many_as_among_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = 0
    is_in_force = access.is_in_force

    def counted(grant: Grant, verb: str, now: datetime) -> bool:
        nonlocal looked
        looked += 1
        return is_in_force(grant, verb, now)

    monkeypatch.setattr(access, "is_in_force", counted)
    found: list[int] = []
    for count in (1_000, GRANTS):
        held = GrantSet.from_grants(grants(count))
        looked = 0
        for number in range(0, 1_000, 7):
            actor = Actor(f"agent:{number}")
            held.authorize(actor, CALL, f"s{number % 97}", f"t{number}", datetime.now(UTC))
            held.authorize(actor, CALL, "s0", "no such tool", datetime.now(UTC))
        found.append(looked)
    assert found[0] == found[1]
