"""What a run of the governed bench amounts to: as text, as JSON, and on its page."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import contextforge
from bench.figures import by_place, figures, merge_runs, ratio, ratio_text, ratios
from bench.governed import (
    ALL,
    ASKS,
    BARE_DURABLE,
    BARE_POSTGRES,
    CONTEXTFORGE,
    DURABLE,
    LARGE,
    POSTGRES,
    POSTGRES_DURABLE,
    RELAYS,
    SMALL,
    Findings,
)
from bench.page import PAGE, code, machine, markdown, missing, replace_between, where
from bench.relay import Cell
from bench.table import columns

# Times the bare relay's CPU, and many grants' to few grants': the goals for Comity.
GOAL_GOVERNED = 1.7
GOAL_ALL = 1.8
GOAL_DURABLE = 1.4
GOAL_ASKS = 1.05
GOAL_GRANTS = 1.1
GOAL_CHANGE_SECONDS = 1.0
BEGIN, END = "<!-- governed: begin -->", "<!-- governed: end -->"
_COMMAND = "scripts/bench governed"
_COMPARED = (
    (LARGE, "bare", f"at most {GOAL_GOVERNED}"),
    (ALL, "bare", f"at most {GOAL_ALL}"),
    (POSTGRES, "bare", f"at most {GOAL_GOVERNED}"),
    (DURABLE, BARE_DURABLE, f"at most {GOAL_DURABLE}"),
    (POSTGRES_DURABLE, BARE_POSTGRES, f"at most {GOAL_DURABLE}"),
    (ASKS, SMALL, f"at most {GOAL_ASKS}"),
    (LARGE, "comity", ""),
    (LARGE, SMALL, f"at most {GOAL_GRANTS}"),
    (LARGE, "sdk", ""),
    (LARGE, CONTEXTFORGE, ""),
)


def text(found: Findings) -> str:
    """Columns that a person reads."""
    return "\n\n".join([columns(_costs(found)), columns(_ratios(found)), *_notes(found)])


def as_json(found: Findings) -> dict[str, Any]:
    places = by_place(found.cells).items()
    cells = {"/".join(map(str, place)): _entry(runs) for place, runs in places}
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


def _entry(runs: list[Cell]) -> dict[str, Any]:
    (cell,) = merge_runs(runs)
    entry: dict[str, Any] = {
        "cpu_ms": {name: round(figure.cpu_ms, 4) for name, figure in figures(cell).items()},
        "ratios": {
            f"{one}/{other}": round(value, 4)
            for one, other, _ in _COMPARED
            if (value := ratio(cell, one, other)) is not None
        },
        "runs": {
            f"{one}/{other}": [round(value, 4) for value in values]
            for one, other, _ in _COMPARED
            if (values := ratios(runs, one, other))
        },
    }
    if cell.reasons:
        entry["not_available"] = cell.reasons
    return entry


def _costs(found: Findings) -> list[list[str]]:
    names = [name for name in RELAYS if any(name in cell.slices for cell in found.cells)]
    rows = [["CPU, ms per call", *map(code, names)]]
    for cell in merge_runs(found.cells):
        by_name = figures(cell)
        costs = [f"{by_name[name].cpu_ms:.3f}" if name in by_name else "n/a" for name in names]
        rows.append([where(cell), *costs])
    return rows


def _ratios(found: Findings) -> list[list[str]]:
    """A row for each path, concurrency and body; a column for each comparison."""
    compared = [
        (one, other, code(f"{one} / {other}") + (f" ({goal})" if goal else ""))
        for one, other, goal in _COMPARED
        if any(one in cell.slices and other in cell.slices for cell in found.cells)
    ]
    head = ["ratio of CPU", *(heading for _, _, heading in compared)]
    return [head] + [
        [where(runs[0]), *(ratio_text(runs, one, to) for one, to, _ in compared)]
        for runs in by_place(found.cells).values()
    ]


def _notes(found: Findings) -> list[str]:
    notes: list[str] = []
    if (changed := found.changed) is not None:
        notes.append(
            f"One grant among {found.grants:,} changed ten times while {changed.calls:,} other "
            "calls ran. A revocation was in force after at most "
            f"{changed.revoked_after_seconds * 1000:.0f} ms, a grant after at most "
            f"{changed.granted_after_seconds * 1000:.0f} ms (goal "
            f"{GOAL_CHANGE_SECONDS * 1000:.0f} ms). The longest call took "
            f"{changed.longest_call_seconds * 1000:.1f} ms meanwhile, and "
            f"{changed.longest_call_before_seconds * 1000:.1f} ms before."
        )
    return [*notes, *_waits(found), *missing(merge_runs(found.cells))]


def _waits(found: Findings) -> list[str]:
    """What durability adds to the slowest calls."""
    notes: list[str] = []
    for cell in merge_runs(found.cells):
        by_name = figures(cell)
        for one, other in ((DURABLE, LARGE), (POSTGRES_DURABLE, POSTGRES)):
            if one in by_name and other in by_name:
                slow, quick = by_name[one].p99_ms, by_name[other].p99_ms
                notes.append(
                    f"{where(cell)}: p99 of {one} is {slow:.1f} ms, of {other} {quick:.1f} ms: "
                    f"durability adds {slow - quick:.1f} ms."
                )
    return notes
