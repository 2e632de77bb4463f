"""What is told of a governed run: costs, ratios, how quickly a change counts, what is missing."""

from pathlib import Path

from bench.change import Changed
from bench.governed import ALL, CONTEXTFORGE, LARGE, SMALL, Findings
from bench.governed_figures import BEGIN, END, as_json, text, write_page, wrong
from bench.load import Slice
from bench.relay import Cell

CHANGED = Changed(0.25, 0.5, 0.012, 0.011, 9000)


def rounds(*cpu_ms: float) -> dict[int, Slice]:
    return {turn: Slice(100, 0.5, ms / 10, 0.001) for turn, ms in enumerate(cpu_ms)}


def findings(**slices: dict[int, Slice]) -> Findings:
    found = {
        "bare": rounds(0.1, 0.2),
        SMALL: rounds(0.15, 0.3),
        LARGE: rounds(0.16, 0.32),
        ALL: rounds(0.2, 0.4),
        CONTEXTFORGE: rounds(80, 160),
    }
    return Findings([Cell("http-modern", 32, found | slices)], CHANGED, 100_000, 1_000)


def test_costs_ratios_and_the_change_are_told() -> None:
    told = text(findings())
    assert "governed / bare" in told
    assert "at most 1.7" in told
    assert " 1.6" in told
    assert "A revocation was in force after at most 250 ms" in told


def test_a_program_reads_the_same() -> None:
    told = as_json(findings())
    ratios = told["cells"]["http-modern/32/plain"]["ratios"]
    assert (ratios["governed/bare"], ratios["governed/contextforge"]) == (1.6, 0.002)
    assert told["change"]["granted_after_seconds"] == 0.5
    assert told["grants"] == {"governed": 100_000, "governed-small": 1_000}


def test_speed_alone_is_never_wrong() -> None:
    assert wrong(findings(governed=rounds(50, 100))) == []


def test_a_governed_gateway_that_did_not_answer_is_wrong() -> None:
    cell = Cell("http-modern", 32, {"bare": rounds(0.1)}, {LARGE: "call 1 was answered no"})
    told = wrong(Findings([cell], None, 0, 0))
    assert told[0] == "http-modern, 32 at a time: governed has no figure: call 1 was answered no"
    assert len(told) == 3


def test_the_page_holds_the_figures_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(findings(), page)
    written = page.read_text()
    assert written.startswith("before\n")
    assert written.endswith("\nafter\n")
    assert "`governed / bare` (at most 1.7)" in written
    assert "| http-modern, 32 at a time | 1.6 |" in written
    assert "old" not in written
