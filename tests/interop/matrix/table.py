"""The matrix as a table for people: a row for each client, a column for each server."""

from collections.abc import Iterable, Sequence

from tests.interop.matrix.cells import PASS, Cell


def tables(cells: Sequence[Cell]) -> str:
    """One table for each door: how many features pass, and in brackets without Comity."""
    doors = dict.fromkeys(cell.door for cell in cells)
    return "\n\n".join(
        _table([cell for cell in cells if cell.door == door], door) for door in doors
    )


def is_shown(cells: Sequence[Cell], page: str) -> bool:
    """Whether one client's rows stand on a page as they were played."""
    doors = dict.fromkeys(cell.door for cell in cells)
    played = [_table([cell for cell in cells if cell.door == door], door) for door in doors]
    stand = _rows(page)
    return all(stand.get(place) == row for place, row in _rows("\n\n".join(played)).items())


def _rows(page: str) -> dict[tuple[str, str], dict[str, str]]:
    """By door and client what stands under which server; a table has the columns that it needs."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for table in page.split("\n\n"):
        (door, *servers), *rows = (
            [text.strip() for text in line.removeprefix("|").removesuffix("|").split("|")]
            for line in table.splitlines()
            if line.startswith("| ")
        )
        for client, *shown in rows:
            under = dict(zip(servers, shown, strict=True))
            found[door, client] = {server: text for server, text in under.items() if text}
    return found


def remarks(cells: Sequence[Cell]) -> str:
    """What does not pass, in words, and what passes although it does not without Comity."""
    return "\n\n".join(_remarks(cells))


def _table(cells: Sequence[Cell], door: str) -> str:
    servers = list(dict.fromkeys(cell.server.title for cell in cells))
    rows: dict[str, dict[str, str]] = {}
    for cell in cells:
        rows.setdefault(cell.client.title, {})[cell.server.title] = _shown(cell)
    lines = [[door, *servers]]
    lines += [
        [client, *(row.get(server, "") for server in servers)] for client, row in rows.items()
    ]
    return _markdown(lines)


def _shown(cell: Cell) -> str:
    shown = f"{cell.passed}/{len(cell.features)}"
    if cell.passed_directly != cell.passed:
        shown += f" ({cell.passed_directly})"
    return f"**{shown}**" if cell.differences() else shown


def _remarks(cells: Sequence[Cell]) -> Iterable[str]:
    said: dict[str, list[str]] = {}
    for cell in cells:
        differences = cell.differences()
        for feature in cell.features:
            through, directly = cell.through[feature], cell.directly[feature]
            if through == directly == PASS:
                continue
            if through == PASS:
                heading, why = "Passes through Comity alone", directly
            elif any(feature == each.feature for each in differences):
                heading, why = "FAILS THROUGH COMITY ALONE", f"{through}, and directly {directly}"
            elif (reason := cell.reason_for(feature)) is not None:
                heading, why = "Fails through Comity alone, on purpose", reason
            else:
                heading, why = "Fails with and without Comity", through
            said.setdefault(heading, []).append(f"{_where(cell)}: {why}\0{feature}")
    for heading in sorted(said):
        yield f"{heading}:\n\n" + "\n".join(_grouped(said[heading]))


def _grouped(remarks: Iterable[str]) -> Iterable[str]:
    """One line for all features of a cell about which the same is to be said."""
    features: dict[str, list[str]] = {}
    for remark in remarks:
        about, _, feature = remark.partition("\0")
        features.setdefault(about, []).append(feature)
    for about, names in features.items():
        where, _, why = about.partition(": ")
        yield f"- {where}: {', '.join(names)}: {why}"


def _where(cell: Cell) -> str:
    return f"{cell.client.title} at {cell.server.title} ({cell.door})"


def _markdown(lines: list[list[str]]) -> str:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    drawn = [
        "| "
        + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([drawn[0], rule, *drawn[1:]])
