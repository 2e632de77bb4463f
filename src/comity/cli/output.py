"""Tables and lines for people; JSON, YAML and names for programs."""

import io
import json
import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, cast

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from comity.cli.options import current_options
from comity.mcp.mgp import ServerLifecycleState, ShutdownReason
from comity.servers.process.stderr import sanitize_line

UNBOUNDED: Final = 100_000
COLUMN_GAP: Final = 2
MIN_LAST_COLUMN: Final = 16
"""A narrower last column is unreadable."""

MAX_INDENT: Final = 16
STATE_STYLES: Final = {
    "connected": "green",
    "connecting": "yellow",
    "restarting": "yellow",
    "draining": "yellow",
    "failed": "bold red",
}
_ORDERED: Final = frozenset({"", *ShutdownReason})
"""The reasons of an ordered restart; any other reason is a failure."""

_PLAIN_YAML: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*", re.ASCII)
_RESERVED_YAML: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_REASON_ENDS: Final = re.compile(r"; | \| | \(restart_limit_exceeded")


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that honours `--no-color`."""
    return Console(stderr=stderr, highlight=False, no_color=current_options().no_color or None)


def show_document(
    document: object, print_table: Callable[[], None], names: Iterable[object] = ()
) -> None:
    """Print the answer of a command in the format that the user wants.

    `names` is what `-o name` prints: one line for each entry, such as its id.
    """
    match current_options().output:
        case "json":
            show_json(document)
        case "yaml":
            _write_bytes(_escape_invisible(to_yaml(document), is_yaml=True))
        case "name":
            sys.stdout.write("".join(f"{line_text(name)}\n" for name in names))
        case _:
            print_table()


def show_output(*things: RenderableType) -> None:
    """Print for people: within the width of the terminal, or of COLUMNS; piped, without a bound."""
    if sys.stdout.isatty() and not is_wide():
        make_console().print(*things, sep="\n")
        return
    page = io.StringIO()
    Console(file=page, highlight=False, width=output_width()).print(*things, sep="\n")
    lines = (line.rstrip() for line in page.getvalue().splitlines())
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def show_hint(text: str) -> None:
    """Print advice for people, unless the user wants none."""
    if not current_options().quiet:
        show_output(line_text(text, "dim"))


def is_wide() -> bool:
    return current_options().output == "wide"


def output_width() -> int:
    if is_wide():
        return UNBOUNDED
    if sys.stdout.isatty():
        return Console().width
    said = os.environ.get("COLUMNS", "")
    return max(20, int(said)) if said.isdigit() else UNBOUNDED


@contextmanager
def show_spinner(about: str) -> Generator[None]:
    """Show on a terminal that something is under way; elsewhere nothing."""
    if not sys.stderr.isatty() or current_options().quiet:
        yield
        return
    with make_console(stderr=True).status(line_text(about)):
        yield


def show_json(document: object) -> None:
    _write_bytes(_escape_invisible(json.dumps(document, indent=2, ensure_ascii=False)) + "\n")


def _write_bytes(text: str) -> None:
    sys.stdout.buffer.write(text.encode())


def _escape_invisible(text: str, *, is_yaml: bool = False) -> str:
    """Escape characters that a terminal does not show, or that change its direction of text."""
    return "".join(
        each if each.isprintable() or each == "\n" else _escape(each, is_yaml=is_yaml)
        for each in text
    )


def _escape(character: str, *, is_yaml: bool) -> str:
    if is_yaml and ord(character) > 0xFFFF:
        return f"\\U{ord(character):08x}"
    # JSON leaves this one control character as it is.
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def to_yaml(value: object) -> str:
    """Return YAML for a value that JSON can hold.

    A text that is not a plain word is in double quotes, as JSON writes it. So no reader takes it
    for a number, a date, a boolean or a mark of YAML.
    """
    return "\n".join(_yaml_lines(value)) + "\n"


def _yaml_lines(value: object) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, each in cast("dict[str, object]", value).items():
            yield from _yaml_entry(f"{_yaml_scalar(name)}:", each)
    elif isinstance(value, list) and value:
        for each in cast("list[object]", value):
            nested = [f"  {line}" for line in _yaml_lines(each)]
            yield f"- {nested[0][2:]}"
            yield from nested[1:]
    else:
        yield _yaml_scalar(cast("object", value))


def _yaml_entry(key: str, value: object) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield key
        yield from (f"  {line}" for line in _yaml_lines(cast("object", value)))
    else:
        yield f"{key} {_yaml_scalar(cast('object', value))}"


def _yaml_scalar(value: object) -> str:
    if (
        isinstance(value, str)
        and _PLAIN_YAML.fullmatch(value)
        and value.lower() not in _RESERVED_YAML
    ):
        return value
    return json.dumps(value, ensure_ascii=False)


def line_text(value: object, style: str = "") -> Text:
    """Sanitized text on one line."""
    return Text(sanitize_line(str(value)).strip(), style=style)


def paragraph_text(text: str, style: str = "") -> Text:
    """Sanitized text that keeps its line breaks."""
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
    columns: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    cut: str = "",
    extra: Sequence[str] = (),
) -> RenderableType:
    """Return a table whose last column wraps, or is cut at the end of the line if `cut` names it.

    The other columns keep their width, because a cut name is useless. A table that is too wide
    loses empty columns first, then those in `extra`. `-o wide` shows them all. If it is still too
    wide, the columns that do not fit are below the others.
    """
    cells = [[each if isinstance(each, Text) else line_text(each) for each in row] for row in rows]
    empty = [
        name
        for place, name in enumerate(columns)
        if cells and name and not any(row[place].plain for row in cells)
    ]
    for name in (*empty, *extra):
        if _is_readable(columns, cells):
            break
        kept = [place for place, each in enumerate(columns) if each != name]
        columns = [columns[place] for place in kept]
        cells = [[row[place] for place in kept] for row in cells]
    widths = _widths(columns, cells)
    is_cut = bool(cut) and columns[-1] == cut and _room_of_last(widths) >= MIN_LAST_COLUMN
    if not (is_cut or _is_readable(columns, cells)):
        return stack_rows(columns, cells, _count_that_fit(widths))
    found = Table(
        box=None,
        pad_edge=False,
        padding=(0, COLUMN_GAP, 0, 0),
        header_style="bold",
        show_header=any(columns),
    )
    for name, width in zip(columns[:-1], widths[:-1], strict=True):
        found.add_column(name, no_wrap=True, min_width=width)
    found.add_column(
        columns[-1],
        no_wrap=is_cut,
        overflow="ellipsis" if is_cut else "fold",
        max_width=_room_of_last(widths),
    )
    for row in cells:
        found.add_row(*row)
    return found


def _widths(columns: Sequence[str], cells: Sequence[Sequence[Text]]) -> list[int]:
    return [
        max([cell_len(name), *(row[place].cell_len for row in cells)])
        for place, name in enumerate(columns)
    ]


def fits_output(columns: Sequence[str], cells: Sequence[Sequence[Text]]) -> bool:
    """Return whether each row of a table fits on one line."""
    widths = _widths(columns, cells)
    return _room_of_last(widths) >= widths[-1]


def _is_readable(columns: Sequence[str], cells: Sequence[Sequence[Text]]) -> bool:
    """Return whether the last column is wide enough to break no name, path or id of its texts."""
    widths = _widths(columns, cells)
    words = (word for row in cells for word in row[-1].plain.split(" "))
    longest = max(map(cell_len, words), default=0)
    return _room_of_last(widths) >= max(min(widths[-1], MIN_LAST_COLUMN), longest)


def _room_of_last(widths: Sequence[int]) -> int:
    """Return the width that the other columns leave to the last one."""
    return output_width() - sum(widths[:-1]) - COLUMN_GAP * (len(widths) - 1)


def _count_that_fit(widths: Sequence[int]) -> int:
    """Return how many of the first columns fit on a line, at least one and never all."""
    count, end = 0, -COLUMN_GAP
    for width in widths[:-1]:
        end += COLUMN_GAP + width
        if end > output_width():
            break
        count += 1
    return max(1, count)


def stack_rows(columns: Sequence[str], rows: Sequence[Sequence[Text]], first: int) -> Group:
    """The first columns of each row on a line of their own, and the others below them, whole."""
    # The title of a single column below would stand on a line of its own, and says little there.
    titles = columns if len(columns) - first > 1 else [*columns[:first], ""]
    header = [Text(name, style="bold") for name in titles]
    lines = [header, *rows] if any(columns) else rows
    widths = [max(row[place].cell_len for row in lines) for place in range(first)]
    return Group(*(_stacked_row(row, widths) for row in lines))


def _stacked_row(row: Sequence[Text], widths: Sequence[int]) -> Group:
    cells = [cell.copy() for cell in row[: len(widths)]]
    for cell, size in zip(cells, widths, strict=True):
        cell.pad_right(size - cell.cell_len)
    gap = " " * COLUMN_GAP
    line = Text(gap).join(cells)
    below = Text(gap, overflow="fold").join(cell for cell in row[len(widths) :] if cell.plain)
    if not below.plain:
        return Group(line)
    indent = min(widths[0] + COLUMN_GAP, MAX_INDENT)
    if any(cell_len(word) > output_width() - indent for word in below.plain.split(" ")):
        # A path that is longer than the rest of the line gets as much of it as there is.
        indent = COLUMN_GAP
        below = _break_at_slashes(below, output_width() - indent)
    return Group(line, Padding(below, (0, 0, 0, indent)))


def _break_at_slashes(text: Text, width: int) -> Text:
    """Return a text whose words are broken behind a slash where they are longer than a line."""
    lines = [""]
    for part in re.findall(r"[^/ ]*[/ ]?", text.plain):
        if lines[-1] and cell_len(lines[-1]) + cell_len(part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return Text("\n".join(line.rstrip(" ") for line in lines), style=text.style, overflow="fold")


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
    """Why a server failed, without advice, its last words and how often it was tried.

    The command that would mend it stays.
    """
    why, mark, _ = reason.partition("; its last output: ")
    if mark and "comity servers " in why:
        return why
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
