"""Medians, ratios round by round, and what counts as a gross regression."""

from pathlib import Path

import pytest

from bench.figures import as_json, gross_regressions, ratio
from bench.load import Slice
from bench.page import BEGIN, END, write_page
from bench.plot import plot
from bench.relay import Cell
from bench.table import table


def rounds(*cpu_ms: float) -> dict[int, Slice]:
    return {turn: Slice(100, 0.5, ms / 10, 0.001) for turn, ms in enumerate(cpu_ms)}


def cell(comity: dict[int, Slice]) -> Cell:
    slices = {
        "direct": rounds(0, 0, 0),
        "bare": rounds(0.1, 0.2, 0.1),
        "comity": comity,
        "sdk": rounds(2, 4, 2),
    }
    return Cell("http-modern", 32, slices)


def test_a_ratio_is_the_median_of_each_round_s_ratio() -> None:
    # The machine was half as fast in the second round, for both; in the third, only for one.
    assert ratio(cell(rounds(0.13, 0.26, 0.5)), "comity", "bare") == pytest.approx(1.3)


def test_only_rounds_in_which_both_took_part_are_compared() -> None:
    assert ratio(cell({1: rounds(0, 0.3)[1]}), "comity", "bare") == pytest.approx(1.5)
    assert ratio(cell({}), "comity", "bare") is None


def test_json_has_an_entry_for_each_path_and_concurrency() -> None:
    entry = as_json([cell(rounds(0.13, 0.26, 0.13))])["http-modern/32/plain"]
    assert entry["cpu_ms"] == {"direct": 0, "bare": 0.1, "comity": 0.13, "sdk": 2}
    assert entry["calls_per_second"]["bare"] == 200
    assert (entry["ratio_bare"], entry["ratio_sdk"]) == (1.3, 0.065)


@pytest.mark.parametrize(
    ("cpu_ms", "told"), [(0.59, 0), (0.61, 1), (0.76, 2)], ids=["noise", "sdk", "bare and sdk"]
)
def test_five_times_a_goal_is_gross(cpu_ms: float, told: int) -> None:
    assert len(gross_regressions([cell(rounds(cpu_ms, 2 * cpu_ms, cpu_ms))])) == told


def test_comity_without_a_figure_is_gross() -> None:
    unmeasured = cell({})
    unmeasured.reasons["comity"] = "did not start"
    assert gross_regressions([unmeasured]) == [
        "http-modern at 32, plain: Comity has no figure: did not start"
    ]


def test_the_table_shows_figures_and_says_why_one_is_missing() -> None:
    shown = cell(rounds(0.13, 0.26, 0.13))
    shown.reasons["fastmcp"] = "did not start"
    text = table([shown])
    assert "comity 1.3 times bare (goal 1.5), comity 0.065 of sdk (goal 0.06)" in text
    assert "fastmcp: n/a, did not start" in text


def test_every_run_and_every_body_is_shown() -> None:
    runs = [cell(rounds(0.1 * times, 0.2 * times)) for times in (1.2, 1.4, 1.3)]
    for run, each in enumerate(runs):
        each.run = run
    long = cell(rounds(0.2, 0.4))
    long.body = "2kb"
    text = table([*runs, long])
    assert "1.3 [1.2 1.4 1.3]" in text
    assert "2kb" in text
    entry = as_json([*runs, long])["http-modern/32/plain"]
    assert entry["runs"]["comity"] == [1.2, 1.4, 1.3]


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    plot([cell(rounds(0.13, 0.26, 0.13))], tmp_path / "new" / "relay.png")
    assert (tmp_path / "new" / "relay.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_keeps_its_words_and_gets_new_figures(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"# Words\n\n{BEGIN}\nold\n{END}\n\nMore words\n", encoding="utf-8")
    write_page([cell(rounds(0.13, 0.26, 0.13))], page)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("# Words\n\n" + BEGIN)
    assert text.endswith(END + "\n\nMore words\n")
    assert "| http-modern, 32 at a time | 0.100 | 0.130 | 2.000 | 1.30 | 0.07 |" in text
    assert "old" not in text
    assert (tmp_path / "relay.png").is_file()
