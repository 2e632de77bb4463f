"""What giving an envelope to the members of a topic costs: Comity beside what does only that.

Each server is a process of its own with a crowd of its own, as large as the others'. Crowds take
turns, round after round: all at once as fast as it goes, and then at a steady pace.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

from bench.crowd import Crowd, Lost, Turn
from bench.processes import DidNotStart
from bench.progress import say
from bench.topic_nodes import apart
from bench.topic_servers import COMITY, SERVERS, Server, started

SIZES = (10, 100, 1_000)
_LISTENING, _IDLE = 10, 1_000
# Deliveries in a second, and envelopes, at a steady pace: far from what any of them could do.
_PACE = 5_000
_MOST_SAID = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how long."""

    servers: tuple[str, ...] = SERVERS
    sizes: tuple[int, ...] = SIZES
    rounds: int = 9
    at_once: int = 32
    saturated_seconds: float = 0.4
    steady_seconds: float = 1.0
    # Members that take only what concerns them, and are not concerned.
    directed: int = _IDLE
    # How many there are on two nodes: one speaks at one of them, the rest are at the other.
    apart: tuple[int, ...] = (2, 10, 100, 1_000)


SHORT = Plan(
    sizes=(10, 100),
    rounds=3,
    saturated_seconds=0.15,
    steady_seconds=0.3,
    directed=200,
    apart=(2, 100),
)


@dataclass(slots=True)
class Cell:
    """What was found with so many members, by server and round."""

    members: int
    saturated: dict[str, dict[int, Turn]] = field(default_factory=dict[str, dict[int, Turn]])
    steady: dict[str, dict[int, Turn]] = field(default_factory=dict[str, dict[int, Turn]])


@dataclass(slots=True)
class Findings:
    """All that a run has found."""

    cells: list[Cell] = field(default_factory=list[Cell])
    # Bytes for each idle member, by server.
    memory: dict[str, float] = field(default_factory=dict[str, float])
    # CPU seconds that an envelope to one of ten costs without and with the directed, by round.
    directed: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    idle: int = 0
    # On two nodes, beside subscribers on nats-py.
    apart: list[Cell] = field(default_factory=list[Cell])
    # Why a server has no figure.
    reasons: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(slots=True)
class Entrant:
    """A server with its crowd."""

    server: Server
    crowd: Crowd
    smallest: tuple[int, int] = (0, 0)


async def measure(plan: Plan) -> Findings:
    # Crowds wait for their own sockets, and for nothing else that this loop has to do.
    ending = Ending()
    try:
        return await asyncio.to_thread(_measure, plan, ending)
    finally:
        ending.is_wanted = True


@dataclass(slots=True)
class Ending:
    """Whether somebody wants the run to end."""

    is_wanted: bool = False

    def check(self) -> None:
        if self.is_wanted:
            raise Lost("ended before everything was measured")


def _measure(plan: Plan, ending: Ending) -> Findings:
    found = Findings(idle=plan.directed)
    with tempfile.TemporaryDirectory(prefix="comity-bench-") as folder:
        with _entrants(plan, Path(folder), found) as entrants:
            for size in plan.sizes:
                _measure_size(plan, size, entrants, found, ending)
            if COMITY in entrants:
                say(f"{plan.directed} members whom nothing concerns")
                _measure_directed(plan, entrants[COMITY].server, found, ending)
        if COMITY in plan.servers and plan.apart:
            say("two nodes, and NATS between them")
            try:
                _measure_apart(plan, Path(folder), found, ending)
            except (DidNotStart, Lost, OSError) as reason:
                found.reasons[COMITY] = f"on two nodes: {type(reason).__name__}: {reason}"
    return found


def _measure_size(
    plan: Plan, size: int, entrants: dict[str, Entrant], found: Findings, ending: Ending
) -> None:
    cell = Cell(size)
    found.cells.append(cell)
    for name in list(entrants):
        _try(entrants, name, found, lambda entrant: _grow(entrant, size, found))
        for other in list(entrants):
            _try(entrants, other, found, lambda entrant: entrant.crowd.stay())
    began = time.monotonic()
    for turn in range(plan.rounds):
        ending.check()
        _round(plan, cell, turn, entrants, found)
    say(f"{size} members: {plan.rounds} rounds in {time.monotonic() - began:.0f} s")


def _round(
    plan: Plan, cell: Cell, turn: int, entrants: dict[str, Entrant], found: Findings
) -> None:
    names = list(entrants)
    first = turn % len(names) if names else 0
    pace = min(_MOST_SAID, _PACE / cell.members)

    def take_turn(entrant: Entrant) -> None:
        name, crowd = entrant.server.name, entrant.crowd
        whole = crowd.saturate(plan.saturated_seconds, plan.at_once)
        cell.saturated.setdefault(name, {})[turn] = whole
        cell.steady.setdefault(name, {})[turn] = crowd.talk(plan.steady_seconds, pace)

    for name in names[first:] + names[:first]:
        _try(entrants, name, found, take_turn)


def _try(
    entrants: dict[str, Entrant], name: str, found: Findings, do: Callable[[Entrant], None]
) -> None:
    """One that fails has a reason, and takes no part any more."""
    try:
        do(entrants[name])
    except (Lost, OSError) as reason:
        found.reasons[name] = f"{type(reason).__name__}: {reason}"
        del entrants[name]


def _grow(entrant: Entrant, size: int, found: Findings) -> None:
    entrant.crowd.grow(size)
    members, memory = entrant.smallest
    if not members:
        entrant.smallest = size, entrant.server.memory()
    elif size > members:
        grown = entrant.server.memory() - memory
        found.memory[entrant.server.name] = grown / (size - members)


@contextlib.contextmanager
def _entrants(plan: Plan, folder: Path, found: Findings) -> Generator[dict[str, Entrant]]:
    with contextlib.ExitStack() as stack:
        entrants: dict[str, Entrant] = {}
        servers = {name: stack.enter_context(started(name, folder)) for name in plan.servers}
        for name, server in servers.items():
            try:
                crowd = Crowd(server.door, server.cpu)
            except DidNotStart as reason:
                found.reasons[name] = f"did not start: {reason}"
                continue
            stack.callback(crowd.close)
            entrants[name] = Entrant(server, crowd)
        yield entrants


def _measure_directed(plan: Plan, server: Server, found: Findings, ending: Ending) -> None:
    """Envelopes to one of ten, in a topic with nobody else and in one with many directed."""
    to = b"local:m1"
    with contextlib.ExitStack() as stack:
        crowds: list[Crowd] = []
        for topic, members in (("few", _LISTENING), ("many", _LISTENING + plan.directed)):
            crowd = Crowd(server.to(topic), server.cpu)
            stack.callback(crowd.close)
            crowd.grow(_LISTENING)
            crowd.grow(members, is_directed=True)
            crowds.append(crowd)
        for turn in range(2 * plan.rounds):
            ending.check()
            turns = [crowd.saturate(plan.saturated_seconds, plan.at_once, to) for crowd in crowds]
            few, many = (each.server_cpu_seconds / each.said for each in turns)
            found.directed[turn] = few, many


def _measure_apart(plan: Plan, folder: Path, found: Findings, ending: Ending) -> None:
    with apart(folder) as both:
        for size in plan.apart:
            cell = Cell(size)
            for many in both.values():
                many.grow(size)
            for turn in range(plan.rounds):
                ending.check()
                for name, many in both.items():
                    whole = many.saturate(plan.saturated_seconds, plan.at_once)
                    cell.saturated.setdefault(name, {})[turn] = whole
            found.apart.append(cell)
