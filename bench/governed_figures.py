"""What a run of the governed bench amounts to: as text, as JSON, and on its page."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import contextforge
from bench.figures import figures, ratio
from bench.governed import (
    ALL,
    ASKS,
    CONTEXTFORGE,
    DURABLE,
    LARGE,
    POSTGRES,
    POSTGRES_DURABLE,
    RELAYS,
    SMALL,
    Findings,
)
from bench.page import PAGE, machine, markdown, missing, replace_between, where
from bench.relay import Cell

# Times the bare relay's CPU, and many grants' to few grants': the goals for Comity.
GOAL_JOURNAL = 2.2
GOAL_ASKS = 1.05
GOAL_GRANTS = 1.1
GOAL_CHANGE_SECONDS = 1.0
BEGIN, END = "<!-- governed: begin -->", "<!-- governed: end -->"
_COMMAND = "scripts/bench governed"
_COMPARED = (
    (LARGE, "bare", f"at most {GOAL_JOURNAL}"),
    (ALL, "bare", ""),
    (POSTGRES, "bare", f"at most {GOAL_JOURNAL}"),
    (DURABLE, "bare", ""),
    (POSTGRES_DURABLE, "bare", ""),
    (ASKS, SMALL, f"at most {GOAL_ASKS}"),
    (LARGE, "comity", ""),
    (LARGE, SMALL, f"at most {GOAL_GRANTS}"),
    (LARGE, "sdk", ""),
    (LARGE, CONTEXTFORGE, ""),
)


def text(found: Findings) -> str:
    """Columns that a person reads."""
    return "\n\n".join([_columns(_costs(found)), _columns(_ratios(found)), *_notes(found)])


def as_json(found: Findings) -> dict[str, Any]:
    cells = {f"{cell.path}/{cell.concurrency}": _entry(cell) for cell in found.cells}
    changed: dict[str, float | int] | None = None
    if found.changed is not None:
        changed = {
            "revoked_after_seconds": round(found.changed.revoked_after_seconds, 4),
            "granted_after_seconds": round(found.changed.granted_after_seconds, 4),
            "longest_call_seconds": round(found.changed.longest_call_seconds, 4),
            "longest_call_before_seconds": round(found.changed.longest_call_before_seconds, 4),
            "calls": found.changed.calls,
        }
    grants = {LARGE: found.grants, SMALL: found.few_grants}
    return {"cells": cells, "change": changed, "grants": grants}


def write_page(found: Findings, page: Path = PAGE) -> None:
    """Puts the figures between their marks."""
    stated = f"`{_COMMAND}`, {datetime.now(UTC):%Y-%m-%d}, {machine()}"
    stated += f" ContextForge {contextforge.version()}."
    parts = [stated, markdown(_costs(found)), markdown(_ratios(found)), *_notes(found)]
    replace_between(page, BEGIN, END, parts)


def wrong(found: Findings) -> list[str]:
    """What is no matter of speed: a governed Comity without a figure, a change not made."""
    told = [
        f"{where(cell)}: {name} has no figure: {cell.reasons.get(name, 'it was not there')}"
        for cell in found.cells
        for name in (LARGE, ALL)
        if name not in cell.slices
    ]
    if found.changed is None:
        told.append("no grant was changed")
    return told


def _entry(cell: Cell) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "cpu_ms": {name: round(figure.cpu_ms, 4) for name, figure in figures(cell).items()},
        "ratios": {
            f"{one}/{other}": round(value, 4)
            for one, other, _ in _COMPARED
            if (value := ratio(cell, one, other)) is not None
        },
    }
    if cell.reasons:
        entry["not_available"] = cell.reasons
    return entry


def _costs(found: Findings) -> list[list[str]]:
    names = [name for name in RELAYS if any(name in cell.slices for cell in found.cells)]
    rows = [["CPU, ms per call", *names]]
    for cell in found.cells:
        by_name = figures(cell)
        costs = [f"{by_name[name].cpu_ms:.3f}" if name in by_name else "n/a" for name in names]
        rows.append([where(cell), *costs])
    return rows


def _ratios(found: Findings) -> list[list[str]]:
    rows = [["ratio", "goal", *(where(cell) for cell in found.cells)]]
    for one, other, goal in _COMPARED:
        values = [ratio(cell, one, other) for cell in found.cells]
        if any(value is not None for value in values):
            shown = ["" if value is None else f"{value:.3g}" for value in values]
            rows.append([f"{one} / {other}", goal, *shown])
    return rows


def _notes(found: Findings) -> list[str]:
    notes: list[str] = []
    if (changed := found.changed) is not None:
        notes.append(
            f"One grant among {found.grants:,} changed ten times while {changed.calls:,} calls of "
            f"others ran: a revocation was in force after at most "
            f"{changed.revoked_after_seconds * 1000:.0f} ms, a grant after at most "
            f"{changed.granted_after_seconds * 1000:.0f} ms (goal "
            f"{GOAL_CHANGE_SECONDS * 1000:.0f} ms). The longest call took "
            f"{changed.longest_call_seconds * 1000:.1f} ms meanwhile, and "
            f"{changed.longest_call_before_seconds * 1000:.1f} ms before."
        )
    return [*notes, *_waits(found), *missing(found.cells)]


def _waits(found: Findings) -> list[str]:
    """What durability adds to the slowest calls."""
    notes: list[str] = []
    for cell in found.cells:
        by_name = figures(cell)
        for one, other in ((DURABLE, LARGE), (POSTGRES_DURABLE, POSTGRES)):
            if one in by_name and other in by_name:
                slow, quick = by_name[one].p99_ms, by_name[other].p99_ms
                notes.append(
                    f"{where(cell)}: p99 of {one} is {slow:.1f} ms, of {other} {quick:.1f} ms: "
                    f"durability adds {slow - quick:.1f} ms."
                )
    return notes


def _columns(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join(lines)
