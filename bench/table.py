"""The figures of a relay bench as text that a person reads."""

from bench.figures import GOAL_BARE, GOAL_SDK, Figure, figures, ratio
from bench.relay import RELAYS, Cell

_HEADINGS = ("relay", "CPU ms/call", "calls/s", "times bare", "load ms/call")


def table(cells: list[Cell]) -> str:
    return "\n\n".join(_cell(cell) for cell in cells)


def _cell(cell: Cell) -> str:
    found = figures(cell)
    rows = [_HEADINGS]
    rows += [_row(cell, relay, found[relay]) for relay in RELAYS if relay in found]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    lines = [f"{cell.path}, {cell.concurrency} at a time"]
    for name, *numbers in rows:
        right = [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join(["", name.ljust(widths[0]), *right]))
    lines += [f"  {relay}: n/a, {reason[:400]}" for relay, reason in cell.reasons.items()]
    return "\n".join([*lines, *_verdict(cell)])


def _row(cell: Cell, relay: str, figure: Figure) -> tuple[str, ...]:
    times = ratio(cell, relay, "bare")
    return (
        relay,
        "-" if relay == "direct" else f"{figure.cpu_ms:.3f}",
        f"{figure.calls_per_second:,.0f}",
        "-" if relay == "direct" or times is None else f"{times:.2f}",
        f"{figure.load_cpu_ms:.3f}",
    )


def _verdict(cell: Cell) -> list[str]:
    bare, sdk = ratio(cell, "comity", "bare"), ratio(cell, "comity", "sdk")
    said: list[str] = []
    if bare is not None:
        said.append(f"{bare:.2f} times bare (goal {GOAL_BARE})")
    if sdk is not None:
        said.append(f"{sdk:.3f} of sdk (goal {GOAL_SDK})")
    return ["  Comity: " + ", ".join(said)] if said else []
