"""What the search bench says of speed: as text, as JSON, and on its page."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.page import machine, markdown, replace_between
from bench.search_quality_figures import PAGE
from bench.search_speed import Cell

BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
GOAL = 1.5
# What each is held against, as issue and goal name it.
AGAINST = (
    ("keyword", "FTS5"),
    ("keyword", "bare postings"),
    ("hybrid", "bare postings and bare dot"),
    ("keyword, 99 % hidden", "keyword"),
    ("hybrid, 99 % hidden", "hybrid"),
    ("keyword without numpy", "FTS5"),
    ("keyword without numpy, 99 % hidden", "keyword without numpy"),
)
# Under load a short run is off by so much; the library is the one that has to be kept up with.
FLOORS = (("keyword", "FTS5"), ("keyword, 99 % hidden", "keyword"))
GROSS = 3.0


def ratio(cell: Cell, one: str, other: str) -> float:
    return cell.kinds[one].cpu_p50 / cell.kinds[other].cpu_p50


def updates(cells: list[Cell]) -> list[float]:
    """One server's change among that many tools, held against the same among the fewest."""
    first = cells[0].kinds["update"].cpu_p50
    return [cell.kinds["update"].cpu_p50 / first for cell in cells]


def tables(cells: list[Cell]) -> list[str]:
    sizes = [f"{cell.size:,} tools" for cell in cells]
    rows = [["ms per search, p50 by the clock / CPU", *sizes]]
    rows += [
        [
            kind,
            *(f"{c.kinds[kind].p50 * 1e3:.2f} / {c.kinds[kind].cpu_p50 * 1e3:.2f}" for c in cells),
        ]
        for kind in cells[0].kinds
    ]
    ratios = [["times, by CPU", *sizes]]
    ratios += [
        [f"{one} / {other}", *(f"{ratio(cell, one, other):.2f}" for cell in cells)]
        for one, other in AGAINST
    ]
    ratios.append(
        [
            f"one server's update / the same in {cells[0].size:,}",
            *(f"{each:.2f}" for each in updates(cells)),
        ]
    )
    built = ", ".join(f"{cell.size:,} in {cell.build_seconds:.1f} s" for cell in cells)
    return [markdown(rows), markdown(ratios), f"CPU to take in all tools: {built}."]


def text(cells: list[Cell]) -> str:
    return "\n\n".join(tables(cells))


def as_json(cells: list[Cell]) -> dict[str, Any]:
    return {
        f"{cell.size}": {
            "build_seconds": round(cell.build_seconds, 2),
            **{
                kind: {"p50_ms": timed.p50 * 1e3, "cpu_p50_ms": timed.cpu_p50 * 1e3}
                for kind, timed in cell.kinds.items()
            },
        }
        for cell in cells
    }


def wrong(cells: list[Cell]) -> list[str]:
    """What is so far off that no load explains it."""
    said = [
        f"{cell.size:,} tools: {one} takes {ratio(cell, one, other):.1f} times {other}"
        for cell in cells
        for one, other in FLOORS
        if ratio(cell, one, other) > GROSS * GOAL
    ]
    if updates(cells)[-1] > GROSS * GOAL:
        said.append(f"one server's update takes {updates(cells)[-1]:.1f} times that in few tools")
    return said


def write_page(cells: list[Cell], page: Path = PAGE) -> None:
    head = f"`scripts/bench search --speed`, {datetime.now(UTC):%Y-%m-%d}, {machine()}"
    replace_between(page, BEGIN, END, [head, *tables(cells)])
