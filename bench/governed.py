"""What governing a call costs: Comity with everything on, beside relays that govern nothing.

Every request shows an API key, every call is judged by grants, its arguments are checked against
the tool's schema and by validators. Beside it in one run: the bare relay, Comity for its own
machine alone, the official SDK's relay, and ContextForge, which governs too.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path

from bench import change
from bench.bodies import BODIES, PLAIN, Body
from bench.change import Changed
from bench.contenders import CONTENDERS, STUB, Contender, Way
from bench.contextforge import ContextForge, is_installed
from bench.governed_comity import command, surroundings
from bench.load import Budget
from bench.load_http import HttpTarget
from bench.processes import DidNotStart, Running
from bench.progress import say
from bench.realm import Realm, ask, settle
from bench.relay import Cell, Entrant, measure_cells, meet, split

PATHS = ("http-handshake", "http-modern")
LARGE, SMALL = "governed", "governed-small"
# The same process as LARGE, met where the tools of all servers are.
ALL = "governed-all"
# The same store, and a dangerous tool that needs no approval: intent and outcome are durable.
DURABLE = "governed-durable"
# A relay that makes the same two commits for a call, and does nothing else.
BARE_DURABLE, BARE_POSTGRES = "bare-durable", "bare-durable-postgres"
# The store of SMALL once more, with thousands of open asks.
ASKS = "governed-asks"
# On PostgreSQL, where there is one.
POSTGRES, POSTGRES_DURABLE = "postgres", "postgres-durable"
ON_POSTGRES = (POSTGRES, POSTGRES_DURABLE)
CONTEXTFORGE = "contextforge"
RELAYS = (
    *("bare", "comity", SMALL, ASKS, LARGE, ALL, BARE_DURABLE, DURABLE),
    *(BARE_POSTGRES, *ON_POSTGRES, "sdk", CONTEXTFORGE),
)
OPEN_ASKS = 10_000
_CALLERS = 64
_SLICE = Budget(calls=4_000, seconds=0.2)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, how long, and with how many parties of ten grants each."""

    paths: tuple[str, ...] = PATHS
    relays: tuple[str, ...] = RELAYS
    rounds: int = 12
    budget: Budget = _SLICE
    bodies: tuple[Body, ...] = BODIES
    # How often all of it is measured.
    runs: int = 1
    parties: int = 10_000
    few_parties: int = 100
    # Where PostgreSQL is, for a run on that; SQLite otherwise.
    store: str = ""
    # Whether ContextForge is fetched where it is not there yet.
    fetches: bool = True


SHORT = Plan(
    relays=("bare", LARGE, ALL, "sdk", CONTEXTFORGE),
    rounds=1,
    budget=Budget(calls=100, seconds=0.3),
    bodies=(PLAIN,),
    parties=1_000,
    fetches=False,
)


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a run has found."""

    cells: list[Cell]
    changed: Changed | None
    grants: int
    few_grants: int


async def measure(plan: Plan) -> Findings:
    cells: list[Cell] = []
    changed: Changed | None = None
    with tempfile.TemporaryDirectory(prefix="comity-bench-") as folder:
        workplace = Path(folder)
        realms = await _settle(plan, workplace)
        with contextlib.ExitStack() as stack:
            stub = stack.enter_context(Running([*STUB, "http"]))
            upstream = f"http://127.0.0.1:{stub.port()}/mcp"
            peer = await asyncio.to_thread(_peer, plan, upstream, workplace, stack)
            for path in plan.paths:
                say(f"{path}: starting {', '.join(plan.relays)}")
                way = Way(split(path)[1], [upstream], workplace)
                async with _entrants(plan, way, realms, peer) as (entrants, reasons):
                    cells += await measure_cells(plan, path, entrants, reasons)
                    if LARGE in cells[-1].slices and path == plan.paths[-1]:
                        say("changing one grant while calls run")
                        changed = await change.measure(realms[LARGE], _target(entrants[LARGE]))
    counts = {name: realm.grants for name, realm in realms.items()}
    return Findings(cells, changed, counts.get(LARGE, 0), counts.get(SMALL, 0))


async def _settle(plan: Plan, workplace: Path) -> dict[str, Realm]:
    realms: dict[str, Realm] = {}
    wanted = {SMALL: plan.few_parties, ASKS: plan.few_parties, LARGE: plan.parties}
    stores = {name: f"sqlite:///{workplace / name}" for name in wanted}
    if plan.store:
        wanted[POSTGRES], stores[POSTGRES] = plan.parties, plan.store
    for name, parties in wanted.items():
        if name in plan.relays:
            began = time.monotonic()
            realms[name] = await settle(stores[name], parties, min(parties, _CALLERS))
            spent = time.monotonic() - began
            say(f"{realms[name].grants:,} grants of {parties:,} parties written in {spent:.0f} s")
    if ASKS in realms:
        await ask(realms[ASKS], OPEN_ASKS)
    for name, like in ((DURABLE, LARGE), (POSTGRES_DURABLE, POSTGRES)):
        if name in plan.relays and like in realms:
            realms[name] = replace(realms[like], risk="dangerous")
    return realms


@contextlib.asynccontextmanager
async def _entrants(
    plan: Plan, way: Way, realms: dict[str, Realm], peer: ContextForge | str
) -> AsyncGenerator[tuple[dict[str, Entrant], dict[str, str]]]:
    """Starts everything that is put before the stub on this way; it ends with the context."""
    entrants: dict[str, Entrant] = {}
    reasons: dict[str, str] = {}
    if isinstance(peer, ContextForge):
        entrants[CONTEXTFORGE] = Entrant(peer.target(way.era), peer.cpu_seconds)
    elif CONTEXTFORGE in plan.relays:
        reasons[CONTEXTFORGE] = peer
    with contextlib.ExitStack() as stack:
        started: dict[str, tuple[Contender, Running]] = {}
        for name in (name for name in plan.relays if name in CONTENDERS):
            relay = CONTENDERS[name]
            started[name] = (relay, stack.enter_context(Running(relay.command(way))))
        bare_stores = {
            BARE_DURABLE: f"{way.workplace}/bare-{way.era}.db",
            BARE_POSTGRES: plan.store,
        }
        for name, store in bare_stores.items():
            if name in plan.relays and store:
                program = [sys.executable, "-m", "bench.bare_durable", store, *way.upstream]
                started[name] = (CONTENDERS["bare"], stack.enter_context(Running(program)))
        for name, realm in realms.items():
            running = Running(command(way, realm), surroundings(realm))
            started[name] = (CONTENDERS["comity"], stack.enter_context(running))
        for name, (relay, running) in started.items():
            try:
                entrants[name] = await asyncio.to_thread(meet, relay, running, way.era)
            except DidNotStart as reason:
                reasons[name] = f"did not start: {reason}"
            else:
                _give_keys(entrants, name, realms)
        yield {name: entrants[name] for name in plan.relays if name in entrants}, reasons


def _give_keys(entrants: dict[str, Entrant], name: str, realms: dict[str, Realm]) -> None:
    if name in realms:
        target, keys = _target(entrants[name]), realms[name].keys
        target.credentials = keys
        if name == LARGE:
            whole = HttpTarget(target.host, target.port, "/mcp", target.era, "stub__echo", keys)
            entrants[ALL] = Entrant(whole, entrants[name].cpu)


def _target(entrant: Entrant) -> HttpTarget:
    assert isinstance(entrant.target, HttpTarget)
    return entrant.target


def _peer(
    plan: Plan, upstream: str, workplace: Path, stack: contextlib.ExitStack
) -> ContextForge | str:
    """ContextForge before the stub, or why it is not there; it takes half a minute to start."""
    if CONTEXTFORGE not in plan.relays:
        return "not asked for"
    if not (plan.fetches or is_installed()):
        return "not fetched yet; a run without --short fetches it"
    say("starting ContextForge")
    peer = stack.enter_context(ContextForge(workplace))
    try:
        peer.register(upstream)
    except DidNotStart as reason:
        return str(reason)
    return peer
