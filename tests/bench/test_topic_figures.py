"""Ratios round by round, and what is grossly wrong with a run of the topics bench."""

from pathlib import Path

import pytest

from bench.crowd import Turn
from bench.topic_figures import BEGIN, END, as_json, ratio, text, write_page, wrong
from bench.topics import Cell, Findings


def rounds(*cpu_us: float) -> dict[int, Turn]:
    return {
        turn: Turn(10, 100, 0.1, us * 100 / 1e6, 0.0001, (0.001, 0.002))
        for turn, us in enumerate(cpu_us)
    }


def found(comity: dict[int, Turn]) -> Findings:
    turns = {"websockets": rounds(10, 20, 10), "nats": rounds(2, 4, 2), "comity": comity}
    cell = Cell(10, saturated=turns, steady=turns)
    apart = Cell(2, saturated={"nats-py": rounds(6, 12, 6), "comity": comity})
    directed = {0: (50e-6, 52e-6), 1: (50e-6, 51e-6)}
    return Findings([cell], {"comity": 10_240.0}, directed, 1_000, [apart] if comity else [])


def test_a_ratio_is_of_deliveries_for_the_same_cpu_in_the_same_round() -> None:
    # The machine was half as fast in the second round, for both.
    cell = found(rounds(5, 10, 4)).cells[0]
    assert ratio(cell.saturated, "comity", "websockets") == pytest.approx(2.0)
    assert ratio(cell.saturated, "comity", "nobody") is None


def test_json_has_an_entry_for_each_size() -> None:
    told = as_json(found(rounds(5, 10, 5)))
    entry = told["members"]["10"]
    assert (entry["of_websockets"], entry["of_nats"]) == (2.0, 0.4)
    assert entry["p99_of_websockets"] == 1.0
    assert told["memory_bytes_per_member"] == {"comity": 10_240}
    assert told["apart_of_nats_py"] == {"2": 1.2}
    assert told["directed"] == {"idle": 1_000, "times": 1.03}


@pytest.mark.parametrize(
    ("cpu_us", "told"), [(29, 0), (31, 1), (37, 2)], ids=["noise", "gross", "both"]
)
def test_a_third_of_the_goal_is_gross(cpu_us: float, told: int) -> None:
    assert len(wrong(found(rounds(cpu_us, 2 * cpu_us, cpu_us)))) == told


def test_no_figure_much_memory_and_dear_strangers_are_wrong() -> None:
    findings = found({})
    findings.reasons["comity"] = "did not start"
    findings.memory["comity"] = 1e6
    findings.directed = {0: (50e-6, 500e-6)}
    assert len(wrong(findings)) == 3


def test_the_page_keeps_what_is_around_the_figures(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    findings = found(rounds(5, 10, 5))
    write_page(findings, page)
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    assert "old" not in written
    assert "10.0 KB" in written
    assert "1,000 other members" in text(findings)
