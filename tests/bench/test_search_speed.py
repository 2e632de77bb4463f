"""The search bench, played among a few tools: every engine has its turn, and figures come of it."""

from pathlib import Path

import pytest

from bench import search_speed_figures as figures
from bench.search_speed import Cell, Plan, Timed, measure


async def test_a_small_run_measures_every_kind_and_writes_its_page(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    cells = await measure(Plan((80, 160), 2, 1, 2))
    kinds = {one for pair in figures.AGAINST for one in pair}
    assert all(kinds | {"update"} == set(cell.kinds) for cell in cells)
    page = tmp_path / "search.md"
    page.write_text(f"before\n{figures.BEGIN}\nold\n{figures.END}\nafter\n", encoding="utf-8")
    figures.write_page(cells, page)
    said = page.read_text(encoding="utf-8")
    assert "160 tools" in said
    assert "old" not in said
    assert said.startswith("before")
    assert set(figures.as_json(cells)) == {"80", "160"}


def test_what_is_grossly_slower_is_told() -> None:
    cell = Cell(1_000, {kind: Timed([0.001], [0.001]) for pair in figures.AGAINST for kind in pair})
    cell.kinds["update"] = Timed([0.01], [0.01])
    assert figures.wrong([cell]) == []
    cell.kinds["keyword, 99 % hidden"].cpu[0] = 0.1
    slow = Cell(9, {**cell.kinds, "update": Timed([1.0], [1.0])})
    assert len(figures.wrong([cell, slow])) == 3
