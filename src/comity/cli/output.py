"""Tables, lines and JSON for people and programs, and the exit statuses."""

import io
import json
import os
import re
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from comity.mcp.mgp import ServerLifecycleState, ShutdownReason
from comity.servers.process.stderr import sanitize_line

UNBOUNDED: Final = 100_000
STATE_STYLES: Final = {
    "connected": "green",
    "connecting": "yellow",
    "restarting": "yellow",
    "draining": "yellow",
    "failed": "bold red",
}
_ORDERED: Final = frozenset({"", *ShutdownReason})
"""The reasons of a restart that somebody ordered; any other reason is a failure."""

_REASON_ENDS: Final = re.compile(r"; | \| | \(restart_limit_exceeded")


def show_output(*things: RenderableType) -> None:
    """Print for people: within the width of the terminal, or of COLUMNS; piped, without a bound."""
    if sys.stdout.isatty():
        Console(highlight=False).print(*things, sep="\n")
        return
    page = io.StringIO()
    Console(file=page, highlight=False, width=output_width()).print(*things, sep="\n")
    lines = (line.rstrip() for line in page.getvalue().splitlines())
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def output_width() -> int:
    if sys.stdout.isatty():
        return Console().width
    said = os.environ.get("COLUMNS", "")
    return max(20, int(said)) if said.isdigit() else UNBOUNDED


@contextmanager
def show_spinner(about: str) -> Generator[None]:
    """Show on a terminal that something is under way; elsewhere nothing."""
    if not sys.stderr.isatty():
        yield
        return
    with Console(stderr=True).status(line_text(about)):
        yield


def show_json(document: object) -> None:
    """Print for programs; a terminal that shows it is not steered by what strangers wrote."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    # Each character that is not seen, or turns the direction of a line, is written as its escape.
    safe = "".join(
        each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text
    )
    sys.stdout.buffer.write(safe.encode() + b"\n")


def line_text(value: object, style: str = "") -> Text:
    """Somebody's words on one line."""
    return Text(sanitize_line(str(value)).strip(), style=style)


def paragraph_text(text: str, style: str = "") -> Text:
    """Somebody's words with the line breaks they came with."""
    return Text("\n".join(sanitize_line(line).rstrip() for line in text.splitlines()), style=style)


def first_line(text: str | None) -> str:
    """The beginning of a description: up to the end of its first line that says something."""
    return next((line.strip() for line in (text or "").splitlines() if line.strip()), "")


def shorten_path(path: Path) -> str:
    """A path as people write it."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)


def build_table(
    columns: Sequence[str], rows: Iterable[Sequence[str | Text]], *, cut: str = ""
) -> Table:
    """Columns under their names, of which the last wraps, or is cut where the line ends if named.

    The others keep their width, whatever the terminal: a name that is cut names nothing.
    """
    cells = [[each if isinstance(each, Text) else line_text(each) for each in row] for row in rows]
    found = Table(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
        show_header=any(columns),
    )
    left = output_width()
    for place, column in enumerate(columns[:-1]):
        widest = max([cell_len(column), *(row[place].cell_len for row in cells)])
        found.add_column(column, no_wrap=True, min_width=widest)
        left -= widest + 2
    is_cut = bool(cut) and columns[-1] == cut
    found.add_column(
        columns[-1],
        no_wrap=is_cut,
        overflow="ellipsis" if is_cut else "fold",
        max_width=max(left, 20),
    )
    for row in cells:
        found.add_row(*row)
    return found


def stack_rows(columns: Sequence[str], rows: Sequence[Sequence[Text]], first: int) -> Group:
    """The first columns of each row on a line of their own, and the others below them, whole."""
    header = [Text(name, style="bold") for name in columns]
    lines = [header, *rows] if any(columns) else rows
    widths = [max(row[place].cell_len for row in lines) for place in range(first)]
    return Group(*(_stacked_row(row, widths) for row in lines))


def _stacked_row(row: Sequence[Text], widths: Sequence[int]) -> Group:
    cells = [cell.copy() for cell in row[: len(widths)]]
    for cell, size in zip(cells, widths, strict=True):
        cell.pad_right(size - cell.cell_len)
    below = Text("  ", overflow="fold").join(row[len(widths) :])
    return Group(Text("  ").join(cells), Padding(below, (0, 0, 0, widths[0] + 2)))


def state_text(text: str, reason: str = "") -> Text:
    """The state of a server for people."""
    shown = state_name(text, reason)
    return line_text(shown, STATE_STYLES.get(shown, "dim"))


def state_name(text: str, reason: str) -> str:
    """A state of MGP in plain words: a server that waits for its next start has failed."""
    is_failed = text == ServerLifecycleState.ERROR or (
        text == ServerLifecycleState.RESTARTING and reason not in _ORDERED
    )
    return "failed" if is_failed else text


def short_reason(reason: str) -> str:
    """Why a server failed, without advice, its last words and how often it was tried."""
    return _REASON_ENDS.split(reason, maxsplit=1)[0]


def describe_age(written: str | None) -> str:
    """How long ago something was, in the one unit that people would name."""
    if not written:
        return ""
    return format_duration(datetime.now(UTC) - datetime.fromisoformat(written))


def format_duration(time: timedelta) -> str:
    seconds = max(0.0, time.total_seconds())
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
