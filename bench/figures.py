"""What the slices of a run amount to: medians, ratios, and whether they are grossly wrong."""

from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.load import Slice
from bench.relay import Cell

# Times the bare relay's CPU, and parts of the SDK relay's: the goals for Comity.
GOAL_BARE = 1.5
GOAL_SDK = 0.1
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
        p99_ms=_p99([each for one in slices for each in one.latencies]) * 1000,
    )


def _p99(latencies: list[float]) -> float:
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


def as_json(cells: list[Cell]) -> dict[str, Any]:
    """One entry for each path and concurrency, as `http-modern/32`."""
    return {f"{cell.path}/{cell.concurrency}": _entry(cell) for cell in cells}


def _entry(cell: Cell) -> dict[str, Any]:
    found = figures(cell)
    entry: dict[str, Any] = {
        "cpu_ms": {relay: round(figure.cpu_ms, 4) for relay, figure in found.items()},
        "calls_per_second": {
            relay: round(figure.calls_per_second) for relay, figure in found.items()
        },
        "load_cpu_ms": {relay: round(figure.load_cpu_ms, 4) for relay, figure in found.items()},
        "ratio_bare": _rounded(ratio(cell, "comity", "bare")),
        "ratio_sdk": _rounded(ratio(cell, "comity", "sdk")),
    }
    if cell.reasons:
        entry["not_available"] = cell.reasons
    return entry


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def gross_regressions(cells: list[Cell]) -> list[str]:
    """What is wrong beyond any noise: a ratio five times its goal, or Comity not measured."""
    found: list[str] = []
    for cell in cells:
        where = f"{cell.path} at {cell.concurrency}"
        if reason := cell.reasons.get("comity"):
            found.append(f"{where}: Comity has no figure: {reason}")
        for to, goal in (("bare", GOAL_BARE), ("sdk", GOAL_SDK)):
            value = ratio(cell, "comity", to)
            if value is not None and value > goal * GROSS_RELAY:
                found.append(f"{where}: {value:.2f} times {to}, and the goal is {goal}")
    return found
