"""Writes the figures of a relay bench into its page of the documentation."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

from bench.bodies import PLAIN
from bench.figures import figures, merge_runs, ratio
from bench.plot import plot
from bench.processes import ROOT
from bench.relay import RELAYS, Cell

PAGE = ROOT / "docs" / "explanation" / "performance.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
_PACKAGES = ("mcp", "fastmcp", "uvicorn", "uvloop", "httptools", "msgspec")


def write_page(cells: list[Cell], page: Path = PAGE) -> None:
    """Puts the figures of plain bodies between their marks, and draws the picture beside it."""
    cells = [cell for cell in merge_runs(cells) if cell.body == PLAIN]
    replace_between(page, BEGIN, END, [machine(), _costs(cells), _rates(cells), *missing(cells)])
    plot(cells, page.with_name("relay.png"))


def replace_between(page: Path, begin: str, end: str, parts: list[str]) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(before + "\n\n".join([begin, *parts, end]) + after, encoding="utf-8")


def machine() -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    load = os.getloadavg()[1]
    return (
        f"{os.cpu_count()} cores, load average {load:.1f} over the last five minutes of the run. "
        f"Python {platform.python_version()}, {packages}."
    )


def _costs(cells: list[Cell]) -> str:
    relays = [relay for relay in _present(cells) if relay != "direct"]
    rows = [["CPU of the relay, ms per call", *map(code, relays), "`comity/bare`", "`comity/sdk`"]]
    for cell in cells:
        found = figures(cell)
        costs = [f"{found[relay].cpu_ms:.3f}" if relay in found else "n/a" for relay in relays]
        ratios = [ratio(cell, "comity", to) for to in ("bare", "sdk")]
        rows.append([where(cell), *costs, *("" if r is None else f"{r:.2f}" for r in ratios)])
    return markdown(rows)


def _rates(cells: list[Cell]) -> str:
    relays = _present(cells)
    rows = [["calls per second", *map(code, relays)]]
    for cell in cells:
        found = figures(cell)
        rates = [
            f"{found[relay].calls_per_second:,.0f}" if relay in found else "n/a" for relay in relays
        ]
        rows.append([where(cell), *rates])
    return markdown(rows)


def missing(cells: list[Cell]) -> list[str]:
    return [
        f"{relay}, {where(cell)}: {reason[:200]}"
        for cell in cells
        for relay, reason in cell.reasons.items()
    ]


def _present(cells: list[Cell]) -> list[str]:
    return [relay for relay in RELAYS if any(relay in cell.slices for cell in cells)]


def where(cell: Cell) -> str:
    body = "" if cell.body == PLAIN else f", {cell.body}"
    return f"{cell.path}, {cell.concurrency} at a time{body}"


def code(name: str) -> str:
    return f"`{name}`"


def markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])
