"""What the slices of a run amount to: medians, ratios, and whether they are grossly wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.bodies import Body
from bench.load import Slice
from bench.relay import Cell

# Times the bare relay's CPU, and parts of the SDK relay's by transport: the goals for Comity.
GOALS_BARE = {"comity": 1.5, "comity-all": 1.8, "comity-bridge": 2.5}
GOALS_SDK = {"http": 0.06, "stdio": 0.12}
_MOST_ROUNDS = 10_000
# Noise and new machines stay far below three times a goal; what does not is a regression.
GROSS = 3.0
# A call through Comity is also judged, checked against its schema and written down twice, which the
# goals are from before. On a quiet machine that takes two to four times the bare relay's CPU.
GROSS_RELAY = 5.0


@dataclass(frozen=True, slots=True)
class Figure:
    """One relay on one path at one concurrency."""

    cpu_ms: float
    calls_per_second: float
    load_cpu_ms: float
    calls: int
    p99_ms: float = 0.0


def figures(cell: Cell) -> dict[str, Figure]:
    return {relay: _figure(list(rounds.values())) for relay, rounds in cell.slices.items()}


def _figure(slices: list[Slice]) -> Figure:
    return Figure(
        cpu_ms=median(one.relay_cpu_seconds / one.calls for one in slices) * 1000,
        calls_per_second=median(one.calls / one.seconds for one in slices),
        load_cpu_ms=median(one.load_cpu_seconds / one.calls for one in slices) * 1000,
        calls=sum(one.calls for one in slices),
        p99_ms=p99([each for one in slices for each in one.latencies]) * 1000,
    )


def p99(latencies: Sequence[float]) -> float:
    return sorted(latencies)[len(latencies) * 99 // 100] if latencies else 0.0


def ratio(cell: Cell, relay: str, to: str) -> float | None:
    """The median over the rounds that both took part in of one's CPU per call to the other's."""
    ours, theirs = cell.slices.get(relay, {}), cell.slices.get(to, {})
    pairs = [
        (ours[turn].relay_cpu_seconds / ours[turn].calls)
        / (theirs[turn].relay_cpu_seconds / theirs[turn].calls)
        for turn in ours.keys() & theirs.keys()
    ]
    return median(pairs) if pairs else None


def ratios(cells: list[Cell], relay: str, to: str) -> list[float]:
    """The ratio in each run."""
    found = (ratio(cell, relay, to) for cell in cells)
    return [value for value in found if value is not None]


def ratio_text(cells: list[Cell], relay: str, to: str) -> str:
    """The median over the runs, and every run if there are several."""
    found = ratios(cells, relay, to)
    if not found:
        return ""
    runs = f" [{' '.join(f'{value:.3g}' for value in found)}]" if len(found) > 1 else ""
    return f"{median(found):.3g}{runs}"


def by_place(cells: list[Cell]) -> dict[tuple[str, int, Body], list[Cell]]:
    """The runs of each path, concurrency and body."""
    found: dict[tuple[str, int, Body], list[Cell]] = {}
    for cell in cells:
        found.setdefault((cell.path, cell.concurrency, cell.body), []).append(cell)
    return found


def merge_runs(cells: list[Cell]) -> list[Cell]:
    """One cell for each path, concurrency and body, with the rounds of all runs."""
    merged: list[Cell] = []
    for (path, concurrency, body), runs in by_place(cells).items():
        one = Cell(path, concurrency, body=body)
        for cell in runs:
            one.reasons.update(cell.reasons)
            for relay, rounds in cell.slices.items():
                held = one.slices.setdefault(relay, {})
                held.update(
                    {_MOST_ROUNDS * cell.run + turn: found for turn, found in rounds.items()}
                )
        merged.append(one)
    return merged


def as_json(cells: list[Cell]) -> dict[str, Any]:
    """One entry for each path, concurrency and body, as `http-modern/32/plain`."""
    return {"/".join(map(str, place)): _entry(runs) for place, runs in by_place(cells).items()}


def _entry(runs: list[Cell]) -> dict[str, Any]:
    (cell,) = merge_runs(runs)
    found = figures(cell)
    entry: dict[str, Any] = {
        "cpu_ms": {relay: round(figure.cpu_ms, 4) for relay, figure in found.items()},
        "calls_per_second": {
            relay: round(figure.calls_per_second) for relay, figure in found.items()
        },
        "load_cpu_ms": {relay: round(figure.load_cpu_ms, 4) for relay, figure in found.items()},
        "ratio_bare": _rounded(ratio(cell, "comity", "bare")),
        "ratio_sdk": _rounded(ratio(cell, "comity", "sdk")),
        "runs": {
            relay: [_rounded(value) for value in ratios(runs, relay, "bare")]
            for relay in found
            if relay != "direct"
        },
    }
    if cell.reasons:
        entry["not_available"] = cell.reasons
    return entry


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def goal_sdk(cell: Cell) -> float:
    return GOALS_SDK[cell.path.partition("-")[0]]


def gross_regressions(cells: list[Cell]) -> list[str]:
    """What is wrong beyond any noise: a ratio five times its goal, or Comity not measured."""
    found: list[str] = []
    for cell in cells:
        where = f"{cell.path} at {cell.concurrency}, {cell.body}"
        if reason := cell.reasons.get("comity"):
            found.append(f"{where}: Comity has no figure: {reason}")
        for to, goal in (("bare", GOALS_BARE["comity"]), ("sdk", goal_sdk(cell))):
            value = ratio(cell, "comity", to)
            if value is not None and value > goal * GROSS_RELAY:
                found.append(f"{where}: {value:.2f} times {to}, and the goal is {goal}")
    return found
