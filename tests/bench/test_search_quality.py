"""What the search bench counts, and that it says what it could not measure."""

import json
from pathlib import Path

import jsonschema_rs
import pytest

from bench import search_quality
from bench import search_quality_figures as figures
from bench.search_quality import Asked, Cost, Findings, Plan, measure
from bench.search_sets import OWN, Row, collections
from comity.catalog.search.ranking import SearchStrategy
from comity.errors import Misconfigured

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
    dear = Cost(2, 1000, 100.0, 50, 20, "letters")
    found = Findings({("everyday", "hybrid"): [MISSED]}, {"everyday": dear, "other": dear})
    assert [line.partition(":")[0] for line in figures.wrong(found)] == [
        "everyday, hybrid",
        "everyday",
    ]
    assert figures.wrong(Findings()) == []


def test_questions_without_a_right_tool_are_told_apart() -> None:
    none = Asked([], [(0.4, False), (0.1, False)], ["a"])
    part_of_a_task = Asked([], [(0.8, False)], ["a"], "task", [["b"]])
    asked = [FIRST, none, part_of_a_task]
    assert figures.best_score(asked, hopeless=True) == 0.4
    assert figures.best_score(asked, hopeless=False) == 0.9
    assert figures.recall(asked, 5) == 1
    assert "for the 1 questions" in figures.text(Findings({("own", "keyword"): asked}))


def test_our_own_set_is_whole() -> None:
    (own,) = collections([OWN])
    tools, questions = own.tools(), own.questions("everyday")
    ids = {tool["id"] for tool in tools}
    assert (len(ids), len({tool["server"] for tool in tools})) == (198, 28)
    assert all(tool["id"] == f"{tool['server']}/{tool['name']}" for tool in tools)
    for tool in tools:
        jsonschema_rs.meta.validate(tool["inputSchema"])
        assert tool["description"]
        assert tool["inputSchema"]["type"] == "object"
    assert len({question["query"] for question in questions}) == len(questions) >= 200
    right = [{tool for group in row["gold_groups"] for tool in group} for row in questions]
    assert set().union(*right) == ids
    assert all(set(row["gold"]) == tools for row, tools in zip(questions, right, strict=True))
    assert sum(len(row["gold_groups"]) > 1 for row in questions) >= 20
    assert sum(not row["gold_groups"] for row in questions) >= 20


async def test_sets_of_another_folder_are_measured_and_what_is_missing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> None:
        raise Misconfigured("no weights here")

    monkeypatch.setattr(search_quality, "open_minilm", none)
    with pytest.raises(FileNotFoundError, match="has no file"):
        await measure(Plan((tmp_path,)))
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
    for name, rows in (("some.tools", named), ("some.step.queries", asked), ("x.queries", asked)):
        lines = "\n".join(map(json.dumps, rows))
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    found = await measure(Plan((tmp_path,)))
    assert list(found.asked) == [("some.step", SearchStrategy.KEYWORD)]
    assert figures.recall(found.asked["some.step", SearchStrategy.KEYWORD], 1) == 1
    assert found.skipped == ["semantic and hybrid: no weights here"]
    assert "no weights here" in figures.text(found)
