"""What a run of the topics bench amounts to: as text, as JSON, and on its page."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from bench.crowd import Turn
from bench.figures import GROSS
from bench.page import PAGE, machine, markdown, replace_between
from bench.topic_nodes import NATS_PY, NODES
from bench.topic_servers import COMITY, NATS, SERVERS, WEBSOCKETS
from bench.topics import Cell, Findings

# Deliveries for a CPU second, in times of `websockets` broadcast: the goal for Comity.
GOAL_WEBSOCKETS = 1.0
# What an envelope costs more for a thousand members whom it does not concern.
GOAL_DIRECTED = 1.1
# The same between nodes, in times of NATS with nats-py.
GOAL_NATS_PY = 0.5
MOST_MEMORY = 128 * 1024
BEGIN, END = "<!-- topics: begin -->", "<!-- topics: end -->"
_COMMAND = "scripts/bench topics"


def text(found: Findings) -> str:
    """Columns that a person reads."""
    tables = [_columns(rows) for rows in (_rows(found), _rows_apart(found)) if rows]
    return "\n\n".join([*tables, *_notes(found)])


def as_json(found: Findings) -> dict[str, Any]:
    told: dict[str, Any] = {str(cell.members): _entry(cell) for cell in found.cells}
    memory = {name: round(size) for name, size in found.memory.items()}
    return {
        "members": told,
        "memory_bytes_per_member": memory,
        "directed": {"idle": found.idle, "times": _rounded(directed_ratio(found))},
        "apart_of_nats_py": {
            str(cell.members): _rounded(ratio(cell.saturated, NODES, NATS_PY))
            for cell in found.apart
        },
        "not_available": found.reasons,
    }


def write_page(found: Findings, page: Path = PAGE) -> None:
    """Puts the figures between their marks."""
    stated = f"`{_COMMAND}`, {datetime.now(UTC):%Y-%m-%d}, {machine()}"
    tables = [markdown(rows) for rows in (_rows(found), _rows_apart(found)) if rows]
    replace_between(page, BEGIN, END, [stated, *tables, *_notes(found)])


def wrong(found: Findings) -> list[str]:
    """What is wrong beyond any noise: a third of a goal, or Comity not measured."""
    told = [f"{COMITY} has no figure: {reason}" for reason in [found.reasons.get(COMITY)] if reason]
    for cell in found.cells:
        times = ratio(cell.saturated, COMITY, WEBSOCKETS)
        if times is not None and times < GOAL_WEBSOCKETS / GROSS:
            told.append(f"{cell.members} members: {times:.2f} of websockets; goal 1.0")
    for cell in found.apart:
        times = ratio(cell.saturated, NODES, NATS_PY)
        if times is not None and times < GOAL_NATS_PY / GROSS:
            told.append(f"{cell.members} members apart: {times:.2f} of nats-py; goal 0.5")
    directed = directed_ratio(found)
    if directed is not None and directed > GOAL_DIRECTED * GROSS:
        told.append(f"{found.idle} members whom nothing concerns make it {directed:.1f} times dear")
    if found.memory.get(COMITY, 0) > MOST_MEMORY:
        told.append(f"an idle member takes {found.memory[COMITY] / 1024:.0f} KB")
    return told


def per_delivery(turn: Turn) -> float:
    return turn.server_cpu_seconds / turn.deliveries


def ratio(turns: Mapping[str, Mapping[int, Turn]], one: str, other: str) -> float | None:
    """How many deliveries one makes for the CPU of one delivery of the other, round by round."""
    ours, theirs = turns.get(one, {}), turns.get(other, {})
    both = ours.keys() & theirs.keys()
    found = [per_delivery(theirs[turn]) / per_delivery(ours[turn]) for turn in both]
    return median(found) if found else None


def p99_ratio(turns: Mapping[str, Mapping[int, Turn]], one: str, other: str) -> float | None:
    ours, theirs = turns.get(one, {}), turns.get(other, {})
    found = [p99(ours[turn]) / p99(theirs[turn]) for turn in ours.keys() & theirs.keys()]
    return median(found) if found else None


def p99(turn: Turn) -> float:
    return sorted(turn.latencies)[len(turn.latencies) * 99 // 100]


def directed_ratio(found: Findings) -> float | None:
    pairs = found.directed.values()
    return median(many / few for few, many in pairs) if pairs else None


def _entry(cell: Cell) -> dict[str, Any]:
    names = [name for name in SERVERS if name in cell.saturated]
    return {
        "deliveries_per_cpu_second": {name: round(_per_cpu_second(cell, name)) for name in names},
        "p99_ms": {name: round(_p99_ms(cell, name), 3) for name in names if name in cell.steady},
        "of_websockets": _rounded(ratio(cell.saturated, COMITY, WEBSOCKETS)),
        "of_nats": _rounded(ratio(cell.saturated, COMITY, NATS)),
        "p99_of_websockets": _rounded(p99_ratio(cell.steady, COMITY, WEBSOCKETS)),
        "p99_of_nats": _rounded(p99_ratio(cell.steady, COMITY, NATS)),
    }


def _per_cpu_second(cell: Cell, name: str) -> float:
    return 1 / median(per_delivery(turn) for turn in cell.saturated[name].values())


def _p99_ms(cell: Cell, name: str) -> float:
    return median(p99(turn) for turn in cell.steady[name].values()) * 1000


def _rows(found: Findings) -> list[list[str]]:
    rows = [
        [
            "members, server",
            "deliveries per CPU second",
            "comity's, times that",
            "CPU us per delivery",
            "the same, steady",
            "p99 ms, steady",
            "comity's, times that",
            "crowd's CPU us",
        ]
    ]
    for cell in found.cells:
        rows += [_row(cell, name) for name in SERVERS if name in cell.steady]
    return rows


def _rows_apart(found: Findings) -> list[list[str]]:
    rows = [["on two nodes", "CPU us per envelope", "nats-py", "comity's deliveries, times that"]]
    for cell in found.apart:
        costs = [
            median(turn.server_cpu_seconds / turn.said for turn in cell.saturated[name].values())
            for name in (NODES, NATS_PY)
        ]
        times = ratio(cell.saturated, NODES, NATS_PY)
        shown = [f"{cost * 1e6:.0f}" for cost in costs]
        rows.append([f"{cell.members:,} members", *shown, "" if times is None else f"{times:.2f}"])
    return rows if len(rows) > 1 else []


def _row(cell: Cell, name: str) -> list[str]:
    whole, steady = cell.saturated[name].values(), cell.steady[name].values()
    times = ratio(cell.saturated, COMITY, name)
    later = p99_ratio(cell.steady, COMITY, name)
    crowd = median(turn.crowd_cpu_seconds / turn.deliveries for turn in whole)
    return [
        f"{cell.members:,} {name}",
        f"{_per_cpu_second(cell, name):,.0f}",
        "" if name == COMITY or times is None else f"{times:.2f}",
        f"{median(map(per_delivery, whole)) * 1e6:.2f}",
        f"{median(map(per_delivery, steady)) * 1e6:.2f}",
        f"{_p99_ms(cell, name):.1f}",
        "" if name == COMITY or later is None else f"{later:.2f}",
        f"{crowd * 1e6:.2f}",
    ]


def _notes(found: Findings) -> list[str]:
    notes = [
        f"An idle member takes {size / 1024:.1f} KB of {name}'s memory."
        for name, size in found.memory.items()
    ]
    times = directed_ratio(found)
    if times is not None:
        few = median(few for few, _ in found.directed.values()) * 1e6
        many = median(many for _, many in found.directed.values()) * 1e6
        notes.append(
            f"An envelope to one of ten members costs {few:.0f} us. With {found.idle:,} other "
            f"members it costs {many:.0f} us: {times:.2f} times as much (goal {GOAL_DIRECTED})."
        )
    notes += [f"{name}: {reason[:200]}" for name, reason in found.reasons.items()]
    return notes


def _columns(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join(lines)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
