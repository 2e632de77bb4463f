"""What the search bench counts, and that it says what it could not measure."""

import json
from pathlib import Path

import pytest

from bench import search_quality
from bench import search_quality_figures as figures
from bench.search_quality import Asked, Findings, Plan, Row, measure
from comity.rules.search import Strategy
from comity.wire.errors import Misconfigured

FIRST = Asked([0], [(0.9, True), (0.2, False)], ["a", "b"])
LATE = Asked([7, None], [(0.6, False), (0.1, True)], ["c", "d"])
MISSED = Asked([None], [(0.3, False)], ["e"])
ALL = [FIRST, LATE, MISSED]


def test_recall_counts_each_right_tool_by_its_place() -> None:
    assert figures.recall(ALL, 5) == pytest.approx(1 / 3)
    assert figures.recall(ALL, 10) == pytest.approx((1 + 0.5) / 3)
    assert figures.mrr(ALL) == pytest.approx((1 + 1 / 8) / 3)
    assert figures.ndcg([FIRST]) == 1
    assert figures.ndcg([MISSED]) == 0


def test_a_task_is_covered_by_all_of_its_queries_together() -> None:
    groups = [["a"], ["d", "x"], ["y"]]
    both = [
        Asked([], [], ["a", "b"], "task", groups),
        Asked([], [], ["c", "d"], "task", groups),
    ]
    assert figures.coverage(both, 1) == pytest.approx(1 / 3)
    assert figures.coverage(both, 2) == pytest.approx(2 / 3)


def test_scores_are_held_against_what_was_right() -> None:
    assert figures.auc(ALL) == pytest.approx(3 / 6)
    rows = {round(low, 1): (count, right) for low, count, _, right in figures.reliability(ALL)}
    assert rows[0.9] == (1, 1)
    assert rows[0.6] == (1, 0)


def test_a_gross_loss_is_told() -> None:
    found = Findings({("livemcp.step", "hybrid"): [MISSED]}, 1000, 100.0)
    assert len(figures.wrong(found)) == 2
    assert figures.wrong(Findings()) == []


async def test_without_sets_and_without_weights_it_says_what_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise Misconfigured("no weights here")

    monkeypatch.setattr(search_quality, "open_minilm", none)
    assert "--data" in (await measure(Plan())).skipped[0]
    tool: Row = {
        "server": "files",
        "server_title": "Files",
        "server_description": "",
        "description": "",
    }
    named: list[Row] = [
        {**tool, "id": name, "name": name, "inputSchema": {}} for name in ("read", "write")
    ]
    asked: list[Row] = [{"query": "read", "gold_groups": [["read"]]}]
    for name, rows in (("livemcp.tools", named), ("livemcp.step.queries", asked)):
        lines = "\n".join(map(json.dumps, rows))
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    found = await measure(Plan(("livemcp.step", "bfcl"), tmp_path))
    assert figures.recall(found.asked["livemcp.step", Strategy.KEYWORD], 1) == 1
    assert found.skipped[0] == "semantic and hybrid: no weights here"
    assert found.skipped[1].startswith("bfcl: its file is not in")
    assert "no weights here" in figures.text(found)
