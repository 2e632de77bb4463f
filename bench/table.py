"""The figures of a relay bench as text that a person reads."""

from bench.figures import GOALS_BARE, by_place, figures, goal_sdk, merge_runs, ratio_text
from bench.relay import RELAYS, Cell


def table(cells: list[Cell]) -> str:
    """A table for each path and concurrency, with a column for each kind of body."""
    places = dict.fromkeys((cell.path, cell.concurrency) for cell in cells)
    return "\n\n".join(_place(cells, *place) for place in places)


def _place(cells: list[Cell], path: str, concurrency: int) -> str:
    here = [cell for cell in cells if (cell.path, cell.concurrency) == (path, concurrency)]
    runs = {body: found for (_, _, body), found in by_place(here).items()}
    first, *_ = merge_runs(here)
    found = figures(first)
    rows = [["relay", "CPU ms/call", "calls/s", "load ms/call", *runs]]
    for relay in (each for each in RELAYS if each in found):
        figure = found[relay]
        is_direct = relay == "direct"
        rows.append(
            [
                relay,
                "-" if is_direct else f"{figure.cpu_ms:.3f}",
                f"{figure.calls_per_second:,.0f}",
                f"{figure.load_cpu_ms:.3f}",
                *("-" if is_direct else ratio_text(each, relay, "bare") for each in runs.values()),
            ]
        )
    lines = [f"{path}, {concurrency} at a time; CPU of each body in times bare"]
    lines += ["  " + line for line in columns(rows).splitlines()]
    lines += [f"  {relay}: n/a, {reason[:400]}" for relay, reason in first.reasons.items()]
    return "\n".join([*lines, *_verdict(next(iter(runs.values())))])


def columns(rows: list[list[str]]) -> str:
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join(lines)


def _verdict(runs: list[Cell]) -> list[str]:
    said = [
        f"{relay} {times} times bare (goal {goal})"
        for relay, goal in GOALS_BARE.items()
        if (times := ratio_text(runs, relay, "bare"))
    ]
    if sdk := ratio_text(runs, "comity", "sdk"):
        said.append(f"comity {sdk} of sdk (goal {goal_sdk(runs[0])})")
    return [f"  {runs[0].body}: " + ", ".join(said)] if said else []
