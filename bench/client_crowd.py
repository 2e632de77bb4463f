"""Many clients at once: calls per second and p99 beside the bare relay, and idle sessions.

Both relays run at the same time and take turns. A ratio is the median of the ratios of each round.
"""

import asyncio
import contextlib
import json
import resource
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from bench.contenders import CONTENDERS, STUB, Way
from bench.eras import VERSION_BY_ERA, Era
from bench.figures import p99
from bench.load import Budget, Slice
from bench.load_http import HttpTarget
from bench.processes import Running
from bench.progress import say
from bench.relay import Entrant, meet

ERAS: tuple[Era, ...] = ("modern", "handshake")
RELAYS = ("bare", "comity")
# Calls per second and p99, in times the bare relay's; and kilobytes for an idle session.
GOAL_RATE, GOAL_P99, GOAL_SESSION_KB = 0.7, 1.5, 5.4
_OPENERS = 32
_SLICE = Budget(calls=6_000, seconds=10.0)


@dataclass(frozen=True, slots=True)
class Plan:
    clients: int = 1_000
    sessions: int = 10_000
    rounds: int = 10
    budget: Budget = _SLICE


SHORT = Plan(clients=200, sessions=500, rounds=2, budget=Budget(calls=1_000, seconds=2.0))


@dataclass(slots=True)
class Found:
    """What one version of the protocol showed."""

    era: Era
    plan: Plan
    slices: dict[str, list[Slice]] = field(default_factory=dict[str, list[Slice]])
    # Kilobytes for each idle session, by relay; and Comity's calls beside them.
    session_kb: dict[str, float] = field(default_factory=dict[str, float])
    beside_sessions: Slice | None = None

    def rate_ratio(self) -> float:
        return self._ratio(lambda one: one.calls / one.seconds)

    def p99_ratio(self) -> float:
        return self._ratio(lambda one: p99(one.latencies))

    def _ratio(self, of: Callable[[Slice], float]) -> float:
        pairs = zip(self.slices["comity"], self.slices["bare"], strict=True)
        return median(of(mine) / of(other) for mine, other in pairs)


async def measure(plan: Plan) -> list[Found]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return [await _measure_era(plan, era) for era in ERAS]


async def _measure_era(plan: Plan, era: Era) -> Found:
    found = Found(era, plan)
    with contextlib.ExitStack() as stack:
        workplace = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stub = stack.enter_context(Running([*STUB, "http"]))
        way = Way(era, [f"http://127.0.0.1:{stub.port()}/mcp"], workplace)
        commands = {"bare": CONTENDERS["bare"].command(way), "comity": _comity(way)}
        running = {name: stack.enter_context(Running(each)) for name, each in commands.items()}
        entrants = {
            name: await asyncio.to_thread(meet, CONTENDERS[name], each, era)
            for name, each in running.items()
        }
        for turn in range(plan.rounds):
            for name in RELAYS if turn % 2 else RELAYS[::-1]:
                measured = await _call(entrants[name], plan)
                found.slices.setdefault(name, []).append(measured)
        say(f"{era}: {plan.clients} clients, {plan.rounds} rounds")
        if era == "handshake":
            for name, each in running.items():
                found.session_kb[name] = await _open_sessions(entrants[name], each.pid, plan)
            found.beside_sessions = await _call(entrants["comity"], plan)
    return found


async def _call(entrant: Entrant, plan: Plan) -> Slice:
    return await entrant.target.measure(plan.clients, plan.budget, entrant.cpu)


async def _open_sessions(entrant: Entrant, pid: int, plan: Plan) -> float:
    assert isinstance(entrant.target, HttpTarget)
    like = entrant.target
    before = _memory_kb(pid)
    openers = [HttpTarget(like.host, like.port, like.path, like.era) for _ in range(_OPENERS)]
    each = -(-plan.sessions // _OPENERS)
    await asyncio.gather(*(opener.open_sessions(each) for opener in openers))
    return (_memory_kb(pid) - before) / (each * _OPENERS)


def _memory_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0])


def _comity(way: Way) -> list[str]:
    """Comity with room for the sessions of one client machine."""
    config = way.workplace / "comity.toml"
    config.write_text(
        "[limits]\nmax_sessions_per_principal = 20_000\n"
        f'[[servers]]\nid = "stub"\nurl = {json.dumps(way.upstream[0])}\n'
        f'protocol = "{VERSION_BY_ERA[way.era]}"\n',
        encoding="utf-8",
    )
    return [sys.executable, "-m", "comity.cli", "serve", "-c", str(config), "--port", "0"]


def text(found: list[Found]) -> str:
    return "\n".join(line for each in found for line in _lines(each))


def _lines(found: Found) -> list[str]:
    lines = [f"{found.era}, {found.plan.clients:,} clients at once"]
    for name, slices in found.slices.items():
        rates = [each.calls / each.seconds for each in slices]
        slowest = [p99(each.latencies) * 1000 for each in slices]
        lines.append(f"  {name:7} {median(rates):8,.0f} calls/s, p99 {median(slowest):7.1f} ms")
    lines.append(
        f"  comity / bare: calls per second {found.rate_ratio():.2f} (goal at least {GOAL_RATE}), "
        f"p99 {found.p99_ratio():.2f} (goal at most {GOAL_P99})"
    )
    for name, size in found.session_kb.items():
        lines.append(f"  {name}: {size:.1f} KB for each of {found.plan.sessions:,} idle sessions")
    if (beside := found.beside_sessions) is not None:
        lines.append(
            f"  comity beside them: {beside.calls / beside.seconds:,.0f} calls/s, "
            f"p99 {p99(beside.latencies) * 1000:.1f} ms (memory goal at most {GOAL_SESSION_KB} KB)"
        )
    return lines


def as_json(found: list[Found]) -> dict[str, Any]:
    return {
        each.era: {
            "calls_per_second": {
                name: [round(one.calls / one.seconds) for one in slices]
                for name, slices in each.slices.items()
            },
            "p99_ms": {
                name: [round(p99(one.latencies) * 1000, 2) for one in slices]
                for name, slices in each.slices.items()
            },
            "ratio_calls_per_second": round(each.rate_ratio(), 3),
            "ratio_p99": round(each.p99_ratio(), 3),
            "session_kb": {name: round(size, 2) for name, size in each.session_kb.items()},
        }
        for each in found
    }
