"""What a second worker gives: calls in a second and CPU of a call, with one and with two workers.

The load, the stub and the gateway share the cores of one machine. So the figures also say what the
processor time of a call would allow where each worker has a core of its own. The tool names its
risk, because that decides whether a call waits for the disk: without one it would be dangerous.

`python -m bench.workers [--rounds 5] [--seconds 3] [--concurrency 32] [--risk moderate]`
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bench.eras import Era
from bench.load import Budget, Slice
from bench.load_http import HttpTarget
from bench.processes import Running, cpu_seconds_of

ERA: Era = "modern"
CALLS = 1_000_000
IDLE_SECONDS = 4.0
RISKS = {
    "moderate": "their entries are on the disk a moment after the answers",
    "dangerous": "each waits for two commits of its audit entries",
}
SETTINGS = """
[store]
url = "sqlite:///{store}"
[[servers]]
id = "stub"
url = "http://127.0.0.1:{port}/mcp"
protocol = "2026-07-28"
[servers.tools.echo]
risk = "{risk}"
"""


@dataclass
class Entrant:
    """A gateway with so many workers, and what it took in each round."""

    workers: int
    running: Running
    target: HttpTarget
    slices: list[Slice] = field(default_factory=list[Slice])
    stub_seconds: list[float] = field(default_factory=list[float])
    # The part of each second that the gateway takes without any call.
    idle: float = 0.0

    def cpu(self) -> float:
        """The processor time of the gateway: its supervisor, its workers and their bus."""
        below = psutil.Process(self.running.pid).children()
        return sum(cpu_seconds_of(pid) for pid in (self.running.pid, *(each.pid for each in below)))

    async def measure_idle(self) -> None:
        before = self.cpu()
        await asyncio.sleep(IDLE_SECONDS)
        self.idle = (self.cpu() - before) / IDLE_SECONDS

    def net_cost(self, stretch: Slice) -> float:
        """The processor time of a call beyond what the gateway takes without calls."""
        return 1e6 * (stretch.relay_cpu_seconds - self.idle * stretch.seconds) / stretch.calls

    def middle(self, value: Callable[[Slice], float]) -> float:
        return statistics.median(map(value, self.slices))

    def row(self) -> str:
        calls = sum(each.calls for each in self.slices)
        load = 1e6 * sum(each.load_cpu_seconds for each in self.slices) / calls
        stub = 1e6 * sum(self.stub_seconds) / calls
        return (
            f"| {self.workers} | {self.middle(rate):,.0f} | {self.middle(cost):.0f} |"
            f" {self.middle(self.net_cost):.0f} | {1e3 * self.idle:.0f} | {stub:.0f} | {load:.0f} |"
        )


def rate(stretch: Slice) -> float:
    return stretch.calls / stretch.seconds


def cost(stretch: Slice) -> float:
    return 1e6 * stretch.relay_cpu_seconds / stretch.calls


async def measure(rounds: int, seconds: float, concurrency: int, risk: str) -> list[Entrant]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stub = stack.enter_context(Running([sys.executable, "-m", "bench.stub", "http"]))
        entrants: list[Entrant] = []
        for workers in (1, 2):
            config = folder / f"{workers}.toml"
            store = folder / f"{workers}.db"
            # Both keep their audit log in a file, because workers always share a store.
            config.write_text(
                SETTINGS.format(store=store, port=stub.port(), risk=risk), encoding="utf-8"
            )
            comity = [sys.executable, "-m", "comity.cli"]
            serve = [*comity, "serve", "-c", str(config), "--port", "0"]
            gateway = stack.enter_context(Running([*serve, "--workers", str(workers)]))
            target = HttpTarget("127.0.0.1", gateway.port(), "/servers/stub/mcp", ERA)
            entrants.append(Entrant(workers, gateway, target))
        await asyncio.sleep(IDLE_SECONDS)
        for entrant in entrants:
            await entrant.measure_idle()
        for number in range(rounds):
            for entrant in entrants if number % 2 else reversed(entrants):
                before = stub.cpu_seconds()
                budget = Budget(CALLS, seconds)
                entrant.slices.append(
                    await entrant.target.measure(concurrency, budget, entrant.cpu)
                )
                entrant.stub_seconds.append(stub.cpu_seconds() - before)
        return entrants


def main() -> None:
    said = argparse.ArgumentParser(description=__doc__)
    said.add_argument("--rounds", type=int, default=5)
    said.add_argument("--seconds", type=float, default=3.0)
    said.add_argument("--concurrency", type=int, default=32)
    said.add_argument("--risk", choices=RISKS, default="moderate")
    asked = said.parse_args()
    one, two = asyncio.run(measure(asked.rounds, asked.seconds, asked.concurrency, asked.risk))
    print(f"calls of risk {asked.risk}: {RISKS[asked.risk]}")
    print("| workers | calls/s | CPU us per call | beyond idle | idle ms/s | stub us | load us |")
    print("|---|---|---|---|---|---|---|")
    print(one.row(), two.row(), sep="\n")
    pairs = zip(one.slices, two.slices, strict=True)
    factors = [rate(after) / rate(before) for before, after in pairs]
    print(f"two workers: {statistics.median(factors):.2f} times the calls of one, in this place")
    gain = 2 * one.middle(one.net_cost) / two.middle(two.net_cost)
    print(f"with a core for each worker, by the CPU of a call beyond idle: {gain:.2f} times")
    print("rounds:", ", ".join(f"{factor:.2f}" for factor in factors))


if __name__ == "__main__":
    main()
