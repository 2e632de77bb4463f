"""What a relayed call costs: every relay measured in alternation, on every path, in one run.

A path is an upstream's transport and an era. On each path all relays are started, and then take
turns, slice after slice, so that a change of the machine's mood meets them all. Figures are
medians over the rounds, and a ratio is the median of the ratios of each round.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from bench.bodies import BODIES, PLAIN, Body
from bench.contenders import CONTENDERS, PEERS, STUB, Contender, Way
from bench.eras import Era
from bench.http_answers import WrongAnswer
from bench.load import Budget, Slice
from bench.load_http import HttpTarget
from bench.load_stdio import StdioTarget
from bench.processes import DidNotStart, Running
from bench.progress import say

PATHS = ("http-handshake", "http-modern", "stdio-handshake", "stdio-modern")
RELAYS = ("direct", *CONTENDERS)
CONCURRENCIES = (1, 32)
_QUIET = {"FASTMCP_LOG_LEVEL": "WARNING"}

# A relay this slow shows its cost in a few rounds; more would only make the run long.
_SLOW_TURN_SECONDS = 1.0
_ROUNDS_OF_A_SLOW_RELAY = 3

_SLICE = Budget(calls=4_000, seconds=0.2)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how long."""

    paths: tuple[str, ...] = PATHS
    relays: tuple[str, ...] = tuple(relay for relay in RELAYS if relay not in PEERS)
    rounds: int = 12
    budget: Budget = _SLICE
    bodies: tuple[Body, ...] = BODIES
    # How often all of it is measured.
    runs: int = 1


SHORT = Plan(
    relays=("direct", "bare", "comity", "comity-bridge", "sdk"),
    rounds=5,
    budget=Budget(calls=300, seconds=0.25),
    bodies=(PLAIN,),
)


class Target(Protocol):
    async def measure(
        self, concurrency: int, budget: Budget, cpu: Callable[[], float], body: Body = PLAIN
    ) -> Slice: ...


@dataclass(slots=True)
class Entrant:
    """A relay on one path: where it is met, how its CPU is read, what was found so far."""

    target: Target
    cpu: Callable[[], float]


@dataclass(slots=True)
class Cell:
    """What was found on one path at one concurrency with one kind of body, in one run."""

    path: str
    concurrency: int
    # By relay and round; a relay may have sat out a round.
    slices: dict[str, dict[int, Slice]] = field(default_factory=dict[str, dict[int, Slice]])
    # Why a relay has no figure here.
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    body: Body = PLAIN
    run: int = 0


async def measure(plan: Plan) -> list[Cell]:
    """Every path of the plan, one after the other."""
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory(prefix="comity-bench-") as workplace:
        for path in plan.paths:
            cells += await _measure_path(plan, path, Path(workplace))
    return cells


async def _measure_path(plan: Plan, path: str, workplace: Path) -> list[Cell]:
    say(f"{path}: starting {', '.join(plan.relays)}")
    async with _entrants(plan, path, workplace) as (entrants, reasons):
        return await measure_cells(plan, path, entrants, reasons)


class Repeated(Protocol):
    """What a plan says about how often each thing is measured."""

    @property
    def bodies(self) -> tuple[Body, ...]: ...
    @property
    def runs(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def budget(self) -> Budget: ...


async def measure_cells(
    plan: Repeated, path: str, entrants: dict[str, Entrant], reasons: dict[str, str]
) -> list[Cell]:
    """Every run, body and concurrency of one path."""
    cells = [
        Cell(path, concurrency, reasons=dict(reasons), body=body, run=run)
        for run in range(plan.runs)
        for body in plan.bodies
        for concurrency in CONCURRENCIES
    ]
    for cell in cells:
        began = time.monotonic()
        await take_turns(cell, entrants, plan.rounds, plan.budget)
        spent = time.monotonic() - began
        what = f"{path}, {cell.body}, run {cell.run + 1}: {cell.concurrency} at a time"
        say(f"{what}, {plan.rounds} rounds in {spent:.0f} s")
    return cells


@contextlib.asynccontextmanager
async def _entrants(
    plan: Plan, path: str, workplace: Path
) -> AsyncGenerator[tuple[dict[str, Entrant], dict[str, str]]]:
    """Starts the stub and every relay of `path`; all of them end with the context."""
    transport, era = split(path)
    entrants: dict[str, Entrant] = {}
    reasons: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        upstream = [*STUB, "stdio"]
        if transport == "http":
            stub = stack.enter_context(Running([*STUB, "http"]))
            upstream = [f"http://127.0.0.1:{stub.port()}/mcp"]
        way = Way(era, upstream, workplace)
        started = {
            name: stack.enter_context(Running(CONTENDERS[name].command(way), _QUIET))
            for name in plan.relays
            if name in CONTENDERS
        }
        if "direct" in plan.relays:
            entrants["direct"] = Entrant(_direct(way, stack), lambda: 0.0)
        for name, running in started.items():
            try:
                entrants[name] = await asyncio.to_thread(meet, CONTENDERS[name], running, era)
            except DidNotStart as reason:
                reasons[name] = f"did not start: {reason}"
        yield entrants, reasons


def meet(contender: Contender, running: Running, era: Era) -> Entrant:
    """Waits until a relay is ready; raises DidNotStart."""
    port = running.port()
    contender.wait_until_ready(port)
    target = HttpTarget("127.0.0.1", port, contender.door, era, contender.tool)
    return Entrant(target, running.cpu_seconds)


def _direct(way: Way, stack: contextlib.ExitStack) -> Target:
    if not way.is_http:
        target = StdioTarget(way.upstream, way.era)
        stack.callback(target.close)
        return target
    port = urlsplit(way.upstream[0]).port
    assert port is not None
    return HttpTarget("127.0.0.1", port, "/mcp", way.era)


async def take_turns(cell: Cell, entrants: dict[str, Entrant], rounds: int, budget: Budget) -> None:
    """Round after round, every relay one slice; one that fails has a reason and no figure."""
    slow: set[str] = set()
    names = list(entrants)
    for turn in range(rounds if names else 0):
        # Each round begins with another relay, so that none always follows the same one.
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            sits_out = name in slow and turn >= _ROUNDS_OF_A_SLOW_RELAY
            if name in cell.reasons or sits_out:
                continue
            began = time.monotonic()
            await _take_turn(cell, name, turn, entrants[name], budget)
            if time.monotonic() - began > _SLOW_TURN_SECONDS:
                slow.add(name)


async def _take_turn(cell: Cell, name: str, turn: int, entrant: Entrant, budget: Budget) -> None:
    try:
        found = await entrant.target.measure(cell.concurrency, budget, entrant.cpu, cell.body)
    except (WrongAnswer, OSError, TimeoutError) as reason:
        cell.slices.pop(name, None)
        cell.reasons[name] = f"{type(reason).__name__}: {reason}"
    else:
        cell.slices.setdefault(name, {})[turn] = found


def split(path: str) -> tuple[str, Era]:
    """`http-modern` is an upstream's transport and an era."""
    transport, _, era = path.partition("-")
    return transport, "modern" if era == "modern" else "handshake"
