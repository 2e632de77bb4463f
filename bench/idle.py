"""The CPU that an idle gateway uses per second, without a store and with each kind of store.

All processes run at the same time and nobody calls them. After a pause for the start, the CPU clock
of each process is read around several windows, so that all meet the same machine.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from bench.contenders import CONTENDERS, STUB, Way
from bench.governed_comity import command, surroundings
from bench.processes import DidNotStart, Running
from bench.progress import say
from bench.realm import Realm, settle
from comity.storage.stores import upgrade_store

GOAL_MS = 3.0
"""The most CPU per second that an idle gateway with a store may use."""

_SETTLE_SECONDS = 15.0
_PARTIES = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """How often the idle processes are looked at, and for how long each time."""

    windows: int = 5
    seconds: float = 10.0
    # An empty PostgreSQL database, or nothing to leave PostgreSQL out.
    store: str = ""


SHORT = Plan(windows=2, seconds=5.0)

type Findings = dict[str, list[float]]
"""The milliseconds of CPU per second of each process, one figure per window."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", default="", metavar="URL", help="an empty PostgreSQL to use")


async def measure(plan: Plan) -> Findings:
    with tempfile.TemporaryDirectory(prefix="comity-bench-") as folder:
        async with _processes(plan, Path(folder)) as running:
            await asyncio.sleep(_SETTLE_SECONDS)
            found: Findings = {name: [] for name in running}
            for _ in range(plan.windows):
                for name, spent in (await _window(running, plan.seconds)).items():
                    found[name].append(spent)
            return found


async def _window(running: dict[str, Running], seconds: float) -> dict[str, float]:
    before = {name: process.cpu_seconds() for name, process in running.items()}
    began = time.monotonic()
    await asyncio.sleep(seconds)
    lasted = time.monotonic() - began
    return {
        name: 1000 * (process.cpu_seconds() - before[name]) / lasted
        for name, process in running.items()
    }


@contextlib.asynccontextmanager
async def _processes(plan: Plan, workplace: Path) -> AsyncGenerator[dict[str, Running]]:
    stores = {"sqlite": f"sqlite:///{workplace / 'store.db'}"}
    if plan.store:
        stores["postgres"] = plan.store
        await upgrade_store(plan.store)
    realms: dict[str, Realm] = {
        name: await settle(store, _PARTIES, callers=1) for name, store in stores.items()
    }
    with contextlib.ExitStack() as stack:
        stub = stack.enter_context(Running([*STUB, "http"]))
        way = Way("modern", [f"http://127.0.0.1:{stub.port()}/mcp"], workplace)
        running = {
            name: stack.enter_context(Running(CONTENDERS[name].command(way)))
            for name in ("bare", "comity")
        }
        for name, realm in realms.items():
            running[name] = stack.enter_context(Running(command(way, realm), surroundings(realm)))
        for name, process in running.items():
            ready = CONTENDERS["bare" if name == "bare" else "comity"]
            try:
                await asyncio.to_thread(ready.wait_until_ready, process.port())
            except DidNotStart as reason:
                raise SystemExit(f"{name} did not start: {reason}") from None
        say(f"idle: {', '.join(running)}; {plan.windows} windows of {plan.seconds:.0f} s")
        yield running


def text(found: Findings) -> str:
    titles = {
        "bare": "bare relay",
        "comity": "Comity, no store",
        "sqlite": "Comity, SQLite",
        "postgres": "Comity, PostgreSQL",
    }
    lines = ["CPU of an idle process, ms per second: median (each window)"]
    for name, windows in found.items():
        each = " ".join(f"{spent:.2f}" for spent in windows)
        lines.append(f"  {titles[name]:<20} {statistics.median(windows):6.2f}  ({each})")
    return "\n".join(lines)


def wrong(found: Findings) -> list[str]:
    return [
        f"idle, {name}: {spent:.1f} ms of CPU per second, goal {GOAL_MS:.0f}"
        for name, windows in found.items()
        if (spent := min(windows)) > GOAL_MS
    ]


def show(found: Findings, *, as_json: bool) -> list[str]:
    """Print what was found, and return what misses the goal."""
    print(json.dumps(found, indent=2) if as_json else text(found))
    return wrong(found)
