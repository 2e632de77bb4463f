"""A soak: mixed clients and servers for as long as is wanted, with faults, and nothing may grow.

`python -m tests.interop.soak 10m` runs one by hand, for as long as 24h. Now and then everybody
comes to rest and the gateway is measured: what it holds then it holds for good.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.interop.crowds import Held, calling, growth
from tests.interop.soaking.faults import Faults
from tests.interop.soaking.visits import Tally, Visitors
from tests.interop.soaking.world import World

CLIENTS = 12
SAMPLES = 10
ROUNDS = 12
UNITS = {"s": 1, "m": 60, "h": 3600}

type Tell = Callable[[str], None]


@dataclass(frozen=True)
class Soaked:
    """What a soak has shown."""

    tally: Tally
    faults: dict[str, int]
    samples: list[Held]
    seconds: float

    @property
    def later(self) -> list[Held]:
        """What was measured when pools and caches had been filled."""
        return self.samples[len(self.samples) // 4 :]

    @property
    def memory_growth(self) -> float:
        """Bytes from one measurement to the next."""
        return growth([one.memory for one in self.later])

    @property
    def object_growth(self) -> float:
        return growth([one.objects for one in self.later])


def seconds_of(written: str) -> float:
    """A length as it is written: 90s, 2m, 24h."""
    return float(written[:-1]) * UNITS[written[-1]]


async def soak(folder: Path, seconds: float, tell: Tell, seed: int = 1) -> Soaked:
    world = World(folder)
    samples: list[Held] = []
    async with world.standing():
        visitors = Visitors(world, seed)
        faults = Faults(world, visitors.pause, seed + 1)
        began = time.monotonic()
        async with calling(world.gateway.door()) as caller:
            await caller.until_listed(f"{ward.name}__say" for ward in world.wards)
        working = [asyncio.ensure_future(visitors.come_and_go()) for _ in range(CLIENTS)]
        working.append(asyncio.ensure_future(faults.happen()))
        try:
            while time.monotonic() - began < seconds:
                await _work(working, seconds / SAMPLES)
                samples.append(await _measure(world, visitors))
                tell(_progress(time.monotonic() - began, visitors.tally, faults, samples[-1]))
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
    return Soaked(visitors.tally, dict(faults.done), samples, time.monotonic() - began)


async def _work(working: list[asyncio.Task[None]], seconds: float) -> None:
    """Let everybody go on; whoever fails fails the soak."""
    done, _ = await asyncio.wait(working, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


async def _measure(world: World, visitors: Visitors) -> Held:
    async with visitors.pause.rest():
        async with calling(world.gateway.door()) as caller:
            await caller.http.delete(caller.url, headers=caller.headers)
            await world.until_quiet(caller)
        return await _when_still(world)


async def _when_still(world: World) -> Held:
    """What is held when nothing more is let go: connections are kept for some seconds."""
    held = await world.gateway.held()
    for _ in range(ROUNDS):
        before = held
        await asyncio.sleep(1.5)
        held = await world.gateway.held()
        if held.objects >= before.objects and held.files >= before.files:
            break
    return held


def _progress(seconds: float, tally: Tally, faults: Faults, held: Held) -> str:
    refused = sum(tally.explained.values())
    return (
        f"{seconds:6.0f} s: {tally.answered} answered, {refused} refused with cause, "
        f"{len(tally.wrong)} wrong, {faults.done.total()} faults; {held.memory / 2**20:.1f} MiB, "
        f"{held.files} files, {held.objects} objects, {held.processes} processes"
    )


def summary(soaked: Soaked) -> str:
    return (
        f"{soaked.seconds:.0f} s, {soaked.tally.answered} calls answered, "
        f"{len(soaked.tally.wrong)} wrong, refusals {dict(soaked.tally.explained)}, "
        f"faults {soaked.faults}; from one of {len(soaked.samples)} measurements to the next "
        f"{soaked.memory_growth / 1024:.1f} KiB and {soaked.object_growth:.1f} objects"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(
            soak(Path(folder), seconds_of(sys.argv[1]), lambda words: print(words, flush=True))
        )
    print(summary(found), *found.tally.wrong[:20], sep="\n")
    sys.exit(bool(found.tally.wrong))
